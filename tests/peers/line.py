"""A slow line between two network namespaces of this machine; needs root, iproute2 and the kernel's token bucket."""

import os
import subprocess

from figures import Failed

ADDRESSES = ("10.77.0.1", "10.77.0.2")
INTERFACE = "line"
# Deep enough that nothing is dropped: what is measured is the rate, not how TCP recovers.
QUEUE = "64mb"
BURST_MS = 4


def command(*words):
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except OSError as error:
        raise Failed(f"no slow line: {words[0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise Failed(f"no slow line: `{' '.join(words)}`: {done.stdout.strip()}")


class Line:
    """Two namespaces with a full-duplex line of so many Mbit/s; inside the first one, loopback has the same rate.

    A program that has both its ends in one process uses that loopback: while its bytes go one way at a time, it is the same line.
    Use as a context manager; the namespaces end with it.
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
        burst_kb = max(128, self.megabits * BURST_MS // 8)
        command("tc", "-n", name, "qdisc", "add", "dev", interface, "root", "tbf",
                "rate", f"{self.megabits}mbit", "burst", f"{burst_kb}kb", "limit", QUEUE)

    def __exit__(self, *_):
        for name in self.namespaces:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)

    def places(self):
        """What the commands of a comparison may name."""
        return {"namespace": self.namespaces[0], "namespaces": " ".join(self.namespaces), "address": ADDRESSES[0], "interface": INTERFACE}
