"""Files that lie, that are cut, that are missing; writes that are killed or find no room. Nothing of it crashes or is believed."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay.data as data
from forebay import errors

numpy = pytest.importorskip("numpy", reason="these tests write files with numpy")

import data_files as files  # noqa: E402 (it needs numpy)

WORDS: dict[str, Any] = {"framework": "numpy"}
COLUMNS: dict[str, tuple[str, int | None]] = {"a": ("bytes", None), "b": ("str", None), "n": ("int", 8)}


def mds(folder: Path) -> data.Records:
    return data.mds(folder, **WORDS)


def lit(folder: Path) -> data.Records:
    return data.litdata(folder, **WORDS)


def write_mds(folder: Path) -> None:
    sample = {"a": b"abc", "b": b"", "n": bytes(8)}
    files.write_mds(folder, COLUMNS, [[sample] * 5, [sample] * 4])


def write_lit(folder: Path) -> None:
    files.write_litdata(folder, ["a", "n"], ["bytes", "int"], [[[b"abc", bytes(8)]] * 5, [[b"", bytes(8)]] * 4])


KINDS: list[tuple[Callable[[Path], None], Callable[[Path], data.Records], str]] = [
    (write_mds, mds, "shard.00001.mds"),
    (write_lit, lit, "chunk-0-1.bin"),
]


def change(path: Path, edit: Callable[[Any], None]) -> None:
    described = json.loads(path.read_text())
    edit(described)
    path.write_text(json.dumps(described))


@pytest.mark.parametrize(("write", "read", "shard"), KINDS, ids=["mds", "litdata"])
def test_truncated_and_missing_shards(tmp_path: Path, write: Any, read: Any, shard: str) -> None:
    write(tmp_path)
    whole = (tmp_path / shard).read_bytes()
    assert len(read(tmp_path)) == 9
    for size in range(len(whole)):
        (tmp_path / shard).write_bytes(whole[:size])
        with pytest.raises(errors.InvalidInputError):
            read(tmp_path)
    (tmp_path / shard).unlink()
    with pytest.raises(FileNotFoundError, match=shard):
        read(tmp_path)
    (tmp_path / "index.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"index\.json"):
        read(tmp_path)


@pytest.mark.parametrize(("write", "read", "shard"), KINDS, ids=["mds", "litdata"])
def test_every_word_of_a_table_that_lies(tmp_path: Path, write: Any, read: Any, shard: str) -> None:
    """All words of the number of samples, the offsets and the sizes of a sample, changed in turn."""
    write(tmp_path)
    whole = (tmp_path / shard).read_bytes()
    words = list(range(0, 4 * 6, 4))
    first = struct.unpack_from("<I", whole, 4)[0]
    for place in [*words, first, first + 4]:
        for value in (0, 1, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF):
            lying = bytearray(whole)
            struct.pack_into("<I", lying, place, value)
            if bytes(lying) == whole:
                continue
            (tmp_path / shard).write_bytes(lying)
            with pytest.raises(errors.InvalidInputError):
                read(tmp_path)[:]


def test_an_mds_index_that_lies(tmp_path: Path) -> None:
    def shard(**changes: Any) -> Callable[[Any], None]:
        return lambda index: index["shards"][0].update(changes)

    def raw(**changes: Any) -> Callable[[Any], None]:
        return lambda index: index["shards"][1]["raw_data"].update(changes)

    pickled = {"column_encodings": ["pkl", "str", "int"]}
    edits: list[tuple[type[Exception], Callable[[Any], None]]] = [
        (errors.UnsupportedError, lambda index: index.update(version=3)),
        (errors.UnsupportedError, shard(version=1)),
        (errors.UnsupportedError, shard(format="json")),
        (errors.InvalidInputError, lambda index: index.update(shards=[])),
        (errors.InvalidInputError, lambda index: index.update(shards=[3])),
        *[(errors.InvalidInputError, shard(samples=value)) for value in (-1, 1 << 31, 1 << 63, "5", None, 5.0, True)],
        *[(errors.InvalidInputError, raw(bytes=value)) for value in (-1, 1 << 31, 1 << 63, None)],
        *[
            (errors.InvalidInputError, raw(basename=value))
            for value in ("../x", "/etc/passwd", "a/../../x", "a//x", "./x", "a/", "", ".", 3)
        ],
        (errors.UnsupportedError, lambda index: [one.update(pickled) for one in index["shards"]]),
        (errors.InvalidInputError, shard(column_names=["a", "b", "c"])),
        (errors.UnsupportedError, lambda index: [one.update(column_encodings=["x"] * 3) for one in index["shards"]]),
        (errors.InvalidInputError, lambda index: [one.update(column_sizes=[None, 9, 8]) for one in index["shards"]]),
    ]
    for kind, edit in edits:
        write_mds(tmp_path)
        change(tmp_path / "index.json", edit)
        with pytest.raises(kind):
            mds(tmp_path)
    for text in ("", "[]", "{", '{"version": 2}', "[" * 100_000):
        (tmp_path / "index.json").write_text(text)
        with pytest.raises(errors.Error):
            mds(tmp_path)


def test_a_litdata_index_that_lies(tmp_path: Path) -> None:
    def config(**changes: Any) -> Callable[[Any], None]:
        return lambda index: index["config"].update(changes)

    def chunk(**changes: Any) -> Callable[[Any], None]:
        return lambda index: index["chunks"][0].update(changes)

    edits: list[tuple[type[Exception], Callable[[Any], None]]] = [
        (errors.UnsupportedError, config(compression="zstd")),
        (errors.UnsupportedError, config(encryption={"x": 1})),
        (errors.UnsupportedError, config(data_format=["pickle", "int"])),
        (errors.UnsupportedError, config(data_format=["new", "int"])),
        (errors.UnsupportedError, config(item_loader="ParquetLoader")),
        (errors.UnsupportedError, config(data_spec="[2, {}]")),
        (errors.UnsupportedError, config(data_spec="?")),
        (errors.InvalidInputError, config(data_format=["bytes"])),
        (errors.InvalidInputError, config(data_format=3)),
        (errors.InvalidInputError, config(item_loader="TokensLoader")),
        (errors.InvalidInputError, lambda index: index.update(chunks={})),
        *[(errors.InvalidInputError, chunk(chunk_size=value)) for value in (-1, 4, 1 << 31, 1 << 63, None)],
        *[(errors.InvalidInputError, chunk(filename=value)) for value in ("../x.bin", "", None)],
        (errors.UnsupportedError, chunk(filename="chunk.zstd.bin")),
    ]
    for kind, edit in edits:
        write_lit(tmp_path)
        change(tmp_path / "index.json", edit)
        with pytest.raises(kind):
            lit(tmp_path)


def test_headers_of_values_that_lie(tmp_path: Path) -> None:
    """Arrays with dtype and shape before them: of other shapes, and of shapes that have other bytes."""
    good = struct.pack("<IIII", 4, 2, 2, 3) + bytes(6)
    for other, kind in (
        (struct.pack("<IIII", 4, 2, 2, 3) + bytes(5), errors.InvalidInputError),
        (b"\0" * 7, errors.InvalidInputError),
    ):
        files.write_litdata(tmp_path / "a", None, ["numpy"], [[[good], [other]]])
        with pytest.raises(kind):
            lit(tmp_path / "a")
    for lie in (struct.pack("<II", 4, 0xFFFF_FFFF), struct.pack("<II", 14, 0), struct.pack("<III", 4, 1, 0x8000_0000)):
        files.write_litdata(tmp_path / "a", None, ["numpy"], [[[lie + bytes(20)]] * 2])
        with pytest.raises(errors.Error):
            lit(tmp_path / "a")
    for head in (bytes([17, 2 << 2, 2, 4]), bytes([99, 1 << 2, 6]), bytes([17, (63 << 2) | 3]), b""):
        files.write_mds(tmp_path / "b", {"x": ("ndarray", None)}, [[{"x": head + bytes(12)}] * 2])
        with pytest.raises(errors.InvalidInputError):
            mds(tmp_path / "b")


def test_a_megatron_index_that_lies(tmp_path: Path) -> None:
    sequences = [numpy.arange(5), numpy.arange(7)]

    def lying(edit: Callable[[bytearray], None]) -> None:
        files.write_megatron(tmp_path / "t", sequences, 4, "int32")
        index = bytearray((tmp_path / "t.idx").read_bytes())
        edit(index)
        (tmp_path / "t.idx").write_bytes(index)

    edits: list[tuple[type[Exception], Callable[[bytearray], None]]] = [
        (errors.InvalidInputError, lambda index: index.__setitem__(0, 0)),
        (errors.UnsupportedError, lambda index: struct.pack_into("<Q", index, 9, 2)),
        (errors.UnsupportedError, lambda index: index.__setitem__(17, 9)),
        *[
            (errors.InvalidInputError, lambda index, value=value: struct.pack_into("<Q", index, 18, value))  # type: ignore[misc]
            for value in (3 << 20, 1 << 31, 1 << 63, (1 << 64) - 1)
        ],
        *[
            (errors.InvalidInputError, lambda index, value=value: struct.pack_into("<i", index, 34, value))  # type: ignore[misc]
            for value in (-1, 13, 0x7FFF_FFFF)
        ],
        *[
            (errors.InvalidInputError, lambda index, value=value: struct.pack_into("<q", index, 42, value))  # type: ignore[misc]
            for value in (-1, 1 << 31, (1 << 63) - 1)
        ],
        (errors.InvalidInputError, lambda index: index.__delitem__(slice(40, None))),
        (errors.InvalidInputError, lambda index: index.__delitem__(slice(20, None))),
    ]
    for kind, edit in edits:
        lying(edit)
        with pytest.raises(kind):
            data.megatron(tmp_path / "t", **WORDS)[:]
    lying(lambda index: None)
    os.truncate(tmp_path / "t.bin", 47)
    for words in ({}, {"window": 4}):
        with pytest.raises(errors.InvalidInputError):
            data.megatron(tmp_path / "t", **words, **WORDS)
    (tmp_path / "t.bin").unlink()
    with pytest.raises(FileNotFoundError):
        data.megatron(tmp_path / "t", **WORDS)


def test_tar_files_that_lie(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    files.write_tar(path, [(f"{row}", {"bin": b"x" * 700, "cls": b"1"}) for row in range(4)])
    whole = path.read_bytes()
    for size in (0, 1, 100, 511, 512, 600, 1300, 2048 + 513):
        path.write_bytes(whole[:size])
        with pytest.raises(errors.Error):
            data.tar(path, **WORDS)[:]
    for place, text in ((124, b"77777777777\0"), (124, b"xxxxxxxxxxxx"), (148, b"000000\0 ")):
        lying = bytearray(whole)
        lying[place : place + len(text)] = text
        path.write_bytes(lying)
        with pytest.raises(errors.Error):
            data.tar(path, **WORDS)
    path.write_bytes(b"\x1f\x8b" + whole)
    with pytest.raises(errors.UnsupportedError, match="compressed"):
        data.tar(path, **WORDS)
    files.write_tar(path, [("a", {"cls": b"one"})])
    with pytest.raises(errors.InvalidInputError, match="no number"):
        data.tar(path, **WORDS)
    files.write_tar(path, [("a", {"npy": files.npy_bytes(numpy.array([{}], dtype=object))})])
    with pytest.raises(errors.UnsupportedError):
        data.tar(path, **WORDS)


@pytest.mark.parametrize("value", [(1 << 31) - 1, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, -1])
def test_sizes_at_the_edges_of_numbers(tmp_path: Path, value: int) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(1000))
    calls: list[Callable[[], object]] = [
        lambda: data.ranges(path, [value], [4], **WORDS),
        lambda: data.ranges(path, [4], [value], **WORDS),
        lambda: data.ranges(path, [value], [value], **WORDS),
        lambda: data.raw(path, "uint8", 4, count=value, **WORDS),
        lambda: data.raw(path, "uint8", 4, header=value, count=1, **WORDS),
        lambda: data.raw(path, "uint8", 4, stride=value, count=2, **WORDS),
        lambda: data.raw(path, "uint8", value, count=1, **WORDS),
        lambda: data.raw(path, "float64", (value, 8), count=1, **WORDS),
        lambda: data.raw(path, "uint8", 4, **WORDS)[value],
        lambda: data.raw(path, "uint8", 4, **WORDS)[[value]],
    ]
    for number, call in enumerate(calls):
        if value == -1 and number >= 8:
            call()  # The last record.
            continue
        with pytest.raises(errors.InvalidInputError):
            call()


def test_sizes_beyond_31_bits_are_read(tmp_path: Path) -> None:
    """Records far behind 2 and 4 GiB of a file with holes."""
    path = tmp_path / "a.bin"
    with path.open("wb") as file:
        for place in ((1 << 31) - 4, 1 << 31, (1 << 32) - 4, 1 << 32):
            file.seek(place)
            file.write(struct.pack("<I", place % 997))
    records = data.raw(path, "uint32", (), **WORDS)
    rows = [((1 << 31) - 4) // 4, (1 << 31) // 4, ((1 << 32) - 4) // 4, (1 << 32) // 4]
    assert records[rows].tolist() == [4 * row % 997 for row in rows]


def test_records_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abcd")
    (tmp_path / "empty").write_bytes(b"")
    nothing = data.ranges(tmp_path / "a", [0, 4, 2], [0, 0, 0], **WORDS)
    batch = nothing[[2, 0, 1]]
    assert (batch.values.shape, batch.offsets.tolist()) == ((0,), [0, 0, 0, 0])
    assert [len(batch.values) for batch in data.Loader(nothing, 2, drop_last=False)] == [0, 0]
    assert len(data.raw([tmp_path / "empty", tmp_path / "a"], "uint8", 4, **WORDS)) == 1
    assert list(data.Loader(data.raw(tmp_path / "empty", "uint8", 4, **WORDS), 2, drop_last=False)) == []
    numpy.save(tmp_path / "a.npy", numpy.zeros((5, 0), "f4"))
    rows = data.npy(tmp_path / "a.npy", **WORDS)
    assert rows[[4, 0]].shape == (2, 0)
    with pytest.raises(IndexError):
        rows[[5]]


def test_a_file_that_is_shorter_when_it_is_read_first(tmp_path: Path) -> None:
    """Opened lazily: the file is checked again then."""
    (tmp_path / "a").write_bytes(bytes(1000))
    records = data.raw(tmp_path / "a", "uint8", 10, **WORDS)
    os.truncate(tmp_path / "a", 500)
    with pytest.raises(errors.BusyError, match="changed since"):
        records[99]


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_indexes_that_are_no_files(tmp_path: Path, kind: str) -> None:
    """Files read to find records are opened by name: no FIFO is waited for, and no endless file is read."""

    def made(name: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:
            path.mkdir()
        return path

    (tmp_path / "t.bin").write_bytes(b"")
    calls: list[Callable[[], object]] = [
        lambda: data.mds(made("m/index.json"), **WORDS),
        lambda: data.litdata(made("l/index.json"), **WORDS),
        lambda: data.megatron(str(made("t.idx"))[:-4], **WORDS),
        lambda: data.packed(made("a.pack"), **WORDS),
        lambda: data.verify(made("b.pack")),
        lambda: data.tar([made("a.tar")], **WORDS) if kind != "folder" else data.raw(made("a.tar"), "u1", 1, **WORDS),
        lambda: data.npy(made("a.npy"), **WORDS),
        lambda: data.raw(made("a.bin"), "uint8", 1, **WORDS),
    ]
    for call in calls:
        with pytest.raises((errors.InvalidInputError, errors.IsDirectoryError)):
            call()


def test_a_file_that_becomes_a_pipe_in_block_order(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(8 * 100_000))
    loader = data.Loader(data.raw(path, "uint8", 8, **WORDS), 100, order="block", block=1000, window=2)
    running = iter(loader)
    next(running)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(errors.InvalidInputError, match="no regular file"):
        for _ in running:
            pass


def test_what_a_file_system_does_not_answer_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mds(tmp_path)
    refused: dict[str, int] = {}

    def unwilling(name: str) -> None:
        real = getattr(os, name)

        def call(*given: Any, **words: Any) -> Any:
            refused[name] = refused.get(name, 0) + 1
            if refused[name] % 3:
                raise (BlockingIOError, InterruptedError)[refused[name] % 2](11, "again")
            return real(*given, **words)

        monkeypatch.setattr(os, name, call)

    for name in ("stat", "open", "pread"):
        unwilling(name)
    assert len(mds(tmp_path)) == 9 and set(refused) == {"stat", "open", "pread"}


def test_the_page_of_faults_names_tests_that_are_there() -> None:
    here = Path(__file__).parent
    page = (here.parents[1] / "docs/reference/training-data-faults.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    names = [re.findall(r"`(test_\w+)`", row.split("|")[3]) for row in rows]
    assert len(rows) > 20 and all(names)
    written = "".join(path.read_text() for path in here.glob("test_*.py"))
    assert [name for row in names for name in row if f"def {name}(" not in written] == []


# ---- pack ------------------------------------------------------------------------------------------------------------


def test_every_byte_of_a_packed_header_is_guarded(tmp_path: Path) -> None:
    path = tmp_path / "a.pack"
    data.pack((numpy.full(5, row) for row in range(4)), path)
    whole = path.read_bytes()
    index = struct.unpack_from("<Q", whole, 16)[0]
    for place in [*range(52), *range(index, len(whole))]:
        damaged = bytearray(whole)
        damaged[place] ^= 0x40
        path.write_bytes(damaged)
        with pytest.raises(errors.Error):
            data.packed(path, **WORDS)
    for size in (0, 8, 52, 4095, 4096, index, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(errors.Error):
            data.packed(path, **WORDS)
    later = bytearray(whole)
    later[8] = 2
    path.write_bytes(later)
    with pytest.raises(errors.UnsupportedError, match="version 2"):
        data.packed(path, **WORDS)
    damaged = bytearray(whole)
    damaged[4096] ^= 1
    path.write_bytes(damaged)
    data.packed(path, **WORDS)
    with pytest.raises(errors.IntegrityError, match="differ from those"):
        data.verify(path)


def test_a_packed_index_that_lies_with_the_right_checksums(tmp_path: Path) -> None:
    from forebay.data import _pack

    path = tmp_path / "a.pack"

    def lying(edit: Callable[[Any], None]) -> None:
        data.pack(({"x": numpy.full(5, row, "int16"), "t": b"ab" * row} for row in range(4)), path)
        raw = path.read_bytes()
        *head, offset, length, _, rows = _pack._HEADER.unpack(raw[:48])
        index = json.loads(raw[offset : offset + length])
        edit(index)
        text = json.dumps(index).encode()
        packed = _pack._HEADER.pack(head[0], head[1], _pack._crc(text), offset, len(text), offset + len(text), rows)
        packed += struct.pack("<I", _pack._crc(packed))
        path.write_bytes(packed + raw[52:offset] + text)

    def place(column: str, key: str, value: Any) -> Callable[[Any], None]:
        return lambda index: index["groups"][0]["columns"][column].update({key: value})

    def told(number: int, key: str, value: Any) -> Callable[[Any], None]:
        return lambda index: index["columns"][number].update({key: value})

    numbers = (-1, 1 << 31, 1 << 63, 1 << 64, "x", None, 1.5)
    edits = [
        *[place("x", "offset", value) for value in numbers],
        *[place("x", "bytes", value) for value in (*numbers, 1)],
        *[place("t", "offset", value) for value in numbers],
        *[place("t", "bytes", value) for value in (*numbers, 11)],
        *[place("t", "ends", {"offset": value, "bytes": 40}) for value in numbers],
        *[told(0, "stride", value) for value in (*numbers, 0, 9)],
        *[told(0, "shape", [value]) for value in (*numbers, 6)],
        told(0, "shape", 5),
        told(1, "shape", [1 << 62]),
        place("x", "crc32c", "x"),
        lambda index: index["groups"][0].update(columns=[]),
        told(0, "dtype", "int17"),
        told(0, "dtype", 3),
        told(0, "name", "y"),
        lambda index: index["groups"][0].update(rows=5),
        lambda index: index.update(groups=[]),
        lambda index: index.update(columns=[]),
        lambda index: index["groups"][0].pop("columns"),
        lambda index: index.clear(),
    ]
    lying(lambda index: None)
    assert data.packed(path, **WORDS)[3]["t"].tobytes() == b"ababab"
    for number, edit in enumerate(edits):
        lying(edit)
        with pytest.raises(errors.Error):
            data.packed(path, **WORDS)[:]
            pytest.fail(f"edit {number} was believed")


def test_killed_during_pack(tmp_path: Path, start_python: Callable[..., subprocess.Popen[str]]) -> None:
    """At any moment: what was there before is there, and nothing else."""
    path = tmp_path / "a.pack"
    data.pack([numpy.arange(3)], path)
    before = path.read_bytes()
    code = """
