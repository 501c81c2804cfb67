"""WebDataset's tar files, not compressed: members side by side as columns."""

from __future__ import annotations

import itertools
import math
import re
import warnings
from collections.abc import Sequence
from typing import Any

from .. import _forebay, _locations
from .._npy_types import dtype_of_descr
from ..errors import InvalidInputError, UnsupportedError
from ._files import FileSet, chosen
from ._framed import Spans, gather_host
from ._patterns import tars_of, text_paths
from ._plain import need_numpy
from ._ranks import MAX_NUMBER
from ._records import FileRecords, Held, Records, Zipped, placed
from ._tar_members import Member, members, without

__all__ = ["tar"]

#: (file's number, key, members by column).
_Sample = tuple[int, str, dict[str, Member]]
#: Of a number of 64 bits, with its sign.
_MAX_DIGITS = 20
#: WebDataset's names for what is about the data: never a sample.
_ABOUT = re.compile(r"__[^/]*__(/|$)")


def tar(
    paths: Any,
    columns: Sequence[str] | None = None,
    *,
    framework: str = "torch",
    device: object = None,
) -> Zipped:
    """Samples of WebDataset's tar files: neighbours whose names are alike up to the first dot behind the folder are one
    sample, what follows it, in lower case, is the column. ``npy`` of one dtype and shape come as arrays, ``cls`` as numbers,
    all else as :class:`~forebay.data.Jagged` bytes, not decoded.

    Opening reads all headers, once (about 50 000 members a second).

    Args:
        paths: one or several; a brace pattern (``"{000..099}.tar"``) or a glob; or a folder, for the tar files in it.
        columns: to read (``"jpg"``, ``"cls"``); by default all that there are. Each sample has to have them.
        framework: as for :func:`~forebay.data.raw`.
        device: as for :func:`~forebay.data.raw`.

    Raises:
        InvalidInputError: no tar file, a truncated one, a sample without one of the columns or with one twice, a link to what
            the archive has not, or, without ``columns``, a name that has no column.
        UnsupportedError: a compressed one, or a sparse member, a device or a FIFO.
    """
    named = text_paths(paths)
    files = FileSet(path for one in named for path in (tars_of(one) if _locations.is_folder(one) else [one]))
    samples: list[_Sample] = []
    for number, path in enumerate(files.paths):
        found = members(path, files.size(number))
        samples.extend((number, key, sample) for key, sample in _samples(found, path, columns is not None))
    if not samples:
        raise InvalidInputError("there are no samples in the files", path=files.paths[0])
    wanted = chosen(columns, (name for _, _, sample in samples for name in sample), files.paths[0])
    return Zipped({name: _column(files, samples, name, framework, device) for name in wanted})


def _samples(found: list[Member], path: str, may_leave: bool) -> list[tuple[str, dict[str, Member]]]:
    samples: list[tuple[str, dict[str, Member]]] = []
    about = []
    for place, member in enumerate(found):
        folder, slash, base = member.name.rpartition("/")
        stem, dot, column = base.partition(".")
        if _ABOUT.match(member.name):
            about.append(member.name)
            continue
        if not stem or not dot:
            if may_leave:
                continue
            raise _no_column(found[: place + 1], path)
        key, column = folder + slash + stem, column.lower()
        if not samples or samples[-1][0] != key:
            samples.append((key, {}))
        if column in samples[-1][1]:
            raise _twice(found[: place + 1], samples[-1][1][column], path)
        samples[-1][1][column] = member
    if about:
        told = f"{len(about)} members of {path} are no samples by WebDataset's naming and are left out: {about[0]}"
        warnings.warn(told, stacklevel=3)
    return samples


def _twice(found: list[Member], before: Member, path: str) -> InvalidInputError:
    """The error for the last member found: its sample has that column already."""
    name = found[-1].name
    names = [one.name for one in found]
    # Of two of one name tar unpacks the later one: the earlier one goes.
    hints = without(path, names[:-1] if before.name == name else names, name)
    return InvalidInputError("a sample has a column twice", hints=hints, path=path, member=name, before=before.name)


def _no_column(found: list[Member], path: str) -> InvalidInputError:
    name = found[-1].name
    base = name.rpartition("/")[2]
    told = "begins with a dot" if base.startswith(".") else "has no dot"
    return InvalidInputError(
        f"a member belongs to no sample: its name {told}",
        hints=["columns= says which are read", *without(path, (one.name for one in found), name)],
        path=path,
        member=name,
    )


