"""The loader: its order, its state, what it hands out."""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import subprocess
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay
import forebay.data as data
from forebay import _forebay, errors

numpy = pytest.importorskip("numpy", reason="these tests compare with numpy's arrays")

from data_files import resident  # noqa: E402 (it needs numpy)

ORDERS: list[dict[str, Any]] = [
    {"order": "random"},
    {"order": "sequential"},
    {"order": "block", "block": 16, "window": 3},
    {"order": "block", "block": 2000, "window": 2},
]
ROWS = 1003


@pytest.fixture
def numbers(tmp_path: Path) -> data.Records:
    """Record n is the number n, four times."""
    numpy.repeat(numpy.arange(ROWS, dtype="int32"), 4).tofile(tmp_path / "a.bin")
    return data.raw(tmp_path / "a.bin", "int32", 4, framework="numpy")


def taken(batches: Any) -> list[int]:
    return [int(row) for batch in batches for row in numpy.asarray(batch)[:, 0]]


# ---- the order -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 7, 64, 65, 1000, 4097])
@pytest.mark.parametrize(
    "words", [("random",), ("sequential",), ("block", 1, 1), ("block", 7, 3), ("block", 64, 16)], ids=str
)
def test_each_record_comes_once(length: int, words: tuple[Any, ...]) -> None:
    for epoch in (0, 1, 1 << 60):
        rows = memoryview(_forebay.Order(length, 12, *words).rows(epoch, 0, length)).cast("Q").tolist()
        assert sorted(rows) == list(range(length))


@pytest.mark.parametrize("words", [("random",), ("block", 7, 3)], ids=str)
def test_any_part_of_an_order_is_found_alone(words: tuple[Any, ...]) -> None:
    order = _forebay.Order(1000, 5, *words)
    whole = order.rows(3, 0, 1000)
    assert b"".join(order.rows(3, place, place + 1) for place in range(1000)) == whole
    assert order.rows(3, 20, 500) == whole[160:4000]
    assert order.rows(4, 0, 1000) != whole
    assert _forebay.Order(1000, 6, *words).rows(3, 0, 1000) != whole


def test_a_random_order_is_random() -> None:
    """Neighbours in the order are no neighbours in the files, and each tenth has a tenth of each tenth."""
    rows = numpy.frombuffer(_forebay.Order(100_000, 0, "random").rows(0, 0, 100_000), "int64")
    assert abs(numpy.corrcoef(rows[1:], rows[:-1])[0, 1]) < 0.02
    table = numpy.histogram2d(numpy.arange(100_000), rows, 10)[0]
    assert table.min() > 850 and table.max() < 1150
    assert (numpy.abs(numpy.diff(rows)) < 10).mean() < 0.001


def test_the_order_stays_what_it_is() -> None:
    """A state that was saved means this order: a change of it is a new version of the state."""
    random = memoryview(_forebay.Order(10**9, 42, "random").rows(7, 7 * 10**8, 7 * 10**8 + 3)).cast("Q").tolist()
    block = memoryview(_forebay.Order(1000, 42, "block", 10, 4).rows(7, 500, 503)).cast("Q").tolist()
    assert (random, block) == (RANDOM, BLOCK)


RANDOM, BLOCK = [155184329, 54016782, 834240144], [887, 260, 412]


def test_blocks_of_a_window_are_what_its_records_come_from() -> None:
    order = _forebay.Order(1003, 1, "block", 10, 4)
    windows = order.window_of(1002) + 1
    assert windows == 25
    for window in range(windows):
        blocks = {row for start, stop in order.blocks_of(0, window) for row in range(start, stop)}
        end = 1003 if window == windows - 1 else (window + 1) * 40
        assert set(memoryview(order.rows(0, window * 40, end)).cast("Q")) == blocks
        assert order.window_of(window * 40) == order.window_of(end - 1) == window
    assert order.blocks_of(0, windows) == []


# ---- epochs, ranks, states -------------------------------------------------------------------------------------------


