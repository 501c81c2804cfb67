"""The native readers and plans beside the libraries whose files they read."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forebay
from forebay import _forebay as native
from forebay import errors

safetensors = pytest.importorskip("safetensors", reason="needs safetensors to compare with")


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def raw(header: dict[str, Any] | bytes, data: int) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data)


A, B = entry("F32", [2], 0, 8), entry("F32", [2], 8, 16)
FILES: dict[str, bytes] = {
    "plain": raw({"a": A, "b": B}, 16),
    "none": raw({}, 0),
    "blanks": raw(b" {}  \n", 0),
    "no metadata": raw(b'{"__metadata__":null}', 0),
    "metadata": raw({"__metadata__": {"k": "v"}, "a": A}, 8),
    "metadata twice": raw(b'{"__metadata__":{},"__metadata__":{}}', 0),
    "metadata of numbers": raw({"__metadata__": {"k": 1}}, 0),
    "unaligned": raw({"a": entry("U8", [1], 0, 1), "b": entry("F32", [2], 1, 9)}, 9),
    "scalar": raw({"a": entry("F32", [], 0, 4)}, 4),
    "empty tensors": raw({"a": entry("F32", [0], 0, 0), "b": entry("F32", [3, 0], 0, 0)}, 0),
    "empty one inside": raw({"a": A, "b": entry("F32", [0], 4, 4)}, 8),
    "empty one beyond": raw({"a": A, "b": entry("F32", [0], 12, 12)}, 8),
    "hole": raw({"a": A, "b": entry("F32", [2], 12, 20)}, 20),
    "hole in front": raw({"a": B}, 16),
    "bytes after": raw({"a": A}, 9),
    "cut off": raw({"a": A}, 7),
    "overlap": raw({"a": A, "b": entry("F32", [2], 4, 12)}, 12),
    "backwards": raw({"a": entry("F32", [2], 8, 0)}, 8),
    "other size": raw({"a": entry("F32", [3], 0, 8)}, 8),
    "overflow": raw({"a": entry("F32", [1 << 40, 1 << 40], 0, 8)}, 8),
    "overflow before zero": raw({"a": entry("F32", [1 << 40, 1 << 40, 0], 0, 0)}, 0),
    "zero before overflow": raw({"a": entry("F32", [0, 1 << 40, 1 << 40], 0, 0)}, 0),
    "half a byte": raw({"a": entry("F4", [3], 0, 2)}, 2),
    "unknown dtype": raw({"a": entry("C128", [1], 0, 16)}, 16),
    "fraction": raw({"a": {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}}, 8),
    "more keys": raw({"a": {**A, "more": [1, {}]}}, 8),
    "key missing": raw({"a": {"dtype": "F32", "shape": [2]}}, 8),
    "key twice": raw(b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', 8),
    "list": raw(b"[]", 0),
    "zero after it": raw(b"{}\0", 0),
    "no UTF-8": raw(b'{"\xff":{}}', 0),
    "short": b"\x01\x00",
    "long header": struct.pack("<Q", 100_000_001) + b"{}",
    "header cut off": struct.pack("<Q", 50) + b"{}",
}


@pytest.mark.parametrize("name", FILES)
def test_as_strict_as_safetensors(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(FILES[name])
    try:
        expected = {key: (value["dtype"], value["shape"]) for key, value in safetensors.deserialize(FILES[name])}
    except safetensors.SafetensorError as refused:
        with forebay.open(path) as file, pytest.raises(errors.InvalidInputError) as raised:
            native.read_safetensors(file)
        assert str(path) in str(raised.value), refused
        return
    with forebay.open(path) as file:
        header = native.read_safetensors(file)
    assert {key: (dtype, list(shape)) for key, dtype, shape, _, _ in header.tensors} == expected
    assert header.size == len(FILES[name])


def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    one = json.dumps(A).encode()
    path.write_bytes(raw(b'{"a":' + one + b',"a":' + one + b"}", 8))
    with forebay.open(path) as file, pytest.raises(errors.InvalidInputError, match="`a` appears twice"):
        native.read_safetensors(file)


@pytest.mark.parametrize("align", [8, 4096])
def test_plans_are_readable_by_safetensors(align: int) -> None:
    dtypes = ["U8", "BF16", "F64", "F32", "BOOL", "F8_E4M3", "F4", "C64"]
    tensors = [(f"t{index}", dtype, (2, index)) for index, dtype in enumerate(dtypes)]
    texts = {"format": "pt", "quotes": '"é\n'}
    header, places, size = native.plan_safetensors(tensors, texts, align)
    file = bytearray(size)
    file[: len(header)] = header
    for index, (offset, nbytes) in enumerate(places):
        file[offset : offset + nbytes] = bytes([index + 1]) * nbytes
    assert len(header) % align == 0
    found = dict(safetensors.deserialize(bytes(file)))
    for index, (name, dtype, shape) in enumerate(tensors):
        assert (found[name]["dtype"], tuple(found[name]["shape"])) == (dtype, shape)
        assert set(found[name]["data"]) <= {index + 1}
        nbytes = 2 * index * native.dtype_size(dtype) // 8
        assert len(found[name]["data"]) == nbytes == places[index][1]


def test_plans_that_cannot_be() -> None:
    with pytest.raises(errors.InvalidInputError, match="unknown dtype `f32`") as raised:
        native.plan_safetensors([("a", "f32", (1,))], None)
    assert raised.value.context["tensor"] == "a"
    with pytest.raises(errors.InvalidInputError, match="twice"):
        native.plan_safetensors([("a", "F32", (1,)), ("a", "F32", (1,))], None)


def test_shard_index() -> None:
    index = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}, "metadata": {"total_size": 16}}
    files, tensors, total = native.read_shard_index(json.dumps(index).encode())
    assert (files, tensors, total) == (["m-1.safetensors", "m-2.safetensors"], [("a", 0), ("b", 1)], 16)
    with pytest.raises(errors.InvalidInputError, match="outside"):
        native.read_shard_index(b'{"weight_map":{"a":"../secrets"}}')


@pytest.mark.parametrize("dtype", ["<f4", "|b1", ">i8", "<c16", "|u1", "<M8[ns]", "<U5", "|S3"])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4), (2, 3, 4)])
def test_npy_as_numpy(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    array = np.zeros(shape, dtype)
    for order in ("C", "F"):
        path = tmp_path / f"{order}.npy"
        np.save(path, np.asarray(array, order=order))  # type: ignore[call-overload]
        with forebay.open(path) as file:
            descr, fortran, found, offset = native.read_npy_header(file)
        assert (np.dtype(descr), found, offset + array.nbytes) == (array.dtype, shape, path.stat().st_size)
        assert fortran == (order == "F" and array.ndim > 1 and not np.asfortranarray(array).flags.c_contiguous)
        header = native.npy_header(descr, fortran, shape)
        assert len(header) % 64 == 0
        path.write_bytes(header + bytes(array.nbytes))
        np.testing.assert_array_equal(np.load(path), array)


def test_objects_and_structures_are_refused(tmp_path: Path) -> None:
    for array, word in [(np.array([None]), "objects"), (np.zeros(2, [("a", "f4")]), "structures")]:
        path = tmp_path / "x.npy"
        np.save(path, array, allow_pickle=True)
        with forebay.open(path) as file, pytest.raises(errors.UnsupportedError, match=word):
            native.read_npy_header(file)


def test_zip_as_zipfile(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    arrays = {"one": np.arange(1000), "two": np.ones((3, 4), "f4")}
    for save, method in ((np.savez, 0), (np.savez_compressed, 8)):
        save(path, **arrays)
        with forebay.open(path) as file:
            entries = native.read_zip(file)
        whole = path.read_bytes()
        for found, info in zip(entries, zipfile.ZipFile(path).infolist(), strict=True):
            name, packing, offset, packed, size, crc = found
            assert (name, packing, packed, size, crc) == (
                info.filename, method, info.compress_size, info.file_size, info.CRC,
            )  # fmt: skip
            data = whole[offset : offset + packed]
            assert zlib.crc32(zlib.decompress(data, -15) if method else data) == crc


@pytest.mark.parametrize("align", [1, 64, 4096])
def test_planned_zips_are_readable_by_zipfile(align: int, tmp_path: Path) -> None:
    entries = {"a": b"hello", "folder/é": bytes(range(256)) * 40, "empty": b""}
    plan = native.plan_zip([(name, len(data)) for name, data in entries.items()], align)
    crcs = [zlib.crc32(data) for data in entries.values()]
    archive = bytearray(plan.size)
    for index, (place, data) in enumerate(zip(plan.places, entries.values(), strict=True)):
        header, begin, size = place
        assert begin % align == 0 and size == len(data)
        archive[begin : begin + size] = data
        archive[header:begin] = plan.header(index, crcs[index])
    archive[plan.directory_offset :] = plan.directory(crcs)
    path = tmp_path / "x.zip"
    path.write_bytes(archive)
    with zipfile.ZipFile(path) as opened:
        assert opened.testzip() is None
        assert {name: opened.read(name) for name in opened.namelist()} == entries


def test_crc32_of_parts() -> None:
    data = np.arange(100_000, dtype=np.uint8)
    whole = zlib.crc32(data)
    first = native.crc32(data.ctypes.data, 300)
    assert native.crc32(data.ctypes.data + 300, data.size - 300, first) == whole
    second = native.crc32(data.ctypes.data + 300, data.size - 300)
    assert native.crc32_combine(first, second, data.size - 300) == whole


def test_slices_as_numpy() -> None:
    array = np.arange(4 * 5 * 6, dtype="<u2").reshape(4, 5, 6)
    data = array.tobytes()
    parts = [slice(0, 4, 1), slice(1, 3, 1), slice(0, 4, 2), slice(2, 2, 1)]
    for index in itertools.product(parts, repeat=3):
        runs, shape = native.plan_slice(array.shape, 16, [(part.start, part.stop, part.step) for part in index])
        expected = array[index]
        assert shape == expected.shape
        assert b"".join(data[offset : offset + nbytes] for offset, nbytes in runs) == expected.tobytes()
        assert runs.total == expected.nbytes
        assert list(np.frombuffer(runs.offsets(), "u8")) == [offset for offset, _ in runs]
        if runs.uniform is not None:
            first, count, stride, nbytes = runs.uniform
            assert [(first + at * stride, nbytes) for at in range(count)] == list(runs)
    runs, _ = native.plan_slice((4, 6), 8, [(0, 4, 1), (1, 2, 1)])
    assert runs[-1] == (19, 1) and len(runs) == 4
    with pytest.raises(IndexError):
        runs[4]


def save(path: Path, data: bytes) -> None:
    with native.Pending(path) as pending:
        pending.file.write_from(bytearray(data))
        pending.commit()


def test_a_save_appears_in_one_step(tmp_path: Path) -> None:
    path, link = tmp_path / "model", tmp_path / "link"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to("model")
    with native.Pending(link) as pending:
        assert Path(pending.target) == path
        pending.file.write_from(bytearray(b"newer"))
        assert path.read_bytes() == b"old"
        pending.commit()
    assert path.read_bytes() == b"newer" and link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert pending.file.closed
    with pytest.raises(ValueError, match="ended"):
        pending.commit()


def test_a_save_keeps_attributes_and_drops_setuid(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"old")
    path.chmod(0o4755)
    try:
        os.setxattr(path, "user.origin", b"there")
    except OSError as error:
        pytest.skip(f"no attributes here: {error}")
    save(path, b"newer")
    assert path.stat().st_mode & 0o7777 == 0o755
    assert os.getxattr(path, "user.origin") == b"there"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_save_warns_of_what_it_cannot_keep() -> None:
    folder = Path(tempfile.mkdtemp())
    path = folder / "model"
    path.write_bytes(b"old")
    path.chmod(0o626)
    folder.chmod(0o777)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(1234, 1234, 1234)
            os.setresuid(1234, 1234, 1234)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                forebay.save_file({"a": np.zeros(3, "float32")}, path)
            texts = [str(one.message) for one in caught]
            expected = ["belongs to the user who saved it", "the group could not be kept"]
            code = 0 if all(word in text for word, text in zip(expected, texts, strict=True)) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (1234, 1234, 0o622)
    shutil.rmtree(folder)


def test_a_save_without_commit_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"old")
    with pytest.raises(KeyError), native.Pending(path) as pending:
        pending.file.write_from(bytearray(b"newer"))
        raise KeyError
    with native.Pending(path):
        pass
    given_up = native.Pending(path)
    given_up.abort()
    given_up.abort()
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["model"]


def test_refused_targets(tmp_path: Path) -> None:
    with pytest.raises(errors.Error, match="directory"):
        native.Pending(tmp_path)
    with pytest.raises(FileNotFoundError, match="folder") as raised:
        native.Pending(tmp_path / "none" / "x")
    assert "mkdir" in raised.value.hints[0]
    with pytest.raises(errors.InvalidInputError, match="regular"):
        native.Pending("/dev/null")


def test_a_killed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"old")
    script = (
        "import os, signal, sys; from forebay import _forebay as native; pending = native.Pending(sys.argv[1]);"
        "pending.file.write_from(bytearray(1 << 20)); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    save(path, b"new")
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["model"]
