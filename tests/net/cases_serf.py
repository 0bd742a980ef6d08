"""S-1 to S-6: the same faults and the same machines for our nodes and for Serf, both with what they do by themselves on a local network.

A machine runs one of each, and they meet on the same lines at the same time. Our nodes train too rarely to exchange anything meanwhile, so that
membership is compared with membership.
"""

import contextlib
import time

from cases import case, watch
from cases_silence import CALM_S, NOTICE_S, Absences, dead_after, false_deaths, silent_cut, stop_bursts, verdicts
from lab import quantile
from serf_node import SerfNode

IDLE_STEP_MS = 900_000
SMALLEST = 16
SETTLED_S = 60  # by then the sessions that only joining needed are closed


@contextlib.contextmanager
def both(bench, count, ours=True):
    """`count` machines with an agent each, and with a node of ours each unless told otherwise; all of them know each other."""
    with bench.lab(count, step_ms=IDLE_STEP_MS) as lab:
        agents = [SerfNode(node.number, node.space, node.address, lab.folder) for node in lab.nodes]
        try:
            if ours:
                lab.start_all()
            for agent in agents:
                agent.start(agents[:1] if agent is not agents[0] else [])
            serf_whole(lab, agents)
            yield lab, agents
        finally:
            for agent in agents:
                agent.kill()


def serf_whole(lab, agents, seconds=120):
    names = {agent.name for agent in agents}
    return lab.until(lambda: all(agent.sees() >= names for agent in agents), seconds, f"{len(agents)} agents of Serf are not one cluster")


def serf_failed_after(watchers, victim, since, limit):
    """Seconds until each of these agents said that the victim had failed."""
    def found(agent):
        return [after for event, after in agent.changes(victim.name, since) if event == "Failed"]
    begin = time.monotonic()
    while not all(found(agent) for agent in watchers) and time.monotonic() - begin < limit:
        time.sleep(0.1)
    return [min(found(agent), default=float(limit)) for agent in watchers]


def serf_back(agents, healed):
    """Seconds from a moment to the last time that an agent heard of another one's return. Not to when it was looked for: ours was waited for first."""
    return max((at - healed for agent in agents for at, event, _ in list(agent.heard) if event == "Join" and at >= healed), default=0.0)


def serf_false(agents, innocent, since):
    names = {agent.name for agent in innocent}
    return sum(event == "Failed" and name in names and at >= since for agent in agents for at, event, name in list(agent.heard))


def serf_verdicts(agents):
    """Each `Failed` of these agents about each other, as Absences takes them."""
    numbers = {agent.name: agent.number for agent in agents}
    return [(agent.number, at, numbers[name]) for agent in agents for at, event, name in list(agent.heard) if event == "Failed" and name in numbers]


def noticed(bench, vanish, appear):
    """One machine after the other vanishes and comes back: when whom it left behind knows, on both sides."""
    mine, theirs, backs, serf_backs = [], [], [], []
    with both(bench, bench.nodes) as (lab, agents):
        absences = Absences()
        watch(CALM_S)
        for _ in range(bench.trials):
            node = lab.random.choice(lab.nodes[1:])
            agent = agents[lab.nodes.index(node)]
            others = [other for other in lab.nodes if other is not node]
            other_agents = [other for other in agents if other is not agent]
            since = time.time()
            with absences.of(node):
                vanish(lab, node, agent)
                mine += dead_after(others, node, since, NOTICE_S)
                theirs += serf_failed_after(other_agents, agent, since, 2 * NOTICE_S)
                appear(lab, node, agent, agents[0])
            healed = time.time()  # not before it: a silence goes on for a while in it
            backs.append(lab.wait_whole(lab.nodes, 60))
            serf_whole(lab, agents)
            serf_backs.append(serf_back(agents, healed))
            watch(CALM_S)
        wrong, serf_wrong = absences.wrong(verdicts(lab.nodes)), absences.wrong(serf_verdicts(agents))
    return {"p50_s": quantile(mine, 0.5), "p99_s": quantile(mine, 0.99), "back_s": max(backs), "false_dead": wrong,
            "serf_p50_s": quantile(theirs, 0.5), "serf_p99_s": quantile(theirs, 0.99), "serf_back_s": max(serf_backs), "serf_false_dead": serf_wrong,
            "trials": bench.trials}


@case("S-1", "beside Serf: a process is killed, and started again", {"p99_s": "<= 2", "back_s": "<= 5", "false_dead": "<= 0"}, 5)
def killed(bench):
    def vanish(_, node, agent):
        node.kill()
        agent.kill()

    def appear(lab, node, agent, contact):
        lab.start(node, lab.nodes[:1])
        agent.start([contact])
    return noticed(bench, vanish, appear)


