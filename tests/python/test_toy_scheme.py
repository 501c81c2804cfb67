"""A scheme that a crate adds is read wherever a path is: the module is built with the feature ``toy``, which knows ``mem://``."""

from __future__ import annotations

import pytest

import forebay

_HAS_TOY = forebay._forebay.is_url("mem://x")
pytestmark = pytest.mark.skipif(not _HAS_TOY, reason="the module is built without the feature toy")


def test_bytes_go_there_and_back() -> None:
    with forebay.open("mem://python", "w") as file:
        file.write_from(bytearray(b"some bytes" * 1000))
    with forebay.open("mem://python") as file:
        assert file.read() == b"some bytes" * 1000


def test_what_changes_while_it_is_read_is_noticed() -> None:
    with forebay.open("mem://watched", "w") as file:
        file.write_from(bytearray(b"some bytes"))
    with forebay.open("mem://watched", "r+") as file:
        state = file._state()
        assert state is not None and file._is_in(state, False)
        file.write_from(bytearray(b"other"))
        assert not file._is_in(state, False)


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(forebay.NotFoundError, match="no such bytes"):
        forebay.open("mem://nothing")
