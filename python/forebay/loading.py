"""Fills tensors from files: the framework allocates all of them, then the engine reads them, group by group."""

from __future__ import annotations

import copy
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from . import _forebay
from .errors import BusyError, DeviceOutOfMemoryError, IntegrityError, InvalidInputError, OutOfMemoryError
from .frameworks import Framework, unsupported_dtype
from .placement import META, Device, Placement
from .progress import Progress

if TYPE_CHECKING:
    from ._forebay import File, Future, SafetensorsHeader

__all__ = ["CHECKSUMS_KEY", "Cast", "Entry", "Loader", "Source", "cast_for", "checksums_of", "total_bytes"]

#: A tensor of a file: name, dtype, shape, offset in the file, bytes.
Entry = tuple[str, str, tuple[int, ...], int, int]
#: The dtype that a tensor of this name and dtype shall have.
Cast = Callable[[str, str], str]

#: Where a file keeps its tensors' checksums.
CHECKSUMS_KEY = "forebay.crc32c"

# Groups are large, since each costs a little, and small enough for progress to be seen.
_GROUP_BYTES = 1 << 30
_GROUP_TENSORS = 16384
# With a cast the tensors as they are in the file are needed beside the result for a while.
_CAST_BYTES = 256 << 20
_CASTS_IN_FLIGHT = 2


