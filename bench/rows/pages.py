"""Files in known states of the page cache, checked before each measurement.

cat     dropped, shown to be gone, and read back by `cat`: readahead makes large folios
pieces  written by 64 KiB calls and synced: small folios
saved   written by safetensors' `save_file` and synced
tmpfs   a copy on a tmpfs
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

from measure import drop, resident_pages, warm

from rows.common import Bench, Failed, Skip, run

PAGE = mmap.PAGESIZE
PIECE = 64 << 10
STATES = ("cat", "pieces", "saved", "tmpfs")
#: A bit of /proc/kpageflags, and samples by which folios are measured.
TAIL, WINDOW, WINDOWS = 16, 2 << 20, 32
SAVE = """
import sys
try:
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"safetensors.torch cannot be imported: {error}", file=sys.stderr)
    sys.exit(3)
save_file(load_file(sys.argv[1]), sys.argv[2])
"""


def make_file(bench: Bench, size: int, name: str = "read") -> Path:
    """A file of the row's size, with the pattern that cufile_bench knows: no block is like another."""
    size = bench.size or size
    path = bench.folder / f"{name}.{size >> 20}M"
    if not path.exists() or path.stat().st_size != size:
        run([bench.program(bench.build, "cufile_bench"), "--file", path, "--make", "--size", size], limit=300)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    return path


def cold(path: Path) -> dict[str, Any]:
    try:
        drop(str(path))
    except SystemExit as error:
        raise Failed(str(error)) from None
    return {"cache": "dropped"}


def read_back(path: Path) -> None:
    cold(path)
    with open(os.devnull, "wb") as nothing:
        subprocess.run(["cat", str(path)], stdout=nothing, check=True)


def in_pieces(source: Path, path: Path) -> None:
    with open(source, "rb", buffering=0) as old, open(path, "wb", buffering=0) as new:
        while piece := old.read(PIECE):
            new.write(piece)
        os.fsync(new.fileno())


def place(bench: Bench, source: Path, state: str) -> Path:
    """Where the file of a state lies; the caller removes it, unless it is the source."""
    if state == "cat":
        return source
    return (
        bench.folder / f"{state}{source.suffix}" if state != "tmpfs" else Path(f"/dev/shm/{os.getpid()}-{source.name}")
    )


def make(source: Path, path: Path, state: str) -> None:
    if path != source:
        # Pages that are written again keep what the kernel knows of them.
        path.unlink(missing_ok=True)
    if state == "cat":
        read_back(source)
    elif state == "pieces":
        in_pieces(source, path)
    elif state == "tmpfs":
        if shutil.disk_usage("/dev/shm").free < source.stat().st_size:
            raise Skip("/dev/shm has no room for the file")
        shutil.copyfile(source, path)
    else:
        run([sys.executable, "-c", SAVE, source, path], limit=300)
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def ready(bench: Bench, source: Path, path: Path, state: str, is_anew: bool = False) -> dict[str, Any]:
    """Makes the file's state before the first run on it, and again where more than 1 % has left the page cache since; a
    smaller part is read back. Or each time: the kernel moves each folio of a file that was written to another list when it is
    read for the first or second time, under one lock, and only the program that reads it then waits for that. Tells the mean
    size of its folios."""
    if is_anew or (path, state) not in bench.made or not path.exists() or missing(path) > 0.01:
        make(source, path, state)
        bench.made.add((path, state))
    if missing(path):
        warm(str(path))
    if left := missing(path):
        raise Failed(f"{left:.1%} of {path} does not stay in the page cache")
    return {"cache": state, "folio_kib": folio_kib(path)}


def missing(path: Path) -> float:
    """The part of a file that is not in the page cache."""
    pages = (path.stat().st_size + PAGE - 1) // PAGE
    return 1 - resident_pages(str(path)) / pages


def folio_kib(path: Path) -> float | None:
    """Mean size of the folios of a cached file, from samples; None if that cannot be seen (it needs root)."""
    size = path.stat().st_size
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    with open(path, "rb") as file:
        start = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    if start in (None, ctypes.c_void_p(-1).value):
        return None
    pages = folios = 0
    try:
        with open("/proc/self/pagemap", "rb") as places, open("/proc/kpageflags", "rb") as flags:
            for at in range(0, size - WINDOW + 1, max(WINDOW, size // WINDOWS // WINDOW * WINDOW)):
                for page in range(0, WINDOW, PAGE):
                    ctypes.c_ubyte.from_address(start + at + page).value  # noqa: B018 (maps the page)
                entries = os.pread(places.fileno(), WINDOW // PAGE * 8, (start + at) // PAGE * 8)
                for (entry,) in struct.iter_unpack("<Q", entries):
                    frame = os.pread(flags.fileno(), 8, (entry & ((1 << 55) - 1)) * 8)
                    pages += 1
                    folios += not struct.unpack("<Q", frame)[0] >> TAIL & 1
    except (OSError, struct.error):
        return None
    finally:
        libc.munmap(ctypes.c_void_p(start), ctypes.c_size_t(size))
    return round(pages * PAGE / 1024 / folios, 1) if folios else None
