"""forebay's own format for records: one file, aligned, indexed, with checksums. docs/reference/pack-format.md describes it."""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from .. import _forebay, frameworks
from .._kinds import PACKED, other_kind
from .._paths import path_text
from ..errors import IntegrityError, InvalidInputError, UnsupportedError
from ..frameworks import CPU, _dtypes
from ._files import FileSet, bounded, chosen, read_start
from ._patterns import text_paths
from ._plain import dtype_named, need_numpy
from ._records import FileRecords, Part, Records, Zipped

__all__ = ["pack", "packed", "verify"]

_MAGIC = b"FBRECORD"
_VERSION = 1
#: magic, version, CRC-32C of the index, its offset, its bytes, bytes of the file, records; and the CRC-32C of all these.
_HEADER = struct.Struct("<8sIIQQQQ")
_PAGE = 4096
#: An index with a larger number, more columns or more bytes is damaged.
_MAX_COUNT = 1 << 62
_MAX_COLUMNS = 1 << 20
_MAX_INDEX_BYTES = 1 << 30
#: Bytes of samples that are held before they are written.
_GROUP_BYTES = 64 << 20
_WRITERS = ["write it with pack(samples, path); files of other formats: raw(…), npy(…), mds(…), …"]
#: Bytes that one step of a check reads.
_PART_BYTES = 64 << 20


def pack(samples: Iterable[Any], path: Any, *, jagged: Collection[str] = (), durable: bool = True) -> int:
    """Writes samples to one file that :func:`packed` reads, which appears, or replaces another, once it is whole.

    Args:
        samples: arrays of one dtype and shape, or dicts of column name to array, number, ``bytes`` or text. What the first
            one has, all have.
        path: of the file.
        jagged: columns whose arrays differ in the length of their first dimension. ``bytes`` and texts may anyhow.
        durable: data and name are on the disk on return.

    Returns:
        The number of records.

    Raises:
        InvalidInputError: no samples, or one has other columns, another dtype or shape than the first; or the argument is one
            sample.
        UnsupportedError: Python objects.
        NoSpaceError, PermissionDeniedError, …: it cannot be written; what was there before is still there.
    """
    if isinstance(samples, (Mapping, str, bytes, bytearray)) or not isinstance(samples, (Iterable, Records)):
        raise InvalidInputError(
            "samples are given one behind the other, not as one value",
            hints=['pack([{"image": image, "label": label}, …], path)'],
            type=type(samples).__name__,
        )
    if not isinstance(jagged, Iterable):
        raise InvalidInputError(f"jagged cannot be {jagged!r}", hints=["jagged=[NAME, …]"])
    with _forebay.Pending(path_text(path, True)) as pending:
        writer = _Writer(pending.file, frozenset([jagged] if isinstance(jagged, str) else jagged))
        for sample in samples:
            writer.add(sample)
        count = writer.end()
        pending.commit(durable)
    return count


class _Column:
    """A column that is written: what its first value was, and the values of this group."""

    def __init__(self, name: str, array: Any, jagged: bool) -> None:
        self.name, self.dtype, self.jagged = name, array.dtype, jagged
        self.shape: tuple[int, ...] = array.shape[1:] if jagged else array.shape
        self.type = _type_of(array.dtype, name)
        self.values: list[Any] = []
        self.stride = _stride(array.nbytes)

    def add(self, array: Any, row: int) -> int:
        found = array.shape[1:] if self.jagged else array.shape
        if array.dtype != self.dtype or found != self.shape or (self.jagged and array.ndim == 0):
            raise InvalidInputError(
                f"record {row} has another dtype or shape than the first",
                hints=[f"jagged=[{self.name!r}] for arrays whose first dimensions differ"],
                column=self.name,
                first=f"{self.dtype} {list(self.shape)}",
                found=f"{array.dtype} {list(array.shape)}",
            )
        self.values.append(array)
        return int(array.nbytes)


