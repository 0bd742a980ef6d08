#!/usr/bin/env python3
"""Fashion-MNIST by `starling demo`: steps and bytes until the validation loss is at a mark, and where it ends. The figures of torch_fashion.py.

Every node evaluates its neighbourhood mean, its estimate of what the final consensus would make, because DDP's one model is to be compared with what the
swarm would deliver; `--set eval.of=replica` has it evaluate its own replica instead. The last evaluation is of what the final consensus did make. The steps
are the mean over the nodes of what each needed. Bytes are those of session records, everything counted,
the final consensus included, a node and step.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import measured
from figures import exit_when_told_to

UNITS = {"B": 1, "kB": 1e3, "MB": 1e6}


def curve_of(folder):
    """(step, loss, accuracy) of a node's evaluations, in their order."""
    curve = []
    with open(folder / "events.jsonl", encoding="utf-8") as lines:
        for line in lines:
            event = json.loads(line)
            if event["event"] == "eval":
                curve.append((event["step"], event["loss"], event["accuracy_ratio"]))
    return curve


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("starling")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--every", default="1s", help="between evaluations of a node")
    parser.add_argument("--share", default="0.5", help="of a node's time that evaluations take: with less of it they are too far apart")
    parser.add_argument("--mark", type=float, default=0.25, help="the validation loss to be reached")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE, for the nodes")
    options = parser.parse_args()
    exit_when_told_to()
    # When this is told to end, `run` kills the demo, and its nodes die with it: one may still be writing.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [options.starling, "demo", "--nodes", str(options.nodes), "--dir", folder + "/swarm",
                   "--set", f"eval.every={options.every}", "--set", f"eval.share={options.share}"]
        for setting in options.set:
            command += ["--set", setting]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        found = re.search(r"each node sent ([\d.]+) (B|kB|MB) a step", done.stdout + done.stderr)
        if done.returncode != 0 or not found:
            sys.exit(f"starling_fashion: {' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        sent = float(found[1]) * UNITS[found[2]]
        curves = [curve_of(pathlib.Path(folder, "swarm", f"node-{number + 1}")) for number in range(options.nodes)]
    version = json.loads(subprocess.run([options.starling, "version", "--json"], stdout=subprocess.PIPE, check=True).stdout)["version"]
    measured.print_report("starling demo", version, options, {"version": version, **measured.learned(curves, sent, options.mark)})


if __name__ == "__main__":
    main()
