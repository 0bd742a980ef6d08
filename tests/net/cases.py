"""What a test of the lab is, and the list of all."""

import dataclasses
import time
from collections.abc import Callable

ALL = {}


LONG_S = 3600  # --seconds from which on a test is a long one


@dataclasses.dataclass(frozen=True)
class Case:
    """`carry_out(bench)` returns its figures; `bars` names those that decide, as "<= 3" or ">= 98". `long_bars` are what a long test decides by besides,
    or instead where it names the same figure: what grows an hour says nothing after a minute."""
    id: str
    what: str
    bars: dict
    carry_out: Callable
    trials: int
    long_bars: dict

    def bars_over(self, seconds):
        return self.bars | (self.long_bars if seconds >= LONG_S else {})


def case(name, what, bars, trials=1, long_bars=None):
    def keep(function):
        ALL[name] = Case(name, what, bars, function, trials, long_bars or {})
        return function
    return keep


@dataclasses.dataclass
class Bench:
    """What the command line says to a test: `lab(count, ...)` makes its swarm."""
    lab: Callable
    trials: int
    nodes: int
    seconds: float


def holds(value, bar):
    sign, bound = bar.split()
    return value <= float(bound) if sign == "<=" else value >= float(bound)


def line_of(name_of_case, bars, figures, seconds, seed):
    """The JSON line of a test that came to its end."""
    good = all(holds(figures[name], bar) for name, bar in bars.items())
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()}
    return {"id": name_of_case, "pass": good, "figure": rounded, "bar": bars, "seconds": round(seconds, 1), "seed": seed}


def watch(seconds):
    """A span of time.monotonic() in which nothing is done."""
    begin = time.monotonic()
    time.sleep(seconds)
    return begin, time.monotonic()
