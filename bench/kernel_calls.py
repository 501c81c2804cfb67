"""The C library's memory and file calls, for programs that measure bare calls."""

import ctypes
import mmap

MIB = 1 << 20
PAGE = mmap.PAGESIZE
#: Advice of madvise.
DONTNEED, HUGEPAGE, POPULATE_READ, POPULATE_WRITE, RANDOM = 4, 14, 22, 23, 1

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.pread.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
libc.pread.restype = ctypes.c_ssize_t


def anonymous(length, huge=True):
    """Memory of our own that starts at a multiple of 2 MiB, in huge pages where the kernel has them; never given back."""
    raw = libc.mmap(None, length + 2 * MIB, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    start = (raw + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)
    if huge:
        libc.madvise(start, length, HUGEPAGE)
    return start
