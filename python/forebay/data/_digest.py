"""Digests of values in memory: what a loader's state knows of labels, and of places that a program gave."""

from __future__ import annotations

import hashlib
from array import array as packed_array
from collections.abc import Mapping, Sequence
from typing import Any

from ._jagged import Jagged
from ._memory import has_numpy

__all__ = ["digest_of"]

#: Elements that are turned into bytes at a time.
_PART = 1 << 20


def digest_of(*values: Any) -> str:
    """A digest of values. Equal numbers have the same one, whether they stand in a list or in an array of any framework,
    device and width. Of an object that is no text, number, sequence, mapping or array, type and length count alone.
    """
    digest = hashlib.sha256()
    for value in values:
        _feed(digest, value)
    return digest.hexdigest()[:32]


def _feed(digest: Any, value: Any) -> None:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        if getattr(value, "shape", None) == () and hasattr(value, "item"):
            _feed(digest, value.item())
        else:
            _feed_array(digest, value)
    elif isinstance(value, (bytes, bytearray, memoryview, str)):
        content = value.encode(errors="surrogatepass") if isinstance(value, str) else bytes(value)
        _mark(digest, "text" if isinstance(value, str) else "bytes", len(content))
        digest.update(content)
    elif isinstance(value, Mapping):
        _mark(digest, "mapping", len(value))
        for key, one in value.items():
            _feed(digest, key)
            _feed(digest, one)
    elif isinstance(value, Jagged):
        _feed(digest, value.values)
        _feed(digest, value.offsets)
    elif isinstance(value, packed_array) and value.typecode in "qQd":
        _mark(digest, value.typecode, [len(value)])
        digest.update(value.tobytes())
    elif isinstance(value, Sequence):
        _feed_sequence(digest, value)
    elif value is None or isinstance(value, (int, float, complex)):
        # A truth value counts as its number, as in an array.
        _mark(digest, "number", repr(value + 0 if value is not None else value))
    else:
        # To look at each of its values may be to read or compute it.
        about = len(value) if hasattr(value, "__len__") else ""
        _mark(digest, "object", f"{type(value).__qualname__} {about}")


def _mark(digest: Any, kind: str, about: Any) -> None:
    digest.update(f"{kind} {about}\n".encode())


def _feed_sequence(digest: Any, values: Any) -> None:
    kinds = set(map(type, values))
    if any(hasattr(kind, "dtype") for kind in kinds):
        # numpy's numbers count as Python's.
        values = [one.item() if getattr(one, "shape", None) == () else one for one in values]
        kinds = set(map(type, values))
    for kind, code in ((int, "q"), (float, "d")):
        if kinds and kinds <= {kind, bool}:
            try:
                packed = packed_array(code, values)
            except OverflowError:
                break
            _mark(digest, code, [len(packed)])
            digest.update(packed.tobytes())
            return
    _mark(digest, "list", [len(values)])
    for value in values:
        _feed(digest, value)


def _feed_array(digest: Any, array: Any) -> None:
    flat = _flat(array)
    code = {"b": "q", "i": "q", "u": "q", "f": "d", "c": "D"}.get(_kind(flat), "")
    if not code:
        _feed_other(digest, flat, array)
        return
    _mark(digest, code, [int(size) for size in array.shape])
    for start in range(0, len(flat), _PART):
        digest.update(_packed(flat[start : start + _PART], code))


def _flat(array: Any) -> Any:
    """One dimension of an array, in host memory."""
    home = type(array).__module__.split(".")[0]
    if home == "torch":
        return array.detach().cpu().reshape(-1)
    if home == "cupy":
        return array.get().reshape(-1)
    import numpy

    # forebay's own, jax's, and columns of tables.
    return numpy.asarray(array.numpy() if home == "forebay" else array).reshape(-1)


def _kind(flat: Any) -> str:
    if hasattr(flat, "detach"):
        return "f" if flat.is_floating_point() else "c" if flat.is_complex() else "i"
    kind = str(flat.dtype.kind)
    if kind != "V" or flat.dtype.names is not None:
        return kind
    # Narrow types of ml_dtypes are of no kind.
    return "f" if "float" in str(flat.dtype) else "i" if "int" in str(flat.dtype) else kind


def _packed(part: Any, code: str) -> bytes:
    """Elements as 64-bit ones, however wide they are."""
    if hasattr(part, "detach"):
        import torch

        part = part.to({"q": torch.int64, "d": torch.float64, "D": torch.complex128}[code])
        part = torch.view_as_real(part).reshape(-1) if code == "D" else part
        if has_numpy():
            return part.numpy().tobytes()
        return packed_array("q" if code == "q" else "d", part.tolist()).tobytes()
    import numpy

    wide = {"q": "<u8" if str(part.dtype) == "uint64" else "<i8", "d": "<f8", "D": "<c16"}[code]
    return numpy.asarray(part).astype(wide).tobytes()


def _feed_other(digest: Any, flat: Any, array: Any) -> None:
    """Texts, dates, structures, objects."""
    if _kind(flat) in ("U", "S", "O", "T"):
        _mark(digest, "list", [int(size) for size in array.shape])
        for value in flat.tolist():
            _feed(digest, value)
        return
    _mark(digest, str(flat.dtype), [int(size) for size in array.shape])
    digest.update(flat.tobytes())
