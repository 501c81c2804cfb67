"""Records: rows of files, read many at a time to one device of one framework."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
from array import array as packed_array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from numbers import Real
from typing import TYPE_CHECKING, Any, Self, cast

from .. import _forebay, frameworks
from ..errors import InvalidInputError
from ..slices import IndexOutOfBoundsError
from ._digest import digest_of
from ._files import FileSet
from ._jagged import Jagged
from ._memory import Fresh, Memory, numbers
from ._rows import host_rows, one_row, pack_numbers, packed_range, row_numbers

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from .._forebay import Future
    from ..frameworks import Device, Framework

    #: The types that torch's functions require. At run time torch only looks for methods, so it is not imported.
    DatasetBase = Dataset[Any]
else:
    DatasetBase = object

__all__ = ["FileRecords", "Gathered", "Held", "Pending", "Records", "Zipped", "collate", "placed", "split", "zipped"]

#: (file's number, where its records lie), as the native half takes it. Where, in bytes: (rows, offset, stride, length of each),
#: (offsets, length of each) or (offsets, lengths). Offsets and lengths are arrays of unsigned 64-bit numbers: numpy's, or ``array("Q")``.
Part = tuple[int, tuple[Any, ...]]


def placed(framework: str, device: object) -> tuple[Framework, Device]:
    """A framework and its device. Without one: the GPU that the process uses now (``torch.cuda.set_device``), else the host."""
    found = frameworks.get(framework)
    if device is not None:
        return found, found.parse_device(device)
    default = found.default_device()
    return found, default if default.gpu is None else found.parse_device("cuda")


class Pending:
    """A batch on its way. :meth:`result` waits for it."""

    __slots__ = ("_futures", "_value", "count", "receipts")

    def __init__(self, value: Any, futures: Sequence[Future], count: int) -> None:
        self._value, self._futures = value, futures
        self.count = count
        self.receipts: list[_forebay.Receipt] = []

    def result(self) -> Any:
        """The batch, once all of it is there. May be called again, also after an error or Ctrl-C."""
        while len(self.receipts) < len(self._futures):
            self.receipts.append(self._futures[len(self.receipts)].result())
        return self._value


class Gathered(list[Any]):
    """The records of a batch one by one, and all of them in ``whole``."""

    whole: Any


def collate(records: Any) -> Any:
    """For ``DataLoader(records, collate_fn=collate)``: the batch as it was read, without a copy."""
    return records.whole if isinstance(records, Gathered) else records


class Records(DatasetBase):
    """The interface of all sources: a length, and records by their numbers.

    They are picklable and open their files when they first read, in each process.
    """

    framework: Framework
    device: Device

    def __len__(self) -> int:
        raise NotImplementedError

    def read_async(self, rows: Any, memory: Memory | None = None) -> Pending:
        """Starts reading records by their numbers: a list, an array or packed 64-bit integers."""
        raise NotImplementedError

    def _one(self, row: int) -> Any:
        raise NotImplementedError

    @property
    def fingerprint(self) -> str:
        """Tells one state of the files from another: by names, sizes and times of change."""
        raise NotImplementedError

    @property
    def nbytes_hint(self) -> int:
        """About how many bytes a record has."""
        raise NotImplementedError

    def file_sets(self) -> Sequence[FileSet]:
        """The files that the records lie in."""
        return ()

    def check(self) -> None:
        """Raises :class:`~forebay.BusyError` if a file is not what it was when the data set was opened."""
        # Columns side by side mostly lie in the same files.
        for files in dict.fromkeys(self.file_sets()):
            files.check()

    def extents(self, start: int, stop: int) -> list[tuple[str, int, int]]:
        """(path, offset, bytes) that records from ``start`` up to ``stop`` lie in."""
        return []

    def to(self, device: object = None, framework: str | None = None) -> Self:
        """The same records for another device or framework."""
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Any:
        """One record by its number, or a batch by a slice, a list or an array of numbers: one read.

        Raises:
            IndexOutOfBoundsError: an :class:`IndexError`.
            NotRecordNumbersError: a :class:`TypeError`.
            BusyError: a file changed, or became shorter.
        """
        if isinstance(index, slice):
            return self.read_async(packed_range(range(*index.indices(len(self))))).result()
        if isinstance(index, range):
            for row in (index[0], index[-1]) if index else ():
                self._checked(row)
            return self.read_async(packed_range(index)).result()
        number = one_row(index)
        if number is not None:
            return self._one(self._checked(number))
        return self.read_async(index).result()

    def select(self, rows: Any) -> Records:
        """Some of the records, in this order: for training and for validation, say. Nothing is read.

        Args:
            rows: a ``range`` or slice, which takes no memory, or a list or an array of numbers.

        Raises:
            InvalidInputError: a number that there is not (also an :class:`IndexError`), or what is no whole number (also a
                :class:`TypeError`).
        """
        from ._selected import selected

        return selected(self, rows)

    def _checked(self, row: int) -> int:
        if not -len(self) <= row < len(self):
            raise IndexOutOfBoundsError(f"record {row} is out of bounds: the data set has {len(self)}")
        return row % len(self)

    def __getitems__(self, rows: Sequence[int]) -> Gathered:
        """A batch for torch's ``DataLoader``, which then collates it; :func:`collate` takes it as it is."""
        whole = self.read_async(list(rows)).result()
        gathered = Gathered(split(whole, len(rows)))
        gathered.whole = whole
        return gathered

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))


