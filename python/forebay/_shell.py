"""Names of files as words of a shell's command, for hints that are typed as they stand."""

from __future__ import annotations

import os
import shlex

__all__ = ["word"]


def word(text: str) -> str:
    """A name as one word for any POSIX shell. Where a terminal would not show it, or copy it, as it is, ``printf`` makes it.

    A command that takes it has to know where its options end (``--``).
    """
    if all(letter.isprintable() or letter == "\n" for letter in text):
        return shlex.quote(text)
    # $(…) drops newlines at the end.
    body = text.rstrip("\n")
    told = "".join(
        chr(byte) if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in "._/") else f"\\{byte:03o}"
        for byte in os.fsencode(body)
    )
    return f"\"$(printf '{told}'){text[len(body) :]}\""
