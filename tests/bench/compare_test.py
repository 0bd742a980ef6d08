"""Checks the arithmetic of `compare` on commands whose figures are known, and that no command leaves processes behind. Nothing is timed."""

import json
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

sys.dont_write_bytecode = True
import figures  # noqa: E402

COMPARE = pathlib.Path(__file__).with_name("compare")
WATCHED = pathlib.Path(__file__).with_name("watched")

# Prints the next of its texts each time it runs, and writes down that it did.
STEP = """
printf %s "$1" >> turns
cat "$1.$(tr -cd "$1" < turns | wc -c)"
"""


def compare(*words):
    return subprocess.run([sys.executable, str(COMPARE), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)


class Compare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.turns = self.folder / "turns"

    def command(self, name, reports):
        """A command that prints these reports one after the other."""
        for number, report in enumerate(reports, start=1):
            text = report if isinstance(report, str) else json.dumps(report)
            (self.folder / f"{name}.{number}").write_text(text, encoding="utf-8")
        return shlex.join(["sh", "-c", f"cd {shlex.quote(str(self.folder))}; {STEP}", "step", name])

    def figures(self, a, b, *words):
        done = compare(self.command("A", a), self.command("B", b), "--pairs", str(len(a)), "--json", *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(report["pairs"], len(a))
        return {row["figure"]: row for row in report["figures"]}

    def refusal(self, *words):
        done = compare(*words)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.returncode, 1)
        return done.stderr

    def test_the_ratio_is_the_median_of_pairs_and_not_the_ratio_of_medians(self):
        row = self.figures([{"ms": v} for v in (10, 20, 40)], [{"ms": v} for v in (5, 30, 20)], "--figure", "ms")["ms"]
        self.assertEqual(row["a"], {"median": 20, "q1": 15, "q3": 30, "min": 10, "max": 40})
        self.assertEqual(row["b"], {"median": 20, "q1": 12.5, "q3": 25, "min": 5, "max": 30})
        self.assertEqual(row["ratio"], {"median": 0.5, "q1": 0.5, "q3": 1, "min": 0.5, "max": 1.5})

    def test_the_commands_run_by_turns(self):
        self.figures([{"ms": 1}] * 3, [{"ms": 1}] * 3, "--figure", "ms")
        self.assertEqual(self.turns.read_text(), "ABABAB")

    def test_quartiles_of_four_lie_between_values(self):
        row = self.figures([{"ms": v} for v in (4, 1, 3, 2)], [{"ms": 8}] * 4, "--figure", "ms")["ms"]
        self.assertEqual(row["a"], {"median": 2.5, "q1": 1.75, "q3": 3.25, "min": 1, "max": 4})
        self.assertEqual(row["ratio"], {"median": 3.3333, "q1": 2.5, "q3": 5, "min": 2, "max": 8})

    def test_every_spread_of_both_is_compared_by_its_median(self):
        def report(ms):
            return {"bench": "codec", "levels": [{"level": "L2", "bytes": 7, "ms": {"median": ms, "q1": 0, "max": 99}}, {"level": "L3", "ms": 4}]}

        rows = self.figures([report(2)], [report(3)])
        self.assertEqual(list(rows), ["levels.L2.ms"])
        self.assertEqual(rows["levels.L2.ms"]["ratio"]["median"], 1.5)
        self.turns.unlink()
        rows = self.figures([report(2)], [report(3)], "--figure", "levels.L3.ms", "--figure", "levels.L2.bytes")
        self.assertEqual([row["ratio"]["median"] for row in rows.values()], [1, 1])

    def test_the_object_may_stand_on_the_last_line(self):
        rows = self.figures(["warming up\n" + json.dumps({"ms": 2})], [json.dumps({"ms": 4}, indent=1)], "--figure", "ms")
        self.assertEqual(rows["ms"]["ratio"]["median"], 2)

    def test_a_row_of_a_list_goes_by_its_number_where_it_has_no_text(self):
        report = {"pair": [3, {"ms": 4}], "ms": 1}
        rows = self.figures([report], [report], "--figure", "pair.0", "--figure", "pair.1.ms")
        self.assertEqual([row["a"]["median"] for row in rows.values()], [3, 4])

    def test_a_zero_has_no_ratio(self):
        rows = self.figures([{"ms": 0}, {"ms": 1}], [{"ms": 1}, {"ms": 1}], "--figure", "ms")
        self.assertIsNone(rows["ms"]["ratio"])

    def test_tables_show_what_json_has(self):
        words = (self.command("A", [{"ms": 2}]), self.command("B", [{"ms": 3}]), "--pairs", "1", "--figure", "ms")
        lines = compare(*words).stdout.splitlines()
        self.assertEqual(lines[1].split("  ")[0], "ms")
        self.assertIn("1.500", lines[1])
        self.turns.unlink()
        self.assertIn("| ms | 2 (2, 2) | 3 (3, 3) | 1.500 | (1.500, 1.500) | 1.500 to 1.500 |", compare(*words, "--markdown").stdout)

    def test_what_cannot_be_compared_is_said(self):
        one = self.command("A", [{"ms": 1}])
        self.assertIn("B has no figure ms; it has s", self.refusal(one, self.command("B", [{"s": 1}]), "--pairs", "1", "--figure", "ms"))
        self.turns.unlink()
        self.assertIn("no spread in common; name a figure: ms", self.refusal(one, self.command("B", [{"ms": 1}]), "--pairs", "1"))
        self.assertIn("printed no JSON object, but 'hello'", self.refusal("echo hello", "echo hello"))
        self.assertIn("ended with status 1", self.refusal("false", "false"))
        self.assertIn("did not start", self.refusal("/nowhere", "/nowhere"))
        self.assertEqual(compare("true", "true", "--pairs", "0").returncode, 2)


def lives(number):
    """Whether there is such a process; one that only waits to be waited for does not live."""
    try:
        stat = pathlib.Path(f"/proc/{number}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def until(done):
    end = time.monotonic() + 60
    while not done():
        if time.monotonic() > end:
            raise AssertionError("it never came")
        time.sleep(0.01)


class Children(unittest.TestCase):
    """Commands that have a child of their own, which ends only by a signal."""

    STUBBORN = "trap '' TERM"
    TIDY = "trap 'touch tidied; exit' TERM"

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        patience = mock.patch.object(figures, "END_S", 0.2)
        patience.start()
        self.addCleanup(patience.stop)

    def command(self, on_term, last="wait", first=":"):
        """A command that starts the child, waits until it is there and then does `last`."""
        child = f"{on_term}; echo $$ > new; mv new child; while :; do sleep 0.05; done"
        text = f"cd {shlex.quote(str(self.folder))}; {first}; sh -c {shlex.quote(child)} > /dev/null 2>&1 & until [ -s child ]; do sleep 0.01; done; {last}"
        return shlex.join(["sh", "-c", text])

    def child(self):
        return int((self.folder / "child").read_text(encoding="utf-8"))

    def ended(self, command):
        """Runs it until its time is over, which has to suffice for the child to be there: on a busy machine not at once."""
        for limit in (1, 20):
            with self.assertRaisesRegex(figures.Failed, f"did not end within {limit} s and was ended"):
                figures.run(command, timeout_s=limit)
            if (self.folder / "child").exists():
                break
        self.assertFalse(lives(self.child()))

    def test_nothing_lives_on_after_a_timeout(self):
        self.ended(self.command(self.STUBBORN))

    def test_a_process_group_of_its_own_does_not_save_a_child(self):
        self.ended(self.command(self.STUBBORN, first="set -m"))

    def test_a_child_that_was_stopped_is_told_and_may_tidy_up(self):
        with mock.patch.object(figures, "END_S", 60):
            self.ended(self.command(self.TIDY, "kill -STOP $(cat child); wait"))
        self.assertTrue((self.folder / "tidied").exists())

    def test_nothing_lives_on_after_a_command_that_failed(self):
        with self.assertRaisesRegex(figures.Failed, "ended with status 3"):
            figures.run(self.command(self.STUBBORN, "exit 3"), timeout_s=60)
        self.assertFalse(lives(self.child()))

    def test_who_is_told_to_end_ends_what_runs(self):
        command = self.command(self.TIDY)
        with subprocess.Popen([sys.executable, str(COMPARE), command, command], stdout=subprocess.DEVNULL) as process:
            until((self.folder / "child").exists)
            process.terminate()
            self.assertEqual(process.wait(60), 128 + signal.SIGTERM)
        self.assertFalse(lives(self.child()))
        self.assertTrue((self.folder / "tidied").exists())


class Watched(unittest.TestCase):
    def test_what_would_measure_nothing_is_refused(self):
        for flag in ("--seconds", "--fetches"):
            done = subprocess.run([sys.executable, str(WATCHED), "/nowhere", flag, "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(f"{flag} 0 is not at least 1", done.stderr)


if __name__ == "__main__":
    unittest.main()
