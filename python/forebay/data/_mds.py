"""MosaicML's MDS shards (streaming), not compressed, format version 2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from .. import _forebay, _locations
from .._shell import word
from ..errors import InvalidInputError, UnsupportedError
from ..frameworks import _dtypes
from ._decoded import WRAPPED, wrapped
from ._files import FileSet, bounded, chosen, index_in, read_json
from ._framed import Spans, alike, read_frames, split
from ._patterns import text_paths
from ._plain import need_numpy
from ._records import FileRecords, Records, Zipped

__all__ = ["mds"]

#: Encodings whose values are bytes of any length, which come as they are.
_BYTES = {"bytes", "str", "jpeg", "png", "json", "str_int", "str_float", "str_decimal"}
_SCALARS = {
    "int": "I64",
    **{
        name: _dtypes.NAMES[name] for name in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
    },
    **{name: _dtypes.NAMES[name] for name in ("float16", "float32", "float64")},
}
#: How the header of an array without a fixed dtype names it.
_CODES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
#: An index with a larger number is damaged.
_MAX_COUNT = 1 << 40


class _Shard(NamedTuple):
    """A shard as its index describes it."""

    described_in: str
    path: str
    samples: Any
    nbytes: int
    names: list[str]
    encodings: list[str]
    sizes: list[Any]


def mds(
    folder: Any,
    columns: Sequence[str] | None = None,
    *,
    framework: str = "torch",
    device: object = None,
) -> Zipped:
    """A folder that MosaicML's ``MDSWriter`` wrote, without compression, or several. Its columns come as a dict: numbers, and
    arrays and pictures of one shape, as arrays; lists of pictures, and pictures that differ, as lists of arrays; all else
    (``bytes``, ``str``, ``jpeg``, arrays of different shapes, …) as :class:`~forebay.data.Jagged` bytes, not decoded.

    Args:
        folder: with ``index.json``, or the path of that, and the shards; one that several writers left folders in, whether
            ``merge_index`` joined their indexes or not; or several of these, or a pattern.
        columns: to read; by default all.
        framework: as for :func:`~forebay.data.raw`.
        device: as for :func:`~forebay.data.raw`.

    Raises:
        InvalidInputError: index and shards contradict each other, or shards have different columns.
        UnsupportedError: compressed shards, pickled columns, another version.
        NotFoundError: an index or a shard is missing.
    """
    indexes = [index for one in text_paths(folder) for index in _indexes(one)]
    shards = [shard for index in indexes for shard in _shards(index)]
    first = shards[0]
    for shard in shards:
        for what in ("names", "encodings", "sizes"):
            if getattr(shard, what) != getattr(first, what):
                raise InvalidInputError(
                    f"the shards differ in column_{what}",
                    hints=["open them apart"],
                    path=shard.described_in,
                    before=first.described_in,
                )
    files = FileSet(shard.path for shard in shards)
    for number, shard in enumerate(shards):
        if shard.nbytes != files.size(number):
            raise InvalidInputError(
                "a shard has another size than its index says",
                hints=["it is truncated, or index.json belongs to another data set"],
                path=files.paths[number],
                bytes=files.size(number),
                index=shard.nbytes,
            )
    wanted = chosen(columns, first.names, first.described_in)
    chosen_names = set(wanted)
    frames = [read_frames(files, number, shard.samples, "shard") for number, shard in enumerate(shards)]
    sizes = [
        _checked_size(name, encoding, size, name in chosen_names, first.described_in)
        for name, encoding, size in zip(first.names, first.encodings, first.sizes, strict=True)
    ]
    places = split(files, frames, sizes, [size is None for size in sizes], "shard")
    made = {
        name: _column(files, name, encoding, spans, framework, device)
        for name, encoding, spans in zip(first.names, first.encodings, places, strict=True)
        if name in chosen_names
    }
    return Zipped({name: made[name] for name in wanted})


def _indexes(given: str) -> list[str]:
    """The indexes of a folder: its own, else those of the folders in it."""
    folder, index = index_in(given)
    if index == given or _locations.has_name(index) or not _locations.is_folder(folder):
        return [index]
    found = []
    for home, folders, names in _locations.below(folder):
        if "index.json" in names:
            found.append(_locations.member(home, "index.json"))
            folders.clear()
    # Reading one that is not there says so.
    return found or [index]


def _shards(index: str) -> list[_Shard]:
    described = read_json(index)
    if described.get("version") != 2:
        raise UnsupportedError(
            f"an MDS index of version {described.get('version')!r}", hints=["version 2 is known"], path=index
        )
    shards = described.get("shards")
    if not isinstance(shards, list) or not shards:
        raise InvalidInputError("the index has no shards", path=index)
    return [_shard(shard, index) for shard in shards]


def _shard(shard: Any, index: str) -> _Shard:
    if not isinstance(shard, dict) or not isinstance(shard.get("raw_data"), dict):
        raise InvalidInputError("the index describes no shard where one should be", path=index)
    if shard.get("format") != "mds" or shard.get("version") != 2:
        told = f"{shard.get('format')!r}, version {shard.get('version')!r}"
        raise UnsupportedError(f"a shard of format {told}", hints=["MDS, version 2, is known"], path=index)
    lists = [shard.get(key) for key in ("column_names", "column_encodings", "column_sizes")]
    if not all(isinstance(one, list) for one in lists):
        raise InvalidInputError("the index describes no columns", path=index)
    names, encodings, sizes = cast("list[list[Any]]", lists)
    if not all(isinstance(text, str) for text in [*names, *encodings]):
        raise InvalidInputError("names and encodings of columns are no texts", path=index)
    if not len(names) == len(encodings) == len(sizes) == len(set(names)) > 0:
        raise InvalidInputError("the index has not one name, encoding and size for each column", path=index)
    basename = shard["raw_data"].get("basename")
    # Several writers' shards lie in folders; none lies outside.
    if not isinstance(basename, str) or not {"", ".", ".."}.isdisjoint(basename.split("/")):
        raise InvalidInputError(f"a shard cannot be called {basename!r}", path=index)
    path = _locations.member(_locations.parent(index), basename)
    # Where streaming read them, unpacked ones lie beside the index, which goes on to say how they were packed.
    if shard.get("compression") is not None and not _locations.has_name(path):
        raise _compressed(str(shard["compression"]).partition(":")[0], shard.get("zip_data"), index)
    nbytes = bounded(shard["raw_data"].get("bytes"), _MAX_COUNT, "the bytes of a shard", index)
    return _Shard(index, path, shard.get("samples"), nbytes, names, encodings, sizes)


def _compressed(kind: str, packed: Any, index: str) -> UnsupportedError:
    name = packed.get("basename") if isinstance(packed, dict) else None
    ending = _locations.ending_of(name) if isinstance(name, str) else f".{kind}"
    code = (
        "import pathlib, sys, streaming.base.compression as c; "
        "[p.with_suffix('').write_bytes(c.decompress(sys.argv[2], p.read_bytes())) "
        "for p in pathlib.Path(sys.argv[1]).rglob('*' + sys.argv[3])]"
    )
    folder = word(_locations.parent(index) or ".")
    return UnsupportedError(
        f"the shards are compressed ({kind}): compressed bytes cannot be gathered",
        hints=[
            f'python -c "{code}" {folder} {word(kind)} {word(ending)}',
            "or write them with compression=None",
        ],
        path=index,
    )


def _checked_size(name: str, encoding: str, told: Any, is_wanted: bool, index: str) -> int | None:
    """Bytes of a column's values, ``None`` where they differ. Columns that are not read may be of unknown types."""
    told = told or None
    try:
        size = _size(name, encoding, index)
    except UnsupportedError:
        if is_wanted:
            raise
        return None if told is None else bounded(told, _MAX_COUNT, "the size of a column", index)
    if told != size:
        raise InvalidInputError("the index's sizes of columns contradict their encodings", path=index, column=name)
    return size


