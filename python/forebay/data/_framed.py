"""Shards of samples behind a table of 32-bit offsets: what MosaicML's and Lightning's formats have in common.

A shard begins with the number of samples and their offsets, one more than samples. A sample is the 32-bit sizes of some of its
columns and then the columns' bytes. All of it comes out of files: nothing is used before it is within its bounds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import _forebay
from ..errors import InvalidInputError
from ._files import FileSet, bounded, read_start
from ._plain import need_numpy
from ._records import Part

__all__ = ["Frames", "Spans", "alike", "gather_host", "read_frames", "split"]

#: A file that names more samples is damaged.
_MAX_SAMPLES = 1 << 31


class Frames(NamedTuple):
    """Where the samples of a shard begin and end in it: arrays of unsigned 64-bit numbers."""

    file: int
    starts: Any
    ends: Any


class Spans(NamedTuple):
    """Where a column's bytes lie in a shard: offsets, and lengths or the length of all."""

    file: int
    starts: Any
    lengths: Any

    @property
    def part(self) -> Part:
        """As the native half takes it."""
        return self.file, (self.starts, self.lengths)


def read_frames(files: FileSet, file: int, samples: Any, what: str) -> Frames:
    """The table of a shard, of which the index says how many samples it has.

    Raises:
        InvalidInputError: they contradict each other, or offsets go backwards or beyond the end.
    """
    numpy = need_numpy()
    path, size = files.paths[file], files.size(file)
    count = bounded(samples, _MAX_SAMPLES, "the number of samples", path)
    table = 4 * (count + 2)
    if table > size:
        raise InvalidInputError(
            f"the {what} is too short for its table: it is truncated, or its index lies",
            hints=["copy it again"],
            path=path,
            bytes=size,
            samples=count,
        )
    words = numpy.frombuffer(read_start(path, 0, table), "<u4").astype("uint64")
    offsets = words[1:]
    if int(words[0]) != count:
        raise InvalidInputError(
            "the index and the file differ", hints=["copy both again"], path=path, index=count, file=int(words[0])
        )
    if int(offsets[0]) < table or int(offsets[-1]) > size or bool((offsets[1:] < offsets[:-1]).any()):
        raise InvalidInputError(
            f"the offsets of the {what} go backwards or beyond its end",
            hints=["it is truncated or damaged: copy it again"],
            path=path,
            bytes=size,
        )
    return Frames(file, offsets[:-1].copy(), offsets[1:].copy())


def gather_host(files: FileSet, spans: list[Spans], nbytes: int) -> Any:
    """The first ``nbytes`` bytes of each span, as rows of an array in host memory: one batched read."""
    numpy = need_numpy()
    table = _forebay.Table(files.native(), [(span.file, (span.starts, nbytes)) for span in spans])
    out = numpy.empty((len(table), nbytes), "uint8")
    if out.nbytes:
        rows = numpy.arange(len(table), dtype="int64")
        table.read(rows, out.__array_interface__["data"][0], out.nbytes, out).result()
    return out


def split(
    files: FileSet, frames: list[Frames], sizes: list[int | None], told: list[bool], what: str
) -> list[list[Spans]]:
    """The columns' places.

    Args:
        files: all shards.
        frames: their samples.
        sizes: bytes of each column, ``None`` where they differ.
        told: whether a column's size stands before the sample.
        what: a shard is called.

    Raises:
        InvalidInputError: sizes and samples contradict each other.
    """
    numpy = need_numpy()
    head = 4 * sum(told)
    heads = _heads(files, frames, sizes, told, head)
    columns: list[list[Spans]] = [[] for _ in sizes]
    begin = 0
    for frame in frames:
        count = len(frame.starts)
        room = frame.ends - frame.starts
        fixed = head + sum(size for size in sizes if size is not None)
        _check(bool((room < fixed).any()), files, frame, what)
        place, number = frame.starts + numpy.uint64(head), 0
        for column, size in enumerate(sizes):
            lengths: Any = size
            if heads is not None and told[column]:
                read = heads[begin : begin + count, number].astype("uint64")
                _check(size is not None and bool((read != size).any()), files, frame, what)
                lengths = read if size is None else size
            elif size is None:
                # The only one: what the others leave.
                lengths = room - numpy.uint64(fixed)
            number += told[column]
            columns[column].append(Spans(frame.file, place, lengths))
            place = place + (lengths if size is None else numpy.uint64(size))
        _check(bool((place != frame.ends).any()), files, frame, what)
        begin += count
    return columns


def _heads(files: FileSet, frames: list[Frames], sizes: list[int | None], told: list[bool], head: int) -> Any:
    """The sizes before each sample, where they do not follow from its length."""
    if sum(size is None for size in sizes) < 2 and sum(told) < 2:
        return None
    for frame in frames:
        _check(bool((frame.ends - frame.starts < head).any()), files, frame, "shard")
    spans = [Spans(frame.file, frame.starts, head) for frame in frames]
    return gather_host(files, spans, head).view("<u4")


def _check(wrong: bool, files: FileSet, frame: Frames, what: str) -> None:
    if wrong:
        raise InvalidInputError(
            f"the sizes of a sample contradict the table of its {what}",
            hints=["it is damaged, or not what its index describes"],
            path=files.paths[frame.file],
        )


def alike(files: FileSet, spans: list[Spans], nbytes: int, column: str) -> bytes | None:
    """The first ``nbytes`` bytes of a column's values, if they are the same in all: a header that says dtype and shape.
    ``None`` if they are not; empty where there are no values.

    Raises:
        InvalidInputError: a value is shorter.
    """
    for span in spans:
        least = span.lengths if isinstance(span.lengths, int) else (span.lengths.min() if len(span.lengths) else nbytes)
        if int(least) < nbytes:
            raise InvalidInputError(f"a value of {column!r} is shorter than its header", path=files.paths[span.file])
    rows = gather_host(files, spans, nbytes)
    if not len(rows):
        return b""
    return None if bool((rows != rows[0]).any()) else bytes(rows[0])
