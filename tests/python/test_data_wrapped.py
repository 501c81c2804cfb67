"""What formats put around values, and data sets as their own tools leave them: several writers, merged indexes, compression."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import shlex
import shutil
import struct
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import forebay.data as data
from forebay import errors

numpy = pytest.importorskip("numpy", reason="these tests compare with numpy's arrays")

import data_files as files  # noqa: E402 (it needs numpy)

WORDS: dict[str, Any] = {"framework": "numpy", "device": "cpu"}


def texts(batch: Any) -> list[bytes]:
    return [batch.record(row).tobytes() for row in range(len(batch.offsets) - 1)]


# ---- litdata ---------------------------------------------------------------------------------------------------------


def litdata_of(folder: Path, samples: list[Any], is_arrow: bool = False) -> Any:
    """What litdata's own writer leaves. With pyarrow it keeps some samples as a table of Arrow's, unless `is_arrow` is no."""
    writer_of = pytest.importorskip("litdata.streaming.writer", reason="litdata is not installed", exc_type=Exception)
    with contextlib.ExitStack() as stack:
        if not is_arrow and hasattr(writer_of, "is_arrow_footer_type"):
            stack.enter_context(mock.patch.object(writer_of, "is_arrow_footer_type", return_value=False))
        writer = writer_of.BinaryWriter(str(folder), chunk_size=3)
        for number, sample in enumerate(samples):
            writer[number] = sample
        writer.done()
        writer.merge(1)
    return data.litdata(folder, **WORDS)


def nested(number: int) -> bytes:
    """[number] as litdata stores it."""
    return struct.pack("<BIq", 2, 1, number)


def text(value: str) -> bytes:
    return struct.pack("<I", len(value.encode())) + value.encode()


def test_lists_as_their_bytes_are(tmp_path: Path) -> None:
    kinds = {
        "same": [nested(1), nested(2)],
        "lengths": [struct.pack("<BIqq", 2, 2, 1, 2), struct.pack("<BI", 1, 0)],
        "fractions": [struct.pack("<BId", 3, 1, 0.5)] * 2,
        "bools": [struct.pack("<BI??", 4, 2, True, False)] * 2,
        "mixed": [struct.pack("<BId", 3, 1, 0.5), nested(2)],
        "texts": [struct.pack("<BI", 1, 2) + text("a") + text("é"), struct.pack("<BI", 1, 0)],
        "json": [b'[1, "x"]', struct.pack("<BI", 0, 4) + b"[[]]"],
        "dict": [
            struct.pack("<BI", 5, 3) + text("a") + nested(1) + text("b") + b"\x0b" + text("c") + b"\x0a\x01",
            b"\x07" + text("x"),
        ],
        "rows": [
            struct.pack("<BII", 6, 1, 3) + text("k") + text("l") + text("m")
            + b"\x10" + b"\x11" + text("v") + b"\x12" + struct.pack("<q", -1),
            struct.pack("<BII", 6, 1, 2) + text("k") + text("l") + b"\x13" + struct.pack("<d", 2.5) + b"\x14\x01",
        ],
        "scalars": [struct.pack("<Bq", 8, 7), struct.pack("<Bd", 9, 1.5)],
    }  # fmt: skip
    items = [[kinds[name][row] for name in kinds] for row in range(2)]
    files.write_litdata(tmp_path, list(kinds), ["json"] * len(kinds), [items])
    records = data.litdata(tmp_path, **WORDS)
    batch = records[[0, 1]]
    assert batch["same"].tolist() == [[1], [2]] and batch["same"].dtype == "int64"
    assert (batch["lengths"].values.tolist(), batch["lengths"].offsets.tolist()) == ([1, 2], [0, 2, 2])
    assert batch["fractions"].tolist() == [[0.5]] * 2 and batch["bools"].tolist() == [[True, False]] * 2
    assert batch["mixed"] == [[0.5], [2]] and batch["texts"] == [["a", "é"], []]
    assert batch["json"] == [[1, "x"], [[]]] and batch["dict"] == [{"a": [1], "b": None, "c": True}, "x"]
    assert batch["rows"] == [[{"k": None, "l": "v", "m": -1}], [{"k": 2.5, "l": True}]]
    assert batch["scalars"] == [7, 1.5] and records[1]["scalars"] == 1.5
    again = pickle.loads(pickle.dumps(records))
    assert again[[0, 1]]["dict"] == batch["dict"] and again.fingerprint == records.fingerprint
    assert [one["texts"] for one in data.Loader(records, 2, order="sequential")] == [[["a", "é"], []]]


def test_lists_that_lie(tmp_path: Path) -> None:
    for lie in (
        struct.pack("<BI", 2, 9), struct.pack("<BIq", 2, 0, 1), struct.pack("<BI", 1, 1 << 31), b"\x05\xff\xff\xff\xff",
        struct.pack("<BII", 6, 1 << 31, 0), b"\x0c", b"\x0a", b"", b"[", b"\x05\x01\0\0\0\0\0\0\0" * 3000, nested(1) + b"x",
    ):  # fmt: skip
        files.write_litdata(tmp_path, None, ["json"], [[[lie], [lie]]])
        with pytest.raises(errors.InvalidInputError):
            data.litdata(tmp_path, **WORDS)[:]


def test_lists_and_pictures_by_litdatas_own_writer(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    rng = numpy.random.default_rng(1)
    pixels = [rng.integers(0, 255, (4, 5 + row % 2, 3), dtype="uint8") for row in range(7)]

    def sample(row: int) -> dict[str, Any]:
        even = pillow.fromarray(pixels[0] + row)
        return {
            "even": even,
            "gray": even.convert("L"),
            "bits": even.convert("1"),
            "other": pillow.fromarray(pixels[row]),
        }

    records = litdata_of(tmp_path / "pictures", [sample(row) for row in range(7)])
    rows = [6, 0, 3]
    batch = records[rows]
    assert numpy.array_equal(batch["even"], numpy.stack([pixels[0] + row for row in rows]))
    assert batch["gray"].shape == (3, 4, 5) and numpy.array_equal(batch["gray"][0], numpy.asarray(sample(6)["gray"]))
    for name, wanted in (("other", [pixels[row] for row in rows]), ("bits", [sample(row)["bits"] for row in rows])):
        assert all(numpy.array_equal(one, other) for one, other in zip(batch[name], wanted, strict=True))
    lists = [{"x": list(range(row)), "s": ["a"] * row, "d": [{"k": row, "f": 0.5}], "y": row} for row in range(7)]
    records = litdata_of(tmp_path / "lists", lists)
    batch = records[rows]
    assert [batch["x"].record(place).tolist() for place in range(3)] == [lists[row]["x"] for row in rows]
    assert batch["s"] == [lists[row]["s"] for row in rows] and batch["d"] == [lists[row]["d"] for row in rows]


def test_a_table_of_arrows_by_litdatas_own_writer_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    with pytest.raises(errors.UnsupportedError, match="a table of Arrow's") as raised:
        litdata_of(tmp_path, [{"x": list(range(row)), "y": row} for row in range(7)], is_arrow=True)[[0]]
    assert "forebay.data.pack" in raised.value.hints[0]


def test_lists_of_pictures_by_litdatas_own_writer(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    encoded = []
    for row in range(4):
        file = io.BytesIO()
        pillow.new("RGB", (4, 4), (row, 0, 0)).save(file, "JPEG")
        encoded.append(file.getvalue())
    made = [{"x": [pillow.open(io.BytesIO(one)) for one in encoded[: row + 1]]} for row in range(3)]
    batch = litdata_of(tmp_path, made)[[2, 0]]["x"]
    assert [one[:2].tobytes() for one in batch[0]] == [b"\xff\xd8"] * 3 and len(batch[1]) == 1


def test_chunks_that_are_tables_of_arrows(tmp_path: Path) -> None:
    files.write_litdata(tmp_path, ["a"], ["int"], [[[bytes(8)]]])
    with (tmp_path / "chunk-0-0.bin").open("ab") as file:
        file.write(b"ARROW1" + struct.pack("<I", 6) + b"LDARW01\0")
    with pytest.raises(errors.UnsupportedError, match="Arrow") as caught:
        data.litdata(tmp_path, **WORDS)
    assert "pack(" in caught.value.hints[0]


def test_arrays_of_different_shapes_come_as_their_bytes(tmp_path: Path) -> None:
    values = [struct.pack("<IIII", 4, 2, *shape) + bytes(6) for shape in ((2, 3), (3, 2))]
    files.write_litdata(tmp_path, None, ["numpy"], [[[value] for value in values]])
    assert texts(data.litdata(tmp_path, **WORDS)[[1, 0]]) == values[::-1]


@pytest.mark.parametrize("read", ["mds", "litdata"])
def test_columns_that_are_not_read_need_not_be_known(tmp_path: Path, read: str) -> None:
    if read == "mds":
        columns = {"a": ("int", 8), "p": ("pkl", None), "z": ("new", 3)}
        files.write_mds(
            tmp_path, columns, [[{"a": bytes([row] + [0] * 7), "p": b"x" * row, "z": b"abc"} for row in range(3)]]
        )
    else:
        chunk = [[bytes([row] + [0] * 7), b"x" * row, b"abc"] for row in range(3)]
        files.write_litdata(tmp_path, ["a", "p", "z"], ["int", "pickle", "new"], [chunk])
    assert getattr(data, read)(tmp_path, ["a"], **WORDS)[[2, 0]]["a"].tolist() == [2, 0]
    for wanted in (None, ["p"], ["a", "z"]):
        with pytest.raises(errors.UnsupportedError) as caught:
            getattr(data, read)(tmp_path, wanted, **WORDS)
        assert "columns= leaves it out" in caught.value.hints


# ---- MDS -------------------------------------------------------------------------------------------------------------


def streaming() -> Any:
    return pytest.importorskip("streaming", reason="mosaicml-streaming is not installed", exc_type=Exception)


def write_part(folder: Path, first: int, count: int, **words: Any) -> None:
    with streaming().MDSWriter(out=str(folder), columns={"n": "int", "t": "str"}, size_limit=300, **words) as writer:
        for number in range(first, first + count):
            writer.write({"n": number, "t": "x" * (number % 5)})


def numbers(folder: Any) -> list[int]:
    return list(data.mds(folder, **WORDS)[:]["n"].tolist())


def test_mds_of_several_writers(tmp_path: Path) -> None:
    parts = [tmp_path / "all" / str(number) for number in range(3)]
    for number, part in enumerate(parts):
        write_part(part, 20 * number, 20)
    assert len(list(parts[0].glob("*.mds"))) > 1
    # Not merged; one by one; as a pattern; merged by streaming's own function.
    assert numbers(tmp_path / "all") == list(range(60))
    assert numbers([parts[2], parts[0] / "index.json"]) == [*range(40, 60), *range(20)]
    assert numbers(tmp_path / "all/{0..1}") == list(range(40))
    from streaming.base.util import merge_index

    merge_index(str(tmp_path / "all"))
    assert sorted(json.loads((tmp_path / "all/index.json").read_text())["shards"][0]["raw_data"]["basename"])
    for part in parts:
        (part / "index.json").unlink()
    assert numbers(tmp_path / "all") == list(range(60))


def test_mds_folders_of_different_columns(tmp_path: Path) -> None:
    files.write_mds(tmp_path / "a", {"n": ("int", 8)}, [[{"n": bytes(8)}]])
    files.write_mds(tmp_path / "b", {"n": ("int32", 4)}, [[{"n": bytes(4)}]])
    with pytest.raises(errors.InvalidInputError, match="differ") as caught:
        data.mds(tmp_path, **WORDS)
    assert caught.value.context["before"] == str(tmp_path / "a/index.json")
    with pytest.raises(errors.NotFoundError, match="index"):
        data.mds(tmp_path / "c", **WORDS)
    (tmp_path / "c").mkdir()
    with pytest.raises(errors.NotFoundError, match="index"):
        data.mds(tmp_path / "c", **WORDS)


@pytest.mark.parametrize("kind", ["zstd:3", "gz", "bz2", "br", "snappy"])
def test_compressed_shards_say_how_to_unpack_them(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_part(tmp_path / "a b", 0, 20, compression=kind)
    with pytest.raises(errors.UnsupportedError, match="compressed") as caught:
        data.mds(tmp_path / "a b", **WORDS)
    python, flag, code, *words = shlex.split(caught.value.hints[0])
    assert (python, flag) == ("python", "-c")
    # In this process, which has imported streaming.
    monkeypatch.setattr(sys, "argv", ["-c", *words])
    exec(code, {})  # noqa: S102 (it is the hint that is tried)
    # So streaming leaves a folder, too: unpacked shards beside an index of packed ones.
    assert numbers(tmp_path / "a b") == list(range(20))


def test_mds_arrays_of_different_shapes(tmp_path: Path) -> None:
    module = streaming()
    arrays = [numpy.full((row + 1, 2), row, "float32") for row in range(3)]
    columns = {"x": "ndarray:float32", "any": "ndarray", "y": "int"}
    with module.MDSWriter(out=str(tmp_path / "a"), columns=columns) as writer:
        for row, array in enumerate(arrays):
            writer.write({"x": array, "any": array.astype("int8" if row else "int64"), "y": row})
    batch = data.mds(tmp_path / "a", **WORDS)[[2, 0]]
    from streaming.base.format.mds.encodings import mds_decode

    for name, encoding in (("x", "ndarray:float32"), ("any", "ndarray")):
        found = [mds_decode(encoding, value) for value in texts(batch[name])]
        assert all(numpy.array_equal(one, arrays[row]) for one, row in zip(found, (2, 0), strict=True))
    assert batch["y"].tolist() == [2, 0]


def test_mds_pictures(tmp_path: Path) -> None:
    module = streaming()
    pillow = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    pixels = [numpy.full((3 + row, 4, 3), row, "uint8") for row in range(3)]
    columns = {"same": "pil", "other": "pil", "many": "list[pil]", "png": "list[png]", "jpg": "jpeg_array"}
    with module.MDSWriter(out=str(tmp_path / "a"), columns=columns) as writer:
        for row, one in enumerate(pixels):
            picture = pillow.fromarray(one)
            same = pillow.fromarray(pixels[0] + row)
            sample = {
                "same": same,
                "other": picture,
                "many": [picture] * row,
                "png": [picture],
                "jpg": [b"ab" * row, b"c"],
            }
            writer.write(sample)
    batch = data.mds(tmp_path / "a", **WORDS)[[2, 1]]
    assert numpy.array_equal(batch["same"], [pixels[0] + 2, pixels[0] + 1])
    assert numpy.array_equal(batch["other"][0], pixels[2]) and numpy.array_equal(batch["other"][1], pixels[1])
    assert [len(one) for one in batch["many"]] == [2, 1] and numpy.array_equal(batch["many"][0][1], pixels[2])
    assert batch["png"][0][0][:4].tobytes() == b"\x89PNG"
    assert [one.tobytes() for one in batch["jpg"][0]] == [b"abab", b"c"]
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert torch.equal(data.mds(tmp_path / "a", device="cpu")[[2]]["other"][0], torch.from_numpy(pixels[2]))


def test_pictures_that_lie(tmp_path: Path) -> None:
    good = struct.pack("<III", 2, 1, 1) + b"L" + b"ab"
    for lie in (b"", good[:12], struct.pack("<III", 2, 1, 1 << 31) + b"L", struct.pack("<III", 1 << 31, 1 << 31, 1) + b"Lab",
                good + b"x", struct.pack("<III", 2, 1, 1) + b"?ab"):  # fmt: skip
        for values in ([lie, lie], [good, lie]):
            files.write_mds(tmp_path / "a", {"x": ("pil", None)}, [[{"x": value} for value in values]])
            with pytest.raises(errors.InvalidInputError):
                data.mds(tmp_path / "a", **WORDS)[:]
            shutil.rmtree(tmp_path / "a")
