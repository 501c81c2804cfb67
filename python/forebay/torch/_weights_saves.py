"""Saves tensors that are still in their files: reads them part by part, so that a save needs no room for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..errors import UnsupportedError
from ..frameworks import CPU, Described, NotContiguousError
from ..frameworks.torch import FRAMEWORK, stored_shape, why_not_contiguous
from ._weights_pieces import Piece
from ._weights_reads import Reads, Stored
from ._weights_tensor import Weight

__all__ = ["cover", "describe", "read_bytes"]


def describe(weight: Weight, name: str) -> Described:
    """A tensor as a file has it, without an address.

    Raises:
        NotContiguousError: its elements do not lie side by side in the file.
        UnsupportedError: no file has its dtype.
    """
    dtype = FRAMEWORK.dtype_name(weight.dtype)
    if dtype is None:
        hints = ["cast it first: .to(torch.float32)"]
        raise UnsupportedError("no file has such a dtype", hints=hints, tensor=name, dtype=weight.dtype)
    if (why := why_not_contiguous(weight)) is not None:
        # Its own `contiguous()` is a view, where it can be one.
        raise NotContiguousError(why[0], hints=["tensor.contiguous(), or tensor.clone()"], tensor=name)
    return Described(dtype, stored_shape(tuple(weight.shape), dtype), 0, weight.nbytes, CPU, weight)


def read_bytes(parts: Sequence[tuple[Weight, int, int]]) -> list[torch.Tensor]:
    """Parts of contiguous tensors, each with its first byte and their number: in host memory, read together.

    Raises:
        ShortReadError, BusyError, IOFailedError, …: with tensor, file and range.
    """
    made = [torch.empty(count, dtype=torch.uint8) for _, _, count in parts]
    wanted: dict[Reads, list[tuple[Stored, Piece]]] = {}
    for (weight, start, count), room in zip(parts, made, strict=True):
        piece = Piece(room, weight.offset + start, (), weight.key, count)
        wanted.setdefault(weight._reads, []).append((weight._stored, piece))
        if start == 0:
            weight._reads.count("whole", "save")
    for reads, pieces in wanted.items():
        reads.read_all(pieces)
    return made


def cover(weight: Weight, dtype: torch.dtype, start: int, count: int) -> Weight:
    """``count`` elements of a dtype in a row, from a byte of its tensor on."""
    plain = torch.empty(0, dtype=dtype, device="meta")
    plain.set_(weight._plain.untyped_storage(), start // dtype.itemsize, (count,), (1,))
    return Weight._make(weight._stored, plain, weight._reads)
