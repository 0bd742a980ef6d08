"""B-1, B-2, B-4, B-5, A-4, A-5: who notices what, and when."""

import contextlib
import signal
import time

from cases import case, watch
from lab import Failure, longest_pause, quantile, throughput_percent

CALM_S = 10
NOTICE_S = 30
LONGER_S = 20


def dead_after(watchers, victim, since, limit):
    """Seconds until each watcher wrote the victim down as dead."""
    def all_know():
        return all(any(state == "dead" for state, _ in node.changes(victim.id, since)) for node in watchers)
    begin = time.monotonic()
    while not all_know() and time.monotonic() - begin < limit:
        time.sleep(0.2)
    found = []
    for node in watchers:
        deaths = [after for state, after in node.changes(victim.id, since) if state == "dead"]
        found.append(deaths[0] if deaths else float(limit))
    return found


def false_deaths(nodes, innocent, since):
    """How often one of these nodes called one of the innocent dead."""
    ids = {node.id for node in innocent}
    return sum(event["event"] == "member" and event["state"] == "dead" and event["id"] in ids for node in nodes for event in node.events(since))


class Absences:
    """Which `dead` is wrong, from the making of this to its asking: everyone but those about a machine that is away, and those of a machine that is
    away itself and hears nobody. From its return on a machine is a watcher and a member as the others are."""

    def __init__(self):
        self.since = time.time()
        self.spans = []  # (machine's number, from when, until when)

    @contextlib.contextmanager
    def of(self, machine):
        """What vanishes at the beginning and is back at the end."""
        begin = time.time()
        yield
        self.spans.append((machine.number, begin, time.time()))

    def away(self, number, at):
        return any(number == gone and begin <= at <= end for gone, begin, end in self.spans)

    def wrong(self, verdicts):
        """How many of these: (number of who said it, moment of time.time(), number of whom it called dead)."""
        return sum(at >= self.since and not self.away(teller, at) and not self.away(about, at) for teller, at, about in verdicts)


def verdicts(nodes):
    """Each `dead` that these nodes wrote down about each other, as Absences takes them."""
    numbers = {node.id: node.number for node in nodes}
    return [(node.number, event["at"], numbers[event["id"]]) for node in nodes for event in node.events()
            if event["event"] == "member" and event["state"] == "dead" and event["id"] in numbers]


def silence(bench, vanish, appear):
    """Machines go silent, one after the other, and come back: what the others noticed."""
    deaths, backs, shares, pauses = [], [], [], []
    with bench.lab(bench.nodes) as lab:
        nodes = lab.start_all()
        absences = Absences()
        before = watch(CALM_S)
        for _ in range(bench.trials):
            victim = lab.random.choice(nodes)
            others = [node for node in nodes if node is not victim]
            since = time.time()
            begin = time.monotonic()
            with absences.of(victim):
                vanish(lab, victim)
                deaths += dead_after(others, victim, since, NOTICE_S)
                during = (begin, time.monotonic())
                shares.append(throughput_percent(others, before, during))
                pauses.append(longest_pause(others, *during))
                appear(lab, victim)
            backs.append(lab.wait_whole(nodes, 60))
            # Who was away has not all its sessions yet, and hears of the next one late.
            watch(CALM_S)
        wrong = absences.wrong(verdicts(nodes))
    return {"p50_s": quantile(deaths, 0.5), "p99_s": quantile(deaths, 0.99), "back_s": max(backs), "false_dead": wrong,
            "throughput_percent": min(shares), "pause_s": max(pauses), "trials": len(backs)}


def silent_cut(lab, victim, cut):
    """Every packet of it is lost; when it ends, a silence has lasted so long that TCP has long waits behind it."""
    if not cut:
        time.sleep(lab.random.uniform(0, LONGER_S))
    lab.network.around(victim.number, cut=cut)


def stop_bursts(lab, machines, seconds):
    """Stops what runs on each of these machines for 1 to 8 s, and lets it run for as long, each in a time of its own. All run in the end."""
    end = time.monotonic() + seconds
    due = {number: (time.monotonic() + lab.random.uniform(0, 4), False) for number in range(len(machines))}
    while due:
        number, (at, stopped) = min(due.items(), key=lambda item: item[1][0])
        time.sleep(max(0.0, min(at, end) - time.monotonic()))
        over = time.monotonic() >= end
        for process in machines[number]:
            process.signal(signal.SIGCONT if stopped or over else signal.SIGSTOP)
        if over:
            del due[number]
        else:
            due[number] = (at + lab.random.uniform(1, 8), not stopped)


@case("B-1", "a host goes silent: every packet of it is lost, for up to 20 s longer than it takes to notice",
      {"p50_s": "<= 3", "p99_s": "<= 8", "back_s": "<= 3", "false_dead": "<= 0", "throughput_percent": ">= 98"}, 5)
def silent_host(bench):
    return silence(bench, lambda lab, victim: silent_cut(lab, victim, 1), lambda lab, victim: silent_cut(lab, victim, 0))


