"""Checkpoint tensors that are read straight into GPU memory. torch needs a real GPU: FOREBAY_TEST_GPU=real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import forebay  # noqa: E402
import forebay.torch as ft  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")


@pytest.fixture
def tensors() -> dict[str, Any]:
    torch.manual_seed(0)
    return {f"layer.{at}.weight": torch.randn(256, 512).to(torch.bfloat16) for at in range(8)}


@pytest.fixture
def weights(tensors: dict[str, Any], tmp_path: Path) -> Any:
    forebay.save_file(tensors, tmp_path / "model.safetensors")
    return ft.weights(tmp_path / "model.safetensors")


def test_slices_are_read_into_parameters(weights: Any, tensors: dict[str, Any]) -> None:
    rows = {name: torch.zeros(128, 512, dtype=torch.bfloat16, device="cuda") for name in tensors}
    columns = {name: torch.zeros(512, 512, dtype=torch.bfloat16, device="cuda") for name in tensors}
    for _ in range(2):
        with weights.collect():
            for name in tensors:
                rows[name].copy_(weights[name][128:])
                columns[name][:256, 256:].copy_(weights[name].narrow(1, 256, 256))
                columns[name][256:].T.copy_(weights[name].T)
        for name, tensor in tensors.items():
            assert torch.equal(rows[name].cpu(), tensor[128:])
            assert torch.equal(columns[name][:256, 256:].cpu(), tensor[:, 256:])
            assert torch.equal(columns[name][256:].cpu(), tensor)
            rows[name].zero_()
            columns[name].zero_()
        weights.pin()
    assert weights.stats.copied == 2 * 3 * len(tensors) and not weights.stats.operations


def test_tensors_go_to_the_device_that_is_named(weights: Any, tensors: dict[str, Any]) -> None:
    name, tensor = next(iter(tensors.items()))
    weight = weights[name]
    moved = [
        weight.to("cuda"),
        weight.cuda(),
        weight.to(device=0, non_blocking=True),
        weight.to(torch.empty(0, device="cuda").bfloat16()),
    ]
    for made in moved:
        assert type(made) is torch.Tensor and made.device == torch.device("cuda", 0) and torch.equal(made.cpu(), tensor)
    assert torch.equal(weight.to("cuda", torch.float16).cpu(), tensor.half())
    assert torch.equal(weight[:, ::2].to("cuda").cpu(), tensor[:, ::2])
    assert torch.equal(weight.T.to("cuda").cpu(), tensor.T)
    assert (weights.stats.cast, weights.stats.whole) == (1, 0)
    into = torch.zeros(512, 256, device="cuda")
    into[:, 1:] = weight.T[:, 1:]
    assert torch.equal(into[:, 1:].cpu(), tensor.T[:, 1:].float())


def test_work_that_is_queued_on_the_destination_comes_first(weights: Any, tensors: dict[str, Any]) -> None:
    name, tensor = next(iter(tensors.items()))
    into = torch.zeros(256, 512, dtype=torch.bfloat16, device="cuda")
    for _ in range(20):
        busy = torch.randn(2048, 2048, device="cuda")
        for _ in range(8):
            busy = busy @ busy
        into.fill_(float(busy[0, 0] != 0))
        into.copy_(weights[name])
        assert torch.equal(into.cpu(), tensor)
