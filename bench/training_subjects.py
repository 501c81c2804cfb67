#!/usr/bin/env python3
"""One measurement of bench/training_data.py, in a process of its own: `training_subjects.py JOB`, JOB in JSON.

Prints a line of JSON. Exit code 3: the subject cannot be measured here, and the last line says why.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

#: Bytes of a record and records of a batch.
SHAPES = {"tokens": (4096, 4096), "images": (128 << 10, 256)}
SKIPPED = 3
#: Seconds between two marks of a time series; and those that count as its beginning.
MARK, EARLY = 0.25, 3.0
#: Packages that a subject needs.
PACKAGES = {
    "forebay": ("forebay", "torch", "numpy"),
    "torch": ("torch", "numpy"),
    "litdata": ("litdata", "torch", "numpy"),
    "streaming": ("streaming", "torch", "numpy"),
    "kvikio": ("kvikio", "torch"),
    "dali": ("nvidia.dali", "torch"),
}
ON_GPUS_ONLY = ("kvikio", "dali")


class Skip(Exception):
    """Why a subject cannot be measured here."""


# ---- the files -------------------------------------------------------------------------------------------------------


def blocks(nbytes: int, record: int) -> Iterator[Any]:
    """Records whose first eight bytes are their number, some at a time."""
    import numpy

    step = max(1, (16 << 20) // record)
    block = numpy.random.default_rng(1).integers(0, 1 << 62, (step, record // 8), dtype="int64")
    for first in range(0, nbytes // record, step):
        count = min(step, nbytes // record - first)
        block[:count, 0] = numpy.arange(first, first + count)
        yield block[:count]


def plain_file(path: Path, nbytes: int, record: int) -> None:
    with open(f"{path}.new", "wb", buffering=0) as file:
        for block in blocks(nbytes, record):
            file.write(memoryview(block).cast("B"))
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)


def mds_folder(path: Path, nbytes: int, record: int) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(path), columns={"x": f"ndarray:uint8:{record}"}, exist_ok=True) as writer:
        for block in blocks(nbytes, record):
            for row in block:
                writer.write({"x": row.view("uint8")})


def litdata_folder(path: Path, nbytes: int, record: int) -> None:
    import torch
    from litdata.streaming.writer import BinaryWriter

    # For each record it looks through those of the chunk: small ones want small chunks.
    writer, number = BinaryWriter(str(path), chunk_bytes=16 << 20), 0
    for block in blocks(nbytes, record):
        for row in block:
            writer[number] = torch.from_numpy(row.view("uint8").copy())
            number += 1
    writer.done()
    writer.merge(1)


def volume_files(path: Path, nbytes: int, count: int) -> None:
    import numpy

    path.mkdir(exist_ok=True)
    for number in range(count):
        numpy.save(path / f"{number}.npy", numpy.full(nbytes // 4, number, "float32"))


def prepare(job: dict[str, Any]) -> dict[str, Any]:
    """Makes what a subject reads, and reads it once."""
    makers: dict[str, Callable[[Path, int, int], None]] = {
        "file": plain_file, "streaming": mds_folder, "litdata": litdata_folder, "volumes": volume_files,
    }  # fmt: skip
    path = Path(job["path"])
    begun = time.perf_counter()
    makers[job["kind"]](path, job["bytes"], job["other"])
    return {"seconds": time.perf_counter() - begun}


# ---- the subjects: each gives batches on the device, for ever ---------------------------------------------------------


def for_ever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def by_forebay(job: dict[str, Any]) -> Iterator[Any]:
    import forebay.data

    record, batch = SHAPES[job["shape"]]
    records = forebay.data.raw(job["path"], "uint8", record, device=job["device"])
    loader = forebay.data.Loader(records, batch, order=job["order"], drop_last=True, prefetch=job["prefetch"] or None)
    job["stats"] = loader.stats
    return for_ever(loader)


def torch_loader(data: Any, job: dict[str, Any], batch: int, kind: Any = None, **words: Any) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    pinned = job["device"] != "cpu"
    workers = {"num_workers": job["workers"], "persistent_workers": job["workers"] > 0, "pin_memory": pinned}
    loader = (kind or DataLoader)(data, batch_size=batch, drop_last=True, **workers, **words)
    for found in for_ever(loader):
        found = found["x"] if isinstance(found, dict) else found
        yield found.to(job["device"], non_blocking=True)


def by_torch(job: dict[str, Any]) -> Iterator[Any]:
    import numpy
    import torch

    record, batch = SHAPES[job["shape"]]

    class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __init__(self) -> None:
            self.rows = numpy.memmap(job["path"], "uint8", "r").reshape(-1, record)

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, row: int) -> Any:
            return torch.from_numpy(numpy.array(self.rows[row]))

    return torch_loader(Rows(), job, batch, shuffle=job["order"] == "random")


def by_litdata(job: dict[str, Any]) -> Iterator[Any]:
    from litdata import StreamingDataLoader, StreamingDataset

    _, batch = SHAPES[job["shape"]]
    data = StreamingDataset(job["path"], shuffle=job["order"] == "random", drop_last=True)
    return torch_loader(data, job, batch, StreamingDataLoader)


def by_streaming(job: dict[str, Any]) -> Iterator[Any]:
    import streaming

    streaming.base.util.clean_stale_shared_memory()
    _, batch = SHAPES[job["shape"]]
    data = streaming.StreamingDataset(local=job["path"], shuffle=job["order"] == "random", batch_size=batch)
    return torch_loader(data, job, batch)


def by_kvikio(job: dict[str, Any]) -> Iterator[Any]:
    # Of its own accord it has one thread.
    os.environ.setdefault("KVIKIO_NTHREADS", str(max(1, job["workers"])))
    import kvikio
    import torch

    record, batch = SHAPES[job["shape"]]
    count = os.path.getsize(job["path"]) // record
    with kvikio.CuFile(job["path"], "r") as file:
        while True:
            rows = torch.randint(0, count, (batch,)).tolist()
            out = torch.empty((batch, record), dtype=torch.uint8, device=job["device"])
            torch.cuda.current_stream().synchronize()
            waiting = [file.pread(out[number], record, record * row) for number, row in enumerate(rows)]
            for one in waiting:
                one.get()
            yield out


BATCHES: dict[str, Callable[[dict[str, Any]], Iterator[Any]]] = {
    "forebay": by_forebay, "torch": by_torch, "litdata": by_litdata, "streaming": by_streaming, "kvikio": by_kvikio,
}  # fmt: skip


def volumes_by_forebay(job: dict[str, Any]) -> Iterator[Any]:
    import forebay.data

    records = forebay.data.npy(job["files"], each="file", device=job["device"])
    loader = forebay.data.Loader(records, job["batch"], drop_last=True, prefetch=job["prefetch"] or None)
    job["stats"] = loader.stats
    return for_ever(loader)


def volumes_by_torch(job: dict[str, Any]) -> Iterator[Any]:
    import numpy
    import torch

    class Volumes(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(job["files"])

        def __getitem__(self, number: int) -> Any:
            return torch.from_numpy(numpy.load(job["files"][number]))

    return torch_loader(Volumes(), job, job["batch"], shuffle=True)


def volumes_by_kvikio(job: dict[str, Any]) -> Iterator[Any]:
    import random

    import kvikio
    import torch

    while True:
        names = random.sample(job["files"], job["batch"])
        size = os.path.getsize(names[0])
        out = torch.empty((job["batch"], size), dtype=torch.uint8, device=job["device"])
        torch.cuda.current_stream().synchronize()
        files = [kvikio.CuFile(name, "r") for name in names]
        waiting = [file.pread(out[number], size) for number, file in enumerate(files)]
        for one, file in zip(waiting, files, strict=True):
            one.get()
            file.close()
        yield out


def volumes_by_dali(job: dict[str, Any]) -> Iterator[Any]:
    from nvidia.dali import fn, pipeline_def

    number = int(job["device"].rpartition(":")[2])

    @pipeline_def(batch_size=job["batch"], num_threads=job["workers"], device_id=number)
    def pipeline() -> Any:
        return fn.readers.numpy(device="gpu", files=job["files"], random_shuffle=True, name="volumes")

    made = pipeline()
    made.build()
    while True:
        yield made.run()[0]


VOLUMES: dict[str, Callable[[dict[str, Any]], Iterator[Any]]] = {
    "forebay": volumes_by_forebay, "torch": volumes_by_torch, "kvikio": volumes_by_kvikio, "dali": volumes_by_dali,
}  # fmt: skip


# ---- measurements ----------------------------------------------------------------------------------------------------


def cpu_seconds() -> float:
    """Of this process and all below it."""
    stats: dict[int, tuple[int, float]] = {}
    for folder in os.listdir("/proc"):
        if folder.isdecimal():
            try:
                fields = Path(f"/proc/{folder}/stat").read_text().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            stats[int(folder)] = int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    ours, total = {os.getpid()}, 0.0
    for _ in range(4):
        ours |= {pid for pid, (parent, _) in stats.items() if parent in ours}
    for pid in ours:
        total += stats[pid][1] if pid in stats else 0.0
    return total


def synchronize(device: str) -> None:
    if device != "cpu":
        import torch

        torch.cuda.synchronize(device)


def told(job: dict[str, Any]) -> dict[str, Any]:
    return {"stalled": job["stats"].stalled, "engines": dict(job["stats"].engines)} if "stats" in job else {}


def two_rates(series: list[tuple[float, int, dict[str, int]]]) -> dict[str, Any]:
    """Records a second up to the first mark behind EARLY, and from there on: what has to warm up shows."""
    split = next((one for one in series if one[0] >= EARLY), None)
    if split is None or series[-1][0] < 2 * EARLY:
        return {}
    (seconds, count, _), (all_seconds, whole, _) = split, series[-1]
    return {
        "early_records_per_second": count / seconds,
        "later_records_per_second": (whole - count) / (all_seconds - seconds),
    }


def measure_rate(job: dict[str, Any]) -> dict[str, Any]:
    """Batches into a step that reads each byte, for some seconds."""
    import torch

    record, batch = SHAPES[job["shape"]]
    if job["subject"] not in BATCHES:
        raise Skip("it reads whole files, not records of one")
    total: Any = 0
    batches = BATCHES[job["subject"]](job)
    started = time.perf_counter()
    # One pass over the file counts from its first batch.
    for found in () if job["passes"] else (next(batches), next(batches)):
        total = total + found.view(-1).view(torch.int64).max()
    synchronize(job["device"])
    begun, cpu = time.perf_counter(), cpu_seconds()
    count, now = 0, begun
    # Seconds, records and bytes by engine, all since the clock runs.
    series: list[tuple[float, int, dict[str, int]]] = []
    while now - begun < job["seconds"] and (not job["passes"] or count < job["passes"]):
        found = next(batches)
        if job["step"]:
            total = total + found.view(-1).view(torch.int64).max()
        count += 1
        now = time.perf_counter()
        if now - begun >= MARK * (len(series) + 1) or now - begun >= job["seconds"]:
            series.append((now - begun, count * batch, told(job).get("engines", {})))
    synchronize(job["device"])
    elapsed = time.perf_counter() - begun
    rate = count * batch / elapsed
    return {
        "records_per_second": rate,
        "gb_per_second": rate * record / 1e9,
        "cpu_us_per_record": (cpu_seconds() - cpu) / (count * batch) * 1e6,
        "seconds_to_begin": begun - started,
        "batches": count,
        "series": series,
        **({} if job["passes"] else two_rates(series)),
        **told(job),
    }


def measure_volumes(job: dict[str, Any]) -> dict[str, Any]:
    """The share of the time that a step of known length runs."""
    if job["subject"] not in VOLUMES:
        raise Skip("not measured with volumes")
    job["files"] = sorted(map(str, Path(job["path"]).glob("*.npy")))
    batches = VOLUMES[job["subject"]](job)
    next(batches)
    synchronize(job["device"])
    begun, cpu, count = time.perf_counter(), cpu_seconds(), 0
    while time.perf_counter() - begun < job["seconds"] or count < 3:
        next(batches)
        synchronize(job["device"])
        time.sleep(job["step"])
        count += 1
    elapsed = time.perf_counter() - begun
    return {
        "utilisation": count * job["step"] / elapsed,
        "gb_per_second": count * job["batch"] * job["bytes"] / elapsed / 1e9,
        "cpu_us_per_record": (cpu_seconds() - cpu) / (count * job["batch"]) * 1e6,
        "batches": count,
        **told(job),
    }


def measure_billion(job: dict[str, Any]) -> dict[str, Any]:
    import forebay.data

    if job["subject"] != "forebay":
        raise Skip("its order is a list of numbers")
    # Before the clock runs: imports, the GPU's context, and what the engine pins for reading, by 10⁶ records in the same way.
    # So the memory is what 10⁹ cost more than 10⁶.
    words = {"framework": "torch", "device": job["device"]}
    small = Path(f"{job['path']}.small")
    with small.open("wb") as file:
        file.truncate(64 * 10**6)
    next(iter(forebay.data.Loader(forebay.data.raw(small, "uint8", 64, **words), 4096)))
    before = own_memory()
    begun = time.perf_counter()
    loader = forebay.data.Loader(forebay.data.raw(job["path"], "uint8", 64, **words), 4096)
    opened = time.perf_counter() - begun
    state = {**loader.state_dict(), "position": 7 * 10**8}
    begun = time.perf_counter()
    loader.load_state_dict(state)
    next(iter(loader))
    synchronize(job["device"])
    resumed = time.perf_counter() - begun
    return {"open_ms": opened * 1e3, "resume_ms": resumed * 1e3, "memory_mib": own_memory() - before}


def measure_disk(job: dict[str, Any]) -> dict[str, Any]:
    """What the disk gives without the page cache."""
    fio = shutil.which("fio", path=f"{Path(__file__).with_name('bin')}:{os.environ.get('PATH', '')}")
    words = ["--rw=read", "--bs=1M", "--iodepth=32", "--direct=1", "--output-format=json", "--group_reporting"]
    # One job reaches half of some virtual disks.
    eight = ["--thread", "--numjobs=8", "--size=12%", "--offset_increment=12%"]
    # A static fio has no libaio; a container may forbid io_uring.
    for engine in ("io_uring", "libaio", "posixaio") if fio is not None else ():
        command = [str(fio), "--name=x", "--readonly", f"--filename={job['path']}", f"--ioengine={engine}", *words]
        runs = [run(*command, *jobs) for jobs in ([], eight)]
        if not any(done.returncode for done in runs):
            reports = [json.loads(done.stdout[done.stdout.index("{") :]) for done in runs]
            rates = [report["jobs"][0]["read"]["bw_bytes"] / 1e9 for report in reports]
            return {"gb_per_second": max(rates), "by": f"fio, {engine}", "one job, eight": rates}
    begun = time.perf_counter()
    if run("dd", f"if={job['path']}", "of=/dev/null", "bs=16M", "iflag=direct").returncode:
        raise Skip("the file system has no O_DIRECT")
    return {"gb_per_second": os.path.getsize(job["path"]) / (time.perf_counter() - begun) / 1e9, "by": "dd"}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def own_memory() -> float:
    """MiB of this process that are no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem"))) / 1024


MEASURES = {
    "prepare": prepare, "rate": measure_rate, "volumes": measure_volumes, "disk": measure_disk, "billion": measure_billion,
}  # fmt: skip


def is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def main() -> int:
    job = json.loads(sys.argv[1])
    try:
        subject = job.get("subject")
        missing = [package for package in PACKAGES.get(subject, ()) if not is_installed(package)]
        if missing:
            raise Skip(f"not installed: {', '.join(missing)}")
        if subject in ON_GPUS_ONLY and job["device"] == "cpu":
            raise Skip("it reads to a GPU")
        print(json.dumps(MEASURES[job["measure"]](job)), flush=True)
    except Skip as skip:
        print(skip)
        return SKIPPED
    # Workers of loaders that go on for ever are not waited for.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
