"""GGUF files: quantised blocks as bytes, numbers as they are; damaged heads are errors."""

from __future__ import annotations

import pickle
import random
import struct
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import forebay  # noqa: E402
import forebay.torch as ft  # noqa: E402


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(
    tensors: list[tuple[str, tuple[int, ...], int, bytes]],
    version: int = 3,
    alignment: int | None = None,
    pairs: bytes = b"",
    count: int = 0,
) -> bytes:
    """A file: name, dimensions (the fastest first), ggml's number of the kind, and bytes of each tensor."""
    if alignment is not None:
        pairs, count = pairs + text("general.alignment") + struct.pack("<II", 4, alignment), count + 1
    step = alignment or 32
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), count) + pairs
    data = b""
    for name, dimensions, kind, content in tensors:
        data += b"\0" * (-len(data) % step)
        head += text(name) + struct.pack("<I", len(dimensions)) + struct.pack(f"<{len(dimensions)}Q", *dimensions)
        head += struct.pack("<IQ", kind, len(data))
        data += content
    return head + b"\0" * (-len(head) % step) + data


METADATA = (
    text("general.architecture") + struct.pack("<I", 8) + text("llama")
    + text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + text("a") + text("β") + text("")
    + text("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, 2) + struct.pack("<ff", 1.5, 2.5)
    + text("nested") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ", 0, 3) + b"abc"
    + text("flag") + struct.pack("<I", 7) + b"\1"
    + text("big") + struct.pack("<IQ", 10, 1 << 40)
)  # fmt: skip


@pytest.fixture
def blocks() -> bytes:
    return random.Random(0).randbytes(4 * 144)


@pytest.fixture
def path(blocks: bytes, tmp_path: Path) -> Path:
    numbers = torch.arange(12, dtype=torch.float32)
    half = torch.arange(6).to(torch.bfloat16).view(torch.uint8).numpy().tobytes()
    file = gguf(
        [
            ("blk.0.ffn.weight", (512, 2), 12, blocks),
            ("norm.weight", (12,), 0, numbers.numpy().tobytes()),
            ("out.weight", (3, 2), 30, half),
            ("tiny", (32, 1, 1), 8, bytes(range(34))),
        ],
        pairs=METADATA, count=6,
    )  # fmt: skip
    (tmp_path / "model.gguf").write_bytes(file)
    return tmp_path / "model.gguf"


def test_tensors_are_blocks_or_numbers(path: Path, blocks: bytes) -> None:
    checkpoint = ft.weights(path)
    assert list(checkpoint) == ["blk.0.ffn.weight", "norm.weight", "out.weight", "tiny"]
    weight = checkpoint["blk.0.ffn.weight"]
    assert (weight.dtype, tuple(weight.shape)) == (torch.uint8, (2, 288))
    assert (weight.stored_type, weight.stored_shape) == ("Q4_K", (2, 512))
    assert weight.offset % 32 == 0 and path.read_bytes()[weight.offset : weight.offset + 576] == blocks
    assert bytes(weight.numpy().tobytes()) == blocks and bytes(weight[1, :144].clone().numpy()) == blocks[288:432]
    assert torch.equal(checkpoint["norm.weight"].clone(), torch.arange(12, dtype=torch.float32))
    out = checkpoint["out.weight"]
    assert (out.dtype, tuple(out.shape), out.stored_type) == (torch.bfloat16, (2, 3), "BF16")
    assert torch.equal(out.clone(), torch.arange(6).to(torch.bfloat16).view(2, 3))
    assert checkpoint["tiny"].stored_shape == (1, 1, 32) and tuple(checkpoint["tiny"].shape) == (1, 1, 34)
    assert weight[1].stored_type == "Q4_K"
    again = pickle.loads(pickle.dumps(checkpoint))
    assert list(again) == list(checkpoint) and again["tiny"].stored_shape == (1, 1, 32)
    assert bytes(again["blk.0.ffn.weight"].numpy().tobytes()) == blocks


def test_alignment_version_and_several_files(path: Path, tmp_path: Path) -> None:
    (tmp_path / "second.gguf").write_bytes(gguf([("x", (4,), 26, bytes(16)), ("y", (4,), 24, b"abcd")], 2, 4096))
    second = ft.weights(tmp_path / "second.gguf")
    assert second["x"].offset == 4096 and second["y"].offset == 8192 and second["y"].tolist() == list(b"abcd")
    assert len(ft.weights([path, tmp_path / "second.gguf"])) == 6
    with pytest.raises(forebay.errors.InvalidInputError, match="two files have a tensor of the same name"):
        ft.weights([path, path])


def made(tmp_path: Path, content: bytes) -> Path:
    (tmp_path / "damaged.gguf").write_bytes(content)
    return tmp_path / "damaged.gguf"


ONE = [("x", (32,), 8, bytes(34))]
DAMAGED: dict[str, tuple[bytes, type[Exception], str]] = {
    "empty": (b"", forebay.errors.InvalidInputError, "empty"),
    "other": (b"{}" * 100, forebay.errors.InvalidInputError, "not a GGUF file"),
    "version": (gguf(ONE, 1), forebay.errors.UnsupportedError, "a version of GGUF"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 1, 0) + bytes(64), forebay.errors.UnsupportedError, "a version of GGUF"),
    "counts": (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60), forebay.errors.InvalidInputError, "no room"),
    "short data": (gguf(ONE)[:-1], forebay.errors.ShortReadError, "shorter than its head says"),
    "short head": (gguf(ONE)[:40], forebay.errors.ShortReadError, "within its head"),
    "kind": (gguf([("x", (32,), 99, bytes(34))]), forebay.errors.UnsupportedError, "kind of elements"),
    "no dimensions": (gguf([("x", (), 0, bytes(64))]), forebay.errors.InvalidInputError, "dimensions"),
    "dimensions": (gguf([("x", (1, 1, 1, 1, 1), 0, bytes(64))]), forebay.errors.InvalidInputError, "dimensions"),
    "shape": (gguf([("x", (33,), 8, bytes(68))]), forebay.errors.InvalidInputError, "impossible shape"),
    "huge": (gguf([("x", (1 << 40, 1 << 40), 0, bytes(64))]), forebay.errors.InvalidInputError, "impossible shape"),
    "twice": (gguf([*ONE, *ONE]), forebay.errors.InvalidInputError, "same name"),
    "alignment": (gguf(ONE, alignment=24), forebay.errors.InvalidInputError, "power of two"),
    "long name": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 50) + bytes(64), forebay.errors.InvalidInputError, "too long"),
    "no text": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2) + b"\xff\xfe" + bytes(64), forebay.errors.InvalidInputError, "no text"),
    "type": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 77) + bytes(64), forebay.errors.InvalidInputError, "known type"),
    "list": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 8, 1 << 59) + bytes(64), forebay.errors.InvalidInputError, "no room"),
    "long list": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 12, 1 << 62) + bytes(64), forebay.errors.ShortReadError, "within its head"),
    "deep": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 40, forebay.errors.InvalidInputError, "nested"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_heads_are_errors(name: str, tmp_path: Path) -> None:
    content, kind, words = DAMAGED[name]
    with pytest.raises(kind, match=words) as told:
        ft.weights(made(tmp_path, content))
    assert "damaged.gguf" in str(told.value)


def test_damage_anywhere_is_an_error_or_harmless(path: Path, tmp_path: Path) -> None:
    """Bytes that change in the head: an error of ours, or tensors within the file; never a crash and never long."""
    whole, chance = path.read_bytes(), random.Random(1)
    end = whole.index(b"tiny") + 40
    for _ in range(600):
        content = bytearray(whole)
        for _ in range(chance.choice((1, 1, 2, 8))):
            content[chance.randrange(end)] = chance.choice((0, 1, 255, chance.randrange(256)))
        cut = chance.randrange(len(whole)) if chance.random() < 0.2 else len(whole)
        damaged = made(tmp_path, bytes(content[:cut]))
        try:
            checkpoint: Any = ft.weights(damaged)
            sizes = [(checkpoint[name].offset, checkpoint[name].nbytes) for name in checkpoint]
        except forebay.errors.Error:
            continue
        assert all(offset + nbytes <= cut for offset, nbytes in sizes)
