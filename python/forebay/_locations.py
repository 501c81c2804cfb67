"""Locations: paths of this machine, and URLs of what lies elsewhere. Nothing else in the package opens, lists or states one, so that
what reads files reads URLs, too. Names within a location are joined and taken apart here: behind a URL's path may follow a query.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import re
import stat
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from . import _forebay, errors

if TYPE_CHECKING:
    from ._forebay import File

__all__ = [
    "MemoryFile",
    "Opened",
    "State",
    "again",
    "append",
    "below",
    "changed_folder",
    "check_file",
    "ending_of",
    "entries",
    "exists",
    "failed",
    "folder_name",
    "has_name",
    "has_sign",
    "home",
    "is_file",
    "is_folder",
    "is_url",
    "make_folder",
    "matches",
    "member",
    "name_of",
    "names",
    "opened",
    "parent",
    "real",
    "remove",
    "state",
    "states",
    "text_of",
    "warn_stateless",
    "with_suffix",
]

#: Seconds for which a file system that answers EAGAIN is asked again: the kernel ends another process's lease after 45.
_PATIENCE = 60.0
#: Bytes of a file elsewhere that are read at once where few are asked for.
_AHEAD_BYTES = 256 << 10
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


# ---- names -----------------------------------------------------------------------------------------------------------


def is_url(location: str) -> bool:
    """Whether it is a URL, rather than a path of this machine."""
    return location[:1] != "/" and _forebay.is_url(location)


def member(folder: str, name: str) -> str:
    """The location of a name in a folder; a name may have slashes."""
    if not is_url(folder):
        return os.path.join(folder, name)
    from urllib.parse import quote

    path, query = _parts(folder)
    return f"{path.rstrip('/')}/{quote(os.fsencode(name))}{query}"


def parent(location: str) -> str:
    """The folder that it lies in."""
    if not is_url(location):
        return os.path.dirname(location)
    path, query = _parts(location)
    above = path.rpartition("/")[0]
    # A host without a slash behind it is no folder.
    return above + ("" if "/" in above.partition("://")[2] else "/") + query


def name_of(location: str) -> str:
    """Its name in its folder."""
    if not is_url(location):
        return os.path.basename(location)
    from urllib.parse import unquote_to_bytes

    return os.fsdecode(unquote_to_bytes(_parts(location)[0].rpartition("/")[2]))


def folder_name(folder: str) -> str:
    """The name of a folder, which may end in a slash, or be ``.``."""
    return name_of(_parts(folder)[0].rstrip("/") if is_url(folder) else os.path.abspath(folder))


def ending_of(location: str) -> str:
    """The ending of its name with the dot, or nothing."""
    return os.path.splitext(name_of(location))[1]


def with_suffix(location: str, suffix: str, without: str = "") -> str:
    """The location whose name has ``suffix`` more, and ``without`` less, at its end."""
    path, query = _parts(location) if is_url(location) else (location, "")
    return path.removesuffix(without) + suffix + query


def has_sign(location: str, signs: str) -> bool:
    """Whether signs of a pattern stand in it. Those in a URL's host (``[fd00::1]``) and query are none."""
    if is_url(location):
        location = _parts(location)[0].partition("://")[2].partition("/")[2]
    return any(sign in location for sign in signs)


def _parts(url: str) -> tuple[str, str]:
    path, mark, query = url.partition("?")
    return path, mark + query


def real(path: str) -> str:
    """A path without links."""
    return path if is_url(path) else os.path.realpath(path)


# ---- what is there ---------------------------------------------------------------------------------------------------


class State(NamedTuple):
    """The present state of a location. States of equal length and time count as the same bytes."""

    is_folder: bool
    is_file: bool
    #: Bytes, and nanoseconds since 1970 when they were changed last; of a URL a number that says no more than that they were, or
    #: ``None`` where its source does not tell states apart.
    nbytes: int
    changed: int | None
    #: The file's number, when anything of it was changed last, and the device.
    inode: int
    inode_changed: int
    device: int


