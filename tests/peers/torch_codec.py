#!/usr/bin/env python3
"""Error-feedback top-k written with PyTorch's operators on a vector of ResNet-50's size: milliseconds of one message, and of one exchange.

`encode` is everything from x and r to what goes on the wire: d = x - r, |d|, the k largest of each block of 4,096 or of all, their values.
`exchange` is that and the arithmetic of an answer, `apply`: x += (q' - q) / 2 and r += (q + q') / 2, for an own delta q and one q' of as many values.
x moves before each repeat, outside the clock; buffers are reused wherever an operator takes one.
"""

import argparse

import torch

import measured

BLOCK = 4096


class TopK:
    """Selects among blocks of so many values; one block is the whole vector."""

    def __init__(self, count, block, kept_per_block, device):
        self.block, self.kept = block, kept_per_block
        self.d, self.size = torch.empty(count, device=device), torch.empty(count, device=device)
        self.begin = torch.arange(0, count, block, device=device).unsqueeze(1)

    def encode(self, x, r):
        torch.sub(x, r, out=self.d)
        torch.abs(self.d, out=self.size)
        places = self.size.view(-1, self.block).topk(self.kept, sorted=False).indices
        places = (places + self.begin).view(-1) if len(self.begin) > 1 else places.view(-1)
        return places, self.d[places]


def apply(x, r, own, their):
    for (places, values), sign in ((own, -1), (their, 1)):
        half = values * 0.5
        r.index_add_(0, places, half)
        x.index_add_(0, places, half, alpha=sign)


def kept_energy(codec, values):
    """Energy of the values that were chosen against that of as many that are the largest of all."""
    best = codec.size.topk(values.numel(), sorted=False).values
    return float(values.double().square().sum() / best.double().square().sum())


def measure(blockwise, repeats, device):
    count = -(-measured.RESNET50_PARAMETERS // BLOCK) * BLOCK
    block = BLOCK if blockwise else count
    codec = TopK(count, block, round(block / 100), device)
    x, r = torch.randn(count, device=device), torch.zeros(count, device=device)
    their = TopK(count, block, codec.kept, device).encode(torch.randn(count, device=device), r)
    moves = torch.empty(count, device=device)
    wait = measured.wait_for(device)
    encode, half, whole = measured.Repeats(), measured.Repeats(), measured.Repeats()
    for repeat in range(-1, repeats):
        timed = (encode, half, whole) if repeat >= 0 else (measured.Repeats(), measured.Repeats(), measured.Repeats())
        x += moves.normal_(std=0.3)
        own = timed[0].time(lambda: codec.encode(x, r), wait=wait)
        energy = kept_energy(codec, own[1])
        timed[1].time(lambda: apply(x, r, own, their), wait=wait)
        x += moves.normal_(std=0.3)
        timed[2].time(lambda: apply(x, r, codec.encode(x, r), their), wait=wait)
    return {"encode": encode.figures(), "apply": half.figures(), "exchange": whole.figures(), "kept_energy": energy, "bytes": 8 * own[1].numel()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--select", choices=["block", "all"], default="block", help="1 %% of each block of 4,096, or of the whole vector")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with torch.no_grad():
        figures = measure(options.select == "block", options.repeats, options.device)
    measured.print_report("torch operators", torch.__version__, options, figures)


if __name__ == "__main__":
    main()