import sys, time, numpy, forebay.data as data
def samples():
    print("begun", flush=True)
    while True:
        yield numpy.zeros(1 << 20, "uint8")
data.pack(samples(), sys.argv[1])
"""
    for wait in (0.0, 0.3):
        child = start_python(code, str(path))
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(wait)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert path.read_bytes() == before
        assert len(data.packed(path, **WORDS)) == 1


def test_samples_that_raise_leave_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pack"
    data.pack([numpy.arange(3)], path)
    before = path.read_bytes()

    def broken() -> Any:
        yield numpy.arange(4)
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        data.pack(broken(), path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_full_disk(tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """As a limit of the process's files, which is what a full disk is to a writer."""
    path = tmp_path / "a.pack"
    data.pack([numpy.arange(3)], path)
    before = path.read_bytes()
    done = run_python(
        """
import resource, signal, sys, numpy, forebay, forebay.data as data
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    data.pack((numpy.zeros(1 << 16, "uint8") for _ in range(100)), sys.argv[1])
except forebay.errors.NoSpaceError as error:
    print("no space")
""",
        str(path),
    )
    assert done.stdout == "no space\n", done.stdout + done.stderr
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


#: Before a program that may have few descriptors: files of `sys.argv[1]`, each full of its number, and so large that it is kept open.
FEW = """
import os, resource, sys
import forebay, forebay.data as data

def limit(number):
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

def made(count):
    paths = [os.path.join(sys.argv[1], f"{number:03}") for number in range(count)]
    for number, path in enumerate(paths):
        with open(path, "wb") as file:
            file.write(content(number))
    return paths

def content(number):
    return bytes([number]) * (number + (1 << 16) if number else 0)

def opened():
    return {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}

WORDS = {"framework": "numpy", "device": "cpu"}
limit(128)
"""