def split(whole: Any, count: int) -> list[Any]:
    """A batch as its records."""
    if isinstance(whole, Mapping):
        columns = {name: split(column, count) for name, column in whole.items()}
        return [{name: column[row] for name, column in columns.items()} for row in range(count)]
    if isinstance(whole, Jagged):
        return list(whole)
    if hasattr(whole, "unbind"):
        return list(whole.unbind(0))
    return [whole[row] for row in range(count)]


class FileRecords(Records):
    """Records that lie in files as they are.

    Args:
        files: all of them.
        parts: where the records are, in order.
        dtype: safetensors' name of the elements' type.
        shape: of a record; of an element's trailing dimensions if ``jagged``.
        jagged: records have different lengths.

    Attributes:
        classes: names of a folder's folders; see :func:`~forebay.data.ranges`.
        labels: the number of each record's class, where there are classes.
    """

    classes: Sequence[str] = ()
    labels: Sequence[int] = ()

    def __init__(
        self,
        files: FileSet,
        parts: list[Part],
        dtype: str,
        shape: tuple[int, ...],
        framework: str,
        device: object,
        *,
        jagged: bool = False,
    ) -> None:
        self.files = files
        self._parts = parts
        self._dtype, self._shape, self.jagged = dtype, shape, jagged
        self._unit = math.prod(shape) * _forebay.dtype_size(dtype) // 8
        self._settle(framework, device)
        self._opened: tuple[int, _forebay.Table, Fresh] | None = None
        # Refuses what lies outside of its file, before anybody reads.
        self._len = len(self._open()[1])

    def _settle(self, framework: str, device: object) -> None:
        self.framework, self.device = placed(framework, device)
        if self.framework.dtype(self._dtype) is None:
            raise frameworks.unsupported_dtype(self.framework, self._dtype, "records")

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one record; ``-1`` stands for a length that differs."""
        return (-1, *self._shape) if self.jagged else self._shape

    @property
    def dtype(self) -> Any:
        """The framework's dtype; for forebay's own arrays safetensors' name of it."""
        return self.framework.dtype(self._dtype)

    def _open(self) -> tuple[int, _forebay.Table, Fresh]:
        if self._opened is None or self._opened[0] != os.getpid():
            table = _forebay.Table(self.files.native(), self._parts)
            self._opened = os.getpid(), table, Fresh(self.framework, self.device)
        return self._opened

    def __len__(self) -> int:
        return self._len

    def read_async(self, rows: Any, memory: Memory | None = None) -> Pending:
        _, table, fresh = self._open()
        memory = memory or fresh
        rows, records = row_numbers(rows)
        if self.jagged:
            packed, nbytes = table.ends(rows, self._unit)
            count = nbytes // self._unit if self._unit else 0
            values = memory.new((count, *self._shape), self._dtype)
            with memory.aside():
                batch: Any = Jagged(values, numbers(self.framework, self.device, packed))
        else:
            nbytes = records * self._unit
            batch = values = memory.new((records, *self._shape), self._dtype)
        if not nbytes:
            # Numbers that are not there are refused all the same.
            table.ends(rows)
            return Pending(batch, [], records)
        return Pending(batch, [table.read(rows, self.framework.address(values), nbytes, values)], records)

    def _one(self, row: int) -> Any:
        _, table, fresh = self._open()
        nbytes = table.ends([row])[1]
        shape = (nbytes // self._unit if self._unit else 0, *self._shape) if self.jagged else self._shape
        array = fresh.new(shape, self._dtype)
        if nbytes:
            table.read([row], self.framework.address(array), nbytes, array).result()
        return array

    @functools.cached_property
    def fingerprint(self) -> str:  # type: ignore[override]
        # Where the records lie, too: a program may have given that.
        return digest_of(self.files.fingerprint, self._len, self._dtype, self.shape, _places(self._parts))

    @property
    def nbytes_hint(self) -> int:
        if not self.jagged or not self._len:
            return self._unit
        return max(1, self.files.nbytes // self._len)

    def file_sets(self) -> Sequence[FileSet]:
        return (self.files,)

    def extents(self, start: int, stop: int) -> list[tuple[str, int, int]]:
        table = self._open()[1]
        return [(self.files.paths[number], offset, size) for number, offset, size in table.extents(start, stop)]

    def to(self, device: object = None, framework: str | None = None) -> Self:
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__getstate__())
        same = framework is None
        other._opened = None
        other._settle(framework or self.framework.name, self.device if device is None and same else device)
        return other

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__, framework=self.framework.name, device=str(self.device))
        state["_opened"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._settle(state["framework"], state["device"])

    def __repr__(self) -> str:
        shape = list(self.shape)
        return f"<forebay.data: {self._len} records of {shape} {self._dtype} in {len(self.files.paths)} file(s)>"


def _places(parts: list[Part]) -> packed_array[int]:
    """Where records lie, as one array: there may be a part for each of a million files."""
    packed = packed_array("Q")
    for file, places in parts:
        packed.append(file)
        for place in places:
            if hasattr(place, "__len__"):
                packed.append(len(place))
                packed.frombytes(
                    place.astype("uint64").tobytes() if hasattr(place, "astype") else pack_numbers(place).tobytes()
                )
            else:
                packed.append(place)
    return packed


class Held(Records):
    """Rows of an array in memory: labels, say. Numbers become an array of the framework of the records beside them, on their
    device; other lists stay lists.
    """

    def __init__(self, given: Any, framework: Framework, device: Device) -> None:
        self._given, self.framework, self.device = given, framework, device
        self.array = _to_array(given, framework, device)

    def __len__(self) -> int:
        return len(self.array)

    def read_async(self, rows: Any, memory: Memory | None = None) -> Pending:
        rows, count = row_numbers(rows)
        if not hasattr(self.array, "dtype"):
            # Any sequence of Python's: it gives one at a time.
            numbers = memoryview(rows).cast("q").tolist() if isinstance(rows, bytes) else list(rows)
            self._check_all(min, max, numbers)
            return Pending([self.array[row] for row in numbers], [], count)
        index = self._index(rows)
        self._check_all(type(index).min, type(index).max, index)
        with contextlib.nullcontext() if memory is None else memory.aside():
            if hasattr(self.array, "device") and hasattr(index, "to"):
                # Not waited for: the gather is queued behind it.
                index = index.to(self.array.device, non_blocking=True)
            return Pending(self.array[index], [], count)

    def _check_all(self, least: Any, most: Any, rows: Any) -> None:
        if len(rows):
            self._checked(int(least(rows))), self._checked(int(most(rows)))

    def _index(self, rows: Any) -> Any:
        """Numbers of records in host memory, as an array of the framework that indexes by them."""
        if type(self.array).__module__.startswith("torch"):
            import torch

            # Without numpy, which torch can do without.
            if isinstance(rows, (bytes, list, tuple)):
                found = bytearray(rows) if isinstance(rows, bytes) else pack_numbers(rows)
                return torch.frombuffer(found, dtype=torch.int64) if found else torch.empty(0, dtype=torch.int64)
            return torch.as_tensor(rows, dtype=torch.int64).cpu()
        return host_rows(rows)

    def _one(self, row: int) -> Any:
        return self.array[row]

    @functools.cached_property
    def fingerprint(self) -> str:  # type: ignore[override]
        """Of the values. Computed once: a billion numbers take some seconds."""
        return digest_of(self._given)

    @property
    def nbytes_hint(self) -> int:
        return 0

    def to(self, device: object = None, framework: str | None = None) -> Self:
        same = framework is None
        found = placed(framework or self.framework.name, self.device if device is None and same else device)
        return type(self)(self._given, *found)

    def __getstate__(self) -> dict[str, Any]:
        return {"given": self._given, "framework": self.framework.name, "device": str(self.device)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["given"], *placed(state["framework"], state["device"]))  # type: ignore[misc]


def _to_array(given: Any, framework: Framework, device: Device) -> Any:
    """Numbers of a program as an array of a framework on a device; what is none, or is for another framework, as it is."""
    if isinstance(given, Sequence) and not hasattr(given, "dtype"):
        if framework.name not in ("torch", "cupy", "numpy") or not len(given):
            return given
        # numpy's own numbers are real ones, too.
        if not all(issubclass(kind, Real) and not issubclass(kind, Fraction) for kind in set(map(type, given))):
            return given
        given = list(given)
    home = type(given).__module__.split(".")[0]
    if home == "numpy" and (given.dtype.kind not in "biufc" or framework.name not in ("torch", "cupy")):
        return given
    if home == "numpy" and framework.name in ("torch", "cupy"):
        import numpy

        # torch knows no strides backwards and no other order of bytes, and warns of arrays that nobody may write to.
        given = numpy.require(given, given.dtype.newbyteorder("="), ["C", "W"])
    if framework.name == "torch" and home in ("builtins", "numpy", "torch"):
        import torch

        return cast("Any", torch.as_tensor(given)).to(str(device))
    if framework.name == "cupy" and home in ("builtins", "numpy", "cupy"):
        import cupy

        with cupy.cuda.Device(device.number):
            return cupy.asarray(given)
    if framework.name == "numpy" and home == "builtins":
        import numpy

        return numpy.asarray(given)
    return given


class Zipped(Records):
    """Columns with the same numbers of records: a batch is a dict. Made by :func:`zipped`."""

    def __init__(self, columns: dict[str, Records]) -> None:
        self.columns = columns
        first = next(iter(columns.values()))
        read = next((column for column in columns.values() if not isinstance(column, Held)), first)
        self.framework, self.device = read.framework, read.device
        self._len = len(first)
        for name, column in columns.items():
            _same_length(name, column, first)

    def __len__(self) -> int:
        return self._len

    def read_async(self, rows: Any, memory: Memory | None = None) -> Pending:
        rows, count = row_numbers(rows)
        parts = {
            name: column.read_async(rows, memory if self._is_alike(column) else None)
            for name, column in self.columns.items()
        }
        batch = {name: part._value for name, part in parts.items()}
        return Pending(batch, [future for part in parts.values() for future in part._futures], count)

    def _is_alike(self, column: Records) -> bool:
        """Whether a column goes where the others go: its memory is the same then."""
        return column.framework is self.framework and column.device == self.device

    def _one(self, row: int) -> dict[str, Any]:
        return {name: column._one(row) for name, column in self.columns.items()}

    @property
    def fingerprint(self) -> str:
        told = " ".join(f"{name}={column.fingerprint}" for name, column in self.columns.items())
        return hashlib.sha256(told.encode()).hexdigest()[:32]

    @property
    def nbytes_hint(self) -> int:
        return sum(column.nbytes_hint for column in self.columns.values())

    def file_sets(self) -> Sequence[FileSet]:
        return [files for column in self.columns.values() for files in column.file_sets()]

    def extents(self, start: int, stop: int) -> list[tuple[str, int, int]]:
        found = [extent for column in self.columns.values() for extent in column.extents(start, stop)]
        return list(dict.fromkeys(found))

    def to(self, device: object = None, framework: str | None = None) -> Self:
        return type(self)({name: column.to(device, framework) for name, column in self.columns.items()})

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            if index not in self.columns:
                raise InvalidInputError(f"there is no column {index!r}", hints=[f"columns: {', '.join(self.columns)}"])
            return self.columns[index]
        return super().__getitem__(index)

    def __getstate__(self) -> dict[str, Any]:
        return {"columns": self.columns}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["columns"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"<forebay.data: {self._len} records of {', '.join(self.columns)}>"


def _same_length(name: str, column: Any, first: Records) -> None:
    try:
        count = len(column)
    except OverflowError:
        # Of a range beyond what len() says.
        count = None
    if count != len(first):
        told: dict[str, Any] = {"records": len(first), name: "more than 2^63" if count is None else count}
        hints = ["cut the longer ones, or look for a missing file"]
        raise InvalidInputError("the columns have different numbers of records", hints=hints, **told)


def zipped(**columns: Any) -> Zipped:
    """Puts columns side by side: record number n has number n of each. A batch is a dict.

    Args:
        columns: records of any source, or labels and the like in memory: an array or a list of numbers becomes an array of
            the framework of the records beside it, on their device, where that is torch, cupy or numpy; a list of anything
            else stays a list.

    Raises:
        InvalidInputError: no records among them, or different numbers.
    """
    like = next((column for column in columns.values() if isinstance(column, Records)), None)
    if like is None:
        raise InvalidInputError("zipped() without records", hints=["zipped(image=raw(…), label=labels)"])
    for name, column in columns.items():
        if not hasattr(column, "__len__") or not hasattr(column, "__getitem__"):
            hints = [f"{name}=list(…)"] if isinstance(column, Iterable) else ["an array or a list, one value a record"]
            raise InvalidInputError(f"a column cannot be {type(column).__name__}", hints=hints, column=name)
        # Before it is made an array: it may be a range beyond all memory.
        _same_length(name, column, like)
    given = {
        name: column if isinstance(column, Records) else Held(column, like.framework, like.device)
        for name, column in columns.items()
    }
    return Zipped(given)
