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


class Made(numpy.ndarray):  # type: ignore[misc, name-defined]
    """A double of cupy's array."""


class Event:
    """A double of cupy's: it is done once somebody waited for it."""

    done = False

    def synchronize(self) -> None:
        self.done = True


class Recording:
    """A double of cupy's stream: the events recorded on it, and those that it waits for."""

    def __init__(self, events: list[Event]) -> None:
        self.events, self.waits = events, list[Event]()

    def record(self) -> Event:
        self.events.append(Event())
        return self.events[-1]

    def wait_event(self, event: Event) -> None:
        self.waits.append(event)


def cupy_pool(monkeypatch: pytest.MonkeyPatch, now: list[Recording]) -> Any:
    """A pool of doubles of cupy's arrays; the last of ``now`` is the current stream."""

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
    )).view(Made)  # fmt: skip
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    framework = types.SimpleNamespace(
        dtype=numpy.dtype,
        allocator=lambda device: lambda shape, dtype: numpy.empty(shape, "uint8"),
        ready=lambda arrays, device: None,
        # numpy's array has no pointer of cupy's.
        array_type=Made,
        address=lambda array: array.__array_interface__["data"][0],
        is_out_of_memory=lambda error: False,
    )
    # Its names of dtypes are numpy's here.
    monkeypatch.setattr(_memory.Pool, "_made", lambda self, shape, dtype: numpy.empty(shape, "uint8"))
    return _memory.Pool(framework, Device("cuda", 0))  # type: ignore[arg-type]


def place(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def test_cupys_labels_are_there_on_the_stream_that_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []
    first, second, programs = (Recording(events) for _ in range(3))
    now = [first]
    pool = cupy_pool(monkeypatch, now)
    labels = numpy.zeros(3).view(Made)
    pool.hand_out(labels)
    assert first.waits == []
    with pool.aside():
        assert events == []
    now.append(second)
    with pool.aside():
        assert second.waits == events[:1]
    now.append(programs)
    pool.hand_out(labels)
    assert len(events) == 2 and programs.waits == events[1:]
    # Texts, and arrays of others.
    pool.hand_out(numpy.array(["a", "b"]))
    assert programs.waits == events[1:]


def test_labels_beside_ordinary_arrays_of_a_gpu_are_waited_for() -> None:
    told: list[str] = []
    framework: Any = types.SimpleNamespace(
        allocator=lambda device: None, ready=lambda arrays, device: told.append("ready")
    )
    with _memory.Fresh(framework, Device("cuda", 0)).aside():
        told.append("made")
    assert told == ["made", "ready"]
    with _memory.Fresh(framework, Device("cpu")).aside():
        pass
    assert told == ["made", "ready"]


def test_cupys_blocks_that_go_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []
    pool = cupy_pool(monkeypatch, [Recording(events)])
    arrays = [pool.new((400,), "uint8") for _ in range(_memory._MAX_FREE_BLOCKS + 2)]
    arrays.clear()
    gc.collect()
    assert [event.done for event in events] == [False] * _memory._MAX_FREE_BLOCKS + [True] * 2
    # Another size: all eight stay, and two more push the oldest out.
    arrays = [pool.new((9000,), "uint8") for _ in range(2)]
    arrays.clear()
    gc.collect()
    pool.new((90000,), "uint8")
    assert [event.done for event in events[:4]] == [True, True, False, False]


def test_torch_that_cannot_use_numpy_makes_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(array: Any) -> None:
        raise RuntimeError("Numpy is not available")

    framework: Any = types.SimpleNamespace(name="torch", allocator=lambda device: None)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(from_numpy=refused))  # type: ignore[arg-type]
    assert type(_memory.memory_for(framework, Device("cpu"))) is _memory.Fresh
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(from_numpy=len))  # type: ignore[arg-type]
    assert type(_memory.memory_for(framework, Device("cpu"))) is _memory.TorchHost


def test_cupy_memory_waits_for_the_stream_of_its_last_array(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []
    now = [Recording(events)]
    pool = cupy_pool(monkeypatch, now)
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
    now.append(Recording(events))
    del second
    gc.collect()
    assert len(events) == 2
    events[0].done = True
    fourth = pool.new((4, 100), "int32")
    assert place(fourth) != where
    events[1].done = True
    assert place(pool.new((4, 100), "int32")) == where and fourth is not None
