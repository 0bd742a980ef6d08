"""B-3, B-7, B-8, B-9, B-10, B-12: lines that part, lose, lie, and are slow."""

import datetime
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from cases import case, watch
from cases_silence import CALM_S, false_deaths
from cases_access import LOG, log_events
from lab import Failure, longest_pause, quantile, rate, throughput_percent


def edges_of(node):
    """As the node tells them; none where it does not answer."""
    return (node.status() or {"neighbours": []})["neighbours"]


def distance(some, others):
    """Mean square of the way between the mean replicas of two groups of nodes, by samples of their last steps. What a node measures of itself and a
    neighbour is no distance: it has no scale."""
    samples = [[node.sample() for node in group] for group in (some, others)]
    if not all(sample for group in samples for sample in group):
        raise Failure("a node has written no sample of its parameters")
    means = [[sum(values) / len(values) for values in zip(*group, strict=True)] for group in samples]
    return sum((one - other) ** 2 for one, other in zip(*means, strict=True)) / len(means[0])


def largest_distance(some, others, seconds):
    """Of so many seconds."""
    end, largest = time.monotonic() + seconds, 0.0
    while time.monotonic() < end:
        largest = max(largest, distance(some, others))
        time.sleep(0.5)
    return largest


def wait_together(lab, some, others, bound):
    """Until the two groups are no further apart than that; Failure if they are for a minute."""
    lab.until(lambda: distance(some, others) <= bound, 60, "the models are not together")


def exchanges(nodes):
    return sum(status["traffic"]["exchanges"] for status in (node.status() for node in nodes) if status)


FURTHER = 1.2  # than without a cut


@case("B-3", "the swarm is cut into halves for a minute, and healed",
      {"throughput_percent": ">= 98", "whole_s": "<= 5", "model_s": "<= 30", "lost_members": "<= 0"})
