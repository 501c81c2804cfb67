"""Training data: records of files, read in batches straight to where they are used.

>>> import forebay.data, numpy, tempfile
>>> path = tempfile.mkdtemp() + "/a.bin"
>>> numpy.arange(40, dtype="int32").tofile(path)
>>> records = forebay.data.raw(path, "int32", 4, framework="numpy")
>>> records[[7, 0]]
array([[28, 29, 30, 31],
       [ 0,  1,  2,  3]], dtype=int32)
>>> sum(len(batch) for batch in forebay.data.Loader(records, batch_size=5))
10

A *source* (:func:`raw`, :func:`npy`, …) gives records by their numbers; a :class:`Loader` gives batches of them in a
random, resumable order, without worker processes. Sources work with torch's ``DataLoader``, too.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._jagged import Jagged
    from ._litdata import litdata
    from ._loader import Loader, LoaderStats
    from ._mds import mds
    from ._megatron import megatron
    from ._pack import pack, packed, verify
    from ._plain import npy, ranges, raw
    from ._records import Pending, Records, collate, zipped
    from ._tar import tar

_HOMES = {
    "Jagged": "_jagged",
    "Loader": "_loader",
    "LoaderStats": "_loader",
    "Pending": "_records",
    "Records": "_records",
    "collate": "_records",
    "litdata": "_litdata",
    "mds": "_mds",
    "megatron": "_megatron",
    "npy": "_plain",
    "pack": "_pack",
    "packed": "_pack",
    "ranges": "_plain",
    "raw": "_plain",
    "tar": "_tar",
    "verify": "_pack",
    "zipped": "_records",
}

__all__ = [
    "Jagged",
    "Loader",
    "LoaderStats",
    "Pending",
    "Records",
    "collate",
    "litdata",
    "mds",
    "megatron",
    "npy",
    "pack",
    "packed",
    "ranges",
    "raw",
    "tar",
    "verify",
    "zipped",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
