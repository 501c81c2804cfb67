"""The tensors of a checkpoint by name, each read where, when and as far as it is used."""

from __future__ import annotations

import json
import os
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .._forebay import open as open_file
from .._gguf import GgufSource
from .._locations import ending_of
from .._paths import Held, path_text
from ..errors import InvalidInputError, ShortReadError
from ..loading import Entry, Source
from ..safetensors import open_all, refuse_twice
from ._weights_reads import Reads, Stored
from ._weights_stats import Stats
from ._weights_tensor import Weight, is_saved

if TYPE_CHECKING:
    from ..shards import Paths

__all__ = ["Weights", "weights"]


class _Sent(NamedTuple):
    """An open file of a checkpoint, for another process: its tensors, and what each is as the file has it."""

    held: Held
    entries: list[Entry]
    kinds: dict[str, tuple[str, tuple[int, ...]]]


#: An open file of a checkpoint.
AnySource = Source | GgufSource | _Sent


class Weights(Mapping[str, Weight]):
    """The tensors of a checkpoint by name, in the order of its files. Made by :func:`weights`.

    Its pickles name the files, and take no bytes of tensors along. Taking one out opens the files, and raises ``BusyError`` where another
    file has a name by now. ``torch.save`` reads the tensors and saves a dict of them.
    """

    #: See :func:`forebay.frameworks.torch.is_unread`.
    _is_unread = True

    def __init__(self, sources: Sequence[AnySource], reads: Reads | None = None) -> None:
        self._sources = sources
        self._reads = Reads(may_pin=True) if reads is None else reads
        self._places = {entry[0]: (source, entry) for source in sources for entry in source.entries}
        self._made: dict[str, Weight] = {}

    def __getitem__(self, name: str) -> Weight:
        made = self._made.get(name)
        if made is None:
            source, entry = self._places[name]
            made = self._made[name] = weight_of(source, entry, self._reads)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return f"<Weights: {len(self)} tensors in {len(self._sources)} files>"

    def __copy__(self) -> Weights:
        # Nobody can write it.
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Weights:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        if is_saved(sys._getframe(1)):
            return OrderedDict, (), None, None, iter(self.items())
        return Weights, ([_sent(source) for source in self._sources], self._reads)

    @property
    def stats(self) -> Stats:
        """The reads so far: bytes, pieces, operations."""
        return self._reads.stats

    def collect(self) -> AbstractContextManager[None]:
        """A block in which ``destination.copy_(tensor)`` is collected: the copies are handed to the engine in batches of 256 MiB,
        which stay in flight until the block ends.

        A destination may be used after the block, not in it. Operations that need the bytes of a tensor read them at once.
        When the block ends by an exception, what is in flight is waited for, and the destinations may have any content.

        Raises:
            ShortReadError, BusyError, IOFailedError, …: at the end of the block, with tensor, file and range.

        >>> with weights.collect():  # doctest: +SKIP
        ...     for name, parameter in model.named_parameters():
        ...         parameter.data.copy_(weights[name])
        """
        return self._reads.collect()

    def pin(self) -> None:
        """Has the pages of the files that were read to GPUs so far registered with the driver, in the background: the next load reads
        them in place, for a fraction of the CPU time. They stay in memory until this mapping and its tensors are gone.

        For programs that load again: a refit, an engine that sleeps. Why it was refused, if it was, is in :attr:`stats`' notes.
        """
        self._reads.pin()


def weights(paths: Paths) -> Weights:
    """The tensors of a checkpoint, whose bytes stay in its files until they are used.

    Args:
        paths: a safetensors file, several, a folder with a model, or an index (``model.safetensors.index.json``); or one or
            several ``.gguf`` files. Paths or URLs. Quantised blocks of GGUF are tensors of bytes (uint8), whose
            :attr:`Weight.stored_type` and :attr:`Weight.stored_shape` say what they are.

    Returns:
        Tensors by name: see :class:`Weight`.

    Raises:
        NotFoundError: a file or a shard does not exist.
        ShortReadError: a file is shorter than its header says.
        IntegrityError: an index makes no sense.
        InvalidInputError: a file is damaged or of another format, or two files have a tensor of the same name.
        UnsupportedError: torch has no such dtype.

    >>> checkpoint = weights("model/")  # doctest: +SKIP
    >>> parameter.data.copy_(checkpoint["layer.0.weight"][:1024])  # doctest: +SKIP
    """
    given = [paths] if isinstance(paths, (str, bytes, os.PathLike)) else paths
    named = [path_text(path) for path in given]
    if not named or not all(ending_of(path) == ".gguf" for path in named):
        return Weights(_opened(paths))
    sources = [GgufSource(path) for path in named]
    refuse_twice(sources)
    return Weights(sources)


def _opened(paths: Paths) -> list[Source]:
    try:
        return open_all(paths)
    except InvalidInputError as error:
        raise _short(error) or error from None


def _short(error: InvalidInputError) -> ShortReadError | None:
    """The error for a safetensors file whose header is right, and that ends before its tensors do."""
    # Facts of native errors are text.
    facts = {name: str(error.context.get(name, "")) for name in ("end", "data", "path")}
    if not facts["end"].isdecimal() or not facts["data"].isdecimal() or int(facts["end"]) <= int(facts["data"]):
        return None
    path, data = facts["path"], int(facts["data"])
    with open_file(path) as file:
        start = file.size - data
        entries: dict[str, Any] = json.loads(file.read(start - 8, 8))
    entries.pop("__metadata__", None)
    ranges = sorted((*entry["data_offsets"], name) for name, entry in entries.items())
    begin, end, name = next(one for one in ranges if one[1] > data)
    return ShortReadError(
        "the file is shorter than its header says", hints=error.hints, path=path, tensor=name,
        bytes=f"{start + begin}-{start + end}", size=start + data,
    )  # fmt: skip


def _sent(source: AnySource) -> _Sent:
    if isinstance(source, _Sent):
        return source
    names = {entry[0] for entry in source.entries}
    if isinstance(source, Source):
        kinds = {name: (dtype, shape) for name, dtype, shape, _, _ in source.entries}
    else:
        kinds = {name: kind for name, kind in source.kinds.items() if name in names}
    return _Sent(source.held, source.entries, kinds)


def weight_of(source: AnySource, entry: Entry, reads: Reads) -> Weight:
    """A tensor of an open file.

    Raises:
        UnsupportedError: torch has no such dtype.
    """
    from ..frameworks import unsupported_dtype
    from ..frameworks.torch import FRAMEWORK, shape_of

    name, dtype, shape, begin, nbytes = entry
    found = FRAMEWORK.dtype(dtype)
    if found is None:
        raise unsupported_dtype(FRAMEWORK, dtype, name)
    plain = torch.empty(shape_of(shape, dtype), dtype=found, device="meta")
    if plain.nbytes != nbytes:
        raise InvalidInputError(
            "the framework's tensor has another size than the file's", tensor=name, bytes=plain.nbytes, wanted=nbytes
        )
    kind = (dtype, shape) if isinstance(source, Source) else source.kinds[name]
    return Weight._make(Stored(source.held, name, begin, kind), plain, reads)
