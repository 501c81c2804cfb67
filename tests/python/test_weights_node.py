"""Ranks of a node that read columns of the same rows: right bytes, and each byte once from the disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import forebay  # noqa: E402
import forebay.torch as ft  # noqa: E402
from forebay.torch._weights_node import _cold, ranks  # noqa: E402

RANKS = 2


@pytest.fixture
def rows(tmp_path: Path) -> tuple[Path, Any]:
    torch.manual_seed(0)
    rows = torch.randn(2048, 4096)
    path = tmp_path / "model.safetensors"
    forebay.save_file({"rows": rows, "next": torch.randn(512, 4096)}, path)
    return path, rows


def be(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(RANKS))


def drop(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def from_disk() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])


def columns(path: Path, rank: int) -> tuple[Any, Any]:
    """A rank's half of the columns, and the account."""
    weights = ft.weights(path)
    width = weights["rows"].shape[1] // RANKS
    made = torch.zeros(weights["rows"].shape[0], width)
    with weights.collect():
        made.copy_(weights["rows"].narrow(1, rank * width, width))
    return made, weights.stats


@pytest.mark.parametrize(
    ("rank", "count", "found"),
    [
        ("1", "4", (1, 4)),
        ("0", "1", (0, 1)),
        ("4", "4", (0, 1)),
        ("-1", "4", (0, 1)),
        ("one", "4", (0, 1)),
        (None, "4", (0, 1)),
    ],
)
def test_ranks_are_those_of_torchrun(
    monkeypatch: pytest.MonkeyPatch, rank: str | None, count: str, found: tuple[int, int]
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", count)
    assert ranks() == found


def test_each_rank_gets_its_columns_and_the_disk_gives_each_byte_once(
    monkeypatch: pytest.MonkeyPatch, rows: tuple[Path, Any]
) -> None:
    path, whole = rows
    drop(path)
    is_cold = bool(_cold(str(path), [(0, path.stat().st_size)]))
    before, made = from_disk(), []
    for rank in range(RANKS):
        be(monkeypatch, rank)
        part, stats = columns(path, rank)
        assert stats.bytes == part.nbytes
        assert not any("each rank" in text for text, _ in stats.notes)
        made.append(part)
    assert torch.equal(torch.cat(made, dim=1), whole)
    if not is_cold:
        pytest.skip("files of this folder are always in memory: nothing came from a disk")
    # Readahead goes a little further.
    assert from_disk() - before <= whole.nbytes + (4 << 20)


def test_where_the_page_cache_is_bypassed_the_account_says_so(
    monkeypatch: pytest.MonkeyPatch, rows: tuple[Path, Any]
) -> None:
    path, whole = rows
    be(monkeypatch, 1)
    monkeypatch.setenv("FOREBAY_CACHE", "bypass")
    part, stats = columns(path, 1)
    assert torch.equal(part, whole[:, 2048:])
    assert [hint for text, hint in stats.notes if "page cache is bypassed" in text] == ["unset FOREBAY_CACHE"]
    assert "page cache is bypassed" in str(stats)


def test_rows_that_no_rank_wants_are_not_read(monkeypatch: pytest.MonkeyPatch, rows: tuple[Path, Any]) -> None:
    path, whole = rows
    be(monkeypatch, 0)
    drop(path)
    # The first rank's part of all that lies between would be the first half.
    start = whole.nbytes // 2 - (1 << 20)
    # Elsewhere: the kernel reads ahead where it is asked.
    end = path.stat().st_size
    is_cold = bool(_cold(str(path), [(end - 4096, end)]))
    weights = ft.weights(path)
    made = torch.zeros(8, 4096)
    with weights.collect():
        made.copy_(weights["rows"][::256])
    assert torch.equal(made, whole[::256])
    if not is_cold:
        pytest.skip("files of this folder are always in memory: nothing comes from a disk")
    assert _cold(str(path), [(start, start + 4096)])


def test_another_file_by_the_name_is_not_read(monkeypatch: pytest.MonkeyPatch, rows: tuple[Path, Any]) -> None:
    path, _ = rows
    be(monkeypatch, 0)
    weights = ft.weights(path)
    path.rename(path.with_suffix(".old"))
    forebay.save_file({"rows": torch.zeros(2048, 4096), "next": torch.zeros(512, 4096)}, path)
    with pytest.raises(forebay.BusyError), weights.collect():
        torch.zeros(2048, 2048).copy_(weights["rows"][:, :2048])
