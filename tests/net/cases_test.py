"""Checks what the tests of the lab count and decide, on nodes that are made up: no process is started."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import unittest
from unittest import mock

sys.dont_write_bytecode = True
import cases  # noqa: E402
import cases_churn  # noqa: E402
import cases_limits  # noqa: E402
import cases_line  # noqa: E402
import cases_silence  # noqa: E402
from lab import Failure  # noqa: E402
from lab_node import LabNode  # noqa: E402
from network import NoLab  # noqa: E402

LOADER = importlib.machinery.SourceFileLoader("run", str(pathlib.Path(__file__).with_name("run")))
RUN = importlib.util.module_from_spec(importlib.util.spec_from_loader("run", LOADER))
LOADER.exec_module(RUN)


def moment(at):
    return f"1970-01-01T00:{at // 60:02.0f}:{at % 60:06.3f}Z"


class Folders(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def node(self, number, events=(), log=()):
        node = LabNode(number, "", f"10.88.0.{number}", self.folder / str(number), "")
        node.folder.mkdir(exist_ok=True)
        node.id = str(number) * 64
        for name, found in (("events.jsonl", events), ("log", log)):
            (node.folder / name).write_text("".join(json.dumps(one) + "\n" for one in found), encoding="utf-8")
        return node


class WrongVerdicts(Folders):
    def wrong(self, verdicts):
        """Of three nodes, the second of which is away from 100 s to 110 s: (who says it, when, of whom)."""
        nodes = [self.node(k, [{"time": moment(at), "event": "member", "state": "dead", "id": str(about) * 64} for who, at, about in verdicts if who == k])
                 for k in (1, 2, 3)]
        absences = cases_silence.Absences()
        absences.since = 50
        with mock.patch("time.time", side_effect=(100, 110)), absences.of(nodes[1]):
            pass
        return absences.wrong(cases_silence.verdicts(nodes))

    def test_who_is_away_is_rightly_dead_and_rightly_hears_nobody(self):
        self.assertEqual(self.wrong([(1, 103, 2), (3, 104, 2), (2, 104, 1)]), 0)

    def test_whoever_is_there_is_wrongly_dead_at_any_time(self):
        self.assertEqual(self.wrong([(1, 60, 3), (3, 105, 1), (1, 111, 2), (1, 300, 3)]), 4)

    def test_who_came_back_is_a_watcher_again(self):
        self.assertEqual(self.wrong([(2, 111, 3)]), 1)

    def test_what_was_before_the_row_does_not_count(self):
        self.assertEqual(self.wrong([(1, 20, 3)]), 0)


class ChangedBytes(Folders):
    def ends(self, *told):
        """Of two nodes: (moment, who tells it, number of the record)."""
        nodes = [self.node(k, log=[{"time": moment(at), "event": "session.ended", "peer": str(3 - k) * 8, "why": f"record {record} does not decrypt"}
                                   for at, who, record in told if who == k]) for k in (1, 2)]
        return cases_line.ends_of_sessions(nodes)

    def test_both_ends_of_a_session_are_one(self):
        ends, told = self.ends((10, 1, 5), (10.01, 2, 5))
        self.assertEqual((len(ends), told), (1, 2))

    def test_two_sessions_of_which_one_end_speaks_are_two(self):
        self.assertEqual(len(self.ends((10, 1, 5), (12, 1, 7))[0]), 2)
        self.assertEqual(len(self.ends((10, 1, 5), (20, 2, 5))[0]), 2)
        self.assertEqual(len(self.ends((10, 1, 5), (11, 1, 5))[0]), 2)

    def test_a_change_without_an_end_goes_unnoticed(self):
        pair, other = ("a", "b"), ("a", "c")
        self.assertEqual(cases_line.unmatched([(1.0, pair), (5.0, pair)], [(1.5, pair)]), (1, 0, 0.5))
        self.assertEqual(cases_line.unmatched([(1.0, pair)], [(1.5, other)]), (1, 1, 0.0))
        self.assertEqual(cases_line.unmatched([(1.0, pair)], [(0.5, pair)]), (1, 1, 0.0))

    def test_half_of_the_changes_unnoticed_does_not_pass(self):
        ends, _ = self.ends((10, 1, 5), (10.01, 2, 5))
        changes = [(10.0, ends[0][1]), (14.0, ends[0][1])]
        self.assertEqual(cases_line.unmatched(changes, ends)[0], 1)


class Deaths(unittest.TestCase):
    def bench(self, returncode):
        """Nine nodes that end with this, whichever is a victim."""
        class Lab:
            nodes = [mock.Mock(number=k, process=mock.Mock(returncode=returncode), running=lambda: False) for k in range(1, 10)]
            random = random.Random(1)
            start_all = mock.Mock(return_value=nodes)

            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass
        return cases.Bench(lambda count: Lab(), 2, 9, 1)

    def carry_out(self, returncode):
        with mock.patch.object(cases_churn, "watch"), mock.patch.object(cases_churn, "finish", return_value=(1.0, {"hash"}, [0])):
            return cases_churn.die_in_consensus(self.bench(returncode))

    def test_a_phase_in_which_nobody_dies_fails_by_name(self):
        for code in (None, 0, -signal.SIGSEGV):
            with self.assertRaisesRegex(Failure, r"consensus\.[a-z_]+$"):
                self.carry_out(code)

    def test_a_phase_with_deaths_passes(self):
        self.assertEqual(self.carry_out(-signal.SIGKILL)["died"], 4)


class Bars(unittest.TestCase):
    def test_a_long_test_decides_by_what_grows_an_hour(self):
        churn = cases.ALL["A-7"]
        self.assertNotIn("mib_an_hour", churn.bars_over(30))
        self.assertEqual(churn.bars_over(14_400)["mib_an_hour"], "<= 1")
        self.assertEqual(churn.bars_over(14_400)["descriptors_more"], "<= 0")


class Lacking(Folders):
    def test_one_build_is_no_upgrade(self):
        new = self.folder / "new"
        new.write_text("one", encoding="ascii")
        (self.folder / "starling_lab").write_text("one", encoding="ascii")
        for surroundings in ({}, {"STARLING_NET_OLD": "/nowhere"}, {"STARLING_NET_OLD": str(self.folder)}):
            with mock.patch.dict(os.environ, surroundings), self.assertRaisesRegex(NoLab, "STARLING_NET_OLD names"):
                cases_churn.build_before(new)
        new.write_text("two", encoding="ascii")
        with mock.patch.dict(os.environ, {"STARLING_NET_OLD": str(self.folder)}):
            self.assertEqual(cases_churn.build_before(new), self.folder / "starling_lab")

    def test_no_control_groups_is_no_failure(self):
        with mock.patch.object(cases_limits, "GROUPS", self.folder), self.assertRaisesRegex(NoLab, "mount -t cgroup"):
            with cases_limits.limited("memory", "x", {}, []):
                pass
        with self.assertRaisesRegex(NoLab, "takes no limit"):
            cases_limits.limit(self.folder / "memory.limit_in_bytes", 1)

    def test_no_faketime_is_no_failure(self):
        with mock.patch.object(cases_limits, "LIBRARIES", (self.folder,)), self.assertRaisesRegex(NoLab, "libfaketime"):
            cases_limits.clocks(None)


class CarriedOut(unittest.TestCase):
    def line(self, carry_out):
        one = cases.Case("X", "x", {"a": "<= 1"}, carry_out, 1, {})
        with contextlib.redirect_stderr(io.StringIO()):
            return RUN.carry_out(one, RUN.parse([]), pathlib.Path("/nowhere"))

    def test_an_error_of_any_kind_is_a_failed_line(self):
        line = self.line(lambda bench: bench.lab["neighbours"])
        self.assertFalse(line["pass"])
        self.assertIn("TypeError", line["figure"])
        self.assertFalse(self.line(lambda _: {})["pass"])  # a figure that has a bar is missing

    def test_what_the_machine_lacks_is_no_line(self):
        with self.assertRaises(NoLab):
            self.line(mock.Mock(side_effect=NoLab("no disk")))

    def test_a_good_row_passes(self):
        self.assertTrue(self.line(lambda _: {"a": 1})["pass"])


if __name__ == "__main__":
    unittest.main()
