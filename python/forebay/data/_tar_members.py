"""The members of a tar file that have bytes, and the offsets of these."""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

from .. import _locations
from .._kinds import START_BYTES, TAR, other_start
from .._shell import word
from ..errors import Error, InvalidInputError, UnsupportedError

__all__ = ["Member", "members", "without"]

_BLOCK = 512
#: Bytes of one look for what follows the end of an archive.
_SCAN_BYTES = 1 << 20
#: Symbolic links behind each other, as the kernel follows them.
_MAX_LINKS = 40
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
#: Without bytes of their own: folders, the names in one (GNU's incremental archives), and the label of a volume.
_EMPTY = (tarfile.DIRTYPE, b"D", b"V")
_SPECIAL = {
    tarfile.CHRTYPE: "a character device",
    tarfile.BLKTYPE: "a block device",
    tarfile.FIFOTYPE: "a FIFO",
    b"M": "the rest of a file that began in another volume",
}
#: First bytes and what unpacks them.
_COMPRESSED = {
    b"\x1f\x8b": "gzip -d", b"\x1f\x9d": "gzip -d", b"BZh": "bzip2 -d", b"\xfd7zXZ\0": "xz -d", b"\x5d\0\0": "xz -d",
    b"\x28\xb5\x2f\xfd": "zstd -d", b"\x04\x22\x4d\x18": "lz4 -d", b"LZIP": "lzip -d",
}  # fmt: skip


class Member(NamedTuple):
    """A file in an archive."""

    name: str
    offset: int
    nbytes: int


class _Header(tarfile.TarInfo):
    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        # Only ustar has the beginning of a long name there; GNU's format has times, of incremental archives.
        if buf[257:263] != b"ustar\0":
            found.name = bytes(buf[:100]).partition(b"\0")[0].decode(encoding, errors)
            if found.isdir():
                found.name = found.name.rstrip("/")
        return found


def members(path: str, size: int) -> list[Member]:
    """All files of a tar file of ``size`` bytes, in order. Links have the bytes of what they lead to.

    Raises:
        InvalidInputError: no tar file, a truncated one, or a link to what the archive has not.
        UnsupportedError: a compressed one, or a member that is neither file, folder nor link.
    """
    with _locations.opened(path) as file:
        try:
            return _resolved(_headers(file, path, size), path)
        except Error:
            raise
        except OSError as error:
            raise _locations.failed(error, path) from None
        except (tarfile.TarError, ValueError, OverflowError, MemoryError) as error:
            _refuse_others(file, path, size)
            hints = ["WebDataset's .tar files are read; one that is cut has to be copied again"]
            raise InvalidInputError(f"cannot read the tar file: {error}", hints=hints, path=path) from None


def without(path: str, names: Iterable[str], name: str) -> list[str]:
    """The hint that removes a member, and nothing else.

    Args:
        path: of the archive.
        names: of its members up to this one, with this one.
        name: the member's.
    """
    if not name or "\0" in name:
        return []  # no command can be given such a name
    number = sum(one == name for one in names)
    # -i: what follows the end of a first archive is kept. A member's name is one of a folder, too, and may have backslashes.
    options = f"-i --occurrence={number} --no-recursion --no-unquote"
    return [f"tar --delete {options} -f {word(path)} -- {word(name)}"]


def _refuse_others(file: _locations.Opened, path: str, size: int) -> None:
    start = file.part(0, START_BYTES)
    for magic, command in _COMPRESSED.items():
        if start.startswith(magic):
            ending = _locations.ending_of(path)
            stem = _locations.with_suffix(path, "", ending)
            unpacked = stem if stem.endswith(".tar") else f"{stem}{'.unpacked' if ending == '.tar' else ''}.tar"
            hints = [f"{command} -c {word(path)} > {word(unpacked)}"]
            raise UnsupportedError("the tar file is compressed", hints=hints, path=path)
    other = other_start(start, size, path, TAR)
    if other is not None:
        raise other from None


