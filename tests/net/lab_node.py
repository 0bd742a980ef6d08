"""One node of the lab: its process, what it says about itself, and what it wrote down."""

import datetime
import json
import os
import pathlib
import signal
import socket
import subprocess
import time


SAMPLE_BYTES = 16_384  # at the most three lines of samples


class NodeProcess:
    """A process that stands for a machine."""

    process = None

    def running(self):
        return self.process is not None and self.process.poll() is None

    def signal(self, number):
        if self.running():
            self.process.send_signal(number)


class StarlingNode(NodeProcess):
    """A node's process. Its folder outlives it, so it can be started again as the same node."""

    def __init__(self, number, folder, program):
        self.number = number
        self.folder = pathlib.Path(folder)
        self.program = program
        self.id = None
        self.started = None  # time.time()

    def start_process(self, words, environment=None, before=()):
        """Runs the node with these words; `before` are the words before the program's name."""
        self.folder.mkdir(exist_ok=True)
        self.started = time.time()
        with open(self.folder / "log", "a", encoding="utf-8") as log:
            self.process = subprocess.Popen([*before, self.program, "run", "--dir", self.folder, *words], env=environment, stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait()

    def wait(self, seconds):
        """Its exit status, or None after so many seconds."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def ask(self, verb, seconds=2.0):
        """The answer to one verb of the control socket, or None."""
        try:
            with socket.socket(socket.AF_UNIX) as line:
                line.settimeout(seconds)
                line.connect(str(self.folder / "control.sock"))
                line.sendall(json.dumps({"schema": 1, "verb": verb, "args": {}}).encode() + b"\n")
                for text in line.makefile("r", encoding="utf-8"):
                    answer = json.loads(text)
                    if answer["kind"] != "progress":
                        return answer.get("body")
        except (OSError, ValueError):
            pass
        return None

    def status(self):
        status = self.ask("status")
        if status and not self.id:
            self.id = status["node"]["id"]
        return status

    def events(self, since=0.0):
        """What it wrote down from this moment (time.time()) on, each with "at"."""
        found = []
        try:
            text = (self.folder / "events.jsonl").read_text(encoding="utf-8")
        except OSError:
            return found
        for line in text.splitlines():
            try:
                event = json.loads(line)
            except ValueError:  # the half line of a kill
                continue
            event["at"] = datetime.datetime.fromisoformat(event["time"].replace("Z", "+00:00")).timestamp()
            if event["at"] >= since:
                found.append(event)
        return found

    def last_event(self):
        return self.events()[-1]

    def changes(self, member, since):
        """(state, seconds after `since`) of each change of a member in this node's view."""
        return [(event["state"], event["at"] - since) for event in self.events(since) if event["event"] == "member" and event["id"] == member]

    def log(self):
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    def rss_bytes(self):
        with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as figures:
            return int(figures.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


class LabNode(StarlingNode):
    """A starling_lab process in a namespace."""

    def __init__(self, number, space, address, folder, program):
        super().__init__(number, folder, program)
        self.space = space
        self.address = address

    def start(self, words, step_ms, fault=None, surroundings=None):
        """`fault` is a fault point that it has armed, as node/base/fault.h takes it."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "LAB_SEED": str(self.number), "LAB_STEP_MS": str(step_ms),
                       "LAB_STEPS": str(self.folder / "steps")}
        if fault:
            environment["STARLING_FAULT"] = fault
        environment |= surroundings or {}
        self.start_process(["--listen", f"{self.address}:7700", *words], environment, ["ip", "netns", "exec", self.space])

    def sample(self):
        """Some of its parameters after its last step, of one started with LAB_SAMPLES; None before the first one."""
        try:
            with open(self.folder / "samples", "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - SAMPLE_BYTES))
                lines = file.read().split(b"\n")[1:-1]  # whole ones
        except OSError:
            return None
        return [float(value) for value in lines[-1].split()] if lines else None

    def steps(self):
        """(steady clock, step, loss) of each step."""
        try:
            lines = (self.folder / "steps").read_text(encoding="ascii").splitlines()
        except OSError:
            return []
        return [(float(at), int(step), float(loss)) for at, step, loss in (line.split() for line in lines if line.count(" ") == 2)]
