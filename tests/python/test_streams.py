"""The order of transfers and of work that others have queued on a GPU, on the software GPU's own streams."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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


# In a process of its own, so that the session, its lanes and kernels are made while the capture is under way. Modes:
# 0 is global (the default: what any thread does can break the capture), 1 of the thread.
CAPTURE_HERE_LOAD_THERE = """
import ctypes, os, sys, threading
import forebay
from forebay import frameworks
from forebay.frameworks import native
path, mode = sys.argv[1], int(sys.argv[2])
library = ctypes.CDLL(os.environ.get("FOREBAY_LIBCUDA", "libcuda.so.1"))
def driver(name, *arguments):
    result = getattr(library, name)(*arguments)
    assert result == 0, f"{name}: {result}"
context, stream, graph, memory = (ctypes.c_void_p() for _ in range(4))
driver("cuInit", 0)
driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
driver("cuCtxSetCurrent", context)
driver("cuStreamCreate", ctypes.byref(stream), 1)
class Allocating:
    # A framework that asks the driver for memory itself, as torch's and CuPy's allocators do.
    def __getattr__(self, name):
        return getattr(native.FRAMEWORK, name)
    def allocator(self, device):
        allocate = native.FRAMEWORK.allocator(device)
        def empty(shape, dtype):
            context, memory = ctypes.c_void_p(), ctypes.c_uint64()
            driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
            driver("cuCtxSetCurrent", context)
            driver("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(64))
            driver("cuMemFree_v2", memory)
            return allocate(shape, dtype)
        return empty
seen = []
def load():
    if sys.argv[3] == "first":  # before anything has made forebay look for the driver
        frameworks._known["native"] = Allocating()
    loaded = forebay.load_file(path, device="cuda:0", framework="native", verify=True)
    seen.append(loaded["b"].tobytes() == bytes(range(200)) * 1000)
    frameworks._known["native"] = Allocating()
    again = forebay.load_file(path, device="cuda:0", framework="native")
    with forebay.safe_open(path, "native", device="cuda:0") as opened:
        seen.append(again["b"].tobytes() == opened.get_tensor("b").tobytes())
    forebay.save_file(loaded, path + ".again", checksums=True)
    with forebay.open(path) as file:
        file.read_into(loaded["a"], 0)
        file.read_into_async(loaded["a"], 0).result(timeout=60)
    with forebay.map(path) as mapped:
        seen.append(mapped.gather([0, 100], 50).nbytes == 100)
    loaded.clear()
    forebay._forebay.trim()
    seen.append(True)
driver("cuStreamBeginCapture_v2", stream, mode)
other = threading.Thread(target=load)
other.start()
other.join()
driver("cuStreamEndCapture", stream, ctypes.byref(graph))
# That something does break a capture is known too.
driver("cuStreamBeginCapture_v2", stream, 0)
assert library.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(64)) != 0
assert library.cuStreamEndCapture(stream, ctypes.byref(graph)) != 0
print(seen)
"""


@pytest.mark.parametrize("allocating", ["first", "later"])
@pytest.mark.parametrize("mode", [0, 1])
def test_a_capture_survives_what_another_thread_loads(
    tmp_path: Path, gpu: str, run_python: Any, mode: int, allocating: str
) -> None:
    path = tmp_path / "m.safetensors"
    tensors = {"a": np.zeros(3000, "f4"), "b": np.frombuffer(bytes(range(200)) * 1000, np.uint8)}
    forebay.save_file(tensors, path, checksums=True)
    done = run_python(CAPTURE_HERE_LOAD_THERE, str(path), str(mode), allocating)
    assert (done.stdout, done.stderr) == ("[True, True, True, True]\n", "")


@pytest.mark.parametrize("framework", ["torch", "native"])
def test_a_graph_of_torch_survives_what_another_thread_loads(tmp_path: Path, framework: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if os.environ.get("FOREBAY_TEST_GPU") != "real" or not torch.cuda.is_available():
        pytest.skip("needs torch and a real GPU: FOREBAY_TEST_GPU=real")
    # More than the allocator has cached, so that it asks the driver during the capture.
    tensors = {"a": torch.arange(50_000_000, dtype=torch.int32), "b": torch.ones(1000)}
    path = tmp_path / "m.safetensors"
    forebay.save_file(tensors, path, checksums=True)
    value = torch.zeros(1000, device="cuda:0")
    value.add_(1)
    torch.cuda.synchronize()
    graph, others = torch.cuda.CUDAGraph(), ThreadPoolExecutor(1)
    with torch.cuda.graph(graph):  # in the mode "global": any thread may break it
        value.add_(1)
        loading = others.submit(forebay.load_file, path, "cuda:0", framework, verify=True)
        loaded = loading.result(timeout=120)
        value.mul_(2)
    others.shutdown()
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    assert value.eq(10).all()  # ((1 + 1) * 2 + 1) * 2
    if framework == "torch":
        assert all(loaded[name].cpu().equal(tensor) for name, tensor in tensors.items())
    else:
        assert loaded["a"].tobytes() == tensors["a"].numpy().tobytes()


@pytest.mark.parametrize("way", ["safetensors", "npy"])
def test_saves_of_own_arrays_come_after_the_default_stream(
    driver: Driver, tmp_path: Path, gpu: str, stream: int, way: str
) -> None:
    array = forebay.empty(100_000, device=gpu)
    array.fill_from(np.zeros(100_000, np.uint8))
    # The first transfer has much to prepare, which takes longer than the wait here.
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
