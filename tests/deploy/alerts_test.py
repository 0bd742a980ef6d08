"""Checks deploy/alerts.yaml: Prometheus reads it, a node has every metric in it, a calm node rings nothing and one in trouble everything.

What needs promtool says so where it is missing.
"""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ALERTS = ROOT / "deploy" / "alerts.yaml"
PROMTOOL = shutil.which("promtool", path=ROOT / ".deps" / "bin") or shutil.which("promtool")
MINUTES = 120

# What a node in training says each minute, and what one says with which everything is wrong; "FROM+STEPxTIMES" is promtool's notation.
CALM = {
    "up": f"1x{MINUTES}",
    'starling_phase{phase="training"}': f"1x{MINUTES}",
    'starling_swarm_members{state="alive"}': f"4x{MINUTES}",
    "starling_neighbours": f"3x{MINUTES}",
    "starling_uptime_seconds": f"0+60x{MINUTES}",
    "starling_last_step_age_seconds": f"0.5x{MINUTES}",
    "starling_warnings": f"0x{MINUTES}",
    "starling_checkpoint_failures_total": f"0x{MINUTES}",
    "starling_checkpoint_last_success_timestamp_seconds": f"0+60x{MINUTES}",
    "starling_certificate_expiry_timestamp_seconds": f"1e9x{MINUTES}",
    "starling_host_memory_available_bytes": f"8e9x{MINUTES}",
}
TROUBLED = {
    "StarlingGone": {"up": f"0x{MINUTES}"},
    "StarlingStandsStill": {"starling_last_step_age_seconds": f"0+60x{MINUTES}"},
    "StarlingCheckpointFails": {"starling_checkpoint_failures_total": f"0+1x{MINUTES}"},
    "StarlingCheckpointOld": {"starling_checkpoint_last_success_timestamp_seconds": f"0x{MINUTES}"},
    "StarlingWarns": {"starling_warnings": f"1x{MINUTES}"},
    "StarlingNoNeighbour": {"starling_neighbours": f"0x{MINUTES}"},
    "StarlingIsland": {'starling_swarm_members{state="alive"}': f"0x{MINUTES}"},
    "StarlingCertificateEnds": {"starling_certificate_expiry_timestamp_seconds": f"86400x{MINUTES}"},
    "StarlingJoinsForLong": {'starling_phase{phase="joining"}': f"1x{MINUTES}", 'starling_phase{phase="training"}': f"0x{MINUTES}"},
    "StarlingMemoryShort": {"starling_host_memory_available_bytes": f"1e8x{MINUTES}"},
}
TROUBLED_TOO = [
    ("StarlingStandsStill", {"starling_uptime_seconds": f"60x{MINUTES}"}),
    ("StarlingCheckpointOld", {"starling_checkpoint_last_success_timestamp_seconds": f"_x{MINUTES}"}),
]
# What rings nothing by itself, or not for longer than a start takes: whoever joins or starts again says less, and each of it anew.
CALM_TOO = [
    ("joins for long", {
        'starling_phase{phase="training"}': f"0x{MINUTES}",
        "starling_neighbours": f"0x{MINUTES}",
        "starling_last_step_age_seconds": f"_x{MINUTES}",
        "starling_checkpoint_last_success_timestamp_seconds": f"_x{MINUTES}",
    }),
    ("begins to train after a long join, and its first step takes five minutes", {
        'starling_phase{phase="training"}': "0x99 1x20",
        "starling_neighbours": "0x99 3x20",
        "starling_last_step_age_seconds": "_x100 0+60x5 0.5x14",
        "starling_checkpoint_last_success_timestamp_seconds": "_x110 6600+0x9",
    }),
    ("joins again for forty minutes", {
        'starling_phase{phase="training"}': "1x59 0x39 1x19",
        'starling_phase{phase="joining"}': "0x59 1x39 0x19",
        "starling_neighbours": "3x59 0x39 3x19",
        "starling_last_step_age_seconds": "0.5x59 0+60x39 0+60x1 0.5x17",
    }),
    ("starts again after three minutes, and busy as it is misses a question", {
        "up": "1x105 0x2 1 0 1x9",
        'starling_phase{phase="training"}': "1x105 _x3 0 _ 1x9",
        "starling_neighbours": "3x105 _x3 0 _ 3x9",
        "starling_uptime_seconds": "0+60x105 _x3 0 _ 120+60x9",
        "starling_last_step_age_seconds": "0.5x105 _x5 0+60x1 0.5x7",
        "starling_warnings": "0x105 _x3 0 _ 0x9",
    }),
]


