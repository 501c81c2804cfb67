#!/usr/bin/env python3
"""What order behind the default streams costs: forebay's libcufile with it and without, and another libcufile.

    bench/order.py --bench target/release/examples/cufile_bench --ours target/release/libcufile.so \\
        [--theirs libcufile.so.0] --file FILE [--size 2G] [--secs 0.6] [--passes 5] [--repeat 5] [--json OUT] [ROW ...]

Warm file. Rows: 4K, 64K, 1M and 16M reads by 1 to 16 threads, batches, the same beside a thread that keeps the legacy
default stream full (busy). The subjects alternate; figures are medians of REPEAT fresh processes. A process makes PASSES
passes of SECS seconds: the first reads from the page cache, the last in place, where pages are registered by then.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROWS = {
    "4K x 1": ["--io", "4K", "--random", "--threads", "1"],
    "4K x 4": ["--io", "4K", "--random", "--threads", "4"],
    "4K x 8": ["--io", "4K", "--random", "--threads", "8"],
    "4K x 16": ["--io", "4K", "--random", "--threads", "16"],
    "64K x 16": ["--io", "64K", "--random", "--threads", "16"],
    "1M x 16": ["--io", "1M", "--threads", "16"],
    "16M x 1": ["--io", "16M", "--threads", "1"],
    "batch 128 x 4K": ["--api", "batch", "--io", "4K", "--random", "--batch", "128", "--inflight", "1"],
    "busy, 4K x 1": ["--io", "4K", "--random", "--threads", "1", "--busy"],
    "busy, 4K x 16": ["--io", "4K", "--random", "--threads", "16", "--busy"],
    "busy, 1M x 16": ["--io", "1M", "--threads", "16", "--busy"],
}


def run(command: list[str], environment: dict[str, str]) -> dict | None:
    done = subprocess.run(
        ["timeout", "-s", "KILL", "60", *command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    reports = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not reports:
        print(f"   failed ({done.returncode}): {done.stderr.strip()[-300:]}", file=sys.stderr)
        return None
    return json.loads(reports[-1])


def environment_of(library: str, file: str) -> dict[str, str]:
    said = subprocess.run(
        [HERE / "nvidia-libcufile.sh", Path(library).parent, file], capture_output=True, text=True, check=True
    )
    words = [line.removeprefix("export ") for line in said.stdout.splitlines() if line.startswith("export ")]
    return dict(word.split("=", 1) for word in words)


def middle(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--ours", required=True)
    parser.add_argument("--theirs")
    parser.add_argument("--file", required=True)
    parser.add_argument("--size", default="2G")
    parser.add_argument("--secs", default="0.6")
    parser.add_argument("--passes", default="5")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("rows", nargs="*", metavar="ROW")
    options = parser.parse_args()
    subprocess.run([options.bench, "--file", options.file, "--make", "--size", options.size], check=True)
    ours = str(Path(options.ours).resolve())
    subjects = {"ordered": (ours, {}), "none": (ours, {"FOREBAY_ORDER": "none"})}
    if options.theirs:
        theirs = str(Path(options.theirs).resolve())
        subjects["theirs"] = (theirs, environment_of(theirs, options.file))
    table = []
    for row in options.rows or ROWS:
        results: dict[str, list] = {name: [] for name in subjects}
        for repeat in range(options.repeat):
            for name, (library, environment) in subjects.items():
                command = [options.bench, "--lib", library, "--file", options.file, "--size", options.size]
                command += ["--warm", "--secs", options.secs, "--passes", options.passes, *ROWS[row]]
                report = run(command, environment)
                results[name].append(report)
                if options.json:
                    with open(options.json, "a") as out:
                        out.write(json.dumps({"row": row, "subject": name, "repeat": repeat, "result": report}) + "\n")
        table.append(f"{row:<16}")
        for name, reports in results.items():
            figures = []
            for which in (0, -1):
                passes = [report["passes"][which] for report in reports if report]
                iops, rate, cpu = (middle([one[key] for one in passes]) for key in ("iops", "gb_per_s", "cpu_s_per_gb"))
                p99 = middle([one["latency_us"]["p99"] for one in passes])
                figures.append(f"{(iops or 0) / 1e3:7.1f} K {rate or 0:5.2f} GB/s {cpu or 0:6.3f} s/GB p99 {p99 or 0:6.0f} us")
            busy = middle([(report or {}).get("busy_per_s") for report in reports])
            figures += [f"busy {busy:7.0f}/s"] if busy else []
            table.append(f"    {name:<8}" + "  |  ".join(figures))
        print("\n".join(table[-len(subjects) - 1 :]), flush=True)


if __name__ == "__main__":
    main()
