"""Some of a source's records: a part for training, another for validation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from ..slices import IndexOutOfBoundsError
from ._memory import Memory
from ._plain import need_numpy
from ._records import Pending, Records
from ._rows import host_rows, row_numbers

if TYPE_CHECKING:
    from ._files import FileSet

__all__ = ["Selected", "selected"]


class Selected(Records):
    """Records of another source by their numbers. Made by :meth:`Records.select`."""

    def __init__(self, records: Records, rows: Any) -> None:
        self.records, self._rows = records, rows
        self.framework, self.device = records.framework, records.device

    def __len__(self) -> int:
        return len(self._rows)

    def _there(self, rows: Any) -> Any:
        """Numbers in the source of numbers here, packed."""
        numpy = need_numpy()
        rows, count = row_numbers(rows)
        asked = host_rows(rows)
        if count:
            self._checked(int(asked.min())), self._checked(int(asked.max()))
            asked = numpy.where(asked < 0, asked + len(self), asked)
        if isinstance(self._rows, range):
            return (self._rows.start + self._rows.step * asked).astype("int64").tobytes()
        return self._rows[asked].tobytes()

    def read_async(self, rows: Any, memory: Memory | None = None) -> Pending:
        return self.records.read_async(self._there(rows), memory)

    def _one(self, row: int) -> Any:
        return self.records._one(int(self._rows[self._checked(row)]))

    @property
    def fingerprint(self) -> str:
        rows = self._rows
        told = repr(rows).encode() if isinstance(rows, range) else rows.tobytes()
        return hashlib.sha256(self.records.fingerprint.encode() + told).hexdigest()[:32]

    @property
    def nbytes_hint(self) -> int:
        return self.records.nbytes_hint

    def file_sets(self) -> Sequence[FileSet]:
        return self.records.file_sets()

    def extents(self, start: int, stop: int) -> list[tuple[str, int, int]]:
        # Scattered ones are not read ahead: most of what lies between is not asked for.
        if not isinstance(self._rows, range) or self._rows.step != 1:
            return []
        return self.records.extents(self._rows.start + start, self._rows.start + stop)

    def to(self, device: object = None, framework: str | None = None) -> Self:
        return type(self)(self.records.to(device, framework), self._rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            return type(self)(self.records[index], self._rows)
        return super().__getitem__(index)

    def __reduce__(self) -> tuple[Any, ...]:
        # Framework and device come from the records, which find those of the process.
        return type(self), (self.records, self._rows)

    def __repr__(self) -> str:
        return f"<{len(self)} of {self.records!r}>"


def selected(records: Records, rows: Any) -> Selected:
    """The records with these numbers, checked."""
    size = len(records)
    if isinstance(rows, slice):
        rows = range(*rows.indices(size))
    if isinstance(rows, range):
        for row in (rows[0], rows[-1]) if rows else ():
            if not 0 <= row < size:
                hints = [f"numbers from 0 to {size - 1}"]
                raise IndexOutOfBoundsError(f"there is no record {row}", hints=hints)
        return Selected(records, rows)
    numpy = need_numpy()
    numbers = host_rows(row_numbers(rows)[0]).copy()
    if len(numbers):
        records._checked(int(numbers.min())), records._checked(int(numbers.max()))
    return Selected(records, numpy.where(numbers < 0, numbers + size, numbers))
