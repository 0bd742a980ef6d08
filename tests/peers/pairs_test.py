"""Checks how pairs of runs are read, ordered and said, with commands whose figures are known. Nothing is timed, no peer is needed."""

import contextlib
import dataclasses
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

sys.dont_write_bytecode = True
import measured  # noqa: E402  (the way to figures)
import figures  # noqa: E402
import gloo_round  # noqa: E402
import goals  # noqa: E402
import hivemind_round  # noqa: E402
import pairs  # noqa: E402
import torch_ddp  # noqa: E402
from figures import Failed  # noqa: E402

RUN = pathlib.Path(__file__).with_name("run")

TIME = pairs.Figure("X1", "a pass", "ms", "ms", "pass.ms", bar=2, goal=3)
RATE = pairs.Figure("X1.rate", "the same", "img/s", "rate", "rate", more_is_better=True)


def no_limit(_seconds):
    pass


def parent_of(number):
    try:
        return int(pathlib.Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    except OSError:
        return None


class Pairs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def command(self, side, reports):
        """A command that prints these reports one after the other, and writes down that it ran and what it was told."""
        for number, report in enumerate(reports, start=1):
            (self.folder / f"{side}.{number}").write_text(json.dumps(report), encoding="utf-8")
        turn = f'cd {shlex.quote(str(self.folder))}; printf %s "$1$TOLD" >> turns; cat "$1.$(tr -cd "$1" < turns | wc -c)"'
        return shlex.join(["sh", "-c", turn, "turn", side])

    def run_pairs(self, ours, peers, may_go_on=no_limit):
        comparison = pairs.Comparison("ours", "theirs", (TIME, RATE))
        commands = (self.command("o", ours), self.command("p", peers))
        reports, loads = pairs.run_pairs(commands, ({"TOLD": "?"}, {"TOLD": "!"}), len(ours), may_go_on)
        return list(pairs.lines_of(comparison, ("ours", "theirs"), reports, loads))

    def test_a_ratio_is_the_median_of_pairs_and_above_one_where_ours_is_better(self):
        ours = [{"ms": ms, "rate": 8, "version": "1"} for ms in (10, 20, 40)]
        peers = [{"pass": {"ms": {"median": ms, "max": 999}}, "rate": 2, "peer": "a peer", "peer_version": "2"} for ms in (20, 30, 160)]

        time, rate = self.run_pairs(ours, peers)

        self.assertEqual([time[name] for name in ("id", "ours", "peer", "ratio", "min", "max", "bar", "goal")], ["X1", 20, 30, 2, 1.5, 4, 2, 3])
        self.assertEqual([rate[name] for name in ("id", "ours", "peer", "ratio", "min", "max", "bar", "goal")], ["X1.rate", 8, 2, 4, 4, 4, None, None])
        self.assertEqual((time["pairs"], time["version"], time["peer_name"], time["peer_version"]), (3, "1", "a peer", "2"))
        self.assertGreaterEqual(time["others_cores"], 0)
        self.assertEqual((self.folder / "turns").read_text(), "o?p!o?p!o?p!")

    def line(self, ours, peer, **limit):
        reports = [[{"ms": ms, "step": 5} for ms in ours], [{"pass": {"ms": ms}} for ms in peer]]
        return pairs.line_of(dataclasses.replace(TIME, **limit), reports)

    def test_a_limit_is_for_ours_alone_or_for_what_it_has_more(self):
        self.assertNotIn("limit", self.line((1, 2, 9), (4, 4, 4)))
        for limit, over in ((2, False), (1.9, True)):
            self.assertEqual(self.line((1, 2, 9), (4, 4, 4), limit=limit)["over_limit"], over)
            self.assertEqual(self.line((4, 5, 6), (3, 3, 3), limit=limit, of_added=True)["over_limit"], over)
            self.assertFalse(self.line((1, 2, 9), (4, 4, 4), limit=limit, more_is_better=True)["over_limit"])
        self.assertTrue(self.line((1, 2, 9), (4, 4, 4), limit=2.1, more_is_better=True)["over_limit"])

    def test_a_limit_may_be_another_figure_of_ours(self):
        line = self.line((1, 6, 9), (4, 4, 4), limit="step")
        self.assertEqual((line["limit"], line["over_limit"], line["limit_text"]), (5, True, "<= 5 ms"))
        self.assertFalse(self.line((1, 5, 9), (4, 4, 4), limit="step")["over_limit"])
        with self.assertRaisesRegex(Failed, "ours has no figure stop"):
            self.line((1,), (4,), limit="stop")

    def test_the_first_pair_tells_whether_there_is_time_for_the_others(self):
        asked = []

        def refuse(seconds):
            asked.append(seconds)
            raise Failed("no time")

        with self.assertRaisesRegex(Failed, "no time"):
            self.run_pairs([{"ms": 1, "rate": 1}] * 4, [{"pass": {"ms": 1}, "rate": 1}] * 4, refuse)
        self.assertEqual((self.folder / "turns").read_text(), "o?p!")
        self.assertEqual(len(asked), 1)

    def test_what_cannot_be_compared_is_said(self):
        with self.assertRaisesRegex(Failed, "the peer has no figure pass.ms; it has rate"):
            self.run_pairs([{"ms": 1, "rate": 1}], [{"rate": 1}])
        (self.folder / "turns").unlink()
        with self.assertRaisesRegex(Failed, "X1: no ratio of figures that are not above zero"):
            self.run_pairs([{"ms": 0, "rate": 1}], [{"pass": {"ms": 1}, "rate": 1}])

    def test_load_by_others_leaves_out_what_the_pair_itself_used(self):
        others = pairs.Others()
        others.begin = (100.0, 10.0)
        others.reading = lambda: (106.0, 14.0)
        self.assertEqual(others.cores(), 1.5)
        before = pairs.own_seconds()
        subprocess.run([sys.executable, "-c", "sum(range(1_000_000))"], check=True)
        self.assertGreater(pairs.own_seconds(), before)


class Table(unittest.TestCase):
    COMPARISONS = tuple(pairs.Comparison("", "", (dataclasses.replace(TIME, id=name),)) for name in ("X1", "X2", "X10", "X3"))
    LINE = {"id": "X2", "what": "a pass", "unit": "ms", "ours": 2, "peer": 3, "ratio": 1.5, "min": 1.2, "max": 1.61, "bar": 2, "goal": None, "others_cores": 0.04,
            "pairs": 5, "machine": {"cpu": "a processor", "cores": 2}, "date": "2026-01-02", "version": "0.1", "peer_name": "PyTorch", "peer_version": "2.11"}

    def rows(self, *lines):
        table = pairs.table_of(lines, self.COMPARISONS)
        return table[table.index("| --- | --- | --- | --- | --- | --- | --- | --- |") + 1:]

    def test_a_table_says_where_and_when(self):
        self.assertEqual(pairs.table_of([self.LINE, {**self.LINE, "id": "X3", "pairs": 9}], self.COMPARISONS)[0],
                         "- 5 pairs and 9 pairs, a processor with 2 cores, 2026-01-02, starling 0.1, PyTorch 2.11")

    def test_a_figure_below_its_bar_is_in_bold(self):
        self.assertEqual(self.rows(self.LINE), ["| X2 | a pass | 2 ms | 3 ms | **1.5** (1.2 to 1.61) | 2 | - | 0.0 |"])
        self.assertEqual(self.rows({**self.LINE, "bar": 1.5}), ["| X2 | a pass | 2 ms | 3 ms | 1.5 (1.2 to 1.61) | 1.5 | - | 0.0 |"])

    def test_a_figure_over_its_limit_is_in_bold(self):
        over = {**self.LINE, "limit": 1, "over_limit": True, "limit_text": "<= 1 ms"}
        self.assertEqual(self.rows({**over, "bar": None}), ["| X2 | a pass | **2 ms** | 3 ms | 1.5 (1.2 to 1.61) | <= 1 ms | - | 0.0 |"])
        self.assertEqual(self.rows({**over, "bar": 1, "over_limit": False}), ["| X2 | a pass | 2 ms | 3 ms | 1.5 (1.2 to 1.61) | 1; <= 1 ms | - | 0.0 |"])

    def test_lines_are_in_the_order_of_the_comparisons_and_the_later_of_two_counts(self):
        rows = self.rows({**self.LINE, "id": "X10"}, {**self.LINE, "ours": 7}, self.LINE)
        self.assertEqual([row.split(" | ")[0] for row in rows], ["| X2", "| X10"])
        self.assertIn("| 2 ms |", rows[0])

    def test_what_was_skipped_says_why_and_has_no_figure(self):
        comparison = pairs.Comparison("ours", "theirs", (TIME,))
        self.assertEqual(self.rows(*pairs.skipped(comparison, "not installed: torch")), ["| X1 | a pass | - | - | not measured: not installed: torch | - | - | - |"])


class Goals(unittest.TestCase):
    def test_every_figure_has_a_name_of_its_own(self):
        names = [figure.id for comparison in goals.COMPARISONS for figure in comparison.figures]
        self.assertEqual(len(names), len(set(names)))
        for figure in (figure for comparison in goals.COMPARISONS for figure in comparison.figures if figure.bar and figure.goal):
            self.assertLess(figure.bar, figure.goal, figure.id)

    def test_what_is_best_for_torch_is_there_on_either_side(self):
        sides = [(command, dict(environment), figure.id) for comparison in goals.COMPARISONS for figure in comparison.figures
                 for command, environment in ((comparison.ours, comparison.our_environment), (comparison.peer, comparison.environment))]
        keeps_pages = {"LD_PRELOAD": "libtcmalloc_minimal.so.4"}
        huge_pages = {**keeps_pages, "THP_MEM_ALLOC_ENABLE": "1"}
        best = {"torch_ddp.py": keeps_pages, "torch_step.py": keeps_pages, "torch_data.py": keeps_pages, "hivemind_round.py": keeps_pages,
                "gloo_round.py": huge_pages, "torch_codec.py": huge_pages, "torch_dense.py": huge_pages, "torch_optim.py": huge_pages,
                # The import itself, and figures that are no time.
                "torch_import.py": {}, "torch_fashion.py": {}}
        peers = [(program, command, environment, name) for command, environment, name in sides
                 for program in re.findall(r"{peers}/((?:torch|gloo|hivemind)_\w+[.]py)", command)]
        self.assertGreater(len([name for *_, name in peers if name == "C11.2.ddp"]), 1)
        self.assertEqual({program for program, *_ in peers}, set(best))
        for program, command, environment, name in peers:
            as_it_comes = "--loop plain" in command or "--device cuda" in command
            self.assertEqual(environment, {} if as_it_comes else best[program], name)
        for command, environment, name in sides:
            if command.startswith("{starling}"):
                self.assertEqual(environment, {}, name)

    def test_a_step_beside_a_slow_node_and_without_one_are_of_the_same_nodes(self):
        slow = [comparison for comparison in goals.COMPARISONS if comparison.ours.endswith("--fault slow")]
        self.assertEqual([comparison.figures[0].id for comparison in slow], ["C12", "C12.ddp", "C12.4", "C12.4.ddp"])
        for comparison in slow:
            self.assertEqual((comparison.figures[0].ours, comparison.figures[0].peer), ("others_step_ms", "others_step_ms"))

    def test_who_is_compared_on_a_line_is_at_both_its_ends(self):
        on_lines = [comparison for comparison in goals.COMPARISONS if comparison.megabits]
        self.assertEqual([comparison.figures[0].id for comparison in on_lines], ["C7.1g", "C7.100m", "C14", "C14.ddp"])
        for comparison in on_lines:
            for command in (comparison.ours, comparison.peer):
                peer = command.startswith("{python}")
                self.assertEqual(peer, "--namespaces {namespaces}" in command, command)
                self.assertEqual(not peer, command.startswith("ip netns exec {namespace} {starling}"), command)

    def test_nodes_that_are_compared_compute_in_a_precision_that_is_said(self):
        chosen = [comparison.figures[0].id for comparison in goals.COMPARISONS if "bench swarm" in comparison.ours and "--precision" not in comparison.ours]
        self.assertEqual(chosen, ["C21"])

    def test_commands_name_programs_that_are_there(self):
        places = dict.fromkeys(("starling", "python", "namespace", "namespaces", "address", "interface", "folder"), "place")
        for comparison in goals.COMPARISONS:
            for command in (comparison.ours, comparison.peer, *comparison.prepare):
                words = command.format(peers=RUN.parent, **places).split()
                programs = [word for word in words if word.endswith(".py")]
                self.assertTrue(programs or words[0] == "place" or "place bench " in " ".join(words), command)
                for program in programs:
                    self.assertTrue(pathlib.Path(program).is_file(), program)

    def test_a_pattern_takes_those_that_it_means(self):
        first = pairs.Comparison("", "", (TIME, RATE))
        other = pairs.Comparison("", "", (dataclasses.replace(TIME, id="X1.more"),))
        self.assertEqual(pairs.selected((first, other), []), [first, other])
        self.assertEqual(pairs.selected((first, other), ["X1"]), [first])
        self.assertEqual(pairs.selected((first, other), ["X1*"]), [first, other])
        self.assertEqual(pairs.selected((first, other), ["X1.rate", "X1.more"]), [first, other])
        with self.assertRaisesRegex(Failed, "no comparison X2; there are X1, X1.rate, X1.more"):
            pairs.selected((first, other), ["X2"])


class Steps(unittest.TestCase):
    def window(self, nodes, *step_s):
        """A window of four steps of the first ones of so many nodes: each takes so many seconds for a step."""
        watched = [types.SimpleNamespace(steps=[(0, 0)]) for _ in step_s]

        def train(_nodes, counts):
            for node, seconds, count in zip(watched, step_s, counts):
                node.steps += [(seconds * number, 0.1 * number) for number in range(1, count)]

        with mock.patch.object(torch_ddp, "wait_for_steps", train):
            return torch_ddp.window_of(watched, types.SimpleNamespace(nodes=nodes, steps=4, batch=8))

    def test_others_are_all_but_the_last_node(self):
        window = self.window(3, 0.5, 0.25, 2)
        self.assertEqual((window["step_ms"], window["others_step_ms"], window["images_per_s"]), (2000, 500, 16 + 32 + 4))

    def test_a_window_without_the_last_node_has_the_same_others(self):
        window = self.window(3, 0.5, 0.25)
        self.assertEqual((window["step_ms"], window["others_step_ms"]), (500, 500))

    def test_a_node_alone_has_no_others(self):
        self.assertNotIn("others_step_ms", self.window(1, 0.5))

    def test_a_process_that_ends_while_others_wait_for_it_ends_them_all(self):
        waits = types.SimpleNamespace(steps=[], process=types.SimpleNamespace(poll=lambda: None))
        ended = types.SimpleNamespace(steps=[], process=types.SimpleNamespace(poll=lambda: 3, returncode=3))
        with self.assertRaisesRegex(SystemExit, "a process ended with 3"):
            torch_ddp.wait_for_steps([waits, ended], [1, 1])


    def test_a_pause_is_the_longest_time_in_which_the_thread_that_trains_has_not_run(self):
        ran, now = iter("1223333"), iter((0, 0, 1, 2, 3, 4, 5, 9, 10))
        nodes = [types.SimpleNamespace(process=mock.Mock(pid=number)) for number in (1, 2)]
        with mock.patch.object(torch_ddp, "ran_so_far", lambda _: next(ran)), mock.patch.object(
                torch_ddp, "time", mock.Mock(monotonic=lambda: next(now), sleep=no_limit)):
            self.assertEqual(torch_ddp.longest_pause_ms(nodes, "stop"), 1e3 * (9 - 3))
        self.assertEqual([call.args for call in nodes[1].process.send_signal.mock_calls], [(signal.SIGSTOP,), (signal.SIGCONT,)])
        self.assertEqual(nodes[0].process.mock_calls, [])

    def test_a_thread_that_has_ended_runs_no_more(self):
        with subprocess.Popen(["true"]) as process:
            pass
        self.assertIsNone(torch_ddp.ran_so_far(process.pid))
        self.assertNotEqual(torch_ddp.ran_so_far(os.getpid()), torch_ddp.ran_so_far(1))


class Children(unittest.TestCase):
    def test_a_neighbour_that_keeps_a_core_busy_ends_with_its_command(self):
        beside = [sys.executable, str(RUN.with_name("beside_busy.py")), "sh", "-c", "echo here; exec sleep 1000"]
        with subprocess.Popen(beside, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
            self.addCleanup(figures.end_session, process)
            self.assertEqual(process.stdout.readline(), "here\n")
            self.assertEqual(len(figures.living(process.pid)), 3)
            process.terminate()
            self.assertEqual(process.wait(60), 128 + signal.SIGTERM)
        self.assertEqual(figures.living(process.pid), [])
        done = subprocess.run([*beside[:3], "-c", "echo there; exit 5"], stdout=subprocess.PIPE, text=True, check=False, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (5, "there\n"))

    def test_one_that_starts_while_this_is_told_to_end_ends_too(self):
        for start in (lambda: figures.run("sleep 1000"), lambda: gloo_round.reports_of([["sleep", "1000"]])):
            started = []

            def start_and_tell(command, real=subprocess.Popen, started=started, **how):
                started.append(real(command, **how))
                os.kill(os.getpid(), signal.SIGTERM)
                return started[0]

            figures.exit_when_told_to()
            with mock.patch.object(subprocess, "Popen", start_and_tell), self.assertRaises(SystemExit):
                start()
            self.assertIsNotNone(started[0].returncode)

    def test_who_has_lost_its_parent_is_ended_with_a_round_and_waited_for(self):
        hivemind_round.adopt()
        with subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!"], stdout=subprocess.PIPE, text=True) as peer:
            left = int(peer.stdout.readline())
        self.assertEqual(parent_of(left), os.getpid())
        hivemind_round.end()
        self.assertIsNone(parent_of(left))
        self.assertEqual([number for number in hivemind_round.processes_below({os.getpid()}) if number != os.getpid()], [])

    def test_what_the_processes_of_a_round_print_is_read_when_all_have_ended(self):
        self.assertEqual(gloo_round.reports_of([["echo", '{"rows": 1}'], ["echo", '{"rows": 2}']]), [{"rows": 1}, {"rows": 2}])

    def test_one_that_dies_takes_those_along_that_wait_for_it(self):
        with mock.patch.object(subprocess, "Popen", wraps=subprocess.Popen) as started, self.assertRaisesRegex(Failed, r"ended with \[None, 3\]"):
            gloo_round.reports_of([["sleep", "1000"], ["sh", "-c", "exit 3"]])
        self.assertEqual(started.call_count, 2)
        me = os.getsid(0)
        self.assertEqual([number for number in figures.living(me) if parent_of(number) == os.getpid()], [])


class Learned(unittest.TestCase):
    CURVE = [(100, 0.8, 0.7), (200, 0.4, 0.8), (300, 0.5, 0.85), (400, 0.2, 0.9)]

    def test_a_mark_is_reached_on_the_line_between_two_evaluations(self):
        self.assertEqual(measured.reached(self.CURVE, 0.6), 150)
        self.assertEqual(measured.reached(self.CURVE, 0.4), 200)
        self.assertEqual(measured.reached(self.CURVE, 0.9), 100)
        self.assertIsNone(measured.reached(self.CURVE, 0.1))

    def test_figures_are_means_over_the_nodes_and_bytes_those_until_the_mark(self):
        figures = measured.learned([self.CURVE, [(300, 0.3, 0.8)]], 10, 0.6)
        self.assertEqual(figures["steps_to_mark"], (150 + 300) / 2)
        self.assertEqual(figures["bytes_to_mark"], 2250)
        self.assertEqual(figures["steps"], 350)
        self.assertAlmostEqual(figures["accuracy"], 85)

    def test_who_never_reached_the_mark_has_no_figures(self):
        with self.assertRaisesRegex(SystemExit, "a loss of 0.1 was not reached"):
            measured.learned([self.CURVE], 10, 0.1)


class Run(unittest.TestCase):
    def run_it(self, *words, **environment):
        return subprocess.run([sys.executable, str(RUN), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                              env={**os.environ, **environment})

    @staticmethod
    def module():
        loader = importlib.machinery.SourceFileLoader("peers_run", str(RUN))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
        loader.exec_module(module)
        return module

    def test_what_both_sides_read_is_made_once_in_a_folder_that_goes_afterwards(self):
        module = self.module()
        with tempfile.TemporaryDirectory() as own:
            script = pathlib.Path(own) / "make"
            script.write_text(f'''echo "$1" >> {own}/folders; echo '{{"ms": 1, "pass": {{"ms": 4}}}}' | tee "$1"/made''', encoding="utf-8")
            reads = "cat {folder}/made"
            comparison = pairs.Comparison(reads, reads, (TIME,), needs=(), prepare=(f"sh {script} {{folder}}",))
            (line,) = module.carry_out(comparison, 2, no_limit)
            (folder,) = (pathlib.Path(own) / "folders").read_text(encoding="utf-8").split()
        self.assertEqual((line["ratio"], line["pairs"], line["ours_command"]), (4, 2, reads))
        self.assertFalse(pathlib.Path(folder).exists())

    def test_a_peer_that_is_not_installed_is_a_line_with_the_reason_and_no_error(self):
        done = self.run_it("C3", STARLING_PEERS_VENV="/nowhere", STARLING_BINARY=sys.executable)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line["id"] for line in lines], ["C3", "C3.fp32"])
        for line in lines:
            self.assertIn("no Python at /nowhere/bin/python", line["skipped"])
            self.assertNotIn("ratio", line)

    def lines_without_a_line(self, path):
        """What `run` says of a comparison on a slow line where programs are looked for there only, and its exit status."""
        module = self.module()
        module.COMPARISONS = (pairs.Comparison("true", "true", (TIME, RATE), needs=(), megabits=100),)
        said = io.StringIO()
        with mock.patch.dict(os.environ, {"PATH": str(path), "STARLING_BINARY": sys.executable}), contextlib.redirect_stdout(said):
            status = module.main(["X1"])
        return [json.loads(line) for line in said.getvalue().splitlines()], status

    def test_where_there_can_be_no_slow_line_the_reason_is_said_and_it_is_no_error(self):
        with tempfile.TemporaryDirectory() as folder:
            missing, status = self.lines_without_a_line(folder)
            self.assertEqual((status, [line["skipped"] for line in missing]), (0, ["no slow line: ip: No such file or directory"] * 2))
            ip = pathlib.Path(folder, "ip")
            ip.write_text("#!/bin/sh\necho 'mount --make-shared /run/netns failed: Operation not permitted'\nexit 1\n", encoding="utf-8")
            ip.chmod(0o755)
            refused, status = self.lines_without_a_line(folder)
            self.assertEqual((status, [line["id"] for line in refused]), (0, ["X1", "X1.rate"]))
            self.assertIn("Operation not permitted", refused[0]["skipped"])

    def test_a_figure_that_is_missing_does_not_take_the_other_comparisons_along(self):
        module = self.module()
        prints = "echo '{{\"ms\": 1, \"pass\": {{\"ms\": 2}}}}'"
        module.COMPARISONS = tuple(pairs.Comparison(prints, prints, (figure,), needs=()) for figure in (RATE, TIME))
        said, complained = io.StringIO(), io.StringIO()
        with mock.patch.dict(os.environ, {"STARLING_BINARY": sys.executable}), contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
            status = module.main(["--pairs", "1"])
        self.assertEqual((status, json.loads(said.getvalue())["id"]), (1, "X1"))
        self.assertIn("ours has no figure rate", complained.getvalue())

    def test_what_takes_longer_than_there_is_time_is_not_begun_unless_it_is_named(self):
        module = self.module()
        prints = "echo '{{\"ms\": 1, \"pass\": {{\"ms\": 2}}}}'"
        module.COMPARISONS = (pairs.Comparison(prints, prints, (TIME,), needs=(), pair_s=module.BUDGET_S + 1),)
        for words, skips in (((), True), (("X1",), False)):
            said = io.StringIO()
            with mock.patch.dict(os.environ, {"STARLING_BINARY": sys.executable}), contextlib.redirect_stdout(said):
                self.assertEqual(module.main([*words, "--pairs", "1"]), 0)
            self.assertEqual("skipped" in json.loads(said.getvalue()), skips)

    def test_a_goal_of_a_gpu_is_a_line_with_the_reason_where_there_is_none(self):
        done = self.run_it("G6", STARLING_BINARY=sys.executable, PATH="/nowhere")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([(line["id"], line["skipped"]) for line in map(json.loads, done.stdout.splitlines())], [("G6", "no NVIDIA GPU here")])

    def test_wrong_words_are_refused(self):
        self.assertEqual(self.run_it("C999").returncode, 2)
        self.assertEqual(self.run_it("--pairs", "0").returncode, 2)
        nothing = self.run_it("C3", STARLING_BINARY="/nowhere")
        self.assertEqual(nothing.returncode, 1)
        self.assertIn("no program at /nowhere", nothing.stderr)

    def test_the_tables_of_a_page_are_seen_in_one(self):
        head = "| id | what | ours | peer | ratio (range) | bar | goal | others |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n"
        page = (f"# Page\n\n## Old\n\n{head}| X1 | a pass | 1 ms | 1 ms | **1** (1 to 3) | 1.5 | 4 | 0.0 |\n| X1.rate | the same | 1 | 1 | 1 (1 to 1) | - | - | 0.0 |\n"
                f"\nWords | with a bar.\n\n## Empty\n\n## New\n\n{head}| X1 | a pass | 1 | 3 | 3 (2 to 4) | 2 | 3 | 0.0 |\n"
                "| X2 | b | 1 | 2 | 2 (2 to 2) | 2 | 3 | 0.0 |\n")
        comparison = pairs.Comparison("ours", "theirs", (TIME, RATE, dataclasses.replace(TIME, id="X2"), dataclasses.replace(TIME, id="X3")))

        self.assertEqual(pairs.look_of(page, [comparison]), ["| id | Old | New | bar | goal |", "| --- | --- | --- | --- | --- |", "| X1 | **1** | 3 | 2 | 3 |",
                                                             "| X2 |  | 2 | 2 | 3 |"])
        limited = dataclasses.replace(TIME, id="X2", bar=None, goal=None, limit=0.5)
        page = page.replace("| X2 | b | 1 |", "| X2 | b | **1 ms** |")
        self.assertEqual(pairs.look_of(page, [pairs.Comparison("", "", (limited,))])[2:], ["| X2 |  | **1 ms** | <= 0.5 ms | - |"])
        self.assertEqual(pairs.look_of(page, [pairs.Comparison("", "", (dataclasses.replace(limited, bar=3, of_added=True),))])[2:],
                         ["| X2 |  | 2; **1 ms** against 2 | 3; <= 0.5 ms more | - |"])
        with self.assertRaises(Failed):
            pairs.look_of("# A page without tables", [comparison])


if __name__ == "__main__":
    unittest.main()
