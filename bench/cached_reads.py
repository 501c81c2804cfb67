#!/usr/bin/env python3
"""What threads reach that read a file in the page cache, and what the kernel's marks cost: no forebay in it.

usage: cached_reads.py FOLDER [--gib 4] [--threads 6,12,16] [--kib 4096] [--passes 3]

A new file of 4 KiB folios for each line, read pass after pass by `pread`, or copied by the kernel (process_vm_writev) from a
mapping for random reads, which leaves no marks. Prints GB/s, CPU s/GB, and how many folios were moved to the active list.
"""

import argparse
import ctypes
import mmap
import os
import threading
import time

from kernel_calls import DONTNEED, PAGE, POPULATE_WRITE, RANDOM, anonymous, libc


class Range(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("length", ctypes.c_size_t))


one, pid = ctypes.c_ulong(1), os.getpid()
libc.process_vm_writev.argtypes = [
    ctypes.c_int, ctypes.POINTER(Range), ctypes.c_ulong, ctypes.POINTER(Range), ctypes.c_ulong, ctypes.c_ulong,
]  # fmt: skip
libc.process_vm_writev.restype = ctypes.c_ssize_t


def activated():
    with open("/proc/vmstat") as counters:
        return next(int(line.split()[1]) for line in counters if line.startswith("pgactivate "))


def make(path, size):
    page = os.urandom(PAGE)
    with open(path, "wb", buffering=0) as file:
        for _ in range(size // PAGE):
            file.write(page)
        os.fsync(file.fileno())


def slots(threads, length):
    """Two for each thread, in huge pages; and their bytes."""
    size = 2 * threads * length
    start = anonymous(size)
    libc.madvise(start, size, POPULATE_WRITE)
    return start, size


def one_pass(fd, size, threads, length, mapping, memory):
    lock, at = threading.Lock(), [0]

    def work(index):
        half = 0
        while True:
            with lock:
                start = at[0]
                at[0] += length
            if start >= size:
                return
            count, half = min(length, size - start), half ^ 1
            slot = memory + (2 * index + half) * length
            if mapping is None:
                got = libc.pread(fd, slot, count, start)
            else:
                here, there = Range(mapping + start, count), Range(slot, count)
                got = libc.process_vm_writev(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
                libc.madvise(mapping + start, count, DONTNEED)
            if got != count:
                raise OSError(ctypes.get_errno(), "cannot read")

    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    before, cpu, begun = activated(), time.process_time(), time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    return f"{size / took / 1e9:5.1f} ({cpu / size * 1e9:.3f}, {(activated() - before) / 1e3:.0f} k)"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--threads", type=lambda text: [int(word) for word in text.split(",")], default=[6, 12, 16])
    parser.add_argument("--kib", type=int, default=4096)
    parser.add_argument("--passes", type=int, default=3)
    options = parser.parse_args()
    size, length = int(options.gib * (1 << 30)) // PAGE * PAGE, options.kib << 10
    path = os.path.join(options.folder, f"cached-reads-{pid}")
    print("GB/s of each pass (CPU s/GB, thousands of folios made active)")
    for way in ("pread", "mapping"):
        for threads in options.threads:
            make(path, size)
            fd = os.open(path, os.O_RDONLY)
            mapping = None
            if way == "mapping":
                mapping = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
                libc.madvise(mapping, size, RANDOM)
            memory, taken = slots(threads, length)
            passes = [one_pass(fd, size, threads, length, mapping, memory) for _ in range(options.passes)]
            print(f"  {way:7} {threads:3d} threads: " + "; ".join(passes), flush=True)
            libc.munmap(memory, taken)
            if mapping is not None:
                libc.munmap(mapping, size)
            os.close(fd)
            os.unlink(path)


if __name__ == "__main__":
    main()
