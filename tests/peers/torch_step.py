#!/usr/bin/env python3
"""Training steps of PyTorch and torchvision on random pixels: images a second, milliseconds, CPU milliseconds a step.

A step is all of it: gradients to none, forward, cross entropy, backward, SGD with momentum and weight decay. Four batches are drawn before the clock
starts. `--loop tuned` is the best that eager mode does: channels_last, fused SGD, denormals flushed, bf16 by autocast where asked for; `--loop plain`
is what a tutorial writes: fp32, contiguous, SGD as it comes; `--loop compiled` is the tuned one behind torch.compile at its highest effort.
A malloc that keeps its pages is half of the tuning on a CPU: LD_PRELOAD. On a GPU the batches lie there, and cuDNN looks for its fastest algorithms.
"""

import argparse
import contextlib
import functools
import sys

import torch
import torchvision

import measured
from figures import spread


def make_step(options, tuned, wrap=lambda model: model):
    """A function that trains one step and returns its loss; `wrap` is what becomes of the model before its optimizer is made."""
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(tuned)
    torch.backends.cudnn.benchmark = tuned
    layout = torch.channels_last if tuned else torch.contiguous_format
    model = wrap(getattr(torchvision.models, options.model)(num_classes=options.classes).to(options.device, memory_format=layout).train())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-5, fused=tuned)
    batches = [(torch.randn(options.batch, 3, options.img, options.img).to(options.device, memory_format=layout),
                torch.randint(options.classes, (options.batch,)).to(options.device)) for _ in range(4)]
    number = 0

    def step():
        nonlocal number
        images, labels = batches[number % len(batches)]
        number += 1
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(options.device, torch.bfloat16) if options.precision == "bf16" else contextlib.nullcontext():
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
    parser.add_argument("--loop", choices=["tuned", "plain", "compiled"], default="tuned")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--warm-up", type=int, default=3, help="steps before the first repeat")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="steps in a repeat")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    compiled = options.loop == "compiled"
    step = make_step(options, True, functools.partial(torch.compile, mode="max-autotune")) if compiled else make_step(options, options.loop == "tuned")
    wait = measured.wait_for(options.device)
    for _ in range(options.warm_up):
        step()
    if options.device == "cuda":  # what cuDNN took while it tried its algorithms does not count
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    repeats = measured.Repeats()
    for _ in range(options.repeats):
        loss = repeats.time(step, times=options.steps, wait=wait)
    figures = repeats.figures()
    of_gpu = {"peak_bytes": torch.cuda.max_memory_reserved(), "gpu": torch.cuda.get_device_name()} if options.device == "cuda" else {}
    measured.print_report("torch compiled" if compiled else "torch eager", torch.__version__, options, {
        "images_per_s": spread([1e3 * options.batch / ms for ms in repeats.wall_ms]),
        "step_ms": figures["ms"], "cpu_ms": figures["cpu_ms"], "loss": float(loss.detach()), **of_gpu})
    return 0 if torch.isfinite(loss) else "torch_step: the loss is not finite after the last step: the figures mean nothing"


if __name__ == "__main__":
    sys.exit(main())