def test_a_batch_that_never_fills_is_said(numbers: data.Records) -> None:
    with pytest.warns(UserWarning, match=f"{ROWS} records are no batch of {ROWS} for each rank"):
        assert len(data.Loader(numbers, ROWS, rank=0, world=2, drop_last=True)) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(data.Loader(numbers, ROWS, rank=0, world=2)) == 1


@pytest.mark.parametrize("words", ORDERS, ids=str)
@pytest.mark.parametrize("drop_last", [True, False])
def test_an_epoch(numbers: data.Records, words: dict[str, Any], drop_last: bool) -> None:
    loader = data.Loader(numbers, 64, drop_last=drop_last, **words)
    first, second = list(loader), list(loader)
    assert len(first) == len(loader) == (15 if drop_last else 16)
    assert sorted(set(taken(first))) == sorted(taken(first))
    assert len(taken(first)) == (960 if drop_last else ROWS)
    assert (taken(first) == taken(second)) == (words["order"] == "sequential")
    assert loader.epoch == 2
    loader.set_epoch(0)
    assert taken(loader) == taken(first)
    assert loader.stats.batches == 3 * len(first)
    assert loader.stats.bytes == sum(loader.stats.engines.values()) == 16 * loader.stats.records


@pytest.mark.parametrize("words", ORDERS, ids=str)
def test_the_next_epoch_is_read_while_the_last_batches_are_used(
    numbers: data.Records, words: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def epoch(number: int) -> list[int]:
        alone = data.Loader(numbers, 250, **words)
        alone.set_epoch(number)
        return taken(alone)

    expected = {number: epoch(number) for number in (0, 1, 7)}
    started: list[object] = []
    read = numbers.read_async

    def counted(*given: Any) -> Any:
        started.append(given)
        return read(*given)

    monkeypatch.setattr(numbers, "read_async", counted)
    loader = data.Loader(numbers, 250, prefetch=2, **words)
    assert taken(loader) == expected[0]
    # In block order a batch is started once another thread has read its blocks.
    assert words["order"] == "block" or len(started) == len(loader) + 2, "the next epoch's first batches"
    assert taken(loader) == expected[1]
    assert loader.stats.batches == 2 * len(loader) and len(started) <= 2 * len(loader) + 2
    loader.set_epoch(7)
    assert taken(loader) == expected[7], "samples read ahead belong to another epoch"


def test_an_epoch_ends_although_the_next_one_cannot_be_read(
    numbers: data.Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = data.Loader(numbers, 250, prefetch=2)
    expected, started = taken(data.Loader(numbers, 250)), 0
    read = numbers.read_async

    def failing(*given: Any) -> Any:
        nonlocal started
        started += 1
        if started > len(loader):
            raise errors.BusyError("changed")
        return read(*given)

    monkeypatch.setattr(numbers, "read_async", failing)
    assert taken(loader) == expected
    with pytest.raises(errors.BusyError, match="changed"):
        next(iter(loader))


@pytest.mark.parametrize("words", ORDERS, ids=str)
def test_ranks_share_one_order(numbers: data.Records, words: dict[str, Any]) -> None:
    words = {**words, "drop_last": True}
    alone = taken(data.Loader(numbers, 24, **words))
    parts = [list(data.Loader(numbers, 8, rank=rank, world=3, **words)) for rank in range(3)]
    assert [len(part) for part in parts] == [len(data.Loader(numbers, 24, **words))] * 3
    assert [row for step in zip(*parts, strict=True) for row in taken(step)] == alone


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [1003, 65, 2, 1])
def test_ranks_have_equally_many_batches_without_drop_last(tmp_path: Path, world: int, rows: int) -> None:
    numpy.repeat(numpy.arange(rows, dtype="int32"), 4).tofile(tmp_path / "a.bin")
    records = data.raw(tmp_path / "a.bin", "int32", 4, framework="numpy")
    parts = [list(data.Loader(records, 16, rank=rank, world=world, drop_last=False)) for rank in range(world)]
    lengths = [[len(batch) for batch in part] for part in parts]
    assert all(length == lengths[0] for length in lengths) and all(length > 0 for length in lengths[0])
    seen = [row for part in parts for row in taken(part)]
    assert set(seen) == set(range(rows))
    # At most one record for each rank comes twice.
    assert len(seen) - rows < world


@pytest.mark.parametrize("words", ORDERS, ids=str)
@pytest.mark.parametrize("handed", [0, 1, 5, 15])
def test_a_state_goes_on_behind_the_last_batch(numbers: data.Records, words: dict[str, Any], handed: int) -> None:
    whole = data.Loader(numbers, 64, seed=9, **words)
    list(whole)  # The second epoch is another one.
    batches = list(whole)
    loader = data.Loader(numbers, 64, seed=9, prefetch=4, **words)
    list(loader)
    running = iter(loader)
    for _ in range(handed):
        next(running)
    state = json.loads(json.dumps(loader.state_dict()))
    again = data.Loader(numbers, 64, seed=1, **words)
    again.load_state_dict(state)
    assert taken(again) == taken(batches[handed:])
    assert again.epoch == 2


def test_another_number_of_ranks_goes_on_in_the_same_order(numbers: data.Records) -> None:
    order = taken(data.Loader(numbers, 1))
    two = [data.Loader(numbers, 8, rank=rank, world=2) for rank in range(2)]
    running = [iter(loader) for loader in two]
    before = [row for _ in range(5) for one in running for row in taken([next(one)])]
    assert two[0].state_dict() == two[1].state_dict()
    three = [data.Loader(numbers, 4, rank=rank, world=3, drop_last=True) for rank in range(3)]
    for loader in three:
        loader.load_state_dict(two[1].state_dict())
    after = [row for step in zip(*three, strict=True) for row in taken(step)]
    assert before + after == order[: len(before) + len(after)]
    assert len(after) >= ROWS - 80 - 12


def test_states_of_other_data_are_refused(numbers: data.Records, tmp_path: Path) -> None:
    loader = data.Loader(numbers, 64)
    state = loader.state_dict()
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (errors.UnsupportedError, {"version": 2}),
        (errors.InvalidInputError, {"length": ROWS - 1}),
        (errors.InvalidInputError, {"order": ["sequential"]}),
        (errors.InvalidInputError, {"position": ROWS + 1}),
        (errors.InvalidInputError, {"position": 1 << 63}),
        (errors.InvalidInputError, {"epoch": -1}),
        (errors.InvalidInputError, {"seed": "x"}),
        (errors.BusyError, {"fingerprint": "0"}),
    ]
    for kind, change in wrong:
        with pytest.raises(kind):
            loader.load_state_dict({**state, **change})
    with pytest.raises(errors.InvalidInputError, match="not a loader's state"):
        loader.load_state_dict({})
    os.utime(tmp_path / "a.bin", ns=(1, 1))
    fresh = data.Loader(data.raw(tmp_path / "a.bin", "int32", 4, framework="numpy"), 64)
    with pytest.raises(errors.BusyError, match="files changed"):
        fresh.load_state_dict(state)
    fresh.load_state_dict(state, strict=False)
    assert len(taken(fresh)) == ROWS


