"""Which records a rank reads, when that is decided, and that none is left out; and what a state knows of values in memory."""

from __future__ import annotations

import array
import collections
import contextlib
import pickle
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest

import forebay.data as data
from forebay import errors

numpy = pytest.importorskip("numpy", reason="these tests compare with numpy's arrays")
with contextlib.suppress(ImportError):
    # Not behind a double of a part of it.
    import torch  # noqa: F401

ROWS = 100


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No ranks unless a test says so."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def group(monkeypatch: pytest.MonkeyPatch, ranks: tuple[int, int] | None) -> None:
    """torch.distributed as it is, with a process group or without."""
    double = types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: ranks is not None,
        get_rank=lambda: ranks and ranks[0],
        get_world_size=lambda: ranks and ranks[1],
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", double)  # type: ignore[arg-type]


def environment(monkeypatch: pytest.MonkeyPatch, rank: object, world: object) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world))


@pytest.fixture
def numbers(tmp_path: Path) -> data.Records:
    """Record n is the number n."""
    numpy.arange(ROWS, dtype="int32").tofile(tmp_path / "a.bin")
    return data.raw(tmp_path / "a.bin", "int32", 1, framework="numpy")


def taken(batches: Any) -> list[int]:
    return [int(row) for batch in batches for row in numpy.asarray(batch)[:, 0]]


# ---- when ranks are decided ------------------------------------------------------------------------------------------


