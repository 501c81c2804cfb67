"""Errors of loading. Imported only when there is one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import _forebay
from .errors import BusyError, DeviceOutOfMemoryError, Error, InternalError, InvalidInputError, OutOfMemoryError

if TYPE_CHECKING:
    from .frameworks import Framework
    from .loading import Entry
    from .placement import Device

__all__ = [
    "another",
    "changed",
    "check_names",
    "missing_name",
    "no_path",
    "no_room",
    "room_hints",
    "shared",
    "wrong_size",
]


def another(path: str) -> BusyError:
    """The path names another file by now, or the file is in another state."""
    return BusyError("the file was replaced or changed since it was opened", hints=["open it anew"], path=path)


def changed(path: str) -> BusyError:
    """The file is in another state by now."""
    return BusyError(
        "the file changed while it was read: nothing of it can be trusted",
        hints=["load it again when nobody writes it; write with save_file, which replaces whole files"],
        path=path,
    )


def no_path(given: Any) -> InvalidInputError:
    """Names the wrong argument, and the right one."""
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
    if "://" in (text := str(given)):
        # Of a library for objects in stores.
        _forebay.check_place(text, False)
    return InvalidInputError("paths are strings or path objects", hints=["give a path"], got=type(given).__name__)


def missing_name(name: str, present: Iterable[object], **context: Any) -> InvalidInputError:
    """A file does not have a tensor."""
    import difflib

    known = [one for one in present if isinstance(one, str)]
    close = difflib.get_close_matches(str(name), known, 3) or sorted(known)[:3]
    hints = [f"there is {', '.join(map(repr, close))}"] if close else []
    return InvalidInputError("the file has no tensor of this name", hints=hints, tensor=name, **context)


def check_names(names: Any) -> None:
    """Raises InvalidInputError for names that are no list of them: a text would be taken letter by letter."""
    if isinstance(names, str):
        raise InvalidInputError("names is a list of names, not a name", hints=[f"names=[{names!r}]"])
    if not callable(names) and not isinstance(names, Iterable):
        raise InvalidInputError(f"names cannot be {names!r}", hints=["names=[NAME, …], or a function of a name"])


def no_room(
    framework: Framework, reason: Exception, entry: Entry, device: Device, needed: int, loaded: int
) -> Error | None:
    """A framework could not make a tensor, for a ``reason`` that it gave; ``None`` if the reason says it all."""
    name, dtype, shape, _, _ = entry
    if framework.is_out_of_memory(reason):
        free = framework.free_bytes(device)
        kind = OutOfMemoryError if device.gpu is None else DeviceOutOfMemoryError
        facts: dict[str, Any] = {} if free is None else {"free": f"{free / 1e9:.2f} GB"}
        return kind(
            f"not enough memory on {device} for the tensors",
            hints=room_hints(device.gpu is not None, "layer.0."),
            needed=f"{needed / 1e9:.2f} GB",
            loaded=f"{loaded / 1e9:.2f} GB",
            **facts,
            tensor=name,
        )
    if isinstance(reason, Error):
        return None
    if isinstance(reason, (OverflowError, ValueError, TypeError)):
        return InvalidInputError(
            f"{framework.name} cannot make such a tensor: {reason}", tensor=name, dtype=dtype, shape=list(shape)
        )
    return None


def room_hints(on_gpu: bool, prefix: str) -> list[str]:
    """Hints for tensors that do not fit into the memory of a GPU, or of the host."""
    if not on_gpu:
        return ["load only some: names=[…]", "free -g shows what is available"]
    return [f'spread them over devices: device={{"{prefix}": "cuda:0", "": "cpu"}}', "or load only some: names=[…]"]


def wrong_size(entry: Entry, nbytes: int) -> InvalidInputError:
    """A framework's tensor does not have the bytes that the file has for it."""
    return InvalidInputError(
        "the framework's tensor has another size than the file's",
        tensor=entry[0],
        dtype=entry[1],
        shape=list(entry[2]),
        bytes=nbytes,
        wanted=entry[4],
    )


def shared(framework: Framework, entry: Entry) -> InternalError:
    """A framework gave the same memory to two tensors."""
    return InternalError(f"{framework.name} gave the same memory to two arrays", tensor=entry[0])
