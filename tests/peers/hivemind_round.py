#!/usr/bin/env python3
"""Averaging of ResNet-50's parameters by hivemind.DecentralizedAverager on loopback: milliseconds a round, CPU of a peer with its helper processes.

A peer is what hivemind makes of it: the process that asks, an averager, a DHT node and the p2p daemon. Every peer draws fresh numbers before a round,
outside the clock; a round is averager.step() as a user calls it, matchmaking included, and lasts until the slowest peer has its average. A round counts
when the group was complete and the average is right; others are `failed_rounds`, and are not in the figures. Waits for others are hivemind's own.
"""

import argparse
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time

import measured
from figures import Failed, exit_when_told_to, spread, told_later

WARM_UPS = 1
ROUND_S = 60
PR_SET_CHILD_SUBREAPER = 36


def parameter_shapes():
    import torchvision
    return [tuple(parameter.shape) for parameter in torchvision.models.resnet50().parameters()]


def take_part(options):
    """One peer: reads the addresses of another one, answers with its own, then carries out a round for each line it reads."""
    import hivemind
    import torch
    from hivemind import compression
    torch.set_num_threads(1)
    known = json.loads(input())
    dht = hivemind.DHT(initial_peers=known, host_maddrs=["/ip4/127.0.0.1/tcp/0"], start=True)
    tensors = [torch.empty(shape) for shape in parameter_shapes()]
    codec = {"none": compression.NoCompression, "fp16": compression.Float16Compression, "8bit": compression.Uniform8BitQuantization}[options.compression]()
    averager = hivemind.DecentralizedAverager(tensors, dht, start=True, prefix="starling_peers", target_group_size=options.peers, compression=codec)
    say({"version": hivemind.__version__, "addresses": [str(address) for address in dht.get_visible_maddrs()]})
    for order in sys.stdin:
        if order.strip() == "fill":
            with averager.get_tensors() as mine:
                for tensor in mine:
                    tensor.normal_()
                mine[0].view(-1)[0] = options.rank
            say({"filled": True})
            continue
        begin = time.monotonic()
        try:
            group = averager.step(timeout=ROUND_S, allow_retries=False)
        except Exception as error:  # whatever it is, the round failed
            print(f"hivemind_round: {type(error).__name__}: {error}", file=sys.stderr)
            group = None
        wall_ms = 1e3 * (time.monotonic() - begin)
        with averager.get_tensors() as mine:
            mean = float(mine[0].view(-1)[0])
        right = group is not None and len(group) == options.peers and abs(mean - (options.peers - 1) / 2) < 0.02 * options.peers
        say({"wall_ms": wall_ms, "right": right})
    averager.shutdown()
    dht.shutdown()


def say(what):
    # Libraries print to the output, too.
    print("PEER " + json.dumps(what), flush=True)


class Peer:
    """A child process; lines to it and from it."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self):
        for line in self.process.stdout:
            if line.startswith("PEER "):
                return json.loads(line[5:])
        raise Failed(f"hivemind_round: a peer ended with {self.process.wait()}")


def processes_below(roots):
    """CPU seconds of these processes and all that descend from them, by process."""
    parents, seconds = {}, {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(name)] = int(fields[1])
        seconds[int(name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    below = {}
    for number, used in seconds.items():
        ancestor = number
        while ancestor and ancestor not in roots:
            ancestor = parents.get(ancestor, 0)
        if ancestor:
            below[number] = used
    return below


def rounds_of(peers, options):
    roots = {peer.process.pid for peer in peers}
    walls, cpus, failed = [], [], 0
    for number in range(-WARM_UPS, options.repeats):
        for peer in peers:
            peer.tell("fill")
        for peer in peers:
            peer.hear()
        cpu = sum(processes_below(roots).values())
        for peer in peers:
            peer.tell("average")
        rows = [peer.hear() for peer in peers]
        cpu = sum(processes_below(roots).values()) - cpu
        if not all(row["right"] for row in rows):
            failed += 1
        elif number >= 0:
            walls.append(max(row["wall_ms"] for row in rows))
            cpus.append(1e3 * cpu / len(peers))
    if not walls:
        raise Failed(f"hivemind_round: none of {options.repeats} rounds had a complete group and the right average")
    return {"round_ms": spread(walls), "cpu_ms": spread(cpus), "failed_rounds": failed}


def adopt():
    """From now on who loses its parent below this process is this one's child: a peer that ends leaves its averager and its daemon behind."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def end():
    """Kills all that descend from this process, and waits for them: who is not waited for is counted as somebody else's work."""
    me = os.getpid()
    while left := processes_below({me}).keys() - {me}:
        for number in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=int, default=2)
    parser.add_argument("--compression", choices=["none", "fp16", "8bit"], default="fp16")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        return take_part(options)

    peers, known, version = [], [], None
    exit_when_told_to()
    adopt()
    try:
        for rank in range(options.peers):
            with told_later():
                peers.append(Peer([sys.executable, *sys.argv, "--rank", str(rank)]))
            peers[-1].tell(json.dumps(known))
            told = peers[-1].hear()
            known, version = known or told["addresses"], told["version"]
        figures = rounds_of(peers, options)
    except Failed as error:
        return str(error)
    finally:
        end()
    measured.print_report("hivemind DecentralizedAverager", version, options, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