class Source:
    """An open safetensors file and what is wanted of it.

    Args:
        path: of the file.

    Raises:
        IntegrityError: its header is not one, or claims what cannot be.
        NotFoundError, PermissionDeniedError, …: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        # Before it is opened: what changes from here on is noticed.
        self._before = _state(path)
        self.file: File = _forebay.open(path)
        self.header: SafetensorsHeader = _forebay.read_safetensors(self.file)
        self.entries: Sequence[Entry] = self.header.tensors

    def only(self, entries: Sequence[Entry]) -> Source:
        """The same open file with other entries wanted."""
        part = copy.copy(self)
        part.entries = entries
        return part

    def check_unchanged(self) -> None:
        """Raises :class:`BusyError` if the path names another file or another state of it by now."""
        if _state(self.path) != self._before:
            raise BusyError(
                "the file changed while it was read: nothing of it can be trusted",
                hints=["load it again when nobody writes it; write with save_file, which replaces whole files"],
                path=self.path,
            )


def _state(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class _Made(NamedTuple):
    """Tensors that wait to be read."""

    source: Source
    entries: Sequence[Entry]
    arrays: list[Any]
    devices: dict[Device, list[Any]]


class _Group(NamedTuple):
    """Tensors that are read by one batch."""

    source: Source
    entries: Sequence[Entry]
    arrays: list[Any]
    #: Those of the entries that have bytes, and what is read for each.
    read: list[Entry]
    pieces: list[tuple[int, int, int]]
    future: Future


class Loader:
    """Loads tensors of several files with one framework.

    Args:
        framework: makes the tensors.
        where: the device of each.
        cast: the dtype of each, ``None`` to take them as they are.
        verify: compares the checksums in the files' metadata.
        progress: is told how many bytes are done.
    """

    def __init__(
        self, framework: Framework, where: Placement, cast: Cast | None, verify: bool, progress: Progress
    ) -> None:
        self._framework = framework
        self._where = where
        self._cast = cast
        self._verify = verify
        self._progress = progress
        self._allocators: dict[Device, Callable[[tuple[int, ...], str], Any]] = {}
        self._waiting: deque[_Made] = deque()
        self._flying: deque[_Group] = deque()
        self._expected: dict[str, dict[str, int]] = {}
        self._loaded: dict[str, Any] = {}

    def load(self, sources: Sequence[Source]) -> dict[str, Any]:
        """All entries of all sources, by name, in the order of the files.

        Raises:
            UnsupportedError: the framework lacks a dtype. Nothing was allocated then.
            DeviceOutOfMemoryError, OutOfMemoryError: nothing of what was allocated is kept.
            BusyError: a file changed meanwhile.
            IntegrityError: a checksum differs.
        """
        self._check(sources)
        try:
            for source in sources:
                for entries in _groups(source.entries, _GROUP_BYTES if self._cast is None else _CAST_BYTES):
                    self._waiting.append(self._make(source, entries))
                    if self._cast is not None:
                        self._submit()
                        self._finish(_CASTS_IN_FLIGHT)
            # The driver allocates and registers pages under one lock: allocating while reading makes both slow.
            while self._waiting:
                self._submit()
            self._finish(0)
        except BaseException as error:
            self._give_up()
            if isinstance(error, EOFError):
                # Most likely somebody truncated it meanwhile: then that is the news.
                for source in sources:
                    source.check_unchanged()
            raise
        for source in sources:
            source.check_unchanged()
        return self._loaded

    def _check(self, sources: Sequence[Source]) -> None:
        """Refuses what cannot work, before anything is allocated."""
        for source in sources:
            known: set[str] = set()
            for name, dtype, _, _, _ in source.entries:
                target = dtype if self._cast is None else self._cast(name, dtype)
                if target == dtype and dtype in known:
                    continue
                if self._framework.dtype(target) is None:
                    raise unsupported_dtype(self._framework, target, name)
                if not self._framework.reads(dtype):
                    raise unsupported_dtype(self._framework, dtype, name)
                if target == dtype:
                    known.add(dtype)
            if self._verify:
                self._expected[source.path] = checksums_of(source.header.metadata, source.path)

    def _make(self, source: Source, entries: Sequence[Entry]) -> _Made:
        array: Any = None
        arrays: list[Any] = []
        devices: dict[Device, list[Any]] = {}
        allocators = self._allocators
        for name, dtype, shape, _, _ in entries:
            device = self._where(name)
            if device not in allocators:
                allocators[device] = self._framework.allocator(device)
            try:
                array = allocators[device](shape, dtype)
            except Exception as error:
                reason: Exception = error
                break
            arrays.append(array)
            devices.setdefault(device, []).append(array)
        else:
            return _Made(source, entries, arrays, devices)
        # Nothing that the error's traceback reaches may keep an array.
        array = None
        arrays.clear()
        devices.clear()
        self._cannot_allocate(reason, name, dtype, shape, device)

    def _submit(self) -> None:
        source, entries, arrays, devices = self._waiting.popleft()
        for device, its in devices.items():
            self._framework.ready(its, device)
        address = self._framework.address
        pieces = []
        read = []
        for array, entry in zip(arrays, entries, strict=True):
            nbytes = entry[4]
            if array.nbytes != nbytes:
                raise _wrong_size(array, entry)
            if nbytes:
                pieces.append((address(array), nbytes, entry[3]))
                read.append(entry)
        if META in devices:
            # Its tensors have no memory.
            read = [entry for entry, piece in zip(read, pieces, strict=True) if piece[0]]
            pieces = [piece for piece in pieces if piece[0]]
        future = source.file._submit(False, pieces, arrays)
        self._flying.append(_Group(source, entries, arrays, read, pieces, future))

    def _finish(self, at_most: int) -> None:
        """Takes in the groups that are done, and waits until at most so many are in flight."""
        while self._flying and (len(self._flying) > at_most or self._flying[0].future.done()):
            group = self._flying[0]
            group.future.result()
            self._flying.popleft()
            if self._verify:
                self._compare(group)
            if self._cast is None:
                self._loaded.update(zip((entry[0] for entry in group.entries), group.arrays, strict=True))
            else:
                self._cast_group(group, self._cast)
            self._progress.add(sum(entry[4] for entry in group.entries))

    def _cast_group(self, group: _Group, cast: Cast) -> None:
        # From the end, so that each original can go as soon as it has been cast.
        done = []
        for name, dtype, _, _, _ in reversed(group.entries):
            target = cast(name, dtype)
            array = group.arrays.pop()
            if target != dtype:
                array = self._framework.cast(array, target)
            done.append((name, array))
        self._loaded.update(reversed(done))

    def _compare(self, group: _Group) -> None:
        expected = self._expected[group.source.path]
        found = _forebay.checksums([(address, nbytes) for address, nbytes, _ in group.pieces])
        for entry, checksum in zip(group.read, found, strict=True):
            want = expected.get(entry[0])
            if want is None:
                raise _no_checksum(group.source.path, entry[0])
            if checksum != want:
                raise IntegrityError(
                    "a tensor's bytes differ from those that were saved",
                    hints=["the file is damaged: copy or download it again"],
                    tensor=entry[0],
                    path=group.source.path,
                    saved=f"{want:08x}",
                    found=f"{checksum:08x}",
                )

    def _give_up(self) -> None:
        """Stops what is in flight, waits for it and lets go of everything."""
        self._loaded.clear()
        self._waiting.clear()
        for group in self._flying:
            group.future.cancel()
        while self._flying:
            group = self._flying.popleft()
            group.future.exception()
            group.arrays.clear()

    def _cannot_allocate(
        self, reason: Exception, name: str, dtype: str, shape: tuple[int, ...], device: Device
    ) -> NoReturn:
        framework = self._framework
        if framework.is_out_of_memory(reason):
            self._give_up()
            free = framework.free_bytes(device)
            kind = OutOfMemoryError if device.gpu is None else DeviceOutOfMemoryError
            facts: dict[str, Any] = {} if free is None else {"free": f"{free / 1e9:.2f} GB"}
            raise kind(
                f"not enough memory on {device} for the tensors",
                hints=[
                    'spread them over devices: device={"layer.0.": "cuda:0", "": "cpu"}',
                    "or load only some: names=[…]",
                ],
                needed=f"{self._progress.total / 1e9:.2f} GB",
                loaded=f"{self._progress.done / 1e9:.2f} GB",
                **facts,
                tensor=name,
            ) from None
        if isinstance(reason, (OverflowError, ValueError, TypeError)):
            raise InvalidInputError(
                f"{framework.name} cannot make such a tensor: {reason}", tensor=name, dtype=dtype, shape=list(shape)
            ) from None
        raise reason


def _groups(entries: Sequence[Entry], limit: int) -> Iterator[Sequence[Entry]]:
    first, total = 0, 0
    for position, entry in enumerate(entries):
        if position > first and (total + entry[4] > limit or position - first >= _GROUP_TENSORS):
            yield entries[first:position]
            first, total = position, 0
        total += entry[4]
    if first < len(entries):
        yield entries[first:]


def _wrong_size(array: Any, entry: Entry) -> InvalidInputError:
    return InvalidInputError(
        "the framework's tensor has another size than the file's",
        tensor=entry[0],
        dtype=entry[1],
        shape=list(entry[2]),
        bytes=array.nbytes,
        wanted=entry[4],
    )


def checksums_of(metadata: dict[str, str] | None, path: str) -> dict[str, int]:
    """The checksums that a file's metadata holds, by tensor.

    Raises:
        InvalidInputError: there are none.
        IntegrityError: they cannot be understood.
    """
    text = (metadata or {}).get(CHECKSUMS_KEY)
    if text is None:
        raise InvalidInputError(
            "the file has no checksums to verify",
            hints=["save it with forebay.save_file(tensors, path, checksums=True)", "or load it with verify=False"],
            path=path,
        )
    try:
        return {name: int(value, 16) for name, value in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise IntegrityError(f"cannot understand the file's checksums: {error}", path=path) from None


def _no_checksum(path: str, name: str) -> IntegrityError:
    return IntegrityError("the file has no checksum for a tensor", tensor=name, path=path)


#: Dtypes that a dtype for the whole file applies to.
_FLOATS = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})


def cast_for(framework: Framework, dtype: Any) -> Cast | None:
    """What the user's ``dtype`` asks for each tensor: a dtype for all floating-point tensors, or a function of the
    name.

    Raises:
        InvalidInputError: the framework knows no such dtype.
    """
    if dtype is None:
        return None
    whole = framework.dtype_name(dtype)
    if whole is not None:
        if whole not in _FLOATS:
            raise InvalidInputError(
                "one dtype for a whole file has to be a floating-point one",
                hints=["a function of the name casts single tensors: dtype=lambda name: …"],
                dtype=whole,
            )
        return lambda name, present: whole if present in _FLOATS else present
    if not callable(dtype):
        raise _unknown_dtype(framework, dtype)

    def by_name(name: str, present: str) -> str:
        wanted = dtype(name)
        if wanted is None:
            return present
        found = framework.dtype_name(wanted)
        if found is None:
            raise _unknown_dtype(framework, wanted)
        return found

    return by_name


def _unknown_dtype(framework: Framework, dtype: object) -> InvalidInputError:
    return InvalidInputError(
        f"unknown dtype: {dtype!r}", hints=['"F32", "BF16", … or the framework\'s own'], framework=framework.name
    )


def total_bytes(sources: Iterable[Source]) -> int:
    """The bytes of all entries."""
    return sum(entry[4] for source in sources for entry in source.entries)
