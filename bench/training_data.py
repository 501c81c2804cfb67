#!/usr/bin/env python3
"""Measures training data: records a second into a step that reads them, beside the loaders that people use.

    bench/training_data.py FOLDER [--quick] [--rows tokens,images,…] [--subjects forebay,torch,…] [--bytes 20e9]
                           [--device cuda:0] [--out FILE.jsonl] [--until SECONDS] …

Rows:
    tokens    windows of 4 KiB at random, batches of 4 096, warm
    images    records of 128 KiB at random, batches of 256, warm
    volumes   arrays of --volume bytes, batches of 7, beside a step of 0.323 s and of 0.162 s (MLPerf Storage's unet3d): how
              much of the time the step ran, warm; volumes-cold: the page cache dropped
    written   `tokens` in the first pass over a file that was just written; read-before: one that another process read
    cold      `images` in sequential and block order without a step, the page cache dropped; beside fio (bench/bin/fio, or the
              one in PATH), else dd with O_DIRECT
    billion   10⁹ records of 64 bytes: seconds to open and to resume at record 7 × 10⁸, bytes of memory

Subjects: forebay; torch (numpy.memmap and a DataLoader with workers, pinned); litdata; streaming (MosaicML's); kvikio (a future a
record); dali (its numpy reader, volumes only). A peer that is not installed, fails or outlives --limit is a line with the reason. Each
measurement is a process of its own; subjects take turns; tables show medians. CPU is that of the process and its workers, for
each record. A worker's start does not count: the clock runs from the third batch on, but in `written`, `read-before` and `cold`,
which are one pass. Rates come with a time series (records and bytes by engine, four times a second); from 6 s on the first 3 s and
the later ones are listed separately, too: pages are registered in the first.

Each measurement is a line of --out (FOLDER/training.jsonl), and is not taken again by a command of the same words: one that
was ended goes on. --until ends it before the next measurement. Files are removed when all is measured, unless --keep. litdata and
streaming read at most --peer-bytes and --peer-records: their writers take long, and their rates do not grow with the data set.
"""

from __future__ import annotations

import argparse
import functools
import json
import mmap
import shutil
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from measure import drop, resident_pages
from runs import Cannot, OutOfTime, Results, default_device, ended, last_line
from training_subjects import EARLY, SHAPES, SKIPPED

SUBJECTS = ("forebay", "torch", "litdata", "streaming", "kvikio", "dali")
#: Those that have files of their own.
PEERS_FILES = ("litdata", "streaming")
STEPS = ("0.323", "0.162")
#: Bytes that a thread warms at a time.
PART = 1 << 30
CHILD = Path(__file__).with_name("training_subjects.py")
#: The figures of a row, best first; and forebay's target: at least, or at most where it ends in "_ms".
GOALS: dict[str, tuple[str, float]] = {
    "tokens": ("records_per_second", 8e6),
    "images": ("gb_per_second", 40.0),
    "volumes, 0.323 s": ("utilisation", 0.98),
    "volumes, 0.162 s": ("utilisation", 0.98),
}


