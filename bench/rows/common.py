"""What the rows share: runs in fresh processes, alternating subjects, records as they come, tables of medians.

A measurement gives figures: a name ("first", "load 2"), a value with its unit, CPU seconds (user, system) per GB, and the
way the bytes went by the receipt. CPU of GB/s is printed in s/GB, of IOPS in µs for an operation.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent.parent
PYTHON = BENCH / "python"
Figure = dict[str, Any]
Measured = tuple[list[Figure], Any]
#: A larger value of these units is better; of all others a smaller one.
RATES = ("GB/s", "K IOPS")
#: A worker that cannot run here ends with this status, after a line that says why.
SKIPPED = 3


class Skip(Exception):
    """A subject that this machine does not have: says why."""


class Failed(Exception):
    """A run that went wrong: says how."""


@dataclass
class Subject:
    """One side of a comparison. `measure` is one run in a fresh process. Ratios are of a case's first subject to the others."""

    name: str
    measure: Callable[[], Measured]
    once: bool = False


@dataclass
class Bench:
    """What the command line said, and what all rows use."""

    folder: Path
    builds: dict[str, Path]
    peers: list[str] | None
    repeat: int
    size: int | None
    secs: float
    device: str
    fio: str
    nvidia: str | None
    cases: list[str]
    deadline: float
    out: Path
    limit: float = 120
    #: Files whose state of the page cache was made in this run.
    made: set[tuple[Path, str]] = field(default_factory=set)

    @property
    def build(self) -> Path:
        """The first build: its programs make files, do the raw calls and call the libraries of all."""
        return next(iter(self.builds.values()))

    def wants(self, peer: str) -> bool:
        return self.peers is None or peer in self.peers

    def program(self, build: Path, name: str) -> Path:
        for path in (build / name, build / "examples" / name):
            if path.exists():
                return path.resolve()
        raise Skip(f"{build} has no {name}")

    def add(self, record: dict[str, Any]) -> None:
        """Writes a record: finished measurements stay if the run is cut."""
        with open(self.out, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def alternate(
        self, row: str, case: str, subjects: Iterable[Subject], prepare: Callable[[], Any] | None = None
    ) -> None:
        """Runs the subjects in turn, `repeat` times each, every turn beginning with another one."""
        if self.cases and not any(word in case for word in self.cases):
            return
        subjects, out, failed = list(subjects), set[str](), set[str]()
        for turn in range(self.repeat):
            for i in range(len(subjects)):
                subject = subjects[(turn + i) % len(subjects)]
                if subject.name in out or (subject.once and turn):
                    continue
                if time.monotonic() > self.deadline:
                    print(f"   {row}, {case}: the time is over after {turn} turns", flush=True)
                    return
                record = {"row": row, "case": case, "subject": subject.name, "turn": turn + 1}
                start = time.monotonic()
                try:
                    record["state"] = prepare() if prepare else None
                    record["figures"], record["report"] = subject.measure()
                except (Skip, Failed) as error:
                    if isinstance(error, Skip) or subject.name in failed:
                        out.add(subject.name)
                    failed.add(subject.name)
                    record["skipped" if isinstance(error, Skip) else "failed"] = str(error)
                    print(f"   {row}, {case}, {subject.name}: {error}", file=sys.stderr, flush=True)
                record["wall_s"] = round(time.monotonic() - start, 2)
                self.add(record)


# --- running -----------------------------------------------------------------------------------------------------


def run(command: list[Any], environment: dict[str, str] | None = None, limit: float = 120) -> tuple[str, str]:
    """Runs a command without a profile that an older build left. Returns its standard output and error."""
    with tempfile.TemporaryDirectory() as cache:
        return _run(command, {**os.environ, "XDG_CACHE_HOME": cache, **(environment or {})}, limit)


def _run(command: list[Any], environment: dict[str, str], limit: float) -> tuple[str, str]:
    words = [str(word) for word in command]
    try:
        child = subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise Skip(f"cannot run {words[0]}: {error}") from None
    try:
        out, err = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        raise Failed(f"not done after {limit:.0f} s: {' '.join(words)}") from None
    if child.returncode == 0:
        return out, err
    lines = [line for line in (err.strip() or out.strip()).splitlines() if line.strip()]
    if child.returncode == SKIPPED:
        why = [line for line in lines if line.startswith(("skipped: ", "error: "))] or lines or ["it cannot run here"]
        raise Skip(why[0].removeprefix("skipped: ").removeprefix("error: "))
    lines = [line for line in lines if "error" in line.lower()] or lines
    raise Failed(f"status {child.returncode}: {' | '.join(lines[-4:])[-600:]}")


def json_lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def with_receipt(bench: Bench, build: Path, command: list[Any]) -> list[Any]:
    """A command on the drop-in of a build. The receipt at its end names the engines."""
    library = bench.program(build, "libcufile.so")
    return [bench.program(build, "forebay"), "run", "--lib", library.parent, "--receipt", "--", *command]


def way_of_receipt(text: str) -> str:
    """`mapped 90 %, staged 10 %` from the lines of `forebay run --receipt`."""
    unit = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
    found = re.findall(r"^\s+(?:engine\s+)?(\w+): ([\d.]+) (B|[KMGT]iB) in \d+ requests", text, re.MULTILINE)
    return shares({name: float(count) * unit[word] for name, count, word in found})


def shares(parts: dict[str, float]) -> str:
    whole = sum(parts.values())
    if not whole:
        return ""
    most = sorted(parts.items(), key=lambda part: -part[1])
    return ", ".join(
        f"{name} {value / whole:.0%}" if value < 0.995 * whole else name
        for name, value in most
        if value > 0.005 * whole
    )


# --- figures -----------------------------------------------------------------------------------------------------


def figure(name: str, part: dict[str, Any], way: str = "", small: bool = False) -> Figure:
    """A figure of a report's pass: IOPS where pieces are small."""
    cpu = part.get("cpu", part)
    found = {
        "figure": name,
        "unit": "K IOPS" if small else "GB/s",
        "way": way,
        "p99_us": (part.get("latency_us") or {}).get("p99"),
    }
    found["value"] = part["iops"] / 1e3 if small else part["gb_per_s"]
    # Seconds for 10⁹ bytes are microseconds for an operation by the operation's bytes.
    scale = part["gb_per_s"] * 1e9 / part["iops"] / 1e3 if small else 1
    return found | {"user": cpu["user_s_per_gb"] * scale, "system": cpu["system_s_per_gb"] * scale}


def middle(figures: list[Figure], name: str) -> Figure:
    """The medians of several figures, as one; the way is the last one's."""
    found = dict(figures[-1], figure=name)
    for key in ("value", "user", "system", "p99_us"):
        known = [one[key] for one in figures if one.get(key) is not None]
        found[key] = statistics.median(known) if known else None
    return found


def first_later(figures: list[Figure]) -> list[Figure]:
    """The first pass, the median of the later ones; of a long loop the fifth pass is the last of those, and its last five are apart."""
    later, last = (figures[1:5], figures[-5:]) if len(figures) > 15 else (figures[1:], [])
    named = [(later, "later"), (last, "after many")]
    return [dict(figures[0], figure="first"), *(middle(some, name) for some, name in named if some)]


def together(figures: list[Figure], name: str) -> Figure:
    """Passes over the same bytes as one: what the sum of their times gives."""
    speed = len(figures) / sum(1 / one["value"] for one in figures)
    mean = {key: statistics.mean(one[key] for one in figures) for key in ("user", "system")}
    return {"figure": name, "unit": figures[0]["unit"], "value": speed, "way": ""} | mean


# --- tables ------------------------------------------------------------------------------------------------------


def number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def ratio(one: float | None, other: float | None) -> str:
    return f"{one / other:.2f}" if one is not None and other else "–"


def summary(records: list[dict[str, Any]]) -> dict[str, dict[str, Figure]]:
    """For each subject and figure the medians over the processes."""
    found: dict[str, dict[str, list[Figure]]] = {}
    for record in records:
        ones = found.setdefault(record["subject"], {})
        for one in record.get("figures") or []:
            ones.setdefault(one["figure"], []).append(one)
    out: dict[str, dict[str, Figure]] = {}
    for subject, figures in found.items():
        out[subject] = {}
        for name, every in figures.items():
            values = [one["value"] for one in every]
            ways = [one["way"] for one in every if one.get("way")]
            line = middle(every, name) | {"runs": len(every), "least": min(values), "most": max(values)}
            out[subject][name] = line | {"way": statistics.mode(ways) if ways else ""}
    return out


def compare(leader: Figure | None, line: Figure) -> list[str]:
    """The first subject beside another one: how many times better, and its user CPU and all CPU as parts of the other's."""
    if leader is None or leader is line:
        return ["", "", ""]
    value, beside = (leader, line) if line["unit"] in RATES else (line, leader)
    cpu = "–" if line["user"] is None else ratio(leader["user"] + leader["system"], line["user"] + line["system"])
    return [ratio(value["value"], beside["value"]), ratio(leader["user"], line["user"]), cpu]


HEAD = ["figure", "subject", "runs", "median", "range", "p99 µs", "user", "system", "÷ it", "user ÷", "CPU ÷", "way"]


def print_tables(path: Path, about: dict[str, str]) -> None:
    """The tables of a file of records: of all its runs together."""
    with open(path, encoding="utf-8") as file:
        records = [record for record in map(json.loads, file) if "row" in record]
    records.sort(key=lambda record: list(about).index(record["row"]) if record["row"] in about else len(about))
    for row, of_row in itertools.groupby(records, key=lambda record: record["row"]):
        print(f"\n## {row}: {about.get(row, '')}")
        cases: dict[str, list[dict[str, Any]]] = {}
        for record in of_row:
            cases.setdefault(record["case"], []).append(record)
        for case, found in cases.items():
            print_case(case, found)


def print_case(case: str, records: list[dict[str, Any]]) -> None:
    subjects = summary(records)
    leader = next(iter(subjects.values()))
    rows = []
    names = list(dict.fromkeys(name for figures in subjects.values() for name in figures))
    for name in names:
        for subject, figures in subjects.items():
            if name not in figures:
                continue
            line = figures[name]
            span = f"{number(line['least'])} to {number(line['most'])}"
            value = f"{number(line['value'])} {line['unit']}"
            cells = [
                name,
                subject,
                str(line["runs"]),
                value,
                span,
                number(line["p99_us"]),
                number(line["user"]),
                number(line["system"]),
            ]
            rows.append([*cells, *compare(leader.get(name), line), line["way"]])
    state = next((record["state"] for record in records if record.get("state")), "")
    print(f"\n{case}{f' {json.dumps(state)}' if state else ''}")
    if rows:
        widths = [max(len(row[i]) for row in [HEAD, *rows]) for i in range(len(HEAD))]
        for row in [HEAD, ["-" * width for width in widths], *rows]:
            print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
    for word in ("skipped", "failed"):
        for why in dict.fromkeys(f"{record['subject']}: {record[word]}" for record in records if word in record):
            print(f"- {word}: {why[:300]}")
    sys.stdout.flush()
