#!/usr/bin/env python3
"""Reads one file again and again in this process, and prints a JSON line per pass.

    bench/python/repeat.py --way load|read_into --file FILE.safetensors [--passes 24] [--device cuda:0] [--pause 0]

`load` is forebay.load_file of the whole model, whose tensors are dropped before the next one; `read_into` reads the file into one
tensor that is kept, by a file that stays open. With FOREBAY_PIN_BUDGET=0 the same work is staged each time: what the others are to be
compared with. --pause: seconds between two passes. After the last pass tensors and samples of the bytes are compared with the file.

Exit codes: 0; 1 for wrong bytes; 3, with the reason, if forebay or the device is not there.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import time
from collections.abc import Callable
from typing import Any

from common import Skip, start_device, synchronize, worker_main
from load import differing


def cpu_seconds() -> tuple[float, float]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def reader(
    torch: Any, module: Any, way: str, path: str, device: str
) -> tuple[Callable[[], Any], Callable[[Any], list[str]]]:
    """What makes a pass, and what names wrong parts of its result."""
    if way == "load":
        return lambda: module.load_file(path, device=device), lambda tensors: differing(torch, path, tensors, 5)
    file = module.open(path)
    array = torch.empty(file.size, dtype=torch.uint8, device=device)

    def compare(_: Any) -> list[str]:
        with open(path, "rb") as plain:
            starts = range(0, file.size, max(1, file.size // 50))
            return [
                f"bytes at {start}"
                for start in starts
                if plain.seek(start) == start
                and plain.read(1 << 16) != array[start : start + (1 << 16)].cpu().numpy().tobytes()
            ]

    return lambda: file.read_into(array), compare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", choices=("load", "read_into"), required=True)
    parser.add_argument("--file", required=True)
    parser.add_argument("--passes", type=int, default=24)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--pause", type=float, default=0)
    options = parser.parse_args()
    torch = start_device(options.device)
    try:
        import forebay
    except ImportError as error:
        raise Skip(f"forebay cannot be imported: {error}") from None
    gigabytes = os.stat(options.file).st_size / 1e9
    work, compare = reader(torch, forebay, options.way, options.file, options.device)
    result = None
    for index in range(options.passes):
        result = None
        gc.collect()
        time.sleep(options.pause)
        before, start = cpu_seconds(), time.perf_counter()
        result = work()
        synchronize(torch, options.device)
        seconds = time.perf_counter() - start
        user, system = (round((now - then) / gigabytes, 5) for now, then in zip(cpu_seconds(), before, strict=True))
        facts = {"pass": index + 1, "gb_per_s": round(gigabytes / seconds, 3), "seconds": round(seconds, 5)}
        print(json.dumps(facts | {"user_s_per_gb": user, "system_s_per_gb": system}), flush=True)
    if wrong := compare(result):
        raise SystemExit(f"error: {options.way}: differs from the file: {', '.join(wrong)}")


if __name__ == "__main__":
    worker_main(main)