def test_a_loader_made_before_the_process_group_reads_a_share(
    numbers: data.Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaders = [data.Loader(numbers, 8, seed=1) for _ in range(2)]
    assert "batches of 8" in repr(loaders[0]) and "rank" not in repr(loaders[0])
    loaders[1] = pickle.loads(pickle.dumps(loaders[1]))
    parts = []
    for rank, loader in enumerate(loaders):
        group(monkeypatch, (rank, 2))
        parts.append(taken(loader))
        assert (loader.rank, loader.world, len(loader)) == (rank, 2, 7) and f"rank {rank} of 2" in repr(loader)
    assert sorted(parts[0] + parts[1]) == list(range(ROWS))


@pytest.mark.parametrize("asked", ["len", "rank", "loop", "sampler"])
def test_ranks_that_change_are_an_error(numbers: data.Records, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    loader = data.Loader(numbers, 8)
    ask = {"len": len, "rank": lambda it: it.rank, "loop": list, "sampler": lambda it: list(it.batch_sampler)}[asked]
    ask(loader)
    for ranks in ((1, 2), (0, 2)):
        group(monkeypatch, ranks)
        for again in (len, list, lambda it: it.world, lambda it: next(iter(it.batch_sampler))):
            with pytest.raises(errors.InvalidInputError, match=f"rank {ranks[0]} of 2 now") as caught:
                again(loader)
            assert "init_process_group" in caught.value.hints[0]
    # A state needs no ranks, and a loop that is going on no second decision.
    assert loader.state_dict()["length"] == ROWS
    group(monkeypatch, None)
    assert len(loader) == 13


def test_ranks_that_are_given_stay(numbers: data.Records, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = data.Loader(numbers, 8, rank=1, world=4)
    group(monkeypatch, (0, 2))
    environment(monkeypatch, 2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (len(loader), loader.rank, loader.world, len(taken(loader))) == (4, 1, 4, 25)


def test_the_environment_decides_where_there_is_no_process_group_and_this_is_said(
    numbers: data.Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(monkeypatch, 1, 2)
    loader = data.Loader(numbers, 8, order="sequential")
    with pytest.warns(UserWarning, match="not initialised: RANK=1 and WORLD_SIZE=2 of the environment") as said:
        assert len(loader) == 7
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # torchrun's usual order: the group says the same.
        group(monkeypatch, (1, 2))
        assert taken(loader)[:8] == list(range(8, 16))
    group(monkeypatch, None)
    with pytest.warns(UserWarning, match="RANK=1") as said:
        next(iter(data.Loader(numbers, 8)))
    assert said[0].filename == __file__


def test_an_environment_that_says_otherwise_than_the_process_group_is_told(
    numbers: data.Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    group(monkeypatch, (1, 4))
    environment(monkeypatch, 3, 8)
    with pytest.warns(UserWarning, match="RANK=3 and WORLD_SIZE=8 .* otherwise than torch.distributed.* 1 of 4"):
        assert data.Loader(numbers, 8).rank == 1


def test_an_environment_that_says_nothing_or_one_process_is_none(
    numbers: data.Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    for said in (("0", "1"), ("", "")):
        environment(monkeypatch, *said)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(taken(data.Loader(numbers, 8))) == ROWS


@pytest.mark.parametrize(
    "said",
    [
        ("x", "2"),
        ("2", "2"),
        ("-1", "2"),
        ("", "2"),
        (None, "2"),
        ("1", None),
        ("1", ""),
        ("0", "x"),
        ("0", "0"),
        ("0", "-2"),
    ],
)
def test_an_environment_that_is_no_rank_is_an_error(
    numbers: data.Records, monkeypatch: pytest.MonkeyPatch, said: tuple[str | None, str | None]
) -> None:
    """Each process would read all records."""
    for name, text in zip(("RANK", "WORLD_SIZE"), said, strict=True):
        if text is not None:
            monkeypatch.setenv(name, text)
    loader = data.Loader(numbers, 8)
    for ask in (len, iter):
        with pytest.raises(errors.InvalidInputError, match="says no rank") as caught:
            ask(loader)
        for name, text in zip(("RANK", "WORLD_SIZE"), said, strict=True):
            assert (f"{name}={text}" if text else f"no {name}") in str(caught.value)
    # rank= and world= go before the environment, and so does a process group.
    assert len(taken(data.Loader(numbers, 8, rank=0, world=1))) == ROWS
    group(monkeypatch, (0, 1))
    assert len(taken(loader)) == ROWS


# ---- shares ----------------------------------------------------------------------------------------------------------

ORDERS: list[dict[str, Any]] = [{}, {"order": "sequential"}, {"order": "block", "block": 8, "window": 3}]


@pytest.mark.parametrize("words", ORDERS, ids=str)
def test_evaluation_sees_every_record(numbers: data.Records, words: dict[str, Any]) -> None:
    loader = data.Loader(numbers, 32, **words)
    assert sorted(taken(loader)) == list(range(ROWS)) and len(loader) == 4
    assert loader.stats.repeated == 0


@pytest.mark.parametrize("words", ORDERS, ids=str)
@pytest.mark.parametrize("world", [2, 3, 7, 101])
def test_what_comes_twice_is_the_last_of_a_rank_and_is_counted(
    numbers: data.Records, words: dict[str, Any], world: int
) -> None:
    seen, sizes = [], set()
    for rank in range(world):
        loader = data.Loader(numbers, 8, rank=rank, world=world, **words)
        mine = taken(loader)
        sizes.add((len(mine), len(loader)))
        seen += mine[: len(mine) - loader.stats.repeated]
    assert sorted(seen) == list(range(ROWS)) and len(sizes) == 1


def test_the_last_share_goes_on_from_a_state(numbers: data.Records) -> None:
    """Also with another number of ranks, which begin in the middle of a step of these."""
    one = data.Loader(numbers, 7)
    running = iter(one)
    before = [row for _ in range(5) for row in taken([next(running)])]
    after = []
    for rank in range(3):
        loader = data.Loader(numbers, 8, rank=rank, world=3)
        loader.load_state_dict(one.state_dict())
        mine = taken(loader)
        after += mine[: len(mine) - loader.stats.repeated]
    assert sorted(before + after) == list(range(ROWS))


# ---- what a state knows ----------------------------------------------------------------------------------------------


def fingerprint(numbers: data.Records, label: Any) -> str:
    return data.zipped(x=numbers, label=label).fingerprint


def test_a_state_knows_the_values_in_memory(numbers: data.Records) -> None:
    labels = [row % 7 for row in range(ROWS)]
    state = data.Loader(data.zipped(x=numbers, label=labels), 8).state_dict()
    same = (
        numpy.array(labels),
        numpy.array(labels, ">i2"),
        numpy.array(labels, "uint64"),
        array.array("i", labels),
        collections.UserList(labels),
        collections.deque(labels),
        [numpy.int16(label) for label in labels],
    )
    for given in same:
        data.Loader(data.zipped(x=numbers, label=given), 8).load_state_dict(state)
    for wrong in (labels[::-1], [*labels[:-1], 9], [float(label) for label in labels], list(map(str, labels))):
        other = data.Loader(data.zipped(x=numbers, label=wrong), 8)
        with pytest.raises(errors.BusyError, match="values in memory"):
            other.load_state_dict(state)
        other.load_state_dict(state, strict=False)
    both = data.zipped(x=numbers, label=labels)
    assert both.to("cpu", "native").fingerprint == pickle.loads(pickle.dumps(both)).fingerprint == both.fingerprint


def test_digests_of_all_kinds_of_values(numbers: data.Records) -> None:
    columns: list[Any] = [
        [f"n{row}" for row in range(ROWS)],
        numpy.array([f"n{row}" for row in range(ROWS)])[::-1],
        [bytes([row]) for row in range(ROWS)],
        [{"a": [row, None]} for row in range(ROWS)],
        [(row, 1.5) for row in range(ROWS)],
        [numpy.arange(row) for row in range(ROWS)],
        [1 << 70] * ROWS,
        [1j] * ROWS,
        numpy.arange(ROWS) * 1j,
        numpy.arange(ROWS).astype("datetime64[s]"),
        numpy.zeros(ROWS, [("point", "<i4"), ("b", "S2")]),
        numpy.arange(2 * ROWS).reshape(ROWS, 2),
        numpy.array([object()] * ROWS),
        numpy.arange(ROWS).astype("float16"),
        data.ranges(numbers.files.paths * ROWS, framework="numpy")[:],  # type: ignore[attr-defined]
        data.ranges(numbers.files.paths * ROWS, [4] * ROWS, [8] * ROWS, file=range(ROWS), framework="numpy")[:],  # type: ignore[attr-defined]
    ]
    found = [fingerprint(numbers, column) for column in columns]
    assert len(set(found)) == len(columns)
    assert found == [fingerprint(numbers, column) for column in columns]
    torch = pytest.importorskip("torch", reason="torch is not installed: its values are not tested")
    wide = torch.arange(2 * ROWS)
    for given in (wide.reshape(ROWS, 2), wide.reshape(2, ROWS).T.contiguous().T.reshape(ROWS, 2)):
        assert fingerprint(numbers, given) == fingerprint(numbers, given.numpy())
    floats = torch.arange(ROWS).bfloat16()
    assert fingerprint(numbers, floats) == fingerprint(numbers, [float(row) for row in range(ROWS)])


def test_a_state_knows_the_places_that_a_program_gave(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(range(200)))
    made = [
        data.ranges(tmp_path / "a", [0, 8], [4, 4], framework="numpy"),
        data.ranges(tmp_path / "a", [0, 9], [4, 4], framework="numpy"),
        data.ranges(tmp_path / "a", [0, 8], [4, 5], framework="numpy"),
        data.raw(tmp_path / "a", "uint8", 4, header=1, count=2, framework="numpy"),
        data.raw(tmp_path / "a", "uint8", 4, header=2, count=2, framework="numpy"),
        data.raw(tmp_path / "a", "uint8", 4, stride=3, count=2, framework="numpy"),
    ]
    assert len({records.fingerprint for records in made}) == len(made)
    assert [pickle.loads(pickle.dumps(one)).fingerprint for one in made] == [one.fingerprint for one in made]
