"""Machines of the net lab: network namespaces whose only line is starling_switch. Needs root, iproute2 and /dev/net/tun.

Every machine has one interface `lab0`, 10.88.0.K. The switch forwards by hardware address and every machine knows those of the others from the
start, so that a silent machine is silent: no failing address resolution tells on it.
"""

import json
import os
import subprocess

DEVICE = "lab0"


class NoLab(Exception):
    """Why this machine cannot have a lab."""


def ip(*words, commands=None):
    try:
        done = subprocess.run(["ip", *words], input=commands, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except OSError as error:
        raise NoLab(f"ip: {error.strerror}") from error
    if done.returncode != 0:
        raise NoLab(f"`ip {' '.join(words)}`: {done.stdout.strip()}")
    return done.stdout


def hardware(number):
    return f"02:00:00:00:00:{number:02x}"


class Network:
    """So many machines, numbered from 1, and the faults of their lines. Use as a context manager: the namespaces end with it."""

    def __init__(self, count, seed, switch):
        self.numbers = range(1, count + 1)
        self.seed = seed
        self.program = switch
        self.process = None

    def __enter__(self):
        if os.geteuid() != 0:
            raise NoLab("network namespaces need root")
        try:
            ip("-batch", "-", commands="".join(f"netns add {self.space(k)}\n" for k in self.numbers))
            self.process = subprocess.Popen([self.program, str(self.seed), *map(self.space, self.numbers)],
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            if self.process.stdout.readline() != "ready\n":
                raise NoLab("the switch did not start")
            for number in self.numbers:
                self.connect(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def connect(self, number):
        others = (f"neigh add {self.address(k)} lladdr {hardware(k)} dev {DEVICE} nud permanent\n" for k in self.numbers if k != number)
        ip("-n", self.space(number), "-batch", "-", commands=(
            f"link set lo up\nlink set {DEVICE} address {hardware(number)}\naddress add {self.address(number)}/24 dev {DEVICE}\n"
            f"link set {DEVICE} up\n{''.join(others)}"))
        # What a Debian kernel starts with, whatever this machine's own is. Reno takes a lost packet for congestion as well: it is for machines
        # that allow their namespaces no CUBIC (net.ipv4.tcp_allowed_congestion_control).
        ip("netns", "exec", self.space(number), "sh", "-c",
           "control=/proc/sys/net/ipv4/tcp_congestion_control; echo cubic 2> /dev/null > $control || echo reno > $control")

    def need_cubic(self):
        if ip("netns", "exec", self.space(self.numbers[0]), "cat", "/proc/sys/net/ipv4/tcp_congestion_control").strip() != "cubic":
            raise NoLab("this machine allows its namespaces no CUBIC: sysctl -w 'net.ipv4.tcp_allowed_congestion_control=reno bbr cubic'")

    def __exit__(self, *_):
        if self.process:
            self.process.stdin.close()
            self.process.wait()
        for number in self.numbers:
            subprocess.run(["ip", "netns", "del", self.space(number)], stderr=subprocess.DEVNULL, check=False)

    def space(self, number):
        return f"starling-{os.getpid()}-{number}"

    def address(self, number):
        return f"10.88.0.{number}"

    def tell(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if answer != "ok":
            raise RuntimeError(f"switch: {command}: {answer}")

    def link(self, sender, receiver, **faults):
        """Faults of one direction; "*" for any machine. Those that are not named stay as they are."""
        self.tell(" ".join(["link", str(sender), str(receiver), *(f"{name}={value}" for name, value in faults.items())]))

    def between(self, some, others, **faults):
        for a in some:
            for b in others:
                self.link(a, b, **faults)
                self.link(b, a, **faults)

    def around(self, number, **faults):
        self.link(number, "*", **faults)
        self.link("*", number, **faults)

    def set_up(self, number, is_up):
        """The machine's own interface."""
        ip("-n", self.space(number), "link", "set", DEVICE, "up" if is_up else "down")

    def bytes_of(self, number):
        """What the machine's interface has sent and received since it was made."""
        done = subprocess.run(["ip", "-n", self.space(number), "-s", "-j", "link", "show", DEVICE], stdout=subprocess.PIPE, text=True, check=True)
        counters = json.loads(done.stdout)[0]["stats64"]
        return counters["rx"]["bytes"] + counters["tx"]["bytes"]

    def clear(self):
        self.tell("clear")
