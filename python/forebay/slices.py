"""Which bytes of a tensor an index asks for."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from .errors import InvalidInputError

__all__ = ["IndexOutOfBoundsError", "Selection", "is_simple", "select"]


class IndexOutOfBoundsError(InvalidInputError, IndexError):
    """An index beyond the tensor's shape; also an :class:`IndexError`, which ends a ``for`` loop over a slice."""


class Selection(NamedTuple):
    """A hyper-rectangle, with steps, of a tensor.

    Attributes:
        ranges: ``(start, stop, step)`` for each dimension of the tensor.
        shape: of the result: dimensions that a number selected are gone, those of ``None`` are there.
    """

    ranges: list[tuple[int, int, int]]
    shape: tuple[int, ...]


def select(index: Any, shape: tuple[int, ...]) -> Selection | None:
    """Understands an index of numbers, slices, ``...`` and ``None``; ``None`` for one that has anything else in it.

    >>> select((0, slice(None, None, 2)), (2, 5))
    Selection(ranges=[(0, 1, 1), (0, 5, 2)], shape=(3,))

    Raises:
        IndexOutOfBoundsError: too many indices, or a number out of bounds.
        InvalidInputError: a step that is not positive.
    """
    parts = list(index) if isinstance(index, tuple) else [index]
    if not all(is_simple(part) for part in parts):
        return None
    parts = _without_ellipsis(parts, len(shape))
    ranges: list[tuple[int, int, int]] = []
    result: list[int] = []
    for part in parts:
        if part is None:
            result.append(1)
            continue
        if len(ranges) == len(shape):
            raise IndexOutOfBoundsError(
                f"too many indices for tensor of dimension {len(shape)}", index=index, shape=list(shape)
            )
        size = shape[len(ranges)]
        if isinstance(part, slice):
            start, stop, step = _bounds(part, size)
            ranges.append((start, stop, step))
            # Not the length of a range: headers may say more than Python counts.
            result.append(-(-(stop - start) // step))
        else:
            position = _position(operator.index(part), size, len(ranges))
            ranges.append((position, position + 1, 1))
    for size in shape[len(ranges) :]:
        ranges.append((0, size, 1))
        result.append(size)
    return Selection(ranges, tuple(result))


def is_simple(part: Any) -> bool:
    """Whether a part of an index is a number, a slice, ``...`` or ``None``."""
    if part is None or part is Ellipsis or isinstance(part, slice):
        return True
    # numpy's and torch's scalars are numbers, their arrays are not, and a truth value is a mask.
    if isinstance(part, (bool, list, tuple)) or getattr(part, "shape", ()) != () or "bool" in str(type(part)):
        return False
    try:
        operator.index(part)
    except TypeError:
        return False
    return True


def _without_ellipsis(parts: list[Any], dimensions: int) -> list[Any]:
    places = [place for place, part in enumerate(parts) if part is Ellipsis]
    if not places:
        return parts
    taken = sum(1 for part in parts if part is not None and part is not Ellipsis)
    rest = [slice(None)] * max(0, dimensions - taken)
    first = places[0]
    return parts[:first] + rest + [part for part in parts[first + 1 :] if part is not Ellipsis]


def _bounds(part: slice, size: int) -> tuple[int, int, int]:
    step = 1 if part.step is None else operator.index(part.step)
    if step <= 0:
        raise InvalidInputError(
            "the step of a slice must be greater than zero",
            hints=["load it forwards, then turn it around: array[::-1], tensor.flip(0) with torch"],
            step=step,
        )
    start, stop, step = part.indices(size)
    return start, max(start, stop), step


def _position(position: int, size: int, dimension: int) -> int:
    if not -size <= position < size:
        raise IndexOutOfBoundsError(f"index {position} is out of bounds for dimension {dimension} with size {size}")
    return position % size