def _column(files: FileSet, samples: list[_Sample], name: str, framework: str, device: object) -> Records:
    numpy = need_numpy()
    places: dict[int, list[tuple[int, int]]] = {}
    for file, key, sample in samples:
        if name not in sample:
            raise InvalidInputError(
                f"a sample has no member {name!r}",
                hints=[
                    f"it has {', '.join(itertools.islice(sample, 20))}",
                    "columns= says which are read",
                    "the members of a sample follow each other: make the archive with tar --sort=name",
                ],
                path=files.paths[file],
                sample=key,
            )
        places.setdefault(file, []).append((sample[name].offset, sample[name].nbytes))
    spans = []
    for file, pairs in places.items():
        table = numpy.array(pairs, dtype="uint64")
        spans.append(Spans(file, table[:, 0].copy(), table[:, 1].copy()))
    if name == "cls" or name.endswith(".cls"):
        return _numbers(files, samples, spans, name, framework, device)
    if name == "npy" or name.endswith(".npy"):
        made = _arrays(files, samples, spans, name, framework, device)
        if made is not None:
            return made
    return FileRecords(files, [span.part for span in spans], "U8", (), framework, device, jagged=True)


def _numbers(
    files: FileSet, samples: list[_Sample], spans: list[Spans], name: str, framework: str, device: object
) -> Records:
    """Classes: short texts of digits, held in memory."""
    numpy = need_numpy()
    if max(int(span.lengths.max()) for span in spans) > _MAX_DIGITS:
        file, member = next((file, one[name]) for file, _, one in samples if one[name].nbytes > _MAX_DIGITS)
        raise _no_number(files.paths[file], member.name, name, f"it has {member.nbytes} bytes")
    records = FileRecords(files, [span.part for span in spans], "U8", (), "numpy", "cpu", jagged=True)
    texts = records[:]
    text, offsets = texts.values.tobytes(), texts.offsets.tolist()
    found: list[int] = []
    for (file, _, sample), (begin, end) in zip(samples, itertools.pairwise(offsets), strict=True):
        try:
            found.append(int(text[begin:end]))
        except ValueError:
            raise _no_number(files.paths[file], sample[name].name, name, repr(text[begin:end])[1:]) from None
        if not -MAX_NUMBER - 1 <= found[-1] <= MAX_NUMBER:
            raise _no_number(files.paths[file], sample[name].name, name, f"{found[-1]} has more than 64 bits")
    return Held(numpy.array(found, dtype="int64"), *placed(framework, device))


def _no_number(path: str, member: str, column: str, told: str) -> InvalidInputError:
    hints = [f"members {column!r} are whole numbers of 64 bits, in digits", "columns= says which are read"]
    return InvalidInputError(f"a member is no number: {told}", hints=hints, path=path, member=member)


def _arrays(
    files: FileSet, samples: list[_Sample], spans: list[Spans], name: str, framework: str, device: object
) -> Records | None:
    """Arrays of one dtype and shape; ``None`` where they differ or only numpy could read them."""
    numpy = need_numpy()
    first = spans[0]
    with _forebay.open(files.paths[first.file]) as file:
        begin, length = int(first.starts[0]), int(first.lengths[0])
        descr, turned, shape, start = _forebay.read_npy_header(file, begin, length)
    dtype = dtype_of_descr(descr, None)
    if dtype is None:
        if descr[:1] == ">":
            hints = ["write them in this order of bytes: array.astype(array.dtype.newbyteorder('<'))"]
        else:
            hints = ["convert them to a numeric dtype"]
        raise UnsupportedError(
            f"arrays of {descr} cannot be records",
            hints=[*hints, "columns= says which are read"],
            path=files.paths[first.file],
            member=samples[0][2][name].name,
        )
    if turned and len(shape) > 1:
        return None
    header, nbytes = start - begin, math.prod(shape) * _forebay.dtype_size(dtype) // 8
    if any(bool((span.lengths != header + nbytes).any()) for span in spans):
        return None
    if bool((gather_host(files, spans, header) != gather_host(files, spans[:1], header)[0]).any()):
        return None
    parts = [(span.file, (span.starts + numpy.uint64(header), nbytes)) for span in spans]
    return FileRecords(files, parts, dtype, shape, framework, device)