def test_a_loop_that_was_left_is_over(numbers: data.Records) -> None:
    loader = data.Loader(numbers, 64)
    for batch in loader:
        first = taken([batch])
        break
    old = iter(loader)
    assert (loader.epoch, taken([next(old)]) == first) == (1, False)
    new = iter(loader)
    with pytest.raises(errors.InvalidInputError, match="another epoch"):
        next(old)
    next(new)
    assert loader.epoch == 2


# ---- batches that the program gets
# -------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_batches_that_are_kept_never_change(tmp_path: Path, framework: str) -> None:
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    keep_all(tmp_path, framework, "cpu")


def test_arrays_of_forebays_that_are_kept_never_change(tmp_path: Path, device: str) -> None:
    keep_all(tmp_path, "native", device)


def keep_all(folder: Path, framework: str, device: str) -> None:
    array = numpy.random.default_rng(2).integers(0, 255, (4000, 512), dtype="uint8")
    array.tofile(folder / "a.bin")
    records = data.raw(folder / "a.bin", "uint8", 512, framework=framework, device=device)
    loader = data.Loader(records, 100, prefetch=3)
    order = numpy.frombuffer(b"".join(loader._order.rows(epoch, 0, 4000) for epoch in range(2)), "int64")
    kept = [batch for _ in range(2) for batch in loader]
    for number, batch in enumerate(kept):
        found = batch.numpy() if isinstance(batch, forebay.Array) else numpy.asarray(batch)
        assert numpy.array_equal(found, array[order[number * 100 : number * 100 + 100]]), number


