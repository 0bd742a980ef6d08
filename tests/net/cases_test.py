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
import cases_serf  # noqa: E402
import cases_silence  # noqa: E402
import lab as lab_module  # noqa: E402
from lab import Failure, Lab  # noqa: E402
from lab_node import LabNode  # noqa: E402
from network import NoLab  # noqa: E402
from serf_node import SerfNode  # noqa: E402

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


class Halves(Folders):
    def halves(self, way):
        """Two groups of three nodes, the samples of the second group so far from those of the first one."""
        groups = []
        for base, numbers in ((0.0, (1, 2, 3)), (way, (4, 5, 6))):
            groups.append([self.node(number) for number in numbers])
            for node, own in zip(groups[-1], (-0.5, 0, 0.5)):
                (node.folder / "samples").write_text(f"9 9 9\n7 7 7\n{base + own} {base - own} {base}\n7 7", encoding="ascii")
        return groups

    def test_how_far_groups_are_apart_has_a_scale(self):
        self.assertAlmostEqual(cases_line.distance(*self.halves(0.1)), 0.01)
        self.assertAlmostEqual(cases_line.distance(*self.halves(1)), 1)

    def test_halves_that_are_apart_do_not_pass(self):
        lab = Lab(pathlib.Path("/nowhere"), 1, 2)
        with mock.patch.object(lab_module, "time", mock.Mock(monotonic=mock.Mock(side_effect=range(0, 1000, 10)))):
            cases_line.wait_together(lab, *self.halves(0.1), 0.012)
            with self.assertRaisesRegex(Failure, "the models are not together"):
                cases_line.wait_together(lab, *self.halves(1), 0.012)

    def test_a_node_without_samples_is_a_failure(self):
        nodes, _ = self.halves(1)
        with self.assertRaisesRegex(Failure, "no sample"):
            cases_line.distance(nodes, [self.node(7)])


class Exchanges(unittest.TestCase):
    def watch(self, *statuses):
        """What a watch of one node says of these statuses: (uptime, seconds since the last exchange of each edge), or None."""
        gaps = cases_churn.ExchangeWatch()
        node = mock.Mock(number=1)
        for told in statuses:
            node.status.return_value = told and {"node": {"uptime_s": told[0]}, "neighbours": [{"last_exchange_s": last} for last in told[1:]]}
            gaps.look([node])
        return gaps.longest()

    def test_a_gap_is_never_shorter_than_it_was(self):
        self.assertAlmostEqual(self.watch((10, 0.5), (11, 1.5), (12, 2.5), (13, 3.5), (14, 0.1, None)), 3.9)

    def test_one_edge_fills_the_gaps_of_another(self):
        self.assertAlmostEqual(self.watch((10, None), (11, 0.2, 0.9), (12, 0.1, 0.6)), 0.7)

    def test_what_was_before_the_first_status_is_no_gap(self):
        self.assertAlmostEqual(self.watch((10, 8), (10.5, 0.25)), 0.25)

    def test_who_answers_no_more_shows_no_exchange(self):
        with mock.patch.object(cases_churn, "time", mock.Mock(monotonic=mock.Mock(side_effect=(0, 3)))):
            self.assertEqual(self.watch((10, 0.5), None), 3)


class SerfBacks(unittest.TestCase):
    def test_a_way_back_ends_when_it_is_heard_of_and_not_when_it_is_looked_for(self):
        one, other = (SerfNode(k, "", "", "") for k in (1, 2))
        one.heard = [(10, "Join", "node-2"), (20, "Failed", "node-2"), (30.5, "Join", "node-2")]
        other.heard, other.started = [(10, "Join", "node-1"), (30.25, "Join", "node-1")], 29
        self.assertEqual(cases_serf.serf_back([one, other], 30), 0.5)
        self.assertEqual(cases_serf.serf_back([one, other], 31), 0)

    def test_what_a_process_before_this_one_saw_is_not_seen(self):
        agent = SerfNode(1, "", "", "")
        agent.heard, agent.started = [(10, "Join", "node-2"), (30, "Join", "node-3")], 20
        self.assertEqual(agent.sees(), {"node-3"})


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
    def test_a_lab_that_cannot_be_leaves_no_folder(self):
        with mock.patch.object(lab_module.Network, "__enter__", side_effect=NoLab("no root")), mock.patch.object(lab_module.tempfile, "mkdtemp") as made:
            with self.assertRaises(NoLab), Lab(self.folder, 1, 2):
                pass
        made.assert_not_called()

    def test_a_node_that_does_not_answer_is_no_figure(self):
        lab, node = Lab(self.folder, 1, 2), mock.Mock(number=3)
        node.status.side_effect = [None, {"traffic": 1}]
        self.assertEqual(lab.told_by(node), {"traffic": 1})
        node.status.side_effect = None
        node.status.return_value = None
        with self.assertRaisesRegex(Failure, "node 3 does not answer"):
            lab.told_by(node, 0.1)

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

    def test_a_line_says_the_command_of_its_form(self):
        for words, command in (([], ""), (["--seed", "7"], ""), (["--trials", "3", "--nodes", "8"], " --nodes 8 --trials 3"), (["--short"], " --short"),
                               (["--seconds", "300"], " --seconds 300")):
            self.assertEqual(RUN.command_of("X", RUN.parse(words)), f"tests/net/run X{command}")

    def test_a_good_row_passes(self):
        self.assertTrue(self.line(lambda _: {"a": 1})["pass"])


if __name__ == "__main__":
    unittest.main()
