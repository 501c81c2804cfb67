"""The checksums that a file keeps of its tensors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from . import _forebay
from .errors import IntegrityError, InvalidInputError

if TYPE_CHECKING:
    from .loading import Entry

__all__ = ["CHECKSUMS_KEY", "checksums_of", "compare"]

#: Where a file keeps them in its metadata.
CHECKSUMS_KEY = "forebay.crc32c"


def checksums_of(metadata: dict[str, str] | None, path: str) -> dict[str, int]:
    """The checksums that a file's metadata holds, by tensor.

    Raises:
        InvalidInputError: there are none.
        IntegrityError: they cannot be understood.
    """
    text = (metadata or {}).get(CHECKSUMS_KEY)
    if text is None:
        raise InvalidInputError(
            "the file has no checksums to verify",
            hints=["save it with forebay.save_file(tensors, path, checksums=True)", "or load it with verify=False"],
            path=path,
        )
    try:
        return {name: int(value, 16) for name, value in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise IntegrityError(f"cannot understand the file's checksums: {error}", path=path) from None


def compare(entries: Iterable[Entry], addresses: Iterable[int], saved: Mapping[str, int], path: str) -> None:
    """Computes the checksums of tensors at their addresses, where they lie, and compares them with those saved.

    Raises:
        IntegrityError: one differs, or was not saved; ``.tensor`` names it.
    """
    present = [(entry, address) for entry, address in zip(entries, addresses, strict=True) if entry[4]]
    found = _forebay.checksums([(address, entry[4]) for entry, address in present])
    for (entry, _), checksum in zip(present, found, strict=True):
        want = saved.get(entry[0])
        if want is None:
            raise IntegrityError("the file has no checksum for a tensor", tensor=entry[0], path=path)
        if checksum != want:
            raise IntegrityError(
                "a tensor's bytes differ from those that were saved",
                hints=["the file is damaged: copy or download it again"],
                tensor=entry[0],
                path=path,
                saved=f"{want:08x}",
                found=f"{checksum:08x}",
            )
