"""Which files a checkpoint consists of."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from . import _locations
from ._paths import path_text
from .errors import IntegrityError, InvalidInputError, IsDirectoryError, NotFoundError

__all__ = ["Paths", "Shard", "resolve"]

#: A checkpoint's path: a file, a folder, an index, or several files.
Paths = str | bytes | os.PathLike[str] | Sequence[str | bytes | os.PathLike[str]]

#: How the files of a model are named: those of safetensors first, then those that torch.save wrote.
_KINDS = (
    (".safetensors", "model.safetensors", ".safetensors.index.json", "model.safetensors.index.json"),
    (".bin", "pytorch_model.bin", ".bin.index.json", "pytorch_model.bin.index.json"),
)
#: An index of a model with a million tensors has about 100 MB.
_INDEX_LIMIT = 512 << 20


#: A file, and the names that are to be taken from it (``None``: all).
Shard = tuple[str, frozenset[str] | None]


def resolve(paths: Paths) -> list[Shard]:
    """The files behind ``paths``, in the order in which they are given or first named by the index.

    Args:
        paths: a file; an index (``model.safetensors.index.json``, ``pytorch_model.bin.index.json``); a folder with one
            of these, in which safetensors come before ``.bin`` files; or several files.

    Raises:
        NotFoundError: a file, a folder or a shard that the index names does not exist.
        InvalidInputError: a folder in which it is not clear what to load, or no file at all.
        IntegrityError: an index that cannot be understood.
    """
    if isinstance(paths, (str, bytes, os.PathLike)):
        return _resolve_one(path_text(paths))
    # Files are iterables of their lines, bytes of their numbers.
    if not isinstance(paths, Iterable) or hasattr(paths, "read") or isinstance(paths, (bytearray, memoryview)):
        path_text(paths)
    given = [path_text(path) for path in paths]
    if not given:
        raise InvalidInputError("there is no file to load: the list of paths is empty", hints=["give one path or more"])
    return [shard for path in given for shard in _resolve_one(path)]


def _resolve_one(path: str) -> list[Shard]:
    if _locations.is_folder(path):
        path = _in_folder(path)
    if _locations.name_of(path).endswith(tuple(kind[2] for kind in _KINDS)):
        return _from_index(path)
    return [(path, None)]


def _in_folder(folder: str) -> str:
    names = _locations.names(folder)
    for ending, favourite, index_ending, favourite_index in _KINDS:
        indexes = [name for name in names if name.endswith(index_ending)]
        files = [name for name in names if name.endswith(ending)]
        for found, first in ((indexes, favourite_index), (files, favourite)):
            if first in found:
                return _locations.member(folder, first)
            if len(found) == 1:
                return _locations.member(folder, found[0])
        if files:
            raise InvalidInputError(
                f"the folder has several {ending} files and no index that says which belong together",
                hints=[
                    f"name them: load_file([{', '.join(repr(_locations.member(folder, name)) for name in files[:3])}…])"
                ],
                path=folder,
            )
    from ._kinds import folder_hints

    hints = folder_hints(folder) or ["name the folder that a model's files lie in, or one of the files"]
    raise NotFoundError("the folder has no .safetensors or .bin file", hints=hints, path=folder)


def _from_index(path: str) -> list[Shard]:
    by_file: dict[str, list[str]] = {}
    for name, file in _weight_map(path).items():
        if not isinstance(file, str) or os.path.isabs(file) or ".." in Path(file).parts or not file:
            raise IntegrityError(
                "the index names a shard outside of its folder", path=path, tensor=name, shard=repr(file)
            )
        by_file.setdefault(file, []).append(name)
    folder = _locations.parent(path)
    shards: list[Shard] = [(_locations.member(folder, file), frozenset(names)) for file, names in by_file.items()]
    missing = [shard for shard, _ in shards if not _locations.exists(shard)]
    if missing:
        raise NotFoundError(
            f"{len(missing)} of the {len(shards)} shards that the index names do not exist"
            if len(shards) > 1
            else "the shard that the index names does not exist",
            hints=["download or copy the model again: it is not complete"],
            path=missing[0],
            index=path,
        )
    return shards


def _weight_map(path: str) -> dict[str, object]:
    try:
        text = _locations.text_of(path, _INDEX_LIMIT)
    except (InvalidInputError, IsDirectoryError):
        raise InvalidInputError("the index is not a regular file", path=path) from None
    except NotFoundError:
        raise NotFoundError("cannot open the index: no such file", path=path) from None
    try:
        if len(text) > _INDEX_LIMIT:
            raise ValueError("it is larger than any index")
        content = json.loads(text)
        weights = content["weight_map"]
        if not isinstance(weights, dict):
            raise TypeError("weight_map is not an object")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = "there is no weight_map in it" if isinstance(error, KeyError) else str(error)
        raise IntegrityError(f"cannot understand the index: {reason}", path=path) from None
    return weights
