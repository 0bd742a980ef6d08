#!/usr/bin/env python3
"""torchvision's resnet50 loads our file strictly and computes what our evaluation computes.

Usage: torchvision_check.py PATH/torchvision_export. Exits with 77 (skipped) where torchvision is not installed.
"""
import json
import struct
import subprocess
import sys
import tempfile

try:
    import torch
    import torchvision
except ImportError as error:
    print(f"skipped: {error}; tests/peers/setup brings them")
    sys.exit(77)

DTYPES = {"F32": torch.float32, "I64": torch.int64}


def load(path):
    """The tensors of a safetensors file, without the safetensors package."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = bytearray(file.read())
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        flat = torch.frombuffer(data[begin:end], dtype=DTYPES[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors


def main():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[1], folder], check=True)
        state = load(f"{folder}/model.safetensors")
        io = load(f"{folder}/io.safetensors")
    model = torchvision.models.resnet50()
    print(model.load_state_dict(state, strict=True), len(state), "tensors")
    ours = set(state)
    assert sum(p.numel() for p in model.parameters()) == 25_557_032
    assert ours == set(model.state_dict()), ours ^ set(model.state_dict())
    model.eval()
    with torch.no_grad():
        logits = model(io["images"])
    error = ((logits - io["logits"]).norm() / logits.norm()).item()
    print("relative difference of the logits:", error)
    # The same fp32 operations in another memory order: sums of at most 4,608 terms, 53 layers.
    assert error < 1e-4, error


main()
