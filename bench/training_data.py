#!/usr/bin/env python3
"""Measures training data: records a second into a step that reads them, beside the loaders that people use.

    bench/training_data.py FOLDER [--rows tokens,images,…] [--subjects forebay,torch,…] [--bytes 20e9] [--seconds 10]
                           [--repeats 5] [--workers 8] [--device cuda:0] [--out FILE.jsonl]

Rows:
    tokens    windows of 4 KiB at random, batches of 4 096, warm
    images    records of 128 KiB at random, batches of 256, warm
    volumes   arrays of --volume bytes, batches of 7, beside a step of 0.323 s and of 0.162 s (MLPerf Storage's unet3d): how
              much of the time the step ran; warm, and cold
    first     `tokens` in the first pass over a file that was just written, and one that another process read before
    cold      `images` in sequential and block order without a step, the page cache dropped; beside dd with O_DIRECT
    billion   10⁹ records of 64 bytes: seconds to open and to resume at record 7 × 10⁸, bytes of memory

Subjects: forebay; torch (numpy.memmap and a DataLoader with workers, pinned); litdata; streaming (MosaicML's); kvikio (a future a
record, GPU only). What is not installed is a line that says so. Each measurement is a process of its own; subjects take turns;
the table shows medians, `--out` gets a JSON line for each. CPU is that of the process and its workers, for each record. A
worker's start does not count: the clock runs from the third batch on, but in `first` and `cold`, which are one pass.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from measure import drop, warm

SUBJECTS = ("forebay", "torch", "litdata", "streaming", "kvikio")
#: Bytes of a record and records of a batch.
SHAPES = {"tokens": (4096, 4096), "images": (128 << 10, 256)}
VOLUMES = (("0.323", 7), ("0.162", 7))
SKIPPED = 3


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


def plain(folder: Path, nbytes: int, record: int, again: bool = False) -> Path:
    """A file of records."""
    path = folder / f"records-{record}-{nbytes}.bin"
    if again or not path.exists():
        with open(folder / "new", "wb", buffering=0) as file:
            for block in blocks(nbytes, record):
                file.write(memoryview(block).cast("B"))
            os.fsync(file.fileno())
        os.replace(folder / "new", path)
    return path


def mds_folder(folder: Path, nbytes: int, record: int) -> Path:
    path = folder / f"mds-{record}-{nbytes}"
    if not (path / "index.json").exists():
        from streaming import MDSWriter

        with MDSWriter(out=str(path), columns={"x": f"ndarray:uint8:{record}"}) as writer:
            for block in blocks(nbytes, record):
                for row in block:
                    writer.write({"x": row.view("uint8")})
    return path


def litdata_folder(folder: Path, nbytes: int, record: int) -> Path:
    path = folder / f"litdata-{record}-{nbytes}"
    if not (path / "index.json").exists():
        import torch
        from litdata.streaming.writer import BinaryWriter

        writer, number = BinaryWriter(str(path), chunk_bytes=64 << 20), 0
        for block in blocks(nbytes, record):
            for row in block:
                writer[number] = torch.from_numpy(row.view("uint8"))
                number += 1
        writer.done()
        writer.merge(1)
    return path


def volume_files(folder: Path, nbytes: int, count: int) -> list[Path]:
    import numpy

    paths = [folder / f"volume-{number}-{nbytes}.npy" for number in range(count)]
    for number, path in enumerate(paths):
        if not path.exists():
            numpy.save(path, numpy.full(nbytes // 4, number, "float32"))
    return paths


# ---- the subjects: each gives batches on the device, for ever ---------------------------------------------------------


def for_ever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def by_forebay(job: dict[str, Any]) -> Iterator[Any]:
    import forebay.data

    record, batch = SHAPES[job["shape"]]
    records = forebay.data.raw(job["file"], "uint8", record, device=job["device"])
    loader = forebay.data.Loader(records, batch, order=job["order"], prefetch=job["prefetch"])
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
            self.rows = numpy.memmap(job["file"], "uint8", "r").reshape(-1, record)

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, row: int) -> Any:
            return torch.from_numpy(numpy.array(self.rows[row]))

    return torch_loader(Rows(), job, batch, shuffle=job["order"] == "random")


def by_litdata(job: dict[str, Any]) -> Iterator[Any]:
    from litdata import StreamingDataLoader, StreamingDataset

    _, batch = SHAPES[job["shape"]]
    data = StreamingDataset(job["litdata"], shuffle=job["order"] == "random", drop_last=True)
    return torch_loader(data, job, batch, StreamingDataLoader)


def by_streaming(job: dict[str, Any]) -> Iterator[Any]:
    import streaming

    streaming.base.util.clean_stale_shared_memory()
    _, batch = SHAPES[job["shape"]]
    data = streaming.StreamingDataset(local=job["mds"], shuffle=job["order"] == "random", batch_size=batch)
    return torch_loader(data, job, batch)


def by_kvikio(job: dict[str, Any]) -> Iterator[Any]:
    if job["device"] == "cpu":
        raise Skip("it reads to a GPU")
    import kvikio
    import torch

    record, batch = SHAPES[job["shape"]]
    count = os.path.getsize(job["file"]) // record
    with kvikio.CuFile(job["file"], "r") as file:
        while True:
            rows = torch.randint(0, count, (batch,)).tolist()
            out = torch.empty((batch, record), dtype=torch.uint8, device=job["device"])
            waiting = [file.pread(out[number], record, record * row) for number, row in enumerate(rows)]
            for one in waiting:
                one.get()
            yield out


BATCHES: dict[str, Callable[[dict[str, Any]], Iterator[Any]]] = {
    "forebay": by_forebay, "torch": by_torch, "litdata": by_litdata, "streaming": by_streaming, "kvikio": by_kvikio,
}  # fmt: skip
PACKAGES = {"torch": "torch", "litdata": "litdata", "streaming": "streaming", "kvikio": "kvikio", "forebay": "forebay"}


# ---- one measurement, in a process of its own --------------------------------------------------------------------------


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


def measure_rate(job: dict[str, Any]) -> dict[str, Any]:
    """Batches into a step that reads each byte, for some seconds."""
    record, batch = SHAPES[job["shape"]]
    total: Any = 0
    batches = BATCHES[job["subject"]](job)
    started = time.perf_counter()
    # One pass over the file counts from its first batch.
    for found in () if job["passes"] else (next(batches), next(batches)):
        total = total + found.view(-1).max()
    synchronize(job["device"])
    begun, cpu = time.perf_counter(), cpu_seconds()
    count = 0
    while (elapsed := time.perf_counter() - begun) < job["seconds"] and (not job["passes"] or count < job["passes"]):
        found = next(batches)
        if job["step"]:
            total = total + found.view(-1).max()
        count += 1
    synchronize(job["device"])
    elapsed = time.perf_counter() - begun
    rate = count * batch / elapsed
    result = {
        "records_per_second": rate,
        "gb_per_second": rate * record / 1e9,
        "cpu_us_per_record": (cpu_seconds() - cpu) / (count * batch) * 1e6,
        "seconds_to_begin": begun - started,
        "batches": count,
    }
    if "stats" in job:
        result |= {"stalled": job["stats"].stalled, "engines": job["stats"].engines}
    return result


def measure_volumes(job: dict[str, Any]) -> dict[str, Any]:
    """The share of the time that a step of known length runs."""
    import numpy
    import torch

    paths, batch, step = job["files"], job["batch"], job["step"]
    if job["subject"] == "forebay":
        import forebay.data

        records = forebay.data.npy(paths, each="file", device=job["device"])
        batches = for_ever(forebay.data.Loader(records, batch, prefetch=job["prefetch"]))
    elif job["subject"] == "torch":

        class Volumes(torch.utils.data.Dataset):  # type: ignore[type-arg]
            def __len__(self) -> int:
                return len(paths)

            def __getitem__(self, number: int) -> Any:
                return torch.from_numpy(numpy.load(paths[number]))

        batches = torch_loader(Volumes(), job, batch, shuffle=True)
    else:
        raise Skip("not measured with volumes")
    next(batches)
    synchronize(job["device"])
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < job["seconds"]:
        next(batches)
        synchronize(job["device"])
        time.sleep(step)
        count += 1
    elapsed = time.perf_counter() - begun
    return {"utilisation": count * step / elapsed, "gb_per_second": count * batch * job["bytes"] / elapsed / 1e9}


def measure_billion(job: dict[str, Any]) -> dict[str, Any]:
    import resource

    import forebay.data

    if job["subject"] != "forebay":
        raise Skip("its order is a list of numbers")
    # Imported before the clock runs.
    importlib.import_module("torch")
    forebay.data.Loader, forebay.device_count()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.perf_counter()
    loader = forebay.data.Loader(forebay.data.raw(job["file"], "uint8", 64, device="cpu"), 4096)
    opened = time.perf_counter() - begun
    state = {**loader.state_dict(), "position": 7 * 10**8}
    begun = time.perf_counter()
    loader.load_state_dict(state)
    next(iter(loader))
    resumed = time.perf_counter() - begun
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"open_ms": opened * 1e3, "resume_ms": resumed * 1e3, "memory_mib": grown / 1024}


MEASURES = {"rate": measure_rate, "volumes": measure_volumes, "billion": measure_billion}


def work(job: dict[str, Any]) -> int:
    try:
        if importlib.util.find_spec(PACKAGES[job["subject"]]) is None:
            raise Skip("not installed")
        print(json.dumps(MEASURES[job["measure"]](job)), flush=True)
        # Workers of loaders that go on for ever are not waited for.
        os._exit(0)
    except Skip as skip:
        print(skip)
        return SKIPPED


# ---- rows --------------------------------------------------------------------------------------------------------------


class Bench:
    """Runs jobs in turns and keeps what they found."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder: Path = options.folder
        self.rows: list[tuple[str, str, dict[str, Any]]] = []

    def job(self, **words: Any) -> dict[str, Any]:
        keys = ("device", "workers", "seconds", "prefetch")
        return {
            "order": "random",
            "passes": 0,
            "step": True,
            **{key: getattr(self.options, key) for key in keys},
            **words,
        }

    def files(self, shape: str, subject: str) -> dict[str, str]:
        """What a subject reads; made if it is not there."""
        nbytes, record = int(self.options.bytes), SHAPES[shape][0]
        makers = {"litdata": litdata_folder, "streaming": mds_folder}
        path = makers.get(subject, plain)(self.folder, nbytes, record)
        for one in path.glob("*") if path.is_dir() else [path]:
            warm(str(one))
        return {{"litdata": "litdata", "streaming": "mds"}.get(subject, "file"): str(path)}

    def take_turns(self, row: str, jobs: dict[str, dict[str, Any]], before: Callable[[], object] | None = None) -> None:
        found: dict[str, list[dict[str, Any]]] = {}
        skipped: dict[str, str] = {}
        for _ in range(self.options.repeats):
            for subject, job in jobs.items():
                if subject in skipped:
                    continue
                if before is not None:
                    before()
                command = [sys.executable, __file__, "--job", json.dumps({"subject": subject.split(" ")[0], **job})]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode == 0:
                    result = json.loads(done.stdout.splitlines()[-1])
                    found.setdefault(subject, []).append(result)
                    self.keep({"row": row, "subject": subject, **result})
                else:
                    last = (done.stdout if done.returncode == SKIPPED else done.stderr).strip().splitlines()
                    skipped[subject] = last[-1] if last else f"ended with {done.returncode}"
                    self.keep({"row": row, "subject": subject, "skipped": skipped[subject]})
        for subject in jobs:
            if subject in found:
                keys = [key for key, value in found[subject][0].items() if isinstance(value, (int, float))]
                medians = {key: statistics.median(one[key] for one in found[subject]) for key in keys}
                self.rows.append((row, subject, medians))
            else:
                self.rows.append((row, subject, {"skipped": skipped[subject]}))

    def keep(self, line: dict[str, Any]) -> None:
        if self.options.out is not None:
            with self.options.out.open("a") as file:
                file.write(json.dumps({"at": time.strftime("%FT%TZ", time.gmtime()), **line}) + "\n")

    def subjects(self) -> list[str]:
        return [one for one in SUBJECTS if one in self.options.subjects]

    def warm_rate(self, row: str) -> None:
        jobs = {}
        for subject in self.subjects():
            if importlib.util.find_spec(PACKAGES[subject]) is None or (
                subject == "kvikio" and self.options.device == "cpu"
            ):
                jobs[subject] = self.job(measure="rate", shape=row)
            else:
                jobs[subject] = self.job(measure="rate", shape=row, **self.files(row, subject))
        self.take_turns(row, jobs)

    def first(self) -> None:
        nbytes, record = int(self.options.bytes), SHAPES["tokens"][0]
        passes = max(1, nbytes // record // SHAPES["tokens"][1])
        subjects = [one for one in self.subjects() if one in ("forebay", "torch", "kvikio")]

        def written() -> None:
            plain(self.folder, nbytes, record, again=True)

        def read() -> None:
            written()
            path = plain(self.folder, nbytes, record)
            drop(str(path))
            warm(str(path))

        for how, before in (("just written", written), ("read by another", read)):
            path = plain(self.folder, nbytes, record)
            job = self.job(measure="rate", shape="tokens", file=str(path)) | {"passes": passes, "seconds": 600}
            self.take_turns(f"first, {how}", dict.fromkeys(subjects, job), before)

    def cold(self) -> None:
        record = SHAPES["images"][0]
        path = plain(self.folder, int(self.options.bytes), record)
        passes = max(1, int(self.options.bytes) // record // SHAPES["images"][1])
        jobs = {}
        for order in ("sequential", "block"):
            job = self.job(measure="rate", shape="images", file=str(path), order=order)
            jobs[f"forebay ({order})"] = job | {"passes": passes, "seconds": 600, "step": False}
        self.take_turns("cold", jobs, lambda: drop(str(path)))
        drop(str(path))
        begun = time.perf_counter()
        subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=16M", "iflag=direct"], capture_output=True, check=False)
        elapsed = time.perf_counter() - begun
        self.rows.append(("cold", "dd, O_DIRECT", {"gb_per_second": int(self.options.bytes) / elapsed / 1e9}))

    def volumes(self) -> None:
        nbytes = int(self.options.volume)
        count = max(14, int(self.options.bytes) // nbytes)
        paths = [str(path) for path in volume_files(self.folder, nbytes, count)]
        subjects = [one for one in self.subjects() if one in ("forebay", "torch")]
        for step, batch in VOLUMES:
            words = {"files": paths, "bytes": nbytes, "batch": batch, "step": float(step)}
            job = self.job(measure="volumes", **words)
            for path in paths:
                warm(path)
            self.take_turns(f"volumes, {step} s", dict.fromkeys(subjects, job))
            self.take_turns(f"volumes, {step} s, cold", dict.fromkeys(subjects, job), lambda: list(map(drop, paths)))

    def billion(self) -> None:
        path = self.folder / "billion.bin"
        with path.open("wb") as file:
            file.truncate(64 * 10**9)
        self.take_turns("billion", {"forebay": self.job(measure="billion", file=str(path))})
        path.unlink()


ROWS: dict[str, Callable[[Bench], None]] = {
    "tokens": lambda bench: bench.warm_rate("tokens"),
    "images": lambda bench: bench.warm_rate("images"),
    "volumes": Bench.volumes,
    "first": Bench.first,
    "cold": Bench.cold,
    "billion": Bench.billion,
}


def shown(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if value >= 1000 else f"{value:.3g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(ROWS))
    parser.add_argument("--subjects", type=lambda text: text.split(","), default=list(SUBJECTS))
    parser.add_argument("--bytes", type=float, default=256 << 20)
    parser.add_argument("--volume", type=float, default=146.6e6 // 4 * 4)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        return work(json.loads(options.job))
    if options.folder is None:
        parser.error("name a folder for the files")
    unknown = {*options.rows} - {*ROWS} | {*options.subjects} - {*SUBJECTS}
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    if options.device is None:
        probe = [sys.executable, "-c", "import torch; print('cuda:0' if torch.cuda.is_available() else 'cpu')"]
        options.device = subprocess.run(probe, capture_output=True, text=True, check=False).stdout.strip() or "cpu"
    options.folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(options)
    for row in options.rows:
        ROWS[row](bench)
    last = None
    for row, subject, found in bench.rows:
        if row != last:
            print(f"\n{row} (device {options.device}, {int(options.bytes)} bytes, medians of {options.repeats})")
            last = row
        told = found.get("skipped") or ", ".join(f"{key} {shown(value)}" for key, value in found.items())
        print(f"  {subject:20} {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
