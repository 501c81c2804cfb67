"""Values that formats wrap: lists, pictures with their size before them, lists of pictures."""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from .. import _forebay
from ..errors import InvalidInputError
from ..frameworks import _dtypes
from ._framed import Spans, gather_host
from ._memory import Memory
from ._plain import need_numpy
from ._records import FileRecords, Pending, Records, placed

if TYPE_CHECKING:
    from ..frameworks import Device, Framework
    from ._files import FileSet

__all__ = ["WRAPPED", "Decoded", "litdata_list", "wrapped"]

#: Kinds of values that :func:`wrapped` reads.
WRAPPED = {"pil", "jpeg_array", "jpegarray", "list[pil]", "list[jpeg]", "list[png]"}

#: Pillow's modes whose pixels are numbers side by side: dtype and channels.
_MODES = {
    b"L": ("uint8", 1), b"P": ("uint8", 1), b"LA": ("uint8", 2), b"PA": ("uint8", 2), b"La": ("uint8", 2),
    b"RGB": ("uint8", 3), b"YCbCr": ("uint8", 3), b"LAB": ("uint8", 3), b"HSV": ("uint8", 3), b"RGBA": ("uint8", 4),
    b"RGBX": ("uint8", 4), b"RGBa": ("uint8", 4), b"CMYK": ("uint8", 4), b"I": ("int32", 1), b"F": ("float32", 1),
    b"I;16": ("uint16", 1),
}  # fmt: skip
_PICTURE = struct.Struct("<III")
#: How litdata marks lists of one type, and what their elements are.
_NUMBERS = {2: ("int64", "I64"), 3: ("float64", "F64"), 4: ("bool", "BOOL")}
_TEXTS = 1


class Decoded(Records):
    """Bytes of any length that are decoded in Python, in host memory: a batch is a list."""

    def __init__(
        self, encoded: FileRecords, decode: Callable[[bytes], Any], name: str, framework: Framework, device: Device
    ) -> None:
        self._encoded, self._decode, self._name = encoded, decode, name
        self.framework, self.device = framework, device

    def __len__(self) -> int:
        return len(self._encoded)

    def read_async(self, rows: Any, memory: Memory | None = None) -> Pending:
        batch = self._encoded.read_async(rows).result()
        content, ends = batch.values.tobytes(), batch.offsets.tolist()
        values = [self._value(content[begin:end]) for begin, end in itertools.pairwise(ends)]
        return Pending(values, [], len(values))

    def _one(self, row: int) -> Any:
        return self._value(self._encoded._one(row).tobytes())

    def _value(self, content: bytes) -> Any:
        try:
            return _for_framework(self._decode(content), self.framework.name)
        except (ValueError, IndexError, KeyError, struct.error, RecursionError, MemoryError, OverflowError) as error:
            raise InvalidInputError(
                f"cannot decode a value of {self._name!r}: {error}",
                hints=["the file is damaged, or another kind of value than its index says"],
                bytes=len(content),
            ) from None

    @property
    def fingerprint(self) -> str:
        return self._encoded.fingerprint

    @property
    def nbytes_hint(self) -> int:
        return self._encoded.nbytes_hint

    def file_sets(self) -> Sequence[FileSet]:
        return self._encoded.file_sets()

    def extents(self, start: int, stop: int) -> list[tuple[str, int, int]]:
        return self._encoded.extents(start, stop)

    def to(self, device: object = None, framework: str | None = None) -> Self:
        found = placed(
            framework or self.framework.name, self.device if device is None and framework is None else device
        )
        return type(self)(self._encoded, self._decode, self._name, *found)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._encoded, self._decode, self._name, self.framework.name, str(self.device))

    def __repr__(self) -> str:
        return f"<forebay.data: {len(self)} values, decoded on the host, in {len(self._encoded.files.paths)} file(s)>"


def _again(encoded: FileRecords, decode: Callable[[bytes], Any], name: str, framework: str, device: str) -> Decoded:
    return Decoded(encoded, decode, name, *placed(framework, device))


def _for_framework(value: Any, framework: str) -> Any:
    """Arrays for torch as its tensors; others as they are."""
    if isinstance(value, list) and value and hasattr(value[0], "dtype"):
        return [_for_framework(one, framework) for one in value]
    if framework != "torch" or not hasattr(value, "dtype"):
        return value
    import torch

    return torch.from_numpy(value)