def _array_of(encoding: str, index: str) -> tuple[str | None, tuple[int, ...] | None]:
    """dtype and shape that an ``ndarray`` encoding fixes."""
    _, *parts = encoding.split(":")
    if len(parts) > 2 or (parts and parts[0] not in _CODES.values()):
        raise UnsupportedError(f"unknown encoding: {encoding!r}", path=index)
    shape = None
    if len(parts) == 2:
        texts = parts[1].split(",")
        if not all(text.isdecimal() and 0 < len(text) < 13 for text in texts):
            raise InvalidInputError(f"no shape: {encoding!r}", path=index)
        shape = tuple(int(text) for text in texts)
        bounded(math.prod(shape), _MAX_COUNT, "the elements of a value", index)
    return (parts[0] if parts else None), shape


def _size(name: str, encoding: str, index: str) -> int | None:
    """Bytes of a value, ``None`` where they differ."""
    if encoding == "pkl":
        raise UnsupportedError(
            f"column {name!r} is pickled: to read it is to run code out of the file",
            hints=["columns= leaves it out", "write it with another encoding"],
            path=index,
        )
    if encoding in _SCALARS:
        return _forebay.dtype_size(_SCALARS[encoding]) // 8
    if encoding.split(":")[0] == "ndarray":
        dtype, shape = _array_of(encoding, index)
        if dtype is None or shape is None:
            return None
        return math.prod(shape) * _forebay.dtype_size(_dtypes.NAMES[dtype]) // 8
    if encoding in _BYTES or encoding in WRAPPED:
        return None
    raise UnsupportedError(f"unknown encoding: {encoding!r}", hints=["columns= leaves it out"], path=index, column=name)


