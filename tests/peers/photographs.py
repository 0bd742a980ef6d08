#!/usr/bin/env python3
"""Makes a folder of photographs that nobody took: JPEGs of the size and weight that ImageNet's have, in a folder for each class. The same each time."""

import argparse
import pathlib
import sys

import numpy
import PIL
from PIL import Image

import measured

WIDTH, HEIGHT = 500, 375
CLASSES = 10
# Pixels between the values of a layer, from the sky to the grass, and by how much finer ones are weaker: so that a file has 109 KB, as ImageNet's have.
GRAINS = (256, 128, 64, 32, 16, 8, 4, 2, 1)
FALL = 0.4
QUALITY = 95


def photograph(random):
    """One image of height, width and three colours."""
    sum_of_layers = numpy.zeros((HEIGHT, WIDTH, 3), numpy.float32)
    for grain in GRAINS:
        few = random.normal(size=(HEIGHT // grain + 2, WIDTH // grain + 2, 3)).astype(numpy.float32)
        few += 2 * few.mean(axis=2, keepdims=True)  # more light than colour
        layers = [Image.fromarray(few[:, :, colour]).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC) for colour in range(3)]
        sum_of_layers += numpy.stack([numpy.asarray(layer) for layer in layers], axis=2) * (grain / GRAINS[0]) ** FALL
    return numpy.clip(128 + 40 * sum_of_layers, 0, 255).astype(numpy.uint8)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=500)
    options = parser.parse_args()
    random = numpy.random.default_rng(1)
    total = 0
    for number in range(options.count):
        path = options.folder / f"class{number % CLASSES}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photograph(random)).save(path, quality=QUALITY)
        total += path.stat().st_size
    options.folder = str(options.folder)
    measured.print_report("Pillow", PIL.__version__, options, {"bytes": total / options.count})


if __name__ == "__main__":
    sys.exit(main())
