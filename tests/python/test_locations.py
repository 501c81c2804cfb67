"""Names within paths and URLs, and lists of folders."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from forebay import _forebay, _locations, errors
from forebay.data import _ahead, _mds, _patterns, _tar_members


@pytest.mark.parametrize(
    ("folder", "name", "location"),
    [
        ("/data", "a b.npy", "/data/a b.npy"),
        ("", "a", "a"),
        ("nfs://host/x", "a b/ü%.npy", "nfs://host/x/a%20b/%C3%BC%25.npy"),
        ("nfs://host/x/?version=3", "a", "nfs://host/x/a?version=3"),
        ("nfs://host/", "a", "nfs://host/a"),
        ("nfs://host/x", os.fsdecode(b"caf\xe9"), "nfs://host/x/caf%E9"),
        ("nfs://[fd00::1]/x", "a?b", "nfs://[fd00::1]/x/a%3Fb"),
    ],
)
def test_names_are_joined_and_taken_apart(folder: str, name: str, location: str) -> None:
    assert _locations.member(folder, name) == location
    assert _locations.name_of(location) == name.rpartition("/")[2]
    if "/" not in name:
        assert _locations.parent(location) == folder.replace("/?", "?")
        assert _forebay.check_place(_locations.parent(location), False) is None


def test_suffixes_stand_before_the_query() -> None:
    assert _locations.with_suffix("/a/tokens.bin", ".idx", ".bin") == "/a/tokens.idx"
    assert (
        _locations.with_suffix("nfs://host/tokens.bin?version=4.1", ".idx", ".bin")
        == "nfs://host/tokens.idx?version=4.1"
    )
    assert _locations.with_suffix("nfs://host/tokens?version=3", ".idx") == "nfs://host/tokens.idx?version=3"
    assert _locations.ending_of("nfs://host/a.tar?b=c.d") == ".tar"


@pytest.mark.parametrize(
    ("location", "has"),
    [
        ("/a/[0].tar", True),
        ("/a/b?", True),
        ("nfs://[fd00::1]/a.tar", False),
        ("nfs://[fd00::1]:2049/a?version=4.[12]", False),
        ("nfs://[fd00::1]/[ab].tar?version=3", True),
        ("nfs://host/*.tar", True),
    ],
)
def test_signs_of_patterns_are_those_of_the_path(location: str, has: bool) -> None:
    assert _locations.has_sign(location, "*?[") == has
    if "[fd00" in location and not has:
        assert _patterns.expanded(location) == [location]


def test_links_to_folders_are_not_entered(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").touch()
    (tmp_path / "again").symlink_to("a")
    (tmp_path / "a/loop").symlink_to(tmp_path)
    (tmp_path / "itself").symlink_to("itself")
    found = list(_locations.below(str(tmp_path)))
    assert found == [
        (str(tmp_path), ["a", "again"], ["itself"]),
        (str(tmp_path / "a"), ["b", "loop"], []),
        (str(tmp_path / "a/b"), [], ["file"]),
    ]
    assert list(_locations.below(str(tmp_path / "not there"))) == []


_TREE = (
    "r.tar", "x/.a.tar", "x/b.tar", "x/c d.tar", "x/e", "y/1/a.tar", "y/2/b.tar", "y/2/.hidden/c.tar", "y/2/deep/d.tar",
    "z/a1b.tar", "z/a?b.tar", "z/a[1]b.tar", "z/a[b.tar", "z/*.tar", "z/\u00e4.tar",
)  # fmt: skip


class _Tree:
    """A server whose folders are listed, and how often."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.listed: list[str] = []
        monkeypatch.setattr(_forebay, "entries", self.entries)
        monkeypatch.setattr(_forebay, "state", self.state)

    def entries(self, folder: str) -> list[tuple[str, bool | None]]:
        self.listed.append(folder)
        above = self.path(folder)
        below = [path[len(above) :].split("/") for path in _TREE if path.startswith(above)]
        if not below:
            raise errors.NotFoundError("no such folder", path=folder)
        # Whether `y` is one is not always told, and a name may come twice.
        return [(name, told) for name, *rest in below for told in ([None, True] if name == "y" else [bool(rest)])]

    def state(self, location: str) -> tuple[bool, int, int]:
        path = self.path(location)
        if path[:-1] not in _TREE and not any(one.startswith(path) for one in _TREE):
            raise errors.NotFoundError("no such file", path=location)
        return path[:-1] not in _TREE, 0, 0

    def path(self, location: str) -> str:
        _forebay.check_place(location, False)
        path = location.partition("?")[0].split("://")[1].partition("/")[2].rstrip("/")
        return unquote(path) + "/" if path else ""


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("nfs://[fd00::1]/x/*.tar", ["nfs://[fd00::1]/x/b.tar", "nfs://[fd00::1]/x/c%20d.tar"]),
        ("nfs://h/x/.*", ["nfs://h/x/.a.tar"]),
        ("nfs://h/x/c%20[a-d].tar?version=3", ["nfs://h/x/c%20d.tar?version=3"]),
        ("nfs://h/*.tar?version=4.1", ["nfs://h/r.tar?version=4.1"]),
        ("nfs://h/*/b.tar", ["nfs://h/x/b.tar"]),
        ("nfs://h/[xy]/*.tar", ["nfs://h/x/b.tar", "nfs://h/x/c%20d.tar"]),
        ("nfs://h/y/*/b.tar", ["nfs://h/y/2/b.tar"]),
        ("nfs://h/y/[12]/*.tar", ["nfs://h/y/1/a.tar", "nfs://h/y/2/b.tar"]),
        ("nfs://h/y/**/*.tar", ["nfs://h/y/1/a.tar", "nfs://h/y/2/b.tar", "nfs://h/y/2/deep/d.tar"]),
        ("nfs://h/**/deep/*", ["nfs://h/y/2/deep/d.tar"]),
        ("nfs://h/y/2/**", ["nfs://h/y/2/b.tar", "nfs://h/y/2/deep", "nfs://h/y/2/deep/d.tar"]),
        ("nfs://h/x/*.zip", []),
        ("nfs://h/z/a%3F*.tar", ["nfs://h/z/a%3Fb.tar"]),
        ("nfs://h/z/a%5B1%5D*.tar", ["nfs://h/z/a%5B1%5Db.tar"]),
        ("nfs://h/z/a[%3F1]*.tar", ["nfs://h/z/a%3Fb.tar", "nfs://h/z/a1b.tar"]),
        ("nfs://h/z/a[%5B]*.tar", ["nfs://h/z/a%5B1%5Db.tar", "nfs://h/z/a%5Bb.tar"]),
        ("nfs://h/z/a[b*", ["nfs://h/z/a%5Bb.tar"]),
        ("nfs://h/z/%2A*", ["nfs://h/z/%2A.tar"]),
        ("nfs://h/z/[%C3%A4].tar", ["nfs://h/z/%C3%A4.tar"]),
        ("nfs://h/z/%C3%A4*", ["nfs://h/z/%C3%A4.tar"]),
    ],
)
def test_a_glob_of_a_url_matches_as_one_of_paths(
    monkeypatch: pytest.MonkeyPatch, pattern: str, expected: list[str]
) -> None:
    tree = _Tree(monkeypatch)
    assert _locations.matches(pattern) == expected
    assert len(tree.listed) == len(set(tree.listed))


