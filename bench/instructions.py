#!/usr/bin/env python3
"""Instructions per operation over host memory, the software GPU and memory that behaves as a PCI BAR, by callgrind.

    bench/instructions.py [ROW …] [--json FILE] [--against FILE [--most 1.02]]
    bench/instructions.py --check       fails if p2p costs more than staged without its copies, or placed bytes cost any

Start-up is left out: two runs of different length are compared. What the software GPU executes, and the kernel, is not
counted. Waits sleep rather than poll (`FOREBAY_OBJECTIVE=cpu`); the remaining effect of the clock is in the spread of some runs, of
which the least counts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
K, M = 1 << 10, 1 << 20
#: The software GPU's memory can be registered with a NIC.
RDMA = {"FOREBAY_ENGINE": "placed", "FAKE_CUDA_ATTRIBUTES": "124=1"}
#: Memory, form, bytes, operations of the shorter run (whole batches), variables.
ROWS: dict[str, tuple[str, str, int, int, dict[str, str]]] = {
    "noop read": ("host", "read", 4 * K, 2048, {"FOREBAY_ENGINE": "noop"}),
    "noop batch": ("gpu", "batch", 4 * K, 2048, {"FOREBAY_ENGINE": "noop"}),
    "host read": ("host", "read", 4 * K, 2048, {}),
    "host write": ("host", "write", 4 * K, 2048, {}),
    "host batch": ("host", "batch", 4 * K, 2048, {}),
    "gpu read": ("gpu", "read", 4 * K, 2048, {"FOREBAY_ENGINE": "staged"}),
    "gpu read, direct": ("gpu", "read", 4 * K, 1024, {"FOREBAY_ENGINE": "staged", "FOREBAY_CACHE": "bypass"}),
    "gpu write": ("gpu", "write", 4 * K, 2048, {"FOREBAY_ENGINE": "staged"}),
    "gpu submit": ("gpu", "submit", 4 * K, 1024, {"FOREBAY_ENGINE": "staged"}),
    "gpu batch": ("gpu", "batch", 4 * K, 2048, {"FOREBAY_ENGINE": "staged"}),
    "gpu batch, direct": ("gpu", "batch", 4 * K, 1024, {"FOREBAY_ENGINE": "staged", "FOREBAY_CACHE": "bypass"}),
    "gpu read 16M": ("gpu", "read", 16 * M, 4, {"FOREBAY_ENGINE": "staged"}),
    "gpu read 16M, direct": ("gpu", "read", 16 * M, 4, {"FOREBAY_ENGINE": "staged", "FOREBAY_CACHE": "bypass"}),
    "gpu read 16M, mapped": ("gpu", "read", 16 * M, 4, {"FOREBAY_ENGINE": "mapped"}),
    "gpu batch, mapped": ("gpu", "batch", 4 * K, 4096, {"FOREBAY_ENGINE": "mapped"}),
    "gpu stream": ("gpu", "stream", 4 * K, 512, {"FOREBAY_ENGINE": "staged"}),
    "nfs placed 64K": ("placed", "read", 64 * K, 64, {}),
    "nfs placed 1M": ("placed", "read", M, 64, {}),
    "nfs placed 16M": ("placed", "read", 16 * M, 8, {}),
    "nfs rdma 1M": ("rdma", "read", M, 64, RDMA),
    "nfs rdma 16M": ("rdma", "read", 16 * M, 8, RDMA),
    "nfs client 1M": ("client", "read", M, 64, {}),
    "nfs client 1M, registered": ("client", "registered", M, 64, {}),
    **{
        f"nfs {form} {size >> 20}M": ("calls", form, size, count, {})
        for form in ("start", "place", "bare")
        for size, count in ((M, 32), (16 * M, 2))
    },
    "nfs placed write 1M": ("placed", "write", M, 32, {}),
    "cufile read": ("cufile", "read", 4 * K, 2048, {}),
    "cufile write": ("cufile", "write", 4 * K, 2048, {}),
    **{
        f"{engine} {form}": ("bar", form, 4 * K, 1024, {"FOREBAY_ENGINE": engine, "FOREBAY_CACHE": "bypass"})
        for form in ("read", "write", "batch")
        for engine in ("p2p", "staged")
    },
}
#: Rows whose bytes a server in the process places: counted by thread.
ON_SERVER = ("placed", "rdma", "client", "calls")
#: To valgrind `rep movsb` is an instruction for each byte: the server's copies of 16 MiB would take it a second, in which
#: registrations are given up as unused.
NO_REP = {"GLIBC_TUNABLES": "glibc.cpu.x86_rep_movsb_threshold=0x7fffffff"}
#: Asked of each further call of 1 MiB in a transfer.
CALL_MOST = 1500
#: The longer run has so many times the operations.
LONGER = 3
RUNS = 3
#: A run takes some seconds.
PATIENCE, TRIES = 90, 4
#: What the CPU does in place of a device's copy engine.
COPIES = re.compile(r"HostStream as .*Stream>::(copy_in|copy_out|scatter)\b")
#: Nor is what it has the C library do.
UNCOUNTED, LIBC = "libfake_cuda.so", re.compile(r"/libc\.so")
#: Functions of the fabric and of the software GPU in the process, which stand for cards and their drivers; what counters do
#: once a second, of which valgrind makes many; and threads of the server there.
FABRIC = re.compile(
    r"^(<|core::ptr::drop_in_place<)?fake_(verbs|cuda)::|^cu[A-Z]\w+$"
    r"|^forebay_stats::layout::CounterRegion<.*>::(write_)?sums"
)
SERVER = re.compile(
    r"^fn=\(\d+\) .*(fake_nfs::(serve|rdma)::.*(serve|accept|answer|\{\{closure)|FakeIncoming as|FakeListener as)"
    # A name stands where it comes up first, which is in a call if the thread was still in it at the end.
    r"|^cfn=\(\d+\) (fake_nfs::(rdma|serve)::serve$|<fake_verbs::.*FakeListener as .*>::next)",
    re.M,
)
#: valgrind gives a thread the number of one that has ended, and both the same file: a lane that has that of a thread of the server counts.
OURS = re.compile(r"^fn=\(\d+\) <?(forebay_(engine|nfs::network::wire)|nfs_calls)::", re.M)


def build() -> None:
    """The example, and the libraries that it loads."""
    # Names distinguish copies from the rest.
    environment = os.environ | {
        "CARGO_PROFILE_RELEASE_DEBUG": "line-tables-only",
        "CARGO_PROFILE_RELEASE_STRIP": "none",
    }
    for what in (
        ["-p", "fake-cuda", "-p", "forebay-cufile"],
        ["-p", "forebay-nfs", "--example", "operations", "--example", "nfs_calls"],
    ):
        line = [str(ROOT / ".ci/cargo"), "build", "--quiet", "--release", *what]
        subprocess.run(line, cwd=ROOT, check=True, env=environment)


def parse(profile: Path) -> tuple[int, int]:
    """Instructions outside the software GPU, and those of copies (with all that they call)."""
    names: dict[tuple[str, str], str] = {}

    def name(space: str, text: str) -> str:
        number, _, rest = text.partition(" ")
        if rest:
            names[space, number] = rest
        return names.get((space, number), text)

    total = copies = 0
    counted, is_call = True, False
    called = elsewhere = ""
    for line in profile.read_text().splitlines():
        key, _, value = line.partition("=")
        if key == "ob":
            counted = not name("ob", value).endswith(UNCOUNTED)
        elif key == "cob":
            elsewhere = name("ob", value)
        elif key in ("fn", "cfn"):
            found = name("fn", value)
            called = found if key == "cfn" else called
        elif key == "calls":
            is_call = True
        elif line[:1].isdigit() or line[:1] in ("+", "-", "*"):
            cost = int(line.split()[1])
            if not is_call:
                total += cost * counted
            elif COPIES.search(called):
                copies += cost
            elif not counted and LIBC.search(elsewhere):
                total -= cost
            is_call, elsewhere = False, ("" if is_call else elsewhere)
    return total, copies


def parse_placed(folder: Path) -> tuple[int, int]:
    """Instructions of all threads but the server's, without those of the fabric and of what it calls."""
    total = 0
    for profile in folder.glob("callgrind.out-*"):
        text = profile.read_text()
        profile.unlink()
        if SERVER.search(text) and not OURS.search(text):
            continue
        names: dict[str, str] = {}
        is_fabric = is_call = False
        called = ""
        for line in text.splitlines():
            key, _, value = line.partition("=")
            if key in ("fn", "cfn"):
                number, _, name = value.partition(" ")
                if name:
                    names[number] = name
                found = names.get(number, value)
                if key == "cfn":
                    called = found
                else:
                    is_fabric = bool(FABRIC.search(found))
            elif key == "calls":
                is_call = True
            elif line[:1].isdigit() or line[:1] in ("+", "-", "*"):
                cost = int(line.split()[1])
                if not is_call:
                    total += cost * (not is_fabric)
                elif is_fabric and not FABRIC.search(called):
                    total -= cost
                is_call = False
    return total, 0


