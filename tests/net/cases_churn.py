"""A-1, A-2, A-7, A-9 to A-12: nodes that come and go."""

import filecmp
import json
import os
import pathlib
import signal
import time

from cases import case, watch
from cases_access import failed_exchanges
from cases_silence import CALM_S, false_deaths
from lab import Failure, longest_pause, quantile, throughput_percent
from network import NoLab


class ExchangeWatch:
    """The longest that each node went without an exchange from its first status on, by its own clock: between two moments that it told of its edges, or
    since the last one. Of what happens on an edge between two statuses, a second, only the last is told, so a gap may seem longer than it was, and never
    shorter."""

    def __init__(self):
        self.told = {}  # number: moments, the first of which is that of its first status
        self.answered = {}  # number: time.monotonic() of its last answer
        self.silent = {}  # number: seconds since that, of those that did not answer when they were asked last
        self.longest_before = 0.0

    def look(self, nodes):
        for node in nodes:
            status = node.status()
            if status is None:
                asked = time.monotonic()
                self.silent[node.number] = asked - self.answered.setdefault(node.number, asked)
                continue
            self.answered[node.number] = time.monotonic()
            self.silent.pop(node.number, None)
            now = round(status["node"]["uptime_s"], 2)
            moments = self.told.setdefault(node.number, {now})
            first = min(moments)
            moments |= {max(first, round(now - edge["last_exchange_s"], 2)) for edge in status["neighbours"] if edge["last_exchange_s"] is not None}
            self.longest_before = max(self.longest_before, now - max(moments))

    def forget(self, node):
        self.longest_before = self.longest()
        for known in (self.told, self.answered, self.silent):
            known.pop(node.number, None)

    def longest(self):
        longest = max([self.longest_before, *self.silent.values()])
        for moments in self.told.values():
            ordered = sorted(moments)
            longest = max([longest, *(later - earlier for earlier, later in zip(ordered, ordered[1:]))])
        return longest


def died_by_fault(victim):
    """At its fault point, which kills: an end of any other kind is one that nobody asked for."""
    return not victim.running() and victim.process.returncode == -signal.SIGKILL


@case("A-1", "5 of 16 die when half of an exchange is sent, each at a time that the seed draws",
      {"died_otherwise": "<= 0", "ended": "<= 0", "exchange_s": "<= 2", "throughput_percent": ">= 98"})
