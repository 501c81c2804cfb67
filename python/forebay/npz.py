"""``.npz`` files: zip archives of ``.npy`` files, and of others, which are bytes. The functions are in :mod:`forebay.npy`."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _forebay
from ._captures import left_alone
from ._kinds import NPZ, other_kind
from ._locations import MemoryFile
from ._paths import Known, Watch
from ._refusals import check_names, missing_name
from ._unzip import STORED, Member, unpack
from .errors import InvalidInputError, UnsupportedError
from .frameworks import CPU, Device, Framework
from .loading import new_array
from .npy import Archived, NpyArray, Stored, describe

if TYPE_CHECKING:
    from ._forebay import File

__all__ = ["NpzFile", "write_members"]

_CHUNK_BYTES = 1 << 20
# Bytes whose CRC-32 one thread computes in one step.
_CRC_PART_BYTES = 32 << 20
_THREADS = 4
_SUFFIX = ".npy"
_MAGIC = b"\x93NUMPY"


class NpzFile(Mapping[str, Any]):
    """The arrays of a ``.npz`` file by name, read when they are looked up. Made by :func:`forebay.open_npz`. Members that
    are no arrays (their names do not end with ``.npy``) are ``bytes``, as numpy has them."""

    def __init__(self, file: File, framework: Framework, device: Device) -> None:
        self.path = file.path
        self._framework, self._device = framework, device
        self._file = file
        self._known, self._watch = Known(file), Watch(file)
        with self._watch:
            try:
                rows = _forebay.read_zip(file)
            except InvalidInputError as error:
                raise other_kind(file, NPZ) or error from None
        #: Names without the ending, which numpy takes for arrays if they begin as one, and for bytes otherwise.
        self._others = frozenset(name for name, *_ in rows if not name.endswith(_SUFFIX))
        self._members = _named(rows, self._others, self.path)

    @property
    def files(self) -> list[str]:
        """The names of the arrays and other members, as numpy's ``NpzFile`` has them."""
        return list(self._members)

    def open(self, name: str, *, dtype: str | None = None) -> NpyArray:
        """An array to be indexed, of which only the part that is needed is read; a compressed one is decompressed
        into host memory first. It keeps the file open, also after the archive was closed.

        Args:
            name: of the array.
            dtype: as for :func:`forebay.read_npy`.

        Raises:
            InvalidInputError: there is none of this name.
            BusyError: the file was changed in place since it was opened; reading raises it, too.
        """
        member = self._members[self._key(name)]
        makers = (self._framework, self._device, dtype)
        with self._watch:
            if member.method == STORED:
                # One of its own to close.
                file = self._file._again()
                place = Archived(self._known, self._watch.of(file), name)
                return NpyArray(file, member.offset, member.stored, *makers, place)
            unpacked = _unpacked(self._file, member, self.path, name)
            return NpyArray(unpacked, 0, member.size, *makers, Archived(self._known, Watch(unpacked), name))

    def __getitem__(self, name: str) -> Any:
        """Reads one array, or the bytes of another member.

        Raises:
            KeyError: there is none of this name.
            BusyError: the file was changed in place since it was opened.
        """
        if name not in self:
            raise KeyError(name)
        data = self._bytes(name) if self._key(name) in self._others else None
        if data is not None:
            return data
        with self.open(name) as array:
            return array[...]

    def _bytes(self, name: str) -> bytes | None:
        """The contents of a member, unless it is an array."""
        member = self._members[self._key(name)]
        with self._watch:
            if member.method == STORED:
                data = self._file.read(member.stored, member.offset)
            else:
                with _unpacked(self._file, member, self.path, name) as file:
                    data = file.read(member.size)
        return None if data.startswith(_MAGIC) else data

    def read(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Reads several arrays (default: all) at once, which is faster than one by one; other members as ``bytes``.

        Raises:
            InvalidInputError: there is none of a name.
            BusyError: the file was changed in place since it was opened.
        """
        if names is not None:
            check_names(names)
        wanted = self.files if names is None else list(names)
        keys = {name: self._key(name) for name in wanted}
        stored_names = [name for name in wanted if self._members[keys[name]].method == STORED]
        try:
            with self._watch:
                stored = {name: self._header(name) for name in stored_names if keys[name] not in self._others}
                loaded = self._read_stored(list(stored.values()))
        except UnsupportedError as error:
            if "member" in error.context and len(wanted) > 1:
                error.add_hint(
                    f"read the others: names=[name for name in archive if name != {error.context['member']!r}]"
                )
            raise
        at_once = dict(zip(stored, loaded, strict=True))
        return {name: at_once[name] if name in at_once else self[name] for name in wanted}

    def _header(self, name: str) -> NpyArray:
        member = self._members[self._key(name)]
        place = Archived(self._known, self._watch, name)
        return NpyArray(self._file, member.offset, member.stored, self._framework, self._device, None, place)

    @left_alone
    def _read_stored(self, members: Sequence[NpyArray]) -> list[Any]:
        allocate = self._framework.allocator(self._device)
        entries = [member.entry for member in members]
        arrays = [new_array(self._framework, allocate, entry[2], entry, self._device) for entry in entries]
        if not arrays:
            return []
        self._framework.ready(arrays, self._device)
        pieces = [
            (self._framework.address(array), entry[4], entry[3])
            for array, entry in zip(arrays, entries, strict=True)
            if entry[4]
        ]
        if pieces:
            self._file._submit(False, pieces, arrays).result()
        return [member.finish(array, member.shape) for member, array in zip(members, arrays, strict=True)]

    def _key(self, name: str) -> str:
        """The name in the table that is meant."""
        if self._file.closed:
            raise InvalidInputError("the file is closed", hints=["read inside of the with block"], path=self.path)
        # As numpy: with the ending too, but an array may have that in its own name.
        for key in (name, name.removesuffix(_SUFFIX)) if isinstance(name, str) else ():
            if key in self._members:
                return key
        raise missing_name(name, self._members, path=self.path)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._members or name.removesuffix(_SUFFIX) in self._members)

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()

    def __enter__(self) -> NpzFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<forebay.npz.NpzFile: {len(self)} arrays in {self.path!r}>"


def _named(rows: Sequence[tuple[Any, ...]], others: frozenset[str], path: str) -> dict[str, Member]:
    """The members by the names that numpy gives them: without the ending, but for ``"a.npy"`` beside ``"a"``."""
    members: dict[str, Member] = {}
    for name, *facts in rows:
        short = name.removesuffix(_SUFFIX)
        key = name if short in others else short
        if key in members:
            hints = ["rename one of them: zipnote -w"]
            raise InvalidInputError("two members of the archive have one name", hints=hints, member=name, path=path)
        members[key] = Member(*facts)
    return members


def _unpacked(file: File, member: Member, path: str, name: str) -> File:
    """A compressed member as a file in memory."""
    with MemoryFile("forebay-npz") as memory:
        unpack(file, member, memory, {"path": path, "member": name})
        return _forebay.open(memory.path)


def write_members(path: str, arrays: Mapping[str, Any], durable: bool) -> None:
    """Writes an archive beside its place, and puts it there once it is whole: see :func:`forebay.write_npz`."""
    if not isinstance(arrays, Mapping):
        hints = ['write_npz(path, {"a": array})']
        raise InvalidInputError("arrays are a dict of names and arrays", hints=hints, got=type(arrays).__name__)
    for name in arrays:
        if not isinstance(name, str):
            raise InvalidInputError("names of arrays are strings", got=repr(name))
    members = [describe(array, name) for name, array in arrays.items()]
    sizes = [len(member.header) + member.nbytes for member in members]
    plan = _forebay.plan_zip([(name + _SUFFIX, size) for name, size in zip(arrays, sizes, strict=True)])
    with _forebay.Pending(path) as pending, ThreadPoolExecutor(_THREADS) as threads:
        file = pending.file
        file._make_room(plan.size)
        sums = []
        for index, (member, (header, data, _)) in enumerate(zip(members, plan.places, strict=True)):
            crc = _write_member(file, member, data, threads)
            file.write_from(plan.header(index, crc), header)
            sums.append(crc)
        file.write_from(plan.directory(sums), plan.directory_offset)
        pending.commit(durable)


def _write_member(file: File, member: Stored, offset: int, threads: ThreadPoolExecutor) -> int:
    """Writes a ``.npy`` file into the archive and returns its CRC-32."""
    file.write_from(member.header, offset)
    begin, size = offset + len(member.header), member.nbytes
    crc = zlib.crc32(member.header)
    if not size:
        return crc
    writing = file._submit(True, [(member.address, size, begin)], member.keep)
    if member.device != CPU:
        writing.result()  # Its sum is that of what lies in the file.

    def part(at: int) -> tuple[int, int]:
        nbytes = min(_CRC_PART_BYTES, size - at)
        if member.device == CPU:
            return _forebay.crc32(member.address + at, nbytes), nbytes
        return _crc_in_file(file, begin + at, nbytes), nbytes

    try:
        for found, nbytes in threads.map(part, range(0, size, _CRC_PART_BYTES)):
            crc = _forebay.crc32_combine(crc, found, nbytes)
    finally:
        writing.exception()
    writing.result()
    return crc


def _crc_in_file(file: File, offset: int, nbytes: int) -> int:
    buffer, crc = bytearray(min(4 * _CHUNK_BYTES, nbytes)), 0
    while nbytes:
        view = memoryview(buffer)[: min(len(buffer), nbytes)]
        file.read_into(view, offset)
        crc = zlib.crc32(view, crc)
        offset, nbytes = offset + len(view), nbytes - len(view)
    return crc
