"""Errors, by meaning.

Every error of forebay is an :class:`Error` and also the built-in exception that says the same, so that
``except FileNotFoundError`` works as ever. :attr:`Error.hints` says what to type; the hints are also notes of the
exception, so that a traceback shows them.
"""

from __future__ import annotations

import errno as _errno
from collections.abc import Sequence

__all__ = [
    "AlreadyExistsError",
    "BusyError",
    "CancelledError",
    "DeviceLostError",
    "DeviceOutOfMemoryError",
    "DriverMissingError",
    "Error",
    "IOFailedError",
    "IntegrityError",
    "InternalError",
    "InvalidInputError",
    "IsDirectoryError",
    "MissingPackageError",
    "NoSpaceError",
    "NotFoundError",
    "OperationTimeoutError",
    "OutOfMemoryError",
    "PermissionDeniedError",
    "ReadOnlyError",
    "ShortReadError",
    "StrictError",
    "TooManyFilesError",
    "UnsupportedError",
]


class Error(Exception):
    """An error of forebay.

    Args:
        message: a lower-case phrase without a full stop.
        hints: what to type or to change.
        errno: the system's number, for errors that are an :class:`OSError`.
        context: facts, shown behind the message as ``(key=value, …)``.
    """

    #: The kind by meaning, as Rust's ``ErrorKind`` names it.
    kind: str = "Error"
    _errno: int | None = None

    def __init__(
        self, message: str, /, *, hints: Sequence[str] = (), errno: int | None = None, **context: object
    ) -> None:
        self.message = message
        self.context = context
        self.hints = list(hints)
        facts = ", ".join(f"{key}={value}" for key, value in context.items())
        self._text = f"{message} ({facts})" if facts else message
        super().__init__(self._text)
        if isinstance(self, OSError):
            _fill(self, errno if errno is not None else self._errno, context.get("path", context.get("file")))
        for hint in self.hints:
            self.add_note(f"hint: {hint}")

    def about(self, **context: object) -> Error:
        """The same error with more facts."""
        return _rebuild(type(self), self.message, self.hints, getattr(self, "errno", None), {**self.context, **context})

    def add_hint(self, hint: str) -> None:
        """One more thing to type or to change."""
        self.hints.append(hint)
        self.add_note(f"hint: {hint}")

    def __str__(self) -> str:
        return self._text

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.hints, getattr(self, "errno", None), self.context)


def _fill(error: OSError, number: int | None, path: object) -> None:
    error.errno = number
    error.filename = None if path is None else str(path)


def _rebuild(kind: type[Error], message: str, hints: list[str], errno: int | None, context: dict[str, object]) -> Error:
    return kind(message, hints=hints, errno=errno, **context)


class NotFoundError(Error, FileNotFoundError):
    """The file, device or other named thing does not exist."""

    kind = "NotFound"
    _errno = _errno.ENOENT


class PermissionDeniedError(Error, PermissionError):
    """The operating system forbids it to this user."""

    kind = "PermissionDenied"
    _errno = _errno.EACCES


class ReadOnlyError(Error, OSError):
    """The file system is mounted read-only."""

    kind = "ReadOnly"
    _errno = _errno.EROFS


class IsDirectoryError(Error, IsADirectoryError):
    """A directory where a file is needed."""

    kind = "IsDirectory"
    _errno = _errno.EISDIR


class AlreadyExistsError(Error, FileExistsError):
    """The thing exists already."""

    kind = "AlreadyExists"
    _errno = _errno.EEXIST


class InvalidInputError(Error, ValueError):
    """An argument or a file's content is wrong."""

    kind = "InvalidInput"


class UnsupportedError(Error, NotImplementedError):
    """This machine, kernel, driver, file system or framework cannot do it."""

    kind = "Unsupported"


class MissingPackageError(UnsupportedError, ImportError):
    """A Python package that is needed is not installed; also an :class:`ImportError`."""

    kind = "MissingPackage"


class ShortReadError(Error, EOFError):
    """The file ended before the asked number of bytes."""

    kind = "ShortRead"


class NoSpaceError(Error, OSError):
    """The file system is full, or a quota or a size limit is reached."""

    kind = "NoSpace"
    _errno = _errno.ENOSPC


class OutOfMemoryError(Error, MemoryError):
    """Host memory, or the memory that may be locked, is used up."""

    kind = "OutOfMemory"


class TooManyFilesError(Error, OSError):
    """The limit of open files is reached: the process's, or the machine's."""

    kind = "TooManyFiles"
    _errno = _errno.EMFILE


class DeviceOutOfMemoryError(Error, MemoryError):
    """The device's memory is used up."""

    kind = "DeviceOutOfMemory"


class DeviceLostError(Error, RuntimeError):
    """The device is gone or its context is broken."""

    kind = "DeviceLost"


class DriverMissingError(Error, RuntimeError):
    """The GPU driver's library is missing or too old."""

    kind = "DriverMissing"


class StrictError(Error, RuntimeError):
    """A strict set of engines leaves none that works."""

    kind = "Strict"


class IntegrityError(Error, ValueError):
    """Bytes differ from the expected ones, or a file's content is invalid."""

    kind = "Corrupt"

    @property
    def tensor(self) -> str | None:
        """The name of the tensor that it is about."""
        name = self.context.get("tensor")
        return None if name is None else str(name)


class BusyError(Error, OSError):
    """In use by something else, or changed while it was used."""

    kind = "Busy"
    _errno = _errno.EBUSY


class CancelledError(Error, RuntimeError):
    """Given up before it was done."""

    kind = "Cancelled"


class OperationTimeoutError(Error, TimeoutError):
    """Nothing happened within the time allowed."""

    kind = "Timeout"
    _errno = _errno.ETIMEDOUT


class IOFailedError(Error, OSError):
    """The storage or the device failed."""

    kind = "Io"
    _errno = _errno.EIO


class InternalError(Error, RuntimeError):
    """A broken promise inside forebay: please report it."""

    kind = "Internal"


_BY_KIND: dict[str, type[Error]] = {
    found.kind: found for found in list(globals().values()) if isinstance(found, type) and issubclass(found, Error)
}


def from_native(kind: str, message: str, errno: int | None, context: dict[str, object], hints: list[str]) -> Error:
    """The exception for an error of the native half."""
    return _BY_KIND.get(kind, InternalError)(message, hints=hints, errno=errno, **context)