def die_in_exchange(bench):
    with bench.lab(bench.nodes) as lab:
        victims = lab.random.sample(lab.nodes, 5 * bench.nodes // 16)
        nodes = lab.start_all(faults={victim: f"net.half_attachment@{lab.random.randint(60, 120)}:kill" for victim in victims})
        others = [node for node in nodes if node not in victims]
        before = watch(CALM_S / 2)
        begin = time.monotonic()
        gaps = ExchangeWatch()

        def all_died():
            gaps.look(others)
            return not any(victim.running() for victim in victims)
        lab.until(all_died, 120, "a node came not so far as to die")
        end = time.monotonic() + 5
        while time.monotonic() < end:
            gaps.look(others)
            time.sleep(0.1)
        return {"died_otherwise": sum(not died_by_fault(victim) for victim in victims), "ended": sum(not node.running() for node in others),
                "exchange_s": gaps.longest(), "throughput_percent": throughput_percent(others, before, (begin, time.monotonic()))}


CONSENSUS_POINTS = ("set_closed", "frozen", "summed", "divided", "reduced", "signed", "certified", "finished")


def finish(lab, nodes, victims):
    """Asks for the final consensus; seconds, hashes and exit codes of those that are no victims."""
    others = [node for node in nodes if node not in victims]
    begin = time.monotonic()
    lab.random.choice(others).ask("finish", seconds=0.2)
    ends = [node.wait(max(1.0, 180 - (time.monotonic() - begin))) for node in others]
    took = time.monotonic() - begin
    hashes = set()
    for node in others:
        try:
            hashes.add(json.loads((node.folder / "final" / "certificate.json").read_text(encoding="utf-8"))["hash"])
        except (OSError, ValueError) as error:
            raise Failure(f"node {node.number} has no certificate: {error}; it ended with {node.process.poll()}") from error
    return took, hashes, ends


# Some phases are not everybody's: a node divides where it is the root of a chunk, which goes by the nodes' fresh identities, and of nine with five chunks
# one pair in six divides nothing.
ATTEMPTS = 4


def one_consensus(bench, trial):
    """Nine nodes end together; with a trial two of them are to die in its phase. (seconds, phase, whether hashes differ, bad exits, how many died)"""
    with bench.lab(9) as lab:
        point = CONSENSUS_POINTS[(lab.random.randrange(8) + (trial or 0)) % len(CONSENSUS_POINTS)]
        victims = [] if trial is None else lab.random.sample(lab.nodes, 2)
        nodes = lab.start_all(more=["--set", "finish.linger=5s"], faults={victim: f"consensus.{point}@1:kill" for victim in victims})
        watch(CALM_S / 2)
        took, hashes, ends = finish(lab, nodes, victims)
        return took, point, len(hashes) != 1, sum(end != 0 for end in ends), sum(died_by_fault(victim) for victim in victims)


@case("A-2", "2 of 9 die in the final consensus, in each of its phases in turn",
      {"differing": "<= 0", "over_s": "<= 0", "bad_exits": "<= 0"}, len(CONSENSUS_POINTS))
def die_in_consensus(bench):
    clean, _, differing, bad, _ = one_consensus(bench, None)
    worst, died, runs = 0.0, 0, 0
    for trial in range(bench.trials):
        for _ in range(ATTEMPTS):
            took, point, different, wrong, deaths = one_consensus(bench, trial)
            worst, differing, bad, died, runs = max(worst, took), differing + different, bad + wrong, died + deaths, runs + 1
            if deaths:
                break
        else:
            raise Failure(f"no victim came so far as to die at consensus.{point}")
    return {"differing": differing, "over_s": max(0.0, worst - 2 * clean - 10), "bad_exits": bad, "clean_s": clean, "worst_s": worst, "died": died,
            "trials": bench.trials, "runs": runs}


def growth(samples):
    """Figures of (seconds, MiB, descriptors): how much more there was of each in the last quarter than in the second, and that as MiB an hour."""
    quarter = len(samples) // 4
    if not quarter:
        raise Failure("too short to say what grows")
    def middle(part, column):
        return quantile([sample[column] for sample in part], 0.5)
    early, late = samples[quarter:2 * quarter], samples[-quarter:]
    grown = middle(late, 1) - middle(early, 1)
    hours = (middle(late, 0) - middle(early, 0)) / 3600
    return {"rss_mib": middle(late, 1), "grown_mib": grown, "mib_an_hour": grown / hours, "descriptors_more": middle(late, 2) - middle(early, 2)}


# An edge more or less is 4 MiB of reference and a descriptor: within minutes a few of them are no leak, and say nothing of an hour.
@case("A-7", "nodes come (0.6) and are killed (0.4) every 0.5 to 2 s, ten at the most",
      {"exchange_gap_s": "<= 5", "ended": "<= 0", "pause_s": "<= 5", "grown_mib": "<= 16", "descriptors_more": "<= 4"},
      long_bars={"mib_an_hour": "<= 1", "descriptors_more": "<= 0"})
def churn(bench):
    with bench.lab(10) as lab:
        nodes = lab.start_all(4)
        first = nodes[0]
        samples = []
        alive = set(nodes)
        gaps = ExchangeWatch()
        begin = time.monotonic()
        killed = came = ended = 0
        act = begin
        while time.monotonic() - begin < 2 * bench.seconds:
            if time.monotonic() >= act:
                act = time.monotonic() + 0.5 + 1.5 * lab.random.random()
                absent = [node for node in lab.nodes if node not in alive]
                if absent and (lab.random.random() < 0.6 or len(alive) < 3):
                    node = lab.random.choice(absent)
                    lab.start(node, lab.random.sample(sorted(alive, key=lambda one: one.number), 1))
                    alive.add(node)
                    came += 1
                elif len(alive) > 2:
                    node = lab.random.choice(sorted(alive - {first}, key=lambda one: one.number))
                    node.kill()
                    gaps.forget(node)
                    alive.discard(node)
                    killed += 1
            gaps.look(alive)
            samples.append((time.monotonic() - begin, first.rss_bytes() / 2**20, first.descriptors()))
            ended += sum(not node.running() for node in alive)
            time.sleep(0.25)
        return {"exchange_gap_s": gaps.longest(), "ended": ended, "pause_s": longest_pause([first], begin, time.monotonic())} | growth(samples) | {
            "came": came, "killed": killed}


@case("A-9", "all are killed at once and started again without the address of any",
      {"whole_s": "<= 10", "lost_s": "<= 10"})
def restart_all(bench):
    with bench.lab(bench.nodes) as lab:
        nodes = lab.start_all()
        watch(2.5 * CALM_S)  # each has a checkpoint by then
        steps = {}
        for node in nodes:
            node.signal(signal.SIGKILL)
        for node in nodes:
            node.wait(5)
            steps[node] = node.steps()[-1][1]
        begin = time.monotonic()
        for node in nodes:
            lab.start(node, [])
        whole = lab.wait_whole(nodes, 60)
        watch(5)
        lost = 0
        for node in nodes:
            again = [number for at, number, _ in node.steps() if at > begin]
            if not again:
                raise Failure(f"node {node.number} does not train")
            lost = max(lost, steps[node] + 1 - again[0])
        return {"whole_s": whole, "lost_s": lost * lab.step_ms / 1000, "lost_steps": lost}


@case("A-10", "a node is told to leave (SIGTERM) under load",
      {"exit_s": "<= 8", "bad_exits": "<= 0", "steps_lost": "<= 0", "known_s": "<= 1", "throughput_percent": ">= 98"}, 3)
def terminate(bench):
    slowest, known, bad, lost, shares = 0.0, 0.0, 0, 0, []
    with bench.lab(bench.nodes) as lab:
        nodes = lab.start_all()
        before = watch(CALM_S)
        for victim in lab.random.sample(nodes[1:], bench.trials):
            nodes.remove(victim)
            begin = time.monotonic()
            since = time.time()
            victim.signal(signal.SIGTERM)
            bad += victim.wait(30) != 0
            slowest = max(slowest, time.monotonic() - begin)
            gone = time.time() - since
            watch(3)
            shares.append(throughput_percent(nodes, before, (begin, time.monotonic())))
            for node in nodes:
                known = max(known, min((after for state, after in node.changes(victim.id, since) if state == "left"), default=99.0) - gone)
            kept = json.loads((victim.folder / "checkpoints" / "latest" / "state.json").read_text(encoding="utf-8"))
            lost = max(lost, victim.steps()[-1][1] - int(kept["step"]))
    return {"exit_s": slowest, "bad_exits": bad, "steps_lost": lost, "known_s": max(0.0, known), "throughput_percent": min(shares), "trials": bench.trials}


@case("A-11", "32 nodes join through one contact within a second",
      {"whole_s": "<= 5", "contact_mib": "<= 256", "throughput_percent": ">= 98"})
def crowd(bench):
    with bench.lab(33, step_ms=1000) as lab:
        contact = lab.nodes[0]
        lab.start_all(1)
        before = watch(CALM_S)
        begin = time.monotonic()
        for node in lab.nodes[1:]:
            lab.start(node, [contact])
        started = time.monotonic() - begin
        whole = lab.wait_whole(lab.nodes, 120)
        held = contact.rss_bytes()
        _, end = watch(CALM_S)  # a swarm that is whole within two steps of a second has no pace yet
        return {"whole_s": whole, "started_s": started, "contact_mib": held / 2**20, "throughput_percent": throughput_percent([contact], before, (begin, end)),
                "pause_s": longest_pause([contact], begin, end)}


def build_before(new):
    """The program that an upgrade starts from. The same one on both sides would show a restart, and no upgrade."""
    remedy = "STARLING_NET_OLD names a folder with the starling_lab of another commit"
    if "STARLING_NET_OLD" not in os.environ:
        raise NoLab(f"an upgrade needs two builds: {remedy}")
    old = pathlib.Path(os.environ["STARLING_NET_OLD"]).resolve() / "starling_lab"
    if not old.is_file():
        raise NoLab(f"no {old}: {remedy}")
    if filecmp.cmp(old, new, shallow=False):
        raise NoLab(f"{old} is the build that it would be upgraded to: {remedy}")
    return old


@case("A-12", "each of nine nodes in turn is told to leave and starts again from another build (STARLING_NET_OLD: the folder of the one before)",
      {"failed": "<= 0", "false_dead": "<= 0", "bad_exits": "<= 0", "back_s": "<= 5", "differing": "<= 0"})
def rolling_upgrade(bench):
    with bench.lab(9) as lab:
        new = lab.nodes[0].program
        old = build_before(new)
        for node in lab.nodes:
            node.program = old
        more = ["--set", "finish.linger=5s"]
        nodes = lab.start_all(more=more)
        watch(CALM_S / 2)
        since, failed, bad, back = time.time(), 0, 0, 0.0
        for node in nodes:
            failed += failed_exchanges([node])  # it forgets them
            node.signal(signal.SIGTERM)
            bad += node.wait(30) != 0
            node.program = new
            lab.start(node, [lab.random.choice([other for other in nodes if other is not node])], more)
            back = max(back, lab.wait_whole(nodes, 60))
            watch(2)
        failed += failed_exchanges(nodes)
        dead = false_deaths(nodes, nodes, since)
        took, hashes, ends = finish(lab, nodes, [])
        return {"failed": failed, "false_dead": dead, "bad_exits": bad + sum(end != 0 for end in ends), "back_s": back, "differing": len(hashes) - 1,
                "finish_s": took}
