"""How the peers' programs measure, and the way to what they share with tests/bench."""

import contextlib
import json
import os
import pathlib
import resource
import socket
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
from figures import exit_when_told_to, spread, told_later  # noqa: E402  (found through the line above)

# Parameters of ResNet-50, as `starling bench` counts them.
RESNET50_PARAMETERS = 25_557_032


def cpu_seconds():
    """User and system time of this process, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def free_port():
    """A port of loopback that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def places_of(parser, namespaces, count):
    """Words before the command of each of so many processes: in which of these namespaces it runs, if there are any."""
    where = [["ip", "netns", "exec", name] for name in namespaces] if namespaces else [[]] * count
    if len(where) != count:
        parser.error("--namespaces is for two processes")
    return where


class Children(list):
    """Processes that are ended with the block that `children` is for."""

    def start(self, command, **how):
        """subprocess.Popen's process, as one of these from its first moment on."""
        with told_later():
            self.append(subprocess.Popen(command, **how))
        return self[-1]


@contextlib.contextmanager
def children():
    """A list of processes. Those that are in it when the block ends, however it does, are ended and waited for: who is not waited for is counted as
    somebody else's work."""
    exit_when_told_to()
    processes = Children()
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()  # a stopped one ends by this, too
        for process in processes:
            process.wait()


class Repeats:
    """Milliseconds of one piece of work, wall and CPU, of each of its repeats."""

    def __init__(self):
        self.wall_ms = []
        self.cpu_ms = []

    def time(self, work, times=1, wait=lambda: None):
        """Carries out `work` so many times and adds the mean; the last return value. `wait` returns when what was started has ended: a GPU's work."""
        wait()
        cpu, wall = cpu_seconds(), time.perf_counter()
        for _ in range(times):
            result = work()
        wait()
        self.wall_ms.append(1e3 * (time.perf_counter() - wall) / times)
        self.cpu_ms.append(1e3 * (cpu_seconds() - cpu) / times)
        return result

    def figures(self):
        return {"ms": spread(self.wall_ms), "cpu_ms": spread(self.cpu_ms)}


def reached(curve, mark):
    """The step at which the loss of a curve of (step, loss, ...) is at the mark for the first time, on a straight line between two points; None if it
    never is."""
    before = None
    for step, loss, *_ in curve:
        if loss <= mark:
            if before is None:
                return float(step)
            return before[0] + (step - before[0]) * (before[1] - mark) / (before[1] - loss)
        before = (step, loss)
    return None


def learned(curves, bytes_per_step, mark):
    """What the nodes' curves of (step, loss, accuracy) come to."""
    steps = [reached(curve, mark) for curve in curves]
    if None in steps:
        sys.exit(f"a loss of {mark} was not reached: the last of {len(curves)} nodes were {[curve[-1] for curve in curves]}")
    mean = sum(steps) / len(steps)
    ends = [curve[-1] for curve in curves]
    return {"steps": sum(end[0] for end in ends) / len(ends), "steps_to_mark": mean, "bytes_per_step": bytes_per_step, "bytes_to_mark": mean * bytes_per_step,
            "loss": sum(end[1] for end in ends) / len(ends), "accuracy": 100 * sum(end[2] for end in ends) / len(ends)}


def wait_for(device):
    """What returns when a device has ended all that was asked of it."""
    if device == "cpu":
        return lambda: None
    import torch  # late: not everything that measures has it
    return torch.cuda.synchronize


def print_report(peer, version, options, figures):
    preload = os.environ.get("LD_PRELOAD")
    print(json.dumps({"peer": peer, "peer_version": version, "params": {**vars(options), "preload": preload}, **figures}))
