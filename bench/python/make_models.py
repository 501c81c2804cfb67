#!/usr/bin/env python3
"""Writes the model files that the measurements read.

    bench/python/make_models.py FOLDER [--scale 1.0] [--only large|small] [--pt]

    large.safetensors   200 bf16 tensors of a transformer's shapes, 11.2 GB
    small.safetensors   5 000 tensors of 4 KiB to 256 KiB, about 0.5 GB

--scale makes them smaller (the counts stay). --pt writes the same tensors beside them with torch.save, for the peer
that reads those. The bytes are one random pattern of 64 MiB read from a different place for each tensor, so that
tensors differ from each other and nothing is a hole or a row of zeros. Needs numpy.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
from pathlib import Path

import numpy as np

PATTERN = 64 << 20
LARGE_BYTES = 11_200_000_000
LARGE_TENSORS = 200
SMALL_TENSORS = 5_000
Shape = tuple[int, ...]


def large_shapes(scale: float) -> list[tuple[str, Shape]]:
    """22 layers of nine tensors, an embedding and a final norm: 200 tensors; the widths follow from the size."""
    layers = (LARGE_TENSORS - 2) // 9
    target = LARGE_BYTES * scale / 2
    # A layer has 2 h² + 2 h (h/4) + 3 h (7/2 h) weights for a width of h; the embedding takes the rest.
    hidden = max(64, int(math.sqrt(target * 0.95 / (13 * layers))) // 64 * 64)
    kv, inner = hidden // 4, hidden * 7 // 2
    layer: list[tuple[str, Shape]] = [
        ("input_layernorm.weight", (hidden,)),
        ("self_attn.q_proj.weight", (hidden, hidden)),
        ("self_attn.k_proj.weight", (kv, hidden)),
        ("self_attn.v_proj.weight", (kv, hidden)),
        ("self_attn.o_proj.weight", (hidden, hidden)),
        ("post_attention_layernorm.weight", (hidden,)),
        ("mlp.gate_proj.weight", (inner, hidden)),
        ("mlp.up_proj.weight", (inner, hidden)),
        ("mlp.down_proj.weight", (hidden, inner)),
    ]
    shapes = [(f"model.layers.{i}.{name}", shape) for i in range(layers) for name, shape in layer]
    used = sum(math.prod(shape) for _, shape in shapes) + hidden
    rows = max(1, int((target - used) / hidden))
    return [("model.embed_tokens.weight", (rows, hidden)), *shapes, ("model.norm.weight", (hidden,))]


def small_shapes(scale: float) -> list[tuple[str, Shape]]:
    """Sizes between 4 KiB and 256 KiB, about as many in each doubling but more small ones, 100 KB on average."""
    source = random.Random(5000)
    shapes = []
    for i in range(SMALL_TENSORS):
        # The square root shifts the even spread over the doublings towards the large end, to the average wanted.
        nbytes = int(4096 * 64 ** (source.random() ** 0.5) * scale)
        shapes.append((f"experts.{i // 50}.{i % 50}.weight", (max(1, nbytes // 2),)))
    return shapes


def write_safetensors(path: Path, shapes: list[tuple[str, Shape]]) -> int:
    """Writes bf16 tensors, each from another place of the pattern. Returns the file's size."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shapes:
        nbytes = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    # The exponent's top bit is cleared: every value is a finite number, so comparisons of values work too.
    words = np.random.default_rng(11).integers(0, 1 << 16, PATTERN // 2, dtype=np.uint16) & 0xBFFF
    pattern = memoryview(np.concatenate([words, words])).cast("B")
    with open(path, "wb", buffering=0) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for i, (_, shape) in enumerate(shapes):
            left, start = 2 * math.prod(shape), (i * 1_048_583 * 2) % PATTERN
            while left:
                left -= file.write(pattern[start : start + min(left, PATTERN)])
        os.fsync(file.fileno())
    return path.stat().st_size


def write_pt(path: Path) -> None:
    """The same tensors by torch.save."""
    import torch
    from safetensors.torch import load_file

    torch.save(load_file(path), path.with_suffix(".pt"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", choices=["large", "small"])
    parser.add_argument("--pt", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, shapes in (("large", large_shapes), ("small", small_shapes)):
        if options.only not in (None, name):
            continue
        path = options.folder / f"{name}.safetensors"
        tensors = shapes(options.scale)
        size = write_safetensors(path, tensors)
        print(f"{path}: {len(tensors)} tensors, {size} bytes")
        if options.pt:
            try:
                write_pt(path)
            except ImportError as error:
                sys.exit(f"error: --pt needs torch and safetensors: {error}")


if __name__ == "__main__":
    main()
