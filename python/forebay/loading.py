"""Fills tensors from files: the framework allocates all of them, then the engine reads them, group by group.

The cost of thousands of small tensors is the work for each: here, to make it, to get its address and to put it
into a dict. Everything else is done for all at once, or in the native module; and the engine reads those that are made
while the next ones are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from . import _forebay
from ._captures import left_alone
from ._paths import Held, Watch, path_text
from .errors import InvalidInputError
from .placement import META, Device

if TYPE_CHECKING:
    from ._forebay import File, Future, SafetensorsHeader
    from .casting import Cast
    from .frameworks import Framework
    from .placement import Placement

__all__ = ["Entry", "Loader", "Source", "new_array", "path_text", "total_bytes"]

#: A tensor of a file: name, dtype, shape, offset in the file, bytes.
Entry = tuple[str, str, tuple[int, ...], int, int]
_name = itemgetter(0)
_dtype = itemgetter(1)
_nbytes = itemgetter(4)

#: Group sizes of loads, for tests: see the native LoadLimits.
_LIMITS: dict[str, int] = {}
_CASTS_IN_FLIGHT = 2
_NAMES_IN_HINT = 4


class Source:
    """An open safetensors file and the tensors to load.

    Args:
        path: of the file.

    Raises:
        InvalidInputError: its header is not one, or claims what cannot be; or the file is truncated.
        NotFoundError, PermissionDeniedError, …: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.file: File = _forebay.open(path)
        self.watch = Watch(self.file)
        self.held = Held(self.file, self.watch)
        try:
            self.header: SafetensorsHeader = _forebay.read_safetensors(self.file)
        except InvalidInputError as error:
            self.watch.check()
            from ._kinds import SAFETENSORS, other_kind

            raise other_kind(self.file, SAFETENSORS) or error from None
        self.entries: list[Entry] = self.header.tensors

    def only(self, entries: list[Entry]) -> Source:
        """The same open file with other entries wanted."""
        part = Source.__new__(Source)
        part.__dict__.update(self.__dict__, entries=entries)
        return part

    def check_unchanged(self) -> None:
        """Raises :class:`BusyError` if the file was changed in place since it was opened."""
        self.watch.check()


def new_array(
    framework: Framework, allocate: Callable[[tuple[int, ...], str], Any], shape: tuple[int, ...], entry: Entry,
    device: Device,
) -> Any:  # fmt: skip
    """An array for an entry, or for the part of it that has this shape.

    Raises:
        OutOfMemoryError, DeviceOutOfMemoryError: there is no memory for it.
        InvalidInputError: the framework has no such arrays: too many dimensions, or too long ones.
    """
    try:
        return allocate(shape, entry[1])
    except Exception as error:
        from . import _refusals

        refusal = _refusals.no_room(framework, error, (entry[0], entry[1], shape, 0, 0), device, entry[4], 0)
        if refusal is None:
            raise
        raise refusal from None


class _Group:
    """Tensors of one file on one device, which one batch reads."""

    __slots__ = ("addresses", "arrays", "device", "entries", "future", "source")

    addresses: list[int]
    future: Future

    def __init__(self, source: Source, device: Device, entries: list[Entry], arrays: list[Any]) -> None:
        self.source = source
        self.device = device
        self.entries = entries
        self.arrays = arrays


