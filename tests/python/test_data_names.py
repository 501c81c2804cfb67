"""Many files by one name: brace patterns, globs and folders."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay.data as data
from forebay import errors
from forebay.data._patterns import expanded

numpy = pytest.importorskip("numpy", reason="these tests compare with numpy's arrays")

import data_files as files  # noqa: E402 (it needs numpy)

WORDS: dict[str, Any] = {"framework": "numpy", "device": "cpu"}


def put(folder: Path, *names: str) -> None:
    """Files, each with its own name in it."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def contents(records: Any) -> list[str]:
    batch = records[:]
    return [batch.record(row).tobytes().decode() for row in range(len(records))]


@pytest.mark.parametrize(
    "pattern",
    [
        "{000..003}.bin", "{9..11}", "{09..11}", "{3..1}", "{0..10..3}", "{-2..2}", "{a..e..2}", "{a,b,}", "a{b,c}d{1..2}",
        "{a,b{1..3},c}", "x{y}z", "{}", "{a", "a}", "{a,{b,c}", "{1..x}", "{,}", "{{1..2},z}", "a{b{c,d}", "{01..1}",
    ],
)  # fmt: skip
def test_braces_are_those_of_bash(pattern: str) -> None:
    if not shutil.which("bash"):
        pytest.skip("there is no bash")
    command = ["bash", "-c", f"printf '%s\\n' x{pattern}"]
    assert expanded("x" + pattern) == subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def test_patterns_of_too_many_names_are_refused() -> None:
    for pattern in ("{0..99999999999}", "{0..9999}{0..9999}"):
        with pytest.raises(errors.InvalidInputError, match="names") as caught:
            expanded(f"/d/{pattern}.tar")
        assert caught.value.context["path"] == f"/d/{pattern}.tar"


def test_patterns_name_files(tmp_path: Path) -> None:
    put(tmp_path, "b.bin", "a.bin", "c.txt", "000.bin", "001.bin", "[a].bin", "d/e.bin")
    assert contents(data.ranges(tmp_path / "{000..001}.bin", **WORDS)) == ["000.bin", "001.bin"]
    assert contents(data.ranges(str(tmp_path / "?.bin"), **WORDS)) == ["a.bin", "b.bin"]
    assert contents(data.ranges([tmp_path / "c.txt", tmp_path / "{b,a}.bin"], **WORDS)) == ["c.txt", "b.bin", "a.bin"]
    assert contents(data.ranges(tmp_path / "**/e.*", **WORDS)) == ["d/e.bin"]
    # A file's own name comes first.
    assert contents(data.ranges(tmp_path / "[a].bin", **WORDS)) == ["[a].bin"]
    for missing in ("{000..002}.bin", "*.jpg", "gone"):
        with pytest.raises(errors.NotFoundError):
            data.ranges(tmp_path / missing, **WORDS)


