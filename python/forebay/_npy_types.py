"""numpy's names of element types, as ``.npy`` files have them, beside safetensors'."""

from __future__ import annotations

from typing import Any

from .errors import InvalidInputError, UnsupportedError
from .frameworks import Framework, _dtypes

__all__ = [
    "DESCR_OF",
    "dtype_of_descr",
    "dtype_text",
    "hint_of_descr",
    "is_nameless",
    "numpy_dtype_of_descr",
    "transposed",
]

#: The descr of each type in a file.
DESCR_OF = _dtypes.DESCR
_PLAIN = {DESCR_OF[name][1:]: name for name in _dtypes.PLAIN}
#: The descr that numpy writes for types of ml_dtypes, and cannot read: float8_e5m2 alone has a name of its own.
_PLAIN["f1"] = "F8_E5M2"
_NAMELESS = "W"


def dtype_of_descr(descr: str, asked: str | None) -> str | None:
    """Our name of a file's element type, ``None`` where it has none.

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
    if wanted is None:
        raise InvalidInputError(f"unknown dtype: {asked!r}", hints=['dtype="bfloat16", "float8_e4m3fn", …'])
    if name == wanted or (is_nameless(descr) and descr[2:] == DESCR_OF[wanted][2:]):
        return wanted
    raise InvalidInputError(
        f"the file's elements are {descr}, not {wanted}",
        hints=["leave dtype away, and convert the array that comes back"],
    )


def is_nameless(descr: str) -> bool:
    """Whether a file says only how wide its elements are, so that ``dtype=`` has to say what they are."""
    return descr[1:2] in ("V", _NAMELESS)


def hint_of_descr(descr: str) -> list[str]:
    """Values of ``dtype=`` for a file that records only the width of its elements."""
    fits = [_dtypes.EXTRA[name] for name in _dtypes.EXTRA if DESCR_OF[name][2:] == descr[2:]]
    return [f"say what the elements are: dtype={' or '.join(map(repr, fits))}"] if is_nameless(descr) and fits else []


def dtype_text(dtype: Any) -> str:
    """The name of a dtype that is no text: numpy's, torch's or jax's own, or a type of Python's.

    Raises:
        InvalidInputError: it is none, or one that no array has.
    """
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