@case("S-2", "beside Serf: a host goes silent, and comes back", {"p50_s": "<= 3", "p99_s": "<= 8", "back_s": "<= 3", "false_dead": "<= 0"}, 5)
def silent(bench):
    return noticed(bench, lambda lab, node, _: silent_cut(lab, node, 1), lambda lab, node, *_: silent_cut(lab, node, 0))


@case("S-3", "beside Serf: a quarter of the processes is stopped for 1 to 8 s again and again", {"false_dead": "<= 0"})
def bursts(bench):
    with both(bench, bench.nodes) as (lab, agents):
        watch(CALM_S)
        victims = lab.random.sample(range(1, len(agents)), len(agents) // 4)
        healthy = [k for k in range(len(agents)) if k not in victims]
        since = time.time()
        stop_bursts(lab, [[lab.nodes[k], agents[k]] for k in victims], 2 * bench.seconds)
        watch(CALM_S)
        nodes, calm = [lab.nodes[k] for k in healthy], [agents[k] for k in healthy]
        return {"false_dead": false_deaths(lab.nodes, nodes, since), "serf_false_dead": serf_false(agents, calm, since)}


@case("S-4", "beside Serf: every line loses 10 %", {"false_dead": "<= 0"})
def lossy(bench):
    with both(bench, bench.nodes) as (lab, agents):
        watch(CALM_S)
        since = time.time()
        lab.network.link("*", "*", loss=0.1)
        watch(2 * bench.seconds)
        suspicions = sum(event["event"] == "member" and event["state"] == "suspect" for node in lab.nodes for event in node.events(since))
        return {"false_dead": false_deaths(lab.nodes, lab.nodes, since), "serf_false_dead": serf_false(agents, agents, since), "suspicions": suspicions}


def bytes_a_second(lab, seconds):
    """What each machine sent and received a second, with all headers from Ethernet's on: the mean and the most of all machines."""
    def counters():
        return [lab.network.bytes_of(node.number) for node in lab.nodes]
    before = counters()
    begin, end = watch(seconds)
    rates = [(later - earlier) / (end - begin) for earlier, later in zip(before, counters())]
    return sum(rates) / len(rates), max(rates)


@case("S-5", "beside Serf: bytes of 32 idle members, in and out, with the headers of TCP, UDP and IP", {"mean_bytes_s": "<= 4096", "sent_bytes_s": "<= 2048"})
def idle(bench):
    with bench.lab(32, step_ms=IDLE_STEP_MS) as lab:
        lab.start_all()
        watch(SETTLED_S)
        mine, my_most = bytes_a_second(lab, bench.seconds)
    with both(bench, 32, ours=False) as (lab, _):
        watch(2 * CALM_S)
        theirs, their_most = bytes_a_second(lab, bench.seconds)
    return {"mean_bytes_s": mine, "sent_bytes_s": mine / 2, "most_bytes_s": my_most,
            "serf_mean_bytes_s": theirs, "serf_sent_bytes_s": theirs / 2, "serf_most_bytes_s": their_most}


@case("S-6", "beside Serf: a process starts and joins, until all others know it", {"p95_s": "<= 2"}, 12)
def joins(bench):
    mine, theirs, starts = [], [], []
    with both(bench, SMALLEST) as (lab, agents):
        watch(CALM_S)
        for _ in range(bench.trials):
            k = lab.random.randrange(1, len(agents))
            node, agent = lab.nodes[k], agents[k]
            others = [other for other in lab.nodes if other is not node]
            other_agents = [other for other in agents if other is not agent]
            node.kill()
            agent.kill()
            dead_after(others, node, time.time() - 5, NOTICE_S)
            serf_failed_after(other_agents, agent, time.time() - 5, 2 * NOTICE_S)
            since = time.time()
            lab.start(node, lab.nodes[:1])
            lab.wait_whole(lab.nodes, 60)
            known = [min(after for state, after in other.changes(node.id, since) if state in ("joining", "alive")) for other in others]
            mine.append(max(known))
            starts.append(min(known))
            since = time.time()
            agent.start(agents[:1])
            serf_whole(lab, agents)
            theirs.append(max(min(after for event, after in other.changes(agent.name, since) if event == "Join") for other in other_agents))
            watch(3)
    return {"p50_s": quantile(mine, 0.5), "p95_s": quantile(mine, 0.95), "first_p50_s": quantile(starts, 0.5),
            "serf_p50_s": quantile(theirs, 0.5), "serf_p95_s": quantile(theirs, 0.95), "trials": bench.trials}
