"""Batches of records of different lengths: a sequence of records, in each framework and in what torch does with batches."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import pytest

import forebay
import forebay.data as data
from forebay import errors

numpy = pytest.importorskip("numpy", reason="these tests compare with numpy's arrays")

TEXTS = [b"some", b"", b"texts of", b"different", b"lengths", b"x"]
FRAMEWORKS = ["native", "numpy", "torch", "jax"]


def records(folder: Path, framework: str = "numpy", device: str = "cpu") -> data.Records:
    if framework != "native":
        pytest.importorskip(framework, reason=f"{framework} is not installed")
    for number, text in enumerate(TEXTS):
        (folder / str(number)).write_bytes(text)
    return data.ranges([folder / str(number) for number in range(len(TEXTS))], framework=framework, device=device)


def plain(one: Any) -> bytes:
    return one.tobytes() if isinstance(one, forebay.Array) else bytes(numpy.asarray(one).tobytes())


def same(batch: Any, rows: list[int]) -> None:
    assert [plain(one) for one in batch] == [TEXTS[row] for row in rows]
    ends = batch.offsets.numpy() if isinstance(batch.offsets, forebay.Array) else numpy.asarray(batch.offsets)
    assert ends.tolist() == numpy.cumsum([0, *(len(TEXTS[row]) for row in rows)]).tolist()
    assert plain(batch.values) == b"".join(TEXTS[row] for row in rows)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_batch_is_a_sequence_of_its_records(tmp_path: Path, framework: str) -> None:
    batch: Any = records(tmp_path, framework)[[4, 1, 2, 0]]
    rows = [4, 1, 2, 0]
    assert len(batch) == 4
    same(batch, rows)
    for number in range(-4, 4):
        for given in (number, numpy.int64(number), numpy.array(number)):
            assert plain(batch[given]) == plain(batch.record(given)) == TEXTS[rows[number]]
    assert [plain(one) for one in reversed(batch)] == [TEXTS[row] for row in rows[::-1]]
    assert [(plain(one), label) for one, label in zip(batch, "abcd", strict=True)][3] == (b"some", "d")
    for part in (slice(None), slice(1, 3), slice(3, 1), slice(-1, None), slice(None, None, -2), slice(0, 9, 3)):
        cut = batch[part]
        assert type(cut) is data.Jagged and type(cut.offsets) is type(batch.offsets)
        same(cut, rows[part])
    same(batch[[3, 0, 0, -1]], [0, 4, 4, 0])
    same(batch[numpy.array([2, 1], ">i2")], [2, 1])
    same(batch[[]], [])
    for wrong in (4, -5, [0, 4], [-5]):
        with pytest.raises(IndexError):
            batch[wrong]
    for wrong in (1.5, "a", None, [1.5], [True], numpy.ones(4, bool)):
        with pytest.raises(TypeError, match="record numbers cannot be|no column") as caught:
            batch[wrong] if not isinstance(wrong, str) else batch.record(wrong)
        assert isinstance(caught.value, errors.InvalidInputError) and caught.value.hints


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_records_are_found_by_their_elements(tmp_path: Path, framework: str) -> None:
    batch: Any = records(tmp_path, framework)[[4, 1, 0, 4]]
    other: Any = records(tmp_path, framework)[[4, 5]]
    for record in (batch[0], other[0]):
        assert record in batch and batch.index(record) == 0 and batch.count(record) == 2
        assert batch.index(record, 1) == batch.index(record, -1, 9) == 3
        with pytest.raises(ValueError, match="no such record"):
            batch.index(record, 1, 3)
    assert batch.index(batch[1]) == 1
    for missing in (other[1], None, 5, "some", numpy.int64(5)):
        assert missing not in batch and batch.count(missing) == 0
    if framework != "native":
        assert list(TEXTS[0]) in batch and [] in batch and numpy.frombuffer(TEXTS[0], "uint8") in batch


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_arrays_of_a_batch_are_not_replaced(tmp_path: Path, framework: str) -> None:
    batch: Any = records(tmp_path, framework)[:]
    for name in ("values", "offsets", "more"):
        with pytest.raises(AttributeError):
            setattr(batch, name, 1)
    same(batch, list(range(len(TEXTS))))


def test_no_offsets_are_an_error_of_ours() -> None:
    with pytest.raises(errors.InvalidInputError, match="no offsets") as caught:
        len(data.Jagged(numpy.arange(3), numpy.arange(0)))
    assert caught.value.hints
    assert len(data.Jagged(numpy.arange(3), numpy.array([0]))) == 0


def test_a_batch_of_a_gpus_is_a_sequence_too(tmp_path: Path, gpu: str) -> None:
    batch: Any = records(tmp_path, "native", gpu)[[2, 1, 3]]
    same(batch, [2, 1, 3])
    same(batch[1:], [1, 3])
    assert batch[1:].values.device == batch[0].device == batch[::2].offsets.device == gpu


def test_views_share_the_memory_of_the_batch(tmp_path: Path) -> None:
    batch: Any = records(tmp_path)[:]
    for part in (batch[2], batch[2:4].values, next(iter(batch))):
        assert numpy.shares_memory(part, batch.values)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_batches_are_copied_and_sent(tmp_path: Path, framework: str) -> None:
    batch: Any = records(tmp_path, framework)[[2, 0]]
    same(pickle.loads(pickle.dumps(batch)), [2, 0])
    same(copy.deepcopy(batch), [2, 0])
    assert "values=" in repr(batch)


def test_jagged_padded_and_nested(tmp_path: Path) -> None:
    numpy.arange(10, dtype="int32").tofile(tmp_path / "a")
    words: dict[str, Any] = {"offsets": [0, 12, 12], "lengths": [12, 0, 28], "dtype": "int32"}
    batch = data.ranges(tmp_path / "a", **words, framework="numpy")[[2, 1, 0]]
    padded = batch.padded(-1)
    assert padded.tolist() == [[3, 4, 5, 6, 7, 8, 9], [-1] * 7, [0, 1, 2, -1, -1, -1, -1]]
    assert batch.padded(0, 2).tolist() == [[3, 4], [0, 0], [0, 1]]
    for wrong, kind in (
        (-1, errors.InvalidInputError),
        (1 << 62, errors.OutOfMemoryError),
        (1 << 64, errors.InvalidInputError),
    ):
        with pytest.raises(kind):
            batch.padded(0, wrong)
    torch = pytest.importorskip("torch", reason="torch is not installed: its nested tensors are not tested")
    batch = data.ranges(tmp_path / "a", **words, framework="torch", device="cpu")[[2, 1, 0]]
    assert batch.padded(-1).tolist() == padded.tolist()
    nested = batch.nested()
    assert nested.values().data_ptr() == batch.values.data_ptr()
    assert torch.equal(nested.unbind()[2], torch.tensor([0, 1, 2], dtype=torch.int32))


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize(
    ("dtype", "wrong"), [("int32", (float("nan"), 2**40, 0.5, "a", None)), ("uint8", (-1, 256)), ("bool", (2,))]
)
def test_records_are_not_padded_with_what_their_type_lacks(
    framework: str, dtype: str, wrong: tuple[Any, ...], tmp_path: Path
) -> None:
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    numpy.zeros(12, dtype).tofile(tmp_path / "a")
    words: dict[str, Any] = {"framework": framework, "device": "cpu"}
    batch: Any = data.ranges(tmp_path / "a", offsets=[0, 4], lengths=[4, 8], dtype=dtype, **words)[:]
    for value in wrong:
        with pytest.raises(errors.InvalidInputError, match=f"{dtype} has no value") as caught:
            batch.padded(value)
        assert caught.value.hints
    for value in (1, 1.0, numpy.uint8(1), True):
        assert batch.padded(value)[0, -1] == 1
    assert framework == "jax" or str(batch.padded(1).dtype).endswith(dtype)


def test_floats_are_padded_with_nan_and_native_arrays_not_at_all(tmp_path: Path) -> None:
    batch = data.Jagged(numpy.zeros(3, "float32"), numpy.array([0, 1, 3]))
    assert numpy.isnan(batch.padded(float("nan"))[0, 1])
    with pytest.raises(errors.UnsupportedError) as caught:
        records(tmp_path, "native")[:].padded()
    assert caught.value.hints == ['framework="torch"']


def test_torch_moves_pins_and_joins_batches(tmp_path: Path) -> None:
    source = records(tmp_path, "torch")
    import torch
    from torch.utils import _pytree
    from torch.utils.data import default_collate, default_convert

    batch: Any = source[[3, 1, 0]]
    moved = batch.to("cpu", non_blocking=True)
    same(moved, [3, 1, 0])
    wide = batch.to(torch.int32)
    assert (wide.values.dtype, wide.offsets.dtype) == (torch.int32, torch.int64)
    assert batch.to("meta").offsets.device.type == "meta"
    same(default_convert({"a": batch})["a"], [3, 1, 0])
    same(default_collate([batch, source[[2]], source[[]]]), [3, 1, 0, 2])
    doubled = _pytree.tree_map(lambda leaf: leaf * 2, {"a": batch})["a"]
    assert type(doubled) is data.Jagged and doubled.values.tolist() == [
        2 * byte for byte in b"".join(plain(one) for one in batch)
    ]
    assert doubled.offsets.tolist() == [0, 18, 18, 26]
    assert len(_pytree.tree_leaves([batch])) == 2
    with pytest.raises(errors.InvalidInputError, match=r"pin_memory\(\) is of torch's tensors") as caught:
        source.to("cpu", "numpy")[:].pin_memory()
    assert caught.value.hints


def test_torchs_pin_memory_thread_keeps_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = records(tmp_path, "torch")
    import torch
    from torch.utils.data._utils.pin_memory import pin_memory

    pinned: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, *given: pinned.append(tensor) or tensor)
    same(pin_memory({"a": source[[3, 1]]}, None)["a"], [3, 1])
    assert len(pinned) == 2


def test_a_data_loader_with_workers_hands_batches_on(tmp_path: Path) -> None:
    source = data.zipped(text=records(tmp_path, "torch"), label=list(range(6)))
    from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

    batches = BatchSampler(SequentialSampler(range(6)), 4, drop_last=False)
    for words in ({}, {"num_workers": 1, "multiprocessing_context": multiprocessing.get_context("fork")}):
        rows = [0, 1, 2, 3], [4, 5]
        for words_of in ({"sampler": batches, "batch_size": None}, {"batch_size": 4, "collate_fn": data.collate}):
            for batch, expected in zip(DataLoader(source, **words_of, **words), rows, strict=True):  # type: ignore[arg-type]
                same(batch["text"], expected)
                assert batch["label"].tolist() == expected


def test_jax_maps_over_a_batch(tmp_path: Path) -> None:
    batch: Any = records(tmp_path, "jax")[[3, 0]]
    import jax

    doubled = jax.jit(lambda given: jax.tree.map(lambda leaf: leaf * 2, given))(batch)
    assert type(doubled) is data.Jagged and doubled.offsets.tolist() == [0, 18, 26]
