"""The models that `bench/weights.py` writes: names, shapes, and which part of each tensor a rank keeps."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: Bytes of a file of the model.
_SHARD_BYTES = 5 << 30
_BLOCK = 32 << 20


class Shape(NamedTuple):
    """A tensor of the model.

    Attributes:
        name: of it.
        shape: of all of it; its elements have two bytes (bfloat16).
        cut: the dimension that tensor parallel cuts, or ``None``.
        owner: which of the ranks (modulo their number) has it, where the ranks have different tensors; else ``None``.
    """

    name: str
    shape: tuple[int, ...]
    cut: int | None = None
    owner: int | None = None

    @property
    def nbytes(self) -> int:
        count = 2
        for size in self.shape:
            count *= size
        return count


def llama(nbytes: int) -> list[Shape]:
    """A Llama of about this many bytes: of the 8B model's widths from 4 GB on, a narrow one below."""
    hidden, inner, kv, vocabulary = (4096, 14336, 1024, 128256) if nbytes >= 4e9 else (256, 512, 128, 1000)
    layer = [
        Shape("self_attn.q_proj", (hidden, hidden), 0),
        Shape("self_attn.k_proj", (kv, hidden), 0),
        Shape("self_attn.v_proj", (kv, hidden), 0),
        Shape("self_attn.o_proj", (hidden, hidden), 1),
        Shape("mlp.gate_proj", (inner, hidden), 0),
        Shape("mlp.up_proj", (inner, hidden), 0),
        Shape("mlp.down_proj", (hidden, inner), 1),
        Shape("input_layernorm", (hidden,)),
        Shape("post_attention_layernorm", (hidden,)),
    ]
    ends = [
        Shape("model.embed_tokens.weight", (vocabulary, hidden), 0),
        Shape("lm_head.weight", (vocabulary, hidden), 0),
    ]
    left = nbytes - sum(shape.nbytes for shape in ends)
    layers = max(2, round(left / sum(shape.nbytes for shape in layer)))
    found = [ends[0]]
    for at in range(layers):
        found += [shape._replace(name=f"model.layers.{at}.{shape.name}.weight") for shape in layer]
    return [*found, Shape("model.norm.weight", (hidden,)), ends[1]]


def experts(nbytes: int) -> list[Shape]:
    """A mixture of experts whose experts lie on different ranks; the rest is on all of them."""
    hidden, inner, count = (4096, 1536, 64) if nbytes >= 4e9 else (256, 128, 8)
    parts = [
        Shape("gate_proj", (inner, hidden)),
        Shape("up_proj", (inner, hidden)),
        Shape("down_proj", (hidden, inner)),
    ]
    layers = max(2, round(nbytes / (count * sum(part.nbytes for part in parts) + 2 * hidden * hidden)))
    found = []
    for layer in range(layers):
        found.append(Shape(f"model.layers.{layer}.self_attn.qkv_proj.weight", (hidden, hidden)))
        for at in range(count):
            prefix = f"model.layers.{layer}.mlp.experts.{at}"
            found += [part._replace(name=f"{prefix}.{part.name}.weight", owner=at) for part in parts]
    return found


def pipeline(nbytes: int) -> list[Shape]:
    """A Llama whose layers lie on the ranks in turn."""
    found = []
    for shape in llama(nbytes):
        layer = int(shape.name.split(".")[2]) if ".layers." in shape.name else 0
        found.append(shape._replace(cut=None, owner=layer))
    return found


MODELS = {"tp": llama, "moe": experts, "pipeline": pipeline}


def files_of(folder: Path) -> list[Path]:
    """The model's files in a folder."""
    return sorted(path for path in folder.glob("model-*") if path.suffix in (".safetensors", ".gguf"))


def write(folder: Path, shapes: list[Shape]) -> list[Path]:
    """Writes a model of random bytes, synced; and the name of each file in an index."""
    folder.mkdir(parents=True, exist_ok=True)
    noise = os.urandom(_BLOCK + (1 << 20))
    shards: list[list[Shape]] = [[]]
    for shape in shapes:
        if shards[-1] and sum(one.nbytes for one in shards[-1]) + shape.nbytes > _SHARD_BYTES:
            shards.append([])
        shards[-1].append(shape)
    index = {}
    for at, shard in enumerate(shards):
        path = folder / f"model-{at + 1:05}-of-{len(shards):05}.safetensors"
        _write_file(path, shard, noise)
        index.update({shape.name: path.name for shape in shard})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return files_of(folder)


def _write_file(path: Path, shapes: list[Shape], noise: bytes) -> None:
    header, at = {}, 0
    for shape in shapes:
        header[shape.name] = {"dtype": "BF16", "shape": shape.shape, "data_offsets": [at, at + shape.nbytes]}
        at += shape.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for block in _blocks(at, noise):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


def _blocks(nbytes: int, noise: bytes) -> Iterator[memoryview]:
    """Random bytes that do not repeat at the same places: each block begins elsewhere in the noise."""
    view, turn = memoryview(noise), 0
    while nbytes:
        start = turn * 4099 % (1 << 20)
        take = min(_BLOCK, nbytes)
        yield view[start : start + take]
        nbytes -= take
        turn += 1
