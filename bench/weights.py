#!/usr/bin/env python3
"""Loads a model's weights into parameters that exist, with each peer in turn, and prints a table of medians.

    bench/weights.py [--tp RANKS] [--model tp|moe|pipeline] [--bytes 11e9] [--state read-back|saved|tmpfs|cold]
                     [--peers NAME,…] [--repeats 5] [--device cuda] [--folder FOLDER] [--results FILE]
    bench/weights.py --transformers [--bytes 5e9] …
    bench/weights.py --gguf [--bytes 8e9] …
    torchrun --nproc-per-node 2 bench/weights.py --tp 2

Each measurement has fresh processes, one for each rank (bench/weights/worker.py, which says what is timed), and the peers take
turns. A load takes as long as its slowest rank. Columns: seconds of the first load in a process and of the second, CPU seconds of
all ranks together, the largest part of the model that a rank has read (where the peer tells it), bytes from storage of the
whole node as parts of the model, and the memory of a GPU beside the parameters. --moe and --pipeline stand for --model, --cold for
--state cold. Under torchrun the first rank does all of it, and the others end at once.

States: `read-back` (dropped from the page cache, then read), `saved` (just written: rewritten before each measurement),
`tmpfs` (below /dev/shm), `cold` (dropped before each measurement; there is no second load).

Exit codes: 0; 1 where a peer gave wrong bytes or failed; 2 for a mistake in the command line.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "weights"), str(HERE / "python")]

import fio  # noqa: E402
from common import SKIPPED, Results, make_cold, make_warm, number, table  # noqa: E402
from shapes import MODELS, files_of, write  # noqa: E402

#: What is compared, by the kind of run. The best setting of a peer counts: all of them are measured.
PEERS = {
    "one": "forebay,instanttensor,instanttensor-8,instanttensor-12,safetensors,load_file",
    "many": "forebay,instanttensor-group,instanttensor-group-8,instanttensor-group-12,fastsafetensors-group,"
    "safetensors,instanttensor,load_file",
    "other": "forebay,instanttensor,instanttensor-group,fastsafetensors-group,safetensors,load_file",
    "transformers": "forebay,stock",
    "gguf": "forebay,gguf",
}
_BYTES = {"transformers": 5e9, "gguf": 8e9}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tp", "--ranks", type=int, default=1, dest="ranks")
    parser.add_argument("--model", choices=sorted(MODELS), default="tp")
    parser.add_argument("--moe", action="store_const", const="moe", dest="model")
    parser.add_argument("--pipeline", action="store_const", const="pipeline", dest="model")
    parser.add_argument("--transformers", action="store_const", const="transformers", dest="work", default="weights")
    parser.add_argument("--gguf", action="store_const", const="gguf", dest="work")
    parser.add_argument("--bytes", type=float)
    parser.add_argument("--state", choices=("read-back", "saved", "tmpfs", "cold"), default="read-back")
    parser.add_argument("--cold", action="store_const", const="cold", dest="state")
    parser.add_argument("--peers", type=lambda text: text.split(","))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--folder", type=Path, help="where models are written and stay (default: a temporary folder)")
    parser.add_argument("--fio", help="with --cold: also measures the disk's read ceiling on the first file by it")
    parser.add_argument("--limit", type=float, default=240, help="seconds for one measurement")
    parser.add_argument("--results", help="a file to which all records are added, a line of JSON each")
    options = parser.parse_args()
    options.bytes = options.bytes or _BYTES.get(options.work, 11e9)
    kind = options.work
    if kind == "weights":
        kind = "other" if options.model != "tp" else "many" if options.ranks > 1 else "one"
    if options.peers is None:
        options.peers = PEERS[kind].split(",") + (["instanttensor-group-uring"] if options.state == "cold" else [])
    if options.work != "weights" and options.ranks > 1:
        parser.error(f"--{options.work} has one rank")
    return options


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def measure(peer: str, folder: Path, options: argparse.Namespace) -> tuple[list[dict[str, Any]], str | None]:
    """All ranks of one measurement. Returns their records and, if they did not do their work, why."""
    script = "worker.py" if options.work == "weights" else f"{options.work}_worker.py"
    command = [sys.executable, str(HERE / "weights" / script), "--subject", peer, "--folder", str(folder)]
    command += ["--device", options.device]
    command += ["--model", options.model, "--bytes", str(options.bytes)] if options.work == "weights" else []
    command += ["--once"] if options.state == "cold" else []
    ranks = str(options.ranks)
    shared = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = []
    for rank in range(options.ranks):
        environment = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        logs = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=logs[0], stderr=logs[1], env=environment)
        started.append((process, *logs))
    records, reason = [], None
    for process, out, err in started:
        try:
            code = process.wait(options.limit if reason is None else 5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            reason, code = reason or f"failed: not done after {options.limit:.0f} s", 0
        out.seek(0)
        records += [json.loads(line) for line in out.read().splitlines() if line.startswith("{")]
        err.seek(0)
        words = err.read().strip().splitlines() or [f"status {code}"]
        if code == SKIPPED:
            reason = words[-1]
        elif code:
            reason = reason or "failed: " + " | ".join(words[-3:])
    return ([] if reason else records), reason


def prepare(folder: Path, options: argparse.Namespace, is_first: bool) -> None:
    """Brings the model's files into the state that is measured."""
    if not files_of(folder) or (options.state == "saved" and not is_first):
        shutil.rmtree(folder, ignore_errors=True)
        make(folder, options)
    for path in map(str, files_of(folder)):
        if options.state == "cold" or (options.state == "read-back" and is_first):
            make_cold(path)
        if options.state == "read-back":
            make_warm(path)


