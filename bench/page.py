#!/usr/bin/env python3
"""Writes docs/benchmarks.md and its charts from the records of bench/release.sh.

    bench/page.py FOLDER… [--out docs/benchmarks.md]        FOLDER: what bench/release.sh wrote on one machine
    bench/page.py FOLDER… --check                           fails if the page has other figures

Every figure is the median over the processes of a row. A row stands in the page only if a machine measured it; a row whose ratio
is less than 1 is printed with the ratio in bold.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from charts import Bar, draw
from page_rows import INTRO, OUTRO, TABLES, Row, Table

ROOT = Path(__file__).resolve().parents[1]
Record = dict[str, Any]


@dataclass
class Value:
    """The median of a subject's processes: the rate, and CPU time in s/GB or µs for an operation."""

    rate: float
    cpu: float | None
    runs: int


class Machine:
    """The records of one machine."""

    def __init__(self, folder: Path) -> None:
        self.facts: Record = json.loads((folder / "machine.json").read_text())
        self.records: dict[str, list[Record]] = {}
        for path in sorted(folder.glob("*.jsonl")):
            self.records[path.stem] = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        nfs = folder / "nfs.json"
        self.records["nfs"] = json.loads(nfs.read_text())["values"] if nfs.exists() else []

    @property
    def card(self) -> str:
        return str(self.facts["gpu"]).removeprefix("NVIDIA ").split()[0]

    def value(self, source: str, row: Row, subject: str) -> Value | None:
        """The median of a subject in a row; None if it was not measured."""
        pairs = list(READERS[source](self.records.get(source, []), row, subject))
        if not pairs:
            return None
        cpus = [cpu for _, cpu in pairs if cpu is not None]
        rate = statistics.median(rate for rate, _ in pairs)
        return Value(rate, statistics.median(cpus) if cpus else None, len(pairs))


#: Bytes of a gathered piece: s/GB to µs a piece.
PIECE = 4096
Pairs = Iterator[tuple[float, float | None]]


def from_first_touch(records: list[Record], row: Row, subject: str) -> Pairs:
    for record in records:
        if (record.get("row"), record.get("case"), record["subject"]) == (row.row, row.case, subject):
            for figure in record.get("figures") or []:
                if figure["figure"] == row.figure:
                    known = figure.get("user") is not None
                    yield figure["value"], figure["user"] + figure["system"] if known else None


def from_training(records: list[Record], row: Row, subject: str) -> Pairs:
    for record in records:
        if (record.get("row"), record["subject"]) == (row.case, subject) and record.get(row.figure) is not None:
            yield record[row.figure] * row.scale, record.get("cpu_us_per_record")


def from_save(records: list[Record], row: Row, subject: str) -> Pairs:
    for record in records:
        is_tmpfs = str(record.get("folder", "")).startswith("/dev/shm")
        if is_tmpfs == (row.case == "tmpfs") and subject in (record.get("peer"), record.get("work")):
            yield record["gb_per_s"], record.get("cpu_s_per_gb")


def from_gather(records: list[Record], row: Row, subject: str) -> Pairs:
    peer, _, offsets = subject.partition(" ")
    for record in records:
        if record.get("peer") == peer and (not offsets or record.get("offsets") == offsets):
            yield record["pieces_per_s"] * row.scale, record["cpu_s_per_gb"] * PIECE * 1e-3


def from_nfs(records: list[Record], row: Row, subject: str) -> Pairs:
    for record in records:
        if (str(record["connections"]), record["by"]) == (row.case, subject):
            yield record["gb_per_s"], record["cpu_s_per_gb"]


READERS: dict[str, Callable[[list[Record], Row, str], Pairs]] = {
    "first_touch": from_first_touch,
    "training": from_training,
    "save": from_save,
    "gather": from_gather,
    "nfs": from_nfs,
}


def number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 1000 else f"{value:.3g}"


@dataclass
class Line:
    """A row of a table on one machine."""

    row: Row
    card: str
    ours: Value
    peer: Value | None
    ceiling: Value | None

    def ratio(self) -> float | None:
        if self.peer is None:
            return None
        return self.ours.rate / self.peer.rate

    def cells(self) -> list[str]:
        ratio, peer = self.ratio(), self.peer
        shown = "–" if ratio is None else f"{ratio:.2f}" if ratio >= 1 else f"**{ratio:.2f}**"
        ceiling = "–" if self.ceiling is None else f"{number(self.ceiling.rate)} ({self.row.ceiling_name})"
        return [
            self.row.work, f"{self.card} × {self.ours.runs}", self.row.unit, number(self.ours.rate),
            f"{number(peer.rate)} ({self.row.peer_name})" if peer else "–", shown,
            number(self.ours.cpu), number(peer.cpu if peer else None), ceiling,
        ]  # fmt: skip


def lines(table: Table, machines: list[Machine]) -> list[Line]:
    found = []
    for row in table.rows:
        for machine in machines:
            ours = machine.value(row.source, row, row.ours)
            if ours is None:
                continue
            peer = machine.value(row.source, row, row.peer) if row.peer else None
            ceiling = machine.value(row.source, row, row.ceiling) if row.ceiling else None
            found.append(Line(row, machine.card, ours, peer, ceiling))
    return found


HEAD = ["work", "card × runs", "unit", "forebay", "best peer", "ratio", "CPU", "peer's CPU", "ceiling"]


def markdown(table: Table, found: list[Line]) -> list[str]:
    out = [f"## {table.title}", "", f"![{table.title}: {table.chart}](benchmarks/{table.name}.svg)", ""]
    out += [f"{table.words} `bench/release.sh BUILD OUT {table.part}`", ""]
    out += ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    out += ["| " + " | ".join(line.cells()) + " |" for line in found]
    return [*out, ""]


def chart(table: Table, found: list[Line]) -> str:
    """Rates where all rows have one unit; else the ratios to the peers."""
    bars = []
    for line in (one for one in found if one.row.is_drawn):
        label = f"{line.row.short or line.row.work}, {line.card}"
        if table.in_ratios:
            ratio = line.ratio()
            if ratio is not None:
                bars.append(Bar(label, [("ratio to the peer", ratio)]))
        else:
            peers = [(line.row.peer_name, line.peer.rate)] if line.peer else []
            bars.append(Bar(label, [("forebay", line.ours.rate), *peers]))
    unit = "times the peer's rate" if table.in_ratios else found[0].row.unit
    return draw(f"{table.title}: {table.chart}", unit, bars, mark=1.0 if table.in_ratios else None)


def head(machines: list[Machine]) -> list[str]:
    out = ["| card | date | commit | driver | CPUs | kernel |", "|---|---|---|---|---|---|"]
    for machine in machines:
        facts = machine.facts
        cells = [machine.card, facts["date"], facts["commit"], facts["driver"], str(facts["cpus"]), facts["kernel"]]
        out.append(f"| {' | '.join(cells)} |")
    return [*out, ""]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/benchmarks.md")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    machines = [Machine(folder) for folder in options.folders]
    text, charts = [*INTRO, "", *head(machines)], {}
    for table in TABLES:
        found = lines(table, machines)
        if found:
            text += markdown(table, found)
            charts[table.name] = chart(table, found)
    page = "\n".join([*text, *OUTRO]) + "\n"
    if options.check:
        if options.out.read_text() != page:
            print(f"error: {options.out} has other figures than these records\nhint: bench/page.py", file=sys.stderr)
            return 1
        return 0
    options.out.write_text(page)
    for name, drawn in charts.items():
        (options.out.parent / "benchmarks" / f"{name}.svg").write_text(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
