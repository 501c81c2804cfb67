"""Names of many files: brace patterns, globs and folders."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .. import _locations
from .._paths import path_text
from ..errors import InvalidInputError, NotFoundError

__all__ = ["Folder", "expanded", "members_of", "tars_of", "text_paths"]

#: A brace pattern of more names is a slip of the pen.
_MAX_NAMES = 1 << 20
_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?", re.ASCII)
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d+))?", re.ASCII)
#: Compressed ones are listed, too: opening them says what to type.
_TARS = (".tar", ".tgz", ".tbz2", ".txz", *(f".tar.{ending}" for ending in ("gz", "bz2", "xz", "zst", "lz4", "Z")))


def text_paths(given: Any) -> list[str]:
    """One path or several, as texts. Patterns stand for the files that they name.

    Raises:
        InvalidInputError: none at all, a set, or something that is no path.
        NotFoundError: a pattern that no file matches.
    """
    # An open file is iterable, too: over its lines.
    if isinstance(given, (str, bytes, os.PathLike)) or hasattr(given, "read") or not isinstance(given, Iterable):
        return expanded(path_text(given))
    if isinstance(given, (set, frozenset)):
        # Its order is another one in each process: record 7, too.
        raise InvalidInputError("a set of paths has no order, and records are numbered", hints=["sorted(paths)"])
    paths = [path for one in given for path in expanded(path_text(one))]
    if not paths:
        raise InvalidInputError("a data set of no files", hints=["give one path or more"])
    return paths


def expanded(path: str) -> list[str]:
    """The paths that a brace pattern (``{000..099}``, ``{a,b}``) or a glob stands for, in order; a file's own name comes
    first.

    Raises:
        NotFoundError: a glob that no file matches.
        InvalidInputError: a pattern of more than a million names.
    """
    if not _locations.has_sign(path, "{*?[") or _locations.has_name(path):
        return [path]
    found: list[str] = []
    for name in _named(path):
        if not _locations.has_sign(name, "*?[") or _locations.has_name(name):
            found.append(name)
            continue
        matches = _locations.matches(name)
        if not matches:
            raise NotFoundError("no file matches the pattern", hints=["check the pattern: ls -d PATTERN"], path=name)
        found.extend(matches)
    return found


def _named(pattern: str) -> list[str]:
    """The names of a brace pattern.

    Raises:
        InvalidInputError: they are more than a million.
    """
    try:
        return _braces(pattern)
    except _TooManyError as error:
        hints = ["a glob takes what is there: *.tar"]
        raise InvalidInputError(f"a pattern of {error} names", hints=hints, path=pattern) from None


class _TooManyError(Exception):
    """As many names as no pattern is meant to have."""


def _braces(text: str) -> list[str]:
    """Expands braces as a shell does. Braces without a comma or a range stay as they are."""
    at = text.find("{") if "," in text or ".." in text else -1
    while at >= 0:
        parts = _parts(text, at)
        choices = _choices(parts[:-1]) if parts else None
        if choices is not None:
            tails = _braces(parts[-1])
            _bound(len(choices) * len(tails))
            return [text[:at] + choice + tail for choice in choices for tail in tails]
        at = text.find("{", at + 1)
    return [text]


def _parts(text: str, begin: int) -> list[str]:
    """The parts between the commas of the braces that open at ``begin``, and the rest; empty if they do not close."""
    parts, depth, start = [], 0, begin + 1
    for at in range(begin, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if (text[at] == "," and depth == 1) or depth == 0:
            parts.append(text[start:at])
            start = at + 1
        if depth == 0:
            return [*parts, text[start:]]
    return []


def _choices(parts: list[str]) -> list[str] | None:
    if len(parts) > 1:
        return [choice for part in parts for choice in _braces(part)]
    if found := _NUMBERS.fullmatch(parts[0]):
        first, last = int(found[1]), int(found[2])
        is_padded = any(text.lstrip("-").startswith("0") and len(text.lstrip("-")) > 1 for text in found.group(1, 2))
        width = max(map(len, found.group(1, 2))) if is_padded else 0
        return [f"{number:0{width}}" for number in _steps(first, last, found[3])]
    if found := _LETTERS.fullmatch(parts[0]):
        return [chr(code) for code in _steps(ord(found[1]), ord(found[2]), found[3])]
    return None


def _steps(first: int, last: int, step: str | None) -> range:
    by = max(1, int(step or 1))
    _bound(abs(last - first) // by + 1)
    return range(first, last + 1, by) if last >= first else range(first, last - 1, -by)


def _bound(count: int) -> None:
    if count > _MAX_NAMES:
        raise _TooManyError(count)


class Folder(NamedTuple):
    """The files of one folder or several, and the number of the class that each belongs to, where there are classes."""

    paths: list[str]
    classes: list[str]
    labels: list[int]


def tars_of(folder: str) -> list[str]:
    """The tar files of a folder by their names.

    Raises:
        NotFoundError: there are none.
    """
    names = [name for name, _ in _visible(folder) if name.endswith(_TARS)]
    if not names:
        raise NotFoundError("there are no tar files in the folder", hints=["a glob: folder/**/*.tar"], path=folder)
    return [_locations.member(folder, name) for name in names]


def members_of(named: list[str]) -> Folder:
    """The files of folders, and files. Classes of one name are one class; several folders without classes in them are classes
    themselves.

    Raises:
        NotFoundError: a folder has none, or a class.
        InvalidInputError: files lie beside the folders of classes.
    """
    found = [_files_of(one) if _locations.is_folder(one) else Folder([one], [], []) for one in named]
    if len(found) == 1:
        return found[0]
    bare = [one.paths[0] for one in found if not one.classes]
    if not bare:
        names = [one.classes[label] for one in found for label in one.labels]
    elif len(bare) < len(found):
        raise _beside_classes(bare[0])
    elif all(map(_locations.is_folder, named)):
        names = [_locations.folder_name(path) for path, one in zip(named, found, strict=True) for _ in one.paths]
    else:
        names = []
    classes = sorted(set(names))
    numbers = {name: number for number, name in enumerate(classes)}
    return Folder([path for one in found for path in one.paths], classes, [numbers[name] for name in names])


def _files_of(folder: str) -> Folder:
    """All files below a folder whose names begin with no dot. Its folders, by their names, are classes, as torchvision's
    ``ImageFolder`` has them.

    Raises:
        NotFoundError: there are none, or a class has none.
        InvalidInputError: files lie beside the folders of classes, or a link leads to a folder that it lies in.
    """
    found = _visible(folder)
    classes = [name for name, is_folder in found if is_folder]
    loose = [name for name, is_folder in found if not is_folder]
    if classes and loose:
        raise _beside_classes(_locations.member(folder, loose[0]))
    if not classes:
        if not loose:
            raise NotFoundError("there are no files in the folder", path=folder)
        return Folder([_locations.member(folder, name) for name in loose], [], [])
    above = _entered(folder, ())
    members = [sorted(_walk(_locations.member(folder, name), above)) for name in classes]
    for name, paths in zip(classes, members, strict=True):
        if not paths:
            raise NotFoundError(
                "a class has no files", hints=["remove its folder"], path=_locations.member(folder, name)
            )
    labels = [label for label, paths in enumerate(members) for _ in paths]
    return Folder([_locations.member(*pair) for pair in itertools.chain(*members)], classes, labels)


def _beside_classes(path: str) -> InvalidInputError:
    hints = ["move them away, or name the files by a glob: folder/*/*"]
    return InvalidInputError("files lie beside the folders of classes", hints=hints, path=path)


#: Devices and inodes of a folder and those above it.
_Above = tuple[tuple[int, int], ...]


def _entered(folder: str, above: _Above) -> _Above:
    """The folders above the members of a folder.

    Raises:
        InvalidInputError: it is one of those above it already, by a link.
    """
    if _locations.is_url(folder):
        return above
    found = _locations.state(folder)
    if (found.device, found.inode) in above:
        hints = ["remove the link, or name the files by a glob: folder/*/*"]
        raise InvalidInputError("a link leads to a folder that it lies in", hints=hints, path=folder)
    return *above, (found.device, found.inode)


def _walk(folder: str, above: _Above) -> Iterator[tuple[str, str]]:
    """(folder, name) of all files below. Links are followed, as torchvision does."""
    above = _entered(folder, above)
    for name, is_folder in _visible(folder):
        if is_folder:
            yield from _walk(_locations.member(folder, name), above)
        else:
            yield folder, name


def _visible(folder: str) -> list[tuple[str, bool]]:
    """Names, and whether they are folders."""
    return [(name, is_folder) for name, is_folder, _ in _locations.entries(folder) if not name.startswith(".")]
