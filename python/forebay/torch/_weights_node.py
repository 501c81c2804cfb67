"""Ranks of a node that read parts of the same rows, of files that are not in the page cache.

A slice of columns is short runs with gaps, and other ranks read the gaps. Each rank reads a contiguous part of the rows first, through the
page cache, and then its own runs from there: the disk gives each byte once, without a collective.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from .. import _locations
from .._paths import Held, Known, open_known
from ..errors import Error
from ._weights_pieces import Piece

if TYPE_CHECKING:
    from .._forebay import File

__all__ = ["NodeReads", "ranks"]

#: Places of a range that are looked at.
_SAMPLES = 8


def ranks() -> tuple[int, int]:
    """This process's number among those of the node that torchrun started together, and their number; else ``(0, 1)``."""
    try:
        rank, count = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    except (KeyError, ValueError):
        return 0, 1
    return (rank, count) if 0 <= rank < count else (0, 1)


class NodeReads:
    """This rank's part of what the ranks of its node read together."""

    def __init__(self) -> None:
        self.rank, self.count = ranks()
        self._kept: dict[Held, File] = {}
        #: Why ranks read by themselves, and a hint: for the receipt.
        self.notes: list[tuple[str, str | None]] = []

    def shared(self, held: Held, pieces: Iterable[Piece]) -> list[Piece]:
        """Those of a file's pieces between whose runs other ranks read: all go by the page cache.

        Gaps wider than the parts of the other ranks are nobody's: such pieces are left out.
        """
        if self.count == 1:
            return []
        gapped = [one for one in pieces if one.nbytes < one.end - one.offset <= one.nbytes * self.count]
        if gapped and (why := _no_cache(held.file.path)):
            if why not in self.notes:
                self.notes.append(why)
            return []
        return gapped

    def bring(self, held: Held, pieces: list[Piece]) -> File:
        """Reads this rank's part of the pieces' rows, unless it is in the page cache.

        Returns:
            The file, open so that reads go through the page cache.

        Raises:
            BusyError: another file has the name by now.
            IOFailedError, …: of the read.
        """
        file = self._kept.get(held)
        if file is None:
            file = self._kept[held] = open_known(Known(held.file, held.watch.before), cache="keep")
        parts = _cold(held.file.path, [self._part(piece) for piece in pieces])
        # A piece beyond the end of the file is an error of its own read.
        parts = [(start, min(end, file.size)) for start, end in parts if start < file.size]
        scratch = torch.empty(sum(end - start for start, end in parts), dtype=torch.uint8)
        places, at = [], 0
        for start, end in parts:
            places.append((scratch[at : at + end - start], start))
            at += end - start
        if places:
            file.read_many(places)
        return file

    def _part(self, piece: Piece) -> tuple[int, int]:
        """Of the range that a piece lies in, the part that this rank reads for all."""
        size = piece.end - piece.offset
        return piece.offset + size * self.rank // self.count, piece.offset + size * (self.rank + 1) // self.count


def _no_cache(path: str) -> tuple[str, str | None] | None:
    """Why reads of a file do not meet in a page cache."""
    if _locations.is_url(path):
        return "each rank reads its rows from the server: its node has no page cache for them", None
    if os.environ.get("FOREBAY_CACHE") == "bypass":
        return "each rank reads its rows from the disk: the page cache is bypassed", "unset FOREBAY_CACHE"
    return None


def _cold(path: str, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges of which a byte has to come from the disk, by samples."""
    try:
        file = _locations.opened(path)
    except Error:
        return []
    with file:
        return [
            (start, end)
            for start, end in ranges
            if any(_is_absent(file.fileno(), start + (end - start) * at // _SAMPLES) for at in range(_SAMPLES))
        ]


def _is_absent(file: int, offset: int) -> bool:
    try:
        os.preadv(file, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError:
        # A file system that does not tell.
        return False
    return False