def state(location: str) -> State:
    """The state of a location.

    Raises:
        NotFoundError, PermissionDeniedError, …: it cannot be found out.
    """
    if is_url(location):
        return _state_elsewhere(_forebay.state(location))
    try:
        found = again(os.stat, location)
    except (OSError, ValueError) as error:
        raise failed(error, location) from None
    return _state(found)


def states(locations: Sequence[str]) -> list[State]:
    """The states of several locations: servers are asked for many at once.

    Raises:
        As :func:`state`.
    """
    elsewhere = {location for location in locations if is_url(location)}
    urls = sorted(elsewhere)
    told = dict(zip(urls, map(_state_elsewhere, _forebay.states(urls)), strict=True)) if urls else {}
    return [told[location] if location in elsewhere else state(location) for location in locations]


def _state_elsewhere(told: tuple[bool, int, int | None]) -> State:
    is_folder, nbytes, changed = told
    return State(is_folder, not is_folder, nbytes, changed, 0, 0, 0)


def warn_stateless(location: str) -> None:
    """Warns the caller's caller that a change of what it reads is not noticed."""
    text = f"{location}: its source has no version of its bytes: a change while it is read is not noticed"
    warnings.warn(text, stacklevel=4)


def _state(found: os.stat_result) -> State:
    return State(
        stat.S_ISDIR(found.st_mode), stat.S_ISREG(found.st_mode), found.st_size, found.st_mtime_ns, found.st_ino,
        found.st_ctime_ns, found.st_dev,
    )  # fmt: skip


def exists(location: str) -> bool:
    """Whether the name exists. ``False`` where that cannot be found out."""
    return _found(location) is not None if is_url(location) else os.path.exists(location)


def has_name(location: str) -> bool:
    """Whether something has this name, if only a link that leads to nothing."""
    return exists(location) if is_url(location) else os.path.lexists(location)


def is_file(location: str) -> bool:
    """Whether it is a regular file."""
    found = _found(location)
    return found is not None and found.is_file


def is_folder(location: str) -> bool:
    """Whether it is a folder."""
    found = _found(location)
    return found is not None and found.is_folder


def _found(location: str) -> State | None:
    try:
        return state(location)
    except errors.Error:
        return None


def names(folder: str) -> list[str]:
    """The names in a folder, sorted.

    Raises:
        NotFoundError, …: it cannot be listed.
    """
    if is_url(folder):
        return sorted({name for name, _ in _forebay.entries(folder)})
    try:
        return sorted(again(os.listdir, folder))
    except (OSError, ValueError) as error:
        raise failed(error, folder) from None


def entries(folder: str) -> list[tuple[str, bool, bool]]:
    """(name, whether it is a folder or a link to one, whether it is a link) of what is in a folder, sorted. A server's links lead
    nowhere: they are neither.

    Raises:
        NotFoundError, …: it cannot be listed.
    """
    if is_url(folder):
        # A name that comes or goes meanwhile may be listed twice.
        told = dict(sorted(_forebay.entries(folder), key=lambda one: one[0]))
        return [(name, is_folder(member(folder, name)) if kind is None else kind, False) for name, kind in told.items()]
    try:
        return sorted(again(_scanned, folder))
    except (OSError, ValueError) as error:
        raise failed(error, folder) from None


