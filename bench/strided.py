#!/usr/bin/env python3
"""What a rank of a tensor-parallel model costs to read: strided pieces beside their rows one by one and contiguous pieces.

usage: strided.py FILE [--layers 32] [--hidden 4096] [--ffn 11008] [--tp 2] [--device cpu,cuda:0] [--loads 3] [--ways ...]

Makes FILE if it is not there: `layers` of Llama's seven matrices, 2 bytes an element. A rank of `tp` reads its part of each:
rows of five of them, columns of two. Each line is a process of its own, which loads as often as asked into the same memory:
  contiguous   as many bytes as the rank's part of each matrix, from its start on: the bound
  strided      one piece a matrix
  rows         one piece a row of the matrices that are cut by columns, given natively
Prints for each load the seconds, GB/s, CPU s/GB, and what engine moved it which way.
"""

import argparse
import itertools
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

ITEM = 2
WAYS = ("contiguous", "strided", "rows")


def matrices(options):
    """(rows, columns, whether a rank has columns) of each."""
    hidden, ffn = options.hidden, options.ffn
    layer = (
        [(hidden, hidden, False)] * 3 + [(hidden, hidden, True)] + [(ffn, hidden, False)] * 2 + [(hidden, ffn, True)]
    )
    return layer * options.layers


def parts(options):
    """Of each matrix: its offset, and the part of the last rank by rows, columns, and bytes before it."""
    offset = 0
    for rows, columns, has_columns in matrices(options):
        own = (rows, columns // options.tp) if has_columns else (rows // options.tp, columns)
        before = (columns - own[1]) * ITEM if has_columns else (rows - own[0]) * columns * ITEM
        yield offset, own, before, columns * ITEM
        offset += rows * columns * ITEM


def total(options):
    return sum(rows * columns * ITEM for rows, columns, _ in matrices(options))


def make(path, size):
    block = os.urandom(64 << 20)
    with open(path, "wb", buffering=0) as file:
        for start in range(0, size, len(block)):
            file.write(block[: min(len(block), size - start)])


def pieces(options, array):
    if options.way == "contiguous":
        return [(a, offset) for a, (offset, *_) in zip(array, parts(options), strict=True)]
    if options.way == "strided":
        return [
            (a, offset + before, (pitch, ITEM))
            for a, (offset, _, before, pitch) in zip(array, parts(options), strict=True)
        ]
    runs = []
    for a, (offset, (rows, columns), before, pitch) in zip(array, parts(options), strict=True):
        run = columns * ITEM
        if run == pitch:
            runs.append((a.address, rows * run, offset + before))
        else:
            runs += [(a.address + row * run, run, offset + before + row * pitch) for row in range(rows)]
    return runs


def load(options):
    import forebay

    array = [forebay.empty(own, "BF16", options.device) for _, own, *_ in parts(options)]
    given = pieces(options, array)
    size = sum(a.nbytes for a in array)
    with forebay.open(options.file) as file:
        for number in range(options.loads):
            before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
            future = file._submit(False, given, array) if options.way == "rows" else file.read_many_async(given)
            receipt = future.result()
            seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            assert receipt.bytes == size
            print(
                f"{options.device:8} {options.way:10} {len(given):7} pieces  load {number + 1}: {seconds * 1e3:8.1f} ms, "
                f"{size / seconds / 1e9:6.2f} GB/s, {used / size * 1e9:.3f} CPU s/GB; {receipt.moved}",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("file")
    for name, value in (("layers", 32), ("hidden", 4096), ("ffn", 11008), ("tp", 2), ("loads", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", default="cpu,cuda:0")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        return load(options)
    path = Path(options.file)
    if not path.exists() or path.stat().st_size < total(options):
        make(path, total(options))
    for device, way in itertools.product(options.device.split(","), options.ways.split(",")):
        command = [sys.executable, __file__, *sys.argv[1:], "--device", device, "--way", way]
        subprocess.run(command, check=True)
    return None


if __name__ == "__main__":
    sys.exit(main())
