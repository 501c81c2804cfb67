"""Files that are truncated, that lie, or that change while they are read: refused with the reason, nothing returned."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file as reference_load
from safetensors.numpy import save_file as reference_save

import forebay
from forebay import errors, frameworks, loading


def file_with(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def tensor(shape: list[Any], begin: int, end: int, dtype: object = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


LIES: dict[str, tuple[object, bytes]] = {
    "beyond the end of the file": ({"a": tensor([4], 0, 16)}, bytes(8)),
    "overlap": ({"a": tensor([4], 0, 16), "b": tensor([4], 8, 24)}, bytes(24)),
    "a hole": ({"a": tensor([1], 0, 4), "b": tensor([1], 8, 12)}, bytes(12)),
    "bytes after the last tensor": ({"a": tensor([1], 0, 4)}, bytes(8)),
    "size and shape differ": ({"a": tensor([3], 0, 16)}, bytes(16)),
    "the shape overflows": ({"a": tensor([1 << 40, 1 << 40], 0, 16)}, bytes(16)),
    "the size overflows": ({"a": tensor([1 << 62], 0, 16)}, bytes(16)),
    "end before begin": ({"a": tensor([1], 4, 0)}, bytes(4)),
    "negative offsets": ({"a": tensor([1], -4, 0)}, bytes(4)),
    "negative dimension": ({"a": tensor([-1], 0, 4)}, bytes(4)),
    "a fraction as a dimension": ({"a": tensor([1.5], 0, 4)}, bytes(4)),
    "a dtype that does not exist": ({"a": tensor([1], 0, 4, "F33")}, bytes(4)),
    "a dtype that is no text": ({"a": tensor([1], 0, 4, 5)}, bytes(4)),
    "the same name twice": (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
                            b'"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', bytes(2)),
    "no object": ([], b""),
    "no JSON": (b"{nonsense", b""),
    "no UTF-8": (b'{"\xff\xfe":1}', b""),
    "nested without end": (b'{"a":' + b"[" * 100_000, b""),
    "metadata that is no text": ({"__metadata__": {"a": 5}}, b""),
    "a missing field": ({"a": {"dtype": "F32", "shape": [1]}}, bytes(4)),
}  # fmt: skip


@pytest.fixture
def no_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any allocation is a failure."""

    def refuse(self: object, device: object) -> object:
        raise AssertionError("something was allocated for a file that lies")

    monkeypatch.setattr(type(frameworks.get("numpy")), "allocator", refuse)


@pytest.mark.usefixtures("no_allocation")
@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused_before_any_allocation(tmp_path: Path, lie: str) -> None:
    header, data = LIES[lie]
    path = file_with(tmp_path / "m.safetensors", header, data)
    for read in (lambda: forebay.load_file(path, framework="numpy"), lambda: forebay.safe_open(path, "numpy")):
        with pytest.raises((errors.IntegrityError, errors.InvalidInputError)) as caught:
            read()
        assert str(path) in str(caught.value)


@pytest.mark.usefixtures("no_allocation")
@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1, 1 << 40, 100_000_001, 50])
def test_a_header_longer_than_the_file(tmp_path: Path, length: int) -> None:
    path = file_with(tmp_path / "m.safetensors", b"{}", length=length)
    with pytest.raises((errors.IntegrityError, errors.InvalidInputError)):
        forebay.load_file(path, framework="numpy")


@pytest.mark.usefixtures("no_allocation")
def test_a_file_truncated_anywhere(tmp_path: Path) -> None:
    whole = tmp_path / "whole.safetensors"
    reference_save({"a": np.arange(50, dtype="f4"), "b": np.arange(30, dtype="u1")}, whole)
    content = whole.read_bytes()
    for length in range(len(content)):
        path = tmp_path / "part.safetensors"
        path.write_bytes(content[:length])
        with pytest.raises((errors.IntegrityError, errors.InvalidInputError)):
            forebay.load_file(path, framework="numpy")


