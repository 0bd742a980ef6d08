"""Checks what tests/soak takes for said already, in a repository of its own: no test of faults is run."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.dont_write_bytecode = True
LOADER = importlib.machinery.SourceFileLoader("soak", str(pathlib.Path(__file__).resolve().parent.parent / "soak"))
SOAK = importlib.util.module_from_spec(importlib.util.spec_from_loader("soak", LOADER))
sys.modules["soak"] = SOAK  # where dataclasses look for its types
LOADER.exec_module(SOAK)
SOAK_ITEMS = SOAK.ITEMS
NET = SOAK.net("A-1", "several seeds", "few", seeds=3)


def seed_of(command):
    return int(command.rsplit(" ", 1)[1])


class Soak(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "tests").mkdir()
        (self.root / "source").write_text("one", encoding="ascii")
        (self.root / ".gitignore").write_text("/build/\n", encoding="ascii")
        self.git("init", "--quiet")
        self.save()
        places = {"ROOT": self.root, "RESULTS": self.root / "tests" / "soak_results.jsonl", "SEEDS": self.root / "build" / "soak_seeds.jsonl",
                  "PAGE": self.root / "tests" / "faults.md", "ITEMS": (NET,),
                  "LAB": {"A-1": SOAK.LAB["A-1"].__class__("A-1", "x", {"ended": "<= 2"}, None, 1, {})}}
        for name, value in places.items():
            patch = mock.patch.object(SOAK, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        self.ran = []

    def git(self, *words):
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x", *words], cwd=self.root, check=True)

    def save(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message=x")

    def soak(self, *words, failing=(), stop_at=None, left_out=False):
        """Its exit status and what it printed; `ran` has the seeds that it ran."""
        def ran(command):
            seed = seed_of(command)
            if seed == stop_at:
                raise KeyboardInterrupt
            self.ran.append(seed)
            line = {"id": "A-1", "pass": seed not in failing, "figure": {"ended": seed, "died": seed, "some_percent": seed}, "bar": {"ended": "<= 2"}, "seed": seed}
            return subprocess.CompletedProcess(command, 77 if left_out else 0, "" if left_out else json.dumps(line))
        self.ran.clear()
        output = io.StringIO()
        with mock.patch.object(SOAK, "ran", ran), contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
            status = SOAK.main([*words])
        return status, [json.loads(line) for line in output.getvalue().splitlines()]

    def interrupted(self, **more):
        with self.assertRaises(KeyboardInterrupt):
            self.soak("A-1", **more)

    def test_an_interrupted_run_goes_on_and_a_whole_one_begins_again(self):
        self.interrupted(stop_at=3)
        self.soak("A-1")
        self.assertEqual(self.ran, [3])
        self.soak("A-1")
        self.assertEqual(self.ran, [1, 2, 3])

    def test_an_edited_tree_takes_nothing_for_said(self):
        self.interrupted(stop_at=3)
        (self.root / "source").write_text("two", encoding="ascii")
        _, (line,) = self.soak("A-1")
        self.assertEqual(self.ran, [1, 2, 3])
        self.assertTrue(line["commit"].endswith("+"))
        self.assertEqual(self.soak("A-1", "--again")[0], 2)
        (self.root / "source").write_text("one", encoding="ascii")
        self.soak("A-1")
        self.assertEqual(self.ran, [3])

    def test_its_own_files_are_no_edits(self):
        self.interrupted(stop_at=2)
        for name in ("soak_results.jsonl", "faults.md"):
            (self.root / "tests" / name).write_text("", encoding="ascii")
        self.soak("A-1")
        self.assertEqual(self.ran, [2, 3])

    def test_another_commit_takes_nothing_for_said(self):
        self.interrupted(stop_at=3)
        self.save()
        self.soak("A-1")
        self.assertEqual(self.ran, [1, 2, 3])

    def test_again_runs_what_failed_of_the_last_run(self):
        self.assertEqual(self.soak("A-1", failing=(2,))[0], 1)
        status, (line,) = self.soak("A-1", "--again")
        self.assertEqual((self.ran, status, line["figure"]["run_again"]), ([2], 0, 1))
        _, (line,) = self.soak("A-1")
        self.assertEqual(self.ran, [1, 2, 3])
        self.assertNotIn("run_again", line["figure"])

    def test_the_worst_of_many_seeds_is_the_least_where_more_is_better(self):
        _, (line,) = self.soak("A-1")
        self.assertEqual(line["figure"], {"ended": 3, "died": 1, "some_percent": 1, "seeds": 3})

    def test_what_the_machine_lacks_keeps_no_line(self):
        self.assertEqual(self.soak("A-1", left_out=True), (77, []))
        self.assertFalse(SOAK.RESULTS.exists())

    def test_who_passed_by_another_bar_has_not_passed_by_this_one(self):
        self.soak("A-1")
        self.assertIn("| few | yes |", "\n".join(SOAK.table()))
        with mock.patch.object(SOAK, "ITEMS", (SOAK.net("A-1", "several seeds", "fewer", seeds=3),)):
            self.assertIn("not run | fewer | |", "\n".join(SOAK.table()))

    def test_who_passed_by_other_bars_of_the_lab_has_not_passed_by_these(self):
        self.soak("A-1")
        for bars in ({"ended": "<= 1"}, {"alive": "<= 0"}):
            with mock.patch.object(SOAK, "lab_bars", return_value=bars):
                self.assertIn("not run | few | |", "\n".join(SOAK.table()))
        (kept,) = SOAK.lines(SOAK.RESULTS)
        del kept["bars"]  # as it was before they were kept
        SOAK.RESULTS.write_text(json.dumps(kept) + "\n", encoding="utf-8")
        self.assertIn("| few | yes |", "\n".join(SOAK.table()))
        with mock.patch.object(SOAK, "lab_bars", return_value={"died_otherwise": "<= 0"}):
            self.assertIn("not run | few | |", "\n".join(SOAK.table()))

    def test_a_line_of_another_form_is_not_taken(self):
        brief = {"id": "A-1", "pass": True, "figure": {"ended": 0}, "bar": {"ended": "<= 2"}, "command": "tests/net/run A-1", "seconds": 1, "load": 0, "seed": 7}
        file = self.root / "lines"
        for other, status in (({}, 0), ({"command": "tests/net/run A-1 --short"}, 1), ({"bar": {}}, 1), ({"command": None}, 1)):
            file.write_text(json.dumps(brief | other) + "\n", encoding="utf-8")
            self.assertEqual(self.soak("--take", str(file))[0], status)
        self.assertEqual([line["form"] for line in SOAK.lines(SOAK.RESULTS)], ["brief"])

    def test_a_page_that_is_not_of_the_kept_lines_is_noticed(self):
        SOAK.PAGE.write_text(f"# Page\n\n{SOAK.BEGIN}\n{SOAK.END}\n", encoding="utf-8")
        self.assertEqual(self.soak("--check")[0], 1)
        self.assertEqual((self.soak("--write")[0], self.soak("--check")[0]), (0, 0))
        self.soak("A-1")
        self.assertEqual(self.soak("--check")[0], 1)

    def test_programs_are_built_before_they_run(self):
        told = []

        def build(words, **_):
            told.append(words)
            return subprocess.CompletedProcess(words, 1)
        item = SOAK.unit("C-1", "x", "y", "one_test", "a case", "other_test", "a case")
        with mock.patch.object(SOAK.subprocess, "run", build):
            self.assertFalse(SOAK.built(item, item.command(True)))
        self.assertEqual(told, [["cmake", "--preset", "dev", "--log-level=WARNING"]])

        def good_build(words, **_):
            told.append(words)
            return subprocess.CompletedProcess(words, 0)
        with mock.patch.object(SOAK.subprocess, "run", good_build):
            self.assertTrue(SOAK.built(item, item.command(True)))
        self.assertEqual(told[-1], ["cmake", "--build", "--preset", "dev", "--target", "one_test", "other_test"])

    def test_a_form_has_the_bar_that_decides_it(self):
        churn = next(item for item in SOAK_ITEMS if item.id == "A-7")
        self.assertIn("1 MiB/h", churn.bar_of("long"))
        self.assertNotIn("MiB/h", churn.bar_of("brief"))


if __name__ == "__main__":
    unittest.main()
