#!/usr/bin/env python3
"""Runs a command beside a process that never waits, as a neighbour on the same machine may be: what the command prints and how it ends is its own.

usage: beside_busy.py COMMAND [WORD...]
"""

import os
import sys

import measured

# Ends by itself when its parent does, however that ended.
BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(100_000))"


def main(command):
    if not command:
        sys.exit(__doc__.strip())
    with measured.children() as processes:
        processes.start([sys.executable, "-c", BUSY, str(os.getpid())])
        return processes.start(command).wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