def below(folder: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """As ``os.walk``: (folder, names of folders, names of files), in the order of names. Those that the caller takes out of the
    names of folders are not entered, and links are not followed. A folder that cannot be listed is left out."""
    try:
        found = entries(folder)
    except errors.Error:
        return
    inner = [name for name, is_inner, _ in found if is_inner]
    links = {name for name, _, is_link in found if is_link}
    yield folder, inner, [name for name, is_inner, _ in found if not is_inner]
    for name in inner:
        if name not in links:
            yield from below(member(folder, name))


def _scanned(folder: str) -> list[tuple[str, bool, bool]]:
    with os.scandir(folder) as entries:
        # A link that leads to itself is an error of `is_dir`.
        return [
            (one.name, os.path.isdir(one.path) if one.is_symlink() else one.is_dir(), one.is_symlink())
            for one in entries
        ]


def matches(pattern: str) -> list[str]:
    """The locations that a glob matches, sorted, without names that begin with a dot.

    Raises:
        NotFoundError, …: a URL's folder cannot be listed.
    """
    import glob

    if not is_url(pattern):
        return sorted(glob.glob(pattern, recursive=True))
    path, query = _parts(pattern)
    scheme, host, *parts = path.replace("://", ":/", 1).split("/")
    fixed = next((at for at, part in enumerate(parts) if _is_pattern(part)), len(parts))
    # Directly below the host is the root of what the server exports.
    folder = "/".join([f"{scheme}/", host, *(parts[:fixed] or [""])]) + query
    # Behind ``**`` a folder is looked at twice, but listed once.
    listed = functools.cache(entries)
    return sorted(set(_matched(folder, [part for part in parts[fixed:] if part], listed)))


def _is_pattern(name: str) -> bool:
    return "*" in name or "[" in name


def _unescaped(part: str) -> str:
    """A pattern of a URL as ``fnmatch`` takes it: a sign that is escaped (``%2A``) stands for itself."""
    import glob
    from urllib.parse import unquote_to_bytes

    def plain(found: re.Match[bytes]) -> bytes:
        letters = unquote_to_bytes(found[0])
        # Within brackets signs are none.
        return letters if found[0].endswith(b"]") else glob.escape(letters)

    return os.fsdecode(re.sub(rb"\[!?\]?[^]]*\]|\[|%[0-9A-Fa-f]{2}", plain, os.fsencode(part)))


def _matched(location: str, parts: list[str], listed: Callable[[str], list[tuple[str, bool, bool]]]) -> Iterator[str]:
    """Files below a location with these names, which may be patterns. ``**`` stands for any number of folders, and behind
    them for all that is there."""
    import fnmatch
    from urllib.parse import unquote_to_bytes

    if not parts:
        yield location
        return
    part, rest = _unescaped(parts[0]), parts[1:]
    if not _is_pattern(parts[0]):
        inner = member(location, os.fsdecode(unquote_to_bytes(parts[0])))
        if is_folder(inner) if rest else exists(inner):
            yield from _matched(inner, rest, listed)
        return
    if part == "**" and rest:
        yield from _matched(location, rest, listed)
    for name, is_inner, _ in listed(location):
        if name.startswith(".") and not part.startswith("."):
            continue
        inner = member(location, name)
        if part == "**":
            if not rest:
                yield inner
            if is_inner:
                yield from _matched(inner, parts, listed)
        elif fnmatch.fnmatchcase(name, part) and (is_inner or not rest):
            yield from _matched(inner, rest, listed)


def again(call: Callable[..., Any], *given: Any) -> Any:
    """The result of a system call. On EAGAIN and EINTR it is called again."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return call(*given)
        except (BlockingIOError, InterruptedError):
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def failed(error: OSError | ValueError, path: str, hints: Sequence[str] = ()) -> errors.Error:
    """forebay's error for one of the system's, or for a path that cannot be one."""
    if not isinstance(error, OSError):
        return errors.InvalidInputError(f"not a path: {error}", hints=["give a path without zero bytes"], path=path)
    text = f"cannot read file: {(error.strerror or str(error)).lower()}"
    known = [hint for number, hint in _HINTS.items() if number == error.errno]
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return errors.TooManyFilesError(text, hints=known, errno=error.errno, path=path)
    hints = hints or known
    kind = next((ours for theirs, ours in _ERROR_TYPES.items() if isinstance(error, theirs)), errors.IOFailedError)
    return kind(text, hints=hints, errno=error.errno, path=path)


def check_file(found: State, location: str) -> None:
    """Raises where it is no regular file."""
    if found.is_folder:
        hints = ['name the files in it, or give a glob: "folder/*"']
        raise errors.IsDirectoryError("cannot read file: it is a directory", hints=hints, path=location)
    if not found.is_file:
        hints = ["copy it to one first"]
        raise errors.InvalidInputError("cannot read file: it is no regular file", hints=hints, path=location)


@functools.cache
def home() -> tuple[str, str] | None:
    """The machine, and which files this process sees there; ``None`` where that is unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(), os.readlink("/proc/self/ns/mnt")
    except OSError:
        return None


# ---- reading ---------------------------------------------------------------------------------------------------------


class Opened(io.FileIO):
    """A file of this machine, open for reading by the kernel."""

    location: str

    @property
    def nbytes(self) -> int:
        """Bytes of it now."""
        return os.fstat(self.fileno()).st_size

    def part(self, offset: int, size: int) -> bytes:
        """Bytes from an offset on; fewer where it ends.

        Raises:
            IOFailedError, …: they cannot be read.
        """
        try:
            return bytes(again(os.pread, self.fileno(), size, offset))
        except OSError as error:
            raise failed(error, self.location) from None

    def run(self, offset: int, size: int) -> bytes:
        """All bytes of a range that the file has."""
        end, parts = min(offset + size, self.nbytes), []
        while offset < end and (part := self.part(offset, end - offset)):
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def expect(self, offset: int, size: int) -> None:
        """Has the kernel read bytes into the page cache."""
        os.posix_fadvise(self.fileno(), offset, size, os.POSIX_FADV_WILLNEED)


class _Elsewhere(io.RawIOBase):
    """A file elsewhere, as a stream."""

    def __init__(self, file: File) -> None:
        self.file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.file.size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        found = self.file.read(len(buffer), self._at)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)

    def close(self) -> None:
        self.file.close()
        super().close()


