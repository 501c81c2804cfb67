"""The order of transfers and of work that others have queued on a GPU, on the software GPU's own streams."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forebay


class Driver:
    """The few calls of the CUDA driver that the tests need."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ.get("FOREBAY_LIBCUDA", "libcuda.so.1"))

    def __call__(self, name: str, *arguments: object) -> None:
        result = getattr(self.library, name)(*arguments)
        assert result == 0, f"{name}: {result}"


@pytest.fixture
def driver(gpu: str) -> Driver:
    return Driver()


@pytest.fixture
def stream(driver: Driver) -> Iterator[int]:
    context, handle = ctypes.c_void_p(), ctypes.c_void_p()
    driver("cuInit", 0)
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    driver("cuCtxSetCurrent", context)
    driver("cuStreamCreate", ctypes.byref(handle), 1)
    assert handle.value is not None
    yield handle.value
    driver("cuStreamSynchronize", handle)
    driver("cuStreamDestroy_v2", handle)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").write_bytes(bytes(range(256)) * 400)
    return tmp_path / "data"


class OnStream:
    """An array whose producer has work queued on a stream."""

    def __init__(self, array: forebay.Array, stream: int) -> None:
        self.array = array
        self.stream = stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.array.__cuda_array_interface__, "stream": self.stream}


HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@pytest.fixture
def slow_fill(driver: Driver, stream: int) -> Any:
    """Queues on the stream: something that takes 0.3 s, then a fill of the array with ones."""
    kept: list[object] = []

    def queue(array: forebay.Array) -> None:
        nap = HOST_FUNCTION(lambda _: time.sleep(0.3))
        kept.append(nap)
        driver("cuLaunchHostFunc", ctypes.c_void_p(stream), nap, None)
        driver(
            "cuMemsetD8Async",
            ctypes.c_void_p(array.address),
            ctypes.c_ubyte(1),
            ctypes.c_size_t(array.nbytes),
            ctypes.c_void_p(stream),
        )

    return queue


@pytest.mark.parametrize("way", ["interface", "stream", "many", "async", "many_async", "wait_stream"])
def test_reads_come_after_what_is_queued(path: Path, gpu: str, stream: int, slow_fill: Any, way: str) -> None:
    array = forebay.empty(100_000, device=gpu)
    ordered = OnStream(array, stream)
    slow_fill(array)
    with forebay.open(path) as file:
        if way == "interface":
            file.read_into(ordered)
        elif way == "stream":
            file.read_into(array, stream=stream)
        elif way == "many":
            file.read_many([(ordered, 0)])
        elif way == "async":
            file.read_into_async(ordered).result()
        elif way == "many_async":
            file.read_many_async([(ordered, 0)]).result()
        else:
            forebay._forebay.wait_stream(0, stream)
            file._submit(False, [(array.address, array.nbytes, 0)], array).result()
    # Had the read come first, the fill would have undone it.
    assert array.tobytes() == path.read_bytes()[:100_000]


def test_writes_come_after_what_is_queued(tmp_path: Path, gpu: str, stream: int, slow_fill: Any) -> None:
    array = forebay.empty(100_000, device=gpu)
    array.fill_from(np.zeros(100_000, np.uint8))
    slow_fill(array)
    with forebay.open(tmp_path / "out", "w") as file:
        file.write_from(OnStream(array, stream))
    assert (tmp_path / "out").read_bytes() == b"\1" * 100_000


def test_an_asynchronous_call_does_not_wait_for_the_stream(path: Path, gpu: str, stream: int, slow_fill: Any) -> None:
    array = forebay.empty(100_000, device=gpu)
    slow_fill(array)
    with forebay.open(path) as file:
        future = file.read_into_async(OnStream(array, stream))
        assert not future.done()
        assert future.result(timeout=30).bytes == 100_000


def test_a_read_in_a_streams_order(driver: Driver, path: Path, gpu: str, stream: int, slow_fill: Any) -> None:
    array, copy = forebay.empty(100_000, device=gpu), forebay.empty(100_000, device=gpu)
    slow_fill(array)
    with forebay.open(path) as file:
        future = file.read_into_async(array, stream=stream)
        # Queued behind the read: it sees the file's bytes.
        driver(
            "cuMemcpyDtoDAsync_v2",
            ctypes.c_void_p(copy.address),
            ctypes.c_void_p(array.address),
            ctypes.c_size_t(100_000),
            ctypes.c_void_p(stream),
        )
        driver("cuStreamSynchronize", ctypes.c_void_p(stream))
        assert future.result(timeout=30).bytes == 100_000
    assert copy.tobytes() == path.read_bytes()[:100_000]


def test_a_stream_that_is_captured_is_refused_and_lives(driver: Driver, path: Path, gpu: str, stream: int) -> None:
    array = forebay.empty(1000, device=gpu)
    handle, graph = ctypes.c_void_p(stream), ctypes.c_void_p()
    driver("cuStreamBeginCapture_v2", handle, 0)
    with forebay.open(path) as file:
        with pytest.raises(NotImplementedError, match="being captured"):
            file.read_into(OnStream(array, stream))
        # A transfer that has nothing to do with it goes on, and does not break it.
        file.read_into(array)
    # An error here: the capture was broken.
    driver("cuStreamEndCapture", handle, ctypes.byref(graph))
    assert array.tobytes() == path.read_bytes()[:1000]


@pytest.mark.parametrize("way", ["safetensors", "npy"])
def test_saves_of_own_arrays_come_after_the_default_stream(
    driver: Driver, tmp_path: Path, gpu: str, stream: int, way: str
) -> None:
    array = forebay.empty(100_000, device=gpu)
    array.fill_from(np.zeros(100_000, np.uint8))
    # The first transfer prepares much, which takes longer than what is waited for here.
    forebay.write_npy(tmp_path / "first", array)
    forebay.save_file({"a": array}, tmp_path / "first")
    nap = HOST_FUNCTION(lambda _: time.sleep(0.3))
    driver("cuLaunchHostFunc", None, nap, None)
    driver("cuMemsetD8Async", ctypes.c_void_p(array.address), ctypes.c_ubyte(1), ctypes.c_size_t(100_000), None)
    if way == "npy":
        forebay.write_npy(tmp_path / "a.npy", array)
    else:
        forebay.save_file({"a": array}, tmp_path / "m.safetensors")
    saved = next(tmp_path.glob("*.*")).read_bytes()
    driver("cuStreamSynchronize", None)
    assert saved.endswith(b"\1" * 100_000)