def test_numpy_memory_is_used_again_when_the_last_view_is_gone(numbers: data.Records) -> None:
    loader = data.Loader(numbers, 64, prefetch=1)
    places, views = set(), []
    for number, batch in enumerate(loader):
        places.add(batch.__array_interface__["data"][0])
        if number % 5 == 0:
            views.append((number, batch[3:5].T[1:], batch[3:5].copy()))
    assert len(places) < 10
    for _ in loader:
        pass
    for _, view, copy in views:
        assert numpy.array_equal(view, copy.T[1:])


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_batches_on_the_host_begin_at_pages(tmp_path: Path, framework: str) -> None:
    """The engine reads into them without a copy of its own."""
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    (tmp_path / "a.bin").write_bytes(bytes(64 * 4096))
    records = data.raw(tmp_path / "a.bin", "uint8", 4096, framework=framework, device="cpu")
    batches = list(data.Loader(records, 32))
    assert [records.framework.address(batch) % 4096 for batch in batches] == [0, 0]


def test_small_batches_are_read_further_ahead(tmp_path: Path, numbers: data.Records) -> None:
    with (tmp_path / "large.bin").open("wb") as file:
        file.truncate(1 << 34)
    large = data.raw(tmp_path / "large.bin", "uint8", 1 << 20, framework="numpy")
    assert [data.Loader(large, size).prefetch for size in (8, 16, 20, 32, 9000)] == [4, 4, 3, 2, 2]
    assert data.Loader(numbers, 8).prefetch == 4 and data.Loader(numbers, 8, prefetch=1).prefetch == 1


def test_a_transform_and_one_that_raises(numbers: data.Records) -> None:
    calls = []

    def double(batch: Any) -> Any:
        calls.append(1)
        batch *= 2
        if len(calls) == 3:
            raise RuntimeError("broken")
        return batch

    loader = data.Loader(numbers, 64, order="sequential", transform=double)
    running = iter(loader)
    assert taken([next(running)]) == list(range(0, 128, 2))
    next(running)
    with pytest.raises(RuntimeError, match="broken"):
        next(running)
    # It was not handed out: the state is before it, and the next call gives it again.
    assert loader.state_dict()["position"] == 128
    assert taken([next(running)])[0] == 256
    assert taken(running)[0] == 2 * 192


