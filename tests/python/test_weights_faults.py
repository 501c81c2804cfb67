"""Faults of checkpoints that are read where they are used, and what the user sees."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import forebay  # noqa: E402
import forebay.torch as ft  # noqa: E402


@pytest.fixture
def tensors() -> dict[str, Any]:
    torch.manual_seed(0)
    return {"begin": torch.randn(64, 64), "center": torch.randn(64, 64), "last": torch.randn(64, 64)}


@pytest.fixture
def path(tensors: dict[str, Any], tmp_path: Path) -> Path:
    forebay.save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_a_file_shorter_than_its_header_says(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(forebay.errors.ShortReadError, match="shorter than its header says") as told:
        ft.weights(path)
    assert told.value.context["path"] == str(path) and told.value.context["tensor"] == "last"
    size, (start, end) = path.stat().st_size, map(int, told.value.context["bytes"].split("-"))
    assert start < size == end - 4
    assert told.value.hints


def test_a_file_that_shrinks_after_it_was_listed(path: Path) -> None:
    checkpoint = ft.weights(path)
    os.truncate(path, path.stat().st_size - 4)
    into = torch.zeros(64, 64)
    for read in (
        lambda: into.copy_(checkpoint["last"]),
        checkpoint["last"][1:].clone,
        lambda: collected(checkpoint, into),
    ):
        with pytest.raises((forebay.errors.BusyError, forebay.errors.ShortReadError)) as told:
            read()
        assert told.value.context["path"] == str(path) and told.value.context["tensor"] == "last"
        start, end = map(int, told.value.context["bytes"].split("-"))
        assert start < path.stat().st_size < end


def collected(checkpoint: Any, *into: Any) -> None:
    with checkpoint.collect():
        for name, destination in zip(reversed(list(checkpoint)), into, strict=False):
            destination.copy_(checkpoint[name])


def test_a_file_that_changes_between_listing_and_reading(path: Path, tensors: dict[str, Any]) -> None:
    checkpoint = ft.weights(path)
    time.sleep(0.02)
    with open(path, "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"changed!")
    into = torch.zeros(64, 64)
    with pytest.raises(forebay.errors.BusyError, match="changed while it was read") as told:
        collected(checkpoint, into)
    assert told.value.context["tensor"] == "last" and told.value.context["path"] == str(path)
    with pytest.raises(forebay.errors.BusyError):
        checkpoint["begin"].sum()


def test_an_engine_that_loads_ends_with_the_error(path: Path) -> None:
    """What vLLM does in load_weights: nothing goes on with a model of which a part was loaded."""
    program = (
        "import os, sys, torch, forebay.torch as ft\n"
        "checkpoint = ft.weights(sys.argv[1])\n"
        "os.truncate(sys.argv[1], os.path.getsize(sys.argv[1]) - 4)\n"
        "with checkpoint.collect():\n"
        "    for name in checkpoint: torch.zeros(64, 64).copy_(checkpoint[name])\n"
        "print('serving')\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True)
    assert done.returncode == 1 and "serving" not in done.stdout
    assert "tensor=last" in done.stderr and str(path) in done.stderr


def test_a_tensor_that_lacks_or_has_another_shape(path: Path) -> None:
    checkpoint = ft.weights(path)
    with pytest.raises(KeyError, match="none"):
        checkpoint["none"]
    with pytest.raises(RuntimeError, match=r"size of tensor a \(32\) must match the size of tensor b \(64\)"):
        torch.zeros(64, 32).copy_(checkpoint["begin"])
    module = torch.nn.Linear(64, 64)
    with pytest.raises(RuntimeError, match="Missing key") as told:
        module.load_state_dict(checkpoint)
    assert "weight" in str(told.value) and "begin" in str(told.value)


def test_a_rank_that_is_killed_leaves_files_and_cache_as_they_were(path: Path, tensors: dict[str, Any]) -> None:
    program = (
        "import sys, time, torch, forebay.torch as ft\n"
        "checkpoint = ft.weights(sys.argv[1])\n"
        "with checkpoint.collect():\n"
        "    for name in checkpoint: torch.zeros(64, 64).copy_(checkpoint[name])\n"
        "    checkpoint._reads._collection.submit()\n"
        "    print('loading', flush=True)\n"
        "    time.sleep(60)\n"
    )
    before = path.read_bytes()
    rank = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True)
    assert rank.stdout is not None and rank.stdout.readline() == "loading\n"
    rank.send_signal(signal.SIGKILL)
    assert rank.wait(30) == -signal.SIGKILL
    assert path.read_bytes() == before
    checkpoint = ft.weights(path)
    into = torch.zeros(64, 64)
    collected(checkpoint, into)
    assert torch.equal(into, tensors["last"])
