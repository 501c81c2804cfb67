#!/usr/bin/env python3
"""First touch and small I/O: forebay beside peers, each measurement a fresh process, subjects alternating.

    bench/first_touch.py ROW… --out F.jsonl [--forebay NAME=DIR,…] [--peers A,B] [--repeat N] [--size BYTES]
    bench/first_touch.py --out F.jsonl                  the tables of what was measured

Every measurement is a line of F.jsonl as soon as it is done; a second call with other rows adds to the file, and tables
are of all that is in it. DIR holds `forebay`, `libcufile.so`, `cufile_bench` (or `examples/cufile_bench`) and `python/`
(the unpacked wheel; otherwise the interpreter's own forebay runs). Of several builds each takes its turn; the first one's
`cufile_bench` drives all libraries. Each process has an empty XDG_CACHE_HOME: older builds keep a profile there. The state of
the page cache is made once (for loads anew each time: the first readers of a file pay for its pages), and checked before each
measurement; `folio_kib` is the mean size of the file's folios. A subject that cannot run prints why.

Columns: medians over the processes, their range, CPU by user and system (s/GB; µs for an operation where the value is IOPS); how
many times better the first subject is than this one, its user CPU and all CPU as parts of this one's; the way that the
receipt named.
Rows, and their requirements:
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parent / "python"))

from rows import models, programs
from rows.common import Bench, Failed, Skip, print_tables

ROWS = {
    "loads": models.loads,
    "kvikio": models.kvikio,
    "repeats": models.repeats,
    "cufile": programs.cufile,
    "staged": programs.staged,
    "small": programs.small,
    "pinned-cpu": programs.pinned_cpu,
    "cold": programs.cold,
    "cold-large": programs.cold_large,
    "writes": programs.writes,
    "tensors": models.tensors,
    "step": programs.step,
    "start": models.start,
    "order": programs.order,
    "calls": programs.calls,
}
ABOUT = {name: " ".join((row.__doc__ or "").split()) for name, row in ROWS.items()}
HERE = Path(__file__).resolve().parent


def parse_size(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1].upper()] if text[-1:].upper() in units else int(text)


def parse_builds(text: str) -> dict[str, Path]:
    """`DIR` is named forebay, `NAME=DIR` as it says."""
    pairs = [word.split("=", 1) if "=" in word else ["forebay", word] for word in text.split(",")]
    return {name: Path(folder).resolve() for name, folder in pairs}


def main() -> None:
    rows = "\n".join(f"    {name:<11} {text}" for name, text in ABOUT.items())
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\n{rows}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help="or all")
    parser.add_argument("--out", required=True, type=Path, help="the file of records; lines are added")
    parser.add_argument("--forebay", type=parse_builds, default=str(HERE.parent / "target/release"))
    parser.add_argument(
        "--peers",
        type=lambda text: text.split(","),
        help="only these (instanttensor-mmap, posix, nvidia, bare, off, fio, …)",
    )
    parser.add_argument("--cases", type=lambda text: text.split(","), default=[], help="only cases that contain one")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--size", type=parse_size, help="bytes of the file, instead of the row's own")
    parser.add_argument(
        "--secs", type=float, default=0.5, help="of a timed pass (of forebay bench and fio: whole seconds)"
    )
    parser.add_argument("--minutes", type=float, default=9, help="no measurement begins later than this")
    parser.add_argument("--scratch", type=Path, default=Path("first-touch"), help="a folder on the disk; files stay")
    parser.add_argument("--device", default="cuda:0", help="of loads; cpu to try them")
    parser.add_argument("--fio", default=str(HERE / "bin/fio"))
    parser.add_argument("--nvidia", help="NVIDIA's libcufile.so.0 (default: the wheel nvidia-cufile)")
    options = parser.parse_args()
    if unknown := set(options.rows) - {*ROWS, "all"}:
        parser.error(f"no such row: {', '.join(unknown)} (there are {', '.join(ROWS)})")
    if not options.rows and not options.out.exists():
        parser.error(f"name rows to measure: there is no {options.out}")
    options.scratch.mkdir(parents=True, exist_ok=True)
    bench = Bench(
        folder=options.scratch.resolve(),
        builds=options.forebay,
        peers=options.peers,
        repeat=options.repeat,
        size=options.size,
        secs=options.secs,
        device=options.device,
        fio=options.fio,
        nvidia=options.nvidia,
        cases=options.cases,
        deadline=time.monotonic() + options.minutes * 60,
        out=options.out,
    )
    for name in ROWS if "all" in options.rows else options.rows:
        begun = time.monotonic()
        try:
            ROWS[name](bench)
        except (Skip, Failed) as error:
            print(f"   {name}: {error}", file=sys.stderr)
            bench.add({"row": name, "case": "", "subject": "all", "failed": str(error)})
        print(f"== {name}: {time.monotonic() - begun:.0f} s", flush=True)
    print_tables(options.out, ABOUT)


if __name__ == "__main__":
    main()
