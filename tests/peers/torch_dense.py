#!/usr/bin/env python3
"""Error feedback at eight bits or one bit a value, written with PyTorch's operators, on a vector of ResNet-50's size: milliseconds of one message, and of
one exchange.

`encode` is everything from x and r to what goes on the wire: int8 codes with a scale for each 256, or signs, eight in a byte, with the mean of |d| for each
4,096. `exchange` is that and the arithmetic of an answer: x += (q' - q) / 2 and r += (q + q') / 2, for an own delta q and one q' of the same kind.
x moves before each repeat, outside the clock. `--compile` fuses each half with torch.compile, which is the best that can be had without writing C++.
"""

import argparse

import torch

import measured

BLOCK = 4096
GROUP = 256


class Int8:
    @staticmethod
    def encode(x, r):
        d = (x - r).view(-1, GROUP)
        scale = d.abs().amax(1, keepdim=True) / 127
        return (d / scale.clamp_min(1e-30)).round_().to(torch.int8), scale

    @staticmethod
    def decode(codes, scale):
        return (codes.to(torch.float32) * scale).view(-1)


class Sign:
    WEIGHTS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)
    SHIFTS = torch.arange(8, dtype=torch.uint8)

    @classmethod
    def encode(cls, x, r):
        d = (x - r).view(-1, BLOCK)
        return ((d >= 0).view(-1, 8) * cls.WEIGHTS).sum(1, dtype=torch.uint8), d.abs().mean(1, keepdim=True)

    @classmethod
    def decode(cls, packed, scale):
        bits = ((packed.unsqueeze(1) >> cls.SHIFTS) & 1).view(-1, BLOCK)
        return ((bits * 2.0 - 1.0) * scale).view(-1)


def measure(codec, compiled, repeats):
    def apply(x, r, own, their):
        q, other = codec.decode(*own), codec.decode(*their)
        x.add_(other - q, alpha=0.5)
        r.add_(q + other, alpha=0.5)

    encode_one, apply_one = (torch.compile(codec.encode), torch.compile(apply)) if compiled else (codec.encode, apply)
    count = -(-measured.RESNET50_PARAMETERS // BLOCK) * BLOCK
    x, r = torch.randn(count), torch.zeros(count)
    their = codec.encode(torch.randn(count), r)
    moves = torch.empty(count)
    encode, whole = measured.Repeats(), measured.Repeats()
    for repeat in range(-2, repeats):
        timed = (encode, whole) if repeat >= 0 else (measured.Repeats(), measured.Repeats())
        x += moves.normal_(std=0.3)
        own = timed[0].time(lambda: encode_one(x, r))
        timed[1].time(lambda: apply_one(x, r, encode_one(x, r), their))
    return {"encode": encode.figures(), "exchange": whole.figures(), "bytes": sum(part.numel() * part.element_size() for part in own)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--codec", choices=["int8", "sign"], default="int8")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with torch.no_grad():
        figures = measure({"int8": Int8, "sign": Sign}[options.codec], options.compile, options.repeats)
    measured.print_report("torch operators", torch.__version__, options, figures)


if __name__ == "__main__":
    main()
