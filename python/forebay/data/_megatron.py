"""Megatron's indexed data sets: ``.idx`` beside ``.bin``."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from .. import _forebay, _locations
from ..errors import InvalidInputError, UnsupportedError
from ..frameworks import _dtypes
from ._files import FileSet, bounded, read_start
from ._patterns import text_paths
from ._plain import need_numpy, whole_number
from ._records import FileRecords, Part

__all__ = ["megatron"]

_MAGIC = b"MMIDIDX\0\0"
_DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
#: An index with a larger number is damaged.
_MAX_COUNT = 1 << 40


class _Pair(NamedTuple):
    """An index, checked, and the file of its tokens."""

    path: str
    data: str
    dtype: str
    pointers: Any
    lengths: Any


def megatron(
    prefix: Any,
    *,
    window: int | None = None,
    stride: int | None = None,
    framework: str = "torch",
    device: object = None,
) -> FileRecords:
    """Token data of Megatron's ``preprocess_data``: ``prefix.idx`` and ``prefix.bin``.

    Args:
        prefix: the path without ``.idx`` and ``.bin``, or of one of the two; or several, or a pattern. All have the same dtype.
        window: tokens of a record, cut from the tokens of all documents of a file one behind the other. Without it a record is
            a sequence of the index, and a batch is :class:`~forebay.data.Jagged`.
        stride: tokens from one window to the next; by default ``window``. ``window=4097, stride=4096`` has the target
            of the last token, too.
        framework: as for :func:`~forebay.data.raw`.
        device: as for :func:`~forebay.data.raw`.

    Raises:
        InvalidInputError: index and data contradict each other, or dtypes differ.
        UnsupportedError: an index of another version.
    """
    pairs = [_pair(one) for one in _prefixes(text_paths(prefix))]
    first = pairs[0]
    for pair in pairs:
        if pair.dtype != first.dtype:
            raise InvalidInputError(
                "the files hold different records",
                hints=["open them apart"],
                path=pair.path,
                found=pair.dtype,
                before=first.dtype,
            )
    files = FileSet(pair.data for pair in pairs)
    if window is not None:
        return _windows(files, first.dtype, window, window if stride is None else stride, framework, device)
    parts: list[Part] = [(number, (pair.pointers, pair.lengths)) for number, pair in enumerate(pairs)]
    return FileRecords(files, parts, first.dtype, (), framework, device, jagged=True)


def _prefixes(named: list[str]) -> list[str]:
    """Paths without endings. A pattern matches index and data: neighbours of one prefix are one data set."""
    found: list[tuple[str, str]] = []
    for path in named:
        ending = _locations.ending_of(path)
        if ending not in (".idx", ".bin") or _locations.exists(_locations.with_suffix(path, ".idx")):
            ending = ""
        stem = _locations.with_suffix(path, "", ending)
        if found and found[-1][0] == stem and {found[-1][1], ending} == {".bin", ".idx"}:
            continue
        found.append((stem, ending))
    return [stem for stem, _ in found]


def _pair(prefix: str) -> _Pair:
    numpy = need_numpy()
    index = _locations.with_suffix(prefix, ".idx")
    start = read_start(index, 0, 34, ["give the path of the two files without .idx and .bin"])
    if start[:9] != _MAGIC:
        raise InvalidInputError("no index of Megatron's: its first bytes are others", path=index)
    version, code, sequences, documents = struct.unpack("<QBQQ", start[9:])
    if version != 1:
        raise UnsupportedError(f"an index of version {version}", hints=["version 1 is known"], path=index)
    if code not in _DTYPES:
        raise UnsupportedError(f"elements of the unknown type {code}", path=index)
    bounded(sequences, _MAX_COUNT, "the number of sequences", index)
    bounded(documents, _MAX_COUNT, "the number of documents", index)
    table = read_start(index, 34, 12 * sequences)
    dtype = _dtypes.NAMES[_DTYPES[code]]
    counts = numpy.frombuffer(table, "<i4", sequences)
    pointers = numpy.frombuffer(table, "<i8", sequences, 4 * sequences)
    if sequences and (int(counts.min()) < 0 or int(pointers.min()) < 0):
        raise InvalidInputError("the index has lengths or pointers below 0", path=index)
    lengths = counts.astype("uint64") * numpy.uint64(_forebay.dtype_size(dtype) // 8)
    return _Pair(index, _locations.with_suffix(prefix, ".bin"), dtype, pointers.astype("uint64"), lengths)


def _windows(files: FileSet, dtype: str, window: int, stride: int, framework: str, device: object) -> FileRecords:
    window, stride = whole_number("window", window, 1), whole_number("stride", stride, 1)
    bounded(max(window, stride), _MAX_COUNT, "a window or stride", files.paths[0])
    item = _forebay.dtype_size(dtype) // 8
    parts: list[Part] = []
    for number, path in enumerate(files.paths):
        tokens, rest = divmod(files.size(number), item)
        if rest:
            raise InvalidInputError("the data are no whole number of tokens", path=path, bytes=files.size(number))
        rows = (tokens - window) // stride + 1 if tokens >= window else 0
        parts.append((number, (rows, 0, stride * item, window * item)))
    return FileRecords(files, parts, dtype, (window,), framework, device)
