"""Writes tensors to a new safetensors file, and gives it its name once it is whole."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _forebay, frameworks
from ._checksums import CHECKSUMS_KEY
from .errors import InvalidInputError, UnsupportedError
from .frameworks import _dtypes

if TYPE_CHECKING:
    from ._forebay import File, Future
    from .frameworks import Described, Device, Framework

__all__ = ["describe_all", "write_safetensors"]

# As in loading: what is in flight has to be waited for after Ctrl-C or an error.
_GROUP_BYTES = 512 << 20
_GROUP_TENSORS = 4096
_GROUPS_IN_FLIGHT = 4
#: Bytes of a group that are read from other files for it.
_READ_BYTES = 64 << 20
#: Where the data section begins: what O_DIRECT and mappings like.
_ALIGN = 4096


class _Piece(NamedTuple):
    """A tensor's bytes, or some of them, and their place in the file."""

    offset: int
    nbytes: int
    #: 0: `keep` is a tensor that is still in its file.
    address: int
    name: str
    keep: Any
    #: The first of them, in the tensor.
    start: int = 0

    @property
    def room(self) -> int:
        """Bytes that count for a group: those read for it take memory."""
        return self.nbytes if self.address else self.nbytes * (_GROUP_BYTES // _READ_BYTES)


def describe_all(tensors: Mapping[str, Any]) -> dict[str, Described]:
    """All tensors as bytes in memory, ready to be read: the work queued for them on their frameworks' current streams
    is done.

    Raises:
        InvalidInputError: something is no tensor, is not contiguous, or shares memory with another.
        UnsupportedError: safetensors has no such dtype.
    """
    if not isinstance(tensors, Mapping):
        hints = ['save_file({"weight": tensor}, path)']
        raise InvalidInputError("tensors are a dict of names and arrays", hints=hints, got=type(tensors).__name__)
    described: dict[str, Described] = {}
    used: dict[str, tuple[Framework, set[Device]]] = {}
    torches: list[str] = []
    for name, array in tensors.items():
        if not isinstance(name, str):
            raise InvalidInputError("names of tensors are strings", got=repr(name))
        framework = frameworks.of_array(array, name)
        described[name] = found = _describe(framework, array, name)
        if found.dtype not in _dtypes.STORABLE:
            raise UnsupportedError(
                "safetensors has no such dtype",
                hints=[_cast_hint(framework), "forebay.write_npy and write_npz have it"],
                tensor=name,
                dtype=found.dtype,
            )
        used.setdefault(framework.name, (framework, set()))[1].add(found.device)
        if framework.name == "torch" and found.address:
            torches.append(name)
    _refuse_shared({name: described[name] for name in torches})
    for framework, devices in used.values():
        frameworks.settle(framework, devices)
    return described


def _describe(framework: Framework, array: Any, name: str) -> Described:
    if not getattr(type(array), "_is_unread", False):
        return framework.describe(array, name)
    from .torch._weights_saves import describe

    return describe(array, name)


def _cast_hint(framework: Framework) -> str:
    return f"cast it first: {'.to(torch.float32)' if framework.name == 'torch' else '.astype(...)'}"


def _refuse_shared(described: Mapping[str, Described]) -> None:
    """A file would hold shared memory twice, and loading it would not share it again."""
    spans = sorted(
        (found.device, found.address, found.address + found.nbytes, name)
        for name, found in described.items()
        if found.nbytes
    )
    together: list[str] = []
    device, end, last = None, 0, ""
    for its_device, begin, its_end, name in spans:
        if its_device == device and begin < end:
            together += [name] if together else [last, name]
        elif together:
            break
        else:
            end = 0
        device, end, last = its_device, max(end, its_end), name
    if together:
        raise InvalidInputError(
            f"tensors share memory: {', '.join(sorted(together))}",
            hints=[
                "drop all but one of them, and tie them again after loading",
                f"or give each its own memory: tensors[{max(together)!r}] = tensors[{max(together)!r}].clone()",
            ],
        )


def write_safetensors(
    path: str, described: Mapping[str, Described], metadata: Mapping[str, str] | None, checksums: bool, durable: bool
) -> None:
    """Writes the file beside its place, and puts it there once it is whole."""
    texts = _texts(metadata)
    specs = [(name, found.dtype, found.shape) for name, found in described.items()]
    # The checksums are computed while the bytes move. All have the same length, so zeros keep their places.
    sums = dict.fromkeys(described, 0) if checksums else None
    header, places, size = _forebay.plan_safetensors(specs, _with_sums(texts, sums), _ALIGN)
    pieces: list[_Piece] = []
    for (name, found), (offset, nbytes) in zip(described.items(), places, strict=True):
        if found.nbytes != nbytes:
            raise InvalidInputError(
                "the tensor has another size than its shape and dtype say", tensor=name, bytes=found.nbytes
            )
        pieces += _pieces(name, found, offset)
    # One after another in the file, whatever the order of the dict.
    pieces.sort(key=lambda piece: piece.offset)
    with _forebay.Pending(path) as pending:
        file = pending.file
        file._make_room(size)
        _write(file, pieces, sums)
        if sums is not None:
            header, _, _ = _forebay.plan_safetensors(specs, _with_sums(texts, sums), _ALIGN)
        file.write_from(header, 0)
        pending.commit(durable)


def _pieces(name: str, found: Described, offset: int) -> Iterator[_Piece]:
    """A tensor in one piece; one that is still in its file in several, so that it needs little memory."""
    step = (found.nbytes if found.address else _READ_BYTES) or 1
    for start in range(0, found.nbytes, step):
        yield _Piece(offset + start, min(step, found.nbytes - start), found.address, name, found.keep, start)


def _in_memory(group: Sequence[_Piece]) -> list[_Piece]:
    """The pieces, those read that are still in their files."""
    unread = [piece for piece in group if not piece.address]
    if not unread:
        return list(group)
    from .torch._weights_saves import read_bytes

    rooms = iter(read_bytes([(piece.keep, piece.start, piece.nbytes) for piece in unread]))
    made = (piece if piece.address else (piece, next(rooms)) for piece in group)
    return [one if isinstance(one, _Piece) else one[0]._replace(address=one[1].data_ptr(), keep=one[1]) for one in made]


def _add_sums(sums: dict[str, int], pieces: Sequence[_Piece]) -> None:
    """Adds the checksums of pieces to those of earlier pieces of the same tensors."""
    found = _forebay.checksums([(piece.address, piece.nbytes) for piece in pieces])
    for piece, value in zip(pieces, found, strict=True):
        if piece.start:
            from .torch._crc import combine

            value = combine(sums[piece.name], value, piece.nbytes)
        sums[piece.name] = value


def _write(file: File, pieces: Sequence[_Piece], sums: dict[str, int] | None) -> None:
    """Writes all pieces, and fills in the checksums if there shall be any."""
    flying: deque[Future] = deque()
    try:
        for group in _groups(pieces):
            ready = _in_memory(group)
            moves = [(piece.address, piece.nbytes, piece.offset) for piece in ready]
            flying.append(file._submit(True, moves, [piece.keep for piece in ready]))
            if sums is not None:
                _add_sums(sums, ready)
            if len(flying) == _GROUPS_IN_FLIGHT:
                _finish_first(flying)
        while flying:
            _finish_first(flying)
    except BaseException:
        for future in flying:
            future.cancel()
        for future in flying:
            future.exception()
        raise


def _finish_first(flying: deque[Future]) -> None:
    # Taken out when it is done: Ctrl-C ends the waiting, not the write.
    flying[0].result()
    flying.popleft()


def _groups(pieces: Sequence[_Piece]) -> Iterator[Sequence[_Piece]]:
    first, total = 0, 0
    for position, piece in enumerate(pieces):
        if position > first and (total + piece.room > _GROUP_BYTES or position - first >= _GROUP_TENSORS):
            yield pieces[first:position]
            first, total = position, 0
        total += piece.room
    if first < len(pieces):
        yield pieces[first:]


def _texts(metadata: Mapping[str, str] | None) -> dict[str, str] | None:
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping):
        raise InvalidInputError(
            "metadata are a dict of strings", hints=['metadata={"format": "pt"}'], got=type(metadata).__name__
        )
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidInputError(
                "metadata are strings",
                hints=[f"metadata={{{key!r}: {str(value)!r}}}"],
                key=repr(key),
                got=type(value).__name__,
            )
    return dict(metadata)


def _with_sums(texts: dict[str, str] | None, sums: Mapping[str, int] | None) -> dict[str, str] | None:
    if sums is None:
        return texts
    return {**(texts or {}), CHECKSUMS_KEY: json.dumps({name: f"{checksum:08x}" for name, checksum in sums.items()})}
