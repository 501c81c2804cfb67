"""Where the elements of a view lie in its file, and which memory they go to."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

__all__ = ["Piece", "compact", "is_fine", "may_overlap", "new_like", "piece_of", "runs_of", "takes_bytes"]

#: More runs than this that are shorter than that are read with what lies between them, and taken apart in memory.
_MANY_RUNS = 1 << 16
_SHORT_BYTES = 512


class Piece(NamedTuple):
    """Elements of one tensor of a file, and their destination.

    Attributes:
        array: the destination.
        offset: in the file, in bytes, of the first element.
        strides: between elements in the file, in bytes, for each dimension of ``array``; empty where they lie side by side in
            both.
        name: of the tensor in the file.
        nbytes: to read.
    """

    array: Any
    offset: int
    strides: tuple[int, ...]
    name: str
    nbytes: int

    @property
    def end(self) -> int:
        """Where in the file its last element ends."""
        if not self.strides:
            return self.offset + self.nbytes
        steps = zip(self.array.shape, self.strides, strict=True)
        return int(self.offset + sum((size - 1) * step for size, step in steps) + self.array.element_size())

    def for_engine(self) -> tuple[Any, ...]:
        """As :meth:`forebay.File.read_many` takes it."""
        return (self.array, self.offset, self.strides) if self.strides else (self.array, self.offset)


def piece_of(name: str, begin: int, plain: torch.Tensor, destination: torch.Tensor) -> Piece:
    """The elements of ``plain``, of a tensor at ``begin`` of a file, for a destination of its shape and dtype.

    Args:
        name: of the tensor.
        begin: bytes from the beginning of the file to the tensor's.
        plain: its shape, strides and offset.
        destination: strided memory.
    """
    item = plain.element_size()
    nbytes, offset = plain.numel() * item, begin + int(plain.storage_offset()) * item
    if plain.is_contiguous() and destination.is_contiguous():
        return Piece(destination.detach(), offset, (), name, nbytes)
    # In the file's order of dimensions a transposed tensor that goes to a transposed one is a single run.
    kept = [at for at, size in enumerate(plain.shape) if size != 1]
    kept.sort(key=plain.stride, reverse=True)
    array = destination.detach().squeeze().permute(_ranks(kept))
    steps = [plain.stride(at) for at in kept]
    is_run = array.is_contiguous() and steps == list(array.stride())
    strides = () if is_run else tuple(step * item for step in steps)
    return Piece(array, offset, strides, name, nbytes)


def _ranks(dimensions: list[int]) -> list[int]:
    """Where they are once the others are gone."""
    ordered = sorted(dimensions)
    return [ordered.index(at) for at in dimensions]


def runs_of(piece: Piece) -> int:
    """How many ranges of the file, each in one piece in memory, a piece consists of."""
    inner = piece.array.element_size()
    count = piece.nbytes // inner
    if not piece.strides:
        return 1
    for size, step, other in reversed(list(zip(piece.array.shape, piece.strides, piece.array.stride(), strict=True))):
        if step != inner or other * piece.array.element_size() != inner:
            break
        inner, count = inner * size, count // size
    return count


def is_fine(piece: Piece) -> bool:
    """Whether a piece consists of very many short runs."""
    count = runs_of(piece)
    return count > _MANY_RUNS and piece.nbytes // count < _SHORT_BYTES


def new_like(plain: torch.Tensor, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of this shape with the same order of dimensions, dense, and not written yet.

    ``torch.empty_like`` of a tensor on the device meta imports sympy, which takes seconds.
    """
    order = sorted(range(plain.dim()), key=plain.stride, reverse=True)
    made = torch.empty([plain.shape[at] for at in order], dtype=dtype or plain.dtype, device=device)
    return made.permute([order.index(at) for at in range(plain.dim())])


def compact(plain: torch.Tensor) -> torch.Tensor:
    """One of the elements that an expanded dimension repeats."""
    for at, (size, step) in enumerate(zip(plain.shape, plain.stride(), strict=True)):
        if step == 0 and size > 1:
            plain = plain.narrow(at, 0, 1)
    return plain


def takes_bytes(destination: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether the bytes of elements of this dtype can be read into a destination, which has memory, as they are."""
    if destination.dtype != dtype or destination.device.type not in ("cpu", "cuda"):
        return False
    if destination.requires_grad and torch.is_grad_enabled():
        return False
    if destination.is_contiguous():
        return not destination.is_conj() and not destination.is_neg()
    if destination.is_conj() or destination.is_neg():
        return False
    repeats = zip(destination.shape, destination.stride(), strict=True)
    return not any(step == 0 and size > 1 for size, step in repeats)


def may_overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two destinations may have a byte in common."""
    one, other = _hull(first), _hull(second)
    return one[0] < other[1] and other[0] < one[1] and not _are_columns(first, second)


def _hull(array: torch.Tensor) -> tuple[int, int]:
    start = array.data_ptr()
    steps = zip(array.shape, array.stride(), strict=True)
    return start, start + (sum((size - 1) * step for size, step in steps) + 1) * array.element_size()


def _are_columns(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether they are different parts, along one dimension, of the same strided array."""
    if first.stride() != second.stride() or first.dtype != second.dtype:
        return False
    low, high = sorted((first, second), key=lambda array: array.data_ptr())
    distance = (high.data_ptr() - low.data_ptr()) // low.element_size()
    for at, step in enumerate(low.stride()):
        if step and distance % step == 0 and low.shape[at] <= distance // step:
            # Rows of both, side by side, end before the next row begins.
            width = (distance // step + high.shape[at]) * step
            outer = [other for other in low.stride() if other > step]
            return all(_inner(array, step) < step for array in (low, high)) and (not outer or width <= min(outer))
    return False


def _inner(array: torch.Tensor, step: int) -> int:
    """Elements that the dimensions inside of one span."""
    return sum((size - 1) * other for size, other in zip(array.shape, array.stride(), strict=True) if other < step)
