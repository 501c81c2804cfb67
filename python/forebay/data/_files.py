"""The files of a data set: what they were when it was opened, and whether they still are."""

from __future__ import annotations

import errno
import functools
import hashlib
import itertools
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, BinaryIO, NoReturn

from .. import _forebay, errors
from .._paths import home, path_text
from ..errors import BusyError, InvalidInputError

__all__ = [
    "FileSet",
    "again",
    "bounded",
    "chosen",
    "index_in",
    "opened",
    "read_json",
    "read_start",
]

#: A longer file is no index of a data set.
_MAX_INDEX_BYTES = 1 << 30
#: Seconds for which a file system that answers EAGAIN is asked again: the kernel ends another process's lease after 45.
_PATIENCE = 60.0
#: Files that are looked at by one call.
_LOOKS = 4096
#: Most columns that an error names.
_MAX_NAMED = 50
_ERROR_TYPES: dict[type[OSError], type[errors.Error]] = {
    FileNotFoundError: errors.NotFoundError,
    PermissionError: errors.PermissionDeniedError,
    IsADirectoryError: errors.IsDirectoryError,
}
# As the native half has them.
_HINTS = {
    errno.ENOENT: "check the path (ls -l) and the spelling",
    errno.EACCES: "check the file's mode and owner (ls -l), and the directories above it",
    errno.ENOTDIR: "check the path (ls -l): a file stands where it names a folder",
    errno.EMFILE: "raise the limit of open files: ulimit -n 65536",
    errno.ENFILE: "as root: sysctl -w fs.file-max=9223372036854775807",
}


def again(call: Callable[..., Any], *given: Any) -> Any:
    """What a system call answers. EAGAIN and EINTR are no answers of a file system: it is asked again."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return call(*given)
        except (BlockingIOError, InterruptedError):
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def index_in(folder: Any) -> tuple[str, str]:
    """A folder's path and that of its ``index.json``, which may be given in its place."""
    given = path_text(folder, by_url=False)
    parent, name = os.path.split(given)
    return (parent, given) if name == "index.json" else (given, os.path.join(given, "index.json"))


def failed(error: OSError | ValueError, path: str, hints: Sequence[str] = ()) -> errors.Error:
    """forebay's error for one of the system's, or for a path that cannot be one."""
    if not isinstance(error, OSError):
        return InvalidInputError(f"not a path: {error}", hints=["give a path without zero bytes"], path=path)
    text = f"cannot read file: {(error.strerror or str(error)).lower()}"
    known = [hint for number, hint in _HINTS.items() if number == error.errno]
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return errors.TooManyFilesError(text, hints=known, errno=error.errno, path=path)
    hints = hints or known
    kind = next((ours for theirs, ours in _ERROR_TYPES.items() if isinstance(error, theirs)), errors.IOFailedError)
    return kind(text, hints=hints, errno=error.errno, path=path)


class FileSet:
    """Files by their paths, with size and time of change as they were when this was made. It can be sent to other
    processes; each opens the files when it reads them first.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = [path_text(path, by_url=False) for path in paths]
        found = [_state(path) for path in self.paths]
        self.states = [state for state, _ in found]
        # Of this machine only: a copy elsewhere has others.
        self._home = home()
        self._marks: list[tuple[int, int]] | None = [mark for _, mark in found]
        self._native: tuple[int, _forebay.Files] | None = None
        self._lock = threading.Lock()

    def size(self, number: int) -> int:
        """Bytes of a file when this was made."""
        return self.states[number][0]

    def native(self) -> _forebay.Files:
        """The files for the native half. A forked child opens them anew."""
        with self._lock:
            if self._native is None or self._native[0] != os.getpid():
                told: list[Any] = [(path, *state) for path, state in zip(self.paths, self.states, strict=True)]
                self._native = os.getpid(), _forebay.Files(told, self._marks)
            return self._native[1]

    def check(self) -> None:
        """Raises :class:`~forebay.BusyError` if a file is not what it was; NotFoundError if it is gone."""
        native, start = self.native(), 0
        while start < len(self.paths):
            # Some at a time: signals are handled between.
            number = native.changed(start, _LOOKS)
            start += _LOOKS
            if number is not None:
                self._refuse(number)

    def _refuse(self, number: int) -> NoReturn:
        # Raises what is wrong with it now.
        _state(self.paths[number])
        raise BusyError(
            "the file changed since the data set was opened",
            hints=["open the data set anew"],
            path=self.paths[number],
        )

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(size for size, _ in self.states)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest of names, sizes and times of change."""
        digest = hashlib.sha256()
        for path, state in zip(self.paths, self.states, strict=True):
            digest.update(f"{os.path.basename(path)}\0{state[0]}\0{state[1]}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()[:32]

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self.paths, "states": self.states, "_marks": self._marks, "_home": self._home}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _native=None, _lock=threading.Lock())
        if self._home is None or self._home != home():
            self._marks = None


