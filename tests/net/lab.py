"""A swarm of lab nodes on a network of its own, and what the tests ask of it."""

import pathlib
import random
import shutil
import tempfile
import time

from lab_node import LabNode
from network import Network

POLL_S = 0.1
STEP_MS = 200  # most of a step is waiting: sixteen nodes take about one core


class Failure(Exception):
    """A test did not come as far as its figure."""


class Lab:
    """Machines 1 to `count`, not started yet. Use as a context manager; `keep` leaves the folders behind."""

    def __init__(self, programs, seed, count, step_ms=STEP_MS, keep=False):
        self.random = random.Random(seed)
        self.step_ms = step_ms
        self.keep = keep
        self.programs = programs
        self.network = Network(count, seed, programs / "starling_switch")
        self.folder, self.nodes = None, []

    def __enter__(self):
        self.network.__enter__()
        # After it: a machine that can have no network gets no folder, which nobody would remove.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="starling-net-"))
        self.nodes = [LabNode(k, self.network.space(k), self.network.address(k), self.folder / f"node-{k}", self.programs / "starling_lab")
                      for k in self.network.numbers]
        return self

    def __exit__(self, *_):
        for node in self.nodes:
            if node.running():
                node.kill()
        self.network.__exit__()
        if not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, node, peers, more=(), port=7700, fault=None, surroundings=None):
        """`port` is the one that others dial, where it is not the node's own; `fault` a fault point that it has armed; `surroundings` go into its
        environment."""
        words = ["--data", "synthetic:classes=10,size=8,channels=1,val=0", "--until", "samples=1000000000", "--http", "off", "--ui", "none",
                 "--set", "train.warmup=0", "--set", "data.threads=1", "--set", "eval.every=0s", "--set", "checkpoint.every=10s"]
        for peer in peers:
            words += ["--peer", f"{peer.address}:{port}"]
        if port != 7700:
            words += ["--advertise", f"{node.address}:{port}"]
        if node is not self.nodes[0] and not (node.folder / "secret").exists():
            words += ["--secret-file", self.nodes[0].folder / "secret"]
        node.start([*words, *more], self.step_ms, fault, surroundings)

    def start_all(self, count=None, more=(), port=7700, faults=None, surroundings=None):
        """The first node alone, then all others with it as their contact; waits until everybody sees everybody. `faults`: {node: fault point},
        `surroundings`: {node: environment}."""
        faults, surroundings = faults or {}, surroundings or {}
        nodes = self.nodes[:count]
        self.start(nodes[0], [], more, port, faults.get(nodes[0]), surroundings.get(nodes[0]))
        self.until(lambda: nodes[0].status(), 20, "the first node does not answer")
        for node in nodes[1:]:
            self.start(node, nodes[:1], more, port, faults.get(node), surroundings.get(node))
        self.wait_whole(nodes, 60)
        return nodes

    def until(self, holds, seconds, otherwise):
        """Polls until `holds()`; the seconds it took."""
        begin = time.monotonic()
        while not holds():
            if time.monotonic() - begin > seconds:
                raise Failure(f"{otherwise} after {seconds} s")
            time.sleep(POLL_S)
        return time.monotonic() - begin

    def told_by(self, node, seconds=30):
        """The status of a node, which is asked until it answers: on a busy machine it may take a while, and what it would have said may not be guessed."""
        told = None

        def answers():
            nonlocal told
            told = node.status()
            return told
        self.until(answers, seconds, f"node {node.number} does not answer")
        return told

    def wait_whole(self, nodes, seconds):
        """Until every one of these has all of them alive in its view; the seconds it took."""
        return self.until(lambda: all(self.sees(node, nodes) for node in nodes), seconds, f"{len(nodes)} nodes are not one swarm")

    def sees(self, node, others):
        status = node.status()
        if not status or any(other.id is None and not other.status() for other in others):
            return False
        alive = {member["id"] for member in status["members"] if member["state"] == "alive"}
        return all(other.id in alive for other in others)


def rate(node, begin, end):
    """Steps a second of a node between two moments of time.monotonic(). A pause at either end of the span counts, beyond what is part of a step."""
    at = [when for when, _, _ in node.steps() if begin <= when <= end]
    if len(at) < 3:
        return 0.0
    usual = (at[-1] - at[0]) / (len(at) - 1)
    paused = max(0.0, at[0] - begin - usual) + max(0.0, end - at[-1] - usual)
    return (len(at) - 1) / (at[-1] - at[0] + paused)


def throughput_percent(nodes, before, after):
    """Steps of these nodes in the span `after`, in per cent of the span `before`; spans of time.monotonic()."""
    was = sum(rate(node, *before) for node in nodes)
    return 100 * sum(rate(node, *after) for node in nodes) / was if was else 0.0


def longest_pause(nodes, begin, end):
    """The longest that any of these nodes went without a step between two moments of time.monotonic()."""
    longest = 0.0
    for node in nodes:
        at = [begin, *(when for when, _, _ in node.steps() if begin <= when <= end), end]
        longest = max(longest, *(later - earlier for earlier, later in zip(at, at[1:])))
    return longest


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
