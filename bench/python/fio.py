"""What the disk can do at all, by fio: the ceilings that loads of cold files and saves are held against."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

#: (engine, jobs, depth, block): the ways tried; the ceiling is the best of them.
_WAYS = [("io_uring", 1, 32, "1M"), ("io_uring", 4, 16, "1M"), ("psync", 8, 1, "4M"), ("psync", 16, 1, "4M")]


def _run(fio: str, arguments: list[str], limit: float) -> dict[str, float]:
    command = [fio, "--name=ceiling", "--thread", "--group_reporting", "--direct=1", "--output-format=json", *arguments]
    out = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    begin = out.stdout.find("{")  # fio prints notes before its JSON.
    if out.returncode or begin < 0:
        raise ValueError((out.stderr or out.stdout).strip().splitlines()[-1:])
    job = json.loads(out.stdout[begin:])["jobs"][0]
    kind = max(("read", "write"), key=lambda name: job[name]["io_bytes"])
    return {"bytes": job[kind]["io_bytes"], "seconds": job[kind]["runtime"] / 1e3}  # end_fsync is in the run time.


def _best(
    fio: str, arguments: list[str], size: int, limit: float, new: Path | None = None
) -> tuple[float, dict[str, float | str]]:
    every: dict[str, float | str] = {}
    for engine, jobs, depth, block in _WAYS:
        part = size // jobs // (4 << 20) * (4 << 20)
        name = f"{engine} {jobs}×{depth}×{block}"
        if new:
            new.unlink(missing_ok=True)
        try:
            result = _run(
                fio,
                [*arguments, f"--ioengine={engine}", f"--numjobs={jobs}", f"--iodepth={depth}", f"--bs={block}",
                 f"--size={part}", f"--offset_increment={part}"],
                limit,
            )  # fmt: skip
            every[name] = round(result["bytes"] / result["seconds"] / 1e9, 3)
        except ValueError as error:
            every[name] = f"refused: {error}"
    speeds = [value for value in every.values() if isinstance(value, float)]
    if not speeds:
        raise ValueError(f"fio ran in no way: {every}")
    return max(speeds), every


def read_ceiling(fio: str, path: str, limit: float = 120) -> tuple[float, dict[str, float | str]]:
    """GB/s of reading a file with O_DIRECT: the best way, and all."""
    return _best(fio, ["--rw=read", f"--filename={path}", "--readonly"], Path(path).stat().st_size, limit)


def write_ceiling(fio: str, folder: str, size: int, limit: float = 120) -> tuple[float, dict[str, float | str]]:
    """GB/s of writing a new file of `size` bytes with O_DIRECT and fsync at the end: the best way, and all."""
    path = Path(folder) / "fio-ceiling.bin"
    try:
        return _best(fio, ["--rw=write", f"--filename={path}", "--end_fsync=1", "--fallocate=none"], size, limit, path)
    finally:
        path.unlink(missing_ok=True)