def make(folder: Path, options: argparse.Namespace) -> None:
    """Writes the model."""
    if options.work == "weights":
        write(folder, MODELS[options.model](int(options.bytes)))
        return
    script = str(HERE / "weights" / f"{options.work}_worker.py")
    subprocess.run([sys.executable, script, "--folder", str(folder), "--make", str(int(options.bytes))], check=True)


def together(records: list[dict[str, Any]], nbytes: int) -> list[dict[str, Any]]:
    """One record for each load of a measurement, of those of its ranks."""
    found = []
    for when in ("first", "again"):
        mine = [record for record in records if record["when"] == when]
        if not mine:
            continue
        told = [record["bytes"] for record in mine if record.get("bytes") is not None]
        extra = [record["extra_mib"] for record in mine if record.get("extra_mib") is not None]
        found.append({
            "subject": mine[0]["subject"], "when": when, "ranks": len(mine),
            "seconds": max(record["seconds"] for record in mine),
            "cpu_s": sum(record["cpu_s"] for record in mine),
            "rank_part": max(told) / nbytes if told else None,
            "disk_part": sum(record.get("disk_bytes", 0) for record in mine) / nbytes,
            "extra_mib": max(extra) if extra else None,
        })  # fmt: skip
    return found


def show(records: list[dict[str, Any]], nbytes: int, options: argparse.Namespace, out: dict[str, str]) -> None:
    by: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        by[record["subject"], record["when"]].append(record)

    def middle(peer: str, when: str, field: str) -> float | None:
        values = [record[field] for record in by[peer, when] if record[field] is not None]
        return median(values) if values else None

    rows = []
    for peer in options.peers:
        cells = [
            middle(peer, "first", "seconds"), middle(peer, "again", "seconds"), middle(peer, "first", "cpu_s"),
            middle(peer, "again", "cpu_s"), middle(peer, "first", "rank_part"), middle(peer, "first", "disk_part"),
            middle(peer, "first", "extra_mib"),
        ]  # fmt: skip
        rate = nbytes / 1e9 / cells[0] if cells[0] else None
        rows.append([peer, *map(number, [*cells, rate]), out.get(peer, "")[:70]])
    head = [
        "peer",
        "first s",
        "again s",
        "CPU s first",
        "CPU s again",
        "rank read",
        "from disk",
        "GPU MiB",
        "GB/s first",
        "note",
    ]
    what = options.model if options.work == "weights" else options.work
    title = f"{what}, {options.ranks} rank(s), {nbytes} bytes, {options.state}, {options.device}"
    table(f"{title}; {options.repeats} measurements each, medians", head, rows)


def run(folder: Path, options: argparse.Namespace) -> int:
    results, together_all, out = Results(options.results), [], {}
    is_first, peers = True, options.peers
    for turn in range(options.repeats):
        for at in range(len(peers)):
            peer = peers[(turn + at) % len(peers)]
            if peer in out:
                continue
            prepare(folder, options, is_first)
            is_first = False
            nbytes = sum(path.stat().st_size for path in files_of(folder))
            records, reason = measure(peer, folder, options)
            if reason:
                out[peer] = reason
                print(f"{peer}: {reason}", file=sys.stderr, flush=True)
            for record in together(records, nbytes):
                facts = {"work": options.work, "model": options.model, "state": options.state, "round": turn + 1}
                results.add(facts | record)
                together_all.append(record)
    show(together_all, nbytes, options, out)
    if options.fio and options.state == "cold":
        best, every = fio.read_ceiling(options.fio, str(files_of(folder)[0]))
        print(f"disk ceiling by fio: {number(best)} GB/s ({every})")
    return 1 if any(reason.startswith("failed") for reason in out.values()) else 0


def main() -> int:
    options = parse()
    if int(os.environ.get("RANK", "0")) > 0:
        # Under torchrun: the first rank starts fresh processes for all.
        return 0
    if options.folder is not None:
        what = options.model if options.work == "weights" else options.work
        return run(options.folder / f"{what}-{int(options.bytes)}", options)
    parent = "/dev/shm" if options.state == "tmpfs" else None
    with tempfile.TemporaryDirectory(prefix="weights-", dir=parent) as folder:
        return run(Path(folder) / "model", options)


if __name__ == "__main__":
    sys.exit(main())
