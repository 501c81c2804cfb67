"""Checkpoint tensors that are read where they are used: views cost nothing, copies go straight into place, all else is right."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
numpy = pytest.importorskip("numpy", reason="numpy is not installed")

import forebay  # noqa: E402
import forebay.torch as ft  # noqa: E402


@pytest.fixture
def tensors() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "matrix": torch.randn(8, 6),
        "cube": torch.randn(4, 6, 8).to(torch.bfloat16),
        "bias": torch.arange(12, dtype=torch.int32),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "empty": torch.empty(0, 4),
        "flags": torch.tensor([True, False, True]),
        "complex": torch.randn(3, 4, dtype=torch.complex64),
        "eighths": torch.randn(4, 4).to(torch.float8_e4m3fn),
    }


@pytest.fixture
def weights(tensors: dict[str, Any], tmp_path: Path) -> Any:
    path = tmp_path / "model.safetensors"
    forebay.save_file(tensors, path)
    return ft.weights(path)


#: Views of the cube. Each is the same of a tensor in memory, strides and all, and none reads a byte.
VIEWS: dict[str, Callable[[Any], Any]] = {
    "slice": lambda t: t[1:3],
    "columns": lambda t: t[:, :, 2:5],
    "steps": lambda t: t[::2, 1::3, ::4],
    "index": lambda t: t[2, -1],
    "ellipsis": lambda t: t[..., None, 3],
    "narrow": lambda t: t.narrow(1, 2, 3),
    "torch.narrow": lambda t: torch.narrow(t, 1, 2, 3),
    "chunk": lambda t: t.chunk(3, dim=1)[2],
    "split": lambda t: t.split([2, 4, 2], dim=-1)[1],
    "tensor_split": lambda t: t.tensor_split(4, dim=2)[3],
    "unbind": lambda t: t.unbind(1)[4],
    "iter": lambda t: next(iter(t)),
    "select": lambda t: t.select(2, 7),
    "view": lambda t: t.view(24, 8),
    "view dtype": lambda t: t.view(torch.int16),
    "view wider": lambda t: t.view(torch.float32),
    "view bytes": lambda t: t.view(torch.uint8),
    "view_as": lambda t: t.view_as(torch.empty(8, 24)),
    "reshape": lambda t: t.reshape(4, -1),
    "flatten": lambda t: t.flatten(1),
    "unflatten": lambda t: t.unflatten(2, (2, 4)),
    "transpose": lambda t: t.transpose(0, 2),
    "permute": lambda t: t.permute(2, 0, 1),
    "t": lambda t: t[0].t(),
    "T": lambda t: t[0].T,
    "mT": lambda t: t.mT,
    "movedim": lambda t: t.movedim(0, -1),
    "squeeze": lambda t: t[:1].squeeze(0),
    "unsqueeze": lambda t: t.unsqueeze(1),
    "expand": lambda t: t[:1].expand(5, 6, 8),
    "detach": lambda t: t.detach(),
    "data": lambda t: t.data,
    "contiguous": lambda t: t.contiguous(),
    "diagonal": lambda t: t.diagonal(0, 0, 1),
    "as_strided": lambda t: t.as_strided((3, 4), (8, 2), 5),
    "unfold": lambda t: t.unfold(2, 3, 2),
    "chain": lambda t: t[1:].transpose(1, 2)[:, 2:6].chunk(2, 1)[1][..., ::2],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_free_and_equal(name: str, weights: Any, tensors: dict[str, Any]) -> None:
    view, wanted = VIEWS[name](weights["cube"]), VIEWS[name](tensors["cube"])
    assert isinstance(view, ft.Weight) and weights.stats.bytes == 0
    assert (view.shape, view.stride(), view.dtype) == (wanted.shape, wanted.stride(), wanted.dtype)
    assert view.offset == weights["cube"].offset + (wanted.data_ptr() - tensors["cube"].data_ptr())
    into = torch.zeros(wanted.shape, dtype=wanted.dtype)
    before = weights.stats.bytes
    assert into.copy_(view) is into
    assert same(into, wanted)
    if name not in ("expand", "unfold", "as_strided"):
        assert weights.stats.bytes - before == wanted.numel() * wanted.element_size()
        assert weights.stats.copied == 1 and not weights.stats.operations
    moved = view.to("cpu")
    assert (
        type(moved) is torch.Tensor and same(moved, wanted) and moved.stride() == wanted.to("cpu", copy=True).stride()
    )


def same(one: Any, other: Any) -> bool:
    """Equal bit by bit."""
    one, other = one.contiguous(), other.contiguous()
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.element_size() in (1, 2):
        one, other = (array.reshape(-1).view(torch.uint8) for array in (one, other))
    return torch.equal(one, other)


def test_a_mapping_of_tensors(weights: Any, tensors: dict[str, Any]) -> None:
    assert list(weights) == list(ft.weights(weights["cube"].path)) and set(weights) == set(tensors)
    assert len(weights) == len(tensors) and weights["cube"] is weights["cube"] and "none" not in weights
    with pytest.raises(KeyError):
        weights["none"]
    for name, tensor in tensors.items():
        weight = weights[name]
        assert (weight.shape, weight.dtype, weight.device, weight.is_meta) == (
            tensor.shape,
            tensor.dtype,
            tensor.device,
            False,
        )
        assert (weight.key, weight.numel(), weight.nbytes, weight.is_cpu) == (name, tensor.numel(), tensor.nbytes, True)
        assert name in repr(weight) and weight.path in repr(weight) and f"{tensor.dtype}" in repr(weight)
        with open(weight.path, "rb") as file:
            file.seek(weight.offset)
            assert file.read(tensor.nbytes) == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    assert weights.stats.bytes == 0
    for name, tensor in tensors.items():
        assert same(weights[name].clone(), tensor)
    assert weights.stats.bytes == sum(tensor.nbytes for tensor in tensors.values())


#: Operations that nobody foresaw, and their name in the account.
OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "add": lambda t: t + 1,
    "mul": lambda t: 2.0 * t,
    "matmul": lambda t: t @ t.T.float(),
    "sum": lambda t: t.sum(),
    "cat": lambda t: torch.cat([t, t[:2]]),
    "stack": lambda t: torch.stack((t, t)),
    "exp": lambda t: -torch.exp(t.float()),
    "index_select": lambda t: t.index_select(0, torch.tensor([1, 0])),
    "__getitem__": lambda t: t[[2, 1]],
    "reshape": lambda t: t.T.reshape(-1),
    "view": lambda t: t.unsqueeze(0).repeat(2, 1, 1),
    "linear": lambda t: torch.nn.functional.linear(torch.ones(6), t),
    "float": lambda t: t.double(),
    "numpy": lambda t: torch.from_numpy(t.numpy()),
    "tolist": lambda t: torch.tensor(t.tolist()),
    "einsum": lambda t: torch.einsum("ij,kj->ik", t, t),
    "contiguous": lambda t: t.T.contiguous(),
    "dlpack": torch.from_dlpack,
    "_to_copy": lambda t: torch.as_tensor(t, dtype=torch.float64),
    "native": lambda t: torch.ops.aten.add.Tensor(t, t),
    "array": lambda t: torch.from_numpy(numpy.asarray(t)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_any_other_operation_reads_and_is_counted(name: str, weights: Any, tensors: dict[str, Any]) -> None:
    result = OPERATIONS[name](weights["matrix"])
    assert type(result) is torch.Tensor and torch.equal(result, OPERATIONS[name](tensors["matrix"]))
    stats = weights.stats
    assert stats.whole == sum(stats.operations.values()) > 0 and stats.copied == 0
    assert all(operation in str(stats) for operation in stats.operations)


@pytest.mark.parametrize("view", [lambda t: t.adjoint(), lambda t: t.mH, lambda t: t.H, lambda t: t[1:].mH.flatten()])
def test_adjoint_complex_numbers_are_conjugated(
    view: Callable[[Any], Any], weights: Any, tensors: dict[str, Any]
) -> None:
    wanted = view(tensors["complex"]).resolve_conj()
    for use in (lambda t: t.clone(), lambda t: t.to(torch.complex128), lambda t: torch.zeros_like(wanted).copy_(t)):
        assert torch.equal(use(view(weights["complex"])).resolve_conj(), use(wanted))
    assert isinstance(weights["matrix"].mH, ft.Weight)


def test_native_code_gets_the_bytes(weights: Any, tensors: dict[str, Any]) -> None:
    """Also where it takes the tensor for one on the device meta."""
    with pytest.warns(UserWarning, match="copy construct"):
        made = torch.tensor(weights["matrix"])
    assert made.device == torch.device("cpu") and torch.equal(made, tensors["matrix"])


def test_operations_are_counted_by_name(weights: Any) -> None:
    weights["matrix"] + weights["matrix"][0]
    weights["bias"].float()
    weights["cube"].to("cpu", torch.float32)
    torch.zeros(12, dtype=torch.int32).copy_(weights["bias"])
    assert weights.stats.operations == {"add": 2, "float": 1, "to": 1}
    assert (weights.stats.whole, weights.stats.moved, weights.stats.cast, weights.stats.copied) == (3, 1, 1, 1)
    assert "add 2" in str(weights.stats) and sum(weights.stats.engines.values()) == weights.stats.bytes


def test_its_form_is_told_without_reading(weights: Any, tensors: dict[str, Any]) -> None:
    weight, tensor = weights["cube"], tensors["cube"]
    assert torch.empty_like(weight).shape == tensor.shape and torch.zeros_like(weight).sum() == 0
    assert weight.new_zeros(2).dtype == tensor.dtype and weight.type() == tensor.type()
    assert torch.is_tensor(weight) and torch.is_floating_point(weight) and torch.numel(weight) == tensor.numel()
    assert weight.size() == tensor.size() and weight.dim() == 3 and len(weight) == 4 and weight.is_contiguous()
    assert weight.requires_grad_(False) is weight.requires_grad_(requires_grad=False) is weight
    assert not weight.requires_grad and weight.grad is None and weight.get_device() == -1
    assert torch.equal(torch.ones(2).to(weight), torch.ones(2, dtype=torch.bfloat16))
    assert hash(weight) == hash(weight) and weight.get_dtype() == "BF16" and weight.get_shape() == [4, 6, 8]
    assert weights.stats.bytes == 0


WRITES: dict[str, Callable[[Any], Any]] = {
    "add_": lambda t: t.add_(1),
    "__iadd__": lambda t: t.__iadd__(1),
    "__setitem__": lambda t: t.__setitem__(0, 1),
    "copy_": lambda t: t.copy_(torch.zeros(8, 6)),
    "zero_": lambda t: t[1:].zero_(),
    "out": lambda t: torch.add(torch.ones(8, 6), 1, out=t),
    "init": torch.nn.init.zeros_,
    "requires_grad_": lambda t: t.requires_grad_(),
    "Parameter": torch.nn.Parameter,
    "requires_grad": lambda t: setattr(t, "requires_grad", True),
    "data": lambda t: setattr(t, "data", torch.zeros(1)),
    "relu": lambda t: torch.nn.functional.relu(t, inplace=True),
    "set_": lambda t: t.set_(torch.zeros(1)),
}


@pytest.mark.parametrize("name", WRITES)
def test_it_is_never_written(name: str, weights: Any) -> None:
    with pytest.raises(forebay.errors.InvalidInputError, match="never written") as told:
        WRITES[name](weights["matrix"])
    assert told.value.context["tensor"] == "matrix" and "clone()" in told.value.hints[0]
    assert weights.stats.bytes == 0


@pytest.mark.parametrize("ask", ["data_ptr", "untyped_storage", "storage"])
def test_it_has_no_memory(ask: str, weights: Any) -> None:
    with pytest.raises(forebay.errors.InvalidInputError, match="no memory") as told:
        getattr(weights["matrix"], ask)()
    assert "clone()" in told.value.hints[0] and ask in str(told.value)


#: What vLLM 0.32 asks of the tensors of dense models, mixtures of experts, tied embeddings and sliding windows, on one rank and
#: on two: recorded by tests/serving/vllm_rank.py.
ASKED_BY_VLLM = {"copy_", "device", "dim", "dtype", "narrow", "ndim", "shape", "size", "unbind", "unsqueeze"}


def test_what_vllm_asks_reads_slices_alone(weights: Any, tensors: dict[str, Any]) -> None:
    from forebay.torch import _weights_calls as calls
    from forebay.torch import _weights_tensor

    known = {calls.name_of(function) for function in {*calls.ASKS, *_weights_tensor._ANSWERS}}
    assert known >= ASKED_BY_VLLM
    column, row = torch.zeros(4, 6), torch.zeros(8, 3)
    experts = torch.zeros(4, 3, 8, dtype=torch.bfloat16)
    with weights.collect():
        column.copy_(weights["matrix"].narrow(0, column.shape[0], column.size(0)))
        row.copy_(weights["matrix"].narrow(1, row.shape[1], row.size(1)))
        for into, weight in zip(experts, weights["cube"].unbind(0), strict=True):
            (one,) = weight.unsqueeze(0).unbind(0)
            assert one.dim() == one.ndim == 2 and one.dtype == into.dtype and one.device == into.device
            into.copy_(one.narrow(0, 3, 3))
    assert torch.equal(column, tensors["matrix"][4:]) and torch.equal(row, tensors["matrix"][:, 3:])
    assert same(experts, tensors["cube"][:, 3:])
    assert weights.stats.bytes == column.nbytes + row.nbytes + experts.nbytes
    assert weights.stats.copied == 6 and not weights.stats.operations


def test_copies_go_into_any_strides(weights: Any, tensors: dict[str, Any]) -> None:
    weight, tensor = weights["cube"], tensors["cube"]
    base = torch.zeros(8, 16, 6, dtype=torch.bfloat16)
    for view in (
        lambda t: t[2:6, ::2].transpose(1, 2),
        lambda t: t[::2, 3:11].transpose(1, 2),
        lambda t: t.permute(2, 1, 0)[:4, :, :][:, :6].narrow(2, 0, 8),
    ):
        mine, theirs = base.clone(), base.clone()
        view(mine).copy_(weight)
        view(theirs).copy_(tensor)
        assert same(mine, theirs)
    mine, theirs = base.clone(), base.clone()
    for into, source in ((mine, weight), (theirs, tensor)):
        into[3, 1:7] = source[0].T[:6]
        into[0] = source[1, 2, :6]
        into[:, -1, ::3] = source[None, 0, 0, 2:4]
    # Those that repeat elements read them once.
    assert same(mine, theirs) and weights.stats.operations == {"__setitem__": 2}
    broadcast = torch.zeros(3, 8, 6)
    assert torch.equal(broadcast.copy_(weights["matrix"]), tensors["matrix"].expand(3, 8, 6))


def test_very_many_short_runs_are_read_with_what_lies_between(tmp_path: Path) -> None:
    tensor = torch.arange(1 << 18, dtype=torch.int32).view(512, 512)
    forebay.save_file({"t": tensor}, tmp_path / "t.safetensors")
    checkpoint = ft.weights(tmp_path / "t.safetensors")
    turned, part = torch.zeros(512, 512, dtype=torch.int32), torch.zeros(512, 256, dtype=torch.int32)
    with checkpoint.collect():
        turned.copy_(checkpoint["t"].T)
        part.copy_(checkpoint["t"][:, ::2])
    assert torch.equal(turned, tensor.T) and torch.equal(part, tensor[:, ::2])
    assert torch.equal(checkpoint["t"][:, 1::2].clone(), tensor[:, 1::2])
    assert checkpoint.stats.pieces == 3 and checkpoint.stats.operations == {"copy_": 2, "clone": 1}


def test_copies_of_other_dtypes_are_cast(weights: Any, tensors: dict[str, Any]) -> None:
    half = torch.zeros(8, 6, dtype=torch.float16)
    assert torch.equal(half.copy_(weights["matrix"]), tensors["matrix"].half())
    assert (weights.stats.cast, weights.stats.copied, weights.stats.operations) == (1, 0, {"copy_": 1})


def test_copies_refuse_as_torch_does(weights: Any, tensors: dict[str, Any]) -> None:
    leaf = torch.nn.Parameter(torch.zeros(8, 6))
    for attempt in (
        lambda t: torch.zeros(5, 6).copy_(t),
        leaf.copy_,
        lambda t: torch.zeros(1, 6).expand(8, 6).copy_(t),
        lambda t: torch.zeros(3).__setitem__(0, t),
    ):
        with pytest.raises(RuntimeError) as mine:
            attempt(weights["matrix"])
        with pytest.raises(RuntimeError) as theirs:
            attempt(tensors["matrix"])
        assert str(mine.value) == str(theirs.value)
    with torch.no_grad():
        leaf.copy_(weights["matrix"])
    assert torch.equal(leaf, tensors["matrix"]) and leaf._version > 0


def test_data_of_a_parameter(weights: Any) -> None:
    """`parameter.data = tensor` never leaves a parameter without data."""
    for device in ("cpu", "meta"):
        parameter = torch.nn.Parameter(torch.zeros(8, 6, device=device))
        with pytest.raises(RuntimeError, match="incompatible tensor type"):
            parameter.data = weights["matrix"]


def test_state_of_a_module(weights: Any, tensors: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(1)
    theirs = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 3, bias=False))
    mine = copy.deepcopy(theirs)
    forebay.save_file(theirs.state_dict(), tmp_path / "state.safetensors")
    with torch.no_grad():
        for parameter in mine.parameters():
            parameter.zero_()
    checkpoint = ft.weights(tmp_path / "state.safetensors")
    with checkpoint.collect():
        mine.load_state_dict(checkpoint)
    assert all(torch.equal(one, other) for one, other in zip(mine.parameters(), theirs.parameters(), strict=True))
    assert checkpoint.stats.copied == 5 and not checkpoint.stats.operations
    with pytest.raises(RuntimeError, match="never written"):
        mine.load_state_dict(checkpoint, assign=True)
    with pytest.raises(RuntimeError, match="size mismatch for 0.weight"):
        torch.nn.Sequential(
            torch.nn.Linear(4, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 3, bias=False)
        ).load_state_dict(checkpoint)
    lacks = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 3))
    with pytest.raises(RuntimeError, match=r"Missing key.*2\.bias"):
        lacks.load_state_dict(checkpoint)


def test_saves_and_copies_keep_values(weights: Any, tensors: dict[str, Any], tmp_path: Path) -> None:
    torch.save({"part": weights["cube"][1:], "all": dict(weights)}, tmp_path / "saved.pt")
    Path(weights["cube"].path).unlink()
    loaded = torch.load(tmp_path / "saved.pt", weights_only=True)
    assert same(loaded["part"], tensors["cube"][1:]) and all(
        same(loaded["all"][name], tensors[name]) for name in tensors
    )
    assert same(copy.deepcopy(weights["cube"][2]).clone(), tensors["cube"][2])
    assert same(copy.copy(weights["cube"].mT[1]).clone(), tensors["cube"].mT[1])


def test_pickles_name_the_file(weights: Any, tensors: dict[str, Any]) -> None:
    view = weights["cube"][1:, ::2].transpose(0, 2)
    again = pickle.loads(pickle.dumps(view))
    assert isinstance(again, ft.Weight) and weights.stats.bytes == 0
    assert again.stride() == view.stride() and again.key == "cube"
    assert same(again.clone(), tensors["cube"][1:, ::2].transpose(0, 2))
    packed = pickle.dumps(weights["cube"])
    forebay.save_file(tensors, weights["cube"].path)
    with pytest.raises(forebay.errors.BusyError, match="replaced or changed"):
        pickle.loads(packed)
    # The open one is still what it was.
    assert same(weights["cube"].clone(), tensors["cube"])


def test_a_pickled_checkpoint_names_its_files(weights: Any, tensors: dict[str, Any], tmp_path: Path) -> None:
    packed = pickle.dumps(weights)
    assert len(packed) < 3000 and weights.stats.bytes == 0
    again = pickle.loads(pickle.dumps(pickle.loads(packed)))
    assert isinstance(again, ft.Weights) and list(again) == list(weights) and again.stats is not weights.stats
    assert again["cube"].stored_type == "BF16" and again["cube"].path == weights["cube"].path
    with again.collect():
        made = {name: torch.empty_like(tensor).copy_(again[name]) for name, tensor in tensors.items()}
    assert all(same(made[name], tensor) for name, tensor in tensors.items()) and weights.stats.bytes == 0
    assert copy.copy(weights) is copy.deepcopy(weights) is weights
    # What torch saves is there without the file.
    torch.save(weights, tmp_path / "saved.pt")
    forebay.save_file(tensors, weights["cube"].path)
    with pytest.raises(forebay.errors.BusyError, match="replaced or changed"):
        pickle.loads(packed)
    Path(weights["cube"].path).unlink()
    with pytest.raises(forebay.errors.NotFoundError):
        pickle.loads(packed)
    loaded = torch.load(tmp_path / "saved.pt", weights_only=True)
    assert list(loaded) == list(weights) and all(same(loaded[name], tensor) for name, tensor in tensors.items())


def test_a_pickled_checkpoint_has_its_shards_alone(tensors: dict[str, Any], tmp_path: Path) -> None:
    names = list(tensors)
    for number, part in enumerate((names[:4], names[4:])):
        forebay.save_file({name: tensors[name] for name in part}, tmp_path / f"{number}.safetensors")
    # "bias" is in a file, but not of the model.
    found = {name: f"{names.index(name) // 4}.safetensors" for name in names if name != "bias"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": found}))
    again = pickle.loads(pickle.dumps(ft.weights(tmp_path)))
    assert set(again) == set(found) and all(same(again[name].clone(), tensors[name]) for name in found)


def test_collected_copies_are_there_at_the_end(weights: Any, tensors: dict[str, Any]) -> None:
    made = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    with weights.collect():
        for name, into in made.items():
            into.copy_(weights[name])
        # What needs bytes reads at once.
        assert weights["matrix"].sum() == tensors["matrix"].sum()
        with weights.collect():
            pass
        assert weights.stats.engines.total() == tensors["matrix"].nbytes
    assert all(same(made[name], tensors[name]) for name in tensors)
    assert weights.stats.copied == len(tensors)


def test_the_later_copy_wins(weights: Any, tensors: dict[str, Any]) -> None:
    into = torch.zeros(8, 6)
    with weights.collect():
        into.copy_(weights["matrix"])
        into[:4].copy_(weights["matrix"][4:])
        into[:, :2].copy_(weights["matrix"][:, 4:])
    wanted = tensors["matrix"].clone()
    wanted[:4] = tensors["matrix"][4:]
    wanted[:, :2] = tensors["matrix"][:, 4:]
    assert torch.equal(into, wanted)


def test_the_later_copy_wins_also_where_it_is_cast(weights: Any, tensors: dict[str, Any]) -> None:
    into = torch.zeros(12, dtype=torch.int32)
    with weights.collect():
        into.copy_(weights["bias"])
        into[:8].copy_(weights["matrix"][:, 0])
        into[8] = weights["scalar"]
    assert into.tolist() == [*tensors["matrix"][:, 0].int().tolist(), 3, 9, 10, 11]


@pytest.mark.parametrize("collects", ["both", "first", "last"])
def test_the_later_copy_wins_also_of_two_checkpoints(collects: str, tmp_path: Path) -> None:
    checkpoints = []
    for seed in (1, 2):
        # Large enough that the later read would often end first.
        torch.manual_seed(seed)
        forebay.save_file({"a": torch.randn(1000, 1000)}, tmp_path / f"{seed}.safetensors")
        checkpoints.append(forebay.torch.weights(tmp_path / f"{seed}.safetensors"))
    for first, last in [checkpoints, checkpoints[::-1]] * 3:
        into = torch.zeros(1000, 1000)
        with contextlib.ExitStack() as blocks:
            for one in {"both": [first, last], "first": [first], "last": [last]}[collects]:
                blocks.enter_context(one.collect())
            into.copy_(first["a"])
            into.copy_(last["a"])
        assert torch.equal(into, last["a"].clone())


def test_an_exception_ends_what_is_in_flight(weights: Any, tensors: dict[str, Any]) -> None:
    into = torch.zeros_like(tensors["matrix"])
    with pytest.raises(ZeroDivisionError), weights.collect():
        into.copy_(weights["matrix"])
        raise ZeroDivisionError
    # And the next block is one of its own.
    with weights.collect():
        into.copy_(weights["matrix"])
    assert torch.equal(into, tensors["matrix"])


#: A fresh process that does all that loaders do, then says whether it had to import sympy, which takes seconds.
IMPORTS = """
import sys
import torch
import forebay.torch
had = "sympy" in sys.modules
weights = forebay.torch.weights(sys.argv[1])
matrix, bias = weights["matrix"], weights["bias"]
made = torch.empty_like(matrix)
with weights.collect():
    made.copy_(matrix)
    made[:, :3].copy_(matrix[:, :3])