class Loader:
    """Loads tensors of several files with one framework.

    Args:
        framework: makes the tensors.
        where: the device of all, or of each.
        cast: the dtype of each, ``None`` to take them as they are.
        verify: compares the checksums in the files' metadata.
        tell: is called with the bytes of each part that is done.
    """

    def __init__(
        self,
        framework: Framework,
        where: Device | Placement,
        cast: Cast | None = None,
        verify: bool = False,
        tell: Callable[[int], object] | None = None,
    ) -> None:
        self._framework = framework
        self._where = where
        self._cast = cast
        self._verify = verify
        self._tell = tell
        self._total = self._done = 0
        self._allocators: dict[Device, Callable[[tuple[int, ...], str], Any]] = {}
        self._waiting: deque[_Group] = deque()
        self._flying: deque[_Group] = deque()
        self._expected: dict[str, dict[str, int]] = {}
        # Addresses that are taken, where a framework might give one twice.
        self._taken: set[int] = set()
        self._loaded: dict[str, Any] = {}

    @left_alone
    def load(self, sources: list[Source]) -> dict[str, Any]:
        """All entries of all sources, by name, in the order of the files.

        Raises:
            UnsupportedError: the framework lacks a dtype. Nothing was allocated then.
            DeviceOutOfMemoryError, OutOfMemoryError: all memory allocated for it is freed.
            BusyError: a file was changed in place meanwhile.
            IntegrityError: a checksum differs.
        """
        self._check(sources)
        runs = [(source, *run) for source in sources for run in self._by_device(source.entries)]
        self._total, are_small, groups = _forebay.plan_load(
            [entries for _, _, entries in runs], self._cast is not None, _LIMITS
        )
        try:
            for (source, device, entries), parts in zip(runs, groups, strict=True):
                if device.gpu is not None and entries and not are_small:
                    # Lanes start while the tensors are made.
                    source.file._expect_read(device.gpu, entries[0][3], entries[-1][3] + entries[-1][4])
                for first, stop in parts:
                    self._waiting.append(self._make(source, device, entries[first:stop]))
                    # Read while the next ones are made: that may take as long as a tenth of the reading.
                    self._submit()
                    if are_small or self._cast is not None:
                        self._finish(len(self._flying) if self._cast is None else _CASTS_IN_FLIGHT)
            self._finish(0)
        except BaseException as error:
            self._give_up()
            if isinstance(error, EOFError):
                # Most likely the file was truncated meanwhile: then report that.
                for source in sources:
                    source.check_unchanged()
            raise
        for source in sources:
            source.check_unchanged()
        if len(self._allocators) > 1:
            return {entry[0]: self._loaded[entry[0]] for source in sources for entry in source.entries}
        return self._loaded

    def _check(self, sources: list[Source]) -> None:
        """Refuses what cannot work, before anything is allocated."""
        for source in sources:
            if self._cast is None:
                pairs = {(dtype, dtype) for dtype in set(map(_dtype, source.entries))}
            else:
                pairs = {(entry[1], self._cast(entry[0], entry[1])) for entry in source.entries}
            for dtype, target in pairs:
                if self._framework.dtype(target) is None:
                    self._lacks(target, source, dtype, target)
                if not self._framework.reads(dtype):
                    self._lacks(dtype, source, dtype, target)
            if self._verify:
                from ._checksums import checksums_of

                self._expected[source.path] = checksums_of(source.header.metadata, source.path)

    def _lacks(self, lacked: str, source: Source, dtype: str, target: str) -> None:
        from .frameworks import unsupported_dtype

        found = [
            entry[0]
            for entry in source.entries
            if entry[1] == dtype and target == (dtype if self._cast is None else self._cast(entry[0], dtype))
        ]
        error = unsupported_dtype(self._framework, lacked, found[0])
        if len(found) < min(len(source.entries), _NAMES_IN_HINT):
            error.add_hint(f"or load the others: names=lambda name: name not in {set(found)!r}")
        raise error

    def _by_device(self, entries: list[Entry]) -> Iterator[tuple[Device, list[Entry]]]:
        if isinstance(self._where, Device):
            yield self._where, entries
            return
        found: dict[Device, list[Entry]] = {}
        for entry in entries:
            found.setdefault(self._where(entry[0]), []).append(entry)
        yield from found.items()

    def _make(self, source: Source, device: Device, entries: list[Entry]) -> _Group:
        if device not in self._allocators:
            self._allocators[device] = self._framework.allocator(device)
        allocate = self._allocators[device]
        sized: set[str] = set()
        array: Any = None
        arrays: list[Any] = []
        entry = entries[0]
        try:
            for entry in entries:
                array = allocate(entry[2], entry[1])
                arrays.append(array)
                # One of each dtype tells for all.
                if entry[1] not in sized and entry[4]:
                    self._check_size(array.nbytes, entry)
                    sized.add(entry[1])
        except Exception as error:
            reason: Exception = error
        else:
            return _Group(source, device, entries, arrays)
        # Nothing that the error's traceback reaches may keep an array.
        array = None
        arrays.clear()
        loaded = self._done
        self._give_up()
        from . import _refusals

        refusal = _refusals.no_room(self._framework, reason, entry, device, self._total, loaded)
        if refusal is None:
            raise reason
        raise refusal from None

    def _check_size(self, nbytes: int, entry: Entry) -> None:
        if nbytes != entry[4]:
            from . import _refusals

            raise _refusals.wrong_size(entry, nbytes)

    def _submit(self) -> None:
        """Starts reading the allocated tensors."""
        made: dict[Device, list[Any]] = {}
        for group in self._waiting:
            made.setdefault(group.device, []).extend(group.arrays)
        for device, arrays in made.items():
            self._framework.ready(arrays, device)
        made.clear()
        while self._waiting:
            group = self._waiting[0]
            if group.device == META:
                # Its tensors have no memory.
                group.addresses = []
                group.future = group.source.file._read_tensors([], [], None)
            else:
                group.addresses = list(map(self._framework.address, group.arrays))
                if self._framework.may_share:
                    self._take(group)
                group.future = group.source.file._read_tensors(group.entries, group.addresses, group.arrays)
            self._flying.append(self._waiting.popleft())

    def _take(self, group: _Group) -> None:
        """Refuses memory that another tensor of this load has."""
        for entry, address in zip(group.entries, group.addresses, strict=True):
            if entry[4]:
                if address in self._taken:
                    from . import _refusals

                    raise _refusals.shared(self._framework, entry)
                self._taken.add(address)

    def _finish(self, at_most: int) -> None:
        """Takes in the groups that are done, and waits until at most ``at_most`` are in flight."""
        while self._flying and (len(self._flying) > at_most or self._flying[0].future.done()):
            group = self._flying[0]
            group.future.result()
            self._flying.popleft()
            if self._verify and group.addresses:
                from ._checksums import compare

                compare(group.entries, group.addresses, self._expected[group.source.path], group.source.path)
            if self._cast is None:
                self._loaded.update(zip(map(_name, group.entries), group.arrays, strict=True))
            else:
                self._cast_group(group, self._cast)
            count = sum(map(_nbytes, group.entries))
            self._done += count
            if self._tell is not None:
                self._tell(count)

    def _cast_group(self, group: _Group, cast: Cast) -> None:
        # From the end, so that each original can go as soon as it has been cast.
        done = []
        for name, dtype, _, _, _ in reversed(group.entries):
            target = cast(name, dtype)
            array = group.arrays.pop()
            if target != dtype:
                self._taken.discard(self._framework.address(array))
                array = self._framework.cast(array, target)
            done.append((name, array))
        self._loaded.update(reversed(done))

    def _give_up(self) -> None:
        """Stops what is in flight, waits for it and releases everything."""
        self._loaded.clear()
        self._waiting.clear()
        for group in self._flying:
            group.future.cancel()
        while self._flying:
            group = self._flying.popleft()
            group.future.exception()
            group.arrays.clear()


def total_bytes(sources: list[Source]) -> int:
    """The bytes of all entries."""
    return sum(sum(map(_nbytes, source.entries)) for source in sources)