def test_a_folder_that_cannot_be_listed_is_no_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _Tree(monkeypatch)
    with pytest.raises(errors.NotFoundError, match="no such folder"):
        _locations.matches("nfs://h/none/*.tar")


def test_a_folder_of_a_url_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = _Tree(monkeypatch)
    found = _patterns.members_of(["nfs://h/y/?version=3"])
    below = [f"nfs://h/y/{name}?version=3" for name in ("1", "2", "2/deep")]
    assert found.classes == ["1", "2"] and found.labels == [0, 1, 1]
    assert tree.listed == ["nfs://h/y/?version=3", *below]


def _not_listed(_: str) -> list[tuple[str, bool]]:
    raise errors.UnsupportedError("folders of nfs:// are not listed")


def test_an_index_that_is_not_there_is_asked_for_where_folders_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_locations, "has_name", lambda _: False)
    monkeypatch.setattr(_locations, "is_folder", lambda _: True)
    monkeypatch.setattr(_forebay, "entries", _not_listed)
    assert _mds._indexes("nfs://host/mds") == ["nfs://host/mds/index.json"]


def test_a_manifest_that_is_not_there_is_said_where_folders_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    import forebay.torch

    def missing(location: str, *_: Any) -> bytes:
        raise errors.NotFoundError("no such file", errno=errno.ENOENT, path=location)

    monkeypatch.setattr(_locations, "text_of", missing)
    monkeypatch.setattr(_locations, "is_folder", lambda _: True)
    monkeypatch.setattr(_forebay, "entries", _not_listed)
    with pytest.raises(errors.NotFoundError, match="no complete checkpoint"):
        forebay.torch.CheckpointReader("nfs://host/step").metadata()


def test_urls_are_not_read_ahead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(10))
    here, asked = str(tmp_path / "file"), []

    class Records:
        def extents(self, start: int, stop: int) -> list[tuple[str, int, int]]:
            return [("nfs://host/file", start, stop), (here, start, stop)]

    def opened(location: str) -> Any:
        asked.append(location)
        return _locations.opened(location)

    monkeypatch.setattr(_ahead, "opened", opened)
    records: Any = Records()
    order: Any = None
    reader = _ahead.Reader(records, order, 0)
    reader._ask(0, 10)
    reader._meet(0, 10)
    assert asked == [here, here]


def test_an_error_of_reading_a_tar_file_is_said_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: Any) -> Any:
        raise errors.IOFailedError("cannot read file: input/output error", errno=errno.EIO, path="a.tar")

    (tmp_path / "a.tar").write_bytes(bytes(10240))
    monkeypatch.setattr(_tar_members, "_headers", broken)
    with pytest.raises(errors.IOFailedError) as caught:
        _tar_members.members(str(tmp_path / "a.tar"), 10240)
    assert str(caught.value).count("cannot read file") == 1
