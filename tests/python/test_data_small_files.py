"""Folders of small files: each is opened for a read alone, and what hinders that is the regular way's to tell."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay.data as data
from forebay import errors

numpy = pytest.importorskip("numpy", reason="these tests compare with numpy's arrays")

WORDS: dict[str, Any] = {"framework": "numpy", "device": "cpu"}


def put(folder: Path, count: int) -> list[Path]:
    paths = [folder / f"{number:03}" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(b"%03d" % number * (1 + number % 3))
    return paths


def read(records: Any, rows: list[int]) -> list[bytes]:
    batch = records[rows]
    return [batch.record(place).tobytes() for place in range(len(rows))]


def open_files(folder: Path) -> list[str]:
    names = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return [path for path in map(os.path.realpath, names) if path.startswith(str(folder))]


def test_small_files_are_read_and_not_kept_open(tmp_path: Path) -> None:
    paths = put(tmp_path, 50)
    records = data.ranges(paths, **WORDS)
    rows = [49, 0, 7, 7, 48]
    assert read(records, rows) == [paths[row].read_bytes() for row in rows]
    assert records[3].tobytes() == paths[3].read_bytes() and open_files(tmp_path) == []
    pending = records.read_async(rows)
    pending.result()
    total = sum(len(paths[row].read_bytes()) for row in rows)
    assert [receipt.engines for receipt in pending.receipts] == [{"host": total}]
    assert [receipt.moved for receipt in pending.receipts] == [{"cached": total}]
    loader = data.Loader(records, 7, drop_last=False)
    assert sum(len(batch.values) for batch in loader) == loader.stats.engines["host"] == records.files.nbytes


def test_small_and_large_files_in_one_batch(tmp_path: Path) -> None:
    paths = put(tmp_path, 6)
    paths[2].write_bytes(b"x" * (1 << 17))
    records = data.ranges(paths, **WORDS)
    rows = [5, 2, 0, 2, 4]
    assert read(records, rows) == [paths[row].read_bytes() for row in rows]
    assert open_files(tmp_path) == [str(paths[2])] * len(open_files(tmp_path)) != []


def change(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    os.utime(path, ns=(1, 1))


def replace(path: Path) -> None:
    before = path.stat()
    other = path.with_suffix(".new")
    other.write_bytes(bytes(before.st_size))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (change, errors.BusyError),
        (replace, errors.BusyError),
        (lambda path: os.truncate(path, 1), errors.BusyError),
        (os.unlink, errors.NotFoundError),
        (pipe, errors.InvalidInputError),
    ],
    ids=["changed", "replaced", "cut", "gone", "pipe"],
)
@pytest.mark.parametrize("is_read_before", [False, True])
def test_small_files_that_are_not_what_they_were(
    tmp_path: Path, damage: Callable[[Path], None], kind: type[Exception], is_read_before: bool
) -> None:
    paths = put(tmp_path, 4)
    records = data.ranges(paths, **WORDS)
    if is_read_before:
        read(records, [0, 1, 2, 3])
    damage(paths[2])
    for rows in ([0, 1, 2, 3], [2]):
        with pytest.raises(kind) as caught:
            records[rows]
        assert str(paths[2]) in str(caught.value)
    with pytest.raises(kind):
        records.check()
    assert read(records, [3, 1]) == [paths[3].read_bytes(), paths[1].read_bytes()]


def test_a_change_of_rights_alone_is_none(tmp_path: Path) -> None:
    paths = put(tmp_path, 2)
    records = data.ranges(paths, **WORDS)
    paths[1].chmod(0o640)
    records.check()
    assert read(records, [1]) == [paths[1].read_bytes()]


def test_small_files_past_the_page_cache(
    tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cold files, and all files with FOREBAY_CACHE=bypass, are read by the engine as larger ones are."""
    paths = put(tmp_path, 20)
    code = """
import os, pathlib, sys, forebay.data as data
paths = sorted(pathlib.Path(sys.argv[1]).iterdir())
for path in paths:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
records = data.ranges(paths, framework="numpy", device="cpu")
print(bytes(records[:].values) == b"".join(path.read_bytes() for path in paths))
"""
    for policy in ("auto", "bypass"):
        monkeypatch.setenv("FOREBAY_CACHE", policy)
        done = run_python(code, str(tmp_path))
        assert done.stdout == "True\n", done.stdout + done.stderr
    assert len(paths) == 20
