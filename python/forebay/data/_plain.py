"""Records in files without an index: raw bytes, ``.npy``, and ranges that the program knows."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

from .. import _forebay, _locations
from .._kinds import NPY, other_kind
from .._npy_types import dtype_of_descr, hint_of_descr
from ..errors import InvalidInputError, MissingPackageError, UnsupportedError
from ..frameworks import _dtypes
from ._files import FileSet
from ._patterns import members_of, text_paths
from ._records import FileRecords, Part

__all__ = ["dtype_named", "npy", "ranges", "raw", "whole_number"]

#: The largest offset that the kernel takes.
_MAX_OFFSET = (1 << 63) - 1


def dtype_named(dtype: Any) -> str:
    """safetensors' name of a dtype.

    Raises:
        InvalidInputError: it is none, or one whose elements share bytes.
    """
    # numpy takes None for float64.
    found = None if dtype is None else _dtypes.name_of(dtype)
    if found is None:
        raise InvalidInputError(f"unknown dtype: {dtype!r}", hints=['dtype="uint8", "float32", "bfloat16", …'])
    return found


def shape_named(shape: Any) -> tuple[int, ...]:
    """A shape from a number or several."""
    wrong = InvalidInputError(f"not the shape of a record: {shape!r}", hints=["one size or several, each 0 or more"])
    try:
        # An array of sizes could be a number, too, by its methods.
        is_one = hasattr(shape, "__index__") and getattr(shape, "shape", ()) == ()
        sizes = (operator.index(shape),) if is_one else tuple(map(operator.index, shape))
    except TypeError:
        raise wrong from None
    if any(size < 0 for size in sizes) or math.prod(sizes) > _MAX_OFFSET:
        raise wrong
    return sizes


def whole_number(what: str, given: Any, least: int = 0) -> int:
    """A number of bytes or records that a program gave.

    Raises:
        InvalidInputError: no integer, below ``least``, or beyond any file.
    """
    hint = f"a whole number, {least} or more"
    try:
        found = operator.index(given)
    except TypeError:
        raise InvalidInputError(f"{what} cannot be {given!r}", hints=[hint]) from None
    if not least <= found <= _MAX_OFFSET:
        raise InvalidInputError(f"{what} cannot be {given!r}", hints=[hint])
    return found


def raw(
    paths: Any,
    dtype: Any,
    shape: Any,
    *,
    header: int = 0,
    stride: int | None = None,
    count: int | None = None,
    framework: str = "torch",
    device: object = None,
) -> FileRecords:
    """Records of one size in files without an index, one behind the other.

    Args:
        paths: one or several, or a pattern (``"{000..099}.bin"``, ``"*.bin"``); the records of the second follow those of
            the first.
        dtype: of the elements: ``"uint8"``, ``"bfloat16"``, ``torch.float32``, …
        shape: of a record.
        header: bytes before the first record of each file.
        stride: bytes from the beginning of a record to that of the next; by default its length. A shorter one makes
            records overlap: token windows that share their last token with the next one.
        count: records of each file; by default as many as it has.
        framework: whose arrays come back: ``"torch"``, ``"numpy"``, ``"jax"``, ``"cupy"`` or ``"native"``.
        device: where they lie; by default GPU 0 where the framework has one, else the host.

    Raises:
        InvalidInputError: a file does not end with a whole record, or has fewer than ``count``.
        NotFoundError, …: a file cannot be read.
    """
    name, sizes = dtype_named(dtype), shape_named(shape)
    nbytes = math.prod(sizes) * _forebay.dtype_size(name) // 8
    if stride is None and not nbytes:
        raise InvalidInputError("records of no bytes", hints=["check the shape: each size is 1 or more"], shape=shape)
    step = nbytes if stride is None else whole_number("stride", stride, 1)
    header = whole_number("header", header)
    count = None if count is None else whole_number("count", count)
    files = FileSet(text_paths(paths))
    parts: list[Part] = []
    for number, path in enumerate(files.paths):
        left = files.size(number) - header
        rows = (left - nbytes) // step + 1 if left >= nbytes else 0
        if count is not None:
            rows = count
        elif left < 0 or (left and ((left - nbytes) % step or left < nbytes) and stride is None):
            raise InvalidInputError(
                "the file does not end with a whole record",
                hints=["check dtype, shape and header, or say how many records it has: count="],
                path=path,
                bytes=files.size(number),
                record=nbytes,
            )
        parts.append((number, (rows, header, step, nbytes)))
    return FileRecords(files, parts, name, sizes, framework, device)


def npy(
    paths: Any,
    *,
    each: str = "row",
    dtype: str | None = None,
    framework: str = "torch",
    device: object = None,
) -> FileRecords:
    """The rows of ``.npy`` files as one data set, or the files themselves.

    Args:
        paths: one or several, or a pattern. All have the same dtype and, but for the number of rows, the same shape.
        each: what a record is: ``"row"`` (of the first dimension) or ``"file"``.
        dtype: what elements are that the file only knows the width of (``"bfloat16"``).
        framework: as for :func:`raw`.
        device: as for :func:`raw`.

    Raises:
        InvalidInputError: the files differ, or one is no ``.npy`` file, or shorter than its header says.
        UnsupportedError: Python objects, structures, texts, or Fortran order.
    """
    if each not in ("row", "file"):
        raise InvalidInputError(f"a record is a row or a file, not {each!r}", hints=['each="row" or each="file"'])
    files = FileSet(text_paths(paths))
    parts: list[Part] = []
    first: tuple[str, tuple[int, ...]] | None = None
    for number, path in enumerate(files.paths):
        with _forebay.open(path) as file:
            try:
                descr, turned, shape, start = _forebay.read_npy_header(file)
            except InvalidInputError as error:
                raise other_kind(file, NPY) or error from None
        name = dtype_of_descr(descr, dtype)
        if name is None:
            hints = hint_of_descr(descr) or ["convert it to a numeric dtype"]
            raise UnsupportedError(f"records cannot have elements of {descr}", hints=hints, path=path)
        if turned and len(shape) > 1:
            hints = ["numpy.save(path, numpy.ascontiguousarray(array))"]
            raise UnsupportedError("the array is stored in Fortran order: its rows are no runs", hints=hints, path=path)
        if each == "row" and not shape:
            raise InvalidInputError("an array without dimensions has no rows", hints=['each="file"'], path=path)
        kept = shape[1:] if each == "row" else shape
        if first is None:
            first = (name, kept)
        elif first != (name, kept):
            raise InvalidInputError(
                "the files hold different records",
                path=path,
                found=f"{name} {list(kept)}",
                before=f"{first[0]} {list(first[1])}",
            )
        nbytes = math.prod(kept) * _forebay.dtype_size(name) // 8
        parts.append((number, (shape[0] if each == "row" else 1, start, nbytes, nbytes)))
    assert first is not None  # text_paths gives one path at least
    return FileRecords(files, parts, *first, framework, device)


def ranges(
    paths: Any,
    offsets: Any = None,
    lengths: Any = None,
    dtype: Any = "uint8",
    shape: Any = (),
    *,
    file: Any = None,
    framework: str = "torch",
    device: object = None,
) -> FileRecords:
    """Records of any lengths anywhere in files: a batch is :class:`Jagged`.

    Of a folder all files are records, but those whose names begin with a dot. Its folders are classes in the order of their
    names, as torchvision's ``ImageFolder`` sorts them: the result's ``classes`` has the names, ``labels`` a number for each
    record. Folders of several that have one name are one class. Several folders without folders are classes themselves.

    Args:
        paths: of one or several files or folders; or a pattern. Where there are classes, all are folders.
        offsets: in bytes, where each record begins: 64-bit integers, in a list or an array. Without offsets and lengths each
            file is a record: images, sounds and texts as they are.
        lengths: in bytes, of each.
        dtype: of the elements.
        shape: of an element's trailing dimensions: ``(3,)`` for points.
        file: the number of the file that each record lies in; not needed for one file.
        framework: as for :func:`raw`.
        device: as for :func:`raw`.

    Raises:
        InvalidInputError: a record lies beyond the end of its file, or is no whole number of elements.
    """
    name, sizes = dtype_named(dtype), shape_named(shape)
    numpy = need_numpy()
    named, members = text_paths(paths), None
    if offsets is None and lengths is None and any(map(_locations.is_folder, named)):
        members = members_of(named)
        named = members.paths
    files = FileSet(named)
    if offsets is None and lengths is None and file is None:
        file = range(len(files.paths))
        offsets, lengths = [0] * len(file), [files.size(number) for number in file]
    left_out = [name for name, given in (("offsets", offsets), ("lengths", lengths)) if given is None]
    if left_out:
        hints = ["ranges(paths, offsets=…, lengths=…), in bytes"]
        raise InvalidInputError(f"ranges() without {' and '.join(left_out)}", hints=hints)
    begins, spans = _integers(numpy, offsets, "offsets"), _integers(numpy, lengths, "lengths")
    if len(begins) != len(spans):
        raise InvalidInputError(f"{len(begins)} offsets and {len(spans)} lengths", hints=["give one length each"])
    unit = math.prod(sizes) * _forebay.dtype_size(name) // 8
    check_units(numpy, spans, unit)
    if file is None and len(files.paths) > 1:
        raise InvalidInputError("several files, and not said which record lies where", hints=["file=numbers"])
    if file is None:
        parts: list[Part] = [(0, (begins, spans))]
    else:
        owners = _integers(numpy, file, "file")
        if len(owners) != len(begins) or (len(owners) and int(owners.max()) >= len(files.paths)):
            raise InvalidInputError(
                "file= does not name one of the files for each record",
                hints=["one number each, from 0 to the last file's"],
                files=len(files.paths),
            )
        # Neighbours in the data set that lie in one file are one part.
        cuts = numpy.flatnonzero(numpy.diff(owners)) + 1
        bounds = [0, *cuts.tolist(), len(owners)]
        parts = [
            (int(owners[low]), (begins[low:high], spans[low:high]))
            for low, high in itertools.pairwise(bounds)
            if high > low
        ]
    made = FileRecords(files, parts, name, sizes, framework, device, jagged=True)
    if members is not None:
        made.classes, made.labels = members.classes, members.labels
    return made


def need_numpy() -> Any:
    """numpy, which tables of records are made with.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        import numpy
    except ImportError:
        raise MissingPackageError("tables of records need numpy", hints=["pip install numpy"]) from None
    return numpy


def check_units(numpy: Any, lengths: Any, unit: int) -> None:
    """Raises InvalidInputError where a length is no whole number of elements."""
    wrong = numpy.flatnonzero(lengths % unit if unit else lengths)
    if len(wrong):
        raise InvalidInputError(
            "a record is no whole number of elements",
            hints=["check the dtype: lengths are in bytes"],
            record=int(wrong[0]),
            bytes=int(lengths[wrong[0]]),
            element=unit,
        )


def _integers(numpy: Any, given: Any, what: str) -> Any:
    """Numbers as unsigned 64-bit ones.

    Raises:
        InvalidInputError: they are no integers, or one is below 0 or no offset of any file.
    """
    try:
        array = numpy.asarray(given)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"{what} are no numbers: {error}", hints=["64-bit integers, in bytes"]) from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidInputError(f"{what} are no list of integers", hints=["64-bit integers, in bytes"])
    if array.size and (int(array.min()) < 0 or int(array.max()) > _MAX_OFFSET):
        raise InvalidInputError(f"{what} are below 0, or beyond any file", hints=["they count bytes"])
    return numpy.ascontiguousarray(array, dtype="uint64")
