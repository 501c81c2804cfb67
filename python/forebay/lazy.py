"""Single tensors, and parts of them, out of an open safetensors file."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, cast

from . import _forebay, frameworks
from ._captures import left_alone
from ._paths import Watch, path_text
from ._refusals import check_names, missing_name, wrong_size
from .errors import InvalidInputError
from .frameworks import unsupported_dtype
from .loading import Entry, Loader, Source, new_array
from .placement import META, Device
from .slices import Selection, select

if TYPE_CHECKING:
    from ._forebay import File
    from .frameworks import Allocator, Framework

__all__ = ["TensorSlice", "safe_open"]

# A part with more runs than this, shorter than that on average, is read whole and cut out in memory.
_MAX_SHORT_RUNS = 1 << 16
_SHORT_RUN_BYTES = 16 << 10
_NO_WATCH = nullcontext()


class Reader:
    """Reads tensors of one file to one device of one framework.

    Args:
        file: where they are.
        framework: makes the tensors.
        device: where they go.
        watch: notices that the file was changed in place; ``None`` for files that may be.
    """

    __slots__ = ("_allocate", "_device", "_watch", "file", "framework")

    def __init__(self, file: File, framework: Framework, device: Device, watch: Watch | None = None) -> None:
        self.file = file
        self._watch: AbstractContextManager[object] = _NO_WATCH if watch is None else watch
        self.framework = framework
        self._device = device
        self._allocate: Allocator | None = None

    @left_alone
    def new(self, shape: tuple[int, ...], entry: Entry, nbytes: int) -> Any:
        """A tensor of the entry's dtype whose bytes may be written.

        Raises:
            UnsupportedError: the framework has no such dtype.
        """
        if self.framework.dtype(entry[1]) is None:
            raise unsupported_dtype(self.framework, entry[1], entry[0])
        if self._allocate is None:
            self._allocate = self.framework.allocator(self._device)
        array = new_array(self.framework, self._allocate, shape, entry, self._device)
        if array.nbytes != nbytes:
            raise wrong_size(entry, array.nbytes)
        if nbytes:
            self.framework.ready([array], self._device)
        return array

    def read(self, shape: tuple[int, ...], entry: Entry, begin: int, nbytes: int) -> Any:
        """A new tensor of this shape from one run of bytes of the file.

        Raises:
            BusyError: the file was changed in place since it was opened.
        """
        array = self.new(shape, entry, nbytes)
        if nbytes and self._device != META:
            with self._watch:
                self.file._read_one(self.framework.address(array), nbytes, begin, array)
        return array

    def read_runs(self, shape: tuple[int, ...], entry: Entry, runs: Sequence[tuple[int, int]]) -> Any:
        """A new tensor of this shape from runs, ``(offset in the tensor, bytes)``, of a tensor's bytes, end to end."""
        if len(runs) == 1:
            return self.read(shape, entry, entry[3] + runs[0][0], runs[0][1])
        total = sum(nbytes for _, nbytes in runs)
        array = self.new(shape, entry, total)
        if total and self._device != META:
            address = self.framework.address(array)
            pieces = []
            for offset, nbytes in runs:
                pieces.append((address, nbytes, entry[3] + offset))
                address += nbytes
            with self._watch:
                self.file._submit(False, pieces, array).result()
        return array


class TensorSlice:
    """A tensor that has not been read yet: index it to read the part that you need.

    It keeps the file open, also after the ``safe_open`` it came from was closed.
    """

    __slots__ = ("_entry", "_reader")

    def __init__(self, reader: Reader, entry: Entry) -> None:
        self._reader = reader
        self._entry = entry

    def get_shape(self) -> list[int]:
        """The shape of the whole tensor."""
        return list(self._entry[2])

    def get_dtype(self) -> str:
        """safetensors' name of its dtype: ``"F32"``, ``"BF16"``, …"""
        return self._entry[1]

    def __getitem__(self, index: Any) -> Any:
        """The part that ``index`` selects, as a tensor of its own.

        Numbers, slices with positive steps, ``...`` and ``None`` read only the bytes they select. Anything else that
        the framework takes as an index (lists, arrays, masks) reads the whole tensor first.

        Raises:
            UnsupportedError: the framework has no such dtype.
            IndexOutOfBoundsError: an :class:`IndexError`.
            InvalidInputError: a step that is not positive.
        """
        entry, reader = self._entry, self._reader
        _, dtype, shape, begin, nbytes = entry
        if index is Ellipsis:
            return reader.read(shape, entry, begin, nbytes)
        framework = reader.framework
        if framework.dtype(dtype) is None:
            raise unsupported_dtype(framework, dtype, entry[0])
        selection = select(index, shape)
        if selection is None:
            return framework.index(reader.read(shape, entry, begin, nbytes), index)
        if all(part == (0, size, 1) for part, size in zip(selection.ranges, shape, strict=True)):
            return reader.read(selection.shape, entry, begin, nbytes)
        if 0 in selection.shape:
            return reader.read_runs(selection.shape, entry, [])
        if framework.name != "native" and _has_many_short_runs(selection, shape, nbytes):
            return self._cut_out(selection)
        runs, _ = _forebay.plan_slice(shape, _forebay.dtype_size(dtype), selection.ranges)
        # A sequence by its length and its items, which is all that is asked of it.
        return reader.read_runs(selection.shape, entry, cast("Sequence[tuple[int, int]]", runs))

    def _cut_out(self, selection: Selection) -> Any:
        """Reads the selected range of the first dimension whole and takes the parts out of it in memory."""
        _, _, shape, begin, nbytes = self._entry
        start, stop, _ = selection.ranges[0]
        row = nbytes // shape[0]
        reader = self._reader
        block = reader.read((stop - start, *shape[1:]), self._entry, begin + start * row, (stop - start) * row)
        first, *others = (slice(*part) for part in selection.ranges)
        part = reader.framework.index(block, (slice(0, stop - start, first.step), *others))
        return reader.framework.reshape(part, selection.shape)

    def __repr__(self) -> str:
        name, dtype, shape, _, _ = self._entry
        return f"TensorSlice({name!r}, {dtype}, {list(shape)})"