def count(row: str, times: int, folder: Path) -> tuple[int, int]:
    """Instructions of one run, and those among them that copied."""
    memory, form, size, operations, variables = ROWS[row]
    out = folder / "callgrind.out"
    line = ["valgrind", "--tool=callgrind", "--quiet", f"--callgrind-out-file={out}"]
    line += ["--separate-threads=yes"] * (memory in ON_SERVER)
    calls, operation = (str(TARGET / f"release/examples/{name}") for name in ("nfs_calls", "operations"))
    line += [calls] if memory == "calls" else [operation, memory]
    line += [
        form,
        str(size),
        str(operations * times),
        str(folder / ("written" if form == "write" else "read")),
    ]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "CUFILE_"))}
    libraries = {
        "FOREBAY_LIBCUDA": str(TARGET / "release/libfake_cuda.so"),
        "LIBCUFILE": str(TARGET / "release/libcufile.so"),
    }
    strict = {"FOREBAY_STRICT": engine} if (engine := variables.get("FOREBAY_ENGINE")) else {}
    environment = kept | libraries | {"FOREBAY_LANES": "1", "FOREBAY_OBJECTIVE": "cpu"} | strict | variables
    environment |= NO_REP if memory in ON_SERVER else {}
    # valgrind lets no other thread run while one waits for a ring, so that nobody may be there to wake it.
    for _ in range(TRIES):
        try:
            ended = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE)
            break
        except subprocess.TimeoutExpired:
            continue
    else:
        sys.exit(f"error: {row}: {' '.join(line)} did not end")
    if ended.returncode != 0:
        sys.exit(f"error: {row}: {' '.join(line)} failed\n{ended.stderr[-500:]}")
    return parse_placed(folder) if memory in ON_SERVER else parse(out)


