"""safe_open: answers like safetensors' own, and reads only the needed parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from safetensors.numpy import save_file as reference_save

import forebay
from forebay import _paths, errors, lazy
from forebay.slices import IndexOutOfBoundsError, select

TENSORS: dict[str, np.ndarray[Any, Any]] = {
    "cube": np.arange(2 * 3 * 4, dtype="f4").reshape(2, 3, 4),
    "matrix": np.arange(35, dtype="i2").reshape(5, 7),
    "row": np.arange(9, dtype="u1"),
    "scalar": np.array(5, "i8"),
    "none": np.zeros((0, 3), "f4"),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    reference_save(TENSORS, tmp_path / "m.safetensors", {"format": "np"})
    return tmp_path / "m.safetensors"


def test_everything_but_tensors_as_safetensors_says_it(path: Path) -> None:
    with safetensors.safe_open(path, "np") as theirs, forebay.safe_open(path, "np") as ours:
        assert ours.keys() == theirs.keys()
        assert ours.offset_keys() == theirs.offset_keys()
        assert ours.metadata() == theirs.metadata()
        for name in theirs.keys():
            assert ours.get_slice(name).get_shape() == theirs.get_slice(name).get_shape()
            assert ours.get_slice(name).get_dtype() == theirs.get_slice(name).get_dtype()
            assert np.array_equal(ours.get_tensor(name), theirs.get_tensor(name))


SLICES = [
    0, -1, 1, slice(None), slice(0, 1), slice(-1, None), slice(1, 100), slice(2, 1), slice(5, 9), slice(None, None, 2),
    slice(1, None, 3), slice(np.int64(0), np.int64(1)), np.int64(1), Ellipsis, (), (0, 1), (0, Ellipsis),
    (Ellipsis, 1), (Ellipsis, slice(1, 3)), (slice(None), 1), (slice(None), slice(1, 3)), (slice(None), slice(0, 3, 2)),
    (1, slice(None, None, 2)), (slice(0, 2), slice(1, 2)), (slice(0, 2, 5),),
]  # fmt: skip


@pytest.mark.parametrize("name", ["cube", "matrix"])
@pytest.mark.parametrize("index", SLICES, ids=str)
def test_parts_as_safetensors_cuts_them(path: Path, name: str, index: Any) -> None:
    with safetensors.safe_open(path, "np") as theirs, forebay.safe_open(path, "np") as ours:
        found = ours.get_slice(name)[index]
        wanted = TENSORS[name][index]
        assert found.dtype == wanted.dtype and found.shape == wanted.shape and np.array_equal(found, wanted)
        try:
            reference = theirs.get_slice(name)[index]
        except (safetensors.SafetensorError, OverflowError, SystemError):
            return  # With numpy it takes less than numpy does: no end beyond the array, no negative start.
        assert found.shape == reference.shape and np.array_equal(found, reference)


def test_what_numpy_takes_and_safetensors_does_not(path: Path) -> None:
    with forebay.safe_open(path, "np") as file:
        for index in (None, (None, 0), (0, None, Ellipsis), (slice(None), None, 2), [0, 1], (slice(None), [0, 2]),
                      np.array([1, 0]), True, (TENSORS["cube"] > 4)):  # fmt: skip
            found = file.get_slice("cube")[index]
            assert np.array_equal(found, TENSORS["cube"][index]), index
            assert found.flags.owndata or found.base is None
        assert file.get_slice("scalar")[()] == 5 and file.get_slice("scalar")[...].shape == ()
        assert file.get_slice("none")[:].shape == (0, 3) and file.get_slice("none")[:, 1].shape == (0,)


def test_random_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    for round_ in range(150):
        # Every other round as if any selection had too many runs.
        monkeypatch.setattr(lazy, "_MAX_SHORT_RUNS", 0 if round_ % 2 else 1 << 16)
        shape = tuple(int(size) for size in rng.integers(1, 7, rng.integers(1, 5)))
        array = rng.integers(0, 1000, shape).astype(rng.choice(["u1", "i2", "f4", "f8"]))
        reference_save({"a": array}, tmp_path / "r.safetensors")
        index: list[Any] = []
        for size in shape[: rng.integers(1, len(shape) + 1)]:
            start, stop = sorted(int(x) for x in rng.integers(-size, size + 1, 2))
            part = slice(start, stop, int(rng.integers(1, 4)))
            index.append(int(rng.integers(0, size)) if rng.random() < 0.3 else part)
        if rng.random() < 0.3:
            index.insert(int(rng.integers(0, len(index) + 1)), None)
        with forebay.safe_open(tmp_path / "r.safetensors", "np") as file:
            found = file.get_slice("a")[tuple(index)]
        assert found.shape == array[tuple(index)].shape, (shape, index)
        assert np.array_equal(found, array[tuple(index)]), (shape, index)


def test_native_parts_on_each_device(path: Path, device: str) -> None:
    with forebay.safe_open(path, "native", device=device) as file:
        part = file.get_slice("matrix")[1:4, 2:5]
        assert part.device == device and part.shape == (3, 3)
        assert part.tobytes() == TENSORS["matrix"][1:4, 2:5].tobytes()
        with pytest.raises(errors.UnsupportedError, match="numbers, slices"):
            file.get_slice("matrix")[[0, 1]]


def test_bad_indices(path: Path) -> None:
    with forebay.safe_open(path, "np") as file:
        cube = file.get_slice("cube")
        for index in (5, -3, (0, 3), (0, 0, 0, 0), (Ellipsis, 4)):
            with pytest.raises(IndexError):
                cube[index]
        for step in (-1, 0):
            with pytest.raises(ValueError, match="step"):
                cube[::step]
        with pytest.raises(IndexError):
            cube["x"]
        with pytest.raises(IndexError):
            file.get_slice("scalar")[0]
        # The end of a loop is an IndexError.
        assert [part.shape for part in cube] == [(3, 4), (3, 4)]
    assert issubclass(IndexOutOfBoundsError, errors.Error)


def test_a_slice_backwards_is_refused_with_what_helps(path: Path) -> None:
    with pytest.raises(errors.InvalidInputError, match="step") as caught:
        forebay.safe_open(path, "np").get_slice("row")[::-1]
    assert "array[::-1]" in caught.value.hints[0] and "flip" in caught.value.hints[0]


def test_selections() -> None:
    assert select((Ellipsis, 0), (2, 3)) == ([(0, 2, 1), (0, 1, 1)], (2,))
    assert select(True, (2,)) is None and select([0], (2,)) is None and select(np.zeros(2, int), (2,)) is None
    assert select(slice(5, 2), (9,)) == ([(5, 5, 1)], (0,))


def test_several_at_once(path: Path) -> None:
    with forebay.safe_open(path, "np") as file:
        found = file.get_tensors(["row", "cube", "row"])
        assert list(found) == [name for name in file.offset_keys() if name in ("row", "cube")]
        assert np.array_equal(found["cube"], TENSORS["cube"])
        assert file.get_tensors().keys() == TENSORS.keys()
        with pytest.raises(errors.InvalidInputError, match="rows") as caught:
            file.get_tensors(["rows"])
        assert "'row'" in caught.value.hints[0]


def test_unknown_names_and_closed_files(path: Path) -> None:
    with forebay.safe_open(path, "np") as file:
        part = file.get_slice("row")
        for get in (file.get_tensor, file.get_slice):
            with pytest.raises(errors.InvalidInputError, match="tensor=rwo"):
                get("rwo")
    for call in (file.keys, file.metadata, file.offset_keys, lambda: file.get_tensor("row"), file.__enter__):
        with pytest.raises(errors.InvalidInputError, match="closed"):
            call()
    # As in safetensors, a slice lives on.
    assert np.array_equal(part[2:4], [2, 3])
    assert repr(part) == "TensorSlice('row', U8, [9])"
    # And a file works without a with block.
    assert "row" in forebay.safe_open(path, "np").keys()


def test_frameworks_and_devices_that_do_not_fit(path: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidInputError, match="unknown framework"):
        forebay.safe_open(path, "bogus")
    with pytest.raises(errors.UnsupportedError, match="host memory") as caught:
        forebay.safe_open(path, "np", device="cuda:0")
    assert caught.value.hints
    with pytest.raises(FileNotFoundError):
        forebay.safe_open(tmp_path / "none", "np")
    with pytest.raises(OSError):
        forebay.safe_open(tmp_path, "np")


def test_only_the_needed_bytes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the file is gone: what does not touch it still works."""
    monkeypatch.setattr(_paths.Watch, "check", lambda self: None)
    path = tmp_path / "m.safetensors"
    big = np.arange(1 << 20, dtype="f4").reshape(1024, 1024)
    reference_save({"big": big}, path)
    with forebay.safe_open(path, "np") as file:
        part = file.get_slice("big")
        size = path.stat().st_size
        with path.open("r+b") as raw:
            raw.truncate(size - 2_000_000)
        assert np.array_equal(part[:100, 5:9], big[:100, 5:9])
        with pytest.raises(EOFError):
            part[...]


def test_torch_as_safetensors_cuts_it(path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    arrays = [torch.tensor([1, 0]), torch.tensor(1)]
    indices: list[Any] = [*SLICES, None, (None, 0), [0, 1], (slice(None), [0, 1]), *arrays]
    with safetensors.safe_open(path, "pt") as theirs, forebay.safe_open(path, "pt", torch.device("cpu")) as ours:
        for name in ("cube", "matrix"):
            for index in indices:
                wanted = theirs.get_slice(name)[index]
                found = ours.get_slice(name)[index]
                assert found.dtype == wanted.dtype and torch.equal(found, wanted), (name, index)
                assert found.untyped_storage().nbytes() == found.nbytes and not found.requires_grad
