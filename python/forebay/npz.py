"""``.npz`` files: zip archives of ``.npy`` files. The functions are in :mod:`forebay.npy`."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _forebay
from ._captures import left_alone
from ._paths import Known, Watch
from ._refusals import check_names, missing_name
from ._unzip import STORED, Member, unpack
from .errors import InvalidInputError
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


class NpzFile(Mapping[str, Any]):
    """The arrays of a ``.npz`` file by name, read when they are looked up. Made by :func:`forebay.open_npz`."""

    def __init__(self, file: File, framework: Framework, device: Device) -> None:
        self.path = file.path
        self._framework, self._device = framework, device
        self._file = file
        self._known, self._watch = Known(file), Watch(file)
        with self._watch:
            self._members = {
                name.removesuffix(_SUFFIX): Member(*facts)
                for name, *facts in _forebay.read_zip(file)
                if name.endswith(_SUFFIX)
            }

    @property
    def files(self) -> list[str]:
        """The names of the arrays, as numpy's ``NpzFile`` has them."""
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
        member = self._member(name)
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
        """Reads one array.

        Raises:
            KeyError: there is none of this name.
            BusyError: the file was changed in place since it was opened.
        """
        if name not in self:
            raise KeyError(name)
        with self.open(name) as array:
            return array[...]

    def read(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Reads several arrays (default: all) at once, which is faster than one by one.

        Raises:
            InvalidInputError: there is none of a name.
            BusyError: the file was changed in place since it was opened.
        """
        if names is not None:
            check_names(names)
        wanted = self.files if names is None else list(names)
        stored_names = [name for name in wanted if self._member(name).method == STORED]
        with self._watch:
            stored = {name: self._header(name) for name in stored_names}
            loaded = self._read_stored(list(stored.values()))
        at_once = dict(zip(stored, loaded, strict=True))
        return {name: at_once[name] if name in at_once else self[name] for name in wanted}

    def _header(self, name: str) -> NpyArray:
        member = self._member(name)
        place = Archived(self._known, self._watch, name)
        return NpyArray(self._file, member.offset, member.stored, self._framework, self._device, None, place)

    @left_alone
    def _read_stored(self, members: Sequence[NpyArray]) -> list[Any]:
        allocate = self._framework.allocator(self._device)
        arrays = [
            new_array(self._framework, allocate, member.entry[2], member.entry, self._device) for member in members
        ]
        if not arrays:
            return []
        self._framework.ready(arrays, self._device)
        pieces = [
            (self._framework.address(array), member.nbytes, member.entry[3])
            for array, member in zip(arrays, members, strict=True)
            if member.nbytes
        ]
        if pieces:
            self._file._submit(False, pieces, arrays).result()
        return [member.finish(array, member.shape) for member, array in zip(members, arrays, strict=True)]

    def _member(self, name: str) -> Member:
        if self._file.closed:
            raise InvalidInputError("the file is closed", hints=["read inside of the with block"], path=self.path)
        # As numpy: with the ending too, but an array may have that in its own name.
        found = self._members.get(name)
        if found is None and isinstance(name, str):
            found = self._members.get(name.removesuffix(_SUFFIX))
        if found is None:
            raise missing_name(name, self._members, path=self.path)
        return found

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


def _unpacked(file: File, member: Member, path: str, name: str) -> File:
    """A compressed member as a file in memory."""
    memory = os.memfd_create("forebay-npz", os.MFD_CLOEXEC)
    try:
        unpack(file, member, memory, {"path": path, "member": name})
        return _forebay.open(f"/proc/self/fd/{memory}")
    finally:
        os.close(memory)


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
        file.truncate(plan.size)
        sums = []
        for index, member in enumerate(members):
            header, data, _ = plan.places[index]
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
