#!/usr/bin/env python3
"""Loads files with every library in turn and prints a table of medians.

    bench/python/compare.py FILE... [--peers forebay,safetensors,…] [--state warm,cold] [--repeats 5] [--passes 3]
                            [--device cuda:0] [--results FILE] [--fio bench/bin/fio]

Each measurement is a process of its own (load.py, which defines the timed part). The peers take turns: each round runs
every peer once, each round beginning with another peer, so that nobody always follows the same neighbour. Columns:
`first` is the first load in a process, `again` the median of the later ones in it; GB/s are 10⁹ bytes a second; CPU is
user and system seconds of all threads per GB; `host` is the most host memory held, page cache aside (common.py says
how that is counted). --fio adds the disk's read ceiling to the cold table.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import fio
from common import Results, file_system, make_warm, number, run_worker, table
from load import PEERS


def measure(results: Results, path: str, state: str, options: argparse.Namespace) -> dict[str, str]:
    """All rounds for a file in a state. Returns why peers were left out."""
    peers, out = list(options.peers), {}
    for turn in range(options.repeats):
        for i in range(len(peers)):
            peer = peers[(turn + i) % len(peers)]
            if peer in out:
                continue
            if state == "warm":
                make_warm(path)
            arguments = ["--peer", peer, "--file", path, f"--{state}", "--device", options.device]
            arguments += ["--passes", str(options.passes), "--verify", str(options.verify)]
            arguments += ["--empty-cache"] if options.empty_cache else []
            records, reason = run_worker("load.py", arguments, options.limit)
            for record in records:
                results.add(record | {"round": turn + 1, "file_system": file_system(path)})
            if reason:
                out[peer] = reason
                print(f"{peer}: {reason}", file=sys.stderr, flush=True)
    return out


def show(results: Results, path: str, state: str, options: argparse.Namespace, out: dict[str, str]) -> None:
    rows = []
    for peer in options.peers:
        key = {"peer": peer, "file": path, "state": state}
        if results.median("seconds", **key) is None:
            rows.append([peer, *["–"] * 6, out.get(peer, "")[:60]])
            continue
        first, again = key | {"when": "first"}, key | {"when": "again"}
        rows.append([
            peer,
            number(results.median("gb_per_s", **first)),
            number(results.median("cpu_s_per_gb", **first)),
            number(results.median("gb_per_s", **again)),
            number(results.median("cpu_s_per_gb", **again)),
            number(results.median("host_peak_mib", **first), 4),
            number(results.median("host_peak_mib", **again), 4),
            out.get(peer, "")[:60],
        ])  # fmt: skip
    head = ["peer", "first GB/s", "CPU s/GB", "again GB/s", "CPU s/GB", "host MiB first", "again", "note"]
    where = f"{path} ({os.stat(path).st_size} bytes, {file_system(path)}), {state}, to {options.device}"
    table(f"{where}; {options.repeats} processes each, medians", head, rows)


def ceiling(results: Results, path: str, options: argparse.Namespace) -> None:
    try:
        best, every = fio.read_ceiling(options.fio, path)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        print(f"fio: {error}", file=sys.stderr)
        return
    results.add({"work": "ceiling", "peer": "fio", "file": path, "state": "cold", "gb_per_s": best, "every": every})
    print(f"disk ceiling by fio: {number(best)} GB/s ({every})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--peers", type=lambda text: text.split(","), default=list(PEERS))
    parser.add_argument("--state", type=lambda text: text.split(","), default=["warm"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--verify", type=int, default=5)
    parser.add_argument("--limit", type=float, default=180, help="seconds for one process")
    parser.add_argument("--empty-cache", action="store_true")
    parser.add_argument("--results")
    parser.add_argument("--fio")
    options = parser.parse_args()
    unknown = [peer for peer in options.peers if peer not in PEERS]
    if unknown:
        parser.error(f"no such peer: {', '.join(unknown)} (there are {', '.join(PEERS)})")
    results = Results(options.results)
    for path in map(os.path.abspath, options.files):
        for state in options.state:
            if state == "cold" and options.fio:
                ceiling(results, path, options)
            out = measure(results, path, state, options)
            show(results, path, state, options, out)
    if any("failed" in reason for reason in out.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
