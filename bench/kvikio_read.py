#!/usr/bin/env python3
"""Reads a file into GPU memory with KvikIO and prints one JSON line per case.

    bench/kvikio_read.py FILE [--mode seq|rand] [--threads 1,2,4,8,16] [--task-size 4M,16M] [--repeat 5]

KvikIO runs in its POSIX mode (KVIKIO_COMPAT_MODE=ON): what it does where the vendor's direct path cannot
register the file; with `--compat OFF` on the libcufile that the loader finds. `seq` reads the whole file with one call into one CuPy array; `rand` reads 4 KiB pieces at
random offsets, 256 calls in flight. Every case has one warm-up that does not count, or none with --first. CPU seconds are the whole
process's, user and system, by getrusage. Bytes are compared once per case. With --cold the file leaves the page
cache before each repeat and is read with KvikIO's direct-I/O reads.

Exit codes: 0, 1 for wrong bytes or a failed read, 3 if KvikIO, CuPy or a GPU is missing.
"""

import argparse
import json
import os
import random
import resource
import statistics
import sys
import time

PIECE = 4096
IN_FLIGHT = 256


def parse_size(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1].upper()] if text[-1:].upper() in units else int(text)


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def drop_cache(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def measure(options, nbytes, before, run):
    """A warm-up unless the first run counts, then `repeat` timed runs: medians and every sample."""
    repeat = options.repeat
    if not options.first:
        before()
        run()
    samples = []
    for _ in range(repeat):
        before()
        user, system = cpu_seconds()
        start = time.perf_counter()
        run()
        wall = time.perf_counter() - start
        user_after, system_after = cpu_seconds()
        samples.append({"wall_s": wall, "user_s": user_after - user, "system_s": system_after - system})
    wall = statistics.median(s["wall_s"] for s in samples)
    cpu = statistics.median(s["user_s"] + s["system_s"] for s in samples)
    return {
        "gb_per_s": nbytes / wall / 1e9,
        "cpu_s_per_gb": cpu / (nbytes / 1e9),
        "user_s_per_gb": statistics.median(s["user_s"] for s in samples) / (nbytes / 1e9),
        "system_s_per_gb": statistics.median(s["system_s"] for s in samples) / (nbytes / 1e9),
        "bytes": nbytes,
        "repeat": repeat,
        "samples": samples,
    }


def check(array, path, file_offset, array_offset, length, cupy):
    with open(path, "rb") as file:
        file.seek(file_offset)
        wanted = file.read(length)
    got = cupy.asnumpy(array[array_offset : array_offset + len(wanted)]).tobytes()
    if got != wanted:
        sys.exit(f"error: {path}: bytes at {file_offset} differ from what KvikIO read")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--mode", choices=("seq", "rand"), default="seq")
    parser.add_argument("--threads", default="1,2,4,8,16")
    parser.add_argument("--task-size", default="4M,16M")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--count", type=int, default=65536, help="pieces per repeat (rand)")
    parser.add_argument("--size", type=parse_size, help="bytes to read from the file's beginning (all of it)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--compat", choices=("ON", "OFF"), default="ON")
    parser.add_argument("--cold", action="store_true")
    options = parser.parse_args()

    os.environ["KVIKIO_COMPAT_MODE"] = options.compat
    if options.cold:
        os.environ["KVIKIO_AUTO_DIRECT_IO_READ"] = "ON"
    try:
        import cupy
        import kvikio
        import kvikio.defaults

        cupy.cuda.Device(0).use()
        version = kvikio.__version__
    except Exception as error:  # a missing library shows as ImportError, OSError or CuPy's own errors
        print(f"error: cannot use KvikIO: {type(error).__name__}: {error}", file=sys.stderr)
        print("hint: bench/fetch-peers.sh says how to bring it; it needs cupy-cuda13x and a GPU", file=sys.stderr)
        sys.exit(3)

    file_size = os.stat(options.file).st_size
    size = min(options.size or file_size, file_size)
    before = (lambda: drop_cache(options.file)) if options.cold else (lambda: None)
    state = "cold" if options.cold else "warm"

    for threads in (int(t) for t in options.threads.split(",")):
        for task_size in (parse_size(t) for t in options.task_size.split(",")):
            kvikio.defaults.set({"num_threads": threads, "task_size": task_size})
            case = {"peer": f"KvikIO {version}", "mode": options.mode, "state": state, "threads": threads}
            with kvikio.CuFile(options.file, "r") as file:
                if options.mode == "seq":
                    case["task_size"] = task_size
                    array = cupy.empty(size, dtype=cupy.uint8)

                    def run():
                        done = file.read(array, size)
                        if done != size:
                            sys.exit(f"error: KvikIO read {done} of {size} bytes")

                    case.update(measure(options, size, before, run))
                    for offset in (0, size // 2 & ~4095, max(0, size - (1 << 20))):
                        check(array, options.file, offset, offset, min(1 << 20, size - offset), cupy)
                else:
                    generator = random.Random(options.seed)
                    offsets = [generator.randrange(size // PIECE) * PIECE for _ in range(options.count)]
                    array = cupy.empty(IN_FLIGHT * PIECE, dtype=cupy.uint8)
                    slots = [array[i * PIECE : (i + 1) * PIECE] for i in range(IN_FLIGHT)]

                    def run():
                        for first in range(0, len(offsets), IN_FLIGHT):
                            futures = [
                                file.pread(slot, PIECE, offset)
                                for slot, offset in zip(slots, offsets[first : first + IN_FLIGHT])
                            ]
                            for future in futures:
                                if future.get() != PIECE:
                                    sys.exit("error: KvikIO read a piece short")

                    case.update(measure(options, len(offsets) * PIECE, before, run))
                    case["iops"] = case["gb_per_s"] * 1e9 / PIECE
                    last = len(offsets) - IN_FLIGHT
                    if last >= 0 and last % IN_FLIGHT == 0:
                        check(array, options.file, offsets[last], 0, PIECE, cupy)
                del array
            print(json.dumps(case), flush=True)
            if options.mode == "rand":
                break  # the task size is larger than a piece: it changes nothing


if __name__ == "__main__":
    main()
