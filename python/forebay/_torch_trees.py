"""The contents of a checkpoint's pickle: Python's containers, plain data, and tensors with names."""

from __future__ import annotations

import enum
import re
import types
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from . import errors

if TYPE_CHECKING:
    import torch

__all__ = ["NeedsDataError", "refuse", "replace", "tensors"]

_DEPTH_LIMIT: Final = 200
_NAME_LIMIT: Final = 2048


class NeedsDataError(Exception):
    """A value is no tensor over a plain storage, or may be made of what is in one."""


def refuse(what: str, path: str) -> NoReturn:
    hints = [
        "if you trust the source of the file: found = torch.load(path, weights_only=False)",
        'then save its tensors: forebay.save_file(found, "model.safetensors"), or found["state_dict"] if it has that',
    ]
    # torch says how, too, but its words go on and on.
    named = re.search(r"GLOBAL (\S+) was not an allowed|globals`,? but got <class '([^']+)'>", what)
    # A name that is no identifier cannot be part of a line to type.
    if named is not None and _is_name(named[1] or named[2]):
        name = named[1] or named[2]
        what = f"{name}, which is not allowed"
        hints.insert(0, f"if you trust {name}: torch.serialization.add_safe_globals([{name}]), once it is imported")
    elif " must be imported " in what:
        hints = [f"import {name}" for name in re.findall("``([^`]+)``", what) if _is_name(name)]
    raise errors.InvalidInputError(
        f"the checkpoint asks for more than tensors and plain data: {what[:400]}", hints=hints, path=path
    )


def _is_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


#: A key in a dictionary or list, after the key path of that dictionary or list itself.
_KeyPath = tuple["_KeyPath | None", object]
_PLAIN: Final = (type(None), bool, int, float, str, bytes, bytearray, complex)
_MAPPINGS: Final = (dict, OrderedDict, Counter)
#: Objects of the program that the file only names: they have no data of the file.
_KNOWN: Final = (type, types.FunctionType, types.BuiltinFunctionType, enum.Enum)


def _needs_data(name: str, node: Any) -> NoReturn:
    raise NeedsDataError


def tensors(
    tree: Any, path: str, odd: Callable[[str, Any], Mapping[str, Any]] = _needs_data
) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of a tree with their names.

    Args:
        tree: what a pickle described.
        path: of its file.
        odd: is asked, with its name, for a value that is neither a container of Python's nor plain data, is nested too
            deep, or has a key that is no plain data: it gives what to look at inside.
    """
    import torch

    plain = (*_PLAIN, torch.dtype, torch.device, torch.Size, torch.layout, torch.qscheme)
    seen: set[int] = set()
    todo: list[tuple[_KeyPath | None, int, Any]] = [(None, 0, tree)]
    while todo:
        trail, depth, node = todo.pop()
        if isinstance(node, torch.Tensor):
            name = _name_of_keys(trail)
            if name is None:
                odd("", node)
            yield name or "", node
            continue
        if type(node) in plain or isinstance(node, _KNOWN) or id(node) in seen:
            continue
        seen.add(id(node))
        kept = getattr(node, "__dict__", {}) if type(node) in _MAPPINGS else {}
        if any(not isinstance(name, str) or hasattr(type(node), name) for name in kept):
            refuse(
                f"a value of the type {type(node).__name__} with a state of its own: {', '.join(map(str, kept))[:80]}",
                path,
            )
        if type(node) in _MAPPINGS:
            inner = list(node.items())
        elif type(node) in (list, tuple):
            inner = list(enumerate(node))
        else:
            inner = []
        keys = node if type(node) in (*_MAPPINGS, set) else ()
        # Hashed values that torch.save writes are text and numbers, alone or in tuples.
        is_odd = type(node) not in (*_MAPPINGS, list, tuple, set) or depth > _DEPTH_LIMIT
        if is_odd or not all(type(part) in plain for key in keys for part in (key if type(key) is tuple else (key,))):
            inner += odd(_name_of_keys(trail) or "", node).items()
        todo.extend(((trail, key), depth + 1, value) for key, value in (*inner, *kept.items()))


def _name_of_keys(trail: _KeyPath | None) -> str | None:
    """The keys that lead to a tensor, as its name; ``None`` for one that is too long."""
    keys: list[str] = []
    length = 0
    while trail is not None:
        trail, key = trail
        keys.append(str(key))
        length += 1 + len(keys[-1])
        # A long key is written once, and may be meant in every name.
        if length > _NAME_LIMIT:
            return None
    # Empty keys at the beginning give no dot; a key may begin with one.
    while keys and not keys[-1]:
        keys.pop()
    return ".".join(reversed(keys))


def replace(node: Any, new: Mapping[int, torch.Tensor], made: dict[int, Any]) -> Any:
    """The tree with the new tensors; lists and dictionaries are changed in place. ``made`` keeps shared objects shared.

    Raises:
        RecursionError: it is nested too deep, or contains itself.
    """
    kind = type(node)
    if id(node) in new:
        return new[id(node)]
    if kind not in (*_MAPPINGS, list, tuple):
        return node
    if id(node) in made:
        found = made[id(node)]
        if found is _UNFINISHED:
            raise RecursionError
        return found[1]
    made[id(node)] = _UNFINISHED
    result = node
    if kind is list:
        node[:] = [replace(item, new, made) for item in node]
    elif kind is tuple:
        result = tuple(replace(item, new, made) for item in node)
    else:
        for key in node:
            node[key] = replace(node[key], new, made)
        for name, kept in getattr(node, "__dict__", {}).items():
            setattr(node, name, replace(kept, new, made))
    made[id(node)] = (node, result)  # the node is kept: its id must not be used again meanwhile
    return result


_UNFINISHED: Final = object()
