"""The files that ``torch.save`` writes, as one pickle and storages with their places: the zip archive of today, and what
PyTorch before 1.6 wrote."""

from __future__ import annotations

import io
import os
import struct
import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

from . import _forebay, errors
from ._shell import word

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ._forebay import File

__all__ = ["PICKLE_LIMIT", "Archive", "Legacy", "is_legacy", "open_archive"]

#: A longer pickle is refused: its tensors lie outside it, so honest ones have a few hundred bytes for each tensor.
PICKLE_LIMIT: Final = 256 << 20
#: The number that files of PyTorch before 1.6 begin with, as protocols from 2 on write it, and those before.
_MAGIC: Final = (b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", b"L119547037146038801333356L\n.")
_LEGACY_VERSION: Final = 1001
_STORED: Final = 0
_START_BYTES: Final = 512

_Place = tuple[int, int, int | None]


def is_legacy(start: bytes) -> bool:
    """Whether a file begins as PyTorch before 1.6 wrote it."""
    # Before the number: the protocol, and from the fourth on the size of a frame.
    return start[:1] in (b"\x80", b"L") and any(magic in start[:32] for magic in _MAGIC)


def open_archive(file: File, path: str) -> Archive | Legacy:
    """The open file as what ``torch.save`` wrote.

    Raises:
        InvalidInputError: it did not.
    """
    start = _read(file, 0, min(_START_BYTES, file.size))
    if is_legacy(start):
        return Legacy(file, path)
    from ._kinds import TORCH, is_npz, other_kind

    try:
        return Archive(file, path)
    except errors.InvalidInputError as error:
        is_other = not start.startswith(b"PK") or is_npz(start)
        raise (is_other and other_kind(file, TORCH)) or error from None


def _read(file: File, offset: int, size: int) -> bytes:
    room = bytearray(size)
    if size:
        file.read_into(room, offset)
    return bytes(room)


class Archive:
    """The records of a zip archive, checked: inside the file, none over another."""

    def __init__(self, file: File, path: str) -> None:
        self.path = path
        self.file, self.records = _stored(file, _forebay.read_zip(file), path)
        self.root = self._root()
        #: Where the pickle begins in what :meth:`pickle` gives.
        self.start = 0
        #: Whether the pickle names what the program allowed, whose code may look at data.
        self.asks_program = False
        #: Whether the numbers in the storages have the other byte order.
        self.is_swapped = self._byte_order() != sys.byteorder

    def _root(self) -> str:
        roots = [name[: -len("/data.pkl")] for name in self.records if name.endswith("/data.pkl")]
        if len(roots) != 1 or "/" in roots[0]:
            raise errors.InvalidInputError(
                "this is a zip archive, but no PyTorch checkpoint: it does not hold one data.pkl",
                hints=[f"look into it: unzip -l {word(self.path)}"],
                path=self.path,
            )
        root = roots[0]
        if f"{root}/constants.pkl" in self.records or any(n.startswith(f"{root}/code/") for n in self.records):
            raise errors.InvalidInputError(
                "the archive is a TorchScript program, not a checkpoint",
                hints=["torch.save(torch.jit.load(path).state_dict(), 'weights.pt')"],
                path=self.path,
            )
        return root

    def _byte_order(self) -> str:
        found = self.records.get(f"{self.root}/byteorder")
        if found is None:
            return "little"
        order = _read(self.file, found[0], min(found[1], 16)).decode("ascii", "replace")
        if order not in ("little", "big"):
            raise errors.IntegrityError("the checkpoint has an unknown byte order", order=order, path=self.path)
        return order

    def pickle(self) -> io.BufferedIOBase:
        """The pickle."""
        offset, size, _ = self.records[f"{self.root}/data.pkl"]
        if size > PICKLE_LIMIT:
            raise errors.InvalidInputError(
                "the checkpoint's pickle is too large", size=size, limit=PICKLE_LIMIT, path=self.path
            )
        return io.BytesIO(_read(self.file, offset, size))

    def claim(self, key: str, elements: int, itemsize: int) -> int:
        """Bytes of a storage that the pickle names; refuses one that the archive does not hold, or with another size."""
        found = self.storage(key)[1]
        if elements * itemsize != found:
            raise _wrong_size(key, elements * itemsize, found, self.path)
        return found

    def locate(self, file: io.BufferedIOBase) -> None:
        """The directory says where everything is."""

    def storage(self, key: str) -> _Place:
        """Offset, bytes and CRC-32 (``None``: there is none) of a storage."""
        found = self.records.get(f"{self.root}/data/{key}")
        if found is None:
            raise errors.IntegrityError("the checkpoint names a storage that it does not hold", key=key, path=self.path)
        return found

    def keys(self) -> Iterable[str]:
        """All storages."""
        before = f"{self.root}/data/"
        return [name[len(before) :] for name in self.records if name.startswith(before)]


def _stored(file: File, rows: Sequence[tuple[Any, ...]], path: str) -> tuple[File, dict[str, _Place]]:
    """A file with the records as they are, and where in it they lie: a copy in memory if some are compressed."""
    if all(row[1] == _STORED for row in rows):
        return file, {name: (offset, size, crc) for name, _, offset, _, size, crc in rows}
    from ._locations import MemoryFile
    from ._unzip import Member, unpack

    with MemoryFile("forebay-pt") as memory:
        records: dict[str, _Place] = {}
        end = 0
        for name, *facts in rows:
            member = Member(*facts)
            unpack(file, member, memory, {"path": path, "record": name})
            records[name] = (end, member.size, member.crc)
            end += member.size
        return _forebay.open(memory.path), records


class Legacy:
    """A file of PyTorch before 1.6: pickles, one behind the other, then the storages, each behind its number of elements."""

    #: These files are little-endian, whatever machine wrote them.
    is_swapped = sys.byteorder == "big"

    def __init__(self, file: File, path: str) -> None:
        self.file, self.path = file, path
        self._claims: dict[str, tuple[int, int]] = {}
        self._places: dict[str, _Place] = {}
        self.asks_program = False
        self.start = self._skip_heading()

    def _skip_heading(self) -> int:
        stream = self._stream(0)
        try:
            # The magic number, the version and facts about the machine.
            _, version, _ = (_unpickled(stream) for _ in range(3))
        except Exception as reason:
            self._refuse_protocol(reason)
        if version != _LEGACY_VERSION:
            raise errors.UnsupportedError("a checkpoint of an unknown version", version=version, path=self.path)
        return stream.tell()

    def _refuse_protocol(self, reason: Exception) -> NoReturn:
        start = _read(self.file, 0, 2)
        is_unknown = str(reason).startswith("Unsupported operand")
        raise (is_unknown and unsupported_protocol(start, self.path)) or errors.IntegrityError(
            f"the checkpoint's heading is damaged: {reason!r}", path=self.path
        ) from None

    def _stream(self, offset: int) -> io.BufferedIOBase:
        stream: io.BufferedIOBase = io.BufferedReader(_Stream(self.file), 1 << 16)
        stream.seek(offset)
        return stream

    def pickle(self) -> io.BufferedIOBase:
        """The pickle."""
        return self._stream(self.start)

    def claim(self, key: str, elements: int, itemsize: int) -> int:
        """Bytes of a storage that the pickle names; refuses another size for the same, or more than the file has."""
        known = self._claims.setdefault(key, (elements, itemsize))
        nbytes = elements * itemsize
        if known[0] * known[1] != nbytes or not 0 <= nbytes <= self.file.size:
            raise _wrong_size(key, nbytes, known[0] * known[1], self.path)
        return nbytes

    def locate(self, file: io.BufferedIOBase) -> None:
        """Finds the storages, whose sizes were claimed, behind the pickle that ends here."""
        try:
            keys = list(_unpickled(file))
        except Exception as reason:
            raise errors.IntegrityError(f"the list of storages is damaged: {reason}", path=self.path) from None
        at = file.tell()
        for key in keys:
            if key not in self._claims:
                raise errors.IntegrityError("a storage that no tensor has", key=str(key)[:40], path=self.path)
            elements, itemsize = self._claims[key]
            size = elements * itemsize
            if at + 8 + size > self.file.size:
                raise errors.IntegrityError(
                    "the file ends within a storage", key=key, end=at + 8 + size, size=self.file.size, path=self.path
                )
            (found,) = struct.unpack("<q", _read(self.file, at, 8))
            if found != elements:
                raise _wrong_size(key, size, found * itemsize, self.path)
            self._places[key] = (at + 8, size, None)
            at += 8 + size

    def storage(self, key: str) -> _Place:
        """Offset, bytes and no CRC-32 of a storage."""
        found = self._places.get(key)
        if found is None:
            raise errors.IntegrityError("the checkpoint names a storage that it does not hold", key=key, path=self.path)
        return found

    def keys(self) -> Iterable[str]:
        """All storages."""
        return list(self._places)


def _unpickled(file: io.BufferedIOBase) -> Any:
    from torch._weights_only_unpickler import Unpickler

    unpickler: Any = Unpickler(file, encoding="utf-8")
    return unpickler.load()


class _Stream(io.RawIOBase):
    """The beginning of a file, to be read one byte after another."""

    def __init__(self, file: File) -> None:
        self._file, self._at = file, 0
        self._end = min(file.size, PICKLE_LIMIT)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        part = memoryview(buffer)[: max(0, self._end - self._at)]
        if part:
            self._file.read_into(part, self._at)
        self._at += len(part)
        return len(part)


def unsupported_protocol(start: bytes, path: str) -> errors.UnsupportedError | None:
    """The error for a pickle of a protocol that PyTorch reads only by running code; ``None`` for one that it reads."""
    protocol = start[1] if start[:1] == b"\x80" and len(start) > 1 else "0 or 1"
    if protocol == 2:
        return None
    return errors.UnsupportedError(
        "the checkpoint's pickle has a protocol that PyTorch cannot read without running code",
        hints=["if you trust the source of the file: torch.save(torch.load(path, weights_only=False), path)"],
        protocol=protocol, path=path,
    )  # fmt: skip


def _wrong_size(key: str, told: int, found: int, path: str) -> errors.IntegrityError:
    return errors.IntegrityError(
        "the checkpoint lies about the size of a storage", key=key, told=told, found=found, path=path
    )
