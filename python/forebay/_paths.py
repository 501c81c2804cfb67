"""Paths of files: absolute from the call on that they are given to. Opened files are kept open; files that must be opened again,
in another process say, is known by more than its name.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _forebay, _locations
from ._locations import home

if TYPE_CHECKING:
    from ._forebay import File

__all__ = ["Held", "Known", "Watch", "folder_text", "is_place", "open_known", "path_text"]

_MAX_PATH_BYTES = 4096


def path_text(given: Any, writes: bool = False) -> str:
    """A path as text: absolute, so that it means the same file when the program has changed its folder. ``nfs://`` URLs stay
    as they are.

    Args:
        given: by the program.
        writes: a file is made there.

    Raises:
        InvalidInputError: an open file, bytes of a file, or something else that is no path.
        NotFoundError: a relative path, and the program's folder was removed; or what is no path of this machine, but a name
            of a server's file or of a repository of models.
        UnsupportedError: what lies elsewhere: ``s3://…``, ``hf://…``, ``https://…``.
    """
    try:
        path = os.fsdecode(os.fspath(given))
    except TypeError:
        pass
    else:
        # Bytes that no path has, or more of them than the kernel takes, are a file's.
        if not isinstance(given, bytes) or (b"\0" not in given and len(given) <= _MAX_PATH_BYTES):
            if not path or path[0] == "/":
                # An empty one names no file: of the folder it would be made.
                return path
            return path if _locations.is_url(path) else _absolute(path, writes)
    from ._refusals import no_path

    raise no_path(given)


def folder_text(given: Any, is_here: bool = False) -> str:
    """As :func:`path_text`, of a folder that is made: a path of this machine, or unless ``is_here`` the URL of one that needs no
    making."""
    path = path_text(given, True)
    if _locations.is_url(path) and (is_here or _forebay.has_folders(path)):
        from .errors import UnsupportedError

        hints = ["mount the export, and give the path there"]
        raise UnsupportedError("a path is needed here: no folder is made at a URL", hints=hints, url=path)
    return path


def is_place(given: Any) -> bool:
    """Whether folders can be made there, or need no making."""
    from .errors import Error

    try:
        folder_text(given)
    except Error:
        return False
    return True


def _absolute(path: str, writes: bool) -> str:
    if ":/" in path:
        _forebay.check_place(path, writes)
    # A pattern is no name, but its folder is one.
    folder = path.partition("/")[0]
    if not writes and (":/" in path or path.count("/") == 1) and not _locations.has_name(folder):
        hint = _forebay.missing_hint(path)
        if hint is not None:
            from .errors import NotFoundError

            raise NotFoundError("cannot open file: no such file or directory", hints=[hint], path=path)
    # Not normalised: behind a symbolic link ".." leads elsewhere.
    try:
        return os.path.join(os.getcwd(), path)
    except FileNotFoundError:
        from .errors import NotFoundError

        hints = ["give an absolute path, or os.chdir() to a folder that is there"]
        raise NotFoundError(
            "the program's folder was removed: no relative path leads on", hints=hints, path=path
        ) from None


class Watch:
    """Notices that an open file was changed in place. Make it before the first read. A file that was replaced or removed
    is still what it was: it is open. (A change whose writer sets the time of change back is not seen.)

    As a context manager it does :meth:`check` at the end of the block, also after an error: most likely the change is its
    reason, and then that is the news.
    """

    __slots__ = ("_before", "_file")

    def __init__(self, file: File) -> None:
        self._file = file
        self._before = file._state()
        if self._before is None:
            _locations.warn_stateless(file.path)

    @property
    def before(self) -> bytes | None:
        """The state that the file is to be in; ``None`` where its source does not tell states apart."""
        return self._before

    def of(self, file: File) -> Watch:
        """The same for another handle on the file."""
        other = Watch.__new__(Watch)
        other._file, other._before = file, self._before
        return other

    def check(self) -> None:
        """Raises :class:`BusyError` if the file is in another state by now."""
        if self._before is not None and not self._file._is_in(self._before, False):
            from . import _refusals

            raise _refusals.changed(self._file.path)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, Exception):
            self.check()


class Known:
    """An open file by its path, and its identity, which another file at the path later does not have. It can be sent to other processes.

    Args:
        file: is open.
        state: of the file, if it has to be in that one; by default the present one.
    """

    __slots__ = ("_home", "_state", "path")

    def __init__(self, file: File, state: bytes | None = None) -> None:
        self.path = file.path
        self._state = file._state() if state is None else state
        self._home = home()

    def is_behind(self, file: File) -> bool:
        """Whether it is the same file, in the same state."""
        # On another machine a copy is the same: it has the bytes, and the time of change if it was made to keep that.
        # Where the source has no version of its bytes, the path is all there is.
        is_here = self._home is not None and self._home == home()
        return self._state is None or file._is_in(self._state, is_here)


def open_known(known: Known, cache: str | None = None) -> File:
    """Opens a file again. ``cache`` is that of :func:`forebay.open`.

    Raises:
        BusyError: it is another one by now, or in another state.
        NotFoundError, …: it cannot be opened.
    """
    file = _forebay.open(known.path, cache=cache)
    if not known.is_behind(file):
        file.close()
        from . import _refusals

        raise _refusals.another(known.path)
    return file


class Held:
    """An open file and the watch on it. Sent to another process, it is opened there again.

    Raises:
        As :func:`open_known`, where it is taken out of its pickle.
    """

    __slots__ = ("file", "watch")

    def __init__(self, file: File, watch: Watch) -> None:
        self.file = file
        self.watch = watch

    def __reduce__(self) -> tuple[object, ...]:
        return _held_again, (Known(self.file, self.watch.before),)


def _held_again(known: Known) -> Held:
    file = open_known(known)
    return Held(file, Watch(file))