def _column(files: FileSet, name: str, encoding: str, spans: list[Spans], framework: str, device: object) -> Records:
    if encoding in WRAPPED:
        return wrapped(files, spans, encoding, name, framework, device)
    found: tuple[str, tuple[int, ...], list[Spans]] | None = None
    if encoding in _SCALARS:
        found = _SCALARS[encoding], (), spans
    elif encoding.partition(":")[0] == "ndarray":
        dtype, shape = _array_of(encoding, "index.json")
        if dtype is None or shape is None:
            found = _from_headers(files, name, dtype, shape, spans)
        else:
            found = _dtypes.NAMES[dtype], shape, spans
    if found is None:
        # Texts and the like, and arrays of different shapes.
        return FileRecords(files, [span.part for span in spans], "U8", (), framework, device, jagged=True)
    known, shape, places = found
    nbytes = math.prod(shape) * _forebay.dtype_size(known) // 8
    return FileRecords(files, [(span.file, (span.starts, nbytes)) for span in places], known, shape, framework, device)


def _from_headers(
    files: FileSet, name: str, dtype: str | None, shape: tuple[int, ...] | None, spans: list[Spans]
) -> tuple[str, tuple[int, ...], list[Spans]] | None:
    """dtype and shape that each value has before it, and the places behind them; ``None`` if they differ."""
    numpy = need_numpy()
    size = (dtype is None) + (shape is None)
    start = alike(files, spans, size, name)
    if start is None:
        return None
    if not start:
        return "U8", (0,), spans
    skip = size
    if dtype is None:
        if start[0] not in _CODES:
            raise InvalidInputError(f"a value of {name!r} has a dtype that there is not", code=start[0])
        dtype = _CODES[start[0]]
    if shape is None:
        dimensions, width = start[-1] >> 2, 1 << (start[-1] & 3)
        skip = size + dimensions * width
        packed = alike(files, spans, skip, name)
        if packed is None:
            return None
        shape = tuple(int(number) for number in numpy.frombuffer(packed[size:], f"<u{width}"))
    nbytes = math.prod(shape) * _forebay.dtype_size(_dtypes.NAMES[dtype]) // 8
    for span in spans:
        if bool((numpy.asarray(span.lengths) != skip + nbytes).any()):
            raise InvalidInputError(f"a value of {name!r} has not the bytes of its shape", path=files.paths[span.file])
    return _dtypes.NAMES[dtype], shape, [Spans(span.file, span.starts + numpy.uint64(skip), nbytes) for span in spans]
