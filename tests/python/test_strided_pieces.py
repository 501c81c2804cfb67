"""`read_many` of pieces with strides: a slice of a file's array into a slice of another, whatever their strides."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forebay


def start_of(view: np.ndarray[Any, Any], base: np.ndarray[Any, Any]) -> int:
    return int(view.__array_interface__["data"][0] - base.__array_interface__["data"][0])


def any_slice(dice: random.Random, shape: list[int], dtype: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """An array, and a slice of it of this shape: with steps, backwards, its axes in any order, from the middle of it."""
    order = dice.sample(range(len(shape)), len(shape))
    cuts: list[Any] = [...]
    turns: list[Any] = [...]
    sizes = []
    for axis in order:
        step, before, behind = dice.choice((1, 1, 1, 2, 3)), dice.choice((0, 0, 2)), dice.choice((0, 0, 3))
        sizes.append(before + shape[axis] * step + behind)
        cuts.append(slice(before, before + shape[axis] * step, step))
        turns.append(slice(None, None, -1 if dice.random() < 0.2 else 1))
    base = np.zeros(sizes, dtype)
    view = base[tuple(cuts)][tuple(turns)]
    return base, view.transpose([order.index(axis) for axis in range(len(shape))])


class OnGpu:
    """A slice of one of forebay's arrays, as other libraries would show it."""

    def __init__(self, whole: forebay.Array, start: int, shape: tuple[int, ...], strides: tuple[int, ...], kind: str):
        self.whole = whole
        self.__cuda_array_interface__ = {
            "shape": shape,
            "strides": strides,
            "typestr": kind,
            "data": (whole.address + start, False),
            "version": 3,
        }