def series(name, values):
    name, _, labels = name.partition("{")
    labels = ",".join(filter(None, [labels.rstrip("}"), 'job="starling"', 'instance="node:7780"']))
    return {"series": f"{name}{{{labels}}}", "values": values}


def rings(alert, said, name="", minutes=(110,)):
    """What promtool shall find with a node that says this: that it rings, and nothing else; nothing for no alert."""
    samples = [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if alert else []
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    return {
        "name": name or alert or "calm",
        "interval": "1m",
        "input_series": [series(*one) for one in (CALM | said).items()],
        "promql_expr_test": [{"expr": firing, "eval_time": f"{minute}m", "exp_samples": samples} for minute in minutes],
    }


def complaints(*words):
    done = subprocess.run([PROMTOOL, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout if done.returncode != 0 else ""


class Alerts(unittest.TestCase):
    def test_every_metric_in_the_rules_is_one_that_a_node_has(self):
        known = re.findall(r'"(\w+)", (?:gauge|counter|histogram)', (ROOT / "node/observe/metrics.cc").read_text(encoding="utf-8"))
        named = re.findall(r"\b(?:starling|process)_\w+", ALERTS.read_text(encoding="utf-8"))
        self.assertGreater(len(named), 10)
        self.assertEqual(set(named) - set(known), set())

    def test_every_alert_says_what_to_do_and_has_its_case_here(self):
        text = ALERTS.read_text(encoding="utf-8")
        names = re.findall(r"- alert: (\w+)", text)
        self.assertEqual(names, list(TROUBLED))
        for part in ("summary:", "description:", "severity:"):
            self.assertEqual(text.count(part), len(names), part)

    @unittest.skipUnless(PROMTOOL, "no promtool; deploy/setup --tests brings it")
    def test_prometheus_reads_the_rules(self):
        self.assertEqual(complaints("check", "rules", str(ALERTS)), "")

    def assert_holds(self, cases):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "cases.yaml"
            file.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": cases}), encoding="utf-8")
            self.assertEqual(complaints("test", "rules", str(file)), "")

    @unittest.skipUnless(PROMTOOL, "no promtool; deploy/setup --tests brings it")
    def test_each_trouble_rings_its_own_alert_and_a_calm_node_none(self):
        cases = [rings("", {}), *(rings(*case) for case in [*TROUBLED.items(), *TROUBLED_TOO])]
        self.assert_holds(cases)

    @unittest.skipUnless(PROMTOOL, "no promtool; deploy/setup --tests brings it")
    def test_who_joins_or_starts_again_rings_nothing_meanwhile(self):
        self.assert_holds([rings("", said, name, range(1, MINUTES - 1)) for name, said in CALM_TOO])

    @unittest.skipUnless(PROMTOOL, "no promtool; deploy/setup --tests brings it")
    def test_a_first_step_that_never_ends_rings_as_any_other(self):
        said = {
            'starling_phase{phase="training"}': "0x99 1x20",
            "starling_last_step_age_seconds": "_x100 0+60x20",
        }
        self.assert_holds([rings("", said, "waits", [105, 110]), rings("StarlingStandsStill", said, "stands still", [113, 118])])


if __name__ == "__main__":
    unittest.main()
