"""One safetensors file that holds a set of blobs: written without a second copy of them, published when complete."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

import torch

from .. import _forebay, errors
from .._checksums import CHECKSUMS_KEY
from .._forebay import Pending
from .._locations import exists
from ..frameworks.torch import is_unread
from . import _crc
from ._layout import Blob
from ._memory import checksums, nbytes, settle, stored_dtype

#: Tensors that are not contiguous are copied before they are written, and those that are still in a file are read: at most this many
#: bytes at a time, or one tensor.
_COPY_BYTES: Final = 256 << 20
CHECK_BYTES: Final = 32 << 20


def stored(blob: Blob) -> tuple[str, str, tuple[int, ...]]:
    """Name, type and shape of a blob as the file says it."""
    name = stored_dtype(blob.dtype)
    if name is None:
        return blob.name, "U8", (nbytes(blob.source),)
    return blob.name, name, tuple(blob.source.shape)


def write(
    path: str, blobs: Sequence[Blob], metadata: dict[str, str], *, checked: bool = True, sums: list[int] | None = None
) -> tuple[Pending, list[tuple[int, int]]]:
    """Writes a file that is not visible yet. When this returns no byte of the tensors is needed any more.

    Args:
        path: where it shall appear.
        blobs: what it holds.
        metadata: strings for its header.
        checked: put the CRC-32C of each blob into the header.
        sums: these, where they are known already.

    Returns:
        The file, to be committed, and (offset, bytes) of each blob in it.
    """
    entries = [stored(blob) for blob in blobs]
    told = sums if sums is not None else [0] * len(blobs)
    header, ranges, size = _forebay.plan_safetensors(entries, _with_sums(metadata, blobs, told, checked))
    pending = _forebay.Pending(path)
    try:
        pending.file._make_room(size)
        found = _write_blobs(pending, blobs, ranges, checked and sums is None)
        if found:
            # The checksums are computed while the bytes move; all have eight digits, so the header keeps its size.
            header, again, _ = _forebay.plan_safetensors(entries, _with_sums(metadata, blobs, found, checked))
            if list(again) != list(ranges):
                raise errors.InternalError("the header changed its size")
        pending.file.write_from(bytearray(header), 0)
    except BaseException:
        pending.abort()
        raise
    return pending, list(ranges)


def _with_sums(metadata: dict[str, str], blobs: Sequence[Blob], sums: Sequence[int], checked: bool) -> dict[str, str]:
    if not checked:
        return metadata
    told = {blob.name: f"{value:08x}" for blob, value in zip(blobs, sums, strict=True)}
    return {**metadata, CHECKSUMS_KEY: json.dumps(told, separators=(",", ":"))}


def _groups(blobs: Sequence[Blob]) -> Iterator[list[int]]:
    """All that can be written as it lies, then the others in groups of bounded size."""
    plain = [at for at, blob in enumerate(blobs) if _lies_ready(blob)]
    if plain:
        yield plain
    group: list[int] = []
    size = 0
    for at, blob in enumerate(blobs):
        if _lies_ready(blob):
            continue
        if group and size + nbytes(blob.source) > _COPY_BYTES:
            yield group
            group, size = [], 0
        group.append(at)
        size += nbytes(blob.source)
    if group:
        yield group


def _lies_ready(blob: Blob) -> bool:
    return blob.source.is_contiguous() and not is_unread(blob.source)


def _ready(blob: Blob) -> torch.Tensor:
    """A blob's bytes in memory, side by side."""
    if is_unread(blob.source):
        return blob.source.clone(memory_format=torch.contiguous_format)
    return blob.source.detach().contiguous()


def _write_blobs(
    pending: Pending, blobs: Sequence[Blob], ranges: Sequence[tuple[int, int]], checked: bool
) -> list[int]:
    found = [0] * len(blobs) if checked else []
    for group in _groups(blobs):
        filled = [at for at in group if blobs[at].source.numel()]
        sources = [_ready(blobs[at]) for at in filled]
        if not sources:
            continue
        settle(sources)
        pieces = [(source.data_ptr(), ranges[at][1], ranges[at][0]) for at, source in zip(filled, sources, strict=True)]
        future = pending.file._submit(True, pieces, sources)
        try:
            if checked:
                for at, value in zip(filled, checksums(sources), strict=True):
                    found[at] = value
            future.result()
        except BaseException:
            # Ctrl-C may also come while waiting: what is in flight reads the sources.
            future.cancel()
            future.exception()
            raise
    return found


def sums_of(blobs: Sequence[Blob]) -> list[int]:
    """CRC-32C of each blob, computed where it lies."""
    found = [0] * len(blobs)
    for group in _groups(blobs):
        filled = [at for at in group if blobs[at].source.numel()]
        sources = [_ready(blobs[at]) for at in filled]
        settle(sources)
        for at, value in zip(filled, checksums(sources) if sources else [], strict=True):
            found[at] = value
    return found


def is_intact(path: str, blobs: Sequence[Blob], sums: Sequence[int], durable: bool) -> list[tuple[int, int]] | None:
    """(offset, bytes) of each blob in a file that holds exactly these, read back and checked; None if it does not.

    With ``durable`` the storage has all of it on return: its writer may have been killed before that.
    """
    if not exists(path):
        return None
    try:
        with _forebay.open(path) as file:
            header = _forebay.read_safetensors(file)
            found = {name: (dtype, tuple(shape), at, size) for name, dtype, shape, at, size in header.tensors}
            ranges = []
            room = torch.empty(CHECK_BYTES, dtype=torch.uint8)
            for blob, want in zip(blobs, sums, strict=True):
                name, dtype, shape = stored(blob)
                entry = found.get(name)
                if entry is None or entry[:2] != (dtype, shape) or sum_in_file(file, *entry[2:], room) != want:
                    return None
                ranges.append(entry[2:])
            if len(found) != len(blobs):
                return None
            if durable:
                file.sync()
            return ranges
    except (errors.Error, OSError):
        return None


def sum_in_file(file: _forebay.File, offset: int, size: int, room: torch.Tensor) -> int:
    """CRC-32C of bytes of a file, read to ``room``, which has ``CHECK_BYTES``."""
    total = 0
    for start in range(0, size, CHECK_BYTES):
        count = min(CHECK_BYTES, size - start)
        file._submit(False, [(room.data_ptr(), count, offset + start)], room).result()
        (part,) = checksums([room[:count]])
        total = _crc.combine(total, part, count) if start else part
    return total
