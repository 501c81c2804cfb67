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


class Stream:
    """A double of torch's: what it waits for."""

    def __init__(self, number: int) -> None:
        self.waits = list[Stream]()

    def wait_stream(self, other: Stream) -> None:
        self.waits.append(other)


class Tensor:
    """A double of torch's: what stream it was made for, and which ones it was recorded on."""

    def __init__(self, stream: Stream, index: int | None = 0) -> None:
        self.made_for, self.recorded = stream, list[Stream]()
        self.is_cuda, self.device = index is not None, types.SimpleNamespace(index=index)

    def record_stream(self, stream: Stream) -> None:
        self.recorded.append(stream)


def test_torch_tensors_are_made_for_a_stream_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    programs, other = Stream(0), Stream(0)
    now = [programs]

    @contextlib.contextmanager
    def stream(name: Stream) -> Iterator[None]:
        now.append(name)
        yield
        now.pop()

    cuda = types.SimpleNamespace(Stream=Stream, stream=stream, current_stream=lambda number: now[-1])
    ready: list[Any] = []
    framework = types.SimpleNamespace(
        dtype=lambda name: name,
        allocator=lambda device: lambda shape, dtype: Tensor(now[-1]),
        ready=lambda arrays, device: ready.append(arrays),
        is_out_of_memory=lambda error: False,
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    memory = _memory.TorchStream(framework, Device("cuda", 0))  # type: ignore[arg-type]
    tensor = memory.new((3,), "U8")
    assert (tensor.made_for, tensor.recorded, now) == (memory._stream, [], [programs])
    # Nothing was waited for: that would hold the reads up until the program's kernels are done.
    assert ready == [] and memory._stream.waits == programs.waits == []
    memory.hand_out(tensor)
    assert tensor.recorded == [programs]
    for elsewhere in (Tensor(programs, None), Tensor(programs, 1), object()):
        memory.hand_out(elsewhere)
        assert getattr(elsewhere, "recorded", []) == []
    # Offsets and labels: made on a third stream behind what the program queued, and handed out on any.
    with memory.aside():
        offsets = Tensor(now[-1])
    assert offsets.made_for not in (programs, memory._stream) and offsets.made_for.waits == [programs]
    now.append(other)
    memory.hand_out(offsets)
    assert offsets.recorded == [other] and other.waits == [offsets.made_for] and memory._stream.waits == []


@pytest.mark.parametrize(
    ("backend", "kind"), [("native", "TorchStream"), ("cudaMallocAsync", "Fresh"), ("pluggable", "Fresh")]
)
def test_only_torchs_own_allocator_gives_blocks_that_may_be_written_at_once(
    monkeypatch: pytest.MonkeyPatch, backend: str, kind: str
) -> None:
    cuda = types.SimpleNamespace(Stream=Stream, get_allocator_backend=lambda: backend)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    framework: Any = types.SimpleNamespace(name="torch", allocator=lambda device: None)
    assert type(_memory.memory_for(framework, Device("cuda", 0))).__name__ == kind


class Event:
    """A double of cupy's."""

    done = False


def test_cupy_memory_waits_for_the_stream_of_its_last_array(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []

    class Recording:
        def record(self) -> Event:
            events.append(Event())
            return events[-1]

    now = [Recording()]

    @contextlib.contextmanager
    def on_device(number: int) -> Iterator[None]:
        yield

    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
        Device=on_device, get_current_stream=lambda: now[-1]
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
    second = pool.new((4, 100), "int32")
    assert events == [] and place(second) != where
    del view
    gc.collect()
    # The stream of the program has not passed.
    assert len(events) == 1
    third = pool.new((4, 100), "int32")
    assert place(third) != where
    events[0].done = True
    assert place(pool.new((4, 100), "int32")) == where
    assert second is not third
    # Handed out on one stream and let go on another: both have to pass.
    events.clear()
    pool.hand_out(second)
    where = place(second)
    now.append(Recording())
    del second
    gc.collect()
    assert len(events) == 2
    events[0].done = True
    fourth = pool.new((4, 100), "int32")
    assert place(fourth) != where
    events[1].done = True
    assert place(pool.new((4, 100), "int32")) == where and fourth is not None
