"""The files of a data set: what they were when it was opened, and whether they still are."""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import stat
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from .. import _forebay, errors
from .._paths import home, path_text
from ..errors import BusyError, InvalidInputError

__all__ = ["FileSet", "bounded", "chosen", "index_in", "read_json", "read_start", "text_paths"]

#: A longer file is no index of a data set.
_MAX_INDEX_BYTES = 1 << 30
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


def text_paths(given: Any) -> list[str]:
    """One path or several, as texts.

    Raises:
        InvalidInputError: none at all, or something that is no path.
    """
    # An open file is iterable, too: over its lines.
    if isinstance(given, (str, bytes, os.PathLike)) or hasattr(given, "read") or not isinstance(given, Iterable):
        return [path_text(given)]
    paths = [path_text(path) for path in given]
    if not paths:
        raise InvalidInputError("a data set of no files", hints=["give one path or more"])
    return paths


def index_in(folder: Any) -> tuple[str, str]:
    """A folder's path and that of its ``index.json``, which may be given in its place."""
    given = path_text(folder, by_url=False)
    home, name = os.path.split(given)
    return (home, given) if name == "index.json" else (given, os.path.join(given, "index.json"))


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
                self._native = os.getpid(), _forebay.Files(told)
            return self._native[1]

    def check(self) -> None:
        """Raises :class:`~forebay.BusyError` if a file is not what it was; NotFoundError if it is gone."""
        for number, path in enumerate(self.paths):
            state, mark = _state(path)
            # Copies that keep the time of change are other files, too. By both marks: some file systems give a file another
            # number each time that they look it up, and a change of its rights alone is none.
            marks = self._marks
            is_other = marks is not None and all(now != then for now, then in zip(mark, marks[number], strict=True))
            if is_other or state != self.states[number]:
                raise BusyError(
                    "the file changed since the data set was opened", hints=["open the data set anew"], path=path
                )

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
        found = os.stat(path)
    except (OSError, ValueError) as error:
        raise failed(error, path) from None
    if stat.S_ISDIR(found.st_mode):
        hints = ["name the files in it: sorted(pathlib.Path(folder).glob(...))"]
        raise errors.IsDirectoryError("cannot read file: it is a directory", hints=hints, path=path)
    if not stat.S_ISREG(found.st_mode):
        raise InvalidInputError("cannot read file: it is no regular file", hints=["copy it to one first"], path=path)
    return (found.st_size, found.st_mtime_ns), (found.st_ino, found.st_ctime_ns)


def chosen(columns: Any, names: Iterable[str], path: str) -> list[str]:
    """The columns to read: those that are given, by default all.

    Raises:
        InvalidInputError: none, or one that there is not.
    """
    known = list(names)
    if columns is not None and not isinstance(columns, Iterable):
        raise InvalidInputError(f"columns cannot be {columns!r}", hints=["columns=[NAME, …]"], path=path)
    wanted = known if columns is None else [columns] if isinstance(columns, str) else list(columns)
    hints = [f"columns: {', '.join(known)}"]
    present = set(known)
    for name in wanted:
        if name not in present:
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


def read_start(path: str, offset: int, size: int, hints: Sequence[str] = ()) -> bytes:
    """``size`` bytes of a file. ``hints`` are for one that cannot be read.

    Raises:
        InvalidInputError: it ends before.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            if offset + size > os.fstat(file.fileno()).st_size:
                raise _truncated(path)
            found = b""
            while len(found) < size:
                more = os.pread(file.fileno(), size - len(found), offset + len(found))
                if not more:
                    raise _truncated(path)
                found += more
            return found
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise failed(error, path, hints) from None


def _truncated(path: str) -> InvalidInputError:
    return InvalidInputError("the file ends within its own table", hints=["it is truncated: copy it again"], path=path)


def read_json(path: str) -> dict[str, Any]:
    """An index in JSON.

    Raises:
        InvalidInputError: it is none, or too long to be one.
    """
    import json

    try:
        size = os.stat(path).st_size
        bounded(size, _MAX_INDEX_BYTES, "the bytes of an index", path)
        with open(path, "rb") as file:
            found = json.loads(file.read(_MAX_INDEX_BYTES))
    except OSError as error:
        raise failed(error, path, ["give the folder that index.json and its files lie in"]) from None
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"the index is no JSON: {error}", path=path) from None
    if not isinstance(found, dict):
        raise InvalidInputError("the index is no JSON object", path=path)
    return found