def test_damaged_headers_never_crash(tmp_path: Path) -> None:
    """Either refused with an error of ours, or what comes out fits the file."""
    path = tmp_path / "m.safetensors"
    reference_save({"a": np.arange(50, dtype="f4"), "b": np.arange(30, dtype="u1")}, path)
    content = bytearray(path.read_bytes())
    header = 8 + struct.unpack("<Q", content[:8])[0]
    rng = np.random.default_rng(1)
    refused = 0
    for _ in range(1500):
        damaged = bytearray(content)
        for _ in range(rng.integers(1, 4)):
            damaged[rng.integers(0, header)] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            loaded = forebay.load_file(path, framework="native", device="cpu")
        except errors.Error:
            refused += 1
        else:
            assert sum(array.nbytes for array in loaded.values()) == len(content) - header
    assert refused > 1000


def test_a_huge_dimension_beside_a_zero_is_no_trap(tmp_path: Path) -> None:
    # 0 bytes: the header is right, but no framework takes such a shape.
    path = file_with(tmp_path / "m.safetensors", {"a": tensor([0, 1 << 63], 0, 0)})
    with pytest.raises(errors.Error):
        forebay.load_file(path, framework="numpy")


def test_a_dtype_that_the_framework_lacks(tmp_path: Path, no_allocation: None) -> None:
    header = {"fine": tensor([1], 0, 4), "odd": tensor([4], 4, 7, "F6_E2M3")}
    path = file_with(tmp_path / "m.safetensors", header, bytes(7))
    with pytest.raises(errors.UnsupportedError, match="numpy has no dtype for F6_E2M3") as caught:
        forebay.load_file(path, framework="numpy")
    assert caught.value.context == {"tensor": "odd", "dtype": "F6_E2M3", "framework": "numpy"}
    assert "read its bytes" in caught.value.hints[0]
    with pytest.raises(errors.UnsupportedError, match="F6_E2M3"):
        forebay.safe_open(path, "numpy").get_tensor("odd")


class Meddler:
    """Does something to the file when the loader knows its header and is about to allocate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
        framework = type(frameworks.get("numpy"))
        allocator = framework.allocator

        def meddle(*args: Any) -> Any:
            nonlocal act
            act()
            act = lambda: None  # noqa: E731
            return allocator(*args)

        monkeypatch.setattr(framework, "allocator", meddle)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "m.safetensors"
    reference_save({f"t{i}": np.full(10_000, i, "f4") for i in range(10)}, path)
    os.utime(path, (1, 1))
    return path


def test_a_file_replaced_while_loading_is_loaded_as_it_was(victim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = victim.with_name("other")
    reference_save({f"t{i}": np.full(10_000, -1, "f4") for i in range(10)}, other)
    for act in (lambda: os.replace(other, victim), victim.unlink):
        wanted = reference_load(victim)
        Meddler(monkeypatch, act)
        loaded = forebay.load_file(victim, framework="numpy")
        assert all(np.array_equal(loaded[name], wanted[name]) for name in wanted)


def test_a_file_truncated_while_loading(victim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Meddler(monkeypatch, lambda: os.truncate(victim, 20_000))
    with pytest.raises(errors.BusyError, match="changed while it was read") as caught:
        forebay.load_file(victim, framework="numpy")
    assert isinstance(caught.value.__context__, errors.ShortReadError)


def test_a_file_rewritten_in_place_while_loading(victim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rewrite() -> None:
        with victim.open("r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(b"abcd")

    Meddler(monkeypatch, rewrite)
    with pytest.raises(errors.BusyError):
        forebay.load_file(victim, framework="numpy")


def test_out_of_memory_keeps_nothing(victim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = frameworks.get("numpy")
    alive: list[Any] = []

    def allocator(self: object, device: object) -> Callable[..., Any]:
        import weakref

        def allocate(shape: tuple[int, ...], dtype: str) -> Any:
            if len(alive) == 7:
                raise MemoryError("no more")
            array = np.empty(shape, numpy.dtype(dtype))
            alive.append(weakref.ref(array))
            return array

        return allocate

    monkeypatch.setattr(type(numpy), "allocator", allocator)
    monkeypatch.setitem(loading._LIMITS, "group", 100_000)
    with pytest.raises(MemoryError, match="not enough memory on cpu") as caught:
        forebay.load_file(victim, framework="numpy")
    assert isinstance(caught.value, errors.OutOfMemoryError)
    assert caught.value.context["needed"] == "0.00 GB" and caught.value.hints
    assert len(alive) == 7 and all(ref() is None for ref in alive), "the error keeps arrays alive"


TOO_LARGE = """
import json, resource, struct, sys
import forebay
path, device = sys.argv[1:]
size = 1 << 40
header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
with open(path, "wb") as file:
    file.write(struct.pack("<Q", len(header)) + header)
    file.truncate(8 + len(header) + size)
