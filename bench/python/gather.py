#!/usr/bin/env python3
"""Gathers a million random 4 KiB pieces of a warm file into one tensor of the device.

    bench/python/gather.py FILE [--bytes 20e9] [--pieces 1000000] [--length 4096] [--repeats 5] [--device cuda:0]
                           [--peers forebay,numpy,kvikio] [--results FILE]

FILE is written with real data if it is missing or smaller than --bytes (no holes: each 4 KiB block begins with its
own number) and is brought into the page cache. The same random block numbers go to each subject:

    forebay    forebay.map once (its time stands beside), then map.gather of offsets that lie on the device already
               (`offsets: device`) or in a numpy array (`offsets: host`)
    numpy      numpy.memmap, fancy indexing on the host, torch.from_numpy(…).to(device)
    kvikio     CuFile.pread futures of --sample pieces (20 000), 256 in flight, into one CuPy array; its seconds for all
               pieces are extrapolated from the sample, and the record says so

All pieces are checked by their numbers. Pieces per second are medians over the repeats, the first of which is left out.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import Results, Skip, file_system, make_warm, number, start_device, synchronize, table, timed

BLOCK = 4096
IN_FLIGHT = 256


def make_file(path: str, nbytes: int) -> None:
    """A file of at least `nbytes` bytes whose blocks begin with their numbers."""
    blocks = -(-nbytes // BLOCK)
    if os.path.exists(path) and os.stat(path).st_size >= blocks * BLOCK:
        return
    step = 16384
    chunk = np.random.default_rng(5).integers(0, 1 << 63, (step, BLOCK // 8), dtype=np.int64)
    with open(path, "wb", buffering=0) as file:
        for first in range(0, blocks, step):
            count = min(step, blocks - first)
            chunk[:count, 0] = np.arange(first, first + count)
            part = memoryview(chunk[:count]).cast("B")
            while part:
                part = part[file.write(part) :]
        os.fsync(file.fileno())


def check(found: Any, offsets: np.ndarray, length: int) -> None:
    """`found` is a torch tensor or a CuPy array of (pieces, length) bytes: each begins with its block's number."""
    numbers = found[:, :8]
    numbers = numbers.cpu().numpy() if hasattr(numbers, "cpu") else numbers.get()
    if not np.array_equal(np.ascontiguousarray(numbers).view(np.int64)[:, 0], offsets // BLOCK):
        raise SystemExit("error: gathered bytes differ from the file's")


def repeat(results: Results, options: argparse.Namespace, facts: dict[str, Any], nbytes: int,
           work: Callable[[], Any], checked: Callable[[Any], None]) -> None:  # fmt: skip
    for index in range(options.repeats + 1):
        value, record = timed(nbytes, work)
        checked(value)
        del value
        pieces = nbytes / options.length
        facts = facts | {"pass": index, "pieces_per_s": round(pieces / record["seconds"])}
        if index:
            results.add({"work": "gather", "file": options.file} | facts | record)


def by_forebay(results: Results, options: argparse.Namespace, offsets: np.ndarray, torch: Any) -> None:
    try:
        import forebay
    except ImportError as error:
        raise Skip(f"forebay cannot be imported: {error}") from None
    start = time.perf_counter()
    mapped = forebay.map(options.file, device=options.device)
    opened = time.perf_counter() - start
    facts = {"peer": "forebay", "open_s": round(opened, 3), "in_place": mapped.in_place, "reason": mapped.reason}
    out = torch.empty((len(offsets), options.length), dtype=torch.uint8, device=options.device)
    for where, given in (("device", torch.from_numpy(offsets).to(options.device)), ("host", offsets)):

        def work(given: Any = given) -> Any:
            mapped.gather(given, options.length, out=out)
            synchronize(torch, options.device)
            return out

        repeat(results, options, facts | {"offsets": where}, out.nbytes, work,
               lambda found: check(found, offsets, options.length))  # fmt: skip
    mapped.check()
    mapped.close()


def by_numpy(results: Results, options: argparse.Namespace, offsets: np.ndarray, torch: Any) -> None:
    start = time.perf_counter()
    mapped = np.memmap(options.file, dtype=np.uint8, mode="r")
    rows = mapped[: len(mapped) // BLOCK * BLOCK].reshape(-1, BLOCK)
    facts = {"peer": "numpy", "open_s": round(time.perf_counter() - start, 3), "offsets": "host"}
    blocks = offsets // BLOCK

    def work() -> Any:
        found = torch.from_numpy(np.asarray(rows[blocks, : options.length])).to(options.device)
        synchronize(torch, options.device)
        return found

    repeat(results, options, facts, len(offsets) * options.length, work,
           lambda found: check(found, offsets, options.length))  # fmt: skip


def by_kvikio(results: Results, options: argparse.Namespace, offsets: np.ndarray, torch: Any) -> None:
    if options.device == "cpu":
        raise Skip("the kvikio part reads into CuPy arrays: it needs a GPU")
    os.environ.setdefault("KVIKIO_COMPAT_MODE", "ON")
    os.environ.setdefault("KVIKIO_NTHREADS", "16")
    try:
        import cupy
        import kvikio
    except (ImportError, OSError) as error:
        raise Skip(f"KvikIO or CuPy cannot be imported: {error}") from None
    sample = offsets[: options.sample]
    out = cupy.empty((len(sample), options.length), dtype=cupy.uint8)
    start = time.perf_counter()
    file = kvikio.CuFile(options.file, "r")
    facts = {"peer": "kvikio", "open_s": round(time.perf_counter() - start, 3), "offsets": "host"}
    facts |= {"sampled_pieces": len(sample), "extrapolated": len(sample) < len(offsets)}

    def work() -> Any:
        flying: list[Any] = []
        for i, offset in enumerate(sample.tolist()):
            flying.append(file.pread(out[i], size=options.length, file_offset=offset))
            if len(flying) == IN_FLIGHT:
                for future in flying:
                    future.get()
                flying.clear()
        for future in flying:
            future.get()
        cupy.cuda.Device().synchronize()
        return out

    repeat(results, options, facts, out.nbytes, work, lambda found: check(found, sample, options.length))
    file.close()


PEERS = {"forebay": by_forebay, "numpy": by_numpy, "kvikio": by_kvikio}


def show(results: Results, options: argparse.Namespace, out: dict[str, str]) -> None:
    rows = []
    for peer in options.peers:
        if peer in out:
            rows.append([peer, "", *["–"] * 4, out[peer][:70]])
            continue
        for where in ("device", "host"):
            key = {"work": "gather", "peer": peer, "offsets": where}
            speed = results.median("pieces_per_s", **key)
            if speed is None:
                continue
            one = next(record for record in results.records if record.get("peer") == peer)
            how = "read in place" if one.get("in_place") else one.get("reason") or ""
            note = f"extrapolated from {one['sampled_pieces']} pieces" if one.get("extrapolated") else how
            gbs, cpu = results.median("gb_per_s", **key), results.median("cpu_s_per_gb", **key)
            rows.append([peer, where, number(speed / 1e6), number(gbs), number(cpu), number(one["open_s"]), note[:70]])
    peers = [float(row[2]) for row in rows if row[0] != "forebay" and row[2] != "–"]
    ours = [float(row[2]) for row in rows if row[0] == "forebay" and row[2] != "–"]
    head = ["peer", "offsets", "M pieces/s", "GB/s", "CPU s/GB", "open s", "note"]
    size = os.stat(options.file).st_size
    where = f"{options.pieces} random pieces of {options.length} bytes of a warm file ({size} bytes, "
    where += f"{file_system(options.file)}) to {options.device}; medians of {options.repeats}"
    table(where, head, rows)
    if peers and ours:
        print(f"forebay / best peer: {number(min(ours) / max(peers))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--bytes", type=float, default=20e9)
    parser.add_argument("--pieces", type=int, default=1_000_000)
    parser.add_argument("--length", type=int, default=BLOCK, help="bytes of a piece, from 8 to 4096")
    parser.add_argument("--sample", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--peers", type=lambda text: text.split(","), default=list(PEERS))
    parser.add_argument("--results")
    options = parser.parse_args()
    if not 8 <= options.length <= BLOCK:
        parser.error("--length goes from 8 to 4096")
    make_file(options.file, int(options.bytes))
    try:
        torch = start_device(options.device)
    except Skip as reason:
        print(f"skipped: {reason}", file=sys.stderr)
        raise SystemExit(3) from None
    make_warm(options.file)
    blocks = os.stat(options.file).st_size // BLOCK
    offsets = np.random.default_rng(7).integers(0, blocks, options.pieces, dtype=np.int64) * BLOCK
    results, out = Results(options.results), {}
    for peer in options.peers:
        try:
            PEERS[peer](results, options, offsets, torch)
        except Skip as reason:
            out[peer] = f"skipped: {reason}"
            print(f"{peer}: {out[peer]}", file=sys.stderr)
    show(results, options, out)


if __name__ == "__main__":
    main()
