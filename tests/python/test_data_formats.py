"""Shards that other libraries write: by their own writers where they are installed, and byte by byte as these write them."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import struct
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay
import forebay.data as data
from forebay import errors

numpy = pytest.importorskip("numpy", reason="these tests compare with numpy's arrays")

import data_files as files  # noqa: E402 (it needs numpy)

WORDS: dict[str, Any] = {"framework": "numpy"}


def host(array: Any) -> Any:
    return array.numpy() if isinstance(array, forebay.Array) else numpy.asarray(array)


def images(count: int) -> Any:
    return numpy.random.default_rng(3).integers(0, 255, (count, 4, 5), dtype="uint8")


# ---- MDS -------------------------------------------------------------------------------------------------------------

MDS_COLUMNS: dict[str, tuple[str, int | None]] = {
    "image": ("ndarray:uint8:4,5", 20),
    "label": ("int", 8),
    "name": ("str", None),
    "scan": ("ndarray", None),
    "weight": ("float32", 4),
}


def mds_sample(number: int) -> dict[str, Any]:
    return {
        "image": images(50)[number],
        "label": 7 - number,
        "name": "x" * (number % 4),
        "scan": numpy.full((2, 3), number, "int16"),
        "weight": numpy.float32(number / 2),
    }


def mds_bytes(sample: dict[str, Any]) -> dict[str, bytes]:
    head = bytes([17, 2 << 2, 2, 3])
    return {
        "image": sample["image"].tobytes(),
        "label": struct.pack("<q", sample["label"]),
        "name": sample["name"].encode(),
        "scan": head + sample["scan"].tobytes(),
        "weight": sample["weight"].tobytes(),
    }


def check_mds(folder: Path, device: str, count: int) -> None:
    records = data.mds(folder, framework="native", device=device)
    assert len(records) == count and sorted(records.columns) == sorted(MDS_COLUMNS)
    rows = [count - 1, 0, 3, 3, count // 2]
    batch, expected = records[rows], [mds_sample(row) for row in rows]
    for name in ("image", "label", "scan", "weight"):
        assert numpy.array_equal(host(batch[name]), numpy.stack([numpy.asarray(one[name]) for one in expected])), name
    values, ends = host(batch["name"].values), host(batch["name"].offsets)
    texts = [values[low:high].tobytes().decode() for low, high in zip(ends[:-1], ends[1:], strict=True)]  # noqa: RUF007
    assert texts == [one["name"] for one in expected]
    assert list(data.mds(folder, ["weight", "label"], **WORDS)[0]) == ["weight", "label"]


def test_mds_as_its_bytes_are(tmp_path: Path, device: str) -> None:
    shards = [[mds_bytes(mds_sample(row)) for row in range(low, low + 10)] for low in (0, 10, 20)]
    files.write_mds(tmp_path, MDS_COLUMNS, shards)
    check_mds(tmp_path, device, 30)


def test_mds_by_its_own_writer(tmp_path: Path, device: str) -> None:
    streaming = pytest.importorskip("streaming", reason="mosaicml-streaming is not installed", exc_type=Exception)
    columns = {name: encoding for name, (encoding, _) in MDS_COLUMNS.items()}
    with streaming.MDSWriter(out=str(tmp_path / "a"), columns=columns, size_limit=700) as writer:
        for row in range(50):
            writer.write(mds_sample(row))
    assert len(list((tmp_path / "a").glob("*.mds"))) > 3
    check_mds(tmp_path / "a", device, 50)


def test_mds_of_one_size_is_a_gather(tmp_path: Path) -> None:
    columns: dict[str, tuple[str, int | None]] = {"a": ("uint8", 1), "b": ("float64", 8)}
    shards = [[{"a": bytes([row]), "b": struct.pack("<d", row)} for row in range(5)] for _ in range(2)]
    files.write_mds(tmp_path, columns, shards)
    assert data.mds(tmp_path, **WORDS)[[9, 1]]["b"].tolist() == [4.0, 1.0]


# ---- litdata ---------------------------------------------------------------------------------------------------------


def lit_sample(number: int) -> dict[str, Any]:
    return {
        "image": images(50)[number],
        "label": 7 - number,
        "name": "x" * (number % 4),
        "tokens": numpy.arange(number, dtype="int32"),
        "weight": number / 2,
    }


LIT_FORMATS = ["numpy", "int", "str", "no_header_numpy:2", "float"]


def lit_bytes(sample: dict[str, Any]) -> list[bytes]:
    return [
        struct.pack("<IIII", 4, 2, 4, 5) + sample["image"].tobytes(),
        struct.pack("<q", sample["label"]),
        sample["name"].encode(),
        sample["tokens"].tobytes(),
        struct.pack("<d", sample["weight"]),
    ]


def check_litdata(folder: Path, device: str, count: int) -> None:
    records = data.litdata(folder, framework="native", device=device)
    assert isinstance(records, forebay.data._records.Zipped) and len(records) == count
    rows = [count - 1, 0, 3, 3, count // 2]
    batch, expected = records[rows], [lit_sample(row) for row in rows]
    for name in ("image", "label", "weight"):
        assert numpy.array_equal(host(batch[name]), numpy.stack([numpy.asarray(one[name]) for one in expected])), name
    for name, convert in (("name", lambda one: one.tobytes().decode()), ("tokens", lambda one: one.tolist())):
        values, ends = host(batch[name].values), host(batch[name].offsets).tolist()
        found = [convert(values[low:high]) for low, high in zip(ends, ends[1:], strict=False)]  # noqa: RUF007
        assert found == [one[name] if name == "name" else one[name].tolist() for one in expected]


def test_litdata_as_its_bytes_are(tmp_path: Path, device: str) -> None:
    chunks = [[lit_bytes(lit_sample(row)) for row in range(low, low + 10)] for low in (0, 10)]
    files.write_litdata(tmp_path, list(lit_sample(0)), LIT_FORMATS, chunks)
    check_litdata(tmp_path, device, 20)


@pytest.mark.parametrize("format", ["pickle", "odd"])
def test_litdata_of_samples_without_names_is_refused_without_columns(tmp_path: Path, format: str) -> None:
    files.write_litdata(tmp_path, ["x"], [format], [[[b"1"]]])
    index = tmp_path / "index.json"
    with pytest.raises(errors.UnsupportedError, match="leaf 'x'") as caught:
        data.litdata(tmp_path, **WORDS)
    assert any("columns=" in hint for hint in caught.value.hints)
    described = json.loads(index.read_text())
    leaf = {"type": None, "context": None, "children_spec": []}
    described["config"]["data_spec"] = json.dumps([1, leaf])
    index.write_text(json.dumps(described))
    with pytest.raises(errors.UnsupportedError, match="each sample") as caught:
        data.litdata(tmp_path, **WORDS)
    assert caught.value.hints and not any("columns=" in hint for hint in caught.value.hints)


def lit_writer(folder: Path, samples: list[Any], **words: Any) -> None:
    writer_of = pytest.importorskip("litdata.streaming.writer", reason="litdata is not installed", exc_type=Exception)
    writer = writer_of.BinaryWriter(str(folder), **words)
    for number, sample in enumerate(samples):
        writer[number] = sample
    writer.done()
    writer.merge(1)


def test_litdata_by_its_own_writer(tmp_path: Path, device: str) -> None:
    lit_writer(tmp_path / "a", [lit_sample(row) for row in range(50)], chunk_size=7)
    check_litdata(tmp_path / "a", device, 50)


def test_litdata_of_several_folders_by_its_own_writer(tmp_path: Path) -> None:
    for number, name in enumerate("ab"):
        lit_writer(tmp_path / name, [lit_sample(row) for row in range(20 * number, 20 * number + 20)], chunk_size=7)
    check_litdata(tmp_path / "{a,b}", "cpu", 40)
    names = data.litdata([tmp_path / "b", tmp_path / "a/index.json"], ["name"], **WORDS)[:]["name"]
    assert [len(names.record(row)) for row in range(40)] == [
        len(lit_sample(row)["name"]) for row in (*range(20, 40), *range(20))
    ]


def test_litdata_tensors_and_tokens_by_its_own_writer(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: litdata needs it")
    samples = [{"x": torch.full((2, 3), float(row)), "y": torch.arange(4) + row, "z": b"ab" * row} for row in range(9)]
    lit_writer(tmp_path / "a", samples, chunk_size=4)
    batch = data.litdata(tmp_path / "a", framework="torch", device="cpu")[[8, 2]]
    assert torch.equal(batch["x"], torch.stack([samples[8]["x"], samples[2]["x"]]))
    assert torch.equal(batch["y"], torch.stack([samples[8]["y"], samples[2]["y"]]))
    assert bytes(batch["z"].record(0)) == b"ab" * 8
    from litdata.streaming.item_loader import TokensLoader

    lit_writer(
        tmp_path / "b", [torch.arange(1000, dtype=torch.int32)] * 3, chunk_bytes=9000, item_loader=TokensLoader(64)
    )
    windows = data.litdata(tmp_path / "b", window=64, framework="torch", device="cpu")
    assert windows.dtype == torch.int32
    assert torch.equal(windows[[0, 1]].reshape(-1), torch.arange(128, dtype=torch.int32))
    twice = data.litdata([tmp_path / "b"] * 2, window=64, framework="torch", device="cpu")
    assert torch.equal(twice[:], torch.cat([windows[:]] * 2))


# ---- Megatron --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "dtype"), [(8, "uint16"), (4, "int32"), (5, "int64"), (1, "uint8")])
def test_megatron(tmp_path: Path, device: str, code: int, dtype: str) -> None:
    sequences = [numpy.arange(length) + length for length in (5, 0, 17, 30, 1)]
    files.write_megatron(tmp_path / "text", sequences, code, dtype)
    whole = numpy.concatenate(sequences)
    records = data.megatron(tmp_path / "text", framework="native", device=device)
    batch = records[[3, 1, 4, 0]]
    values, ends = batch.values, batch.offsets
    assert host(ends).tolist() == [0, 30, 30, 31, 36]
    assert host(values).tolist() == [*sequences[3], *sequences[4], *sequences[0]]
    windows = data.megatron(tmp_path / "text", window=9, stride=8, framework="native", device=device)
    assert len(windows) == (53 - 9) // 8 + 1
    assert host(windows[[5, 0]]).tolist() == [whole[40:49].tolist(), whole[:9].tolist()]
    # A window lies in one file.
    twice = data.megatron([tmp_path / "text"] * 2, window=9, stride=8, framework="native", device=device)
    assert host(twice[:]).tolist() == [*host(windows[:]).tolist(), *host(windows[:]).tolist()]


def megatron_writer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Megatron's module that writes and reads index and data. Its packages import all of Megatron, kernels included: two empty
    ones stand for them.
    """
    found = importlib.util.find_spec("megatron")
    places = list(found.submodule_search_locations or []) if found else []
    if not any(Path(place, "core/datasets/indexed_dataset.py").exists() for place in places):
        pytest.skip("megatron-core is not installed")
    pytest.importorskip("torch", reason="torch is not installed: megatron-core needs it")
    core, utils = types.ModuleType("megatron.core"), types.ModuleType("megatron.core.utils")
    core.__path__ = [str(Path(place, "core")) for place in places]
    utils.log_single_rank = lambda *told: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "megatron.core", core)
    monkeypatch.setitem(sys.modules, "megatron.core.utils", utils)
    return importlib.import_module("megatron.core.datasets.indexed_dataset")


