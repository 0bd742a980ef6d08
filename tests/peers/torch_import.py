#!/usr/bin/env python3
"""Milliseconds that a fresh Python needs for `import torch`, from its start to its end."""

import argparse
import subprocess
import sys
import time

import measured
from figures import spread


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    walls = []
    for _ in range(options.repeats):
        begin = time.monotonic()
        printed = subprocess.run([sys.executable, "-c", "import torch; print(torch.__version__)"], stdout=subprocess.PIPE, text=True, check=True).stdout
        walls.append(1e3 * (time.monotonic() - begin))
    measured.print_report("import torch", printed.strip(), options, {"import_ms": spread(walls)})


if __name__ == "__main__":
    sys.exit(main())
