"""Moves bytes between storage and GPU memory on the shortest path the machine allows, and says which it was.

>>> import forebay
>>> tensors = forebay.load_file("model.safetensors", device="cuda:0")  # doctest: +SKIP

Nothing is imported here that the program did not import: frameworks are looked up when an array of theirs comes in,
or when they are asked for by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _platform

_platform.require()

from . import errors
from ._forebay import VERSION as __version__
from ._forebay import (
    Array,
    File,
    Future,
    Map,
    MapView,
    Receipt,
    device_count,
    device_name,
    empty,
    map,
    notes,
    open,
    trim,
)
from .errors import *  # noqa: F403 (all of them, as errors.__all__ has them)

if TYPE_CHECKING:
    from . import data as data
    from . import frameworks as frameworks
    from . import monai as monai
    from . import npy as npy
    from . import patch as patch
    from . import pickles as pickles
    from . import safetensors as safetensors
    from . import torch as torch
    from .lazy import safe_open
    from .npy import open_npy, open_npz, read_npy, read_npz, write_npy, write_npz
    from .patch import patch_safetensors, patched, unpatch_safetensors
    from .safetensors import load_file, save_file

#: Where the names live that are imported when they are first used.
_LAZY = {
    "load_file": "safetensors",
    "safe_open": "lazy",
    "save_file": "safetensors",
    "patch_safetensors": "patch",
    "patched": "patch",
    "unpatch_safetensors": "patch",
    "open_npy": "npy",
    "open_npz": "npy",
    "read_npy": "npy",
    "read_npz": "npy",
    "write_npy": "npy",
    "write_npz": "npy",
}
#: Submodules that can be named without importing them first.
_MODULES = ("data", "frameworks", "monai", "npy", "patch", "pickles", "safetensors", "torch")

__all__ = [
    "Array",
    "File",
    "Future",
    "Map",
    "MapView",
    "Receipt",
    "__version__",
    "device_count",
    "device_name",
    "empty",
    "errors",
    "load_file",
    "map",
    "notes",
    "open",
    "open_npy",
    "open_npz",
    "patch_safetensors",
    "patched",
    "read_npy",
    "read_npz",
    "safe_open",
    "save_file",
    "trim",
    "unpatch_safetensors",
    "write_npy",
    "write_npz",
]
__all__ += errors.__all__


def __getattr__(name: str) -> object:
    import importlib

    if name in _LAZY:
        value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
