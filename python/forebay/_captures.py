"""CUDA graphs that other threads capture while this one loads.

A capture in the driver's default mode is broken by whatever any thread does meanwhile that could disturb it, such as
taking memory from the driver: frameworks' allocators do that when they run out of cached blocks. Calls of the engine
itself are guarded one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from ._forebay import exchange_capture_mode

__all__ = ["left_alone"]

#: The driver's number for a thread whose calls disturb nobody's capture.
_RELAXED: Final = 2

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def left_alone(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """The function, in which a framework may allocate without breaking what another thread captures."""

    @wraps(function)
    def relaxed(*args: _Arguments.args, **words: _Arguments.kwargs) -> _Result:
        before = exchange_capture_mode(_RELAXED)
        try:
            return function(*args, **words)
        finally:
            if before is not None:
                exchange_capture_mode(before)

    return relaxed
