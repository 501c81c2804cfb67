#!/usr/bin/env python3
"""Saves the tensors of a model from device memory to a new file, durably, with each library in turn.

    bench/python/save.py FOLDER... [--bytes 11.2e9] [--peers forebay,safetensors,torch] [--repeats 5] [--passes 2]
                         [--device cuda:0] [--results FILE] [--fio bench/bin/fio]

Each measurement is a process of its own; the peers take turns. The tensors (200, of the shapes of make_models.py) are
made on the device before; timed is the call and, for the peers that do not do it themselves, an fsync of the file
(forebay.save_file flushes file and folder by itself). Each pass writes to a name that does not exist; the file is
read back and a few tensors compared, then removed, untimed.

Ceilings are measured in the same run: on tmpfs what the kernel needs to hand out the pages (bench/tmpfs_pages.py: by
4 writers, and by fallocate), on a disk fio's best direct write with fsync at the end, if --fio names it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fio
from common import (
    BENCH,
    Results,
    Skip,
    file_system,
    is_tmpfs,
    number,
    run_worker,
    start_device,
    synchronize,
    table,
    timed,
    worker_main,
)
from load import differing
from make_models import LARGE_BYTES, large_shapes

Tensors = dict[str, Any]


def _fsync(path: str) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def by_forebay() -> Callable[[Tensors, str], None]:
    try:
        import forebay
    except ImportError as error:
        raise Skip(f"forebay cannot be imported: {error}") from None
    return forebay.save_file


def by_safetensors() -> Callable[[Tensors, str], None]:
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise Skip(f"safetensors cannot be imported: {error}") from None

    def save(tensors: Tensors, path: str) -> None:
        save_file(tensors, path)
        _fsync(path)

    return save


def by_torch() -> Callable[[Tensors, str], None]:
    import torch

    def save(tensors: Tensors, path: str) -> None:
        torch.save(tensors, path)
        _fsync(path)

    return save


PEERS = {"forebay": by_forebay, "safetensors": by_safetensors, "torch": by_torch}


def make_tensors(torch: Any, nbytes: float, device: str) -> Tensors:
    """Tensors of a model on the device, with content that differs from tensor to tensor."""
    tensors = {}
    for i, (name, shape) in enumerate(large_shapes(nbytes / LARGE_BYTES)):
        torch.manual_seed(i)
        words = torch.randint(-0x4000, 0x4000, shape, dtype=torch.int16, device=device)
        tensors[name] = words.view(torch.bfloat16)
    return tensors


def check(torch: Any, peer: str, path: str, tensors: Tensors) -> list[str]:
    """Names of tensors that are not in the file as they are in memory."""
    if peer != "torch":
        return differing(torch, path, tensors, 5)
    found = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    names = list(tensors)[:: max(1, len(tensors) // 5)]
    return [
        name for name in names if not torch.equal(found[name].view(torch.int16), tensors[name].cpu().view(torch.int16))
    ]


def worker(options: argparse.Namespace) -> None:
    folder = options.folders[0]
    torch = start_device(options.device)
    save = PEERS[options.worker]()
    tensors = make_tensors(torch, options.bytes, options.device)
    synchronize(torch, options.device)
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    for index in range(options.passes):
        path = os.path.join(folder, f"save-{options.worker}-{os.getpid()}-{index}.bin")
        os.sync()  # What others left to be written must not be waited for in the measurement.
        try:
            _, record = timed(nbytes, lambda path=path: save(tensors, path))
            wrong = check(torch, options.worker, path, tensors)
        finally:
            Path(path).unlink(missing_ok=True)
        facts = {"work": "save", "peer": options.worker, "folder": folder, "file_system": file_system(folder)}
        facts |= {"device": options.device, "pass": index + 1, "when": "first" if index == 0 else "again"}
        print(json.dumps(facts | {"tensors": len(tensors), "wrong": wrong} | record), flush=True)
        if wrong:
            raise SystemExit(f"error: {options.worker}: tensors differ in the file: {', '.join(wrong)}")


def ceiling(results: Results, folder: str, options: argparse.Namespace) -> float | None:
    """GB/s that no save to this folder can pass, by the best way measured."""
    size = int(options.bytes)
    if is_tmpfs(folder):
        gib = max(1, round(size / 2**30))
        command = [sys.executable, str(BENCH / "tmpfs_pages.py"), folder, str(gib)]
        out = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout
        every = {name: float(speed) for name, speed in re.findall(r"^(.+?): ([0-9.]+) GB/s", out, re.MULTILINE)}
        best = max(every.values())
    elif options.fio:
        try:
            best, every = fio.write_ceiling(options.fio, folder, size)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            print(f"fio: {error}", file=sys.stderr)
            return None
    else:
        return None
    results.add({"work": "ceiling", "folder": folder, "gb_per_s": best, "every": every})
    return best


def drive(options: argparse.Namespace) -> None:
    results = Results(options.results)
    for folder in map(os.path.abspath, options.folders):
        best, out = ceiling(results, folder, options), {}
        for turn in range(options.repeats):
            for i in range(len(options.peers)):
                peer = options.peers[(turn + i) % len(options.peers)]
                if peer in out:
                    continue
                arguments = [folder, "--worker", peer, "--bytes", str(options.bytes), "--device", options.device]
                records, reason = run_worker("save.py", [*arguments, "--passes", str(options.passes)], options.limit)
                for record in records:
                    results.add(record | {"round": turn + 1})
                if reason:
                    out[peer] = reason
                    print(f"{peer}: {reason}", file=sys.stderr, flush=True)
        rows = []
        for peer in options.peers:
            row = [peer]
            for when in ("first", "again"):
                key = {"peer": peer, "folder": folder, "when": when}
                speed = results.median("gb_per_s", **key)
                row += [number(speed), number(speed / best if speed and best else None)]
                row.append(number(results.median("cpu_s_per_gb", **key)))
                row.append(number(results.median("host_peak_mib", **key), 4))
            rows.append([*row, out.get(peer, "")[:60]])
        head = ["peer", "first GB/s", "of ceiling", "CPU s/GB", "host MiB"]
        head += ["again GB/s", "of ceiling", "CPU s/GB", "host MiB", "note"]
        where = f"save {options.bytes / 1e9:g} GB from {options.device} to {folder} ({file_system(folder)})"
        table(f"{where}; ceiling {number(best)} GB/s; {options.repeats} processes each, medians", head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--bytes", type=float, default=LARGE_BYTES)
    parser.add_argument("--peers", type=lambda text: text.split(","), default=list(PEERS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--limit", type=float, default=240, help="seconds for one process")
    parser.add_argument("--results")
    parser.add_argument("--fio")
    parser.add_argument("--worker", choices=sorted(PEERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker_main(lambda: worker(options))
    else:
        drive(options)


if __name__ == "__main__":
    main()
