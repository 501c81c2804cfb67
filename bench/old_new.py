#!/usr/bin/env python3
"""Two builds of forebay on one machine: twelve rows, alternating pairs, the ratio of the medians.

    bench/old_new.py OLD NEW [--pairs 7] [--scratch DIR] [--json FILE] [--rows NAME,…]

OLD and NEW are folders with `forebay`, `libcufile.so` and `python/` (the unpacked wheel); NEW has `cufile_bench`, too, which
measures both libraries. Which build comes first in a pair alternates. FILE gets a line for each value as it is measured, and
one for each row at its end. A row holds if the new median is at least 0.98 of the old one, or lies within the old build's own
range. Exit code 1 if a row does not hold.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

GIB = 1 << 30
LOAD = """
import time, sys, torch
from forebay import load_file
torch.empty(1, device="cuda")
for _ in range(2):
    start = time.perf_counter()
    tensors = load_file(sys.argv[1], device="cuda:0")
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    del tensors
print(sum(t.numel() * t.element_size() for t in load_file(sys.argv[1], device="cpu").values()) / seconds / 1e9)
"""


def bench(*arguments):
    """A row of `forebay bench`: GB/s, or thousands of IOPS for small pieces."""

    def run(build, files, name):
        out = files / "out.json"
        command = [build / "forebay", "bench", "-d", "0", *(files / a[1:] if a[0] == "@" else a for a in arguments)]
        subprocess.run([*map(str, command), "--json", str(out)], check=True, capture_output=True, timeout=120)
        report = json.loads(out.read_text())
        last = report["passes"][-1]
        return last["iops"] / 1e3 if name.endswith("IOPS") else last["gb_per_s"]

    return run


def cufile(*arguments):
    def run(build, files, name, client=None):
        command = [client, "--lib", build / "libcufile.so", "--file", files / "warm", *arguments]
        done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True, timeout=120)
        found = json.loads(done.stdout.splitlines()[-1])
        last = found["passes"][-1]
        return last["iops"] / 1e3 if name.endswith("IOPS") else last["gb_per_s"]

    run.needs_client = True
    return run


def load(build, files, _name):
    environment = {**os.environ, "PYTHONPATH": str(build / "python")}
    command = [sys.executable, "-c", LOAD, str(files / "model.safetensors")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=120)
    return float(done.stdout)


ROWS = {
    "warm read 1M x 8, staged, GB/s": bench("-f", "@warm", "-w", "8", "-i", "1M", "-T", "1", "--engine", "staged"),
    "warm read 16M x 2, elected, GB/s": bench("-f", "@warm", "-w", "2", "-i", "16M", "-T", "1"),
    "first read 16M x 4, elected, GB/s": bench("-f", "@warm", "-w", "4", "-i", "16M", "--trim"),
    "warm randread 4K x 1, K IOPS": bench("-f", "@warm", "-w", "1", "-i", "4K", "-I", "2", "-T", "1"),
    "warm randread 4K x 16, K IOPS": bench("-f", "@warm", "-w", "16", "-i", "4K", "-I", "2", "-T", "1"),
    "batch randread 4K x 256, K IOPS": bench("-f", "@warm", "-x", "6", "-w", "256", "-i", "4K", "-I", "2", "-T", "1"),
    "write 1M x 4, tmpfs, GB/s": bench("-f", "@shm", "-w", "4", "-i", "1M", "-I", "1", "-T", "1", "--overwrite"),
    "cold read 1M x 4, GB/s": bench("-f", "@cold", "-w", "4", "-i", "1M", "--drop-cache", "--engine", "staged"),
    "gather 4K, K IOPS": bench("-f", "@warm", "--gather", "-i", "4K", "-T", "1"),
    "cuFileRead 4K x 16, K IOPS": cufile("--io", "4K", "--threads", "16", "--random", "--secs", "1", "--warm"),
    "cuFileReadAsync 1M x 4, GB/s": cufile("--api", "async", "--io", "1M", "--threads", "4", "--secs", "1", "--warm"),
    "load_file, second, GB/s": load,
}


def make_files(folder, shm):
    for name, size in [("warm", 4 * GIB), ("cold", GIB)]:
        with open(folder / name, "wb") as file:
            block = os.urandom(1 << 20)
            for _ in range(size >> 20):
                file.write(block)
            os.fsync(file.fileno())
    (folder / "shm").symlink_to(shm)
    # Pages that exist: in a file of holes the first writer would allocate them, and only that one.
    with open(shm, "wb") as file:
        for _ in range(2 * GIB >> 20):
            file.write(block)
    header = {f"w{n}": {"dtype": "F32", "shape": [1 << 24], "data_offsets": [n << 26, (n + 1) << 26]} for n in range(48)}
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in range(48 << 6):
            file.write(block)
        os.fsync(file.fileno())


def row(name, run, builds, files, pairs, keep):
    found = ([], [])
    extra = {"client": builds[1] / "cufile_bench"} if getattr(run, "needs_client", False) else {}
    for pair in range(pairs):
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            try:
                found[which].append(run(builds[which], files, name, **extra))
                keep({"row": name, "pair": pair + 1, "build": ("old", "new")[which], "value": found[which][-1]})
            except (subprocess.SubprocessError, OSError, LookupError, ValueError) as error:
                text = getattr(error, "stderr", "") or ""
                print(f"   {name}: {error} {text[-500:]}", file=sys.stderr)
                return {"row": name, "old": found[0], "new": found[1], "failed": str(error)}
    old, new = map(statistics.median, found)
    holds = new / old >= 0.98 or new >= min(found[0])
    return {"row": name, "old": found[0], "new": found[1], "ratio": new / old, "holds": holds}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--scratch", default=".", help="a folder on the disk to measure")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--rows", help="only rows whose name contains one of these")
    args = parser.parse_args()
    words = args.rows.split(",") if args.rows else [""]
    all_rows = []

    def keep(record):
        if args.json:
            with open(args.json, "a") as out:
                out.write(json.dumps(record) + "\n")

    with tempfile.TemporaryDirectory(dir=args.scratch) as name, tempfile.NamedTemporaryFile(dir="/dev/shm") as shm:
        files = pathlib.Path(name).resolve()
        make_files(files, shm.name)
        for title, run in ROWS.items():
            if any(word in title for word in words):
                builds = (args.old.resolve(), args.new.resolve())
                all_rows.append(row(title, run, builds, files, args.pairs, keep))
                keep(all_rows[-1])
                print(json.dumps(all_rows[-1]), file=sys.stderr, flush=True)
    print(f"{'':<38} {'old':>9} {'new':>9} {'ratio':>7}  old's range")
    for found in all_rows:
        if "failed" in found:
            print(f"{found['row']:<38} failed: {found['failed'][:80]}")
            continue
        old, new = statistics.median(found["old"]), statistics.median(found["new"])
        span = f"{min(found['old']):.4g} to {max(found['old']):.4g}"
        verdict = "" if found["holds"] else "  does not hold"
        print(f"{found['row']:<38} {old:>9.4g} {new:>9.4g} {found['ratio']:>7.3f}  {span}{verdict}")
    return 0 if all(found.get("holds") for found in all_rows) else 1


if __name__ == "__main__":
    sys.exit(main())
