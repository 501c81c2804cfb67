"""The files of a data set: what they were when it was opened, and whether they still are."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from .. import _forebay, _locations
from .._locations import home
from .._paths import path_text
from ..errors import BusyError, InvalidInputError

__all__ = [
    "FileSet",
    "bounded",
    "chosen",
    "index_in",
    "read_json",
    "read_start",
]

#: A longer file is no index of a data set.
_MAX_INDEX_BYTES = 1 << 30
#: Files that are looked at by one call.
_LOOKS = 4096
#: Most columns that an error names.
_MAX_NAMED = 50


def index_in(folder: Any) -> tuple[str, str]:
    """A folder's path and that of its ``index.json``, which may be given in its place."""
    given = path_text(folder)
    if _locations.name_of(given) == "index.json":
        return _locations.parent(given), given
    return given, _locations.member(given, "index.json")


class FileSet:
    """Files by their paths, with size and time of change as they were when this was made. It can be sent to other
    processes; each opens the files when it reads them first.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = [path_text(path) for path in paths]
        found = list(_states(self.paths))
        self.states = [state for state, _ in found]
        if stateless := [path for path, (_, changed) in zip(self.paths, self.states, strict=True) if changed is None]:
            _locations.warn_stateless(stateless[0])
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
        list(_states([self.paths[number]]))
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
            digest.update(f"{_locations.name_of(path)}\0{state[0]}\0{state[1]}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()[:32]

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self.paths, "states": self.states, "_marks": self._marks, "_home": self._home}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _native=None, _lock=threading.Lock())
        if self._home is None or self._home != home():
            self._marks = None


def _states(paths: list[str]) -> Iterator[tuple[tuple[int, int | None], tuple[int, int]]]:
    """Bytes and time of change of each file; and its marks: inode, and when that changed."""
    for start in range(0, len(paths), _LOOKS):
        some = paths[start : start + _LOOKS]
        for path, found in zip(some, _locations.states(some), strict=True):
            _locations.check_file(found, path)
            yield (found.nbytes, found.changed), (found.inode, found.inode_changed)


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


def read_start(path: str, offset: int, size: int, hints: Sequence[str] = ()) -> bytes:
    """``size`` bytes of a file. ``hints`` are for one that is not there.

    Raises:
        InvalidInputError: it ends before.
    """
    with _locations.opened(path, hints) as file:
        found = file.run(offset, size)
    if len(found) < size:
        raise _truncated(path)
    return found


def _truncated(path: str) -> InvalidInputError:
    return InvalidInputError("the file ends within its own table", hints=["it is truncated: copy it again"], path=path)


def read_json(path: str) -> dict[str, Any]:
    """An index in JSON.

    Raises:
        InvalidInputError: it is none, or too long to be one.
    """
    import json

    text = _locations.text_of(path, _MAX_INDEX_BYTES, ["give the folder that index.json and its files lie in"])
    bounded(len(text), _MAX_INDEX_BYTES, "the bytes of an index", path)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"the index is no JSON: {error}", path=path) from None
    if not isinstance(found, dict):
        raise InvalidInputError("the index is no JSON object", path=path)
    return found