class _OpenedElsewhere(io.BufferedReader):
    """A file elsewhere, as :class:`Opened` has one of this machine."""

    def __init__(self, location: str) -> None:
        self.location, self._file = location, _forebay.open(location)
        super().__init__(_Elsewhere(self._file), _AHEAD_BYTES)

    @property
    def nbytes(self) -> int:
        return self._file.size

    def part(self, offset: int, size: int) -> bytes:
        return self._file.read(size, offset)

    run = part

    def expect(self, offset: int, size: int) -> None:
        """Nothing here has a cache of it."""


def opened(location: str, hints: Sequence[str] = ()) -> Any:
    """A regular file, open, as :class:`Opened`. ``hints`` are for one that cannot be opened.

    Raises:
        InvalidInputError, IsDirectoryError: it is another kind of file. A pipe is not waited for.
        NotFoundError, …: it cannot be opened.
    """
    if is_url(location):
        return _OpenedElsewhere(location)
    try:
        # Without O_NONBLOCK opening a pipe would wait for its other end.
        descriptor = again(os.open, location, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        raise failed(error, location, hints) from None
    try:
        check_file(_state(os.fstat(descriptor)), location)
        file = Opened(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise
    file.location = location
    return file


def text_of(location: str, most: int, hints: Sequence[str] = ()) -> bytes:
    """All bytes of a short file; one more than ``most`` of a longer one.

    Raises:
        InvalidInputError, IsDirectoryError: it is no regular file.
        NotFoundError, …: it cannot be read.
    """
    file: Opened
    with opened(location, hints) as file:
        return file.run(0, most + 1)


# ---- writing ---------------------------------------------------------------------------------------------------------


class MemoryFile:
    """A file in memory, written from begin to end. As a context manager: on exit it stays for those that opened its path."""

    def __init__(self, name: str) -> None:
        self._descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        #: Of this process.
        self.path = f"/proc/self/fd/{self._descriptor}"

    def write(self, data: Any) -> None:
        """Adds bytes."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def make_folder(path: str) -> None:
    """Makes a folder, and those above it, if they are not there. At a URL they need no making (``_paths.folder_text``)."""
    if not is_url(path):
        os.makedirs(path, exist_ok=True)


def remove(path: str) -> None:
    """Removes a file, if it is there."""
    if is_url(path):
        _forebay.remove(path)
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


@contextlib.contextmanager
def changed_folder(path: str) -> Iterator[None]:
    """A folder that no other process changes in such a block meanwhile. One at a URL has no such lock."""
    import fcntl

    if is_url(path):
        yield
        return

    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def append(path: str, text: str) -> None:
    """Adds a text to a file's end."""
    with open(path, "a") as file:
        file.write(text)