@pytest.mark.parametrize("seed", range(40))
def test_slices_into_slices(tmp_path: Path, device: str, seed: int) -> None:
    dice = random.Random(seed)
    pieces, checks = [], []
    content = b""
    for _ in range(dice.randint(1, 5)):
        dtype = dice.choice(("|u1", "<i2", "<f4", "<c16"))
        shape = [dice.choice((1, 2, 3, 5, 9)) for _ in range(dice.randint(0, 4))]
        base, stored = any_slice(dice, shape, dtype)
        base.reshape(-1).view("u1")[:] = np.frombuffer(dice.randbytes(base.nbytes), "u1")
        offset = len(content) + start_of(stored, base)
        content += base.tobytes() + dice.randbytes(dice.choice((0, 3, 5000)))
        room, target = any_slice(dice, shape, dtype)
        expected = room.copy()
        whole = forebay.empty(room.nbytes, device=device)
        whole.fill_from(room.tobytes())
        begin = start_of(target, room)
        np.lib.stride_tricks.as_strided(expected.reshape(-1)[begin // room.itemsize :], shape, target.strides)[...] = (
            stored
        )
        array = target if device == "cpu" else OnGpu(whole, begin, target.shape, target.strides, dtype)
        pieces.append((array, offset, stored.strides))
        checks.append((room, whole, expected, stored))
    path = tmp_path / "arrays"
    path.write_bytes(content)
    with forebay.open(path) as file:
        receipt = file.read_many(pieces)
    assert receipt.bytes == sum(stored.nbytes for *_, stored in checks)
    for room, whole, expected, _ in checks:
        found = room.tobytes() if device == "cpu" else whole.tobytes()
        assert found == expected.tobytes(), seed


def matrix_file(tmp_path: Path, rows: int, columns: int) -> tuple[Path, np.ndarray[Any, Any]]:
    matrix = np.arange(rows * columns, dtype="<i4").reshape(rows, columns)
    (tmp_path / "matrix").write_bytes(bytes(100) + matrix.tobytes())
    return tmp_path / "matrix", matrix


def test_a_hundred_thousand_rows_are_one_piece(tmp_path: Path, device: str) -> None:
    path, matrix = matrix_file(tmp_path, 100_000, 64)
    part = forebay.empty((100_000, 16), "I32", device)
    with forebay.open(path) as file:
        receipt = file.read_many([(part, 100 + 32 * 4, (256, 4))])
        assert part.tobytes() == matrix[:, 32:48].tobytes()
        later = file.read_many_async([(part, 100, (256, 4))])
        assert later.result().bytes == receipt.bytes == 6_400_000
    assert part.tobytes() == matrix[:, :16].tobytes()


def test_torch_s_slices(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path, matrix = matrix_file(tmp_path, 12, 10)
    fused, turned = torch.zeros(4, 30, dtype=torch.int32), torch.zeros(10, 12, dtype=torch.int32)
    with forebay.open(path) as file:
        # Rows 8..12 into the middle of a fused parameter; all of it into a transposed one.
        file.read_many([(fused.narrow(1, 7, 10), 100 + 8 * 40, [40, 4]), (turned.t(), 100, torch.Size([40, 4]))])
        with pytest.raises(forebay.Error, match="elements of the array share memory"):
            file.read_many([(torch.zeros(1, 10, dtype=torch.int32).expand(4, 10), 100, (40, 4))])
        with pytest.raises(forebay.Error, match="conjugated lazily"):
            file.read_many([(torch.zeros(2, dtype=torch.complex64).conj(), 100, (8,))])
        with pytest.raises(forebay.Error, match="device meta"):
            file.read_many([(torch.zeros(2, device="meta"), 100, (4,))])
        with pytest.raises(forebay.Error, match="not contiguous"):
            file.read_many([(turned.t(), 100)])
    assert (fused[:, 7:17].numpy() == matrix[8:]).all() and fused.sum() == matrix[8:].sum()
    assert (turned.numpy() == matrix.T).all()


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        (lambda room: (room, 100, (40,)), "1 strides for an array of 2 dimensions"),
        (lambda room: (room, 100, (0, 4)), "a stride of 0 in the file repeats its bytes"),
        (lambda room: (room, 79, (-40, 4)), "the strides lead to offsets that no file has"),
        (lambda room: (room, 1 << 62, (1 << 62, 4)), "the strides lead to offsets that no file has"),
        (lambda room: (np.lib.stride_tricks.as_strided(room, room.shape, (2, 4)), 0, (40, 4)), "share memory"),
        (
            lambda room: (np.lib.stride_tricks.as_strided(room, (1 << 13, 1 << 13), (1 << 14, 2)), 0, (4, 1 << 20)),
            "too many",
        ),
        (lambda room: (room, 100, "ab"), r"a piece is not \(array, offset\)"),
        (lambda room: (room, 100, (1.5, 4)), r"a piece is not \(array, offset\)"),
        (lambda room: (room, 100, (1 << 70, 4)), r"a piece is not \(array, offset\)"),
        (lambda room: (np.frombuffer(bytes(16), "i2").reshape(2, 4), 0, (8, 2)), "the array is read-only"),
    ],
)
def test_what_cannot_be_read_names_the_piece(
    tmp_path: Path, piece: Callable[[np.ndarray[Any, Any]], tuple[Any, ...]], message: str
) -> None:
    path, _ = matrix_file(tmp_path, 12, 10)
    good, room = np.zeros(10, "i4"), np.zeros((3, 4), "i2")
    with forebay.open(path) as file, pytest.raises(forebay.Error, match=message) as caught:
        file.read_many([(good, 100), piece(room)])
    assert caught.value.hints
    if "a piece is not" not in message:
        assert caught.value.__notes__[-1] == "in piece 1"
    assert not good.any() and not room.any(), "nothing was begun"


def test_a_file_that_ends_early_names_the_piece(tmp_path: Path, device: str) -> None:
    path, matrix = matrix_file(tmp_path, 12, 10)
    arrays = [forebay.empty((4, 5), "I32", device) for _ in range(4)]
    with forebay.open(path) as file:
        rows = [(arrays[at], 100 + at * 4 * 40, (40, 4)) for at in range(4)]
        with pytest.raises(forebay.errors.ShortReadError) as caught:
            file.read_many(rows)
        assert caught.value.context["piece"] == "3" and caught.value.context["file"] == str(path)
    assert arrays[1].tobytes() == matrix[4:8, :5].tobytes()


def test_strided_pieces_are_not_written(tmp_path: Path) -> None:
    path, _ = matrix_file(tmp_path, 12, 10)
    with forebay.open(path, "r+") as file, pytest.raises(forebay.Error, match="strided pieces are read, not written"):
        file.write_many([(np.zeros((3, 4), "i4"), 100, (40, 4))])  # type: ignore[list-item]


def test_nothing_is_read_for_nothing(tmp_path: Path, device: str) -> None:
    path, _ = matrix_file(tmp_path, 2, 2)
    with forebay.open(path) as file:
        assert file.read_many([(forebay.empty((0, 3), "I32", device), 1 << 40, (0, 0))]).bytes == 0
