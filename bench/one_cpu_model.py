#!/usr/bin/env python3
"""CPU time of small reads on one CPU without a GPU: forebay's callers beside bare mailboxes, over the software GPU on another CPU.

    bench/one_cpu_model.py [--repeat 3] [--secs 5] [--cpus 0,1] [--scratch DIR] [--forebay FILE …]

Both read 4 KiB pieces at random by O_DIRECT with 4 threads, in turns. The figure is the CPU time of the program's own threads, by
/proc/PID/task: the software GPU's are left out. It shows what forebay's code costs, and what a change of it brings; the copies of a GPU take
another time. The kernel counts user time by ticks: runs of some seconds, and medians. Needs, all as release builds: the command,
`cargo build --release -p fake-cuda -p forebay-cli` and `-p forebay-engine --example resident`.

Exit codes: 0; 1 for a program that failed; 3, with the reason, where something is missing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RELEASE = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve() / "release"
THREADS, GIB = 4, 1 << 30
TICKS = os.sysconf("SC_CLK_TCK")
#: User and system seconds, switches that a thread asked for and others.
Times = tuple[float, float, int, int]


def thread_times(pid: int) -> dict[int, Times]:
    """Of each of the program's threads that does not do the software GPU's work."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name, _, rest = (task / "stat").read_text().rpartition(")")
            switches = re.findall(r"ctxt_switches:\s+(\d+)", (task / "status").read_text())
        except OSError:
            continue  # It has ended.
        if "(fake-" not in name:
            fields = rest.split()
            found[int(task.name)] = (int(fields[11]) / TICKS, int(fields[12]) / TICKS, *map(int, switches))
    return found


def measure(command: list[str], cpus: list[int], folder: str, secs: float) -> tuple[float, Times]:
    """Operations a second by the program's own words, and its threads' times for each, over `secs` of its run."""
    os.makedirs(f"{folder}/lib", exist_ok=True)
    library = Path(folder, "lib", "libcuda.so.1")
    if not library.exists():
        library.symlink_to(RELEASE / "libfake_cuda.so")
    # Older builds keep a profile there.
    cache = Path(folder, "cache")
    shutil.rmtree(cache, ignore_errors=True)
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(cache),
        "LD_LIBRARY_PATH": f"{folder}/lib",
        "FAKE_CUDA_CPU": str(cpus[1]),
    }
    program = subprocess.Popen(
        ["taskset", "-c", str(cpus[0]), *command],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        # Its callers: a file is made before there are any.
        while len(thread_times(program.pid)) <= THREADS:
            if program.poll() is not None:
                raise SystemExit(f"error: {command[0]} ended early: {program.stdout.read() if program.stdout else ''}")
            time.sleep(0.1)
        time.sleep(0.5)
        begun, before = time.monotonic(), thread_times(program.pid)
        time.sleep(secs)
        took, after = time.monotonic() - begun, thread_times(program.pid)
        rate = rate_of(program)
    finally:
        program.kill()
        program.wait()
        # The bare program's file.
        for left in Path(folder).glob("forebay-bare-*"):
            left.unlink()
    spent = [
        [late - early for late, early in zip(after[task], before[task], strict=True)]
        for task in after
        if task in before
    ]
    total = [sum(column) / (rate * took) for column in zip(*spent, strict=True)]
    return rate, (total[0], total[1], total[2], total[3])


def rate_of(program: subprocess.Popen[str]) -> float:
    """From the first line that has one."""
    for line in program.stdout or ():
        if found := re.search(r"([\d.]+) (K/s|IOPS)", line):
            return float(found[1]) * (1000 if found[2] == "K/s" else 1)
    raise SystemExit("error: the program told no rate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--secs", type=float, default=5)
    parser.add_argument("--cpus", default="0,1", help="the program's CPU, and the software GPU's")
    parser.add_argument("--scratch", help="a folder on a disk that takes O_DIRECT (default: a temporary one)")
    parser.add_argument(
        "--forebay", nargs="*", type=Path, default=[RELEASE / "forebay"], help="builds of the command to compare"
    )
    options = parser.parse_args()
    cpus = [int(cpu) for cpu in options.cpus.split(",")]
    bare = RELEASE / "examples" / "resident"
    missing = [str(path) for path in (RELEASE / "libfake_cuda.so", bare, *options.forebay) if not path.exists()]
    missing += [] if shutil.which("taskset") else ["taskset (util-linux)"]
    if missing or len(set(cpus) & os.sched_getaffinity(0)) < 2:
        print(f"skipped: {'missing: ' + ', '.join(missing) if missing else 'needs two CPUs'}", file=sys.stderr)
        sys.exit(3)
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        path = Path(folder, "file")
        with path.open("wb") as file:
            for _ in range(GIB >> 20):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
        run = str(int(options.secs) + 3)
        flags = f"-d 0 -s {GIB} -w {THREADS} -i 4K -x 0 -I 2 -T {run} --cache bypass --drop-cache".split()
        subjects = {str(build): [str(build), "bench", "-f", str(path), *flags] for build in options.forebay}
        subjects["bare mailboxes"] = [str(bare), "--bare", "--direct", folder, "--seconds", run]
        found: dict[str, list[tuple[float, Times]]] = {name: [] for name in subjects}
        for _ in range(options.repeat):
            for name, command in subjects.items():
                found[name].append(measure(command, cpus, folder, options.secs))
    print("K IOPS   user µs  system µs  switches asked for, others; a read")
    for name, results in found.items():
        user, system, asked, others = (statistics.median(times[i] for _, times in results) for i in range(4))
        rate = statistics.median(rate for rate, _ in results) / 1e3
        print(f"{rate:6.1f}   {user * 1e6:7.2f}  {system * 1e6:9.2f}  {asked:.2f}, {others:.2f}   {name}")


if __name__ == "__main__":
    main()
