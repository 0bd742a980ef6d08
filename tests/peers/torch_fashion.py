#!/usr/bin/env python3
"""Fashion-MNIST by DistributedDataParallel over gloo: steps and bytes until the validation loss is at a mark, and where it ends.

The net, the batch of a node, the budget in samples, the schedule with its peak and the pixels are those of `starling demo`; the peak suits DDP, too:
seed 1 ends at 92.4 % with 0.1 and at 92.8 % with 0.2. `bytes_per_step` is what a ring all-reduce sends for the gradients, headers not counted.
"""

import argparse
import gzip
import math
import pathlib
import random
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torchvision.models.resnet import BasicBlock

import measured

DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")
MEAN, DEVIATION = 0.2860, 0.3530  # of its pixels
WARM_UP = 0.05
EVALUATE_EVERY = 100  # steps


def read(part):
    """Images as N x 1 x 28 x 28, normalised, and their labels."""
    with gzip.open(DATA / f"{part}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(DATA / f"{part}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    images = (torch.from_numpy(pixels.astype(np.float32)) / 255 - MEAN) / DEVIATION
    return images.contiguous(memory_format=torch.channels_last), torch.from_numpy(labels.astype(np.int64))


def small_net():
    """`small` of the ladder of models: a residual net of three blocks."""
    def block(inputs, outputs, stride):
        down = None if stride == 1 else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        return BasicBlock(inputs, outputs, stride, down)
    net = nn.Sequential(nn.Conv2d(1, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
                        block(32, 32, 1), block(32, 64, 2), block(64, 128, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net.to(memory_format=torch.channels_last)


def rate(share, peak):
    if share < WARM_UP:
        return peak * max(share / WARM_UP, 1e-3)
    return peak * (1 + math.cos(math.pi * (share - WARM_UP) / (1 - WARM_UP))) / 2


def evaluate(net, images, labels):
    """Mean loss and accuracy."""
    net.eval()
    with torch.no_grad():
        outputs = torch.cat([net(part) for part in images.split(500)])
    net.train()
    return nn.functional.cross_entropy(outputs, labels).item(), (outputs.argmax(1) == labels).float().mean().item()


def train(rank, options, port):
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=options.nodes)
    torch.manual_seed(options.seed)
    images, labels = read("train")
    tests = read("t10k") if rank == 0 else None
    net = nn.parallel.DistributedDataParallel(small_net())
    optimizer = torch.optim.SGD(net.parameters(), lr=options.lr, momentum=0.9, weight_decay=1e-4, nesterov=True, fused=True)
    steps = options.samples // (options.nodes * options.batch)
    order, curve = torch.Generator().manual_seed(options.seed), []
    places = torch.empty(0, dtype=torch.long)
    for step in range(steps):
        if len(places) < options.nodes * options.batch:
            places = torch.randperm(len(labels), generator=order)
        now, places = places[:options.nodes * options.batch], places[options.nodes * options.batch:]
        mine = now[rank * options.batch:(rank + 1) * options.batch]
        for group in optimizer.param_groups:
            group["lr"] = rate(step / steps, options.lr)
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(net(images[mine]), labels[mine]).backward()
        optimizer.step()
        if rank == 0 and ((step + 1) % EVALUATE_EVERY == 0 or step + 1 == steps):
            curve.append((step + 1, *evaluate(net.module, *tests)))
            print(f"step {curve[-1][0]}: loss {curve[-1][1]:.4f}, accuracy {100 * curve[-1][2]:.2f} %", file=sys.stderr, flush=True)
    if rank == 0:
        values = sum(parameter.numel() for parameter in net.parameters())
        sent = 2 * (options.nodes - 1) / options.nodes * 4 * values
        measured.print_report("torch DDP over gloo", torch.__version__, options, measured.learned([curve], sent, options.mark))
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16, help="of a node")
    parser.add_argument("--samples", type=int, default=240_000, help="of all nodes together")
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--mark", type=float, default=0.25, help="the validation loss to be reached")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    options = parser.parse_args()
    torch.multiprocessing.spawn(train, (options, measured.free_port()), nprocs=options.nodes)


if __name__ == "__main__":
    main()
