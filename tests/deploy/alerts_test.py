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
    "StarlingMemoryShort": {"starling_host_memory_available_bytes": f"1e8x{MINUTES}"},
}
TROUBLED_TOO = [
    ("StarlingStandsStill", {"starling_uptime_seconds": f"60x{MINUTES}"}),
    ("StarlingCheckpointOld", {"starling_checkpoint_last_success_timestamp_seconds": f"_x{MINUTES}"}),
]


def series(name, values):
    name, _, labels = name.partition("{")
    labels = ",".join(filter(None, [labels.rstrip("}"), 'job="starling"', 'instance="node:7780"']))
    return {"series": f"{name}{{{labels}}}", "values": values}


def rings(alert, said):
    """What promtool shall find with a node that says this: that it rings, and nothing else; nothing for no alert."""
    samples = [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if alert else []
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    return {
        "name": alert or "calm",
        "interval": "1m",
        "input_series": [series(*one) for one in (CALM | said).items()],
        "promql_expr_test": [{"expr": firing, "eval_time": "110m", "exp_samples": samples}],
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

    @unittest.skipUnless(PROMTOOL, "no promtool; deploy/setup --tests brings it")
    def test_each_trouble_rings_its_own_alert_and_a_calm_node_none(self):
        cases = [rings("", {}), *(rings(*case) for case in [*TROUBLED.items(), *TROUBLED_TOO])]
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "cases.yaml"
            file.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": cases}), encoding="utf-8")
            self.assertEqual(complaints("test", "rules", str(file)), "")


if __name__ == "__main__":
    unittest.main()
