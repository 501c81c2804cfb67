"""Checkpoints of PyTorch programs.

- :func:`save`, :func:`load`, :func:`save_async`: a nested state in one file, without pickle, readable by safetensors.
- :class:`CheckpointWriter`, :class:`CheckpointReader`: storages for :mod:`torch.distributed.checkpoint`.
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
    from ._writer import CheckpointWriter

__all__ = ["CheckpointReader", "CheckpointWriter", "DeviceStager", "SaveTask", "load", "save", "save_async"]

#: torch.distributed.checkpoint takes a while to import: it is imported by the first use of these.
_LAZY = {"CheckpointReader": "_reader", "CheckpointWriter": "_writer", "DeviceStager": "_stager"}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        import importlib

        value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
