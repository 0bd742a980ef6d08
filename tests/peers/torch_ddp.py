#!/usr/bin/env python3
"""Training by torch.nn.parallel.DistributedDataParallel over gloo, one process a node: images a second of all, and what a slow, stopped or dead node
does to the others. The same figures as `starling bench swarm`.

Every process draws four batches before the clock starts; eager mode at its best settings (channels_last, fused SGD, denormals flushed, gradients that
are views of DDP's buckets, a graph known to be static). A window is a number of steps of every process; `bytes_per_step` is what a ring all-reduce sends
for the gradients, headers not counted. `others_step_ms` is a step of the slowest of all but the last one, to which a fault happens: the same processes
with a fault and without. `--alone` leaves the all-reduce out: what the same processes do without each other. `longest_pause_ms` is the longest time in
which the first one's training thread did not run, as of ours.
`--namespaces A B` starts each process in a network namespace of its own; --address is then what B can dial A at, on --interface.
"""

import argparse
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import measured
from figures import spread

WARM_UP_STEPS = 5
FAULT_S = 10
LOOK_S = 0.004
SLOW_TICK_S = 0.02  # a slow node runs for the first of every four of these


def take_part(options):
    """One of the processes: prints a line after each step until it is killed, or cannot go on."""
    import torch
    import torch.distributed as dist
    if options.pin:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[options.rank % len(cores)]})
    if not options.alone:
        os.environ["GLOO_SOCKET_IFNAME"] = options.interface
        dist.init_process_group("gloo", init_method=f"tcp://{options.address}:{options.port}", rank=options.rank, world_size=options.nodes)
    # Imported late, with torch: the process that only watches needs neither.
    from torch_step import make_step
    # No copy from gradients to what is sent, and what of the graph needs sending is looked for in the first step only: it is the same in all.
    ddp = functools.partial(torch.nn.parallel.DistributedDataParallel, gradient_as_bucket_view=True, static_graph=True)
    step = make_step(options, True) if options.alone else make_step(options, True, ddp)
    print(json.dumps({"version": torch.__version__}), flush=True)
    while True:
        step()
        print(json.dumps({"at": time.monotonic(), "cpu": measured.cpu_seconds()}), flush=True)


class Node:
    """A process that trains, and the times at which its steps ended."""

    def __init__(self, process):
        self.process = process
        self.version = None
        self.steps = []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            said = json.loads(line)
            if "version" in said:
                self.version = said["version"]
            else:
                self.steps.append((said["at"], said["cpu"]))


def wait_for_steps(nodes, counts):
    """Until each of the nodes has trained as many as its count. One that ends meanwhile ends this: the others would wait for it."""
    while any(len(node.steps) < count for node, count in zip(nodes, counts)):
        if ended := [node.process.returncode for node in nodes if node.process.poll() is not None]:
            raise SystemExit(f"torch_ddp: a process ended with {ended[0]}")
        time.sleep(0.05)


def slow_down(node, done):
    while not done.is_set():
        node.process.send_signal(signal.SIGCONT)
        time.sleep(SLOW_TICK_S)
        node.process.send_signal(signal.SIGSTOP)
        time.sleep(3 * SLOW_TICK_S)
    node.process.send_signal(signal.SIGCONT)


def window_of(nodes, options):
    """Rates and costs of so many further steps of each node."""
    begins = [len(node.steps) for node in nodes]
    wait_for_steps(nodes, [begin + options.steps for begin in begins])
    images_per_s, step_ms, cpu_ms = 0.0, [], 0.0
    for node, begin in zip(nodes, begins):
        (began_at, began_cpu), (ended_at, ended_cpu) = node.steps[begin - 1], node.steps[begin + options.steps - 1]
        images_per_s += options.steps * options.batch / (ended_at - began_at)
        step_ms.append(1e3 * (ended_at - began_at) / options.steps)
        cpu_ms += 1e3 * (ended_cpu - began_cpu) / options.steps / len(nodes)
    figures = {"images_per_s": images_per_s, "step_ms": max(step_ms), "cpu_ms": cpu_ms}
    if others := step_ms[:options.nodes - 1]:
        figures["others_step_ms"] = max(others)
    return figures


def ran_so_far(number):
    """What the kernel says that the main thread of a process, which trains, has run; the same for ever of one that has ended."""
    try:
        return pathlib.Path(f"/proc/{number}/task/{number}/schedstat").read_text(encoding="utf-8").split()[0]
    except (OSError, IndexError):
        return None


def longest_pause_ms(nodes, fault):
    """The longest time in which the first node's training thread did not run, after the last one was stopped or killed, looked at as `starling bench
    swarm` looks at ours; a node that trains no more pauses for as long as one looks."""
    nodes[-1].process.send_signal(signal.SIGSTOP if fault == "stop" else signal.SIGKILL)
    last = begin = time.monotonic()
    ran_before, longest = None, 0.0
    while (now := time.monotonic()) < begin + FAULT_S:
        ran = ran_so_far(nodes[0].process.pid)
        longest = max(longest, now - last)
        if ran != ran_before:
            last, ran_before = now, ran
        time.sleep(LOOK_S)
    nodes[-1].process.send_signal(signal.SIGCONT)
    return 1e3 * longest


def figures_of(nodes, options):
    wait_for_steps(nodes, [WARM_UP_STEPS] * len(nodes))
    watched, done = nodes, threading.Event()
    if options.fault == "slow":
        watched = nodes[:-1]
        threading.Thread(target=slow_down, args=(nodes[-1], done), daemon=True).start()
    windows = [window_of(watched, options) for _ in range(options.repeats)]
    done.set()
    figures = {name: spread([window[name] for window in windows]) for name in windows[0]}
    figures["bytes_per_step"] = 0 if options.alone else 2 * (options.nodes - 1) / options.nodes * 4 * parameters_of(options)
    if options.fault in ("stop", "kill"):
        figures["longest_pause_ms"] = longest_pause_ms(nodes, options.fault)
    return figures


def parameters_of(options):
    import torchvision
    model = getattr(torchvision.models, options.model)(num_classes=options.classes)
    return sum(parameter.numel() for parameter in model.parameters())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--img", type=int, default=32)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="fp32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--fault", choices=["none", "slow", "stop", "kill"], default="none")
    parser.add_argument("--pin", action="store_true", help="node k stays on the k-th core")
    parser.add_argument("--alone", action="store_true", help="no all-reduce")
    parser.add_argument("--namespaces", nargs=2, metavar=("A", "B"))
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--interface", default="lo")
    parser.set_defaults(device="cpu")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        return take_part(options)

    again = [sys.executable, *sys.argv, "--port", str(measured.free_port())]
    where = measured.places_of(parser, options.namespaces, options.nodes)
    nodes = []
    with measured.children() as processes:
        for rank, prefix in enumerate(where):
            command = [*prefix, *again, "--rank", str(rank)]
            nodes.append(Node(processes.start(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)))
        figures = figures_of(nodes, options)
    measured.print_report("torch DDP over gloo", nodes[0].version, options, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
