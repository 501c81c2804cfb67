"""One table of element types: what one format or function takes, all take; and what a framework lacks harms nothing else."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forebay
from forebay import data, errors, frameworks
from forebay.frameworks import _dtypes

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")

#: Every type that numpy has with ml_dtypes, by numpy's name.
NAMES = [
    name
    for name in (*_dtypes.PLAIN.values(), *_dtypes.EXTRA.values())
    if name in _dtypes.PLAIN.values() or hasattr(ml_dtypes, name)
]


def of_bytes(name: str) -> Any:
    """Three rows of two elements."""
    dtype = np.dtype(getattr(ml_dtypes, name) if name in _dtypes.EXTRA.values() else name)
    return np.arange(6 * dtype.itemsize, dtype="u1").__mod__(2).astype("u1").view(dtype).reshape(3, 2)


def test_nothing_of_ml_dtypes_is_unknown() -> None:
    theirs = {
        name for name, kind in vars(ml_dtypes).items() if isinstance(kind, type) and name not in ("finfo", "iinfo")
    }
    assert theirs <= set(_dtypes.EXTRA.values())
    assert all(_dtypes.name_of(np.dtype(getattr(ml_dtypes, name))) for name in theirs)


@pytest.mark.parametrize("name", NAMES)
def test_each_type_goes_through_each_file(name: str, tmp_path: Path) -> None:
    array = of_bytes(name)
    np.save(tmp_path / "theirs.npy", array)
    forebay.write_npy(tmp_path / "ours.npy", array)
    forebay.write_npz(tmp_path / "ours.npz", {"a": array})
    assert np.load(tmp_path / "ours.npy").tobytes() == array.tobytes()  # numpy itself reads ours, be it as bytes.
    with forebay.open_npz(tmp_path / "ours.npz") as archive:
        found = [archive.open("a", dtype=name)[...]]
    found += [forebay.read_npy(tmp_path / file, dtype=name) for file in ("theirs.npy", "ours.npy")]
    found += [forebay.read_npy(tmp_path / "ours.npy", "cpu", "native", dtype=name).numpy()]
    array.tofile(tmp_path / "raw")
    found += [data.raw(tmp_path / "raw", name, (2,), framework="numpy")[[0, 1, 2]]]
    found += [data.npy(tmp_path / "theirs.npy", dtype=name, framework="numpy")[[0, 1, 2]]]
    data.pack(list(array), tmp_path / "packed")
    found += [data.packed(tmp_path / "packed", framework="numpy")[[0, 1, 2]]]
    for one in found:
        assert one.shape == array.shape and one.tobytes() == array.tobytes()
        assert one.dtype in (array.dtype, np.dtype(f"V{array.itemsize}"))


def test_each_type_of_torch_goes_through_each_file(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for name, theirs in _dtypes.TORCH.items():
        if name == "F4" or not hasattr(torch, theirs):
            continue
        dtype = getattr(torch, theirs)
        size = 6 * dtype.itemsize
        tensor = (torch.arange(size, dtype=torch.uint8) % 2).view(dtype).reshape(3, 2)
        forebay.write_npy(tmp_path / "a.npy", tensor)
        data.pack(list(tensor), tmp_path / "packed")
        for found in (
            forebay.read_npy(tmp_path / "a.npy", "cpu", "torch", dtype=dtype),
            data.packed(tmp_path / "packed", device="cpu")[[0, 1, 2]],
            data.npy(tmp_path / "a.npy", dtype=dtype, device="cpu")[[0, 1, 2]],
        ):
            assert found.dtype == dtype and bytes(found.reshape(-1).view(torch.uint8).tolist()) == bytes(
                tensor.reshape(-1).view(torch.uint8).tolist()
            )
        if name in _dtypes.STORABLE:
            forebay.save_file({"a": tensor}, tmp_path / "a.safetensors")
            assert forebay.load_file(tmp_path / "a.safetensors", "cpu")["a"].dtype == dtype
            continue
        with pytest.raises(errors.UnsupportedError, match=f"safetensors has no such dtype.*dtype={name}") as caught:
            forebay.save_file({"a": tensor}, tmp_path / "a.safetensors")
        assert "write_npy" in caught.value.hints[1]


def test_files_that_say_only_how_wide_elements_are(tmp_path: Path) -> None:
    for name, width in (("float8_e4m3fn", 1), ("bfloat16", 2), ("bcomplex32", 4)):
        np.save(tmp_path / "a.npy", of_bytes(name))
        with pytest.raises(errors.UnsupportedError) as caught:
            forebay.read_npy(tmp_path / "a.npy", "cpu", "native")
        assert f"{name!r}" in caught.value.hints[0], width
    np.save(tmp_path / "a.npy", of_bytes("float8_e5m2"))
    assert forebay.read_npy(tmp_path / "a.npy").dtype == ml_dtypes.float8_e5m2  # It alone has a name in such files.
    with pytest.raises(errors.InvalidInputError, match="not F8_E4M3"):
        forebay.read_npy(tmp_path / "a.npy", dtype="float8_e4m3fn")


def test_what_a_framework_lacks_harms_nothing_else(tmp_path: Path) -> None:
    header = {
        "fine": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        "odd": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [4, 7]},
    }
    text = json.dumps(header).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + struct.pack("<f3x", 1.5))
    with pytest.raises(errors.UnsupportedError, match="tensor=odd") as caught:
        forebay.load_file(path, framework="numpy")
    names = eval(caught.value.hints[-1].partition("names=")[2])
    assert forebay.load_file(path, framework="numpy", names=names)["fine"] == [1.5]
    with forebay.safe_open(path, "numpy") as file:
        assert file.get_tensor("fine") == [1.5] and file.get_slice("odd").get_shape() == [4]

    np.savez(tmp_path / "a.npz", fine=np.ones(2), words=np.array(["a", "bc"]))
    with forebay.open_npz(tmp_path / "a.npz", framework="native", device="cpu") as archive:
        assert archive["fine"].shape == (2,)
        with pytest.raises(errors.UnsupportedError, match="member=words"):
            archive["words"]
        with pytest.raises(errors.UnsupportedError, match="member=words") as caught:
            archive.read()
    assert "names=" in caught.value.hints[-1] and "'words'" in caught.value.hints[-1]
    with (
        forebay.open_npy(tmp_path / "a.npz", framework="numpy")
        if False
        else forebay.open_npz(tmp_path / "a.npz", framework="torch") as archive
    ):
        assert archive.open("words").shape == (2,)


def test_structures_are_refused_whatever_their_names_are(tmp_path: Path) -> None:
    for dtype in ([("größe", "f4")], [("大小", "f4")], [(f"field_{number:05}", "f4", (3,)) for number in range(2400)]):
        with pytest.warns(UserWarning) if len(dtype) > 1 or "大" in dtype[0][0] else _nothing():
            np.save(tmp_path / "a.npy", np.zeros(3, dtype))
        with pytest.raises(errors.UnsupportedError, match="structures") as caught:
            forebay.read_npy(tmp_path / "a.npy")
        assert caught.value.hints


def _nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()


def test_all_frameworks_speak_of_the_same_types() -> None:
    for name in ("torch", "jax", "numpy", "native"):
        try:
            framework = frameworks.get(name)
        except errors.UnsupportedError:
            continue
        for dtype in (*_dtypes.PLAIN, *_dtypes.EXTRA, "F4", "F6_E2M3"):
            own = framework.dtype(dtype)
            assert (framework.dtype_name(own) == dtype) if own is not None else framework.dtype_hints(dtype)
