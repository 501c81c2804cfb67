"""A scheme that a crate adds is read wherever a path is: the module is built with the feature ``toy``, which knows ``mem://``."""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import pytest

import forebay
import forebay.data

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


def put(url: str, data: bytes) -> str:
    with forebay.open(url, "w") as file:
        file.write_from(bytearray(data))
    return url


def test_a_source_that_is_slow_to_tell_its_state_holds_nobody_else_up() -> None:
    pytest.importorskip("numpy", reason="these records are numpy's arrays")
    slow = forebay.data.raw(put("mem://a?state=slow", bytes(64)), "uint8", 8, framework="numpy", device="cpu")
    quick = forebay.data.raw(put("mem://a", bytes(64)), "uint8", 8, framework="numpy", device="cpu")
    assert len(slow[:1]) == len(quick[:1]) == 1
    pending, begun = slow.read_async([0, 1]), time.monotonic()
    while time.monotonic() < begun + 0.3:
        assert len(quick[2:4]) == 2
        assert not pending._futures[0].done()
    assert len(pending.result()) == 2
    # A state is asked for as the read ends.
    assert time.monotonic() > begun + 0.9


def test_records_of_a_source_without_states_are_read_with_one_warning() -> None:
    np = pytest.importorskip("numpy", reason="these records are numpy's arrays")
    urls = [put(f"mem://{number}?state=none", bytes([number] * 16)) for number in range(3)]
    with pytest.warns(UserWarning, match="has no version of its bytes") as told:
        records = forebay.data.raw(urls, "uint8", 8, framework="numpy", device="cpu")
        assert np.array_equal(records[:], np.repeat(np.arange(3, dtype="u1"), 16).reshape(6, 8))
    assert len(told) == 1 and told[0].filename == __file__


def formats() -> Any:
    """What reads each format by NFS."""
    path = Path(__file__).resolve().parents[1] / "nfs/formats.py"
    spec = importlib.util.spec_from_file_location("formats", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """From now on the folders of ``mem://formats`` are those below a folder of this machine."""
    state = forebay._forebay.state

    def path_of(url: str) -> Path:
        return folder / os.fsdecode(unquote_to_bytes(url.removeprefix("mem://formats").lstrip("/")))

    def state_of(url: str) -> tuple[bool, int, int | None]:
        return (True, 0, None) if path_of(url).is_dir() else state(url)

    def entries(url: str) -> list[tuple[str, bool | None]]:
        if not path_of(url).is_dir():
            raise forebay.NotFoundError("no such folder", path=url)
        return [(one.name, None if number % 2 else one.is_dir()) for number, one in enumerate(path_of(url).iterdir())]

    monkeypatch.setattr(forebay._forebay, "state", state_of)
    monkeypatch.setattr(forebay._forebay, "entries", entries)


def test_each_format_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numpy", reason="these formats are read as numpy's arrays")
    nfs = formats()
    nfs.write(tmp_path)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            put(f"mem://formats/{quote(os.fsencode(path.relative_to(tmp_path)))}", path.read_bytes())
    listed(monkeypatch, tmp_path)
    for what, (name, open_it) in nfs.FORMATS.items():
        there = open_it(f"mem://formats/{quote(name, safe='/{}*[]')}")
        assert nfs.same(open_it(str(tmp_path / name))(), there()), what


def test_each_format_is_saved(tmp_path: Path) -> None:
    pytest.importorskip("numpy", reason="these formats are saved from numpy's arrays")
    nfs = formats()
    for name, (save, load) in nfs.SAVERS.items():
        path, url = tmp_path / name, f"mem://saved/{quote(name)}"
        save(str(path))
        for _ in range(2):
            save(url)
            with forebay.open(url) as file:
                assert bytes(file.read()) == path.read_bytes(), name
        assert nfs.same(load(url), load(str(path))), name


def test_a_save_that_fails_leaves_nothing() -> None:
    url = put("mem://kept", b"old")
    with forebay._forebay.Pending(url) as pending:
        pending.file.write_from(bytearray(b"new bytes"))
        assert not pending.nameless and pending.target == url
    with forebay.open(url) as file:
        assert file.read() == b"old"


def test_a_save_that_nobody_ends_is_removed_while_others_run() -> None:
    turns: list[float] = []
    dropped = threading.Event()

    def run() -> None:
        while not dropped.wait(0.05):
            turns.append(time.monotonic())

    other = threading.Thread(target=run)
    other.start()
    pending = forebay._forebay.Pending("mem://dropped?remove=slow")
    begun = time.monotonic()
    del pending
    ended = time.monotonic()
    dropped.set()
    other.join()
    assert ended - begun > 0.9
    assert [begun + 0.2 < turn < ended - 0.2 for turn in turns].count(True) >= 2


def test_folders_are_not_made_at_urls() -> None:
    torch_saves = pytest.importorskip("forebay.torch", reason="torch is not installed")
    with pytest.raises(forebay.UnsupportedError, match="no folder is made at a URL"):
        torch_saves.CheckpointWriter("mem://folder")


def test_weights_are_read_where_they_are_used(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import forebay.torch

    tensor = torch.arange(4096.0).view(64, 64)
    forebay.save_file({"weight": tensor}, tmp_path / "model.safetensors")
    url = put("mem://model.safetensors", (tmp_path / "model.safetensors").read_bytes())
    weights, into = forebay.torch.weights(url), torch.zeros(64, 32)
    with weights.collect():
        into.copy_(weights["weight"][:, 32:])
    assert torch.equal(into, tensor[:, 32:]) and weights["weight"].path == url