class Bench:
    """Runs jobs in turns, each in a process of its own, and keeps what they found."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder: Path = options.folder
        keys = ("device", "workers", "seconds", "prefetch", "bytes", "peer_bytes", "peer_records", "volume")
        self.results = Results(options.out, {key: getattr(options, key) for key in keys}, options.until)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return self.results.lines

    def run(self, job: dict[str, Any], limit: float) -> dict[str, Any]:
        """One job. Its process, and those below it, end with it."""
        code, out, err = ended([sys.executable, str(CHILD), json.dumps(job)], limit)
        if code:
            raise Cannot(last_line(out if code == SKIPPED else err, f"ended with {code}"))
        return dict(json.loads(out.strip().splitlines()[-1]))

    def keep(self, row: str, subject: str, result: dict[str, Any]) -> None:
        self.results.keep(row=row, subject=subject, **result)
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
                self.results.check_time()
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

    def plain(self, again: bool = False) -> Path:
        """The file of records, whatever their length: whole ones of each."""
        most = max(record for record, _ in SHAPES.values())
        return self.made("file", max(1, self.options.bytes // most) * most, SHAPES["tokens"][0], again)

    def for_peer(self, peer: str, row: str) -> Path:
        """A peer's own files: fewer records, since its writer takes long."""
        record, batch = SHAPES[row]
        most = min(self.options.bytes, self.options.peer_bytes, self.options.peer_records * record)
        # Each worker leaves out what fills no batch.
        count = max(most // record, 2 * batch * max(1, self.options.workers))
        return self.made(peer, count * record, record, subject=peer)

    def volume_files(self) -> Path:
        nbytes = self.options.volume // 4 * 4
        return self.made("volumes", nbytes, max(14, self.options.bytes // 4 // nbytes))

    def make_files(self, rows: list[str]) -> None:
        """Makes the files of all rows beside each other. A failure is reported in its row."""
        jobs: list[Callable[[], object]] = [
            functools.partial(self.for_peer, peer, row)
            for row in rows
            for peer in self.subjects(*PEERS_FILES)
            if row in SHAPES and not self.found(row, peer)
        ]
        if {"tokens", "images", "read-before", "cold"} & {*rows}:
            jobs.append(self.plain)
        if {"volumes", "volumes-cold"} & {*rows}:
            jobs.append(self.volume_files)
        with ThreadPoolExecutor(8) as pool:
            for made in [pool.submit(job) for job in jobs]:
                made.exception()

    def clean(self) -> None:
        if not self.options.keep:
            for path in self.folder.iterdir():
                if path.name.split("-")[0] in ("file", *PEERS_FILES, "volumes"):
                    remove(path)

    # ---- rows ------------------------------------------------------------------------------------------------------

    def warm_rate(self, row: str) -> None:
        def job(subject: str) -> dict[str, Any]:
            path = self.for_peer(subject, row) if subject in PEERS_FILES else self.plain()
            return self.job("rate", shape=row, path=str(warmed(path)))

        self.take_turns(row, self.subjects("forebay", "torch", *PEERS_FILES, "kvikio"), job)

    def one_pass(self, shape: str, path: Path, **words: Any) -> dict[str, Any]:
        record, batch = SHAPES[shape]
        words |= {"passes": max(1, self.options.bytes // record // batch), "seconds": 0.7 * self.options.limit}
        return self.job("rate", shape=shape, path=str(path), **words)

    def written(self) -> None:
        subjects = self.subjects("forebay", "torch", "kvikio")
        self.take_turns("written", subjects, lambda subject: self.one_pass("tokens", self.plain(again=True)))

    def read_before(self) -> None:
        def read() -> None:
            dropped(self.plain())
            warmed(self.plain())

        subjects = self.subjects("forebay", "torch", "kvikio")
        self.take_turns("read-before", subjects, lambda subject: self.one_pass("tokens", self.plain()), read)

    def cold(self) -> None:
        def job(subject: str) -> dict[str, Any]:
            if subject == "disk":
                return self.job("disk", path=str(self.plain()))
            order = subject.split("(")[1].rstrip(")")
            return self.one_pass("images", self.plain(), order=order, step=False)

        subjects = [*self.subjects("forebay (sequential)", "forebay (block)"), "disk"]
        self.take_turns("cold", subjects, job, lambda: dropped(self.plain()))

    def volumes(self, kind: str = "", before: Callable[[Path], object] | None = None) -> None:
        nbytes = self.options.volume // 4 * 4

        def job(step: str, subject: str) -> dict[str, Any]:
            return self.job("volumes", path=str(self.volume_files()), bytes=nbytes, batch=7) | {"step": float(step)}

        subjects = self.subjects("forebay", "torch", "kvikio", "dali")
        for step in STEPS:
            made = functools.partial(job, step)
            self.take_turns(f"volumes, {step} s{kind}", subjects, made, lambda: (before or warmed)(self.volume_files()))

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


def warmed(path: Path) -> Path:
    """The files at a path, read into the page cache as far as they are not there."""

    def read(place: tuple[Path, int]) -> None:
        with place[0].open("rb", buffering=0) as file:
            file.seek(place[1])
            left, buffer = PART, bytearray(8 << 20)
            while left > 0 and (size := file.readinto(buffer)):
                left -= size

    files = [one for one in files_of(path) if resident_pages(one) * mmap.PAGESIZE < one.stat().st_size]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, [(one, start) for one in files for start in range(0, one.stat().st_size, PART)]))
    return path


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


ROWS: dict[str, Callable[[Bench], None]] = {
    "tokens": lambda bench: bench.warm_rate("tokens"),
    "images": lambda bench: bench.warm_rate("images"),
    "volumes": Bench.volumes,
    "volumes-cold": lambda bench: bench.volumes(", cold", dropped),
    "written": Bench.written,
    "read-before": Bench.read_before,
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
    """A line for each row: forebay's median, the best peer's, how they compare, and the target."""
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
            if "later_records_per_second" in figures[subject]:
                early, later = (shown(figures[subject][f"{when}_records_per_second"]) for when in ("early", "later"))
                others.append(f"{row}: {subject}: {early} records/s in the first {EARLY:g} s, {later} later")
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
        ("bytes", float, 20e9), ("peer-bytes", float, 4e9), ("peer-records", int, 1_000_000), ("volume", float, 146.6e6), ("seconds", float, 10.0),
        ("repeats", int, 5), ("workers", int, 8), ("prefetch", int, 0), ("limit", float, 180.0), ("until", float, 0.0),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, help=f"default {plain:g}")
        parser.set_defaults(**{f"plain_{name.replace('-', '_')}": plain})
    parser.add_argument("--device", help="by default cuda:0 if torch sees it, else cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", action="store_true", help="leave the files that were read")
    options = parser.parse_args()
    quick = (
        {"bytes": 4e9, "peer_bytes": 1e9, "peer_records": 20_000, "seconds": 3.0, "repeats": 2, "limit": 90.0}
        if options.quick
        else {}
    )
    for key in (
        "bytes",
        "peer_bytes",
        "peer_records",
        "volume",
        "seconds",
        "repeats",
        "workers",
        "prefetch",
        "limit",
        "until",
    ):
        if getattr(options, key) is None:
            setattr(options, key, quick.get(key, getattr(options, f"plain_{key}")))
    options.bytes, options.peer_bytes, options.volume = map(int, (options.bytes, options.peer_bytes, options.volume))
    unknown = {*options.rows} - {*ROWS} | {*options.subjects} - {*SUBJECTS}
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    options.device = options.device or default_device()
    options.folder.mkdir(parents=True, exist_ok=True)
    options.out = options.out or options.folder / "training.jsonl"
    bench = Bench(options)
    try:
        bench.make_files(options.rows)
        for row in options.rows:
            try:
                ROWS[row](bench)
            except Cannot as error:
                bench.keep(row, "files", {"skipped": str(error)})
    except OutOfTime as late:
        print(late, file=sys.stderr)
    else:
        bench.clean()
    print("\n".join(table(bench)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