def _state(path: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Bytes and time of change of a file; and its marks: inode, and when that changed."""
    try:
        found = again(os.stat, path)
    except (OSError, ValueError) as error:
        raise failed(error, path) from None
    check_kind(found, path)
    return (found.st_size, found.st_mtime_ns), (found.st_ino, found.st_ctime_ns)


def check_kind(found: os.stat_result, path: str) -> None:
    """Raises where a file is no regular one."""
    if stat.S_ISDIR(found.st_mode):
        hints = ['name the files in it, or give a glob: "folder/*"']
        raise errors.IsDirectoryError("cannot read file: it is a directory", hints=hints, path=path)
    if not stat.S_ISREG(found.st_mode):
        raise InvalidInputError("cannot read file: it is no regular file", hints=["copy it to one first"], path=path)


def chosen(columns: Any, names: Iterable[str], path: str) -> list[str]:
    """The columns to read: those that are given, by default all.

    Raises:
        InvalidInputError: none, or one that there is not.
    """
    known = dict.fromkeys(names)
    if columns is not None and not isinstance(columns, Iterable):
        raise InvalidInputError(f"columns cannot be {columns!r}", hints=["columns=[NAME, …]"], path=path)
    wanted = list(known) if columns is None else [columns] if isinstance(columns, str) else list(columns)
    hints = [f"columns: {', '.join(itertools.islice(known, _MAX_NAMED))}{', …' if len(known) > _MAX_NAMED else ''}"]
    for name in wanted:
        if not isinstance(name, str) or name not in known:
            raise InvalidInputError(f"there is no column {name!r}", hints=hints, path=path)
    if not wanted:
        raise InvalidInputError("no columns to read", hints=hints, path=path)
    return wanted


def bounded(value: Any, most: int, what: str, path: str, least: int = 0) -> int:
    """A number out of a file that has to be an integer within bounds.

    Raises:
        InvalidInputError: it is not.
    """
    if type(value) is not int or not least <= value <= most:
        raise InvalidInputError(
            f"{what} cannot be {value!r}: it has to be a number from {least} to {most}",
            hints=["the file is damaged, or no such file"],
            path=path,
        )
    return value


def opened(path: str, hints: Sequence[str] = ()) -> BinaryIO:
    """A regular file, open. ``hints`` are for one that cannot be opened.

    Raises:
        InvalidInputError, IsDirectoryError: it is another kind of file. A pipe is not waited for.
        NotFoundError, …: it cannot be opened.
    """
    try:
        # Without O_NONBLOCK opening a pipe would wait for its other end.
        descriptor = again(os.open, path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        raise failed(error, path, hints) from None
    try:
        check_kind(os.fstat(descriptor), path)
        return os.fdopen(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def read_start(path: str, offset: int, size: int, hints: Sequence[str] = ()) -> bytes:
    """``size`` bytes of a file. ``hints`` are for one that is not there.

    Raises:
        InvalidInputError: it ends before.
    """
    with opened(path, hints) as file:
        if offset + size > os.fstat(file.fileno()).st_size:
            raise _truncated(path)
        return _read_at(file, offset, size, path)


def _read_at(file: BinaryIO, offset: int, size: int, path: str) -> bytes:
    parts, at = [], 0
    while at < size:
        try:
            part = again(os.pread, file.fileno(), size - at, offset + at)
        except OSError as error:
            raise failed(error, path) from None
        if not part:
            raise _truncated(path)
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _truncated(path: str) -> InvalidInputError:
    return InvalidInputError("the file ends within its own table", hints=["it is truncated: copy it again"], path=path)


def read_json(path: str) -> dict[str, Any]:
    """An index in JSON.

    Raises:
        InvalidInputError: it is none, or too long to be one.
    """
    import json

    with opened(path, ["give the folder that index.json and its files lie in"]) as file:
        size = os.fstat(file.fileno()).st_size
        bounded(size, _MAX_INDEX_BYTES, "the bytes of an index", path)
        text = _read_at(file, 0, size, path)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"the index is no JSON: {error}", path=path) from None
    if not isinstance(found, dict):
        raise InvalidInputError("the index is no JSON object", path=path)
    return found