def _stride(nbytes: int) -> int:
    """Bytes from a record to the next: whole pages where they cost an eighth at most, else multiples of 64."""
    pages = -(-nbytes // _PAGE) * _PAGE
    return pages if pages - nbytes <= nbytes // 8 else -(-nbytes // 64) * 64 if nbytes >= 64 else nbytes


def _type_of(dtype: Any, name: str) -> str:
    if dtype.hasobject:
        raise UnsupportedError(
            "Python objects cannot be records", hints=["numbers, arrays, texts or bytes"], column=name
        )
    try:
        return dtype_named(dtype.name)
    except InvalidInputError:
        hints = ["numbers: array.view('int64') of times, one text or bytes for each record"]
        raise UnsupportedError(f"elements of {dtype} cannot be records", hints=hints, column=name) from None


def _plain(tensor: Any, column: str) -> Any:
    """A tensor of torch's in host memory, with its values there.

    Raises:
        InvalidInputError: it is no tensor of numbers in memory, as sparse ones, and those without data.
    """
    from ..frameworks.torch import not_saved

    missing = not_saved(tensor)
    if missing is not None:
        raise InvalidInputError(missing.reason, hints=[missing.hint], column=column)
    return tensor.detach().cpu().resolve_conj().resolve_neg()


class _Writer:
    def __init__(self, file: _forebay.File, jagged: frozenset[str]) -> None:
        self._numpy = need_numpy()
        self._file, self._jagged = file, jagged
        self._columns: dict[str, _Column] | None = None
        self._plain = False
        self._groups: list[dict[str, Any]] = []
        self._end, self._rows, self._held, self._group_rows = _PAGE, 0, 0, 0

    def add(self, sample: Any) -> None:
        row = self._rows + self._group_rows
        plain = not isinstance(sample, Mapping)
        values = {"": sample} if plain else sample
        arrays = {str(name): self._array(value, str(name)) for name, value in values.items()}
        if self._columns is None:
            self._begin(arrays, values, plain)
        assert self._columns is not None  # made just now
        if arrays.keys() != self._columns.keys() or plain != self._plain:
            raise InvalidInputError(
                f"record {row} has other columns than the first",
                hints=["give each sample the same names"],
                columns=list(arrays),
                first=list(self._columns),
            )
        self._held += sum(self._columns[name].add(array, row) for name, array in arrays.items())
        self._group_rows += 1
        if self._held >= _GROUP_BYTES:
            self._flush()

    def _begin(self, arrays: dict[str, Any], values: Any, plain: bool) -> None:
        unknown = self._jagged - arrays.keys()
        if not arrays:
            raise InvalidInputError("the first record has no columns", hints=['{"image": image, "label": label}'])
        if unknown:
            raise InvalidInputError(
                "the first record has no such columns",
                hints=["jagged= takes names of columns: those whose first dimensions differ"],
                jagged=sorted(unknown),
                columns=list(arrays),
            )
        for name in self._jagged:
            if arrays[name].ndim == 0:
                raise InvalidInputError(
                    "a number has no first dimension: it cannot be jagged",
                    hints=["leave it out of jagged="],
                    column=name,
                )
        self._plain = plain
        self._columns = {
            name: _Column(name, array, name in self._jagged or isinstance(values[name], (bytes, bytearray, str)))
            for name, array in arrays.items()
        }

    def _array(self, value: Any, column: str) -> Any:
        numpy = self._numpy
        if isinstance(value, str):
            value = value.encode()
        if isinstance(value, (bytes, bytearray)):
            return numpy.frombuffer(bytes(value), "uint8")
        try:
            if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
                value = _of_torch(_plain(value, column))
            # A copy: programs fill one array again and again.
            made = numpy.array(value, order="C")
        except (InvalidInputError, UnsupportedError):
            raise
        # The words of numpy and torch for what they make no array of.
        except (ValueError, TypeError, RuntimeError) as error:
            where: dict[str, Any] = {"column": column} if column else {}
            raise InvalidInputError(
                f"a sample is no array: {str(error).partition(chr(10))[0]}",
                hints=['{"image": image, "label": label} for several values'],
                **where,
            ) from None
        # The index names no byte order.
        return made if made.dtype.hasobject else made.astype(made.dtype.newbyteorder("="), copy=False)

    def _flush(self) -> None:
        if self._columns is None or not self._group_rows:
            return
        group: dict[str, Any] = {"rows": self._group_rows, "columns": {}}
        for name, column in self._columns.items():
            group["columns"][name] = self._write_jagged(column) if column.jagged else self._write_even(column)
            column.values = []
        self._groups.append(group)
        self._rows += self._group_rows
        self._held = self._group_rows = 0

    def _write_even(self, column: _Column) -> dict[str, Any]:
        numpy, rows = self._numpy, len(column.values)
        nbytes = int(column.values[0].nbytes)
        block = numpy.zeros((rows, column.stride), "uint8")
        for row, value in enumerate(column.values):
            block[row, :nbytes] = value.reshape(-1).view("uint8")
        return self._put(block)

    def _write_jagged(self, column: _Column) -> dict[str, Any]:
        numpy = self._numpy
        values = [value.reshape(-1).view("uint8") for value in column.values]
        ends = numpy.zeros(len(values) + 1, "<u8")
        numpy.cumsum([len(value) for value in values], out=ends[1:])
        return {**self._put(numpy.concatenate(values)), "ends": self._put(ends.view("uint8"))}

    def _put(self, block: Any) -> dict[str, Any]:
        """Writes bytes at the next page."""
        flat = block.reshape(-1)
        place = {"offset": self._end, "bytes": int(flat.nbytes), "crc32c": 0}
        if flat.nbytes:
            self._file.write_from(flat, self._end)
            place["crc32c"] = _forebay.checksums([(flat.__array_interface__["data"][0], flat.nbytes)])[0]
        self._end += -(-flat.nbytes // _PAGE) * _PAGE
        return place

    def end(self) -> int:
        self._flush()
        if self._columns is None:
            raise InvalidInputError("no samples to pack", hints=["give at least one"])
        columns = [
            {"name": column.name, "dtype": column.type, "shape": list(column.shape), "jagged": column.jagged}
            | ({} if column.jagged else {"stride": column.stride})
            for column in self._columns.values()
        ]
        index = json.dumps({"plain": self._plain, "columns": columns, "groups": self._groups}).encode()
        self._file.write_from(index, self._end)
        header = _HEADER.pack(_MAGIC, _VERSION, _crc(index), self._end, len(index), self._end + len(index), self._rows)
        header += struct.pack("<I", _crc(header))
        self._file.write_from(header + bytes(_PAGE - len(header)), 0)
        return self._rows


def _crc(data: bytes) -> int:
    array = need_numpy().frombuffer(data, "uint8")
    return _forebay.checksums([(array.__array_interface__["data"][0], len(data))])[0]


def _of_torch(value: Any) -> Any:
    """A tensor as numpy's array."""
    import torch

    name = _dtypes.name_of(value.dtype)
    if name not in _dtypes.EXTRA:
        return value.numpy()
    # Types that numpy lacks come from ml_dtypes, with the same bytes.
    dtype = _dtypes.numpy_dtype(name)
    if dtype is None:
        raise UnsupportedError(f"{_dtypes.EXTRA[name]} needs ml_dtypes", hints=["pip install --upgrade ml_dtypes"])
    value = value.contiguous()
    return value.reshape(-1).view(torch.uint8).numpy().view(dtype).reshape(tuple(value.shape))


class _Told(NamedTuple):
    """The index's description of a column's values."""

    dtype: str
    shape: tuple[int, ...]
    jagged: bool


class _Index:
    """Header and index of one of the files, checked."""

    def __init__(self, files: FileSet, number: int) -> None:
        self.number, self.path, self.size = number, files.paths[number], files.size(number)
        path, size = self.path, self.size
        if size < _PAGE:
            short = InvalidInputError("not a file of pack(): it is too short", hints=_WRITERS, path=path)
            raise self._other() or short
        start = read_start(path, 0, _HEADER.size + 4)
        magic, version, crc, offset, length, whole, self.rows = _HEADER.unpack(start[:-4])
        if magic != _MAGIC:
            others = InvalidInputError("not a file of pack(): its first bytes are others", hints=_WRITERS, path=path)
            raise self._other() or others
        if version != _VERSION:
            raise UnsupportedError(
                f"a packed file of version {version}", hints=["read it with the forebay that wrote it"], path=path
            )
        if struct.unpack("<I", start[-4:])[0] != _crc(start[:-4]):
            raise IntegrityError("the header's checksum differs", hints=["the file is damaged"], path=path)
        if whole != size or offset + length != size or length > _MAX_INDEX_BYTES:
            raise InvalidInputError(
                "the file has another size than its header says", hints=["it is truncated"], path=path, bytes=size
            )
        text = read_start(path, offset, length)
        if _crc(text) != crc:
            raise IntegrityError("the index's checksum differs", hints=["the file is damaged"], path=path)
        try:
            index = json.loads(text)
            self.is_plain, self.columns, self.groups = bool(index["plain"]), index["columns"], index["groups"]
            self._check()
            self.told = {
                str(column["name"]): _Told(column["dtype"], tuple(column["shape"]), bool(column["jagged"]))
                for column in self.columns
            }
            self.strides = {str(column["name"]): column.get("stride") for column in self.columns}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, InvalidInputError):
                raise
            raise _not_understood(error, path) from None

    def _other(self) -> InvalidInputError | None:
        with _forebay.open(self.path) as file:
            return other_kind(file, PACKED)

    def _check(self) -> None:
        bounded(len(self.columns), _MAX_COLUMNS, "the number of columns", self.path, least=1)
        for column in self.columns:
            for size in column["shape"]:
                bounded(size, _MAX_COUNT, "a dimension", self.path)
            if column["dtype"] != dtype_named(column["dtype"]):
                raise InvalidInputError("the index names an unknown dtype", path=self.path, dtype=column["dtype"])
            nbytes = math.prod(column["shape"]) * _forebay.dtype_size(column["dtype"]) // 8
            bounded(nbytes, _MAX_COUNT, "the bytes of a record", self.path)
        for _, place in self.places():
            bounded(place["crc32c"], 0xFFFF_FFFF, "a checksum", self.path)
            self.region(place, 0)
        rows = sum(bounded(group["rows"], _MAX_COUNT, "the rows of a group", self.path) for group in self.groups)
        if rows != self.rows:
            raise InvalidInputError("the groups have other rows than the header", path=self.path)

    def places(self) -> Iterable[tuple[str, dict[str, Any]]]:
        """(column, place) of all regions."""
        for group in self.groups:
            for name, place in group["columns"].items():
                yield name, place
                if "ends" in place:
                    yield name, place["ends"]

    def region(self, place: dict[str, Any], least: int) -> tuple[int, int]:
        """Offset and bytes of a region, which has to lie in the file and to have ``least`` bytes."""
        offset = bounded(place["offset"], self.size, "an offset", self.path)
        nbytes = bounded(place["bytes"], self.size - offset, "the bytes of a region", self.path, least=least)
        return offset, nbytes


def packed(
    path: Any, columns: Iterable[str] | None = None, *, framework: str = "torch", device: object = None
) -> Records:
    """A file that :func:`pack` wrote, or several. Samples that were dicts come as dicts; values of different lengths as
    :class:`~forebay.data.Jagged`.

    Args:
        path: of the file; or several, or a pattern. All have the same columns.
        columns: to read, of samples that were dicts; by default all.
        framework: as for :func:`~forebay.data.raw`.
        device: as for :func:`~forebay.data.raw`.

    Raises:
        InvalidInputError: one is none, or truncated, or they hold different records.
        IntegrityError: header or index are damaged. The data's checksums are compared by :func:`verify`.
        UnsupportedError: a later version.
    """
    files = FileSet(text_paths(path))
    indexes = [_Index(files, number) for number in range(len(files.paths))]
    first = indexes[0]
    for index in indexes:
        if (index.is_plain, index.told) != (first.is_plain, first.told):
            raise InvalidInputError(
                "the files hold different records",
                hints=["open them apart"],
                path=index.path,
                found=_columns(index),
                before=_columns(first),
            )
    if first.is_plain:
        return _column(files, indexes, "", framework, device)
    wanted = chosen(columns, first.told, first.path)
    return Zipped({name: _column(files, indexes, name, framework, device) for name in wanted})


def _columns(index: _Index) -> str:
    return ", ".join(f"{name} {told.dtype} {list(told.shape)}".strip() for name, told in index.told.items())


def _not_understood(error: Exception, path: str) -> InvalidInputError:
    return InvalidInputError(f"cannot understand the index: {error!r}", path=path)


def _column(files: FileSet, indexes: list[_Index], name: str, framework: str, device: object) -> FileRecords:
    parts: list[Part] = []
    for index in indexes:
        try:
            parts.extend(_parts(index, name))
        except (KeyError, TypeError) as error:
            raise _not_understood(error, index.path) from None
    dtype, shape, jagged = indexes[0].told[name]
    return FileRecords(files, parts, dtype, shape, framework, device, jagged=jagged)


def _parts(index: _Index, name: str) -> Iterator[Part]:
    """Where the values of a column lie in a file."""
    dtype, shape, jagged = index.told[name]
    unit = math.prod(shape) * _forebay.dtype_size(dtype) // 8
    for group in index.groups:
        place, rows = group["columns"][name], group["rows"]
        if not jagged:
            stride = bounded(index.strides[name], _MAX_COUNT, "a stride", index.path, least=unit)
            offset, _ = index.region(place, rows * stride)
            yield index.number, (rows, offset, stride, unit)
            continue
        offset, nbytes = index.region(place, 0)
        numpy = need_numpy()
        table = read_start(index.path, index.region(place["ends"], 8 * (rows + 1))[0], 8 * (rows + 1))
        ends = numpy.frombuffer(table, "<u8")
        starts, lengths = ends[:-1], ends[1:] - ends[:-1]
        wrong = int(ends[0]) != 0 or int(ends[-1]) > nbytes or bool((ends[1:] < starts).any())
        if wrong or (bool((lengths % unit).any()) if unit else bool(lengths.any())):
            raise InvalidInputError("a table of lengths goes backwards or too far", path=index.path, column=name)
        yield index.number, (starts + numpy.uint64(offset), lengths)


def verify(path: Any) -> None:
    """Reads a file that :func:`pack` wrote, or several, and compares all checksums.

    Args:
        path: as for :func:`packed`.

    Raises:
        IntegrityError: bytes differ from those that were written.
        InvalidInputError, UnsupportedError: as for :func:`packed`.
    """
    files = FileSet(text_paths(path))
    buffer = frameworks.get("native").allocator(CPU)((_PART_BYTES,), "U8")
    for number in range(len(files.paths)):
        index = _Index(files, number)
        with _forebay.open(index.path) as file:
            for name, place in index.places():
                offset, nbytes = index.region(place, 0)
                if _checksum(file, buffer, offset, nbytes) != place["crc32c"]:
                    raise IntegrityError(
                        "bytes differ from those that were written",
                        hints=["the file is damaged"],
                        path=index.path,
                        column=name,
                    )


def _checksum(file: _forebay.File, buffer: Any, offset: int, nbytes: int) -> int:
    """The CRC-32C of a range, all of it in memory."""
    if not nbytes:
        return 0
    if nbytes > buffer.nbytes:
        buffer = _forebay.empty(nbytes, "uint8", "cpu")
    file._read_one(buffer.address, nbytes, offset, buffer)
    return _forebay.checksums([(buffer.address, nbytes)])[0]