def _decoded(
    files: FileSet,
    spans: list[Spans],
    decode: Callable[[bytes], Any],
    name: str,
    framework: str,
    device: object,
) -> Decoded:
    encoded = FileRecords(files, [span.part for span in spans], "U8", (), "numpy", "cpu", jagged=True)
    return Decoded(encoded, decode, name, *placed(framework, device))


# ---- pictures --------------------------------------------------------------------------------------------------------


def _pictures(files: FileSet, spans: list[Spans], name: str, framework: str, device: object) -> Records:
    """Pillow's pictures with width, height and mode before their pixels: arrays where all are alike, else a list."""
    numpy = need_numpy()
    if _least(spans) >= _PICTURE.size + 1:
        heads = gather_host(files, spans, _PICTURE.size)
        width, height, letters = _PICTURE.unpack(heads[0].tobytes())
        skip = _PICTURE.size + letters
        if letters < 16 and not bool((heads != heads[0]).any()) and _least(spans) >= skip:
            starts = gather_host(files, spans, skip)
            dtype, shape = _pixels(starts[0, _PICTURE.size :].tobytes(), width, height)
            nbytes = math.prod(shape) * numpy.dtype(dtype).itemsize if dtype else -1
            alike = all(bool((numpy.asarray(span.lengths) == skip + nbytes).all()) for span in spans)
            if alike and not bool((starts != starts[0]).any()):
                moved = [(span.file, (span.starts + numpy.uint64(skip), nbytes)) for span in spans]
                return FileRecords(files, moved, _dtypes.NAMES[dtype], shape, framework, device)
    return _decoded(files, spans, _picture, name, framework, device)


def _pixels(mode: bytes, width: int, height: int) -> tuple[str, tuple[int, ...]]:
    """dtype and shape of a picture's pixels; no dtype for modes that are not numbers side by side."""
    dtype, channels = _MODES.get(mode, ("", 1))
    return dtype, (height, width, channels) if channels > 1 else (height, width)


