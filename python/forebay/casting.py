"""Which dtype each tensor shall have."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .errors import InvalidInputError

if TYPE_CHECKING:
    from .frameworks import Framework

__all__ = ["Cast", "cast_for"]

#: The dtype that a tensor of this name and dtype shall have.
Cast = Callable[[str, str], str]

#: Dtypes that a dtype for the whole file applies to.
_FLOATS = frozenset(
    {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}
    | {"float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz"}
)


def cast_for(framework: Framework, dtype: Any) -> Cast | None:
    """The user's ``dtype`` for each tensor: a dtype for all floating-point tensors, or a function of the
    name.

    Raises:
        InvalidInputError: the framework knows no such dtype.
    """
    if dtype is None:
        return None
    whole = framework.dtype_name(dtype)
    if whole is not None:
        if whole not in _FLOATS:
            raise InvalidInputError(
                "one dtype for a whole file has to be a floating-point one",
                hints=["a function of the name casts single tensors: dtype=lambda name: …"],
                dtype=whole,
            )
        return lambda name, present: whole if present in _FLOATS else present
    # A type is callable, but it is no function of a name.
    if not callable(dtype) or isinstance(dtype, type):
        raise _unknown_dtype(framework, dtype)

    def by_name(name: str, present: str) -> str:
        wanted = dtype(name)
        if wanted is None:
            return present
        found = framework.dtype_name(wanted)
        if found is None:
            raise _unknown_dtype(framework, wanted)
        return found

    return by_name


def _unknown_dtype(framework: Framework, dtype: object) -> InvalidInputError:
    return InvalidInputError(
        f"unknown dtype: {dtype!r}", hints=['"F32", "BF16", … or the framework\'s own'], framework=framework.name
    )
