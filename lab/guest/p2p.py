"""What the kernel does with memory that is a PCI BAR: p2p.py PROVIDER [NAME=EXPECTED ...] TARGET.

Runs each operation between the target (a file or block device, opened with O_DIRECT) and a mapping of
p2pmem/allocate of the provider (a PCI address), compares bytes, and prints `operation outcome`. Outcomes are `ok`,
`WRONG` (the call succeeded, other bytes arrived) and names of errors. Fails where an outcome is not the expected
one; `all=` is the expected result of those that are not named (`ok` if it is not given either). `A|B` expects either.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import sys
from collections.abc import Callable

import uring

SIZE = 64 << 10
SPAN = 1 << 20


class Probe:
    """A target, memory of a BAR, and ordinary memory to compare with."""

    def __init__(self, provider: str, target: str) -> None:
        allocate = os.open(f"/sys/bus/pci/devices/{provider}/p2pmem/allocate", os.O_RDWR)
        self.bar = mmap.mmap(allocate, SPAN, mmap.MAP_SHARED)
        os.close(allocate)
        self.fd = os.open(target, os.O_RDWR | os.O_DIRECT)
        self.host = mmap.mmap(-1, SPAN)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.bar))
        self.seed = 0

    def fresh(self, size: int) -> bytes:
        """Bytes that have not been there before."""
        self.seed += 1
        return random.Random(self.seed).randbytes(size)

    def reads(self, move: Callable[[], int], size: int = SIZE) -> str:
        """Bytes that ordinary memory wrote arrive in the BAR."""
        want = self.fresh(size)
        self.host[:size] = want
        os.pwrite(self.fd, memoryview(self.host)[:size], 0)
        self.bar[:size] = bytes(size)
        return self.verdict(move(), size, lambda: bytes(self.bar[:size]) == want)

    def writes(self, move: Callable[[], int], size: int = SIZE) -> str:
        """Bytes of the BAR are what ordinary memory reads afterwards."""
        want = self.fresh(size)
        self.bar[:size] = want
        got = self.verdict(move(), size, lambda: True)
        os.preadv(self.fd, [memoryview(self.host)[:size]], 0)
        return got if bytes(self.host[:size]) == want else "WRONG"

    @staticmethod
    def verdict(moved: int, size: int, same: Callable[[], bool]) -> str:
        if moved != size:
            return f"short:{moved}"
        return "ok" if same() else "WRONG"

    def pread(self, size: int) -> str:
        return self.reads(lambda: os.preadv(self.fd, [memoryview(self.bar)[:size]], 0), size)

    def pwrite(self, size: int) -> str:
        return self.writes(lambda: os.pwritev(self.fd, [memoryview(self.bar)[:size]], 0), size)

    def mixed(self) -> str:
        """One preadv into ordinary memory and the BAR."""
        want = self.fresh(8192)
        self.host[:8192] = want
        os.pwrite(self.fd, memoryview(self.host)[:8192], 0)
        self.bar[:4096] = bytes(4096)
        self.host[:4096] = bytes(4096)
        moved = os.preadv(self.fd, [memoryview(self.host)[:4096], memoryview(self.bar)[:4096]], 0)
        return self.verdict(moved, 8192, lambda: self.host[:4096] + self.bar[:4096] == want)

    def ring(self, flags: int) -> str:
        """Both directions through io_uring."""
        ring = uring.Ring(flags)
        try:
            read = self.reads(lambda: ring.do(uring.READ, self.fd, self.address, SIZE, 0))
            return self.writes(lambda: ring.do(uring.WRITE, self.fd, self.address, SIZE, 0)) if read == "ok" else read
        finally:
            ring.close()

    def fixed(self) -> str:
        ring = uring.Ring()
        try:
            ring.register(self.address, SIZE)
        finally:
            ring.close()
        return "ok"

    def mlock(self) -> str:
        if uring.libc.mlock(ctypes.c_void_p(self.address), ctypes.c_size_t(4096)) != 0:
            raise OSError(ctypes.get_errno(), "mlock")
        return "ok"

    def operations(self) -> dict[str, Callable[[], str]]:
        """The operations to try, by name."""
        return {
            "pread-64k": lambda: self.pread(SIZE),
            "pread-4k": lambda: self.pread(4096),
            "pread-512": lambda: self.pread(512),
            "pwrite-64k": lambda: self.pwrite(SIZE),
            "pwrite-4k": lambda: self.pwrite(4096),
            "mixed": self.mixed,
            "uring": lambda: self.ring(0),
            "uring-sqpoll": lambda: self.ring(uring.SQPOLL),
            "uring-iopoll": lambda: self.ring(uring.IOPOLL),
            "uring-fixed": self.fixed,
            "mlock": self.mlock,
        }


def outcome(operation: Callable[[], str]) -> str:
    """The result, in a word."""
    try:
        return operation()
    except OSError as error:
        # One number with two names; the kernel says EOPNOTSUPP.
        return errno.errorcode.get(error.errno or 0, str(error.errno)).replace("ENOTSUP", "EOPNOTSUPP")


def main() -> int:
    provider, *rest, target = sys.argv[1:]
    expected = dict(word.split("=", 1) for word in rest)
    bad = 0
    operations = Probe(provider, target).operations()
    if unknown := set(expected) - set(operations) - {"all"}:
        sys.exit(f"error: no such operation: {', '.join(unknown)}")
    for name, operation in operations.items():
        want = expected.get(name, expected.get("all", "ok"))
        got = outcome(operation)
        print(f"  {name:13} {got}{'' if got in want.split('|') else f'   NOT AS EXPECTED: {want}'}", flush=True)
        bad += got not in want.split("|")
    return 1 if bad else 0


sys.exit(main())
