"""Heads of GGUF files: which tensors lie where. Their quantised blocks are bytes here: llama.cpp and ComfyUI know what they mean."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _forebay
from ._paths import Held, Watch
from .errors import InvalidInputError, ShortReadError, UnsupportedError

if TYPE_CHECKING:
    from ._forebay import File
    from .loading import Entry

__all__ = ["GgufSource", "Kind"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
#: Bytes of the head that are read at once.
_WINDOW = 1 << 20
_MAX_DIMENSIONS = 4
_MAX_NAME = 1 << 16
_MAX_DEPTH = 8
_MAX_ALIGNMENT = 1 << 20
_DEFAULT_ALIGNMENT = 32
#: Bytes of a value of metadata, by its type's number; text and lists have their own lengths.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_TEXT, _LIST, _U32, _U64 = 8, 9, 4, 10


class Kind(NamedTuple):
    """What the elements of a tensor are.

    Attributes:
        name: as ggml has it: ``"Q4_K"``.
        elements: of a block.
        nbytes: of a block.
        dtype: safetensors' name where an element is a number, ``"U8"`` for bytes of blocks.
    """

    name: str
    elements: int
    nbytes: int
    dtype: str = "U8"


#: By ggml's number.
_KINDS = {
    0: Kind("F32", 1, 4, "F32"), 1: Kind("F16", 1, 2, "F16"), 2: Kind("Q4_0", 32, 18), 3: Kind("Q4_1", 32, 20),
    6: Kind("Q5_0", 32, 22), 7: Kind("Q5_1", 32, 24), 8: Kind("Q8_0", 32, 34), 10: Kind("Q2_K", 256, 84),
    11: Kind("Q3_K", 256, 110), 12: Kind("Q4_K", 256, 144), 13: Kind("Q5_K", 256, 176), 14: Kind("Q6_K", 256, 210),
    15: Kind("Q8_K", 256, 292), 16: Kind("IQ2_XXS", 256, 66), 17: Kind("IQ2_XS", 256, 74), 18: Kind("IQ3_XXS", 256, 98),
    19: Kind("IQ1_S", 256, 50), 20: Kind("IQ4_NL", 32, 18), 21: Kind("IQ3_S", 256, 110), 22: Kind("IQ2_S", 256, 82),
    23: Kind("IQ4_XS", 256, 136), 24: Kind("I8", 1, 1, "I8"), 25: Kind("I16", 1, 2, "I16"), 26: Kind("I32", 1, 4, "I32"),
    27: Kind("I64", 1, 8, "I64"), 28: Kind("F64", 1, 8, "F64"), 29: Kind("IQ1_M", 256, 56), 30: Kind("BF16", 1, 2, "BF16"),
    34: Kind("TQ1_0", 256, 54), 35: Kind("TQ2_0", 256, 66), 39: Kind("MXFP4", 32, 17),
}  # fmt: skip


class GgufSource:
    """An open GGUF file and its tensors.

    Args:
        path: of the file.

    Attributes:
        entries: name, dtype, shape, offset in the file and bytes of each tensor. Of quantised ones the dtype is ``"U8"``, and the last
            dimension counts bytes.
        kinds: of each tensor by name, and its shape in elements.

    Raises:
        InvalidInputError: its head is not one, or claims what cannot be.
        ShortReadError: the file ends before its head, or before a tensor, does.
        UnsupportedError: a version of the format, or a kind of elements, that is not known here.
        NotFoundError, PermissionDeniedError, …: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.file: File = _forebay.open(path)
        self.watch = Watch(self.file)
        self.held = Held(self.file, self.watch)
        self.kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.entries: list[Entry] = []
        with self.watch:
            self._read(_Head(self.file))

    def _read(self, head: _Head) -> None:
        tensors, pairs = head.begin()
        alignment = _DEFAULT_ALIGNMENT
        for _ in range(pairs):
            key, number = head.text(), head.number("<I")
            if key == "general.alignment":
                alignment = head.alignment(number)
            else:
                head.skip_value(number, 0)
        found = [_tensor(head) for _ in range(tensors)]
        start = -(-head.at // alignment) * alignment
        for name, kind, shape, offset in found:
            if name in self.kinds:
                raise head.wrong("two tensors have the same name", tensor=name)
            if offset % alignment:
                raise head.wrong("a tensor's offset is not aligned", tensor=name, offset=offset, alignment=alignment)
            self.kinds[name] = (kind.name, shape)
            self.entries.append(self._entry(name, kind, shape, start + offset))

    def _entry(self, name: str, kind: Kind, shape: tuple[int, ...], begin: int) -> Entry:
        blocks = math.prod(shape) // kind.elements
        nbytes = blocks * kind.nbytes
        if begin + nbytes > self.file.size:
            raise ShortReadError(
                "the file is shorter than its head says", hints=["copy or download it again"], path=self.path, tensor=name,
                bytes=f"{begin}-{begin + nbytes}", size=self.file.size,
            )  # fmt: skip
        if kind.dtype == "U8":
            shape = (*shape[:-1], shape[-1] // kind.elements * kind.nbytes)
        return name, kind.dtype, shape, begin, nbytes


def _tensor(head: _Head) -> tuple[str, Kind, tuple[int, ...], int]:
    """Name, kind, shape in elements with the slowest dimension first, and offset behind the head."""
    name, count = head.text(), head.number("<I")
    if not 0 < count <= _MAX_DIMENSIONS:
        raise head.wrong("a tensor has no such number of dimensions", tensor=name, dimensions=count)
    # The file has the fastest dimension first.
    shape = tuple(reversed([head.number("<Q") for _ in range(count)]))
    number, offset = head.number("<I"), head.number("<Q")
    kind = _KINDS.get(number)
    if kind is None:
        hints = ["read it with the program that wrote it"]
        raise UnsupportedError(
            "a kind of elements that is not known here", hints=hints, path=head.path, tensor=name, kind=number
        )
    if shape[-1] % kind.elements or math.prod(shape) * kind.nbytes >= 1 << 63:
        raise head.wrong("a tensor has an impossible shape", tensor=name, shape=list(shape), kind=kind.name)
    return name, kind, shape, offset


class _Head:
    """Reads a head from its beginning on; nothing that it claims is believed before the file has the bytes.

    Attributes:
        at: bytes of the file that were read.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        self._size = file.size
        self._window = b""
        self._start = 0
        self.path = file.path
        self.at = 0

    def wrong(self, text: str, **facts: Any) -> InvalidInputError:
        """An error about the head."""
        return InvalidInputError(
            f"the GGUF file is damaged: {text}", hints=["copy or download it again"], path=self.path, **facts
        )

    def begin(self) -> tuple[int, int]:
        """The number of tensors, and of metadata's pairs."""
        start = self.take(min(4, self._size))
        if start != _MAGIC:
            from ._kinds import other_kind

            raise other_kind(self._file, "a GGUF file") or InvalidInputError("this is no GGUF file", path=self.path)
        version = self.number("<I")
        if version not in _VERSIONS:
            hints = ["convert it with a recent llama.cpp: little-endian files of the versions 2 and 3 are read"]
            raise UnsupportedError("a version of GGUF that is not read", hints=hints, path=self.path, version=version)
        tensors, pairs = self.number("<Q"), self.number("<Q")
        # The least that each takes.
        if tensors * 32 + pairs * 13 > self._size:
            raise self.wrong("it has no room for what it counts", tensors=tensors, pairs=pairs, size=self._size)
        return tensors, pairs

    def take(self, count: int) -> bytes:
        """The next bytes."""
        self._skip(count)
        first = self.at - count - self._start
        if first < 0 or first + count > len(self._window):
            self._start = self.at - count
            self._window = self._file.read(max(_WINDOW, count), self._start)
            first = 0
        return self._window[first : first + count]

    def _skip(self, count: int) -> None:
        if count > self._size - self.at:
            raise ShortReadError(
                "the GGUF file ends within its head",
                hints=["copy or download it again"],
                path=self.path,
                size=self._size,
            )
        self.at += count

    def number(self, form: str) -> int:
        """The next number."""
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def text(self) -> str:
        """The next name."""
        count = self.number("<Q")
        if count > _MAX_NAME:
            raise self.wrong("a name is too long", length=count, at=self.at)
        try:
            return self.take(count).decode()
        except UnicodeDecodeError:
            raise self.wrong("a name is no text", at=self.at) from None

    def alignment(self, kind: int) -> int:
        """The next value, a multiple of bytes that tensors begin at."""
        value = self.number("<I") if kind == _U32 else self.number("<Q") if kind == _U64 else 0
        if not 0 < value <= _MAX_ALIGNMENT or value & (value - 1):
            raise self.wrong("general.alignment is no power of two", alignment=value, kind=kind)
        return value

    def skip_value(self, kind: int, depth: int) -> None:
        """Passes a value of metadata."""
        if kind == _TEXT:
            self._skip(self.number("<Q"))
        elif kind == _LIST:
            self._skip_list(depth)
        elif kind in _SIZES:
            self._skip(_SIZES[kind])
        else:
            raise self.wrong("a value is of no known type", type=kind, at=self.at)

    def _skip_list(self, depth: int) -> None:
        kind, count = self.number("<I"), self.number("<Q")
        if depth >= _MAX_DEPTH:
            raise self.wrong("its lists are nested too deep", at=self.at)
        if kind in _SIZES:
            self._skip(count * _SIZES[kind])
            return
        # Text and lists take 8 bytes or more each.
        if count * 8 > self._size - self.at:
            raise self.wrong("a list has no room for what it counts", count=count, at=self.at)
        for _ in range(count):
            self.skip_value(kind, depth + 1)