def test_patterns_for_all_kinds_of_files(tmp_path: Path) -> None:
    for number in range(3):
        numpy.save(tmp_path / f"{number}.npy", numpy.full((2, 2), number, "int16"))
        files.write_tar(tmp_path / f"{number}.tar", [(f"{number}", {"cls": b"%d" % number})])
    assert data.npy(tmp_path / "*.npy", **WORDS)[:][:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert len(data.raw(tmp_path / "{0..1}.npy", "uint8", 136, **WORDS)) == 2
    for named in (tmp_path / "{0..2}.tar", tmp_path / "*.tar", tmp_path, [tmp_path]):
        assert data.tar(named, **WORDS)[:]["cls"].tolist() == [0, 1, 2]
    (tmp_path / "empty").mkdir()
    with pytest.raises(errors.NotFoundError, match="no tar files"):
        data.tar(tmp_path / "empty", **WORDS)
    (tmp_path / "3.tar.gz").write_bytes(b"\x1f\x8b" + bytes(600))
    with pytest.raises(errors.UnsupportedError, match="compressed"):
        data.tar(tmp_path, **WORDS)


def test_folders_are_classes(tmp_path: Path) -> None:
    put(
        tmp_path,
        "cat/2.jpg",
        "cat/10.jpg",
        "cat/a-b/1.jpg",
        "cat/a/1.jpg",
        "bird/x",
        "Zebra/.hidden",
        "Zebra/1.jpg",
        ".git/HEAD",
    )
    records = data.ranges(tmp_path, **WORDS)
    assert records.classes == ["Zebra", "bird", "cat"]
    found = dict(zip(contents(records), records.labels, strict=True))
    assert list(found) == ["Zebra/1.jpg", "bird/x", "cat/10.jpg", "cat/2.jpg", "cat/a/1.jpg", "cat/a-b/1.jpg"]
    assert list(found.values()) == [0, 1, 2, 2, 2, 2]
    both = data.zipped(image=records, label=records.labels)
    assert both[[4, 0]]["label"].tolist() == [2, 0]


def test_folders_sort_as_torchvision_does(tmp_path: Path) -> None:
    folder = pytest.importorskip(
        "torchvision.datasets.folder", reason="torchvision is not installed", exc_type=Exception
    )
    put(tmp_path, "cat/2.jpg", "cat/10.jpg", "cat/a-b/1.jpg", "cat/a/1.jpg", "bird/x.jpg", "Zebra/1.jpg")
    theirs = folder.ImageFolder(str(tmp_path))
    records = data.ranges(tmp_path, **WORDS)
    assert (records.classes, list(records.labels)) == (theirs.classes, theirs.targets)
    assert records.files.paths == [path for path, _ in theirs.samples]


def test_folders_without_classes_and_others(tmp_path: Path) -> None:
    put(tmp_path / "flat", "b", "a", ".c")
    records = data.ranges(tmp_path / "flat", **WORDS)
    assert (contents(records), records.classes, records.labels) == (["a", "b"], [], [])
    put(tmp_path / "mixed", "cat/a", "README")
    with pytest.raises(errors.InvalidInputError, match="beside the folders") as caught:
        data.ranges(tmp_path / "mixed", **WORDS)
    assert caught.value.context["path"] == str(tmp_path / "mixed/README")
    put(tmp_path / "hole", "cat/a", "dog/.keep")
    with pytest.raises(errors.NotFoundError, match="a class has no files"):
        data.ranges(tmp_path / "hole", **WORDS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(errors.NotFoundError, match="no files"):
        data.ranges(tmp_path / "empty", **WORDS)
    put(tmp_path / "turns", "cat/a")
    os.symlink(tmp_path / "turns", tmp_path / "turns/cat/again")
    with pytest.raises(errors.InvalidInputError, match="a link leads to a folder that it lies in") as caught:
        data.ranges(tmp_path / "turns", **WORDS)
    assert caught.value.context["path"] == str(tmp_path / "turns/cat/again")
    os.unlink(tmp_path / "turns/cat/again")
    os.mkfifo(tmp_path / "turns/cat/pipe")
    with pytest.raises(errors.InvalidInputError, match="no regular file"):
        data.ranges(tmp_path / "turns", **WORDS)


@pytest.mark.parametrize("target", ["..", ".", "../..", "../dog/up"])
def test_links_that_lead_to_a_folder_above_are_named(tmp_path: Path, target: str) -> None:
    """Files of other classes would come as those of this one, and each many times."""
    put(tmp_path, "r/cat/a", "r/cat/b", "r/dog/c")
    os.symlink("../cat", tmp_path / "r/dog/up")
    records = data.ranges(tmp_path / "r", **WORDS)
    assert (contents(records), records.labels) == (
        ["r/cat/a", "r/cat/b", "r/dog/c", "r/cat/a", "r/cat/b"],
        [0, 0, 1, 1, 1],
    )
    os.symlink(target, tmp_path / "r/cat/loop")
    with pytest.raises(errors.InvalidInputError, match="a link leads to a folder that it lies in") as caught:
        data.ranges(tmp_path / "r", **WORDS)
    assert str(caught.value.context["path"]).startswith(f"{tmp_path}/r/cat/loop")


def test_a_set_of_paths_has_no_order(tmp_path: Path) -> None:
    put(tmp_path, "a", "b")
    for given in ({tmp_path / "a", tmp_path / "b"}, frozenset([str(tmp_path / "a")])):
        with pytest.raises(errors.InvalidInputError, match="no order") as caught:
            data.ranges(given, **WORDS)
        assert caught.value.hints == ["sorted(paths)"]
    assert contents(data.ranges({str(tmp_path / "b"): 1, str(tmp_path / "a"): 2}, **WORDS)) == ["b", "a"]


def test_several_folders(tmp_path: Path) -> None:
    put(tmp_path, "a/cat/1", "a/dog/1", "b/ant/1", "b/dog/2", "flat/x", "flat/y", "other/x", "file")
    both = data.ranges([tmp_path / "b", tmp_path / "a"], **WORDS)
    assert contents(both) == ["b/ant/1", "b/dog/2", "a/cat/1", "a/dog/1"]
    assert (both.classes, both.labels) == (["ant", "cat", "dog"], [0, 2, 1, 2])
    assert data.ranges(tmp_path / "{b,a}", **WORDS).labels == both.labels
    # Without folders in them they are the classes, as those of one folder are.
    for named in (tmp_path / "a/*", [f"{tmp_path}/a/dog/", tmp_path / "a/cat"]):
        records = data.ranges(named, **WORDS)
        assert records.classes == ["cat", "dog"]
        assert contents(records) == [f"a/{records.classes[label]}/1" for label in records.labels]
    # A file belongs to no class.
    records = data.ranges([tmp_path / "flat", tmp_path / "file"], **WORDS)
    assert (contents(records), records.classes, records.labels) == (["flat/x", "flat/y", "file"], [], [])
    for bare in ("flat", "file"):
        with pytest.raises(errors.InvalidInputError, match="beside the folders"):
            data.ranges([tmp_path / "a", tmp_path / bare], **WORDS)


def lit_folder(folder: Path, first: int) -> None:
    files.write_litdata(folder, ["n"], ["int"], [[[struct.pack("<q", first + row)] for row in range(2)]])


def pack_file(path: Path, first: int) -> None:
    data.pack(({"n": first + row, "t": b"x" * (first + row)} for row in range(2)), path)


def mds_folder(folder: Path, first: int) -> None:
    files.write_mds(folder, {"n": ("int", 8)}, [[{"n": struct.pack("<q", first + row)} for row in range(2)]])


def tar_file(path: Path, first: int) -> None:
    files.write_tar(path, [(f"{first + row}", {"n.cls": b"%d" % (first + row)}) for row in range(2)])


WRITERS: dict[str, tuple[Callable[[Path, int], None], Callable[[Any], list[int]]]] = {
    "litdata": (lit_folder, lambda given: data.litdata(given, **WORDS)[:]["n"].tolist()),
    "mds": (mds_folder, lambda given: data.mds(given, **WORDS)[:]["n"].tolist()),
    "npy": (
        lambda path, first: path.write_bytes(files.npy_bytes(numpy.arange(first, first + 2))),
        lambda given: data.npy(given, **WORDS)[:].tolist(),
    ),
    "packed": (pack_file, lambda given: data.packed(given, **WORDS)[:]["n"].tolist()),
    "ranges": (
        lambda path, first: path.write_bytes(b"%d %d" % (first, first + 1)),
        lambda given: [int(one) for text in data.ranges(given, **WORDS) for one in text.tobytes().split()],
    ),
    "raw": (
        lambda path, first: path.write_bytes(bytes([first, first + 1])),
        lambda given: data.raw(given, "uint8", (), **WORDS)[:].tolist(),
    ),
    "tar": (tar_file, lambda given: data.tar(given, **WORDS)[:]["n.cls"].tolist()),
    "megatron": (
        lambda path, first: files.write_megatron(path, [[first], [first + 1]], 4, "int32"),
        lambda given: data.megatron(given, **WORDS)[:].values.tolist(),
    ),
}


@pytest.mark.parametrize("source", WRITERS)
def test_each_source_takes_one_several_and_patterns(tmp_path: Path, source: str) -> None:
    write, read = WRITERS[source]
    for number, name in enumerate(("a", "b", "c")):
        write(tmp_path / name, 2 * number)
    a, b, c = (tmp_path / name for name in "abc")
    assert read(a) == [0, 1]
    assert read([c, str(a)]) == [4, 5, 0, 1]
    assert read(b for b in (b, b)) == [2, 3, 2, 3]
    assert read(tmp_path / "{c,b}") == [4, 5, 2, 3]
    assert read(tmp_path / "[a-c]*") == [0, 1, 2, 3, 4, 5]
    assert read([tmp_path / "[ab]*", c]) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(errors.InvalidInputError, match="no files"):
        read([])
    with pytest.raises(errors.NotFoundError):
        read([a, tmp_path / "gone"])
    with pytest.raises(errors.NotFoundError, match="pattern"):
        read(tmp_path / "gone*")


def test_files_that_hold_other_records(tmp_path: Path) -> None:
    files.write_litdata(tmp_path / "lit/a", ["n"], ["int"], [[[bytes(8)]]])
    files.write_litdata(tmp_path / "lit/b", ["n"], ["float"], [[[bytes(8)]]])
    files.write_litdata(tmp_path / "lit/c", ["m"], ["int"], [[[bytes(8)]]])
    data.pack([{"n": 1}], tmp_path / "a.pack")
    data.pack([{"n": 1.5}], tmp_path / "b.pack")
    data.pack([1], tmp_path / "c.pack")
    data.pack([{"n": 1, "m": 1}], tmp_path / "d.pack")
    files.write_megatron(tmp_path / "a", [[1]], 4, "int32")
    files.write_megatron(tmp_path / "b", [[1]], 5, "int64")
    cases: list[tuple[Callable[..., Any], str, str]] = [
        (data.litdata, "lit/{a,b}", "lit/b/index.json"),
        (data.litdata, "lit/{a,c}", "lit/c/index.json"),
        *((data.packed, f"{{a,{name}}}.pack", f"{name}.pack") for name in "bcd"),
        (data.megatron, "{a,b}", "b.idx"),
    ]
    for source, named, wrong in cases:
        with pytest.raises(errors.InvalidInputError, match="differ") as caught:
            source(tmp_path / named, **WORDS)
        assert caught.value.context["path"] == str(tmp_path / wrong)


@pytest.mark.parametrize("source", ["npy", "packed", "raw"])
def test_a_folder_where_files_are_taken_says_what_to_type(tmp_path: Path, source: str) -> None:
    write, read = WRITERS[source]
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder/a", 0)
    for given in (tmp_path / "folder", [tmp_path / "folder"]):
        with pytest.raises(errors.IsDirectoryError) as caught:
            read(given)
        assert any('"folder/*"' in hint for hint in caught.value.hints)
    assert read(tmp_path / "folder/*") == [0, 1]


def test_checksums_of_several_files_are_compared(tmp_path: Path) -> None:
    for name in "ab":
        data.pack([numpy.arange(3)], tmp_path / f"{name}.pack")
    data.verify(tmp_path / "*.pack")
    with (tmp_path / "b.pack").open("r+b") as file:
        file.seek(4096)
        file.write(b"?")
    with pytest.raises(errors.IntegrityError) as caught:
        data.verify(tmp_path / "*.pack")
    assert caught.value.context["path"] == str(tmp_path / "b.pack")
