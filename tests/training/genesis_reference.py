#!/usr/bin/env python3
"""An independent genesis of the small model: prints the constant that genesis_test.cc freezes.

Written from the rule in training/genesis.h, in plain Python integers and doubles; every product of a 19-bit integer and
an fp32 number is exact in a double, so rounding it once to fp32 is the rule's one rounding.
"""
import hashlib
import math
import struct
import sys

MASK = (1 << 64) - 1


def fp32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def stream(seed, name):
    """xoshiro256** seeded by splitmix64."""
    digest = hashlib.blake2b(b"starling genesis 1" + struct.pack("<Q", seed) + name.encode(), digest_size=32).digest()
    state, x = [], int.from_bytes(digest[:8], "little")
    for _ in range(4):
        x = (x + 0x9E3779B97F4A7C15) & MASK
        z = x
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        state.append(z ^ (z >> 31))
    rotl = lambda v, k: ((v << k) | (v >> (64 - k))) & MASK
    while True:
        yield (rotl((state[1] * 5) & MASK, 7) * 9) & MASK
        shifted = (state[1] << 17) & MASK
        state[2] ^= state[0]
        state[3] ^= state[1]
        state[1] ^= state[2]
        state[0] ^= state[3]
        state[2] ^= shifted
        state[3] = rotl(state[3], 45)


def small_tensors(classes, channels):
    tensors, width = {}, 32

    def unit(conv, norm, shape):
        tensors[conv + ".weight"] = shape
        tensors[norm + ".weight"] = tensors[norm + ".bias"] = (shape[0],)

    unit("conv1", "bn1", (width, channels, 3, 3))
    inputs = width
    for stage in range(3):
        out, prefix = width << stage, f"layer{stage + 1}.0."
        unit(prefix + "conv1", prefix + "bn1", (out, inputs, 3, 3))
        unit(prefix + "conv2", prefix + "bn2", (out, out, 3, 3))
        if inputs != out:
            unit(prefix + "downsample.0", prefix + "downsample.1", (out, inputs, 1, 1))
        inputs = out
    tensors["fc.weight"], tensors["fc.bias"] = (classes, inputs), (classes,)
    return tensors


def genesis(tensors, seed):
    parts = [], []
    for name in sorted(tensors, key=str.encode):
        shape = tensors[name]
        count = math.prod(shape)
        if len(shape) == 1:
            values = [1.0 if name.endswith(".weight") else 0.0] * count
        else:
            fan = 2.0 / (shape[0] * shape[2] * shape[3]) if len(shape) == 4 else 1.0 / (3 * shape[1])
            scale = fp32(math.sqrt(fp32(fan))) / 65536
            words, values = stream(seed, name), []
            for _ in range(count):
                total = -6 * 65535
                for _ in range(3):
                    word = next(words)
                    total += sum((word >> shift) & 0xFFFF for shift in (0, 16, 32, 48))
                values.append(total * scale)
        parts[len(shape) == 1].extend(values + [0.0] * (-count % 16))
    flat = [value for part in parts for value in part + [0.0] * (-len(part) % 4096)]
    return struct.pack(f"<{len(flat)}f", *flat)


def tree_hash(data):
    """node/base/tree_hash.h"""
    leaves = (hashlib.blake2b(data[at : at + 16384], digest_size=32).digest() for at in range(0, len(data), 16384))
    return hashlib.blake2b(b"starling/tree/1" + struct.pack("<Q", len(data)) + b"".join(leaves), digest_size=32).hexdigest()


if __name__ == "__main__":
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    print(tree_hash(genesis(small_tensors(10, 1), seed)))
