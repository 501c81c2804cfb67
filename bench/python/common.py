"""What the Python measurements share: time, CPU and memory of a piece of work, cache states, records, tables.

How memory is counted. A sampler thread reads, every few milliseconds,

- `RssAnon` and `RssShmem` of /proc/self/status: what the process holds itself. `RssShmem` also counts mapped pages of
  a tmpfs file, which are page cache, so it is given apart and not added;
- MemFree + Cached + Buffers + SReclaimable of /proc/meminfo: what the whole machine has left, the page cache counted as
  left. What that falls by while the work runs is memory held by anybody: it includes host memory that a GPU driver
  allocated and pinned, which no counter of the process shows, and it is only worth something on a quiet machine.

`host_peak_mib` is the larger of the two rises over the state before the work, page cache aside. Its parts are in the
record. `VmHWM` is not used: it counts mapped pages of the page cache.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BENCH))

from measure import drop as _drop  # noqa: E402
from measure import resident_pages, warm  # noqa: E402

#: A worker that cannot run here ends with this status, after a line that says why.
SKIPPED = 3
PAGE = os.sysconf("SC_PAGE_SIZE")
_VERSIONED = ("forebay", "numpy", "torch", "jax", "safetensors", "fastsafetensors", "instanttensor",
              "runai-model-streamer", "kvikio-cu13")  # fmt: skip


class Skip(Exception):
    """A subject that this machine does not have: says why."""


# --- measuring ---------------------------------------------------------------------------------------------------


def _status() -> dict[str, int]:
    """Bytes of RssAnon, RssFile, RssShmem and VmPin of this process."""
    found = {}
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name in ("RssAnon", "RssFile", "RssShmem", "VmPin"):
                found[name] = int(rest.split()[0]) << 10
    return found


def _left() -> int:
    """Bytes that the machine has left, counting its page cache as left."""
    total = 0
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name in ("MemFree", "Cached", "Buffers", "SReclaimable"):
                total += int(rest.split()[0]) << 10
    return total


class MemorySampler:
    """Highest memory while a `with` block runs, over the memory held before it."""

    def __init__(self, every: float = 0.01) -> None:
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._before: dict[str, int] = {}
        self._left_before = 0
        self.peak: dict[str, int] = {}
        self.machine = 0
        #: CPU seconds that the sampling itself took: user, system.
        self.own = (0.0, 0.0)

    def _sample(self) -> None:
        for name, value in _status().items():
            self.peak[name] = max(self.peak.get(name, 0), value - self._before.get(name, 0))
        self.machine = max(self.machine, self._left_before - _left())

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self._sample()
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        self.own = usage.ru_utime, usage.ru_stime

    def __enter__(self) -> MemorySampler:
        self._before, self._left_before = _status(), _left()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sample()
        self._stop.set()
        self._thread.join()

    def record(self) -> dict[str, float]:
        mib = {name: value / 2**20 for name, value in self.peak.items()}
        return {
            "host_peak_mib": round(max(mib.get("RssAnon", 0), self.machine / 2**20), 1),
            "rss_anon_mib": round(mib.get("RssAnon", 0), 1),
            "rss_file_mib": round(mib.get("RssFile", 0), 1),
            "rss_shmem_mib": round(mib.get("RssShmem", 0), 1),
            "vm_pin_mib": round(mib.get("VmPin", 0), 1),
            "machine_mib": round(self.machine / 2**20, 1),
        }


def timed(nbytes: int, work: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Runs `work` once. Returns its value and bytes, seconds, GB/s, CPU seconds per GB (all threads but the sampler)
    and memory."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    with MemorySampler() as memory:
        start = time.perf_counter()
        value = work()
        seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    gigabytes = nbytes / 1e9
    user = max(0.0, after.ru_utime - before.ru_utime - memory.own[0])
    system = max(0.0, after.ru_stime - before.ru_stime - memory.own[1])
    record = {
        "bytes": nbytes,
        "seconds": round(seconds, 6),
        "gb_per_s": round(gigabytes / seconds, 4),
        "cpu_s_per_gb": round((user + system) / gigabytes, 5),
        "user_s_per_gb": round(user / gigabytes, 5),
        "system_s_per_gb": round(system / gigabytes, 5),
    }
    return value, record | memory.record()


# --- the page cache ----------------------------------------------------------------------------------------------


def is_tmpfs(path: str | os.PathLike[str]) -> bool:
    """Whether a path lies in memory."""
    return file_system(path) in ("tmpfs", "ramfs")


def file_system(path: str | os.PathLike[str]) -> str:
    """The name of the file system that holds a path (or, before it exists, its folder)."""
    here = Path(path).resolve()
    best = ("", "?")
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
        for line in file:
            _, point, kind, *_ = line.split()
            inside = point == "/" or str(here) == point or str(here).startswith(point + "/")
            if inside and len(point) >= len(best[0]):
                best = (point, kind)
    return best[1]


def make_warm(path: str) -> None:
    """The whole file is in the page cache afterwards."""
    pages = (os.stat(path).st_size + PAGE - 1) // PAGE
    if is_tmpfs(path) or resident_pages(path) == pages:
        return
    warm(path)
    if resident_pages(path) != pages:
        raise SystemExit(f"error: {path} does not stay in the page cache: not enough memory")


def make_cold(path: str) -> None:
    """Nothing of the file is in the page cache afterwards."""
    if is_tmpfs(path):
        raise Skip("a tmpfs file is never cold")
    if "forebay" in sys.modules:
        sys.modules["forebay"].trim()  # It may hold pages of the file pinned: those cannot be dropped.
    _drop(path)


# --- devices -----------------------------------------------------------------------------------------------------


def need_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise Skip(f"PyTorch cannot be imported: {error}") from None
    return torch


def start_device(device: str) -> Any:
    """Torch, with CUDA and its allocator started, so that no measurement pays for that."""
    torch = need_torch()
    if device != "cpu":
        if not torch.cuda.is_available():
            raise Skip("there is no CUDA device that PyTorch can use (try --device cpu)")
        # "cuda" has no number; memory on it has.
        started = torch.empty(1 << 20, dtype=torch.uint8, device=device).zero_()
        torch.cuda.set_device(started.device)
        torch.cuda.synchronize()
    return torch


def synchronize(torch: Any, device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


# --- records -----------------------------------------------------------------------------------------------------


def _gpu_name() -> str | None:
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return out.stdout.strip().splitlines()[0] if out.stdout.strip() else None


def _cpu_name() -> str:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def machine() -> dict[str, Any]:
    """The machine and the versions of the measured programs. Printed once per run, not once per record."""
    versions = {"python": platform.python_version()}
    for name in _VERSIONED:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * PAGE / 2**30, 1),
        "kernel": platform.release(),
        "gpu": _gpu_name(),
        "versions": versions,
    }


class Results:
    """Collects records: each is a line of JSON on standard output, and with the machine's facts in a file if one was
    named."""

    def __init__(self, path: str | None) -> None:
        self._file = open(path, "a", encoding="utf-8") if path else None  # noqa: SIM115
        self._facts = machine()
        self.records: list[dict[str, Any]] = []
        print(json.dumps(self._facts), flush=True)

    def add(self, record: dict[str, Any]) -> None:
        full = self._facts | record
        full["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.records.append(full)
        print(json.dumps(record), flush=True)
        if self._file:
            self._file.write(json.dumps(full) + "\n")
            self._file.flush()

    def median(self, field: str, **where: Any) -> float | None:
        """The median of a field over the records whose other fields are as given; None if there is none."""
        found = [
            record[field]
            for record in self.records
            if record.get(field) is not None and all(record.get(key) == value for key, value in where.items())
        ]
        return statistics.median(found) if found else None


def run_worker(script: str, arguments: Sequence[str], limit: float) -> tuple[list[dict[str, Any]], str | None]:
    """Runs a script in a process of its own. Returns its records and, if it did not do its work, why."""
    command = [sys.executable, str(Path(__file__).parent / script), *arguments]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=limit, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return [], f"not done after {limit:.0f} s"
    records = [json.loads(line) for line in out.stdout.splitlines() if line.startswith("{")]
    if out.returncode == 0:
        return records, None
    lines = (out.stderr.strip() or out.stdout.strip() or f"status {out.returncode}").splitlines()
    reason = lines[-1] if out.returncode == SKIPPED else f"failed ({out.returncode}): " + " | ".join(lines[-3:])
    return records, reason


def worker_main(work: Callable[[], None]) -> None:
    """Runs a worker's main function: a `Skip` becomes its line and status."""
    try:
        work()
    except Skip as reason:
        print(f"skipped: {reason}", file=sys.stderr)
        raise SystemExit(SKIPPED) from None


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits; a dash for an unknown value."""
    if value is None:
        return "–"
    return f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:.0f}"


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table: Markdown, aligned."""
    rows = [list(row) for row in rows]
    widths = [max(len(row[i]) for row in [list(head), *rows]) for i in range(len(head))]
    print(f"\n{title}\n")
    for row in [list(head), ["-" * width for width in widths], *rows]:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
    print(flush=True)
