#!/usr/bin/env python3
"""What registering costs a process, by bare driver calls: no forebay in it.

    bench/registering.py FOLDER [--size GIB] [--threads N]

Prints four tables: pinning memory of one's own (by size, way, parallel threads); registering a warm file's pages, by the
size of a call and the state of the page cache (read back: large folios; written in 64 KiB pieces: small ones; tmpfs);
copies of N threads (pread into a pinned slot, copy, event) while another thread registers for a part of the time; and one
pass of callers that copy in place while another thread registers the file ahead of them, window by window.
"""

# ruff: noqa: B023 (the timed function runs at once)

import argparse
import ctypes
import mmap
import os
import statistics
import threading
import time

from kernel_calls import MIB, POPULATE_READ, POPULATE_WRITE, anonymous, libc

PORTABLE, MAPPED, READ_ONLY = 1, 2, 8

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *args):
    code = getattr(cuda, name)(*args)
    if code:
        raise RuntimeError(f"{name}: error {code}")


def p(value):
    return ctypes.c_void_p(value)


def size(value):
    return ctypes.c_size_t(value)


class Gpu:
    def __init__(self):
        call("cuInit", 0)
        self.context = ctypes.c_void_p()
        call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.enter()

    def enter(self):
        call("cuCtxSetCurrent", self.context)

    def allocate(self, length):
        address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(address), size(length))
        return address.value


def timed(work):
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def pinning(gpu):
    print("pinning memory of one's own, ms: MiB, populate, register; register alone (no huge pages); cuMemHostAlloc")
    for mib in (2, 4, 20, 64, 160, 256):
        length = mib * MIB
        at, small = anonymous(length), anonymous(length, huge=False)
        populate = timed(lambda: libc.madvise(at, length, POPULATE_WRITE))
        register = timed(lambda: call("cuMemHostRegister_v2", p(at), size(length), PORTABLE | MAPPED))
        libc.madvise(small, length, POPULATE_WRITE)
        unhuge = timed(lambda: call("cuMemHostRegister_v2", p(small), size(length), PORTABLE | MAPPED))
        address = ctypes.c_void_p()
        own = timed(lambda: call("cuMemHostAlloc", ctypes.byref(address), size(length), PORTABLE | MAPPED))
        print(f"  {mib:4d}  {populate:7.2f} {register:7.2f}  {unhuge:7.2f}  {own:7.2f}")
    for threads in (4, 8, 16):

        def each():
            gpu.enter()
            at = anonymous(8 * MIB)
            libc.madvise(at, 8 * MIB, POPULATE_WRITE)
            call("cuMemHostRegister_v2", p(at), size(8 * MIB), PORTABLE | MAPPED)

        print(f"  {threads} threads, 8 MiB each: {timed(lambda: together(threads, each)):7.2f} ms")

    def allocate_huge():
        at = anonymous(256 * MIB)
        part = 256 * MIB // 16
        together(16, lambda i: libc.madvise(at + i * part, part, POPULATE_WRITE), numbered=True)

    print(f"  256 MiB populated by 16 threads: {timed(allocate_huge):7.2f} ms")


