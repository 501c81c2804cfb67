"""Warm files that the GPU reads in place."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forebay

SIZE = 1 << 20


@pytest.fixture
def content() -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(7).integers(0, 256, SIZE, dtype=np.uint8)


@pytest.fixture
def path(tmp_path: Path, content: np.ndarray[Any, Any]) -> Path:
    content.tofile(tmp_path / "rows")
    return tmp_path / "rows"


def expected(content: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any], length: int) -> bytes:
    return b"".join(content[int(offset) :][:length].tobytes() for offset in offsets)


@pytest.mark.parametrize("length", [1, 77, 512, 4096])
@pytest.mark.parametrize("count", [1, 1000])
def test_gather(path: Path, content: np.ndarray[Any, Any], device: str, length: int, count: int) -> None:
    offsets = np.random.default_rng(count).integers(0, SIZE - length, count)
    with forebay.map(path, device) as mapped:
        assert mapped.in_place == (device != "cpu")
        rows = mapped.gather(offsets, length)
        assert (rows.shape, rows.dtype, rows.device) == ((count, length), "U8", device)
        assert rows.tobytes() == expected(content, offsets, length)
        # Into memory of the caller's, with room to spare.
        out = forebay.empty(count * length + 10, device=device)
        assert mapped.gather(offsets, length, out) is out
        assert out.tobytes()[:-10] == rows.tobytes()


def test_offsets_in_lists_and_on_the_gpu(path: Path, content: np.ndarray[Any, Any], gpu: str) -> None:
    offsets = np.array([0, 4096, 77, SIZE - 16], np.int64)
    on_gpu = forebay.empty(4, "int64", gpu)
    on_gpu.fill_from(offsets)
    with forebay.map(path, gpu) as mapped:
        for form in (offsets, offsets.tolist(), on_gpu, offsets.astype("uint64")):
            assert mapped.gather(form, 16).tobytes() == expected(content, offsets, 16)
        # The other kind of memory works too: through pinned memory.
        host = np.zeros((4, 16), np.uint8)
        for form in (offsets, on_gpu):
            host[:] = 0
            mapped.gather(form, 16, out=host)
            assert host.tobytes() == expected(content, offsets, 16)


def test_what_is_refused(path: Path, device: str) -> None:
    with forebay.map(path, device) as mapped:
        with pytest.raises(ValueError, match="not 64-bit"):
            mapped.gather(np.array([1, 2], np.int32), 4)
        with pytest.raises(ValueError, match="too few"):
            mapped.gather([0, 1], 10, out=np.zeros(19, np.uint8))
        for offsets in ([0, SIZE - 3], [0, -1], [2**63 - 1]):
            with pytest.raises((ValueError, OverflowError)):
                mapped.gather(offsets, 4)
        for offsets in (np.array([0, SIZE - 3]), np.array([-1])):
            with pytest.raises(ValueError, match="within the file|lie"):
                mapped.gather(offsets, 4)
        assert mapped.gather([], 4).shape == (0, 4)
    with pytest.raises(ValueError, match="closed"):
        mapped.gather([0], 1)


def test_views_are_read_only_and_typed(path: Path, content: np.ndarray[Any, Any], gpu: str) -> None:
    with forebay.map(path, gpu) as mapped:
        view = mapped.view("float32", (16, 8), offset=64)
        about = view.__cuda_array_interface__
        assert about["data"] == (mapped.address + 64, True)
        assert (about["shape"], about["typestr"], view.nbytes, view.data_ptr()) == (
            (16, 8),
            "<f4",
            512,
            about["data"][0],
        )
        assert mapped.view().shape == (SIZE,)
        with pytest.raises(BufferError, match="read-only"):
            view.__dlpack__()
        with pytest.raises(ValueError, match="needs"):
            mapped.view("uint8", SIZE + 1)
        with pytest.raises(ValueError, match="multiple"):
            mapped.view("float32", offset=2)
        with forebay.open(path) as file, pytest.raises(ValueError, match="read-only"):
            file.read_into(view)
        # A view is a source like any other memory of the GPU.
        with forebay.open(path.with_suffix(".copy"), "w") as file:
            file.write_from(view)
    assert path.with_suffix(".copy").read_bytes() == content[64:576].tobytes()


def test_a_view_outlives_its_map(path: Path, content: np.ndarray[Any, Any], gpu: str) -> None:
    view = forebay.map(path, gpu).view(shape=100)
    with forebay.open(path.with_suffix(".copy"), "w") as file:
        file.write_from(view)
    assert path.with_suffix(".copy").read_bytes() == content[:100].tobytes()


def test_a_changed_file_is_noticed(path: Path, device: str) -> None:
    with forebay.map(path, device) as mapped:
        mapped.check()
        # For reads through pinned memory a further hard link is no change of the bytes.
        if not mapped.in_place:
            os.link(path, path.with_suffix(".link"))
            mapped.check()
        time.sleep(0.05)  # Times of change have steps.
        with open(path, "r+b") as file:
            file.write(b"other")
            file.flush()
            os.fsync(file.fileno())
        with pytest.raises(OSError, match="changed"):
            mapped.check()
        for out in (None, np.zeros(16, np.uint8)):
            with pytest.raises(forebay.errors.BusyError, match="changed") as caught:
                mapped.gather([0], 16, out)
            assert any("forebay.map(path)" in hint for hint in caught.value.hints)
        os.truncate(path, 1)
        with pytest.raises(forebay.errors.BusyError, match="changed"):
            mapped.gather([SIZE - 16], 16)


def test_no_view_where_nothing_is_mapped(path: Path) -> None:
    with forebay.map(path, "cpu") as mapped:
        assert not mapped.in_place
        assert mapped.reason is not None
        with pytest.raises(NotImplementedError, match="host memory") as caught:
            mapped.view()
        assert any("gather" in hint for hint in caught.value.hints)


def test_open_costs_no_second_wait(path: Path, gpu: str) -> None:
    time.sleep(1.1)  # a file that was just written is left to settle first
    for _ in range(3):
        with forebay.map(path, gpu) as mapped:
            assert mapped.pinned_bytes >= SIZE