def _picture(content: bytes) -> Any:
    numpy = need_numpy()
    width, height, letters = _PICTURE.unpack_from(content)
    mode, pixels = content[_PICTURE.size :][:letters], content[_PICTURE.size + letters :]
    if mode == b"1":
        rows = numpy.frombuffer(pixels, "uint8").reshape(height, -(-width // 8))
        return numpy.unpackbits(rows, axis=1)[:, :width].astype(bool)
    dtype, shape = _pixels(mode, width, height)
    if not dtype:
        raise ValueError(f"a picture of the unknown mode {mode!r}")
    return numpy.frombuffer(pixels, dtype).reshape(shape).copy()


class _FramedList:
    """Decodes a list: how many values, their sizes, and the values. ``skip`` bytes stand before."""

    def __init__(self, skip: int, decode: Callable[[bytes], Any] | None) -> None:
        self._skip, self._decode = skip, decode

    def __call__(self, content: bytes) -> list[Any]:
        numpy = need_numpy()
        (count,) = struct.unpack_from("<I", content, self._skip)
        place, found = self._skip + 4 + 4 * count, []
        for size in struct.unpack_from(f"<{count}I", content, self._skip + 4):
            value = content[place : place + size]
            if len(value) != size:
                raise ValueError("it ends within a value")
            found.append(self._decode(value) if self._decode else numpy.frombuffer(bytearray(value), "uint8"))
            place += size
        if place != len(content):
            raise ValueError("bytes follow the last value")
        return found


def wrapped(files: FileSet, spans: list[Spans], kind: str, name: str, framework: str, device: object) -> Records:
    """A column of pictures (``pil``) or of lists of them (``jpeg_array``, ``list[png]``, …)."""
    if kind == "pil":
        return _pictures(files, spans, name, framework, device)
    decode = _FramedList(4 if kind.startswith("list[") else 0, _picture if kind == "list[pil]" else None)
    return _decoded(files, spans, decode, name, framework, device)


# ---- litdata's lists -------------------------------------------------------------------------------------------------


def litdata_list(files: FileSet, spans: list[Spans], name: str, framework: str, device: object) -> Records:
    """Lists and dicts as litdata stores them: lists of numbers as arrays, or as :class:`~forebay.data.Jagged` where their
    lengths differ; all else as Python's values.
    """
    numpy = need_numpy()
    if _least(spans) < 5:
        return _decoded(files, spans, _nested, name, framework, device)
    heads = gather_host(files, spans, 5)
    tags, counts = heads[:, 0], heads[:, 1:].copy().view("<u4")[:, 0].astype("int64")
    # An empty list has no type: it is stored as one of texts.
    kinds = {int(tag) for tag in numpy.unique(tags[(tags != _TEXTS) | (counts > 0)])}
    lengths = numpy.concatenate([span.lengths for span in spans]).astype("int64")
    if len(kinds) != 1 or not kinds <= _NUMBERS.keys():
        return _decoded(files, spans, _nested, name, framework, device)
    _, dtype = _NUMBERS[kinds.pop()]
    item = _forebay.dtype_size(dtype) // 8
    if bool((lengths != 5 + item * counts).any()):
        raise InvalidInputError(f"a list of {name!r} has not the bytes of its length", path=files.paths[spans[0].file])
    if bool((counts == counts[0]).all()):
        even = [(span.file, (span.starts + numpy.uint64(5), item * int(counts[0]))) for span in spans]
        return FileRecords(files, even, dtype, (int(counts[0]),), framework, device)
    parts = [(span.file, (span.starts + numpy.uint64(5), span.lengths - numpy.uint64(5))) for span in spans]
    return FileRecords(files, parts, dtype, (), framework, device, jagged=True)


def _least(spans: list[Spans]) -> int:
    """Bytes of the shortest value; 0 if there are no values."""
    return min((int(span.lengths.min()) for span in spans if len(span.lengths)), default=0)


def _nested(content: bytes) -> Any:
    # Earlier versions wrote JSON.
    if content[:1] > b"\x20":
        return json.loads(content)
    value, end = _value_at(content, 0)
    if end != len(content):
        raise ValueError("bytes follow the value")
    return value


def _value_at(content: bytes, at: int) -> tuple[Any, int]:
    """A value, and where it ends."""
    tag = content[at]
    at += 1
    if tag in _NUMBERS or tag == 0:
        (count,) = struct.unpack_from("<I", content, at)
        at += 4
        if tag == 0:
            return json.loads(_cut(content, at, count)), at + count
        numpy = need_numpy()
        dtype = numpy.dtype(_NUMBERS[tag][0])
        return numpy.frombuffer(_cut(content, at, dtype.itemsize * count), dtype).tolist(), at + dtype.itemsize * count
    if tag in (_TEXTS, 5, 6):
        (count,) = struct.unpack_from("<I", content, at)
        return {_TEXTS: _texts_at, 5: _dict_at, 6: _rows_at}[tag](content, at + 4, count)
    return _scalar_at(content, at, tag - 7)


def _scalar_at(content: bytes, at: int, kind: int) -> tuple[Any, int]:
    """A text, an integer, a fraction, a bool or None: kinds 0 to 4."""
    if kind == 0:
        return _text_at(content, at)
    if kind == 3:
        return content[at] != 0, at + 1
    if kind == 4:
        return None, at
    if kind not in (1, 2):
        raise ValueError(f"a value of the unknown kind {kind + 7}")
    return struct.unpack_from("<q" if kind == 1 else "<d", content, at)[0], at + 8


def _text_at(content: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from("<I", content, at)
    return _cut(content, at + 4, size).decode(), at + 4 + size


def _texts_at(content: bytes, at: int, count: int) -> tuple[list[str], int]:
    found = []
    for _ in range(count):
        text, at = _text_at(content, at)
        found.append(text)
    return found, at


def _dict_at(content: bytes, at: int, count: int) -> tuple[dict[str, Any], int]:
    found = {}
    for _ in range(count):
        key, at = _text_at(content, at)
        found[key], at = _value_at(content, at)
    return found, at


def _rows_at(content: bytes, at: int, count: int) -> tuple[list[dict[str, Any]], int]:
    """Dicts with the same keys."""
    (width,) = struct.unpack_from("<I", content, at)
    keys, at = _texts_at(content, at + 4, width)
    if not keys:
        raise ValueError("dicts without keys")
    rows = []
    for _ in range(count):
        row = {}
        for key in keys:
            # None is 16, then text, integer, fraction and bool.
            kind = content[at] - 17
            row[key], at = _scalar_at(content, at + 1, 4 if kind == -1 else kind if 0 <= kind < 4 else -1)
        rows.append(row)
    return rows, at


def _cut(content: bytes, at: int, size: int) -> bytes:
    if at + size > len(content):
        raise ValueError("it ends within a value")
    return content[at : at + size]
