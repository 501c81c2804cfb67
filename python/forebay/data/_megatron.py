"""Megatron's indexed data sets: ``.idx`` beside ``.bin``."""

from __future__ import annotations

import os
import struct
from typing import Any

from .. import _forebay
from .._paths import path_text
from ..errors import InvalidInputError, UnsupportedError
from ..frameworks import _dtypes
from ._files import FileSet, bounded, read_start
from ._plain import check_units, need_numpy, whole_number
from ._records import FileRecords, Part

__all__ = ["megatron"]

_MAGIC = b"MMIDIDX\0\0"
_DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
#: An index with a larger number is damaged.
_MAX_COUNT = 1 << 40


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
        prefix: the path without ``.idx`` and ``.bin``, or of one of the two.
        window: tokens of a record, cut from the tokens of all documents one behind the other. Without it a record is a
            sequence of the index, and a batch is :class:`~forebay.data.Jagged`.
        stride: tokens from one window to the next; by default ``window``. ``window=4097, stride=4096`` has the target
            of the last token, too.
        framework: as for :func:`~forebay.data.raw`.
        device: as for :func:`~forebay.data.raw`.

    Raises:
        InvalidInputError: index and data contradict each other.
        UnsupportedError: an index of another version.
    """
    numpy = need_numpy()
    prefix = path_text(prefix, by_url=False)
    stem, ending = os.path.splitext(prefix)
    if ending in (".idx", ".bin") and not os.path.exists(prefix + ".idx"):
        prefix = stem
    index, data = prefix + ".idx", prefix + ".bin"
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
    item = _forebay.dtype_size(dtype) // 8
    files = FileSet([data])
    if window is not None:
        return _windows(files, dtype, item, window, window if stride is None else stride, framework, device)
    counts = numpy.frombuffer(table, "<i4", sequences)
    pointers = numpy.frombuffer(table, "<i8", sequences, 4 * sequences)
    if sequences and (int(counts.min()) < 0 or int(pointers.min()) < 0):
        raise InvalidInputError("the index has lengths or pointers below 0", path=index)
    lengths = counts.astype("uint64") * numpy.uint64(item)
    check_units(numpy, lengths, item)
    parts: list[Part] = [(0, (pointers.astype("uint64"), lengths))]
    return FileRecords(files, parts, dtype, (), framework, device, jagged=True)


def _windows(
    files: FileSet, dtype: str, item: int, window: int, stride: int, framework: str, device: object
) -> FileRecords:
    window, stride = whole_number("window", window, 1), whole_number("stride", stride, 1)
    bounded(max(window, stride), _MAX_COUNT, "a window or stride", files.paths[0])
    tokens, rest = divmod(files.size(0), item)
    if rest:
        raise InvalidInputError("the data are no whole number of tokens", path=files.paths[0], bytes=files.size(0))
    rows = (tokens - window) // stride + 1 if tokens >= window else 0
    return FileRecords(files, [(0, (rows, 0, stride * item, window * item))], dtype, (window,), framework, device)
