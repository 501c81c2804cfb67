"""What callers give for a path."""

from __future__ import annotations

import os
from typing import Any

from .errors import InvalidInputError

__all__ = ["path_text"]

#: No path that the kernel takes is longer.
_LONGEST = 4096


def path_text(given: Any) -> str:
    """A path as text.

    Raises:
        InvalidInputError: an open file, bytes of a file, or something else that is no path.
    """
    try:
        path = os.fsdecode(os.fspath(given))
    except TypeError:
        raise _no_path(given) from None
    if isinstance(given, bytes) and (b"\0" in given or len(given) > _LONGEST):
        raise _no_path(given)
    return path


def _no_path(given: Any) -> InvalidInputError:
    """Says what is given in place of a path, and what to give."""
    if isinstance(given, (bytes, bytearray, memoryview)):
        return InvalidInputError(
            "these bytes are no path",
            hints=["give the path of their file; bytes in memory: safetensors.torch.load(data)"],
            bytes=len(given),
        )
    if hasattr(given, "read"):
        name = getattr(given, "name", None) or getattr(given, "path", None)
        if isinstance(name, (str, bytes)):
            return InvalidInputError(
                "an open file where a path is needed", hints=[f"give its path: {os.fsdecode(name)!r}"]
            )
        return InvalidInputError(
            "a stream in memory where a path is needed",
            hints=["give a path: write the bytes to a file first"],
            got=type(given).__name__,
        )
    return InvalidInputError("paths are strings or path objects", hints=["give a path"], got=type(given).__name__)
