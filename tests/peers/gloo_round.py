#!/usr/bin/env python3
"""All-reduce of one vector of ResNet-50's size between processes by torch.distributed over gloo: milliseconds a round, CPU of each process.

Every process draws fresh numbers and passes a barrier before a round, outside the clock; a round lasts until the slowest process has its sum. In a ring
of n each process sends the vector 2 (n - 1) / n times: `bytes_sent` says that, headers not counted.
`--namespaces A B` starts each process in a network namespace of its own; --address is then what B can dial A at, on --interface.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time

import measured
from figures import Failed, spread

WARM_UPS = 2


def take_part(options):
    """One of the processes: prints its rounds as rows of (wall ms, CPU ms)."""
    os.environ["GLOO_SOCKET_IFNAME"] = options.interface
    import torch
    import torch.distributed as dist
    torch.set_num_threads(options.threads)
    dist.init_process_group("gloo", init_method=f"tcp://{options.address}:{options.port}", rank=options.rank, world_size=options.processes)
    x = torch.empty(measured.RESNET50_PARAMETERS)
    rounds = measured.Repeats()
    for repeat in range(-WARM_UPS, options.repeats):
        x.normal_()
        dist.barrier()
        (rounds if repeat >= 0 else measured.Repeats()).time(lambda: dist.all_reduce(x))
    print(json.dumps({"version": torch.__version__, "rows": list(zip(rounds.wall_ms, rounds.cpu_ms))}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def reports_of(commands):
    """What each of these prints at its end. One that ends otherwise than well ends all: the others would wait for it."""
    with contextlib.ExitStack() as stack:
        # Files and not pipes: nobody reads while all are waited for.
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in commands]
        processes = stack.enter_context(measured.children())
        for command, output in zip(commands, outputs):
            processes.start(command, stdout=output)
        while (statuses := [process.poll() for process in processes]) != [0] * len(processes):
            if any(statuses):
                raise Failed(f"the processes ended with {statuses}, None being one that was still running")
            time.sleep(0.05)
        for output in outputs:
            output.seek(0)
        return [json.load(output) for output in outputs]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
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
    where = measured.places_of(parser, options.namespaces, options.processes)
    try:
        reports = reports_of([[*prefix, *again, "--rank", str(rank)] for rank, prefix in enumerate(where)])
    except Failed as failure:
        return f"gloo_round: {failure}"
    rounds = list(zip(*(report["rows"] for report in reports)))
    n = options.processes
    measured.print_report("torch.distributed gloo", reports[0]["version"], options, {
        "round_ms": spread([max(wall for wall, _ in each) for each in rounds]),
        "cpu_ms": spread([sum(cpu for _, cpu in each) / n for each in rounds]),
        "bytes_sent": round(2 * (n - 1) / n * 4 * measured.RESNET50_PARAMETERS)})


if __name__ == "__main__":
    sys.exit(main())