resource.setrlimit(resource.RLIMIT_AS, (64 << 30, 64 << 30))
try:
    forebay.load_file(path, device, "native")
except MemoryError as error:
    print(type(error).__name__, "|", *error.hints)
"""


def test_hints_are_about_the_memory_that_is_too_small(
    tmp_path: Path, gpu: str, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = run_python(TOO_LARGE, str(tmp_path / "m"), "cpu")
    assert done.stdout == "OutOfMemoryError | load only some: names=[…] free -g shows what is available\n", done.stderr
    done = run_python(TOO_LARGE, str(tmp_path / "m"), gpu)
    assert done.stdout.startswith('DeviceOutOfMemoryError | spread them over devices: device={"layer.0.": '), (
        done.stderr
    )


def rewrite_end(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"abcd")


def test_a_file_rewritten_in_place_while_it_is_open(victim: Path) -> None:
    with forebay.safe_open(victim, "numpy") as opened:
        part = opened.get_slice("t1")
        assert opened.get_tensor("t0")[0] == 0
        rewrite_end(victim)
        for read in (lambda: opened.get_tensor("t0"), lambda: part[:5], lambda: part[::2], lambda: part[...]):
            with pytest.raises(errors.BusyError, match="changed while it was read"):
                read()
        os.truncate(victim, 2000)
        with pytest.raises(errors.BusyError):
            opened.get_tensor("t9")


def test_a_file_replaced_while_it_is_open_is_still_read(victim: Path) -> None:
    with forebay.safe_open(victim, "numpy") as opened:
        forebay.save_file({"t3": np.zeros(3)}, victim)
        assert opened.get_tensor("t3")[0] == 3
        victim.unlink()
        assert opened.get_slice("t4")[7:8].tolist() == [4]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_rewritten_in_place(tmp_path: Path, save: Any) -> None:
    path = tmp_path / "a.npz"
    save(path, x=np.zeros(1000), y=np.ones(1000))
    os.utime(path, (1, 1))
    with forebay.open_npz(path) as opened:
        assert opened["y"][0] == 1
        rewrite_end(path)
        with pytest.raises(errors.BusyError, match="changed while it was read"):
            opened["x"]
        with pytest.raises(errors.BusyError):
            opened.read()


def test_an_array_rewritten_in_place_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(1000))
    os.utime(path, (1, 1))
    Meddler(monkeypatch, lambda: rewrite_end(path))
    with pytest.raises(errors.BusyError, match="changed while it was read"):
        forebay.read_npy(path)
    # One that is kept open is read as it is at that moment.
    with forebay.open_npy(path) as opened:
        np.save(path, np.arange(1000.0))
        assert opened[7:9].tolist() == [7, 8]


@pytest.mark.parametrize("name", ["m.safetensors", "m.pt", "m.bin", "m", "model.safetensors.index.json"])
def test_a_pipe_is_refused_at_once(tmp_path: Path, run_python: Any, name: str) -> None:
    """To open it would wait for somebody who writes to it."""
    os.mkfifo(tmp_path / name)
    code = "import sys, forebay; forebay.load_file(sys.argv[1], 'cpu', 'numpy')"
    done = run_python(code, str(tmp_path / name), timeout=20)
    assert done.returncode == 1 and "not a regular file" in done.stderr, done.stderr
    assert "InvalidInputError" in done.stderr


def test_a_pipe_is_no_checkpoint(tmp_path: Path, run_python: Any) -> None:
    os.mkfifo(tmp_path / "m.pt")
    code = "import sys; from forebay import pickles; print(pickles.is_zip_checkpoint(sys.argv[1]))"
    assert run_python(code, str(tmp_path / "m.pt"), timeout=20).stdout == "False\n"


@pytest.mark.parametrize("shape", ["(0, 18446744073709551615)", "(0, 4294967296, 4294967296)"])
@pytest.mark.parametrize("descr", ["<f4", "<U3", "|u1"])
def test_an_npy_of_no_bytes_with_a_huge_shape_is_refused_as_such(tmp_path: Path, shape: str, descr: str) -> None:
    path, archive = tmp_path / "a.npy", tmp_path / "a.npz"
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
    with zipfile.ZipFile(archive, "w") as file:
        file.write(path, "a.npy")
    with forebay.open_npy(path, "cpu", "numpy") as array, forebay.open_npz(archive, "cpu", "numpy") as opened:
        reads: list[Callable[[], object]] = [
            lambda: forebay.read_npy(path, "cpu", "numpy"),
            lambda: array[:, ...],
            lambda: opened["a"],
            opened.read,
        ]
        for read in reads:
            with pytest.raises(forebay.InvalidInputError, match="numpy cannot make such a tensor"):
                read()
        with pytest.raises(forebay.InvalidInputError, match="no tensor of this name"):
            opened.read([3])  # type: ignore[list-item]


def test_more_dimensions_than_a_framework_has_are_refused_as_such(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    header = json.dumps({"a": {"dtype": "F32", "shape": [1] * 100, "data_offsets": [0, 4]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with forebay.safe_open(path, "numpy", "cpu") as file:
        for read in (lambda: file.get_tensor("a"), lambda: file.get_slice("a")[...]):
            with pytest.raises(forebay.InvalidInputError, match="numpy cannot make such a tensor"):
                read()


def test_texts_that_no_file_can_hold_are_refused_with_a_hint(tmp_path: Path) -> None:
    array, half, path = np.zeros(3, "f4"), "half\ud800", tmp_path / "x"
    refused: list[Callable[[], object]] = [
        lambda: forebay.save_file({half: array}, path),
        lambda: forebay.save_file({half: array}, path, checksums=True),
        lambda: forebay.save_file({"a": array}, path, {half: "x"}),
        lambda: forebay.save_file({"a": array}, path, {"x": half}),
        lambda: forebay.save_file({"a": array}, f"{tmp_path}/{half}"),
        lambda: forebay.write_npy(f"{tmp_path}/{half}", array),
        lambda: forebay.write_npz(path, {half: array}),
        lambda: forebay.read_npy(f"{tmp_path}/{half}", "cpu"),
        lambda: forebay.load_file(f"{tmp_path}/{half}.safetensors", "cpu", "numpy"),
        lambda: forebay.open(f"{tmp_path}/{half}"),
    ]
    for call in refused:
        with pytest.raises(forebay.InvalidInputError, match="lone surrogate") as raised:
            call()
        assert raised.value.hints
    with pytest.raises(forebay.InvalidInputError, match="Invalid argument"):
        forebay.load_file(f"{tmp_path}/a\0.safetensors", "cpu", "numpy")
    assert not list(tmp_path.iterdir())


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import forebay, forebay.pickles
try:
    (forebay.pickles.load if sys.argv[1].endswith(".pt") else forebay.load_file)(sys.argv[1])
except forebay.UnsupportedError as error:
    print(error, *error.hints, sep="\\n")
"""


def test_without_torch_the_error_says_what_to_type(tmp_path: Path, run_python: Any) -> None:
    forebay.save_file({"a": np.zeros(3, "f4")}, tmp_path / "a.safetensors")
    done = run_python(WITHOUT_TORCH, str(tmp_path / "a.safetensors"))
    assert "torch is not installed" in done.stdout, done.stderr
    assert 'framework="numpy"' in done.stdout.splitlines()


def test_without_torch_files_of_torch_save_say_what_to_type(tmp_path: Path, run_python: Any) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02N.")
    done = run_python(WITHOUT_TORCH, str(tmp_path / "a.pt"))
    assert "read with PyTorch" in done.stdout, done.stderr
    assert done.stdout.splitlines()[1:] == ["pip install torch"]
