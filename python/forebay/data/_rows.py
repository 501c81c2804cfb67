"""Numbers of records, as programs give them."""

from __future__ import annotations

import contextlib
import operator
from array import array as packed_array
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import InvalidInputError, OutOfMemoryError
from ..slices import IndexOutOfBoundsError
from ._memory import is_beyond_memory

__all__ = [
    "NotRecordNumbersError",
    "host_rows",
    "listed_rows",
    "not_row_numbers",
    "one_row",
    "pack_numbers",
    "packed_range",
    "row_numbers",
]


class NotRecordNumbersError(InvalidInputError, TypeError):
    """Something that is no whole number where records are asked for by theirs; also a :class:`TypeError`."""


def row_numbers(rows: Any) -> tuple[Any, int]:
    """Numbers of records as the native half takes them, and how many these are.

    Raises:
        InvalidInputError: they are no list of whole numbers.
    """
    if isinstance(rows, bytes):
        if len(rows) % 8:
            raise not_row_numbers("bytes that are no packed 64-bit integers")
        return rows, len(rows) // 8
    if isinstance(rows, str):
        raise InvalidInputError(f"there is no column {rows!r}", hints=["these records have no columns: give numbers"])
    dtype = getattr(rows, "dtype", None)
    if hasattr(rows, "mask") and hasattr(rows, "compressed"):
        # numpy's masked arrays: what lies behind the mask is a number, too.
        raise NotRecordNumbersError("record numbers cannot be masked", hints=["rows.compressed()"])
    if dtype is not None:
        rows = _whole_numbers(rows, dtype)
    elif not isinstance(rows, (list, tuple)):
        if not isinstance(rows, Iterable):
            raise not_row_numbers(type(rows).__name__)
        rows = list(rows)
    if isinstance(rows, (list, tuple)):
        for kind in set(map(type, rows)):
            if kind is bool or not hasattr(kind, "__index__"):
                raise not_row_numbers(kind.__name__)
    return rows, len(rows)


def one_row(index: Any) -> int | None:
    """The number by which one record is asked for; ``None`` where several are.

    Raises:
        InvalidInputError: it is none.
    """
    if not hasattr(index, "__index__") or getattr(index, "shape", ()) != ():
        return None
    kind = str(getattr(index, "dtype", type(index).__name__)).removeprefix("torch.")
    if kind == "bool":
        raise not_row_numbers(kind)
    try:
        return operator.index(index)
    except TypeError:
        raise not_row_numbers(kind) from None


def _whole_numbers(rows: Any, dtype: Any) -> Any:
    if len(rows.shape) != 1:
        hints = ["rows.reshape(-1), and the batch back again"]
        raise InvalidInputError(f"record numbers of {len(rows.shape)} dimensions", hints=hints, shape=tuple(rows.shape))
    name = str(dtype).removeprefix("torch.")
    if name in ("int64", "I64"):
        if hasattr(rows, "contiguous"):
            return rows.contiguous()
        return rows if getattr(getattr(rows, "flags", None), "c_contiguous", True) else rows.copy()
    # Numbers in the other order of bytes have no such name (">i8").
    is_whole = name.removeprefix("u").startswith("int") or getattr(dtype, "kind", "") in ("i", "u")
    if not is_whole and len(rows):
        raise not_row_numbers(name)
    # Narrower ones, and unsigned ones, of which the largest would turn negative.
    return rows.tolist()


def packed_range(rows: range) -> bytes:
    """The numbers of a range, packed.

    Raises:
        OutOfMemoryError: they are too many.
    """
    count = (rows[-1] - rows[0]) // rows.step + 1 if rows else 0
    if not is_beyond_memory(8 * count):
        with contextlib.suppress(MemoryError):
            return packed_array("q", rows).tobytes()
    hints = ["take them in parts: forebay.data.Loader(records, batch_size)"]
    raise OutOfMemoryError("no memory for a batch: its record numbers alone are too many", hints=hints, records=count)


def host_rows(rows: Any) -> Any:
    """The result of :func:`row_numbers`, as numpy's array of 64-bit integers in host memory."""
    import numpy

    if isinstance(rows, (bytes, list, tuple)):
        return numpy.frombuffer(rows if isinstance(rows, bytes) else pack_numbers(rows), "int64")
    if hasattr(rows, "cpu"):
        return rows.cpu().numpy()
    return rows.get() if hasattr(rows, "get") else numpy.asarray(rows, "int64")


def listed_rows(rows: Any) -> list[int]:
    """Numbers of records as a list of Python's.

    Raises:
        InvalidInputError: they are no list of whole numbers.
    """
    rows, _ = row_numbers(rows)
    if isinstance(rows, bytes):
        return memoryview(rows).cast("q").tolist()
    return [operator.index(row) for row in (rows.tolist() if hasattr(rows, "tolist") else rows)]


def pack_numbers(rows: Sequence[Any]) -> packed_array[int]:
    """Whole numbers, and no fraction that would be cut off."""
    try:
        return packed_array("q", map(operator.index, rows))
    except OverflowError:
        farthest = max(map(operator.index, rows), key=abs)
        raise IndexOutOfBoundsError(f"record {farthest} is out of bounds") from None


def not_row_numbers(kind: str) -> NotRecordNumbersError:
    """The error for numbers of another kind."""
    hints = ["give whole numbers: 7, [7, 0], a slice, or an array of 64-bit integers"]
    if kind == "bool":
        hints = ["numpy.flatnonzero(mask), mask.nonzero().flatten()"]
    return NotRecordNumbersError(f"record numbers cannot be {kind}", hints=hints)