def test_a_second_read_that_fails_gives_no_changed_batch(
    numbers: data.Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, broken = numbers.read_async, list[type[Exception]]()

    def failing(rows: Any, memory: Any = None) -> Any:
        if broken:
            raise broken.pop()
        return read(rows, memory)

    def change(batch: Any) -> Any:
        batch += 1
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("broken")
        return batch

    calls: list[int] = []
    monkeypatch.setattr(numbers, "read_async", failing)
    running = iter(data.Loader(numbers, 64, order="sequential", transform=change))
    with pytest.raises(RuntimeError, match="broken"):
        next(running)
    broken.append(OSError)
    with pytest.raises(OSError):
        next(running)
    assert taken(running)[:65] == list(range(1, 66))


def test_columns_and_lengths(tmp_path: Path) -> None:
    numpy.arange(500, dtype="int32").tofile(tmp_path / "a.bin")
    starts = numpy.arange(100) * 20
    jagged = data.ranges(tmp_path / "a.bin", starts, (numpy.arange(100) % 6) * 4, "int32", framework="numpy")
    both = data.zipped(tokens=jagged, label=numpy.arange(100))
    for batch in data.Loader(both, 10):
        tokens = batch["tokens"]
        for row, label in enumerate(batch["label"]):
            assert tokens.record(row).tolist() == list(range(5 * label, 5 * label + label % 6))


def test_a_node_of_torchdata(numbers: data.Records) -> None:
    pytest.importorskip("torchdata.nodes", reason="torchdata is not installed: its nodes are not tested")
    import torchdata.nodes as nodes

    plain = taken(data.Loader(numbers, 64))
    pipe = nodes.Loader(data.Loader(numbers, 64).node())
    running = iter(pipe)
    first = [next(running) for _ in range(4)]
    state = pipe.state_dict()
    again = nodes.Loader(data.Loader(numbers, 64).node())
    again.load_state_dict(state)
    assert taken(first) + taken(again) == plain


# ---- faults ----------------------------------------------------------------------------------------------------------


def test_a_file_that_is_replaced_between_epochs_is_noticed(numbers: data.Records, tmp_path: Path) -> None:
    loader = data.Loader(numbers, 64)
    list(loader)
    (tmp_path / "b.bin").write_bytes((tmp_path / "a.bin").read_bytes())
    os.replace(tmp_path / "b.bin", tmp_path / "a.bin")
    with pytest.raises(errors.BusyError, match="changed since"):
        iter(loader)
    (tmp_path / "a.bin").unlink()
    with pytest.raises(FileNotFoundError):
        iter(loader)


def test_a_loop_that_cannot_begin_skips_no_epoch(numbers: data.Records, tmp_path: Path) -> None:
    loader, path = data.Loader(numbers, 64), tmp_path / "a.bin"
    next(iter(loader))
    path.rename(tmp_path / "b.bin")
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            iter(loader)
    assert loader.epoch == 0
    (tmp_path / "b.bin").rename(path)
    iter(loader)
    assert loader.epoch == 1


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    numpy.arange(1 << 20, dtype="int32").tofile(tmp_path / "a.bin")
    loader = data.Loader(data.raw(tmp_path / "a.bin", "int32", 1024, framework="numpy"), 64)
    running = iter(loader)
    next(running)
    os.truncate(tmp_path / "a.bin", 4096)
    # A read that ends early and a look at the file behind one that does not say the same: which comes first is by chance.
    with pytest.raises(errors.BusyError, match="changed") as caught:
        for _ in running:
            pass
    assert caught.value.context["path"] == str(tmp_path / "a.bin")
    assert any("open the data set anew" in hint for hint in caught.value.hints)


def test_the_file_that_was_cut_is_named_among_others(tmp_path: Path) -> None:
    for name in "abc":
        numpy.arange(1 << 15, dtype="int32").tofile(tmp_path / name)
    records = data.raw([tmp_path / name for name in "abc"], "int32", 1024, framework="numpy")
    assert len(records[:]) == 96  # All are open.
    os.truncate(tmp_path / "b", 4096)
    for rows in (slice(None), [80, 3, 40, 0], 40):
        with pytest.raises(errors.BusyError) as caught:
            records[rows]
        assert caught.value.context["path"] == str(tmp_path / "b")


def test_batches_larger_than_memory_are_refused_at_once(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        try:
            file.truncate(1 << 60)
        except OSError:
            file.truncate(1 << 43)
    size = (tmp_path / "a").stat().st_size
    records = data.raw(tmp_path / "a", "uint8", 1, framework="numpy")
    for order in ("random", "sequential"):
        for batch in (size // 2, size, 1 << 61, (1 << 63) - 1):
            with pytest.raises(errors.OutOfMemoryError, match="no memory for a batch") as caught:
                next(iter(data.Loader(records, batch, order=order, drop_last=False)))
            assert caught.value.hints
    wide = data.ranges(tmp_path / "a", [0] * 16, [size] * 16, framework="numpy")
    for call in (lambda: records[:], lambda: records[range(size - 2)], lambda: wide[:], lambda: wide[3]):
        with pytest.raises(errors.OutOfMemoryError, match="no memory for a batch"):
            call()


def test_wrong_words(numbers: data.Records) -> None:
    for words in (
        {"batch_size": 0},
        {"prefetch": 0},
        {"rank": 2, "world": 2},
        {"rank": 0},
        {"seed": -1},
        {"order": "x"},
        {"order": 5},
        {"block": 64},
        {"window": 16},
        {"order": "sequential", "block": 64},
        {"drop_last": "no"},
        {"drop_last": 0},
    ):
        with pytest.raises(errors.InvalidInputError) as caught:
            data.Loader(numbers, **{"batch_size": 8, **words})  # type: ignore[arg-type]
        assert caught.value.hints
    with pytest.raises(errors.InvalidInputError, match="not a source"):
        data.Loader([1, 2, 3], 8)  # type: ignore[arg-type]


def test_ctrl_c_ends_a_loop_at_once_and_the_loader_goes_on(
    tmp_path: Path, start_python: Callable[..., subprocess.Popen[str]]
) -> None:
    numpy.arange(1 << 18, dtype="int32").tofile(tmp_path / "a.bin")
    code = """
import sys, time, forebay.data as data
loader = data.Loader(data.raw(sys.argv[1], "int32", 16, framework="numpy"), 64, transform=lambda batch: (time.sleep(0.01), batch)[1])
seen = set()
running = iter(loader)
print("begun", flush=True)
try:
    while True:
        seen.update(next(running)[:, 0].tolist())
except KeyboardInterrupt:
    print("stopped", flush=True)
for batch in running:
    seen.update(batch[:, 0].tolist())
print(len(seen))
"""
    child = start_python(code, str(tmp_path / "a.bin"))
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    # Python drops the exception of a signal that arrives while an object's `__del__` runs: then it is sent again.
    while not select.select([child.stdout], [], [], 0.3)[0]:
        child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=30)[0] == "stopped\n16384\n"


@pytest.mark.parametrize("leave", ["early", "at the end", "before it begins"])
@pytest.mark.parametrize("words", ORDERS, ids=str)
def test_loader_and_batches_go_with_the_last_who_holds_them(
    numbers: data.Records, words: dict[str, Any], leave: str
) -> None:
    """Without a garbage collection: batches on their way may be most of a GPU's memory."""
    gc.collect()
    gc.disable()
    try:
        loader = data.Loader(numbers, 16, **words)
        running = iter(loader)
        if leave == "early":
            next(running)
        elif leave == "at the end":
            taken(running)
            running = iter(loader)
        gone = [weakref.ref(loader), weakref.ref(running)]
        del loader
        # A loop holds what it is of.
        assert len(taken(running)) > 0
        assert all(reference() is not None for reference in gone)
        del running
        assert all(reference() is None for reference in gone)
    finally:
        gc.enable()


def test_ctrl_c_behind_a_batch_that_was_just_begun(tmp_path: Path) -> None:
    """The batch is on its way, and the next call does not begin it again."""
    numpy.arange(256, dtype="int32").tofile(tmp_path / "a.bin")

    class Interrupted(deque[Any]):
        def append(self, item: Any) -> None:
            super().append(item)
            raise KeyboardInterrupt

    running: Any = iter(data.Loader(data.raw(tmp_path / "a.bin", "int32", 1, framework="numpy"), 16))
    seen = [int(row) for row in next(running)[:, 0]]
    running._flying = Interrupted(running._flying)
    with pytest.raises(KeyboardInterrupt):
        next(running)
    running._flying = deque(running._flying)
    seen += [int(row) for batch in running for row in batch[:, 0]]
    assert sorted(seen) == list(range(256))


def test_a_rank_that_dies_holds_nobody_up(
    tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Ranks share an order, not a process: one that is killed leaves the others alone."""
    numpy.arange(1 << 16, dtype="int32").tofile(tmp_path / "a.bin")
    code = """
import os, sys, forebay.data as data
rank = int(sys.argv[2])
loader = data.Loader(data.raw(sys.argv[1], "int32", 16, framework="numpy"), 64, rank=rank, world=2)
for number, batch in enumerate(loader):
    if rank == 1 and number == 3:
        os.kill(os.getpid(), 9)
print(loader.stats.batches)
"""
    dead = run_python(code, str(tmp_path / "a.bin"), "1")
    alive = run_python(code, str(tmp_path / "a.bin"), "0")
    assert (dead.returncode, alive.returncode, alive.stdout) == (-9, 0, "32\n"), alive.stderr


def test_a_kept_position_after_a_kill(
    tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """A process that is killed goes on from the state it saved last: no record twice, none left out."""
    numpy.repeat(numpy.arange(4096, dtype="int32"), 16).tofile(tmp_path / "a.bin")
    code = """
import json, os, pathlib, sys, forebay.data as data
folder, kill = pathlib.Path(sys.argv[1]), int(sys.argv[2])
loader = data.Loader(data.raw(folder / "a.bin", "int32", 16, framework="numpy"), 64)
if (folder / "state").exists():
    loader.load_state_dict(json.loads((folder / "state").read_text()))
with (folder / "seen").open("a") as seen:
    for number, batch in enumerate(loader):
        seen.write(" ".join(map(str, batch[:, 0])) + " ")
        seen.flush()
        (folder / "next").write_text(json.dumps(loader.state_dict()))
        os.replace(folder / "next", folder / "state")
        if number == kill:
            os.kill(os.getpid(), 9)
"""
    for kill in (3, 20, 1000):
        run_python(code, str(tmp_path), str(kill))
    seen = list(map(int, (tmp_path / "seen").read_text().split()))
    assert sorted(seen) == list(range(4096))


def test_columns_on_two_devices(tmp_path: Path, gpu: str) -> None:
    numpy.arange(4000, dtype="int32").tofile(tmp_path / "a.bin")
    near = data.raw(tmp_path / "a.bin", "int32", 4, framework="native", device=gpu)
    both = data.zipped(label=list(range(1000)), near=near, host=near.to("cpu"), plain=near.to("cpu", "numpy"))
    assert str(both.to("cpu", "numpy").device) == "cpu"
    for batch in data.Loader(both, 50):
        assert (batch["near"].device, batch["host"].device) == (gpu, "cpu")
        assert numpy.array_equal(batch["near"].numpy(), batch["plain"])
        assert numpy.array_equal(batch["host"].numpy(), batch["plain"])
        assert batch["plain"][:, 0].tolist() == [4 * label for label in batch["label"]]


def test_blocks_are_read_before_their_records(tmp_path: Path) -> None:
    """The first batch of block order has three windows read: a fifth of the file, and no more."""
    path = tmp_path / "a.bin"
    numpy.arange(1 << 23, dtype="int64").tofile(path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident(path) > 0.01:
        pytest.skip("the file system keeps the file in memory")
    loader = data.Loader(data.raw(path, "int64", 512, framework="numpy"), 64, order="block", block=256, window=4)
    next(iter(loader))
    deadline = time.monotonic() + 20
    while resident(path) < 0.18 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert 0.18 <= resident(path) < 0.4
    assert sorted(taken(loader)) == list(range(0, 1 << 23, 512))


def test_files_that_go_while_blocks_are_read_ahead_hold_nobody_up(tmp_path: Path) -> None:
    numpy.arange(1 << 18, dtype="int64").tofile(tmp_path / "a.bin")
    loader = data.Loader(
        data.raw(tmp_path / "a.bin", "int64", 64, framework="numpy"), 64, order="block", block=64, window=2
    )
    running = iter(loader)
    next(running)
    (tmp_path / "a.bin").unlink()
    # It is open: its bytes are there until the end of the epoch, which tells.
    with pytest.raises(FileNotFoundError):
        for _ in running:
            pass
    assert loader.stats.batches == 64
