"""Functions of the program over batches and records: in threads, ahead of the program, and what happens if they raise."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import sys
import threading
import time
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forebay.data as data
from forebay import errors

numpy = pytest.importorskip("numpy", reason="these tests compare with numpy's arrays")

ROWS = 100


@pytest.fixture
def numbers(tmp_path: Path) -> data.Records:
    """Record n is the number n."""
    numpy.arange(ROWS, dtype="int32").tofile(tmp_path / "a.bin")
    return data.raw(tmp_path / "a.bin", "int32", 1, framework="numpy")


def loader_of(records: data.Records, **words: Any) -> data.Loader:
    return data.Loader(records, 10, order="sequential", **words)


def rows(batch: Any) -> list[int]:
    return [int(row) for row in numpy.asarray(batch).reshape(-1)]


def test_batches_are_transformed_while_the_program_has_another_one(numbers: data.Records) -> None:
    """Not by time alone: the second transform begins before the first batch's step ends, and in another thread."""
    begun = [threading.Event() for _ in range(10)]
    threads = set()

    def transform(batch: Any) -> Any:
        threads.add(threading.get_ident())
        begun[int(batch[0, 0]) // 10].set()
        return batch + 1

    for number, batch in enumerate(loader_of(numbers, transform=transform, prefetch=2)):
        assert rows(batch) == list(range(10 * number + 1, 10 * number + 11))
        for ahead in begun[number : number + 3]:
            assert ahead.wait(30), "a batch that is ahead"
    assert len(threads) == 1 and threading.get_ident() not in threads


def test_a_step_and_a_transform_take_the_longer_ones_time(numbers: data.Records) -> None:
    def transform(batch: Any) -> Any:
        time.sleep(0.02)
        return batch

    took = []
    for _ in range(3):
        started = time.perf_counter()
        for _ in loader_of(numbers, transform=transform):
            time.sleep(0.02)
        took.append(time.perf_counter() - started)
    # One behind the other: 0.4.
    assert min(took) < 0.33, took


def test_records_are_transformed_by_threads(numbers: data.Records) -> None:
    together = threading.Barrier(4)

    def meet(record: Any) -> int:
        together.wait(30)
        return int(record[0])

    loader = data.Loader(
        numbers, 20, order="sequential", record_transform=meet, workers=4, transform=lambda batch: (len(batch), batch)
    )
    assert list(loader) == [(20, list(range(low, low + 20))) for low in range(0, ROWS, 20)]
    plain = list(loader_of(numbers, record_transform=lambda record: 2 * record[0]))
    assert [type(batch) for batch in plain] == [list] * 10 and plain[3][:3] == [60, 62, 64]
    jagged = data.zipped(text=data.ranges(numbers.files.paths * 4, [0, 4, 8, 0], [4, 8, 0, 4], file=[0, 1, 2, 3], framework="numpy"), n=range(4))  # type: ignore[attr-defined] # fmt: skip
    got = list(
        data.Loader(jagged, 4, order="sequential", record_transform=lambda one: (len(one["text"]), int(one["n"])))
    )
    assert got == [[(4, 0), (8, 1), (0, 2), (4, 3)]]


def test_workers_transform_several_batches_at_a_time(numbers: data.Records) -> None:
    together = threading.Barrier(3)

    def meet(batch: Any) -> Any:
        if batch[0, 0] < 30:
            together.wait(30)
        return batch

    loader = loader_of(numbers, transform=meet, workers=3, prefetch=3)
    assert [rows(batch)[0] for batch in loader] == list(range(0, ROWS, 10))


@pytest.mark.parametrize("what", ["transform", "record_transform"])
def test_what_raises_hands_nothing_out_and_comes_again(numbers: data.Records, what: str) -> None:
    failures = ["once"]

    def change(value: Any) -> Any:
        value += 1000
        if value.reshape(-1)[0] in (1030, 1035) and failures:
            raise RuntimeError(failures.pop())
        return value

    loader = loader_of(numbers, workers=2, **{what: change})
    running = iter(loader)
    seen = [row for _ in range(3) for row in rows(next(running))]
    with pytest.raises(RuntimeError, match="once") as caught:
        next(running)
    assert any(entry.name == "change" for entry in caught.traceback)
    assert loader.state_dict()["position"] == 30 and loader.stats.batches == 3
    seen += [row for batch in running for row in rows(batch)]
    assert seen == list(range(1000, 1000 + ROWS))


def test_a_state_is_behind_what_was_handed_out_not_what_was_transformed(numbers: data.Records) -> None:
    loader = loader_of(numbers, transform=lambda batch: batch, prefetch=4)
    running = iter(loader)
    next(running)
    time.sleep(0.05)
    again = loader_of(numbers)
    again.load_state_dict(loader.state_dict())
    assert rows(next(iter(again))) == list(range(10, 20))


def double(batch: Any) -> Any:
    return 2 * batch


def test_a_loader_that_transforms_goes_to_other_processes(numbers: data.Records) -> None:
    loader = loader_of(numbers, transform=double)
    running = iter(loader)
    next(running)
    sent = pickle.dumps(loader)
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            os._exit(sum(len(batch) for batch in pickle.loads(sent)))
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == ROWS - 10
    assert rows(next(running)) == list(range(20, 40, 2))


def test_batches_on_their_way_go_with_the_loop(numbers: data.Records) -> None:
    """Without a garbage collection, and those that were not begun are not transformed."""
    called, go_on = list[int](), threading.Semaphore(2)

    def wait(batch: Any) -> Any:
        called.append(int(batch[0, 0]))
        assert go_on.acquire(timeout=30)
        return batch

    gc.collect()
    gc.disable()
    try:
        loader = loader_of(numbers, transform=wait, prefetch=4)
        running = iter(loader)
        next(running)
        gone = [weakref.ref(loader), weakref.ref(running)]
        del loader, running
        assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()
        go_on.release(10)
    time.sleep(0.05)
    assert called in ([0], [0, 10], [0, 10, 20])


def test_a_program_that_ends_waits_for_no_transform_that_was_not_begun(tmp_path: Path, run_python: Any) -> None:
    numpy.arange(ROWS, dtype="int32").tofile(tmp_path / "a.bin")
    done = run_python(
        """
import atexit, sys, time, forebay.data as data
calls = []
def slow(batch):
    calls.append(1)
    time.sleep(0.1 if len(calls) > 1 else 0)
    return batch
records = data.raw(sys.argv[1], "int32", 1, framework="numpy")
running = iter(data.Loader(records, 10, transform=slow, prefetch=8))
next(running)
atexit.register(lambda: print(len(calls)))
""",
        str(tmp_path / "a.bin"),
    )
    assert (done.returncode, done.stderr) == (0, "") and int(done.stdout) <= 3, done


def test_a_loop_that_outlives_the_modules_ends_without_a_word(tmp_path: Path, run_python: Any) -> None:
    """accelerate keeps what it was given until then."""
    numpy.arange(ROWS, dtype="int32").tofile(tmp_path / "a.bin")
    code = """
import sys, forebay.data as data
sys.kept = iter(data.Loader(data.raw(sys.argv[1], "int32", 1, framework="numpy"), 10))
next(sys.kept)
"""
    done = run_python(code, str(tmp_path / "a.bin"))
    assert (done.returncode, done.stderr) == (0, ""), done


def test_transforms_work_on_the_programs_stream(numbers: data.Records, monkeypatch: pytest.MonkeyPatch) -> None:
    """A double of torch's streams: other threads have the default one unless told otherwise."""
    local = threading.local()

    class Stream:
        device = "cuda:3"

        def __init__(self) -> None:
            self.waits = list[Stream]()

        def wait_stream(self, other: Stream) -> None:
            self.waits.append(other)

    class Tensor:
        is_cuda = True

        def __init__(self) -> None:
            self.recorded = list[Stream]()

        def record_stream(self, stream: Stream) -> None:
            self.recorded.append(stream)

    default = Stream()

    @contextlib.contextmanager
    def stream(one: Stream) -> Iterator[None]:
        before, local.now = current(), one
        yield
        local.now = before

    def current(device: object = None) -> Stream:
        return getattr(local, "now", default)

    cuda = types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, current_stream=current, stream=stream
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    used: list[Any] = []

    def transform(batch: Any) -> Any:
        used.append(current())
        return {"a": [Tensor()], "b": (Tensor(),)}

    def each(record: Any) -> Any:
        used.append(current())
        return record

    programs, other = Stream(), Stream()
    running = iter(loader_of(numbers, transform=transform, record_transform=each, workers=2, prefetch=1))
    with stream(programs):
        batch = next(running)
    assert programs.waits == [] and batch["a"][0].recorded == []
    # Another stream waits for the one that the batch was made on, and keeps its memory.
    with stream(other):
        batch = next(running)
    assert other.waits == [programs] and batch["a"][0].recorded == batch["b"][0].recorded == [other]
    assert {id(one) for one in used} <= {id(programs), id(other)}


def test_wrong_functions_and_workers(numbers: data.Records) -> None:
    for words in (
        {"transform": 3},
        {"record_transform": "x"},
        {"transform": double, "workers": 0},
        {"transform": double, "workers": 1.5},
        {"workers": 4},
    ):
        with pytest.raises(errors.InvalidInputError) as caught:
            loader_of(numbers, **words)
        assert caught.value.hints


def test_words_of_torchs_data_loader_are_answered_with_ours(numbers: data.Records) -> None:
    expected: dict[str, tuple[Any, str]] = {
        "shuffle": (False, 'order="sequential"'),
        "num_workers": (4, "workers="),
        "collate_fn": (list, "transform="),
        "pin_memory": (True, "device="),
        "pin_memory_device": ("cuda", "device="),
        "sampler": ([1], "records.select("),
        "batch_sampler": ([[1]], "records.select("),
        "generator": (None, "seed="),
        "prefetch_factor": (2, "prefetch="),
        "persistent_workers": (True, "no worker processes"),
        "worker_init_fn": (list, "no worker processes"),
        "multiprocessing_context": ("spawn", "no worker processes"),
        "timeout": (3, "no worker processes"),
        "in_order": (True, "in order"),
        "dataset": (numbers, "Loader(records"),
    }
    for word, (given, hint) in expected.items():
        call: Any = data.Loader
        with pytest.raises(errors.InvalidInputError, match=f"^{word}= is a word of torch's DataLoader") as caught:
            call(numbers, 8, **{word: given})
        assert isinstance(caught.value, TypeError) and hint in caught.value.hints[0]
    with pytest.raises(errors.InvalidInputError) as caught:
        call(numbers, 8, shuffle=True)
    assert 'order="random"' in caught.value.hints[0]
    with pytest.raises(TypeError, match="unexpected keyword"):
        call(numbers, 8, order_="x")
