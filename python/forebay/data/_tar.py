"""WebDataset's tar files, not compressed: members side by side as columns."""

from __future__ import annotations

import itertools
import math
import os
import tarfile
from collections.abc import Sequence
from typing import Any

from .. import _forebay
from .._npy_types import dtype_of_descr
from ..errors import InvalidInputError, UnsupportedError
from ._files import FileSet, chosen, failed, text_paths
from ._framed import Spans, gather_host
from ._plain import need_numpy
from ._records import FileRecords, Held, Records, Zipped, placed

__all__ = ["tar"]

#: (offset, bytes) of a member.
_Place = tuple[int, int]


def tar(
    paths: Any,
    columns: Sequence[str] | None = None,
    *,
    framework: str = "torch",
    device: object = None,
) -> Zipped:
    """Samples of WebDataset's tar files: members whose names are alike up to the first dot are one sample, what follows it
    is the column. ``npy`` of one dtype and shape come as arrays, ``cls`` as numbers, all else as
    :class:`~forebay.data.Jagged` bytes, not decoded.

    Opening reads all headers, once (about 50 000 members a second).

    Args:
        paths: one or several.
        columns: to read (``"jpg"``, ``"cls"``); by default those of the first sample. Each sample has to have them.
        framework: as for :func:`~forebay.data.raw`.
        device: as for :func:`~forebay.data.raw`.

    Raises:
        InvalidInputError: no tar file, a truncated one, or a sample without one of the columns.
        UnsupportedError: a compressed or sparse one.
    """
    files = FileSet(text_paths(paths))
    samples: list[tuple[int, str, dict[str, _Place]]] = []
    for number, path in enumerate(files.paths):
        samples.extend((number, key, members) for key, members in _samples(path, files.size(number)))
    if not samples:
        raise InvalidInputError("there are no samples in the files", path=files.paths[0])
    # A sample may have members that the first one lacks.
    known = dict.fromkeys(name for _, _, members in samples for name in members)
    wanted = list(samples[0][2]) if columns is None else chosen(columns, known, files.paths[0])
    return Zipped({name: _column(files, samples, name, framework, device) for name in wanted})


def _samples(path: str, size: int) -> list[tuple[str, dict[str, _Place]]]:
    found: dict[str, dict[str, _Place]] = {}
    try:
        with open(path, "rb") as file:
            if file.read(4)[:2] in (b"\x1f\x8b", b"BZ", b"\xfd7", b"\x28\xb5"):
                raise UnsupportedError(
                    "the tar file is compressed", hints=["unpack it: tar without z, j, J"], path=path
                )
            file.seek(0)
            with tarfile.open(fileobj=file, mode="r:") as archive:
                for member in archive:
                    if member.issparse():
                        raise UnsupportedError("a sparse member", path=path, member=member.name)
                    if member.isfile():
                        _add(found, member, size, path)
                # tarfile takes a damaged or cut header for the end.
                file.seek(archive.offset)
                if file.read(512) != bytes(512):
                    raise InvalidInputError(
                        "the tar file has no end", hints=["it is truncated or damaged: copy it again"], path=path
                    )
    except OSError as error:
        if isinstance(error, UnsupportedError | InvalidInputError):
            raise
        raise failed(error, path) from None
    except (tarfile.TarError, ValueError, OverflowError, MemoryError) as error:
        if isinstance(error, InvalidInputError):
            raise
        hints = ["WebDataset's .tar files are read; one that is cut has to be copied again"]
        raise InvalidInputError(f"cannot read the tar file: {error}", hints=hints, path=path) from None
    return list(found.items())


def _add(found: dict[str, dict[str, _Place]], member: tarfile.TarInfo, size: int, path: str) -> None:
    if not 0 <= member.size <= size - member.offset_data:
        raise InvalidInputError(
            "a member lies beyond the end of the file",
            hints=["it is truncated: copy it again"],
            path=path,
            member=member.name,
            bytes=member.size,
        )
    folder, base = os.path.split(member.name)
    stem, _, column = base.partition(".")
    if not stem or not column:
        return
    columns = found.setdefault(os.path.join(folder, stem), {})
    if column in columns:
        raise InvalidInputError("a sample has a member twice", path=path, member=member.name)
    columns[column] = (member.offset_data, member.size)


def _column(
    files: FileSet, samples: list[tuple[int, str, dict[str, _Place]]], name: str, framework: str, device: object
) -> Records:
    numpy = need_numpy()
    places: dict[int, list[_Place]] = {}
    for file, key, members in samples:
        if name not in members:
            raise InvalidInputError(
                f"a sample has no member {name!r}",
                hints=[f"it has {', '.join(members)}", "columns= says which are read"],
                path=files.paths[file],
                sample=key,
            )
        places.setdefault(file, []).append(members[name])
    spans = []
    for file, pairs in places.items():
        table = numpy.array(pairs, dtype="uint64")
        spans.append(Spans(file, table[:, 0].copy(), table[:, 1].copy()))
    if name == "cls" or name.endswith(".cls"):
        return _numbers(files, spans, name, framework, device)
    if name == "npy" or name.endswith(".npy"):
        made = _arrays(files, spans, name, framework, device)
        if made is not None:
            return made
    return FileRecords(files, [span.part for span in spans], "U8", (), framework, device, jagged=True)


def _numbers(files: FileSet, spans: list[Spans], name: str, framework: str, device: object) -> Records:
    """Classes: short texts of digits, held in memory."""
    numpy = need_numpy()
    longest = max(int(span.lengths.max()) for span in spans)
    if longest > 20:
        raise InvalidInputError(f"a member {name!r} is too long for a number", path=files.paths[0], bytes=longest)
    records = FileRecords(files, [span.part for span in spans], "U8", (), "numpy", "cpu", jagged=True)
    batch = records[:]
    text = batch.values.tobytes()
    try:
        found = [int(text[begin:end]) for begin, end in itertools.pairwise(batch.offsets)]
        numbers = numpy.array(found, dtype="int64")
    except (ValueError, OverflowError) as error:
        raise InvalidInputError(f"a member {name!r} is no number: {error}", path=files.paths[0]) from None
    return Held(numbers, *placed(framework, device))


def _arrays(files: FileSet, spans: list[Spans], name: str, framework: str, device: object) -> Records | None:
    """Arrays of one dtype and shape; ``None`` where they differ or only numpy could read them."""
    numpy = need_numpy()
    first = spans[0]
    with _forebay.open(files.paths[first.file]) as file:
        begin, length = int(first.starts[0]), int(first.lengths[0])
        descr, turned, shape, start = _forebay.read_npy_header(file, begin, length)
    dtype = dtype_of_descr(descr, None)
    if dtype is None:
        hints = ["convert them to a numeric dtype"] if "O" in descr else []
        raise UnsupportedError(f"arrays of {descr} cannot be records", hints=hints, path=files.paths[first.file])
    if turned and len(shape) > 1:
        return None
    header, nbytes = start - begin, math.prod(shape) * _forebay.dtype_size(dtype) // 8
    if any(bool((span.lengths != header + nbytes).any()) for span in spans):
        return None
    if bool((gather_host(files, spans, header) != gather_host(files, spans[:1], header)[0]).any()):
        return None
    parts = [(span.file, (span.starts + numpy.uint64(header), nbytes)) for span in spans]
    return FileRecords(files, parts, dtype, shape, framework, device)
