#!/usr/bin/env python3
"""Measures training data: records a second into a step that reads them, beside the loaders that people use.

    bench/training_data.py FOLDER [--quick] [--rows tokens,images,…] [--subjects forebay,torch,…] [--bytes 20e9]
                           [--device cuda:0] [--out FILE.jsonl] [--until SECONDS] …

Rows:
    tokens    windows of 4 KiB at random, batches of 4 096, warm
    images    records of 128 KiB at random, batches of 256, warm
    volumes   arrays of --volume bytes, batches of 7, beside a step of 0.323 s and of 0.162 s (MLPerf Storage's unet3d): how
              much of the time the step ran; warm, and cold
    first     `tokens` in the first pass over a file that was just written, and one that another process read before
    cold      `images` in sequential and block order without a step, the page cache dropped; beside fio, or dd with O_DIRECT
    billion   10⁹ records of 64 bytes: seconds to open and to resume at record 7 × 10⁸, bytes of memory

Subjects: forebay; torch (numpy.memmap and a DataLoader with workers, pinned); litdata; streaming (MosaicML's); kvikio (a future a
record); dali (its numpy reader, volumes only). What is not installed, fails or outlives --limit is a line that says so. Each
measurement is a process of its own; subjects take turns; tables show medians. CPU is that of the process and its workers, for
each record. A worker's start does not count: the clock runs from the third batch on, but in `first` and `cold`, which are one pass.

Each measurement is a line of --out (FOLDER/training.jsonl), and is not taken again by a command of the same words: one that
was ended goes on. --until ends it before the next measurement. Files of a row are removed behind it, unless --keep. Records of
litdata and streaming are --peer-bytes in all: their writers take long, and their rates do not grow with the data set.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from measure import drop, warm
from training_subjects import SHAPES, SKIPPED

SUBJECTS = ("forebay", "torch", "litdata", "streaming", "kvikio", "dali")
STEPS = ("0.323", "0.162")
CHILD = Path(__file__).with_name("training_subjects.py")
#: What the figures of a row are read by, best first; and what is asked of forebay's: at least, or at most where it ends in "_ms".
GOALS: dict[str, tuple[str, float]] = {
    "tokens": ("records_per_second", 8e6),
    "images": ("gb_per_second", 40.0),
    "volumes, 0.323 s": ("utilisation", 0.98),
    "volumes, 0.162 s": ("utilisation", 0.98),
}


class OutOfTime(Exception):
    """--until is over."""


class Cannot(Exception):
    """Why a measurement has no figure."""


class Bench:
    """Runs jobs in turns, each in a process of its own, and keeps what they found."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder: Path = options.folder
        self.begun = time.monotonic()
        keys = ("device", "workers", "seconds", "prefetch", "bytes", "peer_bytes", "volume")
        self.setup = {key: getattr(options, key) for key in keys}
        self.lines: list[dict[str, Any]] = []
        if options.out.exists():
            lines = map(json.loads, filter(str.strip, options.out.read_text().splitlines()))
            self.lines = [line for line in lines if line.get("setup") == self.setup]

    def run(self, job: dict[str, Any], limit: float) -> dict[str, Any]:
        """One job. Its process, and those below it, end with it."""
        child = subprocess.Popen(
            [sys.executable, str(CHILD), json.dumps(job)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            raise Cannot(f"not done after {limit:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        lines = (out if child.returncode in (0, SKIPPED) else err).strip().splitlines()
        if child.returncode:
            raise Cannot(lines[-1][:200] if lines else f"ended with {child.returncode}")
        return dict(json.loads(lines[-1]))

    def keep(self, row: str, subject: str, result: dict[str, Any]) -> None:
        at = time.strftime("%FT%TZ", time.gmtime())
        line = {"at": at, "row": row, "subject": subject, "setup": self.setup, **result}
        self.lines.append(line)
        with self.options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        figures = {key: value for key, value in result.items() if isinstance(value, (int, float))}
        print(f"{row} | {subject} | {result.get('skipped') or shown_all(figures)}", file=sys.stderr, flush=True)

    def found(self, row: str, subject: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if (line["row"], line["subject"]) == (row, subject)]

    def is_done(self, row: str, subject: str, repeat: int) -> bool:
        found = self.found(row, subject)
        return len(found) > repeat or any("skipped" in line for line in found)

    def take_turns(
        self,
        row: str,
        subjects: list[str],
        job: Callable[[str], dict[str, Any]],
        before: Callable[[], object] | None = None,
    ) -> None:
        """Measures subjects in turns. ``job`` makes a subject's files, too: only if it has something to measure."""
        for repeat in range(self.options.repeats):
            for subject in subjects:
                if self.is_done(row, subject, repeat):
                    continue
                if self.options.until and time.monotonic() - self.begun > self.options.until:
                    raise OutOfTime
                try:
                    made = {"subject": subject.split(" ")[0], **job(subject)}
                    if before is not None:
                        before()
                    self.keep(row, subject, self.run(made, self.options.limit))
                except Cannot as error:
                    self.keep(row, subject, {"skipped": str(error)})

    def job(self, measure: str, **words: Any) -> dict[str, Any]:
        keys = ("device", "workers", "seconds", "prefetch")
        plain = {"measure": measure, "order": "random", "passes": 0, "step": True}
        return {**plain, **{key: getattr(self.options, key) for key in keys}, **words}

    def made(self, kind: str, nbytes: int, other: int, again: bool = False, subject: str | None = None) -> Path:
        """The file or folder that a row needs; made if it is not there."""
        path = self.folder / f"{kind}-{nbytes}-{other}"
        mark = self.folder / f"{path.name}.made"
        if again or not mark.exists():
            remove(path)
            words = {"kind": kind, "bytes": nbytes, "other": other, "path": str(path), "device": self.options.device}
            self.run({"measure": "prepare", "subject": subject, **words}, 5 * self.options.limit)
            mark.touch()
        return path

    def warmed(self, path: Path) -> Path:
        for one in files_of(path):
            warm(str(one))
        return path

    def clean(self) -> None:
        if not self.options.keep:
            for path in self.folder.iterdir():
                if path.name.split("-")[0] in ("file", "streaming", "litdata", "volumes"):
                    remove(path)

    # ---- rows ------------------------------------------------------------------------------------------------------

    def warm_rate(self, row: str) -> None:
        record = SHAPES[row][0]

        def job(subject: str) -> dict[str, Any]:
            kind = subject if subject in ("litdata", "streaming") else "file"
            nbytes = self.options.bytes if kind == "file" else min(self.options.bytes, self.options.peer_bytes)
            needs = subject if kind != "file" else None
            path = self.warmed(self.made(kind, nbytes, record, subject=needs))
            return self.job("rate", shape=row, path=str(path))

        self.take_turns(row, self.subjects("forebay", "torch", "litdata", "streaming", "kvikio"), job)

    def first(self) -> None:
        record, batch = SHAPES["tokens"]
        nbytes, kind = self.options.bytes, "file"
        passes = max(1, nbytes // record // batch)

        def job(subject: str) -> dict[str, Any]:
            path = self.made(kind, nbytes, record, again=True)
            return self.job("rate", shape="tokens", path=str(path), passes=passes) | {
                "seconds": 0.7 * self.options.limit
            }

        def read() -> None:
            path = self.made(kind, nbytes, record)
            dropped(path)
            self.warmed(path)

        subjects = self.subjects("forebay", "torch", "kvikio")
        self.take_turns("first, just written", subjects, job)
        self.take_turns("first, read by another", subjects, job, read)

    def cold(self) -> None:
        record, batch = SHAPES["images"]
        nbytes = self.options.bytes
        passes = max(1, nbytes // record // batch)

        def job(subject: str) -> dict[str, Any]:
            path = self.made("file", nbytes, record)
            dropped(path)
            if subject == "disk":
                return {"path": str(path)}
            order = subject.split("(")[1].rstrip(")")
            words = {"shape": "images", "path": str(path), "order": order, "passes": passes, "step": False}
            return self.job("rate", **words) | {"seconds": 0.7 * self.options.limit}

        self.take_turns("cold", self.subjects("forebay (sequential)", "forebay (block)"), job)
        for repeat in range(self.options.repeats):
            if not self.is_done("cold", "disk", repeat):
                self.keep("cold", "disk", disk_rate(Path(job("disk")["path"])))

    def volumes(self) -> None:
        nbytes = self.options.volume // 4 * 4
        count = max(14, self.options.bytes // nbytes)

        def job(step: str, subject: str) -> dict[str, Any]:
            path = self.made("volumes", nbytes, count)
            return self.job("volumes", path=str(path), bytes=nbytes, batch=7) | {"step": float(step)}

        path = self.folder / f"volumes-{nbytes}-{count}"
        subjects = self.subjects("forebay", "torch", "kvikio", "dali")
        for step in STEPS:
            made = functools.partial(job, step)
            self.take_turns(f"volumes, {step} s", subjects, made, lambda: self.warmed(path))
            self.take_turns(f"volumes, {step} s, cold", subjects, made, lambda: dropped(path))

    def billion(self) -> None:
        path = self.folder / "billion.bin"

        def job(subject: str) -> dict[str, Any]:
            try:
                with path.open("wb") as file:
                    file.truncate(64 * 10**9)
            except OSError as error:
                raise Cannot(f"the file system has no files of 64 GB: {error}") from None
            return self.job("billion", path=str(path))

        self.take_turns("billion", self.subjects("forebay"), job)
        for left in self.folder.glob("billion.bin*"):
            left.unlink()

    def subjects(self, *names: str) -> list[str]:
        return [name for name in names if name.split(" ")[0] in self.options.subjects]


def files_of(path: Path) -> list[Path]:
    return [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else [path]


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def dropped(path: Path) -> None:
    for one in files_of(path):
        try:
            drop(str(one))
        except SystemExit as error:
            raise Cannot(f"the page cache keeps the file: {error}") from None


def disk_rate(path: Path) -> dict[str, Any]:
    """What the disk gives without the page cache."""
    size = path.stat().st_size
    if shutil.which("fio"):
        words = ["--rw=read", "--bs=1M", "--iodepth=32", "--ioengine=libaio", "--direct=1", "--output-format=json"]
        done = subprocess.run(
            ["fio", "--name=x", f"--filename={path}", *words], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            report = json.loads(done.stdout[done.stdout.index("{") :])
            return {"gb_per_second": report["jobs"][0]["read"]["bw_bytes"] / 1e9, "by": "fio"}
    begun = time.perf_counter()
    done = subprocess.run(
        ["dd", f"if={path}", "of=/dev/null", "bs=16M", "iflag=direct"], capture_output=True, check=False
    )
    if done.returncode:
        return {"skipped": "the file system has no O_DIRECT"}
    return {"gb_per_second": size / (time.perf_counter() - begun) / 1e9, "by": "dd"}


ROWS: dict[str, Callable[[Bench], None]] = {
    "tokens": lambda bench: bench.warm_rate("tokens"),
    "images": lambda bench: bench.warm_rate("images"),
    "volumes": Bench.volumes,
    "first": Bench.first,
    "cold": Bench.cold,
    "billion": Bench.billion,
}


# ---- the table -------------------------------------------------------------------------------------------------------


def shown(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if value >= 1000 else f"{value:.3g}"


def shown_all(figures: dict[str, float]) -> str:
    return ", ".join(f"{key} {shown(value)}" for key, value in figures.items())


def medians(lines: list[dict[str, Any]]) -> dict[str, float]:
    lines = [line for line in lines if "skipped" not in line]
    keys = [key for key, value in (lines[0] if lines else {}).items() if isinstance(value, (int, float))]
    return {key: statistics.median(line[key] for line in lines) for key in keys}


def table(bench: Bench) -> list[str]:
    """A line for each row: forebay's median, the best peer's, how they compare, and what was asked for."""
    text = [
        "",
        f"| row ({bench.options.device}) | forebay | best peer | ratio | CPU µs a record (peer) | asked |",
        "|---|---|---|---|---|---|",
    ]
    others = []
    for row in dict.fromkeys(line["row"] for line in bench.lines):
        subjects = dict.fromkeys(line["subject"] for line in bench.lines if line["row"] == row)
        figures = {subject: medians(bench.found(row, subject)) for subject in subjects}
        for subject in subjects:
            skipped = [line["skipped"] for line in bench.found(row, subject) if "skipped" in line]
            others += [f"{row}: {subject}: {skipped[-1]}"] if skipped else []
        key, asked = GOALS.get(row, ("utilisation" if row.startswith("volumes") else "gb_per_second", 0.0))
        for ours in [subject for subject in subjects if subject.startswith("forebay")]:
            if row == "billion" or key not in figures[ours]:
                text.append(f"| {row} | {shown_all(figures[ours]) or 'no figure'} | – | – | – | – |")
                continue
            peers = {
                one: found[key] for one, found in figures.items() if not one.startswith("forebay") and key in found
            }
            best = max(peers, key=lambda one: peers[one]) if peers else None
            mine = figures[ours]
            cpu = f"{shown(mine['cpu_us_per_record'])}"
            cpu += (
                f" ({shown(figures[best]['cpu_us_per_record'])})"
                if best and "cpu_us_per_record" in figures[best]
                else ""
            )
            against = (
                f"{best} {shown(peers[best])} | {mine[key] / peers[best]:.2f} ×" if best and peers[best] else "– | –"
            )
            name = row if ours == "forebay" else f"{row}: {ours}"
            text.append(f"| {name} | {shown(mine[key])} {key} | {against} | {cpu} | {shown(asked) if asked else '–'} |")
    return [*text, "", *others]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--quick", action="store_true", help="4 GB, 3 s, 2 repeats: some 15 minutes on a machine with a GPU"
    )
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(ROWS))
    parser.add_argument("--subjects", type=lambda text: text.split(","), default=list(SUBJECTS))
    for name, kind, plain in (
        ("bytes", float, 20e9), ("peer-bytes", float, 4e9), ("volume", float, 146.6e6), ("seconds", float, 10.0),
        ("repeats", int, 5), ("workers", int, 8), ("prefetch", int, 2), ("limit", float, 180.0), ("until", float, 0.0),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, help=f"default {plain:g}")
        parser.set_defaults(**{f"plain_{name.replace('-', '_')}": plain})
    parser.add_argument("--device", help="by default cuda:0 if torch sees it, else cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", action="store_true", help="leave the files that were read")
    options = parser.parse_args()
    quick = {"bytes": 4e9, "peer_bytes": 1e9, "seconds": 3.0, "repeats": 2, "limit": 90.0} if options.quick else {}
    for key in ("bytes", "peer_bytes", "volume", "seconds", "repeats", "workers", "prefetch", "limit", "until"):
        if getattr(options, key) is None:
            setattr(options, key, quick.get(key, getattr(options, f"plain_{key}")))
    options.bytes, options.peer_bytes, options.volume = map(int, (options.bytes, options.peer_bytes, options.volume))
    unknown = {*options.rows} - {*ROWS} | {*options.subjects} - {*SUBJECTS}
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    if options.device is None:
        probe = [sys.executable, "-c", "import torch; print('cuda:0' if torch.cuda.is_available() else 'cpu')"]
        options.device = subprocess.run(probe, capture_output=True, text=True, check=False).stdout.strip() or "cpu"
    options.folder.mkdir(parents=True, exist_ok=True)
    options.out = options.out or options.folder / "training.jsonl"
    bench = Bench(options)
    try:
        for row in options.rows:
            try:
                ROWS[row](bench)
            except Cannot as error:
                bench.keep(row, "files", {"skipped": str(error)})
            bench.clean()
    except OutOfTime:
        print(f"--until {options.until:g}: the same command goes on", file=sys.stderr)
    print("\n".join(table(bench)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
