"""When the memory of GPU batches is used again, seen by doubles of torch's and cupy's streams: no machine of CI has them."""

from __future__ import annotations

import contextlib
import gc
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from forebay.data import _memory
from forebay.placement import Device

numpy = pytest.importorskip("numpy", reason="the doubles are made with numpy's arrays")


class Tensor:
    """A double of torch's: what stream it was made for, and which ones it was recorded on."""

    def __init__(self, stream: str, index: int | None = 0) -> None:
        self.made_for, self.recorded = stream, list[str]()
        self.is_cuda, self.device = index is not None, types.SimpleNamespace(index=index)

    def record_stream(self, stream: str) -> None:
        self.recorded.append(stream)


def test_torch_tensors_are_made_for_a_stream_of_their_own() -> None:
    now = ["program's"]

    @contextlib.contextmanager
    def stream(name: str) -> Iterator[None]:
        now.append(name)
        yield
        now.pop()

    cuda = types.SimpleNamespace(Stream=lambda number: "ours", stream=stream, current_stream=lambda number: now[-1])
    ready: list[Any] = []
    framework = types.SimpleNamespace(
        dtype=lambda name: name,
        allocator=lambda device: lambda shape, dtype: Tensor(now[-1]),
        ready=lambda arrays, device: ready.append(arrays),
        is_out_of_memory=lambda error: False,
    )
    memory = _memory.TorchStream.__new__(_memory.TorchStream)
    _memory.Fresh.__init__(memory, framework, Device("cuda", 0))  # type: ignore[arg-type]
    memory._torch, memory._stream = types.SimpleNamespace(cuda=cuda), "ours"
    tensor = memory.new((3,), "U8")
    assert (tensor.made_for, tensor.recorded, now) == ("ours", [], ["program's"])
    # Nothing was waited for: that would hold the reads up until the program's kernels are done.
    assert ready == []
    memory.hand_out(tensor)
    assert tensor.recorded == ["program's"]
    for other in (Tensor("program's", None), Tensor("program's", 1), object()):
        memory.hand_out(other)
        assert getattr(other, "recorded", []) == []


class Event:
    """A double of cupy's."""

    done = False


def test_cupy_memory_waits_for_the_stream_of_its_last_array(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []

    def record() -> Event:
        events.append(Event())
        return events[-1]

    @contextlib.contextmanager
    def on_device(number: int) -> Iterator[None]:
        yield

    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
        Device=on_device, get_current_stream=lambda: types.SimpleNamespace(record=record)
    )
    # An array of numpy's in the place of cupy's: it holds what it was made of, as cupy's does.
    cupy.asarray = lambda lease: numpy.asarray(types.SimpleNamespace(  # type: ignore[attr-defined]
        __array_interface__=lease.__cuda_array_interface__, lease=lease
    ))  # fmt: skip
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    framework = types.SimpleNamespace(
        dtype=numpy.dtype,
        allocator=lambda device: lambda shape, dtype: numpy.empty(shape, "uint8"),
        ready=lambda arrays, device: None,
        address=lambda array: array.__array_interface__["data"][0],
        is_out_of_memory=lambda error: False,
    )
    # Its names of dtypes are numpy's here.
    monkeypatch.setattr(_memory.Pool, "_made", lambda self, shape, dtype: numpy.empty(shape, "uint8"))
    pool = _memory.Pool(framework, Device("cuda", 0))  # type: ignore[arg-type]

    def place(array: Any) -> int:
        return int(array.__array_interface__["data"][0])

    first = pool.new((4, 100), "int32")
    view, where = first[1:, ::2], place(first)
    del first
    gc.collect()
    # A view still sees it.
    assert events == [] and place(second := pool.new((4, 100), "int32")) != where
    del view
    gc.collect()
    # The stream of the program has not passed.
    assert len(events) == 1
    third = pool.new((4, 100), "int32")
    assert place(third) != where
    events[0].done = True
    assert place(pool.new((4, 100), "int32")) == where
    assert second is not third
