"""The account of a checkpoint's reads."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._forebay import Receipt

__all__ = ["Stats"]


class Stats:
    """A checkpoint's reads so far. Printed, it is a receipt.

    Attributes:
        bytes: read, or on their way.
        pieces: the parts of files that were read; a strided slice is one.
        copied: tensors and slices that were read straight into a destination (``destination.copy_(tensor)``).
        moved: those that ``.to(device)`` and its like read on the device that the program named.
        cast: those of them that had another dtype than the program asked for: read first, then cast.
        whole: tensors and slices that an operation needed in memory, and that were read for it.
        operations: how often each operation read a tensor, by its name; copies that were read straight are not in it.
        engines: bytes of finished reads by engine.
        refused: engines that were not taken, and why: ``(engine, reason, hint)``.
        notes: what made reads slower than they could be: ``(text, hint)``.
    """

    def __init__(self) -> None:
        self.bytes = self.pieces = self.copied = self.moved = self.cast = self.whole = 0
        self.operations: Counter[str] = Counter()
        self.engines: Counter[str] = Counter()
        self.refused: list[tuple[str, str, str | None]] = []
        self.notes: list[tuple[str, str | None]] = []

    def add_receipt(self, receipt: Receipt) -> None:
        """Adds the receipt of a finished read."""
        self.engines.update(receipt.engines)
        self.refused += [one for one in receipt.refused if one not in self.refused]
        self.notes += [one for one in receipt.notes if one not in self.notes]

    def __str__(self) -> str:
        lines = [
            f"{self.bytes / 1e9:.3g} GB in {self.pieces} pieces: "
            f"{self.copied} straight into place, {self.moved} to a device, {self.whole} for other operations"
        ]
        if self.engines:
            lines.append(", ".join(f"{engine} {count / 1e9:.3g} GB" for engine, count in self.engines.most_common()))
        if self.operations:
            told = ", ".join(f"{name} {count}" for name, count in self.operations.most_common())
            lines.append(f"operations that read a tensor: {told}")
        lines += [f"not {engine}: {reason}" for engine, reason, _ in self.refused]
        lines += [text for text, _ in self.notes]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Stats: {str(self).splitlines()[0]}>"
