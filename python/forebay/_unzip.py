"""Members of zip archives, unpacked."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import IntegrityError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._forebay import File
    from ._locations import MemoryFile

__all__ = ["STORED", "Member", "unpack"]

STORED, _DEFLATED = 0, 8
_CHUNK_BYTES = 1 << 20


class Member(NamedTuple):
    """A file in the archive, as its directory says."""

    method: int
    offset: int
    stored: int
    size: int
    crc: int


def unpack(file: File, member: Member, memory: MemoryFile, facts: dict[str, Any]) -> None:
    """Writes a member's bytes, as they were before they were packed, to the end of a file.

    Raises:
        UnsupportedError: it is compressed in another way than with zlib.
        IntegrityError: the bytes are damaged.
    """
    if member.method not in (STORED, _DEFLATED):
        raise UnsupportedError(
            f"compressed by method {member.method}: neither stored nor deflated",
            hints=["unzip it, and pack it again: zip -0 -r"],
            **facts,
        )
    crc, size = 0, 0
    for data in _inflated(file, member, facts) if member.method == _DEFLATED else _parts(file, member):
        crc, size = zlib.crc32(data, crc), size + len(data)
        if size > member.size:
            raise IntegrityError("more data than the archive's directory says", size=member.size, **facts)
        memory.write(data)
    if size != member.size or crc != member.crc:
        raise _damaged(size, member, facts)


def _parts(file: File, member: Member) -> Iterator[bytes]:
    """The bytes as they lie in the file, some at a time."""
    room = bytearray(_CHUNK_BYTES)
    for at in range(0, member.stored, _CHUNK_BYTES):
        part = memoryview(room)[: min(_CHUNK_BYTES, member.stored - at)]
        file.read_into(part, member.offset + at)
        yield bytes(part)


def _inflated(file: File, member: Member, facts: dict[str, Any]) -> Iterator[bytes]:
    machine = zlib.decompressobj(-zlib.MAX_WBITS)
    size = 0
    for packed in _parts(file, member):
        rest = packed
        while rest and not machine.eof:
            try:
                data = machine.decompress(rest, _CHUNK_BYTES)
            except zlib.error as error:
                raise IntegrityError(f"cannot decompress: {error}", **facts) from None
            rest = machine.unconsumed_tail
            size += len(data)
            yield data
    data = machine.flush()
    if not machine.eof:
        raise _damaged(size + len(data), member, facts)
    yield data


def _damaged(size: int, member: Member, facts: dict[str, Any]) -> IntegrityError:
    return IntegrityError(
        "the packed data are damaged", hints=["copy or download the file again"], bytes=size, wanted=member.size,
        **facts,
    )  # fmt: skip
