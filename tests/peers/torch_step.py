#!/usr/bin/env python3
"""Training steps of PyTorch and torchvision on random pixels: images a second, milliseconds, CPU milliseconds a step.

A step is all of it: gradients to none, forward, cross entropy, backward, SGD with momentum and weight decay. Four batches are drawn before the clock
starts. `--loop tuned` is the best that eager mode does: channels_last, fused SGD, denormals flushed, bf16 by autocast where asked for; `--loop plain`
is what a tutorial writes: fp32, contiguous, SGD as it comes. A malloc that keeps its pages is half of the tuning: LD_PRELOAD.
"""

import argparse
import contextlib
import sys

import torch
import torchvision

import measured
from figures import spread


def make_step(options, tuned, wrap=lambda model: model):
    """A function that trains one step and returns its loss; `wrap` is what becomes of the model before its optimizer is made."""
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(tuned)
    layout = torch.channels_last if tuned else torch.contiguous_format
    model = wrap(getattr(torchvision.models, options.model)(num_classes=options.classes).to(memory_format=layout).train())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-5, fused=tuned)
    batches = [(torch.randn(options.batch, 3, options.img, options.img).to(memory_format=layout), torch.randint(options.classes, (options.batch,)))
               for _ in range(4)]
    number = 0

    def step():
        nonlocal number
        images, labels = batches[number % len(batches)]
        number += 1
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16) if options.precision == "bf16" else contextlib.nullcontext():
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--img", type=int, default=224)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--loop", choices=["tuned", "plain"], default="tuned")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="steps in a repeat")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    step = make_step(options, options.loop == "tuned")
    for _ in range(3):
        step()
    repeats = measured.Repeats()
    for _ in range(options.repeats):
        loss = repeats.time(step, times=options.steps)
    figures = repeats.figures()
    measured.print_report("torch eager", torch.__version__, options, {
        "images_per_s": spread([1e3 * options.batch / ms for ms in repeats.wall_ms]),
        "step_ms": figures["ms"], "cpu_ms": figures["cpu_ms"], "loss": float(loss.detach())})
    return 0 if torch.isfinite(loss) else "torch_step: the loss is not finite after the last step: the figures mean nothing"


if __name__ == "__main__":
    sys.exit(main())
