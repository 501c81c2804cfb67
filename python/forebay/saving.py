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
#: Where the data section begins: what O_DIRECT and mappings like.
_ALIGN = 4096


class _Piece(NamedTuple):
    """A tensor's bytes and their place in the file."""

    offset: int
    nbytes: int
    address: int
    name: str
    keep: Any


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
        described[name] = found = framework.describe(array, name)
        if found.dtype not in _dtypes.STORABLE:
            raise UnsupportedError(
                "safetensors has no such dtype",
                hints=[_cast_hint(framework), "forebay.write_npy and write_npz have it"],
                tensor=name,
                dtype=found.dtype,
            )
        used.setdefault(framework.name, (framework, set()))[1].add(found.device)
        if framework.name == "torch":
            torches.append(name)
    _refuse_shared({name: described[name] for name in torches})
    for framework, devices in used.values():
        frameworks.settle(framework, devices)
    return described


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
        if nbytes:
            pieces.append(_Piece(offset, nbytes, found.address, name, found.keep))
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


def _write(file: File, pieces: Sequence[_Piece], sums: dict[str, int] | None) -> None:
    """Writes all pieces, and fills in the checksums if there shall be any."""
    flying: deque[Future] = deque()
    try:
        for group in _groups(pieces):
            moves = [(piece.address, piece.nbytes, piece.offset) for piece in group]
            flying.append(file._submit(True, moves, [piece.keep for piece in group]))
            if sums is not None:
                found = _forebay.checksums([(piece.address, piece.nbytes) for piece in group])
                sums.update(zip((piece.name for piece in group), found, strict=True))
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
        if position > first and (total + piece.nbytes > _GROUP_BYTES or position - first >= _GROUP_TENSORS):
            yield pieces[first:position]
            first, total = position, 0
        total += piece.nbytes
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
