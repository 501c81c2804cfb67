"""``checkpoint.json``, written last: with it a folder of shards is a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from .. import errors
from ._memory import dtype_called, dtype_name

NAME: Final = "checkpoint.json"
_FORMAT: Final = "forebay checkpoint"
#: The second has tensors as ``torch.save`` writes them. One without them is written as the first.
_VERSIONS: Final = (1, 2)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the bytes of one item lie: a shard, the offset there, how many, their CRC-32C; and whether they are what
    ``torch.save`` makes of a tensor, in place of its elements.
    """

    file: str
    offset: int
    nbytes: int
    crc32c: int
    is_pickled: bool = False

    def told(self) -> list[Any]:
        place = [self.file, self.offset, self.nbytes, self.crc32c]
        return [*place, True] if self.is_pickled else place


def encode(metadata: Metadata, places: Mapping[MetadataIndex, Place]) -> bytes:
    """The manifest of a checkpoint.

    Raises:
        IntegrityError: something in the metadata was written by no rank.
        UnsupportedError: a planner's own data is not a table of paths of keys.
    """
    tensors, objects = {}, {}
    for name, told in metadata.state_dict_metadata.items():
        if isinstance(told, TensorStorageMetadata):
            tensors[name] = _encode_tensor(name, told, places)
        else:
            objects[name] = _place(places, MetadataIndex(name)).told()
    whole = {
        "format": _FORMAT,
        "version": _VERSIONS[any(place.is_pickled for place in places.values())],
        "tensors": tensors,
        "objects": objects,
        "paths": _encode_paths(metadata.planner_data),
    }
    return json.dumps(whole, separators=(",", ":")).encode()


def _encode_tensor(name: str, told: TensorStorageMetadata, places: Mapping[MetadataIndex, Place]) -> dict[str, Any]:
    chunks = []
    for chunk in told.chunks:
        place = _place(places, MetadataIndex(name, chunk.offsets))
        chunks.append([list(chunk.offsets), list(chunk.sizes), *place.told()])
    return {
        "dtype": dtype_name(told.properties.dtype),
        "size": list(told.size),
        "requires_grad": bool(told.properties.requires_grad),
        "chunks": chunks,
    }


def _place(places: Mapping[MetadataIndex, Place], index: MetadataIndex) -> Place:
    found = places.get(index)
    if found is None:
        raise errors.IntegrityError("no process wrote a part of the checkpoint", tensor=index.fqn, offset=index.offset)
    return found


def _encode_paths(paths: Any) -> dict[str, list[str | int]] | None:
    if paths is None:
        return None
    if not isinstance(paths, Mapping) or not all(
        isinstance(path, tuple) and all(type(key) in (str, int) for key in path) for path in paths.values()
    ):
        raise errors.UnsupportedError(
            "the planner keeps data of a kind that the manifest does not hold",
            hints=["use torch.distributed.checkpoint.DefaultSavePlanner"],
        )
    return {str(name): list(path) for name, path in paths.items()}


def decode(text: bytes, path: str) -> Metadata:
    """The metadata of a manifest; its ``storage_data`` maps each index to its :class:`Place`.

    Raises:
        IntegrityError: the manifest is damaged.
        UnsupportedError: a newer forebay wrote it.
    """
    try:
        told = json.loads(text)
        if told["format"] != _FORMAT:
            raise ValueError("another format")
        if told["version"] not in _VERSIONS:
            raise errors.UnsupportedError(
                "the checkpoint was written by a newer forebay", hints=["pip install --upgrade forebay"], path=path
            )
        return _decode(told)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as reason:
        if isinstance(reason, errors.Error):
            raise
        raise errors.IntegrityError("the checkpoint's manifest is damaged", path=path) from reason


def _decode(told: dict[str, Any]) -> Metadata:
    places: dict[MetadataIndex, Place] = {}
    entries: dict[str, Any] = {}
    for name, tensor in told["tensors"].items():
        dtype = dtype_called(tensor["dtype"])
        chunks = []
        for offsets, sizes, *where in tensor["chunks"]:
            place = _decode_place(where)
            chunk = ChunkStorageMetadata(_size(offsets), _size(sizes))
            if not place.is_pickled and place.nbytes != chunk.sizes.numel() * dtype.itemsize:
                raise ValueError(f"the size of {name}")
            places[MetadataIndex(name, chunk.offsets)] = place
            chunks.append(chunk)
        properties = TensorProperties(dtype=dtype, requires_grad=bool(tensor["requires_grad"]))
        entries[name] = TensorStorageMetadata(properties, _size(tensor["size"]), chunks)
    for name, where in told["objects"].items():
        places[MetadataIndex(name)] = _decode_place(where)
        entries[name] = BytesStorageMetadata()
    paths = told["paths"]
    planner = None if paths is None else {name: tuple(path) for name, path in paths.items()}
    return Metadata(state_dict_metadata=entries, planner_data=planner, storage_data=places)


def _size(numbers: Iterable[int]) -> torch.Size:
    numbers = list(numbers)
    if not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
        raise ValueError("a size")
    return torch.Size(numbers)


def _decode_place(told: list[Any]) -> Place:
    file, offset, nbytes, crc, *pickled = told
    # A manifest names files of its own folder only.
    if type(file) is not str or "/" in file or file in ("", ".", ".."):
        raise ValueError("a file's name")
    if not all(type(n) is int and 0 <= n < 1 << 62 for n in (offset, nbytes, crc)):
        raise ValueError("a place")
    if pickled not in ([], [True]):
        raise ValueError("a place")
    return Place(file, offset, nbytes, crc, bool(pickled))
