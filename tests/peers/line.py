"""A slow line between two network namespaces of this machine; needs root, iproute2 and the kernel's token bucket."""

import contextlib
import os
import subprocess

from figures import Failed


class NoLine(Failed):
    """Why there can be no line on this machine."""


ADDRESSES = ("10.77.0.1", "10.77.0.2")
INTERFACE = "line"
# Deep enough that nothing is dropped: what is measured is the rate, not how TCP recovers.
QUEUE = "64mb"
# What passes at once after a pause, so free of charge: 2 % of a delta of 1.5 MB. The kernel needs what the line carries between two of its timers,
# which are fine ones, so a quarter of a millisecond at 1 Gbit/s is enough for the rate.
BURST = "32kb"
# Of the line and, on loopback, too: it would have packets of 64 KB, which cost neither headers nor processor time.
MTU = "1500"


def command(*words):
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except OSError as error:
        raise NoLine(f"no slow line: {words[0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise NoLine(f"no slow line: `{' '.join(words)}`: {done.stdout.strip()}")


class Line:
    """Two namespaces with a full-duplex line of so many Mbit/s; inside the first one, loopback has the same rate and packets of the same size.

    A program that has both its ends in one process uses that loopback: while its bytes go one way at a time, it is the same line.
    Use as a context manager; the namespaces end with it.

    Errors: NoLine.
    """

    def __init__(self, megabits):
        self.megabits = megabits
        self.namespaces = tuple(f"starling-{os.getpid()}-{end}" for end in "ab")

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def make(self):
        a, b = self.namespaces
        for name in self.namespaces:
            command("ip", "netns", "add", name)
            command("ip", "-n", name, "link", "set", "lo", "up")
        command("ip", "-n", a, "link", "add", INTERFACE, "type", "veth", "peer", "name", INTERFACE, "netns", b)
        for name, address in zip(self.namespaces, ADDRESSES):
            command("ip", "-n", name, "address", "add", f"{address}/24", "dev", INTERFACE)
            command("ip", "-n", name, "link", "set", INTERFACE, "up")
            self.limit(name, INTERFACE)
        self.limit(a, "lo")

    def limit(self, name, interface):
        command("ip", "-n", name, "link", "set", interface, "mtu", MTU)
        command("tc", "-n", name, "qdisc", "add", "dev", interface, "root", "tbf", "rate", f"{self.megabits}mbit", "burst", BURST, "limit", QUEUE)

    def __exit__(self, *_):
        for name in self.namespaces:
            with contextlib.suppress(OSError):  # no `ip`, so no namespace either
                subprocess.run(["ip", "netns", "del", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    def places(self):
        """What the commands of a comparison may name."""
        return {"namespace": self.namespaces[0], "namespaces": " ".join(self.namespaces), "address": ADDRESSES[0], "interface": INTERFACE}
