"""MosaicML's MDS shards (streaming), not compressed, format version 2."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from .. import _forebay
from ..errors import InvalidInputError, UnsupportedError
from ..frameworks import _dtypes
from ._files import FileSet, bounded, chosen, index_in, read_json
from ._framed import Spans, alike, read_frames, split
from ._plain import need_numpy
from ._records import FileRecords, Zipped

__all__ = ["mds"]

#: Encodings whose values are bytes of any length, which come as they are.
_BYTES = {
    "bytes",
    "str",
    "jpeg",
    "png",
    "pil",
    "json",
    "str_int",
    "str_float",
    "str_decimal",
    "jpeg_array",
    "jpegarray",
}
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


def mds(
    folder: Any,
    columns: Sequence[str] | None = None,
    *,
    framework: str = "torch",
    device: object = None,
) -> Zipped:
    """A folder that MosaicML's ``MDSWriter`` wrote, without compression. Its columns come as a dict: numbers and arrays of
    one shape as arrays, all else (``bytes``, ``str``, ``jpeg``, …) as :class:`~forebay.data.Jagged` bytes, not decoded.

    Args:
        folder: with ``index.json``, or the path of that, and the shards.
        columns: to read; by default all.
        framework: as for :func:`~forebay.data.raw`.
        device: as for :func:`~forebay.data.raw`.

    Raises:
        InvalidInputError: index and shards contradict each other.
        UnsupportedError: compressed shards, pickled columns, another version, arrays of different shapes.
        NotFoundError: a shard is missing.
    """
    folder, index = index_in(folder)
    described = read_json(index)
    if described.get("version") != 2:
        raise UnsupportedError(
            f"an MDS index of version {described.get('version')!r}", hints=["version 2 is known"], path=index
        )
    shards = described.get("shards")
    if not isinstance(shards, list) or not shards:
        raise InvalidInputError("the index has no shards", path=index)
    named = [_shard(shard, shards[0], index) for shard in shards]
    files = FileSet(os.path.join(folder, basename) for basename, _, _ in named)
    for number, (_, _, nbytes) in enumerate(named):
        if nbytes != files.size(number):
            raise InvalidInputError(
                "a shard has another size than its index says",
                hints=["it is truncated, or index.json belongs to another data set"],
                path=files.paths[number],
                bytes=files.size(number),
                index=nbytes,
            )
    frames = [read_frames(files, number, samples, "shard") for number, (_, samples, _) in enumerate(named)]
    names, encodings = shards[0]["column_names"], shards[0]["column_encodings"]
    sizes = [_size(encoding, index) for encoding in encodings]
    if [size or None for size in shards[0]["column_sizes"]] != sizes:
        raise InvalidInputError("the index's sizes of columns contradict their encodings", path=index)
    wanted = chosen(columns, names, index)
    places = split(files, frames, sizes, [size is None for size in sizes], "shard")
    made = {
        name: _column(files, name, encoding, spans, framework, device)
        for name, encoding, spans in zip(names, encodings, places, strict=True)
        if name in wanted
    }
    return Zipped({name: made[name] for name in wanted})


def _shard(shard: Any, first: Any, index: str) -> tuple[str, Any, int]:
    """File name, samples and bytes of a shard."""
    if not isinstance(shard, dict) or not isinstance(shard.get("raw_data"), dict):
        raise InvalidInputError("the index describes no shard where one should be", path=index)
    if shard.get("format") != "mds" or shard.get("version") != 2:
        told = f"{shard.get('format')!r}, version {shard.get('version')!r}"
        raise UnsupportedError(f"a shard of format {told}", hints=["MDS, version 2, is known"], path=index)
    if shard.get("compression") is not None:
        raise UnsupportedError(
            f"the shards are compressed ({shard['compression']})",
            hints=["write them with compression=None: compressed bytes cannot be gathered"],
            path=index,
        )
    for key in ("column_names", "column_encodings", "column_sizes"):
        if not isinstance(shard.get(key), list) or shard[key] != first.get(key):
            raise InvalidInputError(f"the shards differ in {key}", path=index)
    names, encodings = shard["column_names"], shard["column_encodings"]
    if not all(isinstance(text, str) for text in [*names, *encodings]):
        raise InvalidInputError("names and encodings of columns are no texts", path=index)
    if not len(names) == len(encodings) == len(shard["column_sizes"]) > 0:
        raise InvalidInputError("the index has not one encoding and size for each column", path=index)
    for name, encoding in zip(names, encodings, strict=True):
        if encoding == "pkl":
            raise UnsupportedError(
                f"column {name!r} is pickled: to read it is to run code out of the file",
                hints=["write it with another encoding"],
                path=index,
            )
    basename = shard["raw_data"].get("basename")
    if not isinstance(basename, str) or os.path.basename(basename) != basename or basename in ("", ".", ".."):
        raise InvalidInputError(f"a shard cannot be called {basename!r}", path=index)
    nbytes = bounded(shard["raw_data"].get("bytes"), _MAX_COUNT, "the bytes of a shard", index)
    return basename, shard.get("samples"), nbytes


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


def _size(encoding: str, index: str) -> int | None:
    """Bytes of a value, ``None`` where they differ."""
    if encoding in _SCALARS:
        return _forebay.dtype_size(_SCALARS[encoding]) // 8
    if encoding.split(":")[0] == "ndarray":
        dtype, shape = _array_of(encoding, index)
        if dtype is None or shape is None:
            return None
        return math.prod(shape) * _forebay.dtype_size(_dtypes.NAMES[dtype]) // 8
    if encoding.split(":")[0] in _BYTES:
        return None
    raise UnsupportedError(f"unknown encoding: {encoding!r}", hints=["columns of it cannot be read"], path=index)


def _column(
    files: FileSet, name: str, encoding: str, spans: list[Spans], framework: str, device: object
) -> FileRecords:
    index = "index.json"
    if encoding in _SCALARS:
        dtype, shape = _SCALARS[encoding], tuple[int, ...]()
    elif encoding.startswith("ndarray"):
        fixed_dtype, fixed_shape = _array_of(encoding, index)
        if fixed_dtype is None or fixed_shape is None:
            fixed_dtype, fixed_shape, spans = _from_headers(files, name, fixed_dtype, fixed_shape, spans)
        dtype, shape = _dtypes.NAMES[fixed_dtype], fixed_shape
    else:
        return FileRecords(files, [span.part for span in spans], "U8", (), framework, device, jagged=True)
    nbytes = math.prod(shape) * _forebay.dtype_size(dtype) // 8
    return FileRecords(files, [(span.file, (span.starts, nbytes)) for span in spans], dtype, shape, framework, device)


def _from_headers(
    files: FileSet, name: str, dtype: str | None, shape: tuple[int, ...] | None, spans: list[Spans]
) -> tuple[str, tuple[int, ...], list[Spans]]:
    """dtype and shape that each value has before it, and the places behind them."""
    numpy = need_numpy()
    size = (dtype is None) + (shape is None)
    start = alike(files, spans, size, name)
    skip = size
    if start and dtype is None:
        if start[0] not in _CODES:
            raise InvalidInputError(f"a value of {name!r} has a dtype that there is not", code=start[0])
        dtype = _CODES[start[0]]
    if start and shape is None:
        dimensions, width = start[-1] >> 2, 1 << (start[-1] & 3)
        skip = size + dimensions * width
        packed = alike(files, spans, skip, name)[size:]
        shape = tuple(int(number) for number in numpy.frombuffer(packed, f"<u{width}"))
    if dtype is None or shape is None:
        return "uint8", (0,), spans
    nbytes = math.prod(shape) * _forebay.dtype_size(_dtypes.NAMES[dtype]) // 8
    for span in spans:
        lengths = numpy.asarray(span.lengths)
        if bool((lengths != skip + nbytes).any()):
            raise InvalidInputError(f"a value of {name!r} has not the bytes of its shape", path=files.paths[span.file])
    return dtype, shape, [Spans(span.file, span.starts + numpy.uint64(skip), nbytes) for span in spans]
