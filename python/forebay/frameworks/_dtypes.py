"""safetensors' dtypes beside numpy's names, shared by the frameworks that speak numpy."""

from __future__ import annotations

import importlib
from typing import Any

#: Names of numpy's own dtypes.
PLAIN = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
}
#: Names of the dtypes that the package ml_dtypes adds.
EXTRA = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
#: safetensors' name for each name that users or numpy have for it.
NAMES = {theirs: ours for ours, theirs in (PLAIN | EXTRA).items()}
_all_names = {**NAMES, **{ours: ours for ours in NAMES.values()}}
_found: dict[str, Any] = {}


def numpy_dtype(name: str) -> Any:
    """numpy's dtype for a safetensors name; ``None`` where numpy, with ml_dtypes if it is installed, has none."""
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
    """What to do with a tensor of a dtype that a framework lacks."""
    if name in PLAIN or name in EXTRA:
        return ['framework="native" has it']
    if name == "F4":
        return ['framework="torch" has it']
    return ["read its bytes: forebay.open(path).read_into(array, offset)"]


def name_of(dtype: Any) -> str | None:
    """The safetensors name of what names a dtype: ``"F32"``, ``"float32"``, ``numpy.float32``, a numpy dtype."""
    if isinstance(dtype, str):
        return _all_names.get(dtype.removeprefix("numpy."))
    import numpy

    try:
        return NAMES.get(numpy.dtype(dtype).name)
    except TypeError:
        return None
