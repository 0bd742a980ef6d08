#!/usr/bin/env python3
"""All-reduce of one vector of ResNet-50's size between two processes by torch.distributed over gloo: milliseconds a round, CPU of each process.

Every process draws fresh numbers and passes a barrier before a round, outside the clock; a round lasts until the slower process has its sum. In a ring
of two each process sends the vector once: `bytes_sent` says that, headers not counted.
`--namespaces A B` starts each process in a network namespace of its own; --address is then what B can dial A at, on --interface.
"""

import argparse
import json
import os
import subprocess
import sys

import measured
from figures import spread

WARM_UPS = 2


def take_part(options):
    """One of the two processes: prints its rounds as rows of (wall ms, CPU ms)."""
    os.environ["GLOO_SOCKET_IFNAME"] = options.interface
    import torch
    import torch.distributed as dist
    torch.set_num_threads(options.threads)
    dist.init_process_group("gloo", init_method=f"tcp://{options.address}:{options.port}", rank=options.rank, world_size=2)
    x = torch.empty(measured.RESNET50_PARAMETERS)
    rounds = measured.Repeats()
    for repeat in range(-WARM_UPS, options.repeats):
        x.normal_()
        dist.barrier()
        (rounds if repeat >= 0 else measured.Repeats()).time(lambda: dist.all_reduce(x))
    print(json.dumps({"version": torch.__version__, "rows": list(zip(rounds.wall_ms, rounds.cpu_ms))}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--namespaces", nargs=2, metavar=("A", "B"))
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--interface", default="lo")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        return take_part(options)

    again = [sys.executable, *sys.argv, "--port", str(measured.free_port())]
    where = [["ip", "netns", "exec", name] for name in options.namespaces] if options.namespaces else [[], []]
    both = [subprocess.Popen([*prefix, *again, "--rank", str(rank)], stdout=subprocess.PIPE, text=True) for rank, prefix in enumerate(where)]
    printed = [process.communicate()[0] for process in both]
    if any(process.returncode != 0 for process in both):
        return f"gloo_round: the two processes ended with {[process.returncode for process in both]}"
    mine, their = (json.loads(text) for text in printed)
    rounds = list(zip(mine["rows"], their["rows"]))
    measured.print_report("torch.distributed gloo", mine["version"], options, {
        "round_ms": spread([max(a[0], b[0]) for a, b in rounds]),
        "cpu_ms": spread([(a[1] + b[1]) / 2 for a, b in rounds]),
        "bytes_sent": 4 * measured.RESNET50_PARAMETERS})


if __name__ == "__main__":
    sys.exit(main())
