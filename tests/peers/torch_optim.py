#!/usr/bin/env python3
"""One optimizer step of PyTorch on the parameters of ResNet-50 as one tensor: SGD with momentum and weight decay, milliseconds.

One flat tensor is PyTorch at its best: there are no 161 calls. The fused kernel reads parameters, gradients and momentum and writes two of them:
20 bytes a parameter in fp32. No working copy is written.
"""

import argparse

import torch

import measured


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--times", type=int, default=1, help="steps in a repeat")
    parser.add_argument("--implementation", choices=["fused", "foreach", "loop"], default="fused")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    parameters = torch.nn.Parameter(torch.rand(measured.RESNET50_PARAMETERS, device=options.device) - 0.5)
    parameters.grad = torch.rand_like(parameters) - 0.5
    optimizer = torch.optim.SGD([parameters], lr=1e-3, momentum=0.9, weight_decay=5e-5,
                                fused=options.implementation == "fused", foreach=options.implementation == "foreach")
    step, wait = measured.Repeats(), measured.wait_for(options.device)
    for repeat in range(-3, options.repeats):
        (step if repeat >= 0 else measured.Repeats()).time(optimizer.step, options.times, wait)
    measured.print_report("torch.optim.SGD", torch.__version__, options, {"step": step.figures()})


if __name__ == "__main__":
    main()
