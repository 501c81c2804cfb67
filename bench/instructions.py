#!/usr/bin/env python3
"""Instructions per 4 KiB operation of the engines p2p and staged, counted by callgrind.

    bench/instructions.py [--check]     with --check it fails if p2p costs more than staged without its copies

Both move the same pieces by O_DIRECT between a file and memory that behaves as a PCI BAR. Only what the process itself
executes is counted, and start-up is left out: two runs of different length are compared.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
FORMS = ("read", "write", "batch")
ENGINES = ("p2p", "staged")
#: Operations of the two runs: whole batches.
SHORT, LONG = 1024, 3072
#: A run takes some seconds.
PATIENCE, TRIES = 60, 8
#: What the CPU does in place of a device's copy engine.
COPIES = re.compile(r"HostStream as .*Stream>::(copy_in|copy_out|scatter)\b")


def build() -> Path:
    """The example that does the operations."""
    cargo = str(ROOT / ".ci/cargo")
    line = [cargo, "build", "--release", "-p", "forebay-engine", "--example", "submit_cost"]
    # Names tell copies from the rest.
    environment = os.environ | {"CARGO_PROFILE_RELEASE_DEBUG": "line-tables-only", "CARGO_PROFILE_RELEASE_STRIP": "none"}
    subprocess.run(line, cwd=ROOT, check=True, env=environment)
    return TARGET / "release/examples/submit_cost"


def count(program: Path, engine: str, form: str, operations: int, folder: Path) -> tuple[int, int]:
    """Instructions of a run, and those among them that copied."""
    out = folder / "callgrind.out"
    line = ["valgrind", "--tool=callgrind", "--quiet", f"--callgrind-out-file={out}"]
    line += [str(program), engine, form, str(operations), str(folder / "file")]
    # valgrind lets no other thread run while one waits for a ring, so that nobody may be there to wake it.
    for _ in range(TRIES):
        try:
            ended = subprocess.run(line, capture_output=True, text=True, check=False, timeout=PATIENCE)
            break
        except subprocess.TimeoutExpired:
            continue
    else:
        sys.exit(f"error: {' '.join(line)} did not end")
    if ended.returncode != 0:
        sys.exit(f"error: {' '.join(line)} failed\n{ended.stderr}")
    annotate = ["callgrind_annotate", "--inclusive=yes", "--threshold=100", str(out)]
    text = subprocess.run(annotate, capture_output=True, text=True, check=True).stdout
    total = 0
    copies: dict[str, int] = {}
    for row in text.splitlines():
        found = re.match(r"\s*([\d,]+) +\([^)]*\) +(.*)", row)
        if not found:
            continue
        value = int(found[1].replace(",", ""))
        if "PROGRAM TOTALS" in found[2]:
            total = value
        elif copy := COPIES.search(found[2]):
            # A row for each source file that was inlined, each with what is below it.
            copies[copy[1]] = max(value, copies.get(copy[1], 0))
    return total, sum(copies.values())


def measure(program: Path, engine: str, form: str, folder: Path) -> tuple[float, float]:
    """Instructions per operation, and of copies."""
    short = count(program, engine, form, SHORT, folder)
    long = count(program, engine, form, LONG, folder)
    each = LONG - SHORT
    return (long[0] - short[0]) / each, (long[1] - short[1]) / each


def main() -> int:
    parser = argparse.ArgumentParser(description="Instructions per 4 KiB operation of p2p and staged.")
    parser.add_argument("--check", action="store_true", help="fail if p2p costs more than staged without its copies")
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        print("skipped: valgrind is not installed (apt install valgrind)")
        return 0
    program = build()
    worse = 0
    print("| form | p2p | staged without copies | copies of staged |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=TARGET) as name:
        folder = Path(name)
        (folder / "file").write_bytes(os.urandom(16 << 20))
        for form in FORMS:
            figures = {engine: measure(program, engine, form, folder) for engine in ENGINES}
            p2p, (staged, copies) = figures["p2p"][0], figures["staged"]
            print(f"| {form} | {p2p:.0f} | {staged - copies:.0f} | {copies:.0f} |", flush=True)
            worse += p2p > staged - copies
    if worse and options.check:
        sys.exit(f"error: p2p costs more than staged without its copies in {worse} of {len(FORMS)} forms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
