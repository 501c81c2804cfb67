"""Single tensors, and parts of them, out of an open safetensors file."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from . import _forebay, frameworks
from .errors import InvalidInputError
from .frameworks import Framework, unsupported_dtype
from .loading import Entry, Loader, Source, total_bytes
from .placement import META, Device
from .progress import Progress
from .slices import Selection, select

if TYPE_CHECKING:
    from ._forebay import File

__all__ = ["TensorSlice", "missing_name", "safe_open"]

# A part of more runs than this that are shorter than that is cheaper to cut out in memory.
_MOST_RUNS = 1 << 16
_LONG_RUN = 16 << 10


class TensorSlice:
    """A tensor that has not been read yet: index it to read the part that you need.

    It keeps the file open, also after the ``safe_open`` it came from was closed.
    """

    def __init__(self, file: File, entry: Entry, framework: Framework, device: Device) -> None:
        self._file = file
        self._entry = entry
        self._framework = framework
        self._device = device

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
        name, dtype, shape, _, nbytes = self._entry
        if self._framework.dtype(dtype) is None:
            raise unsupported_dtype(self._framework, dtype, name)
        if index is Ellipsis:
            return read_runs(self, shape, [(0, nbytes)])
        selection = select(index, shape)
        if selection is None:
            whole = read_runs(self, shape, [(0, nbytes)])
            return self._framework.index(whole, index)
        if all(part == (0, size, 1) for part, size in zip(selection.ranges, shape, strict=True)):
            return read_runs(self, selection.shape, [(0, nbytes)])
        if 0 in selection.shape:
            return read_runs(self, selection.shape, [])
        if self._framework.name != "native" and _is_confetti(selection, shape, nbytes):
            return self._cut_out(selection)
        runs, _ = _forebay.plan_slice(shape, _forebay.dtype_size(dtype), selection.ranges)
        # A sequence by its length and its items, which is all that is asked of it.
        return read_runs(self, selection.shape, cast("Sequence[tuple[int, int]]", runs))

    def _cut_out(self, selection: Selection) -> Any:
        """Reads the selected range of the first dimension whole and takes the parts out of it in memory."""
        _, _, shape, _, nbytes = self._entry
        start, stop, _ = selection.ranges[0]
        row = nbytes // shape[0]
        block = read_runs(self, (stop - start, *shape[1:]), [(start * row, (stop - start) * row)])
        first, *others = (slice(*part) for part in selection.ranges)
        part = self._framework.index(block, (slice(0, stop - start, first.step), *others))
        return self._framework.reshape(part, selection.shape)

    def __repr__(self) -> str:
        name, dtype, shape, _, _ = self._entry
        return f"TensorSlice({name!r}, {dtype}, {list(shape)})"


def _is_confetti(selection: Selection, shape: tuple[int, ...], nbytes: int) -> bool:
    """Whether a selection consists of very many short runs."""
    tail = len(shape)
    while tail > 0 and selection.ranges[tail - 1] == (0, shape[tail - 1], 1):
        tail -= 1
    counts = [len(range(*part)) for part in selection.ranges]
    # The last dimension that is cut is contiguous itself, unless it has a step.
    outer = tail - 1 if tail and selection.ranges[tail - 1][2] == 1 else tail
    runs = math.prod(counts[:outer])
    selected = nbytes * math.prod(counts) // max(1, math.prod(shape))
    return runs > _MOST_RUNS and selected // runs < _LONG_RUN


def read_runs(tensor: TensorSlice, shape: tuple[int, ...], runs: Sequence[tuple[int, int]]) -> Any:
    """A new tensor of this shape from runs, ``(offset in the tensor, bytes)``, of a tensor's bytes, end to end."""
    _, dtype, _, begin, _ = tensor._entry
    framework = tensor._framework
    array = framework.allocator(tensor._device)(shape, dtype)
    total = sum(nbytes for _, nbytes in runs)
    if array.nbytes != total:
        raise InvalidInputError("the framework's tensor has another size than the file's", tensor=tensor._entry[0])
    if total and tensor._device != META:
        framework.ready([array], tensor._device)
        address = framework.address(array)
        if len(runs) == 1:
            # On this thread, which for small tensors is several times faster.
            tensor._file.read_into(_Memory(array, address, total, tensor._device), begin + runs[0][0])
            return array
        pieces = []
        for offset, nbytes in runs:
            pieces.append((address, nbytes, begin + offset))
            address += nbytes
        tensor._file._submit(False, pieces, array).result()
    return array


class _Memory:
    """The bytes of an array of whatever framework and dtype, by the protocol that needs nothing of either."""

    def __init__(self, array: Any, address: int, nbytes: int, device: Device) -> None:
        self._keep = array
        interface = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}
        if device.gpu is None:
            self.__array_interface__ = interface
        else:
            self.__cuda_array_interface__ = interface


class safe_open:  # noqa: N801 (the name is safetensors')
    """An open safetensors file of which single tensors, or parts of them, are read. In place of
    ``safetensors.safe_open``.

    Args:
        filename: path of the file.
        framework: ``"torch"`` (``"pt"``), ``"numpy"`` (``"np"``), ``"jax"`` (``"flax"``), ``"cupy"`` or ``"native"``.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, a GPU's number or the framework's own device object.

    Raises:
        IntegrityError: the header is not one, or claims what cannot be.
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
        # `backend` chooses how safetensors reads; it has no meaning here.
        self._framework = frameworks.get(framework)
        self._device = self._framework.parse_device(device)
        self._source: Source | None = Source(os.fsdecode(os.fspath(filename)))
        self._entries: dict[str, Entry] = {entry[0]: entry for entry in self._source.entries}

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
        """
        return self.get_slice(name)[...]

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
            entries = sorted({self._entry(name) for name in names}, key=lambda entry: (entry[3], entry[4]))
        part = source.only(entries)
        with Progress(total_bytes([part]), False) as progress:
            return Loader(self._framework, lambda name: self._device, None, False, progress).load([part])

    def get_slice(self, name: str) -> TensorSlice:
        """A tensor to be indexed, which reads only the part that is needed.

        Raises:
            InvalidInputError: there is none of this name.
        """
        entry = self._entry(name)
        return TensorSlice(self._open_source().file, entry, self._framework, self._device)

    def close(self) -> None:
        """Lets go of the file; slices that still exist keep it open."""
        self._source = None

    def _open_source(self) -> Source:
        if self._source is None:
            raise InvalidInputError("the file is closed", hints=["read inside of the with block"])
        return self._source

    def _entry(self, name: str) -> Entry:
        self._open_source()
        entry = self._entries.get(name)
        if entry is None:
            raise missing_name(name, self._entries)
        return entry

    def __enter__(self) -> safe_open:
        self._open_source()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def missing_name(name: str, present: Iterable[str], **context: Any) -> InvalidInputError:
    """The error for a tensor that a file does not have."""
    close = difflib.get_close_matches(str(name), list(present), 3)
    hints = [f"there is {', '.join(map(repr, close))}"] if close else []
    return InvalidInputError("the file has no tensor of this name", hints=hints, tensor=name, **context)
