"""Checkpoints of PyTorch programs.

- :func:`save`, :func:`load`, :func:`save_async`: a nested state in one file, without pickle, readable by safetensors.
- :class:`CheckpointWriter`, :class:`CheckpointReader`: storages for :mod:`torch.distributed.checkpoint`.
- :func:`weights`: a checkpoint whose tensors are read where, when and as far as they are used.
- :class:`DeviceStager`: a snapshot on the device for ``torch.distributed.checkpoint.async_save``.

Files that ``torch.save`` wrote are loaded by :func:`forebay.load_file` (nested ones: :func:`forebay.pickles.load`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import MissingPackageError

try:
    import torch as _torch  # noqa: F401  (here, so that the error names it if it is missing)
except ImportError as _error:
    if _error.name != "torch":
        raise
    raise MissingPackageError("forebay.torch needs PyTorch", hints=["pip install torch"]) from None

from ._saves import SaveTask, save, save_async
from ._state import load

if TYPE_CHECKING:
    from ._reader import CheckpointReader
    from ._stager import DeviceStager
    from ._weights import Weights, weights
    from ._weights_tensor import Weight
    from ._writer import CheckpointWriter

__all__ = [
    "CheckpointReader",
    "CheckpointWriter",
    "DeviceStager",
    "SaveTask",
    "Weight",
    "Weights",
    "load",
    "save",
    "save_async",
    "weights",
]

#: Imported by the first use of these: torch.distributed.checkpoint takes a while.
_LAZY = {
    "CheckpointReader": "_reader",
    "CheckpointWriter": "_writer",
    "DeviceStager": "_stager",
    "Weight": "_weights_tensor",
    "Weights": "_weights",
    "weights": "_weights",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        import importlib

        value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
