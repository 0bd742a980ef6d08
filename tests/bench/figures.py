"""Figures that a command prints as JSON: reading them, running the command, and the spread of many.

A command prints one JSON object, alone or on its last line, as `starling bench ... --json` does. A figure is a number in it, or an object with
a "median", which is taken. Its name is the way to it, a row of a list going by its first text: levels.L2.encode_cpu_ms.
"""

import contextlib
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time

# How long processes that were asked to end may take. Those that `run` starts have to end their own children within it.
END_S = 10


class Failed(Exception):
    """What a user has to know when nothing can be compared."""


def quantile(values, share):
    """Quantile of the values, interpolated between the two nearest, as `starling bench` does it."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def spread(values):
    """Median, quartiles and extremes, with five significant digits."""
    points = {"median": 0.5, "q1": 0.25, "q3": 0.75, "min": 0.0, "max": 1.0}
    return {name: float(f"{quantile(values, share):.5g}") for name, share in points.items()}


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def row_name(row, index):
    values = row.values() if isinstance(row, dict) else ()
    return next((value for value in values if isinstance(value, str)), str(index))


def figures_of(value, path=""):
    """All figures below a value of JSON, in its order: (name, number, whether it is the median of a spread)."""
    if is_number(value):
        yield path, float(value), False
    elif isinstance(value, dict) and is_number(value.get("median")):
        yield path, float(value["median"]), True
    elif isinstance(value, (dict, list)):
        rows = value.items() if isinstance(value, dict) else ((row_name(row, index), row) for index, row in enumerate(value))
        for name, row in rows:
            yield from figures_of(row, f"{path}.{name}" if path else name)


def numbers_of(report):
    return {name: number for name, number, _ in figures_of(report)}


def spread_names(report):
    """What a command itself takes for its result."""
    return [name for name, _, is_spread in figures_of(report) if is_spread]


def parse_output(command, text):
    for part in (text, text.strip().rpartition("\n")[2]):
        try:
            report = json.loads(part)
        except json.JSONDecodeError:
            continue
        if isinstance(report, dict):
            return report
    raise Failed(f"`{command}` printed no JSON object, but {text.strip()[-200:]!r}")


def exit_when_told_to():
    """Makes the signals that end a process do what Ctrl-C does: unwind, so that every `with` and `finally` on the way ends what it started."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, lambda told, _: sys.exit(128 + told))


@contextlib.contextmanager
def told_later():
    """What the signals that end a process do waits until the end of the block. Starting a process and noting it belongs into one: unwound between
    the two, nobody would know of a process to end."""
    told = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    before = {number: handler for number, handler in before.items() if callable(handler)}
    for number in before:
        signal.signal(number, lambda *words: told.append(words))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number, frame in told:
            before[number](number, frame)


def living(session):
    """Process numbers of a session, without those that only wait to be waited for."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                state, _parent, _group, of = file.read().rpartition(")")[2].split()[:4]  # the name before it may hold anything
        except OSError:
            continue  # it has ended
        if int(of) == session and state not in "ZX":
            found.append(int(name))
    return found


def tell(process_numbers, what):
    for number in process_numbers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, what)


def end_session(process):
    """Ends what is left of the session that the process began: its children, theirs, and those that were stopped. First they are asked, so that they
    tidy up; a session and not a group, because some commands give their children groups of their own."""
    try:
        asked = living(process.pid)
        tell(asked, signal.SIGTERM)
        tell(asked, signal.SIGCONT)  # who is stopped hears nothing
        end = time.monotonic() + END_S
        while living(process.pid) and time.monotonic() < end:
            process.poll()
            time.sleep(0.02)
    finally:
        while left := living(process.pid):  # one that was being started is seen the next time
            tell(left, signal.SIGKILL)
            process.poll()
            time.sleep(0.02)
        process.wait()


def run(command, environment=None, timeout_s=None):
    """What the command printed. `environment` is added to that of this process. Nothing that the command started outlives the call."""
    with contextlib.ExitStack() as stack:
        try:
            with told_later():
                process = stack.enter_context(subprocess.Popen(shlex.split(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                                               start_new_session=True, env={**os.environ, **(environment or {})}))
                stack.callback(end_session, process)
        except OSError as error:
            raise Failed(f"`{command}` did not start: {error.strerror}") from error
        try:
            printed, complained = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"`{command}` did not end within {timeout_s} s and was ended") from error
    if process.returncode != 0:
        raise Failed(f"`{command}` ended with status {process.returncode}: {complained.strip()[-400:]}")
    return parse_output(command, printed)


def values_of(side, reports, name):
    """The figure of that name in each of the reports of a side."""
    values = [numbers_of(report).get(name) for report in reports]
    if None in values:
        there = ", ".join(numbers_of(reports[values.index(None)]))
        raise Failed(f"{side} has no figure {name}; it has {there}")
    return values


def machine():
    """What a figure depends on, as far as Linux says it."""
    cpu = platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    except OSError:
        pass
    return {"cpu": cpu, "cores": len(os.sched_getaffinity(0))}
