"""A nested state as JSON, with its tensors apart."""

from __future__ import annotations

import base64
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from .. import errors
from ..frameworks.torch import is_unread
from ._memory import dtype_called, dtype_name

_DEPTH_LIMIT: Final = 200

Named = list[tuple[str, torch.Tensor]]


class Flattener:
    """Takes a state apart. One object in two places stays one.

    Attributes:
        named: the tensors in the order in which they were met, each with its path.
    """

    def __init__(self) -> None:
        self.named: Named = []
        self._places: dict[int, int] = {}

    def tree(self, value: Any, path: str = "", depth: int = 0) -> Any:
        """The JSON form of ``value``.

        Raises:
            UnsupportedError: it holds something that is neither a tensor nor plain data; the message says where.
            InvalidInputError: it is nested too deep, or contains itself.
        """
        if value is None or type(value) in (bool, int, str):
            return value
        if depth > _DEPTH_LIMIT:
            raise errors.InvalidInputError("the state is nested too deep, or contains itself", at=path[:80])
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if is_unread(value):
            value = dict(value)
        kind = type(value)
        if kind is list:
            return self._items(value, path, depth)
        if kind in (tuple, torch.Size):
            return {"size" if kind is torch.Size else "tuple": self._items(value, path, depth)}
        if kind is dict:
            if all(type(key) is str for key in value):
                return {"dict": {key: self.tree(item, _join(path, key), depth + 1) for key, item in value.items()}}
            return {"pairs": self._pairs(value, path, depth)}
        if kind is OrderedDict:
            told = {"ordered": self._pairs(value, path, depth)}
            if "_metadata" in value.__dict__:
                told["metadata"] = self.tree(value.__dict__["_metadata"], _join(path, "_metadata"), depth + 1)
            return told
        return _scalar(value, path)

    def _items(self, value: Sequence[Any], path: str, depth: int) -> list[Any]:
        return [self.tree(item, _join(path, str(at)), depth + 1) for at, item in enumerate(value)]

    def _pairs(self, value: dict[Any, Any], path: str, depth: int) -> list[list[Any]]:
        told = []
        for key, item in value.items():
            parts = key if type(key) is tuple else (key,)
            if not all(part is None or type(part) in (bool, int, float, str) for part in parts):
                raise _unsupported(key, _join(path, "key"))
            told.append([self.tree(key, path, depth + 1), self.tree(item, _join(path, str(key)), depth + 1)])
        return told

    def _tensor(self, tensor: torch.Tensor, path: str) -> dict[str, Any]:
        place = self._places.get(id(tensor))
        if place is None:
            place = self._places[id(tensor)] = len(self.named)
            self.named.append((path, tensor))
        told: dict[str, Any] = {"tensor": place}
        if isinstance(tensor, torch.nn.Parameter):
            told["parameter"] = tensor.requires_grad
        elif tensor.requires_grad and tensor.is_leaf:
            told["grad"] = True
        return told


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _scalar(value: Any, path: str) -> Any:
    kind = type(value)
    if kind is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if kind is complex:
        return {"complex": [_scalar(value.real, path), _scalar(value.imag, path)]}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if kind is set and all(type(item) in (bool, int, float, str) for item in value):
        return {"set": [_scalar(item, path) if type(item) is float else item for item in value]}
    if kind is torch.dtype:
        return {"dtype": dtype_name(value)}
    if kind is torch.device:
        return {"device": str(value)}
    raise _unsupported(value, path)


def _unsupported(value: Any, path: str) -> errors.UnsupportedError:
    hints = ["turn it into tensors, numbers, strings, lists, tuples and dictionaries first"]
    if type(value).__module__ == "numpy":
        hints = ["value.item() for a number, torch.from_numpy(value) for an array"]
    elif isinstance(value, dict):
        hints = ["dict(value)"]
    elif hasattr(value, "state_dict"):
        hints = ["value.state_dict()"]
    return errors.UnsupportedError(
        "the state holds something that is neither a tensor nor plain data", hints=hints,
        type=f"{type(value).__module__}.{type(value).__qualname__}", at=path[:200],
    )  # fmt: skip


def rebuild(node: Any, tensor: Callable[[int], torch.Tensor]) -> Any:
    """The value behind a JSON form.

    Raises:
        IntegrityError: it is none that :class:`Flattener` makes.
    """
    try:
        return _rebuild(node, tensor)
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, RecursionError, RuntimeError) as reason:
        if isinstance(reason, errors.Error):
            raise
        raise errors.IntegrityError("the checkpoint's description is damaged") from reason


def _rebuild(node: Any, tensor: Callable[[int], torch.Tensor]) -> Any:
    if type(node) is list:
        return [_rebuild(item, tensor) for item in node]
    if type(node) is not dict:
        return node
    if "tensor" in node:
        found = tensor(node["tensor"])
        if "parameter" in node:
            return torch.nn.Parameter(found, requires_grad=node["parameter"])
        return found.requires_grad_() if node.get("grad") else found
    if "ordered" in node:
        made = OrderedDict((_rebuild(key, tensor), _rebuild(item, tensor)) for key, item in node["ordered"])
        if "metadata" in node:
            made._metadata = _rebuild(node["metadata"], tensor)  # type: ignore[attr-defined]
        return made
    ((kind, value),) = node.items()
    if kind == "dict":
        return {key: _rebuild(item, tensor) for key, item in value.items()}
    if kind == "pairs":
        return {_rebuild(key, tensor): _rebuild(item, tensor) for key, item in value}
    if kind == "tuple":
        return tuple(_rebuild(item, tensor) for item in value)
    return _rebuild_scalar(kind, value)


def _rebuild_scalar(kind: str, value: Any) -> Any:
    if kind == "float":
        return float(value)
    if kind == "complex":
        return complex(*(float(part["float"] if type(part) is dict else part) for part in value))
    if kind == "bytes":
        return base64.b64decode(value, validate=True)
    if kind == "set":
        return {float(item["float"]) if type(item) is dict else item for item in value}
    if kind == "size":
        return torch.Size(value)
    if kind == "dtype":
        return dtype_called(value)
    if kind == "device":
        return torch.device(value)
    raise errors.IntegrityError("the checkpoint's description is damaged", unknown=kind[:40])
