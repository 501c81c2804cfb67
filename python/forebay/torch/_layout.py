"""Which bytes to write for a set of tensors that may share memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..frameworks.torch import is_unread
from ._memory import nbytes


@dataclass(slots=True)
class Blob:
    """One entry of the container.

    Attributes:
        name: its name there.
        source: what to write; made contiguous on the way where it is not.
        dtype: what a reader should take it for.
    """

    name: str
    source: torch.Tensor
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class View:
    """Where a tensor lies in a blob: the whole of it, or bytes from ``offset`` on with ``shape`` and ``stride``."""

    blob: int
    dtype: torch.dtype
    whole: bool = True
    offset: int = 0
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()


@dataclass(slots=True)
class _Span:
    """The bytes of its storage that a tensor covers."""

    at: int
    tensor: torch.Tensor
    start: int
    end: int

    def layout(self) -> tuple[object, ...]:
        tensor = self.tensor
        return tensor.dtype, self.start, tuple(tensor.shape), tensor.stride()


def plan(named: Sequence[tuple[str, torch.Tensor]]) -> tuple[list[Blob], list[View]]:
    """Blobs that hold each byte once, and a view for each tensor in the order given.

    Tensors that share bytes become views of one blob: of the one that covers all of them, or else of the bytes as such.
    """
    blobs: list[Blob] = []
    views: list[View | None] = [None] * len(named)
    for cluster in sorted(_clusters([tensor for _, tensor in named]), key=lambda spans: min(s.at for s in spans)):
        base = _base(cluster)
        name = named[min(span.at for span in cluster)][0]
        if base is not None:
            blobs.append(Blob(named[base.at][0], base.tensor, base.tensor.dtype))
        else:
            cover = _cover(cluster)
            blobs.append(Blob(f"{name}.storage", cover, cover.dtype))
        start = min(span.start for span in cluster)
        for span in cluster:
            views[span.at] = _view(span, base, start, len(blobs) - 1)
    _rename(blobs)
    return blobs, [view for view in views if view is not None]


def _clusters(tensors: Sequence[torch.Tensor]) -> list[list[_Span]]:
    """Tensors that share bytes, together."""
    alone: list[list[_Span]] = []
    by_storage: dict[tuple[torch.device, int], list[_Span]] = {}
    for at, tensor in enumerate(tensors):
        start = int(tensor.storage_offset()) * tensor.itemsize
        if tensor.numel() == 0:
            alone.append([_Span(at, tensor, start, start)])
            continue
        reach = 1 + sum((n - 1) * int(step) for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        span = _Span(at, tensor, start, start + reach * tensor.itemsize)
        by_storage.setdefault((tensor.device, _home(tensor)), []).append(span)
    for spans in by_storage.values():
        spans.sort(key=lambda span: (span.start, -span.end))
        cluster, end = [spans[0]], spans[0].end
        for span in spans[1:]:
            if span.start < end:
                cluster.append(span)
            else:
                alone.append(cluster)
                cluster = [span]
            end = max(end, span.end)
        alone.append(cluster)
    return alone


def _home(tensor: torch.Tensor) -> int:
    """Identifies the bytes that a tensor and its views share."""
    if not is_unread(tensor):
        return tensor.untyped_storage().data_ptr()
    # Below 0, where no address is.
    plain: torch.Tensor = tensor._plain  # type: ignore[attr-defined]
    return -plain.untyped_storage()._cdata


def _base(cluster: Sequence[_Span]) -> _Span | None:
    """The tensor that holds all bytes of the others; None where only the bytes as such do."""
    first = cluster[0]
    if all(span.layout() == first.layout() for span in cluster):
        # One tensor, perhaps under several names. If it repeats elements (`expand`) its bytes are fewer than it shows.
        repeats = nbytes(first.tensor) > first.end - first.start
        return None if repeats else min(cluster, key=lambda span: span.at)
    start, end = min(span.start for span in cluster), max(span.end for span in cluster)
    for span in sorted(cluster, key=lambda span: span.at):
        whole = span.start == start and span.end == end and span.tensor.is_contiguous()
        if whole and all((other.start - start) % other.tensor.itemsize == 0 for other in cluster):
            return span
    return None


def _view(span: _Span, base: _Span | None, start: int, blob: int) -> View:
    tensor = span.tensor
    if base is not None and span.layout() == base.layout():
        return View(blob, tensor.dtype)
    return View(blob, tensor.dtype, False, span.start - start, tuple(tensor.shape), tuple(tensor.stride()))


def _cover(cluster: Sequence[_Span]) -> torch.Tensor:
    """All bytes that the tensors cover, in one dimension; with their type where they have one in common."""
    start, end = min(span.start for span in cluster), max(span.end for span in cluster)
    first = cluster[0].tensor
    alike = all(span.tensor.dtype == first.dtype for span in cluster) and start % first.itemsize == 0
    dtype = first.dtype if alike else torch.uint8
    size = ((end - start) // dtype.itemsize,)
    if is_unread(first):
        from ._weights_saves import cover

        return cover(first, dtype, start, *size)  # type: ignore[arg-type]
    made = torch.empty(0, dtype=dtype, device=first.device)
    made.set_(first.untyped_storage(), start // dtype.itemsize, size, (1,))
    return made


def _rename(blobs: Sequence[Blob]) -> None:
    """Makes names unique: `{"a.b": x, "a": {"b": y}}` has two tensors with one path."""
    taken: set[str] = {"__metadata__"}
    counts: dict[str, int] = {}
    for blob in blobs:
        name = blob.name or "tensor"
        while name in taken:
            counts[blob.name] = counts.get(blob.name, 1) + 1
            name = f"{blob.name}#{counts[blob.name]}"
        taken.add(name)
        blob.name = name
