"""As much of io_uring as one operation at a time needs, by raw system calls."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct

SETUP, ENTER, REGISTER = 425, 426, 427
IOPOLL, SQPOLL = 1 << 0, 1 << 1
READ, WRITE, READ_FIXED = 22, 23, 4
REGISTER_BUFFERS = 0
GETEVENTS, SQ_WAKEUP = 1 << 0, 1 << 1
NEED_WAKEUP = 1 << 0

libc = ctypes.CDLL(None, use_errno=True)


def call(number: int, *args: int) -> int:
    """A system call; failures are OSError."""
    result = libc.syscall(number, *[ctypes.c_ulong(arg) for arg in args])
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, errno.errorcode.get(code, str(code)))
    return int(result)


class Ring:
    """A ring that holds one operation."""

    def __init__(self, flags: int = 0) -> None:
        params = ctypes.create_string_buffer(120)
        struct.pack_into("<IIIII", params, 0, 4, 4, flags, 0, 1000)
        self.fd = call(SETUP, 4, ctypes.addressof(params))
        self.flags = flags
        words = struct.unpack_from("<30I", params)
        self.sq, self.cq = words[10:20], words[20:30]
        self.submitted = mmap.mmap(self.fd, self.sq[6] + 4 * words[0], offset=0)
        self.completed = mmap.mmap(self.fd, self.cq[5] + 16 * words[1], offset=0x8000000)
        self.entries = mmap.mmap(self.fd, 64 * words[0], offset=0x10000000)

    def register(self, address: int, size: int) -> None:
        """Registers one buffer."""
        vector = struct.pack("<QQ", address, size)
        buffer = ctypes.create_string_buffer(vector, len(vector))
        call(REGISTER, self.fd, REGISTER_BUFFERS, ctypes.addressof(buffer), 1)

    def do(self, opcode: int, fd: int, address: int, size: int, offset: int) -> int:
        """Runs one operation to its end and returns its result; failures are OSError."""
        tail = struct.unpack_from("<I", self.submitted, self.sq[1])[0]
        mask = struct.unpack_from("<I", self.submitted, self.sq[2])[0]
        slot = tail & mask
        self.entries[64 * slot : 64 * slot + 64] = struct.pack(
            "<BBHiQQIIQ24x", opcode, 0, 0, fd, offset, address, size, 0, 1
        )
        struct.pack_into("<I", self.submitted, self.sq[6] + 4 * slot, slot)
        struct.pack_into("<I", self.submitted, self.sq[1], tail + 1)
        flags = GETEVENTS
        if self.flags & SQPOLL:
            flags |= SQ_WAKEUP
        head = struct.unpack_from("<I", self.completed, self.cq[0])[0]
        pending = 0 if self.flags & SQPOLL else 1
        while struct.unpack_from("<I", self.completed, self.cq[1])[0] == head:
            pending -= call(ENTER, self.fd, pending, 1, flags, 0, 0)
        at = self.cq[5] + 16 * (head & struct.unpack_from("<I", self.completed, self.cq[2])[0])
        result = struct.unpack_from("<i", self.completed, at + 8)[0]
        struct.pack_into("<I", self.completed, self.cq[0], head + 1)
        if result < 0:
            raise OSError(-result, errno.errorcode.get(-result, str(-result)))
        return int(result)

    def close(self) -> None:
        """Ends the ring."""
        os.close(self.fd)
