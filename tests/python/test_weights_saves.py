"""Unread tensors of a checkpoint are saved, in bounded memory, also over the file that they come from."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import forebay  # noqa: E402
import forebay.saving  # noqa: E402
import forebay.torch as ft  # noqa: E402


@pytest.fixture
def tensors() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "matrix": torch.randn(300, 200),
        "half": torch.randn(50, 40).to(torch.bfloat16),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "empty": torch.empty(0, 4),
        "flags": torch.tensor([True, False, True]),
        "complex": torch.randn(3, 4, dtype=torch.complex64),
        "eighths": torch.randn(4, 4).to(torch.float8_e4m3fn),
    }


@pytest.fixture
def path(tensors: dict[str, Any], tmp_path: Path) -> Path:
    forebay.save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.fixture(params=["whole", "in parts"])
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in parts":
        monkeypatch.setattr(forebay.saving, "_READ_BYTES", 1000)
        monkeypatch.setattr(forebay.saving, "_GROUP_BYTES", 10_000)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    def is_same(name: str) -> bool:
        mine, theirs = one[name], other[name]
        is_alike = (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        return is_alike and bool((as_bytes(mine) == as_bytes(theirs)).all())

    return set(one) == set(other) and all(map(is_same, one))


def as_bytes(tensor: Any) -> Any:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("checksums", [False, True])
def test_unread_tensors_are_saved(checksums: bool, path: Path, tensors: dict[str, Any], tmp_path: Path) -> None:
    checkpoint, target = ft.weights(path), tmp_path / "new.safetensors"
    forebay.save_file(checkpoint, target, checksums=checksums)
    assert same(forebay.load_file(target, device="cpu", verify=checksums), tensors)
    assert checkpoint.stats.bytes == sum(tensor.nbytes for tensor in tensors.values())
    # Under other names, slices, and beside tensors that are in memory.
    mixed = {f"model.{name}": checkpoint[name] for name in tensors}
    mixed |= {"rows": checkpoint["matrix"][100:200], "again": checkpoint["matrix"], "new": torch.arange(5)}
    forebay.save_file(mixed, target, checksums=checksums)
    wanted = {f"model.{name}": tensor for name, tensor in tensors.items()}
    wanted |= {"rows": tensors["matrix"][100:200], "again": tensors["matrix"], "new": torch.arange(5)}
    assert same(forebay.load_file(target, device="cpu", verify=checksums), wanted)


@pytest.mark.usefixtures("parts")
def test_the_file_that_they_come_from_is_replaced(path: Path, tensors: dict[str, Any]) -> None:
    checkpoint = ft.weights(path)
    forebay.save_file({f"model.{name}": tensor for name, tensor in checkpoint.items()}, path)
    assert same(forebay.load_file(path, device="cpu"), {f"model.{name}": tensor for name, tensor in tensors.items()})
    # The open one is still what it was.
    assert same({name: checkpoint[name].clone() for name in checkpoint}, tensors)


def test_a_save_within_a_block_that_collects(path: Path, tensors: dict[str, Any], tmp_path: Path) -> None:
    checkpoint, into = ft.weights(path), torch.zeros(300, 200)
    with checkpoint.collect():
        into.copy_(checkpoint["matrix"])
        forebay.save_file(checkpoint, tmp_path / "new.safetensors")
    assert same(forebay.load_file(tmp_path / "new.safetensors", device="cpu"), tensors)
    assert torch.equal(into, tensors["matrix"])


def test_what_is_not_side_by_side_is_refused(path: Path, tmp_path: Path) -> None:
    checkpoint = ft.weights(path)
    for view in (checkpoint["matrix"].T, checkpoint["matrix"][:, 3:7], checkpoint["scalar"].expand(4)):
        with pytest.raises(forebay.errors.InvalidInputError, match="not contiguous") as caught:
            forebay.save_file({"view": view}, tmp_path / "new.safetensors")
        assert "clone()" in caught.value.hints[0]
        forebay.save_file({"view": view.clone().contiguous()}, tmp_path / "new.safetensors")
    assert not list(tmp_path.glob("*.tmp")) and checkpoint.stats.copied == 0


@pytest.mark.parametrize("damage", ["truncated", "written"])
def test_a_source_that_changes_leaves_the_destination(
    damage: str, path: Path, tensors: dict[str, Any], tmp_path: Path
) -> None:
    checkpoint, target = ft.weights(path), tmp_path / "new.safetensors"
    forebay.save_file({"old": torch.arange(3)}, target)
    if damage == "truncated":
        os.truncate(path, path.stat().st_size - 5000)
    else:
        path.write_bytes(bytes(path.stat().st_size))
    for save in (forebay.save_file, ft.save):
        with pytest.raises((forebay.errors.ShortReadError, forebay.errors.BusyError)) as caught:
            save(dict(checkpoint), target)
        assert str(path) in str(caught.value)
        assert list(forebay.load_file(target, device="cpu")) == ["old"]
    assert sorted(tmp_path.iterdir()) == sorted([path, target])


def test_states_hold_them(path: Path, tensors: dict[str, Any], tmp_path: Path) -> None:
    checkpoint, target = ft.weights(path), tmp_path / "state"
    matrix = checkpoint["matrix"]
    ft.save({"step": 7, "model": checkpoint, "views": [matrix.T, matrix[:, 3:7], matrix]}, target)
    state = ft.load(target, "cpu", verify=True)
    assert state["step"] == 7 and same(state["model"], tensors)
    wanted = [tensors["matrix"].T, tensors["matrix"][:, 3:7], tensors["matrix"]]
    assert all(torch.equal(one, other) for one, other in zip(state["views"], wanted, strict=True))
    # Views of a tensor that is not in the state share what they cover, as those in memory do.
    ft.save([matrix[10:30], matrix[20:40].view(torch.int16)], target)
    one, other = ft.load(target, "cpu", verify=True)
    assert torch.equal(one, tensors["matrix"][10:30])
    assert torch.equal(other, tensors["matrix"][20:40].view(torch.int16))
    assert one.untyped_storage()._cdata == other.untyped_storage()._cdata
    for snapshot in (None, "device", "host"):
        ft.save_async({"model": checkpoint}, target, snapshot=snapshot).result(60)
        assert same(ft.load(target, "cpu", verify=True)["model"], tensors)
    # Over the file that they come from.
    ft.save(checkpoint, path)
    assert same(ft.load(path, "cpu", verify=True), tensors)


def test_distributed_checkpoints_hold_them(path: Path, tensors: dict[str, Any], tmp_path: Path) -> None:
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    checkpoint = ft.weights(path)
    dcp.save(dict(checkpoint), storage_writer=ft.CheckpointWriter(tmp_path / "dcp"), no_dist=True)
    loaded = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    dcp.load(loaded, storage_reader=ft.CheckpointReader(tmp_path / "dcp"), no_dist=True)
    assert same(loaded, tensors)


#: A fresh process: the high mark of its memory while it saves what is larger than that may grow.
MEMORY = """
import resource, sys
import torch
import forebay, forebay.torch
checkpoint = forebay.torch.weights(sys.argv[1])
forebay.save_file({"tiny": checkpoint["tiny"]}, sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
forebay.save_file(checkpoint, sys.argv[2])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_save_needs_little_memory(
    tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    size = 768 << 20
    forebay.save_file(
        {"large": torch.zeros(size, dtype=torch.uint8), "tiny": torch.arange(3)}, tmp_path / "a.safetensors"
    )
    done = run_python(MEMORY, str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors"))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 400
    assert (tmp_path / "b.safetensors").stat().st_size == (tmp_path / "a.safetensors").stat().st_size