def measure(row: str, folder: Path) -> dict[str, float]:
    """Instructions per operation, those of copies among them, and by how much runs differ."""
    each = ROWS[row][3] * (LONGER - 1)
    short, long = ([count(row, times, folder) for _ in range(RUNS)] for times in (1, LONGER))
    costs = [sorted(run[what] for run in runs) for what in (0, 1) for runs in (short, long)]
    return {
        "instructions": (costs[1][0] - costs[0][0]) / each,
        "copies": (costs[3][0] - costs[2][0]) / each,
        "spread": (costs[1][-1] - costs[1][0]) / each,
    }


def check(found: dict[str, dict[str, float]]) -> None:
    """p2p's own instructions against those of staged without what the CPU does in place of a copy engine; placed bytes."""
    for form in ("read", "write", "batch"):
        p2p, staged = found[f"p2p {form}"]["instructions"], found[f"staged {form}"]
        rest = staged["instructions"] - staged["copies"]
        print(f"{form}: p2p {p2p:.0f}, staged without copies {rest:.0f}")
        if p2p > rest:
            sys.exit(f"error: p2p costs more than staged without its copies ({form})")
    small, large = (found[f"nfs placed {size}"] for size in ("64K", "1M"))
    # A copy, or a look at them, would cost an instruction for each 32 bytes at least.
    if large["instructions"] - small["instructions"] > (M - 64 * K) / 200:
        sys.exit("error: bytes that a server places cost instructions")
    # Told, not judged: how many replies one wake brings differs from run to run.
    for kind in ("placed", "rdma", "start", "place", "bare"):
        one, many = (found[f"nfs {kind} {size}M"]["instructions"] for size in (1, 16))
        print(f"{kind}: {(many - one) / 15:.0f} for each further call of 1 MiB (asked {CALL_MOST})")


def main() -> int:
    parser = argparse.ArgumentParser(description="Instructions per operation, counted by callgrind.")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"some of: {'; '.join(ROWS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--against", type=Path, metavar="FILE", help="print ratios to the figures of such a file")
    parser.add_argument(
        "--most", type=float, default=1.02, help="the greatest ratio, beyond the spread, that is no error (1.02)"
    )
    parser.add_argument("--check", action="store_true", help="fail if p2p costs more than staged without its copies")
    options = parser.parse_args()
    if unknown := set(options.rows) - set(ROWS):
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    if not shutil.which("valgrind"):
        print("skipped: valgrind is not installed (apt install valgrind)")
        return 0
    build()
    before = json.loads(options.against.read_text())["rows"] if options.against else {}
    rows = options.rows or [row for row in ROWS if not options.check or ROWS[row][0] in ("bar", *ON_SERVER)]
    found: dict[str, dict[str, float]] = {}
    more = []
    print("| row | instructions | copies | spread | before | ratio |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=TARGET) as scratch:
        folder = Path(scratch)
        for name in ("written", "read"):
            (folder / name).write_bytes(os.urandom(64 * M))
        # Pages changed a moment ago are not read in place.
        time.sleep(1.5)
        for row in rows:
            one = found[row] = measure(row, folder)
            old, ratio = "", ""
            if row in before:
                more_by = one["instructions"] - before[row]["instructions"]
                rate = one["instructions"] / before[row]["instructions"]
                old, ratio = f"{before[row]['instructions']:.0f}", f"{rate:.3f}"
                noise = max(one["spread"], before[row]["spread"])
                more += [row] if rate > options.most and more_by > noise else []
            cells = [row, *(f"{one[what]:.0f}" for what in ("instructions", "copies", "spread")), old, ratio]
            print(f"| {' | '.join(cells)} |", flush=True)
    if options.json:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        options.json.write_text(json.dumps({"commit": commit.stdout.strip(), "rows": found}, indent=1) + "\n")
    if options.check:
        check(found)
    if more:
        sys.exit(f"error: more than {options.most} times the instructions: {', '.join(more)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
