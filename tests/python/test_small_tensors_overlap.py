"""load_file of many small tensors: those that are made are read while the next ones are."""

from __future__ import annotations

import gc
import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forebay
from forebay import errors, frameworks, loading


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, np.ndarray[Any, Any]]]:
    """Windows of 64 KiB, and a file of about twenty of them."""
    monkeypatch.setitem(loading._LIMITS, "window", 64 << 10)
    monkeypatch.setitem(loading._LIMITS, "small_group", 64 << 10)
    sizes = [0, 1, 300, 999, 5000]
    tensors = {f"t{i:03}": np.full(sizes[i % 5], i, "f4") for i in range(200)}
    tensors |= {"t040": np.arange(50_000, dtype="f4"), "t041": np.array(5, "f4")}
    path = tmp_path / "m.safetensors"
    forebay.save_file(tensors, path, checksums=True)
    os.utime(path, (1, 1))
    return path, tensors


class Recorder:
    """What a load makes and submits, in order; something may happen when it makes its tensor number `at`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int = -1, act: Callable[[], object] = lambda: None) -> None:
        self.steps: list[str] = []
        self.futures: list[forebay.Future] = []
        self.arrays: list[weakref.ref[Any]] = []
        numpy, submit = frameworks.get("numpy"), loading.Loader._submit

        def allocator(framework: object, device: object) -> Callable[..., Any]:
            def allocate(shape: tuple[int, ...], dtype: str) -> Any:
                if len(self.arrays) == at:
                    act()
                array = np.empty(shape, numpy.dtype(dtype))
                self.arrays.append(weakref.ref(array))
                self.steps.append("make")
                return array

            return allocate

        def submitted(loader: loading.Loader) -> None:
            submit(loader)
            self.futures += [group.future for group in loader._flying if group.future not in self.futures]
            self.steps.append("submit")

        monkeypatch.setattr(type(numpy), "allocator", allocator)
        monkeypatch.setattr(loading.Loader, "_submit", submitted)

    def check_nothing_is_left(self) -> None:
        assert len(self.futures) > 3, "nothing was in flight: this test shows nothing"
        assert all(future.done() for future in self.futures)
        gc.collect()
        assert all(array() is None for array in self.arrays), "something keeps arrays alive"


@pytest.mark.parametrize("verify", [False, True])
def test_on_each_device(model: tuple[Path, dict[str, Any]], device: str, verify: bool) -> None:
    path, tensors = model
    told: list[int] = []
    loaded = forebay.load_file(
        path, device, "native", verify=verify, progress=lambda done, total: told.append(total - done)
    )
    assert {name: array.tobytes() for name, array in loaded.items()} == {
        name: array.tobytes() for name, array in tensors.items()
    }
    assert told == sorted(told, reverse=True) and told[-1] == 0 and len(told) > 10


def test_the_first_are_read_before_the_last_are_made(
    model: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tensors = model
    recorder = Recorder(monkeypatch)
    with forebay.safe_open(path, "numpy") as file:
        order = list(file.keys())
    loaded = forebay.load_file(path, "cpu", "numpy")
    assert list(loaded) == order and all(np.array_equal(loaded[name], tensors[name]) for name in tensors)
    first = recorder.steps.index("submit")
    assert 0 < first < 100 and recorder.steps[first:].count("make") > 100
    assert 10 < len(recorder.futures) < 25


def test_large_ones_are_all_made_before_the_first_is_read(
    model: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(loading._LIMITS, "small_tensor", 100)
    recorder = Recorder(monkeypatch)
    forebay.load_file(model[0], "cpu", "numpy")
    assert recorder.steps == ["make"] * 200 + ["submit"] and len(recorder.futures) == 1


def test_some_of_them_and_several_devices(model: tuple[Path, dict[str, Any]], gpu: str) -> None:
    path, tensors = model
    names = [name for name in tensors if name not in ("t017", "t101")]
    loaded = forebay.load_file(path, {"t0": "cpu", "": gpu}, "native", names=names)
    assert sorted(loaded) == sorted(names)
    for name, array in loaded.items():
        assert array.device == ("cpu" if name.startswith("t0") else gpu)
        assert array.tobytes() == tensors[name].tobytes(), name


def test_no_memory_for_a_later_one(model: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise MemoryError("no more")

    recorder = Recorder(monkeypatch, 150, fail)
    with forebay.safe_open(model[0], "numpy") as file:
        wanted = list(file.keys())[150]
    with pytest.raises(errors.OutOfMemoryError, match="not enough memory on cpu") as caught:
        forebay.load_file(model[0], "cpu", "numpy")
    assert caught.value.context["tensor"] == wanted
    recorder.check_nothing_is_left()


def test_an_interrupt_while_some_are_in_flight(
    model: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    recorder = Recorder(monkeypatch, 150, interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        forebay.load_file(model[0], "cpu", "numpy")
    assert all(future.done() for future in recorder.futures)
    # The traceback's frames keep arrays.
    caught.value.__traceback__ = None
    del caught
    recorder.check_nothing_is_left()


def test_a_file_truncated_meanwhile(model: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = model
    recorder = Recorder(monkeypatch, 100, lambda: os.truncate(path, 600_000))
    with pytest.raises(errors.BusyError, match="changed while it was read") as caught:
        forebay.load_file(path, "cpu", "numpy")
    assert isinstance(caught.value.__context__, errors.ShortReadError)
    assert all(future.done() for future in recorder.futures)


def test_a_damaged_tensor_of_a_later_group(model: tuple[Path, dict[str, Any]], device: str) -> None:
    path, _ = model
    with forebay.safe_open(path, "numpy") as file:
        offset = file._entries["t154"][3]
    with path.open("r+b") as raw:
        raw.seek(offset)
        raw.write(b"\xff")
    with pytest.raises(errors.IntegrityError) as caught:
        forebay.load_file(path, device, "native", verify=True)
    assert caught.value.tensor == "t154"


@pytest.mark.parametrize("end", ["result", "drop before", "drop after"])
def test_memory_is_let_go_of_when_the_last_byte_is_there(model: tuple[Path, dict[str, Any]], end: str) -> None:
    """The future of the reads keeps it until somebody has waited, or is gone and the read is done."""
    source = loading.Source(str(model[0]))
    rows = [row for row in source.entries if row[4]]
    arrays = [np.empty(row[4], "u1") for row in rows]
    kept = [weakref.ref(array) for array in arrays]
    future = source.file._read_tensors(rows, [array.ctypes.data for array in arrays], arrays)
    del arrays
    if end == "result":
        assert future.result().bytes == sum(row[4] for row in rows)
    else:
        deadline = time.monotonic() + 10
        while end == "drop after" and not future.done() and time.monotonic() < deadline:
            time.sleep(0.001)
        assert end == "drop before" or all(array() is not None for array in kept)
        del future
    deadline = time.monotonic() + 10
    while any(array() is not None for array in kept) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert all(array() is None for array in kept)
