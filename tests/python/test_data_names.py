"""Many files by one name: brace patterns, globs and folders."""

from __future__ import annotations

import os
import shutil
import subprocess
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
        with pytest.raises(errors.InvalidInputError, match="names"):
            expanded(pattern)


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
    assert contents(data.ranges(tmp_path / "turns", **WORDS)) == ["cat/a"]
    os.mkfifo(tmp_path / "turns/cat/pipe")
    with pytest.raises(errors.InvalidInputError, match="no regular file"):
        data.ranges(tmp_path / "turns", **WORDS)
    with pytest.raises(errors.IsDirectoryError):
        data.ranges([tmp_path / "flat", tmp_path / "mixed"], **WORDS)
