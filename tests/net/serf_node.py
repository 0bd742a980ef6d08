"""Serf (memberlist inside) on a machine of the lab, beside our node or alone: its process, and what it says about the others."""

import re
import shutil
import signal
import subprocess
import threading
import time

from lab_node import NodeProcess

PORT = 7946
EVENT = re.compile(r"serf: EventMember(Join|Failed|Leave|Update|Reap): (\S+)")


def installed():
    return shutil.which("serf") is not None


def version():
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "serf"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return done.stdout or "not from a Debian package"


class SerfNode(NodeProcess):
    """An agent with the profile for local networks, its defaults. `heard` grows while it runs: (time.time(), event, member)."""

    def __init__(self, number, space, address, folder):
        self.name = f"node-{number}"
        self.number = number
        self.space = space
        self.address = address
        self.folder = folder
        self.heard = []
        self.started = 0.0

    def start(self, contacts):
        command = ["ip", "netns", "exec", self.space, "serf", "agent", f"-node={self.name}", f"-bind={self.address}:{PORT}", "-profile=lan",
                   f"-snapshot={self.folder}/serf-{self.number}", *(f"-retry-join={contact.address}:{PORT}" for contact in contacts)]
        self.started = time.time()
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        threading.Thread(target=self.listen, args=[self.process.stdout], daemon=True).start()

    def listen(self, lines):
        for line in lines:
            if found := EVENT.search(line):
                self.heard.append((time.time(), found[1], found[2]))

    def changes(self, member, since):
        """(event, seconds after `since`) of each change of a member in this agent's view."""
        return [(event, at - since) for at, event, name in list(self.heard) if name == member and at >= since]

    def sees(self):
        alive = set()
        for at, event, name in list(self.heard):
            if at < self.started:
                continue  # a process before this one
            if event == "Join":
                alive.add(name)
            elif event in ("Failed", "Leave", "Reap"):
                alive.discard(name)
        return alive

    def kill(self):
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        if self.process:
            self.process.wait()