def _headers(file: _locations.Opened, path: str, size: int) -> list[tarfile.TarInfo]:
    """The headers of all archives of a file: `cat` puts one behind the other."""
    found: list[tarfile.TarInfo] = []
    at: int | None = 0
    while at is not None:
        file.seek(at)
        with tarfile.open(fileobj=file, mode="r:", tarinfo=_Header) as archive:
            for member in archive:
                found.append(member)
                _check(found, path)
                if not 0 <= member.size <= size - member.offset_data:
                    raise InvalidInputError(
                        "a member lies beyond the end of the file",
                        hints=["it is truncated: copy it again"],
                        path=path,
                        member=member.name,
                        bytes=member.size,
                    )
            end = archive.offset
        # tarfile takes a damaged or cut header for the end.
        if file.part(end, _BLOCK) != bytes(_BLOCK):
            _check_link(found, path)
            raise InvalidInputError(
                "the tar file has no end"
                if end > at or not at
                else "what follows the end of the tar file is no member",
                hints=["it is truncated or damaged: copy it again"],
                path=path,
                offset=end,
            )
        at = _next(file, end + _BLOCK)
    return found


def _check_link(found: list[tarfile.TarInfo], path: str) -> None:
    """Raises where what follows the last member is no header, for it may be the bytes of a link: pax writes them."""
    if found and found[-1].islnk() and found[-1].size:
        raise UnsupportedError(
            "a member is a hard link with bytes of its own",
            hints=["make the archive anew with GNU tar"],
            path=path,
            member=found[-1].name,
            bytes=found[-1].size,
        )


def _next(file: _locations.Opened, at: int) -> int | None:
    """Where the first block from ``at`` on begins that is not empty."""
    while part := file.part(at, _SCAN_BYTES):
        empty = len(part) - len(part.lstrip(b"\0"))
        if empty < len(part):
            return at + empty // _BLOCK * _BLOCK
        at += len(part)
    return None


def _resolved(headers: list[tarfile.TarInfo], path: str) -> list[Member]:
    """The members with bytes; what links lead to stands for them."""
    found: list[Member | tarfile.TarInfo] = []
    places: dict[str, Member] = {}
    links = {_plain(header.name): header for header in headers if header.issym()}
    has_links = any(header.islnk() or header.issym() for header in headers)
    for header in headers:
        if header.type in _REGULAR:
            member = Member(header.name, header.offset_data, header.size)
        elif header.islnk():
            # Hard links lead back.
            target = places.get(_plain(header.linkname))
            if target is None:
                raise _leads_nowhere(header, headers, path)
            member = target._replace(name=header.name)
        else:
            found.extend([header] if header.issym() else [])
            continue
        found.append(member)
        if has_links:
            places[_plain(header.name)] = member
    return [one if isinstance(one, Member) else _followed(one, places, links, headers, path) for one in found]


def _followed(
    link: tarfile.TarInfo,
    places: dict[str, Member],
    links: dict[str, tarfile.TarInfo],
    headers: list[tarfile.TarInfo],
    path: str,
) -> Member:
    at = link
    for _ in range(_MAX_LINKS):
        target = _plain(posixpath.join(posixpath.dirname(at.name), at.linkname))
        if target not in links:
            if target not in places:
                break
            return places[target]._replace(name=link.name)
        at = links[target]
    raise _leads_nowhere(link, headers, path)


def _leads_nowhere(link: tarfile.TarInfo, headers: list[tarfile.TarInfo], path: str) -> InvalidInputError:
    names = (one.name for one in headers[: headers.index(link) + 1])
    hints = ["make the archive anew with tar --dereference --hard-dereference", *without(path, names, link.name)]
    return InvalidInputError(
        f"a member is a {'symbolic' if link.issym() else 'hard'} link to what the archive does not have",
        hints=hints,
        path=path,
        member=link.name,
        to=link.linkname,
    )


def _plain(name: str) -> str:
    return posixpath.normpath(name)


def _check(found: list[tarfile.TarInfo], path: str) -> None:
    """Raises where the bytes of the last member found are not in the archive as they are."""
    header = found[-1]
    told: Any = header.pax_headers
    if header.issparse() or any(key.startswith(("GNU.sparse.", "SCHILY.realsize")) for key in told):
        hints = ["make the archive anew without --sparse (-S)"]
        raise UnsupportedError(
            "a member is sparse: the archive has a part of it", hints=hints, path=path, member=header.name
        )
    if header.type in (*_REGULAR, *_EMPTY) or header.islnk() or header.issym():
        return
    kind = _SPECIAL.get(header.type, f"of the unknown kind {header.type.decode(errors='replace')!r}")
    raise UnsupportedError(
        f"a member is {kind}: it has no bytes to read",
        hints=without(path, (one.name for one in found), header.name),
        path=path,
        member=header.name,
    )
