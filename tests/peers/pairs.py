"""Pairs of runs, ours and a peer's by turns, and what is said about them: one JSON line a figure, or a table of such lines."""

import dataclasses
import datetime
import fnmatch
import os
import resource
import time

import measured  # noqa: F401  (the way to tests/bench)
from figures import Failed, machine, run, spread, values_of

# Longer is a hang: DDP takes a quarter of an hour for the training of C13 on two cores.
COMMAND_S = 3600


@dataclasses.dataclass(frozen=True)
class Figure:
    """One figure of both sides. A ratio above 1 says that ours is better: ours / peer where more is better, peer / ours where less is. `bar` and `goal`
    are ratios; `limit` is a bar in the figure's own unit, the most that ours may be, or the least where more is better."""

    id: str
    what: str
    unit: str
    ours: str  # the name of the figure in what our command prints
    peer: str
    more_is_better: bool = False
    bar: float | None = None
    goal: float | None = None
    limit: float | str | None = None  # or the name of another figure of ours, which ours may not exceed
    of_added: bool = False  # the limit is of what ours has more than the peer


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two commands and the figures that they have in common. Commands name places in braces: {starling}, {python}, {peers}, those of a line and
    {folder}, a new one that `prepare` fills."""

    ours: str
    peer: str
    figures: tuple[Figure, ...]
    needs: tuple[str, ...] = ("torch",)  # Python modules of the peer
    environment: tuple[tuple[str, str], ...] = ()  # of the peer
    our_environment: tuple[tuple[str, str], ...] = ()  # where ours is a peer's program, too: it gets what is best for it as well
    megabits: int | None = None  # both run on a line of this rate
    gpu: bool = False  # both run on a GPU
    prepare: tuple[str, ...] = ()  # commands that run once before all pairs
    pair_s: float = 0  # what a pair takes about, where it is minutes


def busy_seconds():
    """CPU seconds that this machine has spent on anything at all."""
    with open("/proc/stat", encoding="utf-8") as lines:
        user, nice, system, _idle, _waiting, irq, softirq = (int(word) for word in lines.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


class Others:
    """Cores that other programs kept busy meanwhile."""

    def __init__(self):
        self.begin = self.reading()

    @staticmethod
    def reading():
        return busy_seconds() - own_seconds(), time.monotonic()

    def cores(self):
        (busy, now), (busy_before, before) = self.reading(), self.begin
        return max(0.0, busy - busy_before) / (now - before)


def run_pairs(commands, environments, pairs, may_go_on):
    """Reports of both sides and the load by other programs, of that many pairs: A B A B. `commands` and `environments` are ours and the peer's.
    `may_go_on(seconds)` is asked after the first pair whether there is time for the others."""
    reports, loads = ([], []), []
    for number in range(pairs):
        others, begin = Others(), time.monotonic()
        for of_side, command, environment in zip(reports, commands, environments):
            of_side.append(run(command, environment, timeout_s=COMMAND_S))
        loads.append(others.cores())
        if number == 0:
            may_go_on((time.monotonic() - begin) * (pairs - 1))
    return reports, loads


def line_of(figure, reports):
    """The line of one figure: medians of both sides, median and extremes of the ratios of pairs."""
    ours = values_of("ours", reports[0], figure.ours)
    peer = values_of("the peer", reports[1], figure.peer)
    if not all(value > 0 for value in ours + peer):
        raise Failed(f"{figure.id}: no ratio of figures that are not above zero: ours {ours}, peer {peer}")
    ratio = spread([a / b if figure.more_is_better else b / a for a, b in zip(ours, peer)])
    return {
        "id": figure.id,
        "what": figure.what,
        "unit": figure.unit,
        "ours": spread(ours)["median"],
        "peer": spread(peer)["median"],
        "ratio": ratio["median"],
        "min": ratio["min"],
        "max": ratio["max"],
        "bar": figure.bar,
        "goal": figure.goal,
        **limit_of(figure, reports[0], spread(ours)["median"] - (spread(peer)["median"] if figure.of_added else 0)),
    }


def limit_of(figure, reports, value):
    """What a line says of its limit, nothing of a figure without one."""
    if figure.limit is None:
        return {}
    limit = spread(values_of("ours", reports, figure.limit))["median"] if isinstance(figure.limit, str) else figure.limit
    return {"limit": limit, "over_limit": value < limit if figure.more_is_better else value > limit, "limit_text": text_of(figure, limit)}


def text_of(figure, limit):
    """A limit as a table has it."""
    named = limit if isinstance(limit, str) else f"{short(limit)} {figure.unit}".strip()
    return f"{'>=' if figure.more_is_better else '<='} {named}{' more' if figure.of_added else ''}"


def lines_of(comparison, commands, reports, loads):
    """One line for each figure of a comparison that ran."""
    for figure in comparison.figures:
        yield {
            **line_of(figure, reports),
            "pairs": len(loads),
            "others_cores": round(spread(loads)["median"], 2),
            "machine": machine(),
            "date": datetime.date.today().isoformat(),
            "version": reports[0][0].get("version"),
            "peer_name": reports[1][0].get("peer", "starling"),
            "peer_version": reports[1][0].get("peer_version", reports[1][0].get("version")),
            "ours_command": commands[0],
            "peer_command": commands[1],
            "ours_environment": dict(comparison.our_environment),
            "peer_environment": dict(comparison.environment),
        }


def skipped(comparison, reason):
    """The lines of a comparison that could not run here: nothing but why."""
    for figure in comparison.figures:
        yield {"id": figure.id, "what": figure.what, "skipped": reason}


def selected(comparisons, patterns):
    """Those with a figure that one of these names or patterns of names means, all without any: "C7*" means C7.L3, too.

    Errors: Failed naming what there is.
    """
    names = [figure.id for comparison in comparisons for figure in comparison.figures]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise Failed(f"there is no comparison {pattern}; there are {', '.join(names)}")
    return [comparison for comparison in comparisons
            if not patterns or any(fnmatch.fnmatchcase(figure.id, pattern) for figure in comparison.figures for pattern in patterns)]


def short(value):
    return "-" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


HEAD = ("id", "what", "ours", "peer", "ratio (range)", "bar", "goal", "others")


def cells(line):
    if "skipped" in line:
        return [line["id"], line["what"], "-", "-", "not measured: " + line["skipped"], "-", "-", "-"]
    missed = line["bar"] is not None and line["ratio"] < line["bar"]
    ratio = f"{bold(short(line['ratio']), missed)} ({short(line['min'])} to {short(line['max'])})"
    ours = bold(f"{short(line['ours'])} {line['unit']}".strip(), line.get("over_limit", False))
    return [line["id"], line["what"], ours, f"{short(line['peer'])} {line['unit']}".strip(), ratio,
            bars_text(line["bar"], line.get("limit_text")), short(line["goal"]), f"{line['others_cores']:.1f}"]


def bold(text, missed):
    return f"**{text}**" if missed else text


def bars_text(bar, limit):
    """The cell of a bar that is a ratio, a limit, or both."""
    return "; ".join(([] if bar is None else [short(bar)]) + ([limit] if limit else [])) or "-"


def origin_of(lines):
    """Where and when the lines were measured, in one line."""
    def all_of(text):
        return " and ".join(sorted({text(line) for line in lines}))

    return ", ".join((all_of(lambda line: f"{line['pairs']} pairs"), all_of(lambda line: f"{line['machine']['cpu']} with {line['machine']['cores']} cores"),
                      all_of(lambda line: line["date"]), all_of(lambda line: f"starling {line['version']}"),
                      all_of(lambda line: f"{line['peer_name']} {line['peer_version']}")))


def table_of(lines, comparisons):
    """Lines as a page of the tree shows them, in the order of the comparisons; of two with one name the later one counts."""
    by_name = {line["id"]: line for line in lines}
    rows = [by_name[figure.id] for comparison in comparisons for figure in comparison.figures if figure.id in by_name]
    table = [f"| {' | '.join(row)} |" for row in (HEAD, ["---"] * len(HEAD), *map(cells, rows))]
    measured_rows = [row for row in rows if "ratio" in row]
    return [*([f"- {origin_of(measured_rows)}", ""] if measured_rows else []), *table]


def rows_of(page):
    """The rows in the tables of a page, cell by cell: by their section's heading, then by id."""
    sections, heading = {}, ""
    for line in page.splitlines():
        if line.startswith("## "):
            heading = line[3:]
        row = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(row) == len(HEAD) and row[0] not in (HEAD[0], "---"):
            sections.setdefault(heading, {})[row[0]] = row
    if not sections:
        raise Failed("no table of tests/peers/run in it")
    return sections


def figures_with_a_bar(comparisons, sections):
    """Those that have a bar of either kind, and a row in any section."""
    return [figure for comparison in comparisons for figure in comparison.figures
            if (figure.bar is not None or figure.limit is not None) and any(figure.id in rows for rows in sections.values())]


def bars_of(figure):
    return bars_text(figure.bar, text_of(figure, figure.limit) if figure.limit is not None else None)


def decided(figure, row):
    """The cells of a row that the figure's bars are of."""
    if row is None:
        return ""
    limited = [] if figure.limit is None else [f"{row[2]} against {row[3]}" if figure.of_added else row[2]]
    return "; ".join(([] if figure.bar is None else [row[4].split(" (")[0]]) + limited)


def look_of(page, comparisons):
    """What the tables of a page say, in one: a row for each of their figures that has a bar, a column for each section with a table, and in it what the
    bar is of, as it stands there: the ratio, and ours where there is a limit."""
    sections = rows_of(page)
    head = ["id", *sections, "bar", "goal"]
    body = [[figure.id, *(decided(figure, rows.get(figure.id)) for rows in sections.values()), bars_of(figure), short(figure.goal)]
            for figure in figures_with_a_bar(comparisons, sections)]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)]