parts = [matrix.narrow(0, 1, 2), matrix.T, matrix.view(-1), matrix.chunk(2)[1], bias.expand(3, 12), matrix[1:, ::2]]
read = [part.to(torch.float64) for part in parts], [part.clone() for part in parts], matrix.T.contiguous(), matrix + 1
assert matrix.to("meta").is_meta and torch.zeros_like(matrix[:, 1:3]).shape == (8, 2)
print(had, "sympy" in sys.modules)
"""


def test_views_copies_and_moves_do_not_import_sympy(weights: Any) -> None:
    command = [sys.executable, "-c", IMPORTS, weights["matrix"].path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    had, has = done.stdout.split()
    assert had == has


@pytest.mark.parametrize("view", [((100,), (-1,)), ((4,), (1,), 3070), ((2,), (1,), -4), ((65, 48), (48, 1))])
def test_as_strided_stays_inside_of_its_tensor(view: tuple[Any, ...], tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    one = torch.randn(64, 48)
    forebay.save_file({"a": one, "b": one.clone()}, path)
    weights = forebay.torch.weights(path)
    with pytest.raises((forebay.errors.InvalidInputError, RuntimeError)):
        weights["a"].as_strided(*view).clone()
    with pytest.raises((forebay.errors.InvalidInputError, RuntimeError)):
        weights["a"][1:].as_strided(*view).clone()
    for again in (pickle.loads(pickle.dumps(weights["a"])), pickle.loads(pickle.dumps(weights["a"][5:]))):
        with pytest.raises((forebay.errors.InvalidInputError, RuntimeError)):
            again.as_strided(*view).clone()
        assert torch.equal(again.as_strided((64, 48), (48, 1), 0).clone(), one)
    wanted = one.as_strided((32, 48), (96, 1), 48)
    assert torch.equal(weights["a"].as_strided((32, 48), (96, 1), 48).clone(), wanted)


def test_an_empty_tensor_has_no_strided_views(weights: Any) -> None:
    for empty in (weights["empty"], pickle.loads(pickle.dumps(weights["empty"]))):
        with pytest.raises(forebay.errors.InvalidInputError, match="leaves the tensor"):
            empty.as_strided((2,), (1,))
        assert empty.as_strided((0, 2), (2, 1)).shape == (0, 2)


def test_threads_collect_copies_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    one = torch.randn(64, 48)
    forebay.save_file({"a": one}, path)
    weights, target = forebay.torch.weights(path), torch.zeros(64, 48)
    is_inside, may_end = threading.Event(), threading.Event()

    def fails() -> None:
        with contextlib.suppress(KeyError), weights.collect():
            is_inside.set()
            may_end.wait(60)
            raise KeyError

    other = threading.Thread(target=fails)
    other.start()
    assert is_inside.wait(60)
    with weights.collect():
        target.copy_(weights["a"])
    assert torch.equal(target, one)
    target.zero_()
    # Outside of a block, at once.
    target.copy_(weights["a"])
    assert torch.equal(target, one)
    may_end.set()
    other.join()
