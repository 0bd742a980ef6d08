#!/usr/bin/env python3
"""Batches of a training pass over a folder of photographs, by torchvision and PyTorch's DataLoader: images a second.

What ImageNet's recipes do: decode, a crop of any size, mirror, floats, normalise. Samples are drawn for ever, so that no worker waits for an epoch to end.
"""

import argparse
import itertools
import sys
import time

import torch
from torchvision import datasets, io
from torchvision.transforms import v2

import measured
from figures import spread

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ENDLESS = 1 << 40


def decoded(path):
    return io.decode_jpeg(io.read_file(path), mode=io.ImageReadMode.RGB)


def make_loader(options):
    crop = v2.RandomResizedCrop(options.img, antialias=True)
    floats = (v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, DEVIATION))
    if options.decoder == "pillow":
        data = datasets.ImageFolder(options.data, v2.Compose([crop, v2.RandomHorizontalFlip(), v2.PILToTensor(), *floats]))
    else:
        data = datasets.ImageFolder(options.data, v2.Compose([crop, v2.RandomHorizontalFlip(), *floats]), loader=decoded)
    sampler = torch.utils.data.RandomSampler(data, replacement=True, num_samples=ENDLESS)
    return torch.utils.data.DataLoader(data, options.batch, sampler=sampler, num_workers=options.threads, prefetch_factor=4)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--img", type=int, default=224)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2, help="worker processes")
    parser.add_argument("--decoder", choices=["pillow", "torchvision"], default="torchvision")
    parser.add_argument("--steps", type=int, default=16, help="batches in a repeat")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    batches = iter(make_loader(options))
    # What lay ready before the clock started would count as free.
    for _ in itertools.islice(batches, 4 * options.threads + 1):
        pass
    per_s = []
    for _ in range(options.repeats):
        begin = time.monotonic()
        images = sum(len(labels) for _, labels in itertools.islice(batches, options.steps))
        per_s.append(images / (time.monotonic() - begin))
    measured.print_report("torchvision DataLoader", torch.__version__, options, {"images_per_s": spread(per_s)})


if __name__ == "__main__":
    sys.exit(main())
