"""The table of element types, of which the native module holds the rows: what formats and libraries call them.

Types go by safetensors' names (``"F32"``); those that safetensors has not got go by numpy's (``"complex128"``).
"""

from __future__ import annotations

import importlib
from typing import Any

from .. import _forebay

_ROWS = _forebay.dtypes()
#: Names of numpy's own dtypes.
PLAIN = {name: numpy for name, _, numpy, _, descr, _ in _ROWS if numpy and descr[1] != "V"}
#: Names of the dtypes that the package ml_dtypes adds.
EXTRA = {name: numpy for name, _, numpy, _, descr, _ in _ROWS if numpy and descr[1] == "V"}
#: Those of them with less than 8 bits, which ml_dtypes keeps in a byte each: jax and DLPack would pack them.
UNPACKED = frozenset(name for name, bits, numpy, _, _, has_code in _ROWS if numpy and bits == 8 and not has_code)
#: torch's names.
TORCH = {name: torch for name, _, _, torch, _, _ in _ROWS if torch}
#: How ``.npy`` files say it.
DESCR = {name: descr for name, _, _, _, descr, _ in _ROWS if descr}
#: The dtypes of safetensors files.
STORABLE = frozenset(name for name, *_ in _ROWS if name.isupper())
#: Our name for each name that users or numpy have for it.
NAMES = {theirs: ours for ours, theirs in (PLAIN | EXTRA).items()}
_all_names = {
    **{text: name for name in PLAIN for text in (DESCR[name], DESCR[name][1:])},
    **NAMES,
    **{ours: ours for ours in NAMES.values()},
}
_found: dict[str, Any] = {}


def numpy_dtype(name: str) -> Any:
    """numpy's dtype for a name of ours; ``None`` where numpy, with ml_dtypes if it is installed, has none."""
    import numpy

    found = _found.get(name)
    if found is None:
        if name in PLAIN:
            found = numpy.dtype(PLAIN[name])
        elif name in EXTRA:
            found = _extra(EXTRA[name])
        if found is not None:
            _found[name] = found
    return found


def _extra(name: str) -> Any:
    import numpy

    try:
        scalar = getattr(importlib.import_module("ml_dtypes"), name, None)
    except ImportError:
        return None
    return None if scalar is None else numpy.dtype(scalar)


def hints(name: str) -> list[str]:
    """The hint for a tensor of a dtype that a framework lacks."""
    if name in PLAIN or name in EXTRA:
        return ['framework="native" has it']
    if name in TORCH:
        return ['framework="torch" has it']
    return ["read its bytes: forebay.open(path).read_into(array, offset)"]


def name_of(dtype: Any) -> str | None:
    """Our name of what names a dtype: ``"F32"``, ``"float32"``, ``"<f4"``, ``numpy.float32``, a dtype of numpy or torch."""
    if isinstance(dtype, str):
        return _all_names.get(dtype.removeprefix("numpy.").removeprefix("torch."))
    if type(dtype).__module__ == "torch":
        return _all_names.get(str(dtype).removeprefix("torch."))
    import numpy

    try:
        return NAMES.get(numpy.dtype(dtype).name)
    except TypeError:
        return None
