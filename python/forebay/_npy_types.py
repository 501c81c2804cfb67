"""numpy's names of element types, as ``.npy`` files have them, beside safetensors'."""

from __future__ import annotations

from typing import Any

from .errors import InvalidInputError, UnsupportedError
from .frameworks import Framework, _dtypes

__all__ = ["DESCR_OF", "dtype_of_descr", "dtype_text", "numpy_dtype_of_descr", "transposed"]

#: What a file says for each of safetensors' types.
DESCR_OF = {
    "BOOL": "|b1",
    "U8": "|u1",
    "I8": "|i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
    "C64": "<c8",
    # numpy has none of these; ml_dtypes, which adds them, lets it write them as bytes of their width.
    "BF16": "<V2",
    "F8_E4M3": "|V1",
    "F8_E5M2": "|V1",
    "F8_E4M3FNUZ": "|V1",
    "F8_E5M2FNUZ": "|V1",
    "F8_E8M0": "|V1",
}
_PLAIN = {descr[1:]: name for name, descr in DESCR_OF.items() if descr[1] != "V"}


def dtype_of_descr(descr: str, asked: str | None) -> str | None:
    """safetensors' name of a file's element type, ``None`` where it has none.

    Args:
        descr: as in the file's header: ``"<f4"``.
        asked: what the user says that bytes without a type (``"<V2"``) are.

    Raises:
        InvalidInputError: ``asked`` is no type, or the file has a type of its own and it is another.
    """
    name = _PLAIN.get(descr[1:]) if descr[:1] in ("<", "|", "=") else None
    if asked is None:
        return name
    wanted = _dtypes.name_of(asked)
    if wanted is None or wanted not in DESCR_OF:
        raise InvalidInputError(f"unknown dtype: {asked!r}", hints=['dtype="bfloat16", "float8_e4m3fn", …'])
    if name == wanted or (name is None and descr[1:] == "V" + DESCR_OF[wanted][2:]):
        return wanted
    raise InvalidInputError(
        f"the file's elements are {descr}, not {wanted}",
        hints=["leave dtype away, and convert the array that comes back"],
    )


def dtype_text(dtype: Any) -> str:
    """The name of a dtype that is no text: numpy's, torch's or jax's own, or a type of Python's.

    Raises:
        InvalidInputError: it is none, or one that no array has.
    """
    text = str(dtype)
    if text.startswith("torch."):
        return text.removeprefix("torch.")
    try:
        name = _dtypes.name_of(dtype)
    except ImportError:
        name = None
    if name is None:
        raise InvalidInputError(f"unknown dtype: {dtype!r}", hints=['give its name: "float32", "bfloat16", "int64", …'])
    return name


def numpy_dtype_of_descr(descr: str, facts: dict[str, Any]) -> Any:
    """numpy's own dtype for what a header says, also for texts, times and other byte orders.

    Raises:
        UnsupportedError: this numpy has no such type.
    """
    import numpy

    try:
        return numpy.dtype(descr)
    except (TypeError, ValueError) as error:
        raise UnsupportedError(f"numpy has no dtype for {descr}: {error}", **facts) from None


def transposed(framework: Framework, array: Any) -> Any:
    """The array with its dimensions turned around; a view, but for jax."""
    if framework.name == "torch":
        return array.permute(*reversed(range(array.dim())))
    return array.transpose()