def _has_many_short_runs(selection: Selection, shape: tuple[int, ...], nbytes: int) -> bool:
    """Whether a selection consists of very many short runs."""
    tail = len(shape)
    while tail > 0 and selection.ranges[tail - 1] == (0, shape[tail - 1], 1):
        tail -= 1
    counts = [len(range(*part)) for part in selection.ranges]
    # The last dimension that is cut is contiguous itself, unless it has a step.
    outer = tail - 1 if tail and selection.ranges[tail - 1][2] == 1 else tail
    runs = math.prod(counts[:outer])
    selected = nbytes * math.prod(counts) // max(1, math.prod(shape))
    return runs > _MAX_SHORT_RUNS and selected // runs < _SHORT_RUN_BYTES


class safe_open:  # noqa: N801 (the name is safetensors')
    """An open safetensors file of which single tensors, or parts of them, are read. In place of
    ``safetensors.safe_open``.

    Args:
        filename: path of the file.
        framework: ``"torch"`` (``"pt"``), ``"numpy"`` (``"np"``), ``"jax"`` (``"flax"``), ``"cupy"`` or ``"native"``.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, a GPU's number or the framework's own device object.

    Raises:
        InvalidInputError: the header is not one, or claims what cannot be; or the file is truncated.
        NotFoundError, PermissionDeniedError, …: it cannot be opened.
        UnsupportedError: the framework is not installed or cannot have tensors on the device.

    >>> with safe_open("model.safetensors", framework="numpy") as file:  # doctest: +SKIP
    ...     for name in file.keys():
    ...         rows = file.get_slice(name)[:2]
    """

    def __init__(
        self,
        filename: str | os.PathLike[str],
        framework: str = "torch",
        device: object = "cpu",
        *,
        backend: object = None,
    ) -> None:
        # How safetensors reads has no meaning here.
        if backend not in (None, "mmap", "pread"):
            raise InvalidInputError(
                "no such backend: safetensors has mmap and pread", hints=["leave it out"], backend=backend
            )
        self._framework, self._device = self._choose(framework, device)
        self._source: Source | None = Source(path_text(filename))
        self._reader: Reader | None = Reader(self._source.file, self._framework, self._device, self._source.watch)
        self._entries: dict[str, Entry] = {entry[0]: entry for entry in self._source.entries}

    def _choose(self, framework: str, device: object) -> tuple[Framework, Device]:
        chosen = frameworks.get(framework)
        return chosen, chosen.parse_device(device)

    def keys(self) -> list[str]:
        """The names of the tensors, sorted."""
        self._open_source()
        return sorted(self._entries)

    def offset_keys(self) -> list[str]:
        """The names of the tensors in the order in which they lie in the file: the fastest order to read them in."""
        self._open_source()
        return list(self._entries)

    def metadata(self) -> dict[str, str] | None:
        """The file's own texts, ``None`` if it has none."""
        found: dict[str, str] | None = self._open_source().header.metadata
        return found

    def get_tensor(self, name: str) -> Any:
        """Reads one tensor.

        Raises:
            InvalidInputError: there is none of this name.
            UnsupportedError: the framework has no such dtype.
            BusyError: the file was changed in place since it was opened. One that was replaced stays readable.
        """
        entry, reader = self._entries.get(name), self._reader
        if entry is None or reader is None:
            self._no_entry(name)
        return reader.read(entry[2], entry, entry[3], entry[4])

    def get_tensors(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Reads several tensors at once (default: all), which is faster than one by one.

        Returns:
            The tensors by name, in the order in which they lie in the file.

        Raises:
            InvalidInputError: there is none of a name.
            UnsupportedError: the framework has no such dtype.
        """
        source = self._open_source()
        entries = list(self._entries.values())
        if names is not None:
            check_names(names)
            entries = sorted({self._entry(name) for name in names}, key=lambda entry: (entry[3], entry[4]))
        return Loader(self._framework, self._device).load([source.only(entries)])

    def get_slice(self, name: str) -> TensorSlice:
        """A tensor to be indexed, which reads only the part that is needed.

        Raises:
            InvalidInputError: there is none of this name.
        """
        entry, reader = self._entries.get(name), self._reader
        if entry is None or reader is None:
            self._no_entry(name)
        return TensorSlice(reader, entry)

    def close(self) -> None:
        """Lets go of the file; slices that still exist keep it open."""
        self._source = self._reader = None

    def _open_source(self) -> Source:
        if self._source is None:
            raise InvalidInputError("the file is closed", hints=["read inside of the with block"])
        return self._source

    def _entry(self, name: str) -> Entry:
        entry = self._entries.get(name)
        if entry is None:
            self._no_entry(name)
        return entry

    def _no_entry(self, name: str) -> NoReturn:
        raise missing_name(name, self._entries, path=self._open_source().path)

    def __enter__(self) -> safe_open:
        self._open_source()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
