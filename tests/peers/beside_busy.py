#!/usr/bin/env python3
"""Runs a command beside a process that never waits, as a neighbour on the same machine may be: what the command prints and how it ends is its own.

usage: beside_busy.py COMMAND [WORD...]
"""

import subprocess
import sys


def main(command):
    if not command:
        sys.exit(__doc__.strip())
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as neighbour:
        try:
            return subprocess.run(command, check=False).returncode
        finally:
            neighbour.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