@pytest.mark.parametrize("dtype", ["uint16", "int32", "int64", "float32"])
def test_megatron_by_its_own_writer(tmp_path: Path, device: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = megatron_writer(monkeypatch)
    import torch

    builder = module.IndexedDatasetBuilder(str(tmp_path / "t.bin"), dtype=getattr(numpy, dtype))
    sequences = [numpy.arange(length, dtype=dtype) + length for length in (5, 17, 1, 30)]
    for sequence in sequences:
        builder.add_item(torch.from_numpy(sequence.astype("int64")))
        builder.end_document()
    builder.finalize(str(tmp_path / "t.idx"))
    theirs = module.IndexedDataset(str(tmp_path / "t"))
    records = data.megatron(tmp_path / "t", framework="native", device=device)
    assert len(records) == len(theirs) == 4
    for row in range(4):
        assert numpy.array_equal(host(records[row]), theirs[row]) and numpy.array_equal(theirs[row], sequences[row])
    windows = data.megatron(tmp_path / "t", window=9, stride=8, framework="native", device=device)
    assert host(windows[1]).tolist() == numpy.concatenate(sequences)[8:17].tolist()


# ---- WebDataset ------------------------------------------------------------------------------------------------------


def web_samples(count: int, first: int = 0) -> list[tuple[str, dict[str, bytes]]]:
    picture = images(50)
    return [
        (
            f"{row:06}",
            {"jpg": b"j" * (row * 300 % 1000), "cls": str(row % 10).encode(), "npy": files.npy_bytes(picture[row])},
        )
        for row in range(first, first + count)
    ]


def check_tar(paths: list[Path], device: str, count: int) -> None:
    records = data.tar(paths, framework="native", device=device)
    assert len(records) == count
    rows = [count - 1, 0, 3, 3]
    batch = records[rows]
    assert [int(one) for one in batch["cls"]] == [row % 10 for row in rows]
    assert numpy.array_equal(host(batch["npy"]), images(50)[rows])
    assert host(batch["jpg"].values).tobytes() == b"j" * sum(row * 300 % 1000 for row in rows)


def test_tar_as_its_bytes_are(tmp_path: Path, device: str) -> None:
    for number in range(2):
        files.write_tar(tmp_path / f"{number}.tar", web_samples(10, 10 * number))
    check_tar([tmp_path / "0.tar", tmp_path / "1.tar"], device, 20)


def test_tar_by_webdatasets_own_writer(tmp_path: Path, device: str) -> None:
    web = pytest.importorskip("webdataset", reason="webdataset is not installed", exc_type=Exception)
    with web.ShardWriter(str(tmp_path / "%03d.tar"), maxcount=20, verbose=0) as sink:
        for key, members in web_samples(50):
            sink.write({"__key__": key, "jpg": members["jpg"], "cls": int(members["cls"]), "npy": images(50)[int(key)]})
    check_tar(sorted(tmp_path.glob("*.tar")), device, 50)


def test_tar_members_that_differ(tmp_path: Path) -> None:
    samples = web_samples(3)
    samples[1][1]["npy"] = files.npy_bytes(numpy.zeros((9, 9)))
    files.write_tar(tmp_path / "a.tar", samples)
    batch = data.tar(tmp_path / "a.tar", ["npy"], **WORDS)[[0, 1]]["npy"]
    assert batch.record(1).tobytes() == samples[1][1]["npy"]
    del samples[2][1]["jpg"]
    files.write_tar(tmp_path / "a.tar", samples)
    with pytest.raises(errors.InvalidInputError, match="no member 'jpg'"):
        data.tar(tmp_path / "a.tar", **WORDS)
    assert len(data.tar(tmp_path / "a.tar", ["cls"], **WORDS)) == 3


@pytest.mark.parametrize(
    ("column", "content", "words"),
    [
        ("cls", b"cat", "no number: 'cat'"),
        ("cls", b"9223372036854775808", "more than 64 bits"),
        ("cls", b"0" * 21, "21 bytes"),
        ("npy", files.npy_bytes(numpy.zeros(3, ">f4")), "arrays of >f4"),
    ],
)
def test_tar_members_that_are_no_values_are_named(tmp_path: Path, column: str, content: bytes, words: str) -> None:
    files.write_tar(tmp_path / "0.tar", [("a", {"cls": b"-9223372036854775808"}), ("b", {"cls": b"7"})])
    samples = [(key, {column: content if key == "d" else b"1"}) for key in "cd"]
    files.write_tar(tmp_path / "1.tar", samples[1:] if column == "npy" else samples)
    paths = [tmp_path / f"{number}.tar" for number in range(column == "npy", 2)]
    with pytest.raises(errors.Error, match=words) as caught:
        data.tar(paths, **WORDS)
    assert caught.value.hints
    assert caught.value.context == {"path": str(tmp_path / "1.tar"), "member": f"d.{column}"}


# ---- our own ---------------------------------------------------------------------------------------------------------


def test_packed_arrays(tmp_path: Path, device: str) -> None:
    picture = images(40)
    assert data.pack(iter(picture), tmp_path / "a.pack") == 40
    records = data.packed(tmp_path / "a.pack", framework="native", device=device)
    assert len(records) == 40
    assert numpy.array_equal(host(records[[39, 0, 7]]), picture[[39, 0, 7]])
    data.verify(tmp_path / "a.pack")


def pack_sample(row: int) -> dict[str, Any]:
    return {
        "image": images(50)[row],
        "label": row,
        "name": "n" * (row % 3),
        "raw": bytes(row),
        "points": numpy.full((row % 4, 3), row, "float32"),
    }


def test_packed_columns_in_groups(tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.data._pack._GROUP_BYTES", 500)
    data.pack((pack_sample(row) for row in range(50)), tmp_path / "a.pack", jagged=["points"])
    records = data.packed(tmp_path / "a.pack", framework="native", device=device)
    rows = [49, 0, 23, 24]
    batch = records[rows]
    assert host(batch["label"]).tolist() == rows
    assert numpy.array_equal(host(batch["image"]), images(50)[rows])
    assert host(batch["points"].values).tolist() == [[49] * 3] + [[23] * 3] * 3
    assert host(batch["points"].offsets).tolist() == [0, 1, 1, 4, 4]
    assert host(batch["raw"].values).shape == (96,)
    data.verify(tmp_path / "a.pack")
    assert list(data.packed(tmp_path / "a.pack", ["raw"], **WORDS)[0]) == ["raw"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packed_tensors(tmp_path: Path, dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: its tensors are not packed")
    tensors = torch.randn(20, 3, 1000).to(getattr(torch, dtype))
    data.pack(list(tensors), tmp_path / "a.pack")
    assert torch.equal(data.packed(tmp_path / "a.pack", framework="torch", device="cpu")[:], tensors)


def test_records_of_pages_lie_on_pages(tmp_path: Path) -> None:
    for nbytes, stride in ((4096, 4096), (4000, 4096), (150_528, 151_552), (5000, 5056), (8, 8), (100, 128)):
        data.pack((numpy.full(nbytes, row, "uint8") for row in range(3)), tmp_path / "a.pack")
        extents = data.packed(tmp_path / "a.pack", **WORDS).extents(1, 3)
        assert extents == [(str(tmp_path / "a.pack"), 4096 + stride, stride + nbytes)]


def test_what_cannot_be_packed(tmp_path: Path) -> None:
    path = tmp_path / "a.pack"
    wrong: list[tuple[type[Exception], Callable[[], Any]]] = [
        (errors.InvalidInputError, lambda: data.pack([], path)),
        (errors.InvalidInputError, lambda: data.pack([numpy.zeros(3), numpy.zeros(4)], path)),
        (errors.InvalidInputError, lambda: data.pack([numpy.zeros(3), numpy.zeros(3, "i4")], path)),
        (errors.InvalidInputError, lambda: data.pack([{"a": 1}, {"b": 1}], path)),
        (errors.InvalidInputError, lambda: data.pack([{"a": 1}], path, jagged=["b"])),
        (errors.InvalidInputError, lambda: data.pack([{"a": 1}], path, jagged=["a"])),
        (errors.UnsupportedError, lambda: data.pack([{"a": object()}], path)),
        (errors.UnsupportedError, lambda: data.pack([{"a": numpy.array(["x"])}], path)),
    ]
    for kind, call in wrong:
        with pytest.raises(kind):
            call()
        assert list(tmp_path.iterdir()) == []


def test_indexes_are_json_that_people_can_read(tmp_path: Path) -> None:
    """The reference page describes this."""
    data.pack([{"x": numpy.arange(3, dtype="int16")}], tmp_path / "a.pack")
    raw = (tmp_path / "a.pack").read_bytes()
    magic, version, _, offset, length, size, rows = struct.unpack("<8sIIQQQQ", raw[:48])
    assert (magic, version, size, rows) == (b"FBRECORD", 1, os.path.getsize(tmp_path / "a.pack"), 1)
    index = json.loads(raw[offset : offset + length])
    assert index["columns"] == [{"name": "x", "dtype": "I16", "shape": [3], "jagged": False, "stride": 6}]
    assert index["groups"][0]["columns"]["x"]["offset"] == 4096