def partition(bench):
    with bench.lab(bench.nodes) as lab:
        nodes = lab.start_all(surroundings={node: {"LAB_SAMPLES": str(node.folder / "samples")} for node in lab.nodes})
        half = lab.random.sample(nodes, len(nodes) // 2)
        rest = [node for node in nodes if node not in half]
        begin, _ = watch(CALM_S)
        clean = largest_distance(half, rest, CALM_S)
        before = (begin, time.monotonic())
        lab.network.between([node.number for node in half], [node.number for node in rest], cut=1)
        during = watch(2 * bench.seconds)
        apart = distance(half, rest)
        if apart <= FURTHER * clean:
            raise Failure(f"the cut did not part the models: {apart:.3g} between the halves, {clean:.3g} without one")
        lab.network.clear()
        healed = time.monotonic()
        whole = lab.wait_whole(nodes, 120)
        wait_together(lab, half, rest, FURTHER * clean)
        model = time.monotonic() - healed
        watch(CALM_S)
        lost = sum(not lab.sees(node, nodes) for node in nodes)
        return {"throughput_percent": throughput_percent(nodes, before, during), "whole_s": whole, "model_s": model, "lost_members": lost,
                "pause_s": longest_pause(nodes, during[0], time.monotonic()), "clean_distance": 1e3 * clean, "cut_distance": 1e3 * apart}


@case("B-7", "5 % loss, 50 +- 20 ms, 10 % reordered, 1 % twice",
      {"false_dead": "<= 0", "bad_records": "<= 0", "throughput_percent": ">= 98"})
def lossy(bench):
    with bench.lab(bench.nodes) as lab:
        nodes = lab.start_all()
        before = watch(CALM_S)
        clean = exchanges(nodes)
        watch(CALM_S)
        clean = exchanges(nodes) - clean
        since = time.time()
        lab.network.link("*", "*", loss=0.05, delay_ms=50, jitter_ms=20, reorder=0.1, duplicate=0.01)
        begin = time.monotonic()
        count = exchanges(nodes)
        watch(2 * bench.seconds)
        during = (begin, time.monotonic())
        share = (exchanges(nodes) - count) / (2 * bench.seconds) / (clean / CALM_S)
        bad = sum(node.log().count("session.ended") for node in nodes)
        return {"false_dead": false_deaths(nodes, nodes, since), "bad_records": bad, "throughput_percent": throughput_percent(nodes, before, during),
                "exchanges_percent": 100 * share, "pause_s": longest_pause(nodes, *during)}


PLAIN = """
import contextlib, socket, sys, threading, time
socket.setdefaulttimeout(120)
def take(line):
    while line.recv(65536):
        pass
def give(line, size, control):
    with contextlib.suppress(OSError):  # without BBR the system's stays, as with a session
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control)
    line.sendall(bytes(size))
    line.close()
count = int(sys.argv[3])
if sys.argv[1] == "take":
    with socket.create_server((sys.argv[2], 7800), backlog=count) as door:
        print("ready", flush=True)
        tasks = [threading.Thread(target=take, args=door.accept()[:1]) for _ in range(count)]
        begin = time.monotonic()
else:
    lines = [socket.create_connection((sys.argv[2], 7800)) for _ in range(count)]
    tasks = [threading.Thread(target=give, args=(line, int(sys.argv[4]) // count, sys.argv[5].encode())) for line in lines]
for task in tasks:
    task.start()
for task in tasks:
    task.join()
if sys.argv[1] == "take":
    print(time.monotonic() - begin)
"""


def plain_stream_s(giver, taker, size, control, streams=1):
    """Seconds that so many bytes take over so many TCP connections under one congestion control, and nothing else."""
    def python(node, *words):
        return subprocess.Popen(["ip", "netns", "exec", node.space, sys.executable, "-c", PLAIN, *words], stdout=subprocess.PIPE, text=True)
    with python(taker, "take", taker.address, str(streams)) as taking:
        try:
            taking.stdout.readline()
            with python(giver, "give", taker.address, str(streams), str(size), control) as giving:
                try:
                    took = taking.stdout.readline()
                    if not took:
                        raise Failure("a plain TCP stream broke off")
                    return float(took)
                finally:
                    giving.kill()
        finally:
            taking.kill()  # it may wait for streams that never come


STATE_BYTES = 4_000_000


def train_beyond_genesis(lab, contact, flags):
    """So far that a joiner needs the state."""
    lab.start_all(1, flags)
    lab.until(lambda: contact.steps() and contact.steps()[-1][1] > 200, 60, "the first node does not train")


def one_join(lab, contact, joiner):
    """A node joins and is killed: seconds of the whole join, and of the stream of the state."""
    since = time.time()
    held = lab.network.bytes_of(joiner.number)
    lab.start(joiner, [contact], LOG)
    lab.until(lambda: any(event["event"] == "joined" for event in joiner.events(since)), 300, "the state did not come")
    join = next(event["seconds"] for event in joiner.events(since) if event["event"] == "joined")
    state = next(float(line["seconds"]) for _, line in log_events(joiner, since) if line["event"] == "join.state")
    if joiner.log().count("at genesis") > 0 or lab.network.bytes_of(joiner.number) - held < STATE_BYTES:
        raise Failure("the joining node took no state")
    joiner.kill()
    shutil.rmtree(joiner.folder)
    return join, state


# Three of either are a lottery: one stream of TCP takes 0.8 to 3.2 s at 10 % loss.
@case("B-7b", "the stream of a joining node's state (4 MB) beside a plain TCP stream of the same size, at 1, 5 and 10 % loss and 20 ms; and its whole join",
      {"percent_at_1": ">= 70", "percent_at_5": ">= 70", "percent_at_10": ">= 70"}, 9)
def goodput(bench):
    figures = {}
    with bench.lab(2, step_ms=50) as lab:
        contact, joiner = lab.nodes
        train_beyond_genesis(lab, contact, LOG)
        # Without loss both take what the line and the joining itself take: that is taken off.
        overhead = 0.0
        for loss in (0, 1, 5, 10):
            lab.network.link("*", "*", loss=loss / 100, delay_ms=20)
            joins, ours, plain = [], [], []
            for _ in range(bench.trials):
                join, state = one_join(lab, contact, joiner)
                joins.append(join)
                ours.append(state)
                plain.append(plain_stream_s(contact, joiner, STATE_BYTES, "bbr"))
            join, state, stream = (quantile(times, 0.5) for times in (joins, ours, plain))
            if loss == 0:
                overhead = max(0.0, join - stream)
            else:
                figures[f"percent_at_{loss}"] = 100 * stream / state
                figures[f"join_percent_at_{loss}"] = 100 * stream / max(0.001, join - overhead)
            figures |= {f"state_s_at_{loss}": state, f"join_s_at_{loss}": join, f"plain_s_at_{loss}": stream}
        return figures | {"trials": bench.trials}


@case("B-7c", "the stream of a joining node's state (4 MB) over a long line (50 ms each way, 1 % lost): paced by BBR, by CUBIC, and beside plain CUBIC streams, one, four and eight",
      {"percent_of_four": ">= 100"}, 5)
def long_line(bench):
    figures = {}
    for name, flags in (("bbr", []), ("cubic", ["--set", "net.bbr=false"])):
        with bench.lab(2, step_ms=50) as lab:
            lab.network.need_cubic()
            contact, joiner = lab.nodes
            train_beyond_genesis(lab, contact, [*LOG, *flags])
            lab.network.link("*", "*", loss=0.01, delay_ms=50)
            figures[f"{name}_s"] = quantile([one_join(lab, contact, joiner)[1] for _ in range(bench.trials)], 0.5)
    with bench.lab(2) as lab:
        lab.network.link("*", "*", loss=0.01, delay_ms=50)
        for streams in (1, 4, 8):
            figures[f"plain_{streams}_s"] = quantile([plain_stream_s(*lab.nodes, STATE_BYTES, "cubic", streams) for _ in range(bench.trials)], 0.5)
    return figures | {"percent_of_four": 100 * figures["plain_4_s"] / figures["bbr_s"], "trials": bench.trials}


# Each rung is worse in everything than the one before: delay and its jitter (ms), share lost, rate (kbit/s).
RUNGS = ((0, 0, 0.0, 0), (10, 2, 0.005, 100_000), (30, 5, 0.01, 50_000), (60, 10, 0.02, 20_000), (100, 20, 0.03, 10_000), (150, 30, 0.05, 5_000),
         (200, 40, 0.08, 2_000), (400, 80, 0.2, 500), (800, 160, 0.4, 128))
LAST_TO_EXCHANGE = 6


@case("B-8", "a ladder of nine lines, each worse than the one before: an exchange within 20 s + 10 s a rung on the first seven",
      {"late_s": "<= 0", "ended": "<= 0", "throughput_percent": ">= 98"})
def ladder(bench):
    with bench.lab(min(bench.nodes, 8)) as lab:
        nodes = lab.start_all()
        before = watch(CALM_S)
        begin = time.monotonic()
        late, took = 0.0, {}
        for rung, (delay, jitter, loss, rate_kbit) in enumerate(RUNGS):
            lab.network.link("*", "*", delay_ms=delay, jitter_ms=jitter, loss=loss, rate_kbit=rate_kbit, queue_ms=200)
            watch(3)  # what was under way on the line before
            counts = {node: lab.told_by(node)["traffic"]["exchanges"] for node in nodes}

            def moved(counts=counts):
                found = {node: node.status() for node in nodes}
                return all(status and status["traffic"]["exchanges"] > counts[node] for node, status in found.items())
            if rung > LAST_TO_EXCHANGE:
                watch(bench.seconds / 2)
                continue
            took[f"rung_{rung}_s"] = lab.until(moved, 240, f"no exchange on rung {rung}")
            late = max(late, took[f"rung_{rung}_s"] - 20 - 10 * rung)
        during = (begin, time.monotonic())
        return {"late_s": late, "ended": sum(not node.running() for node in nodes), "throughput_percent": throughput_percent(nodes, before, during)} | took


def neighbours_of(node):
    """Those with whom the topology wants an edge, as its log names them: nobody makes the session with another one again."""
    return {edge["id"][:8] for edge in edges_of(node) if edge["wanted"]}


def longest_without(edges, until):
    """The longest that one of these nodes had no session with one of its neighbours after one had ended (json logs), up to a moment of time.time().
    `edges`: {node: neighbours}."""
    longest = 0.0
    for node, neighbours in edges.items():
        gone = {}
        for line in node.log().splitlines():
            if not line.startswith("{"):
                continue
            entry = json.loads(line)
            at = datetime.datetime.fromisoformat(entry["time"].replace("Z", "+00:00")).timestamp()
            if at > until:
                break
            if entry["event"] == "session.down" and entry["peer"] in neighbours:
                gone.setdefault(entry["peer"], at)
            elif entry["event"] == "session.up" and entry["peer"] in gone:
                longest = max(longest, at - gone.pop(entry["peer"]))
        longest = max([longest, *(until - at for at in gone.values())])
    return longest


ECHO_S = 5  # between the two ends of a session
NOTICED_S = 5  # after a change


def ends_of_sessions(nodes):
    """[(moment, the two nodes)] of the sessions that ended by what came over them, and how many lines say so: both ends write it down in the same words,
    the one that noticed and the one that it told, and together they are one end."""
    told = sorted((at, tuple(sorted((node.id[:8], line["peer"]))), node.number, line["why"])
                  for node in nodes for at, line in log_events(node, 0) if line["event"] == "session.ended")
    ends, first = [], {}
    for at, pair, teller, why in told:
        before = first.pop((pair, why), None)
        if before and before[1] != teller and at - before[0] < ECHO_S:
            continue
        first[pair, why] = (at, teller)
        ends.append((at, pair))
    return ends, len(told)


def unmatched(changes, ends):
    """(changes that no end of a session between the same two followed, ends that no change preceded, the longest from a change to its end)."""
    left, missed, longest = sorted(ends), 0, 0.0
    for at, pair in sorted(changes):
        end = next((end for end in left if end[1] == pair and -0.01 <= end[0] - at <= NOTICED_S), None)  # a log's time is cut to milliseconds
        if end:
            left.remove(end)
            longest = max(longest, end[0] - at)
        else:
            missed += 1
    return missed, len(left), longest


def changes_of(notes, nodes):
    """(moment, the two nodes) of each change that the proxies wrote down."""
    ids = {node.address: node.id[:8] for node in nodes}
    lines = notes.read_text(encoding="ascii").splitlines() if notes.exists() else []
    return [(float(at), tuple(sorted((ids[one], ids[other])))) for at, one, other in map(str.split, lines)]


@case("B-9", "a byte is changed behind TCP, in one of a hundred pieces of 16 KiB",
      {"unnoticed": "<= 0", "too_many": "<= 0", "gone": "<= 0", "false_dead": "<= 0", "reconnect_s": "<= 2", "throughput_percent": ">= 98"})
def corrupted(bench):
    with bench.lab(min(bench.nodes, 8)) as lab:
        notes = lab.folder / "changed"
        proxies = []
        try:
            for node in lab.nodes:
                words = [pathlib.Path(__file__).parent / "corrupting_proxy.py", f"{node.address}:7701", f"{node.address}:7700", "0.01", str(node.number), notes]
                proxies.append(subprocess.Popen(["ip", "netns", "exec", node.space, sys.executable, *words], stderr=subprocess.DEVNULL))
            nodes = lab.start_all(port=7701, more=["--set", "log.per_event=0", "--log-format", "json"])
            since = time.time()
            edges = {node: neighbours_of(node) for node in nodes}
            during = watch(2 * bench.seconds)
            edges = {node: some & neighbours_of(node) for node, some in edges.items()}
            gone = sum(not node.running() for node in nodes)
            wrong = false_deaths(nodes, nodes, since)
            until = time.time()
            for proxy in proxies:
                proxy.send_signal(signal.SIGSTOP)  # no more changes, and nothing on its way is lost to the count
            watch(1)
            changes = changes_of(notes, nodes)
            ends, told = ends_of_sessions(nodes)
        finally:
            for proxy in proxies:
                proxy.kill()
                proxy.wait()
        if not changes:
            raise Failure("nothing was changed")
        pace = 1000 / lab.step_ms  # without a clean span before it: the pace that the nodes were given
        missed, causeless, noticed_s = unmatched(changes, ends)
        return {"changes": len(changes), "sessions": len(ends), "told": told, "unnoticed": missed, "too_many": causeless, "noticed_s": noticed_s,
                "gone": gone, "false_dead": wrong, "reconnect_s": longest_without(edges, until),
                "throughput_percent": 100 * sum(rate(node, *during) for node in nodes) / pace / len(nodes), "pause_s": longest_pause(nodes, *during)}


@case("B-10", "every line has 10 Mbit/s, and deltas are as large as they come (L6)",
      {"rtt_p99_ms": "<= 150", "throughput_percent": ">= 98"})
def narrow(bench):
    with bench.lab(min(bench.nodes, 8)) as lab:
        nodes = lab.start_all(more=["--codec", "L6"])
        before = watch(CALM_S)
        lab.network.link("*", "*", rate_kbit=10_000, queue_ms=50)
        begin = time.monotonic()
        times = []
        while time.monotonic() - begin < bench.seconds:
            times += [edge["rtt_ms"] for node in nodes for edge in edges_of(node) if edge["rtt_ms"] is not None]
            time.sleep(1)
        during = (begin, time.monotonic())
        if not times:
            raise Failure("no node has measured a round trip")
        return {"rtt_p50_ms": quantile(times, 0.5), "rtt_p99_ms": quantile(times, 0.99), "throughput_percent": throughput_percent(nodes, before, during)}


@case("B-12", "a process stops reading and keeps its sockets",
      {"dropped_s": "<= 15", "queued_mib": "<= 8", "growth_mib": "<= 8", "throughput_percent": ">= 98"})
def stopped_reader(bench):
    with bench.lab(bench.nodes) as lab:
        # Offers of 1 MB: more than goes out before the receiver has said anything, so the rest of one has to wait.
        nodes = lab.start_all(more=["--codec", "L6", "--set", "gossip.tau=8"])
        before = watch(CALM_S)
        victim = lab.random.choice(nodes)
        others = [node for node in nodes if node is not victim]
        held = {node: node.rss_bytes() for node in others}
        begin = time.monotonic()
        victim.signal(signal.SIGSTOP)

        def grown():
            return max(node.rss_bytes() - held[node] for node in others)

        queued, growth = 0, 0

        def forgotten():
            nonlocal queued, growth
            growth = max(growth, grown())
            told = [node.status() for node in others]
            edges = [edge for status in told if status for edge in status["neighbours"] if edge["id"] == victim.id]
            queued = max([queued, *(edge["queued_bytes"] or 0 for edge in edges)])
            # Who does not answer may hold something still.
            return all(told) and not any(edge["state"] == "alive" or edge["queued_bytes"] is not None for edge in edges)
        dropped = lab.until(forgotten, 60, "an edge to the stopped node is still open, or something waits to be sent to it")
        # Later the others have new neighbours, each with references of 8 MB; what waits for the stopped one is gone with its session.
        later = 0
        while time.monotonic() - begin < 2 * bench.seconds:
            later = max(later, grown())
            time.sleep(0.5)
        during = (begin, time.monotonic())
        victim.signal(signal.SIGCONT)
        if not all(node.running() for node in nodes):
            raise Failure("a node ended")
        return {"dropped_s": dropped, "queued_mib": queued / 2**20, "growth_mib": growth / 2**20, "later_growth_mib": later / 2**20, "throughput_percent": throughput_percent(others, before, during)}