def quarter_harmed(bench, harm, more=lambda nodes, victims, since: {}):
    """A quarter of the nodes is harmed: what that is to the others. harm(lab, victims) returns when it was, more() adds figures."""
    with bench.lab(bench.nodes) as lab:
        nodes = lab.start_all()
        before = watch(CALM_S)
        victims = lab.random.sample(nodes, len(nodes) // 4)
        healthy = [node for node in nodes if node not in victims]
        since = time.time()
        during = harm(lab, victims)
        back = lab.wait_whole(nodes, 60)
        return {"false_dead": false_deaths(nodes, healthy, since), **more(nodes, victims, since),
                "ended": sum(not node.running() for node in nodes), "back_s": back,
                "throughput_percent": throughput_percent(healthy, before, during), "pause_s": longest_pause(healthy, *during)}


@case("A-5", "a quarter of the processes is stopped for 1 to 8 s again and again", {"false_dead": "<= 0", "ended": "<= 0", "throughput_percent": ">= 98"})
def bursts(bench):
    def harm(lab, victims):
        begin = time.monotonic()
        stop_bursts(lab, [[node] for node in victims], 2 * bench.seconds)
        return begin, time.monotonic()
    return quarter_harmed(bench, harm)


@case("B-5", "one machine's interface goes down, and comes up again",
      {"p50_s": "<= 3", "p99_s": "<= 8", "back_s": "<= 3", "false_dead": "<= 0", "throughput_percent": ">= 98"}, 5)
def isolated_host(bench):
    return silence(bench, lambda lab, victim: lab.network.set_up(victim.number, False), lambda lab, victim: lab.network.set_up(victim.number, True))


@case("B-2", "a process is killed", {"neighbours_s": "<= 0.3", "all_p99_s": "<= 2", "false_dead": "<= 0", "throughput_percent": ">= 98"}, 5)
def killed_process(bench):
    first, deaths, shares = [], [], []
    with bench.lab(bench.nodes) as lab:
        nodes = lab.start_all()
        absences = Absences()
        before = watch(CALM_S)
        for _ in range(bench.trials):
            victim = lab.random.choice(nodes[1:])
            others = [node for node in nodes if node is not victim]
            edges = {neighbour["id"] for neighbour in lab.told_by(victim)["neighbours"]}
            since = time.time()
            begin = time.monotonic()
            with absences.of(victim):
                victim.kill()
                deaths += dead_after(others, victim, since, NOTICE_S)
                for node in others:
                    if node.id in edges:
                        first.append(min((after for _, after in node.changes(victim.id, since)), default=float(NOTICE_S)))
                watch(3)
                shares.append(throughput_percent(others, before, (begin, time.monotonic())))
                lab.start(victim, nodes[:1])
            lab.wait_whole(nodes, 60)
        watch(CALM_S)  # the returns before it have the next trial's time
        wrong = absences.wrong(verdicts(nodes))
    return {"neighbours_s": quantile(first, 0.99), "all_p50_s": quantile(deaths, 0.5), "all_p99_s": quantile(deaths, 0.99), "false_dead": wrong,
            "throughput_percent": min(shares), "trials": bench.trials}


@case("A-4", "a process is stopped for 30 s, then continued",
      {"suspected_s": "<= 4", "dead_s": "<= 12", "its_verdicts": "<= 0", "back_s": "<= 3", "steps_lost": "<= 0", "throughput_percent": ">= 98"})
def stopped_process(bench):
    worst = {"suspected_s": 0.0, "dead_s": 0.0, "its_verdicts": 0, "back_s": 0.0, "steps_lost": 0, "throughput_percent": 1000.0, "pause_s": 0.0}
    with bench.lab(bench.nodes) as lab:
        nodes = lab.start_all()
        before = watch(CALM_S)
        for _ in range(bench.trials):
            victim = lab.random.choice(nodes)
            others = [node for node in nodes if node is not victim]
            since = time.time()
            begin = time.monotonic()
            victim.signal(signal.SIGSTOP)
            deaths = dead_after(others, victim, since, NOTICE_S)
            time.sleep(max(0.0, bench.seconds - (time.monotonic() - begin)))
            during = (begin, time.monotonic())
            step = victim.steps()[-1][1]
            resumed = time.time()
            victim.signal(signal.SIGCONT)
            worst["back_s"] = max(worst["back_s"], lab.wait_whole(nodes, 60))
            watch(CALM_S)
            suspicions = [after for node in others for state, after in node.changes(victim.id, since)[:1] if state in ("suspect", "dead")]
            later = [number for _, number, _ in victim.steps() if number > step]
            if not later or not suspicions:
                raise Failure("nobody noticed the stop, or the node did not train on")
            worst["suspected_s"] = max(worst["suspected_s"], min(suspicions))
            worst["dead_s"] = max(worst["dead_s"], *deaths)
            worst["its_verdicts"] += false_deaths(others, others, resumed)
            worst["steps_lost"] = max(worst["steps_lost"], step + 1 - later[0])
            worst["throughput_percent"] = min(worst["throughput_percent"], throughput_percent(others, before, during))
            worst["pause_s"] = max(worst["pause_s"], longest_pause(others, *during))
    return worst


@case("B-4", "of four pairs one hears the other no more",
      {"changes_a_minute": "<= 1", "false_dead": "<= 0", "throughput_percent": ">= 98"})
def one_way(bench):
    with bench.lab(bench.nodes) as lab:
        nodes = lab.start_all()
        before = watch(CALM_S)
        shuffled = lab.random.sample(nodes, 8)
        pairs = list(zip(shuffled[:4], shuffled[4:]))
        since = time.time()
        for a, b in pairs:
            lab.network.link(a.number, b.number, cut=1)
        during = watch(2 * bench.seconds)
        changes = max(len(b.changes(a.id, since)) + len(a.changes(b.id, since)) for a, b in pairs)
        return {"changes_a_minute": changes / (2 * bench.seconds / 60), "false_dead": false_deaths(nodes, nodes, since),
                "throughput_percent": throughput_percent(nodes, before, during), "pause_s": longest_pause(nodes, *during)}
