#!/usr/bin/env python3
"""How fast new pages of a tmpfs file can be had at all: the ceiling for writing a new file there.

usage: tmpfs_pages.py FOLDER [GIB]

By MADV_POPULATE_WRITE from 1, 2, 4 and 8 processes (each page is allocated, cleared and mapped), and by fallocate
(allocated only: the kernel clears such a page when it is first used). Prints a line of GB/s for each.
"""
import mmap
import os
import sys
import time

MADV_POPULATE_WRITE = 23


def timed(size, work):
    start = time.perf_counter()
    work()
    return size / (time.perf_counter() - start) / 1e9


def populate(path, size, workers):
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    os.ftruncate(fd, size)
    part = size // workers

    def work():
        children = []
        for index in range(workers):
            child = os.fork()
            if child == 0:
                view = mmap.mmap(fd, part, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=index * part)
                view.madvise(MADV_POPULATE_WRITE)
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)

    speed = timed(size, work)
    os.close(fd)
    os.unlink(path)
    return speed


def allocate(path, size):
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    speed = timed(size, lambda: os.posix_fallocate(fd, 0, size))
    os.close(fd)
    os.unlink(path)
    return speed


def main():
    folder, gib = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4
    path = os.path.join(folder, f"pages-{os.getpid()}")
    size = gib << 30
    populate(path, size, 4)  # The machine's memory may have to grow first.
    for workers in (1, 2, 4, 8):
        print(f"populate {workers}: {sorted(populate(path, size, workers) for _ in range(3))[1]:.2f} GB/s")
    print(f"fallocate: {sorted(allocate(path, size) for _ in range(3))[1]:.2f} GB/s")


main()