def with_few_descriptors(folder: Path, code: str) -> str:
    """What a program prints whose limit of descriptors is 128."""
    done = subprocess.run([sys.executable, "-c", FEW + code, folder], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_more_files_than_descriptors(tmp_path: Path) -> None:
    with_few_descriptors(
        tmp_path,
        """
loader = data.Loader(data.ranges(made(200), **WORDS), 4)
for _ in range(2):
    sizes = 0
    for batch in loader:
        sizes += len(batch.values)
        assert len(os.listdir("/proc/self/fd")) < 110
    assert sizes == sum(len(content(row)) for row in range(200)), sizes
""",
    )


def test_a_batch_of_more_files_than_descriptors(tmp_path: Path) -> None:
    """It is read in parts: no record is lost, in the order that was asked for, and the receipt is of all of them."""
    told = with_few_descriptors(
        tmp_path,
        """
import random
paths = made(250)
records = data.ranges(paths, **WORDS)
rows = random.Random(1).choices(range(250), k=600)
for _ in range(3):
    pending = records.read_async(rows)
    batch = pending.result()
    assert [bytes(batch.record(place)) for place in range(600)] == [content(row) for row in rows]
    assert sum(sum(receipt.engines.values()) for receipt in pending.receipts) == sum(len(content(row)) for row in rows)
    assert len(os.listdir("/proc/self/fd")) < 110
# Several batches on their way at a time, each of which wants them all.
read = 0
for batch in data.Loader(data.zipped(one=records, other=data.ranges(paths, **WORDS)), 125, prefetch=3):
    assert bytes(batch["one"].values) == bytes(batch["other"].values)
    read += len(batch["one"].values)
print(read == sum(len(content(row)) for row in range(250)))
""",
    )
    assert told == "True\n"


def test_a_batch_that_the_programs_descriptors_leave_no_room_for(tmp_path: Path) -> None:
    """Parts are as small as they have to be; where not one file can be opened, that is said."""
    told = with_few_descriptors(
        tmp_path,
        """
paths = made(40)
whole = b"".join(content(row) for row in range(40))
taken = []

def take():
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass

# What the engine itself opens is there before.
data.ranges(paths, **WORDS)[[1]]
for free in (0, 8):
    take()
    for number in taken[:free]:
        os.close(number)
    del taken[:free]
    try:
        found = data.ranges(paths, **WORDS)[list(range(40))]
        print("read", bytes(found.values) == whole)
    except forebay.Error as error:
        print(type(error).__name__, error.errno, error.hints, error)
for number in taken:
    os.close(number)
print("read", bytes(data.ranges(paths, **WORDS)[list(range(40))].values) == whole)
""",
    ).splitlines()
    assert told[0].startswith("TooManyFilesError 24 ['raise the limit of open files: ulimit -n"), told
    assert "Too many open files" in told[0]
    assert told[1:] == ["read True", "read True"]


def test_an_index_that_no_descriptor_is_left_for(tmp_path: Path) -> None:
    told = with_few_descriptors(
        tmp_path,
        """
def told():
    try:
        data.mds(sys.argv[1], **WORDS)
    except forebay.Error as error:
        print(type(error).__name__, error.errno, error.hints)

told()
open(os.path.join(sys.argv[1], "index.json"), "w").close()
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
told()
""",
    ).splitlines()
    assert told == [
        "NotFoundError 2 ['give the folder that index.json and its files lie in']",
        "TooManyFilesError 24 ['raise the limit of open files: ulimit -n 65536']",
    ]


def test_one_data_set_leaves_descriptors_to_another(tmp_path: Path) -> None:
    with_few_descriptors(
        tmp_path,
        """
# The first has no bytes: nobody opens it.
paths = made(41)[1:]
first, second = (data.ranges(some, **WORDS) for some in (paths[:32], paths[32:]))
for number in range(32):
    first.__getitems__([number])
for number in range(4):
    second.__getitems__([number])
assert opened().issuperset(map(os.path.realpath, paths[32:36])), opened()
""",
    )


def test_a_file_that_is_replaced_while_it_is_closed(tmp_path: Path) -> None:
    """A copy of the same size that keeps the time of change."""
    told = with_few_descriptors(
        tmp_path,
        """
paths = made(80)
records = data.ranges(paths, **WORDS)
for number in range(80):
    records.__getitems__([number])
assert os.path.realpath(paths[5]) not in opened()
records.__getitems__([5])
for number in range(6, 80):
    records.__getitems__([number])
before = os.stat(paths[5])
with open(paths[5] + ".new", "wb") as file:
    file.write(b"other")
os.utime(paths[5] + ".new", ns=(before.st_atime_ns, before.st_mtime_ns))
os.replace(paths[5] + ".new", paths[5])
try:
    records.__getitems__([5])
except forebay.errors.BusyError:
    print("changed")
""",
    )
    assert told == "changed\n"
