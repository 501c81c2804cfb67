"""Nested states in one file: tensors as safetensors keeps them, all else as JSON in the header. No pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, Final

import torch

from .. import errors
from .._kinds import TORCH
from .._paths import path_text
from ..frameworks.torch import FRAMEWORK, is_unread
from ..loading import Loader, Source, total_bytes
from ..progress import Progress
from . import _layout, _tree
from ._layout import Blob, View
from ._memory import check_plain, dtype_called, dtype_name, nbytes, place, stored_dtype

TREE_KEY: Final = "forebay.tree"
_VERSION: Final = 1


def prepare(state: Any) -> tuple[list[Blob], dict[str, str]]:
    """Takes a state apart: blobs to write and the metadata that says how they belong together.

    Raises:
        UnsupportedError: the state holds what this format does not; the message says where.
    """
    flattener = _tree.Flattener()
    tree = flattener.tree(state)
    named = []
    for name, tensor in flattener.named:
        check_plain(tensor, name)
        named.append((name, tensor if is_unread(tensor) else tensor.detach().resolve_conj().resolve_neg()))
    blobs, views = _layout.plan(named)
    told = {"version": _VERSION, "tree": tree, "views": [_view_json(view, blobs[view.blob]) for view in views]}
    return blobs, {"format": "pt", TREE_KEY: json.dumps(told, separators=(",", ":"))}


def _view_json(view: View, blob: Blob) -> dict[str, Any]:
    if view.whole and stored_dtype(blob.dtype) is not None:
        return {"blob": blob.name}
    shape, stride = view.shape, view.stride
    if view.whole:  # a type that safetensors does not have: its bytes, seen as what they are
        shape = tuple(blob.source.shape)
        stride = torch.empty(shape, device="meta").stride()
    return {
        "blob": blob.name, "dtype": dtype_name(view.dtype), "at": view.offset, "shape": list(shape),
        "stride": list(stride),
    }  # fmt: skip


def load(
    path: str | os.PathLike[str],
    device: Any = None,
    *,
    verify: bool = False,
    progress: bool | Callable[[int, int], object] | None = None,
) -> Any:
    """Loads what :func:`forebay.torch.save` wrote.

    Args:
        path: the file.
        device: "cpu", "cuda:1", a number, or a mapping from beginnings of tensors' names to these ("" for all others).
            Default: the first GPU if there is one.
        verify: compare the checksums, on the device.
        progress: as for :func:`forebay.load_file`.

    Returns:
        The state, as it was given to :func:`forebay.torch.save`: tuples are tuples, numbers keep their type.

    Raises:
        InvalidInputError: the file was not written by :func:`forebay.torch.save`.
        IntegrityError: it is damaged.
    """
    text = path_text(path)
    source = _open(text)
    tree, views = _description(source)
    where = place(FRAMEWORK.default_device() if device is None else device)
    with Progress(total_bytes([source]), progress) as counter:
        loaded = Loader(FRAMEWORK, where, None, verify, counter.add).load([source])
    made: dict[int, torch.Tensor] = {}

    def tensor(at: int) -> torch.Tensor:
        if at not in made:
            made[at] = _open_view(views[at], loaded)
        return made[at]

    return _tree.rebuild(tree, tensor)


def _open(path: str) -> Source:
    try:
        return Source(path)
    except (errors.InvalidInputError, errors.IntegrityError) as error:
        if TORCH in error.message:
            raise errors.InvalidInputError(
                "torch.save wrote this file, not forebay.torch.save",
                hints=[f"forebay.pickles.load({path!r})"],
                path=path,
            ) from None
        raise


def _description(source: Source) -> tuple[Any, list[Any]]:
    text = (source.header.metadata or {}).get(TREE_KEY)
    if text is None:
        raise errors.InvalidInputError(
            "the file was not written by forebay.torch.save", hints=["forebay.load_file(path)"], path=source.path
        )
    try:
        told = json.loads(text)
        version, tree, views = told["version"], told["tree"], told["views"]
    except (ValueError, KeyError, TypeError, RecursionError) as reason:
        raise errors.IntegrityError("the checkpoint's description is damaged", path=source.path) from reason
    if version != _VERSION:
        raise errors.UnsupportedError(
            "the checkpoint was written by a newer forebay", hints=["pip install --upgrade forebay"], version=version,
            path=source.path,
        )  # fmt: skip
    return tree, views


def _open_view(told: dict[str, Any], loaded: dict[str, torch.Tensor]) -> torch.Tensor:
    blob = loaded[told["blob"]]
    if "dtype" not in told:
        return blob.detach()  # an alias: two entries of the state that shared memory stay two tensors
    dtype = dtype_called(told["dtype"])
    shape, stride, start = tuple(told["shape"]), tuple(told["stride"]), told["at"]
    if not all(type(n) is int and n >= 0 for n in (*shape, *stride, start)) or len(shape) != len(stride):
        raise errors.IntegrityError("the checkpoint's description is damaged", tensor=told["blob"])
    last = 0 if 0 in shape else 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    if start % dtype.itemsize or start + last * dtype.itemsize > nbytes(blob):
        raise errors.IntegrityError("a tensor reaches beyond its bytes", tensor=told["blob"])
    made = torch.empty(0, dtype=dtype, device=blob.device)
    made.set_(blob.untyped_storage(), start // dtype.itemsize, shape, stride)
    return made
