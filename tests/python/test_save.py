"""save_file: readable by safetensors itself, and there as a whole or not at all."""

from __future__ import annotations

import os
import signal
import stat
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open as reference_open
from safetensors.numpy import load_file as reference_load

import forebay
from forebay import errors, saving

Run = Callable[..., subprocess.CompletedProcess[str]]


def some(count: int = 9) -> dict[str, np.ndarray[Any, Any]]:
    dtypes = ["u1", "f4", "i8", "f2", "bool", "c8", "u2"]
    return {f"t{i}": (np.arange(i * 7) % 100).reshape(i, 7).astype(dtypes[i % 7]) for i in range(count)}


def assert_holds(path: Path, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    loaded = reference_load(path)
    assert loaded.keys() == tensors.keys()
    for name, array in tensors.items():
        assert loaded[name].dtype == array.dtype and np.array_equal(loaded[name], array), name


def test_safetensors_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    tensors = some() | {"scalar": np.array(3.5), "empty": np.zeros((4, 0), "f4")}
    forebay.save_file(tensors, path, {"format": "np", "note": "ünïcode \n \0"})
    assert_holds(path, tensors)
    with reference_open(path, "np") as file:
        assert file.metadata() == {"format": "np", "note": "ünïcode \n \0"}
    assert list(tmp_path.iterdir()) == [path]


def test_the_data_section_and_each_tensor_are_aligned(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    forebay.save_file(some(), path)
    length = struct.unpack("<Q", path.read_bytes()[:8])[0]
    assert (8 + length) % 4096 == 0
    with forebay.safe_open(path, "np") as file:
        for name, entry in file._entries.items():
            assert entry[3] % file.get_tensor(name).itemsize == 0


def test_nothing_to_save(tmp_path: Path) -> None:
    forebay.save_file({}, tmp_path / "m.safetensors")
    assert reference_load(tmp_path / "m.safetensors") == {}
    assert forebay.load_file(tmp_path / "m.safetensors", framework="numpy") == {}


def test_from_memory_of_each_device(tmp_path: Path, device: str) -> None:
    arrays, wanted = {}, some()
    for name, array in wanted.items():
        dtype = {"bool": "BOOL", "complex64": "C64"}.get(array.dtype.name, array.dtype.name)
        arrays[name] = forebay.empty(array.shape, dtype, device)
        if array.nbytes:
            arrays[name].fill_from(array)
    for checksums in (False, True):
        forebay.save_file(arrays, tmp_path / "m.safetensors", checksums=checksums)
        assert_holds(tmp_path / "m.safetensors", wanted)
    loaded = forebay.load_file(tmp_path / "m.safetensors", device=device, framework="native", verify=True)
    assert {name: array.tobytes() for name, array in loaded.items()} == {n: a.tobytes() for n, a in wanted.items()}


def test_many_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_GROUP_BYTES", 200)
    monkeypatch.setattr(saving, "_GROUP_TENSORS", 3)
    forebay.save_file(some(60), tmp_path / "m.safetensors", checksums=True)
    assert_holds(tmp_path / "m.safetensors", some(60))
    assert len(forebay.load_file(tmp_path / "m.safetensors", framework="numpy", verify=True)) == 60


def test_numpy_may_share_memory_as_in_safetensors(tmp_path: Path) -> None:
    array = np.arange(12.0)
    forebay.save_file({"all": array, "again": array, "part": array[3:]}, tmp_path / "m.safetensors")
    assert_holds(tmp_path / "m.safetensors", {"all": array, "again": array, "part": array[3:]})


@pytest.mark.parametrize(
    ("tensors", "error", "words", "hint"),
    [
        ({"a": np.zeros((3, 4)).T}, errors.InvalidInputError, "not contiguous.*tensor=a", "ascontiguousarray"),
        ({"a": np.zeros(3, ">f4")}, errors.InvalidInputError, "byte order", "newbyteorder"),
        ({"a": np.array([None])}, errors.UnsupportedError, "no such dtype.*tensor=a", "astype"),
        ({"a": np.zeros(3, "c16")}, errors.UnsupportedError, "no such dtype", "astype"),
        ({"a": [1, 2]}, errors.InvalidInputError, r"not an array.*tensor=a.*builtins\.list", "asarray"),
        ({5: np.zeros(3)}, errors.InvalidInputError, "names of tensors are strings", ""),
        ([np.zeros(3)], errors.InvalidInputError, "a dict of names", ""),
        ({"__metadata__": np.zeros(3)}, errors.InvalidInputError, "__metadata__", ""),
    ],
)
def test_what_cannot_be_saved(tmp_path: Path, tensors: Any, error: type[errors.Error], words: str, hint: str) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"old")
    with pytest.raises(error, match=words) as caught:
        forebay.save_file(tensors, path)
    assert hint in str(caught.value.hints)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_metadata_are_strings(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidInputError, match="metadata are strings") as caught:
        forebay.save_file({}, tmp_path / "m", {"step": 5})  # type: ignore[dict-item]
    assert caught.value.hints == ["metadata={'step': '5'}"]


def test_a_link_is_followed_and_the_mode_kept(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    target = tmp_path / "store" / "blob"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link = tmp_path / "m.safetensors"
    link.symlink_to(target)
    forebay.save_file(some(), link)
    assert link.is_symlink() and stat.S_IMODE(target.stat().st_mode) == 0o640
    assert_holds(target, some())


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        forebay.save_file(some(), tmp_path / "none" / "m.safetensors")


LIMITED = """
import resource, sys
import numpy as np
import forebay
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    forebay.save_file({"a": np.ones(1 << 20, "f4")}, sys.argv[1])
except forebay.errors.NoSpaceError as error:
    print("no space:", error, error.errno)
"""


def test_no_space_leaves_the_old_file(tmp_path: Path, run_python: Run) -> None:
    path = tmp_path / "m.safetensors"
    forebay.save_file(some(), path)
    done = run_python(LIMITED, str(path))
    assert done.returncode == 0 and done.stdout.startswith("no space:"), done.stderr
    assert_holds(path, some())
    assert list(tmp_path.iterdir()) == [path]


SLOW = """
import sys, time
import numpy as np
import forebay
from forebay import saving
write = saving._write
def slowly(file, pieces, sums):
    write(file, pieces, sums)
    print("written", flush=True)
    time.sleep(60)
saving._write = slowly
forebay.save_file({"a": np.ones(1 << 20, "f4")}, sys.argv[1])
"""


def test_kill_during_a_save(tmp_path: Path, start_python: Callable[..., subprocess.Popen[str]]) -> None:
    path = tmp_path / "m.safetensors"
    forebay.save_file(some(), path)
    child = start_python(SLOW, str(path))
    assert child.stdout is not None and child.stdout.readline() == "written\n"
    child.send_signal(signal.SIGKILL)
    assert child.wait(timeout=30) == -signal.SIGKILL
    assert_holds(path, some())
    forebay.save_file(some(5), path)
    assert_holds(path, some(5))
    assert list(tmp_path.iterdir()) == [path], "the next save leaves nothing behind"


TWICE = """
import sys
import numpy as np
import forebay
value = float(sys.argv[2])
for _ in range(20):
    forebay.save_file({f"t{i}": np.full(5000, value, "f4") for i in range(20)}, sys.argv[1], durable=False)
"""


def test_two_processes_save_the_same_name(tmp_path: Path, start_python: Callable[..., subprocess.Popen[str]]) -> None:
    path = tmp_path / "m.safetensors"
    savers = [start_python(TWICE, str(path), str(value)) for value in (1, 2)]
    seen = set()
    deadline = time.monotonic() + 60
    while any(saver.poll() is None for saver in savers) and time.monotonic() < deadline:
        if path.exists():
            seen.add(whole_of_one(path))
    assert [saver.wait(timeout=60) for saver in savers] == [0, 0]
    seen.add(whole_of_one(path))
    assert seen <= {1.0, 2.0} and seen
    assert list(tmp_path.iterdir()) == [path]


def whole_of_one(path: Path) -> float:
    values = {float(value) for array in reference_load(path).values() for value in np.unique(array)}
    assert len(values) == 1, "parts of two saves in one file"
    return values.pop()


def test_a_reader_of_the_old_file_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    forebay.save_file({"a": np.zeros(1000)}, path)
    with forebay.safe_open(path, "np") as file:
        forebay.save_file({"a": np.ones(1000)}, path)
        assert np.array_equal(file.get_tensor("a"), np.zeros(1000))
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_metadata_that_is_no_dict(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidInputError, match="dict of strings.*got=list") as caught:
        forebay.save_file({"a": np.zeros(2)}, tmp_path / "m.safetensors", ["format"])  # type: ignore[arg-type]
    assert caught.value.hints and not any(tmp_path.iterdir())


class InterruptedFile:
    """Takes writes that never end by themselves; Ctrl-C comes when the second one is waited for."""

    def __init__(self) -> None:
        self.futures: list[InterruptedFuture] = []

    def _submit(self, write: bool, pieces: object, keep: object) -> InterruptedFuture:
        self.futures.append(InterruptedFuture(interrupt=len(self.futures) == 1))
        return self.futures[-1]


class InterruptedFuture:
    def __init__(self, interrupt: bool) -> None:
        self.interrupt = interrupt
        self.calls: list[str] = []

    def result(self) -> None:
        self.calls.append("result")
        if self.interrupt:
            signal.raise_signal(signal.SIGINT)

    def cancel(self) -> None:
        self.calls.append("cancel")

    def exception(self) -> None:
        self.calls.append("exception")


def test_an_interrupt_leaves_no_write_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_GROUP_BYTES", 1)
    file: Any = InterruptedFile()
    pieces = [saving._Piece(offset, 1, 1, "t", None) for offset in range(9)]
    with pytest.raises(KeyboardInterrupt):
        saving._write(file, pieces, None)
    calls = [future.calls for future in file.futures]
    assert calls[:2] == [["result"], ["result", "cancel", "exception"]]
    assert len(calls) > 3 and all(later == ["cancel", "exception"] for later in calls[2:])