def together(count, work, numbered=False):
    threads = [threading.Thread(target=work, args=(i,) if numbered else ()) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def write_file(path, length, how):
    piece = 64 << 10
    block = os.urandom(piece)
    with open(path, "wb", buffering=0) as file:
        for _ in range(length // piece):
            file.write(block)
        os.fsync(file.fileno())
        if how == "read back":
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(MIB)
        while file.readinto(buffer):
            pass


def map_file(path, length):
    fd = os.open(path, os.O_RDONLY)
    at = libc.mmap(None, length, 1, mmap.MAP_SHARED, fd, 0)
    return fd, at


def registering(path, length, how):
    rates = []
    for window in (2, 4, 8, 16, 64):
        fd, at = map_file(path, length)
        step, calls = window * MIB, []
        count = min(length // step, 96)
        populate = timed(lambda: libc.madvise(at, count * step, POPULATE_READ))
        for i in range(count):
            calls.append(timed(lambda: call("cuMemHostRegister_v2", p(at + i * step), size(step), MAPPED | READ_ONLY)))
        undo = timed(lambda: [call("cuMemHostUnregister", p(at + i * step)) for i in range(count)])
        total = count * step / 1e6
        rates.append(
            f"{window}: {total / sum(calls):5.1f} ({statistics.median(calls) * 1e3:.0f} us a call; populate {total / populate:.0f}, undo {total / undo:.0f})"
        )
        libc.munmap(at, length)
        os.close(fd)
    print(f"  {how}: " + "; ".join(rates))


def beside(gpu, path, length, threads, window, share):
    """GB/s of copies and of registering while one thread registers for `share` of the time."""
    chunk, stop, moved, registered = 2 * MIB, threading.Event(), [0] * threads, [0]

    def copier(i):
        gpu.enter()
        slot = anonymous(2 * chunk)
        call("cuMemHostRegister_v2", p(slot), size(2 * chunk), PORTABLE | MAPPED)
        stream, fd, target = ctypes.c_void_p(), os.open(path, os.O_RDONLY), gpu.allocate(chunk)
        call("cuStreamCreate", ctypes.byref(stream), 1)
        ready.wait()
        at, half = i * (length // threads), 0
        while not stop.is_set():
            libc.pread(fd, slot + half * chunk, chunk, at)
            call("cuStreamSynchronize", stream)
            call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(target), p(slot + half * chunk), size(chunk), stream)
            half ^= 1
            at = (at + chunk) % (length - chunk)
            moved[i] += chunk
        call("cuStreamSynchronize", stream)
        os.close(fd)

    def registrar():
        gpu.enter()
        fd, base = map_file(path, length)
        libc.madvise(base, length, POPULATE_READ)
        ready.wait()
        step = window * MIB
        while not stop.is_set():
            done = 0
            for i in range(length // step):
                if stop.is_set():
                    break
                ms = timed(lambda: call("cuMemHostRegister_v2", p(base + i * step), size(step), MAPPED | READ_ONLY))
                registered[0] += step
                done += 1
                if share < 1:
                    time.sleep(ms / 1e3 * (1 / share - 1))
            for i in range(done):
                call("cuMemHostUnregister", p(base + i * step))
        libc.munmap(base, length)
        os.close(fd)

    ready = threading.Barrier(threads + 1 + (share > 0))
    workers = [threading.Thread(target=copier, args=(i,)) for i in range(threads)]
    if share > 0:
        workers.append(threading.Thread(target=registrar))
    for worker in workers:
        worker.start()
    ready.wait()
    time.sleep(0.15)
    start, copied, pinned = time.perf_counter(), sum(moved), registered[0]
    time.sleep(0.6)
    took = time.perf_counter() - start
    copied, pinned = sum(moved) - copied, registered[0] - pinned
    stop.set()
    for worker in workers:
        worker.join()
    return copied / took / 1e9, pinned / took / 1e9


def ahead(gpu, path, length, threads, piece, gap):
    """GB/s of a pass in which one thread registers windows of 64 MiB, with a gap in us after each, and callers copy pieces in
    place as soon as their window is there; of the next pass; and CPU seconds for a GB of both."""
    window, at, lock, rates, target = 64 * MIB, [0], threading.Lock(), [], gpu.allocate(length)
    fd, base = map_file(path, length)
    ready = [threading.Event() for _ in range(length // window)]

    def registrar():
        gpu.enter()
        libc.madvise(base, length, POPULATE_READ)
        for i, told in enumerate(ready):
            call("cuMemHostRegister_v2", p(base + i * window), size(window), MAPPED | READ_ONLY)
            told.set()
            if gap:
                time.sleep(gap / 1e6)

    def caller():
        gpu.enter()
        stream, event = ctypes.c_void_p(), ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(stream), 1)
        call("cuEventCreate", ctypes.byref(event), 2 | 1)
        while True:
            with lock:
                start = at[0]
                at[0] += piece
            if start >= length:
                return
            ready[start // window].wait()
            call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(target + start), p(base + start), size(piece), stream)
            call("cuEventRecord", event, stream)
            call("cuEventSynchronize", event)

    for turn in range(2):
        at[0], workers = 0, [threading.Thread(target=caller) for _ in range(threads)]
        if turn == 0:
            workers.append(threading.Thread(target=registrar))
        cpu, start = time.process_time(), time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        took = time.perf_counter() - start
        rates += [length / took / 1e9, (time.process_time() - cpu) / (length / 1e9)]
    for i in range(len(ready)):
        call("cuMemHostUnregister", p(base + i * window))
    call("cuMemFree_v2", ctypes.c_uint64(target))
    libc.munmap(base, length)
    os.close(fd)
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--size", type=float, default=2, help="GiB of the file")
    parser.add_argument("--threads", type=int, default=12)
    parser.add_argument("--only", choices=("ahead",), help="this table alone")
    args = parser.parse_args()
    gpu, length = Gpu(), int(args.size * 1024) * MIB
    print(f"first call after the context: {timed(lambda: call('cuCtxSynchronize')):.2f} ms")
    if not args.only:
        pinning(gpu)
    print("registering a file's pages, GB/s by MiB of a call")
    states = [("read back", args.folder), ("written in pieces", args.folder), ("tmpfs", "/dev/shm")]
    for how, folder in states:
        path = os.path.join(folder, "registering.bin")
        write_file(path, length, how)
        registering(path, length, how)
        print(f"copies of {args.threads} threads beside it, {how}: GB/s copied, GB/s registered")
        for window, share in (
            () if args.only else ((4, 0), (64, 1), (4, 1), (64, 0.3), (4, 0.3), (4, 0.15), (16, 0.15), (2, 0.15))
        ):
            copied, pinned = beside(gpu, path, length, args.threads, window, share)
            print(f"  {window:3d} MiB, share {share:4.2f}: {copied:6.1f} {pinned:6.1f}", flush=True)
        print(f"callers in place behind a thread that registers, {how}: GB/s (CPU s/GB) of this pass, of the next")
        for threads, mib, gap in (
            (16, 4, 0),
            (16, 4, 50),
            (16, 4, 150),
            (8, 4, 50),
            (16, 1, 0),
            (16, 1, 50),
            (1, 16, 0),
            (1, 16, 50),
        ):
            first, first_cpu, next_, next_cpu = ahead(gpu, path, length, threads, mib * MIB, gap)
            print(
                f"  {threads:2d} x {mib:2d} MiB, gap {gap:3d} us: {first:5.1f} ({first_cpu:.3f}), {next_:5.1f} ({next_cpu:.3f})",
                flush=True,
            )
        os.unlink(path)


if __name__ == "__main__":
    main()
