#!/usr/bin/env python3
"""One rank of a measurement of `bench/weights.py`, a process of its own: fills the rank's parameters twice and prints a line
of JSON for each.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set as torchrun sets them. Timed is: from when all ranks are ready (CUDA and torch's
allocator started, parameters made, the process group connected) until this rank's parameters are filled and its device is
synchronised. Exit codes: 0; 1 for wrong bytes; 3, with the reason, where the subject cannot run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

import torch  # noqa: E402
from common import Skip, worker_main  # noqa: E402
from load import read_header  # noqa: E402
from shapes import MODELS, files_of  # noqa: E402
from subjects import SUBJECTS, Target  # noqa: E402


class LeastFree:
    """The least memory that the device had free while a block ran, below what it had before."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._least = 0
        self._before = 0

    def _free(self) -> int:
        """Bytes free on the device, and those of torch's allocator that no tensor has."""
        unused = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return int(torch.cuda.mem_get_info(self._device)[0]) + unused

    def _run(self) -> None:
        while not self._stop.wait(0.005):
            self._least = min(self._least, self._free())

    def __enter__(self) -> LeastFree:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._held = torch.cuda.memory_allocated(self._device)
            self._before = self._least = self._free()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._device.type == "cuda":
            self._stop.set()
            self._thread.join()

    @property
    def extra_mib(self) -> float | None:
        """MiB that were taken at the most."""
        if self._device.type != "cuda":
            return None
        peak = torch.cuda.max_memory_allocated(self._device) - self._held
        return round(max(self._before - self._least, peak) / 2**20, 1)


def targets_of(model: str, nbytes: int, rank: int, ranks: int, device: torch.device) -> list[Target]:
    """The rank's parameters."""
    found = []
    for shape in MODELS[model](nbytes):
        if shape.owner is not None and shape.owner % ranks != rank:
            continue
        size, start, length = list(shape.shape), 0, 0
        if shape.cut is not None:
            length = size[shape.cut] // ranks
            start, size[shape.cut] = rank * length, length
        found.append(Target(shape, torch.zeros(size, dtype=torch.bfloat16, device=device), start, length))
    return found


def differing(files: list[str], targets: list[Target], count: int) -> list[str]:
    """Names of the parameters whose bytes are not the file's; `count` of them are compared."""
    entries: dict[str, tuple[str, int]] = {}
    for path in files:
        header, start = read_header(path)
        entries.update({name: (path, start + entry["data_offsets"][0]) for name, entry in header.items()})
    wrong = []
    for target in {*targets[:: max(1, len(targets) // count)], targets[-1]}:
        path, offset = entries[target.shape.name]
        whole = torch.from_file(path, shared=False, size=os.stat(path).st_size, dtype=torch.uint8)
        told = whole[offset : offset + target.shape.nbytes].view(torch.int16).view(target.shape.shape)
        if not torch.equal(target.cut(told), target.parameter.cpu().view(torch.int16)):
            wrong.append(target.shape.name)
    return wrong


def disk_bytes() -> int:
    """Bytes that this process has had read from storage."""
    with open("/proc/self/io", encoding="ascii") as file:
        return int(dict(line.strip().split(": ") for line in file)["read_bytes"])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subject", choices=sorted(SUBJECTS), required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--model", choices=sorted(MODELS), default="tp")
    parser.add_argument("--bytes", type=float, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--once", action="store_true", help="no second load: the first one has warmed the page cache")
    parser.add_argument(
        "--pause", type=float, default=3.0, help="seconds between the loads: an engine serves meanwhile"
    )
    parser.add_argument("--verify", type=int, default=6, metavar="TENSORS")
    return parser.parse_args()


def connect(has_group: bool, device: torch.device, ranks: int) -> tuple[Any, Any]:
    """What the ranks wait for each other with, and the group that a subject takes."""
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    if not has_group:
        return dist, None
    if ranks == 1:
        raise Skip("a group of one rank")
    backend = "nccl" if device.type == "cuda" else "gloo"
    group = dist.new_group(backend=backend)
    # The first collective connects; no measurement pays for that.
    dist.all_reduce(torch.zeros(1, device=device), group=group)
    return dist, group


def main() -> None:
    options = parse()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device(options.device)
    if device.type == "cuda":
        if torch.cuda.device_count() < ranks:
            raise Skip(f"{ranks} ranks need as many GPUs: there are {torch.cuda.device_count()}")
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    subject = SUBJECTS[options.subject]
    files = [str(path) for path in files_of(options.folder)]
    targets = targets_of(options.model, int(options.bytes), rank, ranks, device)
    dist, group = connect(subject.has_group, device, ranks)
    load = subject.make(group)
    for when in ("first",) if options.once else ("first", "again"):
        if when == "again":
            time.sleep(options.pause)
        for target in targets:
            target.parameter.zero_()
        if device.type == "cuda":
            torch.cuda.synchronize()
        dist.barrier()
        before, disk = resource.getrusage(resource.RUSAGE_SELF), disk_bytes()
        with LeastFree(device) as memory:
            start = time.perf_counter()
            known = load(files, targets, device)
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - start
        after, disk = resource.getrusage(resource.RUSAGE_SELF), disk_bytes() - disk
        wrong = differing(files, targets, options.verify)
        record = {
            "subject": options.subject, "rank": rank, "ranks": ranks, "when": when, "seconds": round(seconds, 5),
            "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 4),
            "bytes": known, "disk_bytes": disk, "extra_mib": memory.extra_mib, "wrong": wrong,
        }  # fmt: skip
        print(json.dumps(record), flush=True)
        if wrong:
            raise SystemExit(f"wrong bytes: {', '.join(wrong)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    worker_main(main)
