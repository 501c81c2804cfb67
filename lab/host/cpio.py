"""Writes the archive format that kernels unpack at boot ("newc")."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO


def pack(root: Path, archive: Path) -> None:
    """Packs all below a folder, owned by root, plus the console's device node."""
    entries = sorted(root.rglob("*"))
    part = archive.with_suffix(".part")
    with open(part, "wb") as out:
        entry(out, 1, "dev", stat.S_IFDIR | 0o755, b"")
        entry(out, 2, "dev/console", stat.S_IFCHR | 0o600, b"", device=(5, 1))
        for number, path in enumerate(entries, start=3):
            mode = path.lstat().st_mode
            name = str(path.relative_to(root))
            if stat.S_ISDIR(mode):
                entry(out, number, name, stat.S_IFDIR | 0o755, b"")
            elif stat.S_ISREG(mode):
                entry(out, number, name, stat.S_IFREG | 0o755, path.read_bytes())
        entry(out, 0, "TRAILER!!!", 0, b"")
    os.replace(part, archive)


def entry(out: BinaryIO, number: int, name: str, mode: int, data: bytes, device: tuple[int, int] = (0, 0)) -> None:
    """One header with its name and data, each padded to four bytes."""
    bare = name.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(bare), 0)
    out.write(b"070701" + b"".join(b"%08x" % field for field in fields) + bare)
    out.write(b"\0" * (-(110 + len(bare)) % 4))
    out.write(data + b"\0" * (-len(data) % 4))
