"""Tensors that are no plain piece of memory. What torch's own writer of checkpoints saves is saved and comes back; of the rest the
error says which tensor it is, what it is, and what helps. Nothing reads where no memory is.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import numpy as np  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.distributed.checkpoint.api import CheckpointException  # noqa: E402

import forebay  # noqa: E402
import forebay.data  # noqa: E402
import forebay.torch as ft  # noqa: E402
from forebay import errors  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Scaled(torch.Tensor):
    """A tensor of small numbers and their scale, as libraries for quantization have them: no memory of its own."""

    @staticmethod
    def __new__(cls, inner: Any, scale: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=torch.float32)

    def __init__(self, inner: Any, scale: Any) -> None:
        self.inner, self.scale = inner, scale

    def __tensor_flatten__(self) -> Any:
        return ["inner", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].inner, args[0].scale)
        if func is torch.ops.aten.copy_.default and all(isinstance(one, cls) for one in args[:2]):
            args[0].inner.copy_(args[1].inner)
            args[0].scale.copy_(args[1].scale)
            return args[0]
        args = [one.inner * one.scale if isinstance(one, cls) else one for one in args]
        return func(*args, **(kwargs or {}))


class Named(torch.Tensor):
    """A class of its own over plain memory."""


def scaled(value: int = 3, scale: float = 0.5) -> Any:
    return Scaled(torch.full((4,), value, dtype=torch.int8), torch.tensor(scale))


def quantized(scale: float = 0.1) -> Any:
    return torch.quantize_per_tensor(torch.arange(6.0).reshape(2, 3), scale, 10, torch.quint8)


def freed() -> Any:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def cut() -> Any:
    tensor = torch.ones(400)[100:]
    tensor.untyped_storage().resize_(800)
    return tensor


def fake() -> Any:
    with FakeTensorMode():
        return torch.ones(4)


def batched() -> Any:
    seen: list[Any] = []
    torch.vmap(lambda row: (seen.append(row), row)[1])(torch.ones(3, 2))
    return seen[0]


NESTED = [torch.ones(2), torch.ones(3)]
#: What has no bytes to read, and a word of the reason.
WITHOUT: dict[str, tuple[Callable[[], Any], str]] = {
    "meta": (lambda: torch.empty(4, device="meta"), "device meta"),
    "freed": (freed, "was freed"),
    "cut": (cut, "was freed"),
    "fake": (fake, "FakeTensor"),
    "functional": (lambda: torch._to_functional_tensor(torch.ones(4)), "no memory of its own"),
    "vmap": (batched, "no memory of its own"),
    "coo": (lambda: torch.eye(3).to_sparse(), "sparse_coo"),
    "csr": (lambda: torch.eye(3).to_sparse_csr(), "sparse_csr"),
    "csc": (lambda: torch.eye(3).to_sparse_csc(), "sparse_csc"),
    "bsr": (lambda: torch.eye(4).to_sparse_bsr((2, 2)), "sparse_bsr"),
    "mkldnn": (lambda: torch.ones(4, 4).to_mkldnn(), "oneDNN"),
    "lazy": (lambda: torch.nn.LazyLinear(3).weight, "lazy module"),
    "lazy buffer": (lambda: torch.nn.LazyBatchNorm1d().running_mean, "lazy module"),
    "nested": (lambda: torch.nested.nested_tensor(NESTED), "nested"),
    "nested, jagged": (lambda: torch.nested.nested_tensor(NESTED, layout=torch.jagged), "nested"),
    "masked": (
        lambda: torch.masked.masked_tensor(torch.ones(3), torch.tensor([True, False, True])), "no memory of its own"
    ),
    "quantized": (quantized, "quantized"),
    "per channel": (
        lambda: torch.quantize_per_channel(torch.ones(2, 3), torch.ones(2), torch.zeros(2, dtype=torch.int64), 0, torch.qint8),
        "quantized",
    ),
    "wrapper": (scaled, "Scaled wraps others"),
}  # fmt: skip
#: What torch's own writer of checkpoints saves and loads.
SAVED = ("quantized", "per channel", "wrapper")
#: Of these torch itself makes no plan of a checkpoint: its error comes before a writer is asked.
UNPLANNED = ("nested", "mkldnn", "lazy", "lazy buffer", "vmap", "masked")
#: What has memory, and lies in it in some way.
WITH: dict[str, Callable[[], Any]] = {
    "empty": lambda: torch.ones(0, 3),
    "empty storage": lambda: torch.empty(0).set_(torch.UntypedStorage(0), 0, (0,), (1,)),
    "expanded": lambda: torch.arange(3.0).expand(4, 3),
    "transposed": lambda: torch.arange(12.0).reshape(3, 4).t(),
    "conjugate": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "negative": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
    "number": lambda: torch.tensor(3.0),
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "subclass": lambda: torch.ones(3).as_subclass(Named),
}
SINKS: dict[str, Callable[[dict[str, Any], Path], object]] = {
    "save_file": forebay.save_file,
    "torch.save": ft.save,
    "save_async": lambda state, path: ft.save_async(state, path, snapshot="host").result(),
    "write_npy": lambda state, path: forebay.write_npy(path, state["bad"]),
    "write_npz": lambda state, path: forebay.write_npz(path, state),
    "pack": lambda state, path: forebay.data.pack([state], path),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("kind", WITHOUT)
def test_a_tensor_without_memory_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    make, word = WITHOUT[kind]
    for name, sink in SINKS.items():
        with pytest.raises((errors.InvalidInputError, errors.UnsupportedError), match=word) as caught:
            sink({"good": torch.ones(2), "bad": make()}, tmp_path / "x")
        assert caught.value.hints and (name == "write_npy" or "=bad" in str(caught.value)), name
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", WITHOUT)
def test_files_neither_fill_nor_write_what_has_no_memory(kind: str, tmp_path: Path) -> None:
    make, word = WITHOUT[kind]
    if kind in ("quantized", "per channel"):
        return  # They have bytes.
    (tmp_path / "x").write_bytes(bytes(4096))
    with forebay.open(tmp_path / "x", "r+") as file:
        for call in (file.read_into, file.write_from, file.read_into_async, lambda array: file.read_many([(array, 0)])):
            with pytest.raises(errors.InvalidInputError, match=word) as caught:
                call(make())
            assert caught.value.hints
    if "cuda" in word:
        return
    with pytest.raises(errors.InvalidInputError, match="without memory"):
        forebay._forebay.checksums([(0, 4)])


def saved(state: dict[str, Any], path: Path) -> None:
    dcp.save(state, storage_writer=ft.CheckpointWriter(path, durable=False), no_dist=True)


@pytest.mark.parametrize("kind", [kind for kind in WITHOUT if kind not in SAVED])
def test_a_checkpoint_of_a_tensor_without_data_is_refused(kind: str, tmp_path: Path) -> None:
    make, word = WITHOUT[kind]
    state = {"model": {"good": torch.ones(2), "bad": make()}}
    with pytest.raises(CheckpointException) as caught:
        saved(state, tmp_path / "x")
    reason = caught.value.failures[0][0]
    if kind in UNPLANNED or kind == "nested, jagged":
        assert not (tmp_path / "x" / "checkpoint.json").exists()
    else:
        assert isinstance(reason, errors.UnsupportedError) and word in str(reason)
        assert reason.context["tensor"] == "model.bad"
    # Ours, in the background: it is known before anything is copied.
    for snapshot in ("device", "host"):
        with pytest.raises(errors.UnsupportedError, match=word) as refused:
            ft.CheckpointWriter(tmp_path / "y").save_async(state, snapshot=snapshot)
        assert refused.value.context["tensor"] == "model.bad"


def test_tensors_with_named_dimensions_are_refused_as_torch_refuses_them(tmp_path: Path) -> None:
    named = torch.ones(2, 3, names=("rows", None))
    with pytest.raises(RuntimeError, match="Named tensors"):
        torch.save(named, io.BytesIO())
    for name, sink in SINKS.items():
        with pytest.raises((errors.InvalidInputError, errors.UnsupportedError), match="have names") as caught:
            sink({"good": torch.ones(2), "bad": named}, tmp_path / "x")
        assert "tensor.rename(None)" in caught.value.hints
        assert name == "write_npy" or "=bad" in str(caught.value)
    assert not list(tmp_path.iterdir())
    with pytest.raises(CheckpointException) as failed:
        saved({"bad": named}, tmp_path / "x")
    assert failed.value.failures[0][0].context["tensor"] == "bad"
    # Bytes go there all the same.
    (tmp_path / "y").write_bytes(bytes(24))
    with forebay.open(tmp_path / "y") as file:
        file.read_into(named)
    assert named.rename(None).sum() == 0
    forebay.save_file({"w": named.rename(None)}, tmp_path / "z")


def values(tensor: Any) -> Any:
    if isinstance(tensor, Scaled):
        return [tensor.inner.tolist(), tensor.scale.item()]
    return tensor.dequantize().tolist() if tensor.is_quantized else tensor.detach().tolist()


def test_what_torch_saves_of_these_comes_back(tmp_path: Path) -> None:
    """Two wrappers with the same shape, and no address, are two tensors; scales come from the file."""
    state = {
        "q": quantized(),
        "c": WITHOUT["per channel"][0](),
        "a": scaled(3),
        "b": scaled(5, 2.0),
        "p": torch.ones(3),
    }
    with torch.serialization.safe_globals([Scaled]):
        saved(state, tmp_path / "ours")
        dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path / "theirs"), no_dist=True)
        for reader in (ft.CheckpointReader(tmp_path / "ours", verify=True), dcp.FileSystemReader(tmp_path / "theirs")):
            target = {
                "q": quantized(0.7),
                "c": state["c"].clone(),
                "a": scaled(0, 9.0),
                "b": scaled(0),
                "p": torch.zeros(3),
            }
            dcp.load(target, storage_reader=reader, no_dist=True)
            if isinstance(reader, dcp.FileSystemReader):
                # It sets the numbers, and leaves the scale: so the values are others.
                assert torch.equal(target["q"].int_repr(), state["q"].int_repr())
                del target["q"]
            assert all(values(one) == values(state[name]) for name, one in target.items())
    # Without what the program allows its class is not made.
    with pytest.raises(CheckpointException) as caught:
        dcp.load({"a": scaled()}, storage_reader=ft.CheckpointReader(tmp_path / "ours"), no_dist=True)
    reason = caught.value.failures[0][0]
    assert isinstance(reason, errors.UnsupportedError) and "add_safe_globals" in reason.hints[0]
    # A damaged one is not unpickled.
    (shard,) = (tmp_path / "ours").glob("shard-*")
    shard.write_bytes(shard.read_bytes().replace(b"Scaled", b"Sealed"))
    with torch.serialization.safe_globals([Scaled]), pytest.raises(CheckpointException) as caught:
        dcp.load({"a": scaled()}, storage_reader=ft.CheckpointReader(tmp_path / "ours"), no_dist=True)
    assert isinstance(caught.value.failures[0][0], errors.IntegrityError)


def test_checkpoints_without_these_are_of_the_first_version(tmp_path: Path) -> None:
    saved({"p": torch.ones(3)}, tmp_path / "plain")
    saved({"q": quantized()}, tmp_path / "other")
    for name, version in (("plain", 1), ("other", 2)):
        assert f'"version":{version}' in (tmp_path / name / "checkpoint.json").read_text()


@pytest.mark.parametrize("kind", WITH)
def test_what_has_memory_is_saved_as_torch_saves_it(kind: str, tmp_path: Path) -> None:
    tensor = WITH[kind]()
    stream = io.BytesIO()
    torch.save(tensor, stream)
    stream.seek(0)
    wanted = torch.load(stream, weights_only=False)
    ft.save({"w": tensor}, tmp_path / "x", durable=False)
    found = ft.load(tmp_path / "x", "cpu")["w"]
    assert (
        found.dtype == wanted.dtype
        and found.shape == wanted.shape
        and torch.equal(found, wanted.as_subclass(torch.Tensor))
    )
    saved({"w": tensor}, tmp_path / "folder")
    state = {"w": torch.zeros(tensor.shape, dtype=tensor.dtype)}
    dcp.load(state, storage_reader=ft.CheckpointReader(tmp_path / "folder"), no_dist=True)
    assert torch.equal(state["w"], wanted.as_subclass(torch.Tensor))
    forebay.data.pack([{"w": tensor.contiguous()}], tmp_path / "pack", durable=False)
    packed = forebay.data.packed(tmp_path / "pack", framework="torch", device="cpu")["w"][0]
    assert torch.equal(packed, wanted.as_subclass(torch.Tensor).detach())


@pytest.mark.parametrize("kind", ["meta", "freed", "cut", "fake", "expanded", "coo"])
def test_targets_that_cannot_be_filled(kind: str, tmp_path: Path) -> None:
    target = torch.zeros(1).expand(300) if kind == "expanded" else WITHOUT[kind][0]()
    shape = target.shape
    saved({"w": torch.ones(shape)}, tmp_path / "x")
    with pytest.raises(CheckpointException) as caught:
        dcp.load({"w": target}, storage_reader=ft.CheckpointReader(tmp_path / "x"), no_dist=True)
    reason = caught.value.failures[0][0]
    # Of some torch makes no plan.
    assert kind in ("meta", "coo") or (isinstance(reason, errors.InvalidInputError) and reason.context["tensor"] == "w")


def test_loads_below_fake_tensors(tmp_path: Path) -> None:
    forebay.save_file({"w": torch.ones(4)}, tmp_path / "x", durable=False)
    torch.save({"w": torch.ones(4)}, tmp_path / "x.pt")
    with FakeTensorMode():
        for path in ("x", "x.pt"):
            with pytest.raises(errors.Error):
                forebay.load_file(tmp_path / path, device="cpu")
        with pytest.raises(errors.Error), forebay.safe_open(tmp_path / "x") as file:
            file.get_tensor("w")


def test_arrays_of_jax_that_were_deleted(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    array = jax.numpy.ones(4)
    array.delete()
    with pytest.raises(errors.InvalidInputError, match="deleted.*tensor=w") as caught:
        forebay.save_file({"w": array}, tmp_path / "x")
    assert caught.value.hints
    (tmp_path / "y").write_bytes(b"")
    with forebay.open(tmp_path / "y", "r+") as file, pytest.raises(errors.InvalidInputError, match="deleted"):
        file.write_from(array)


def test_what_the_hints_say_works(tmp_path: Path) -> None:
    nested = torch.nested.nested_tensor(NESTED)
    jagged = torch.nested.nested_tensor(NESTED, layout=torch.jagged)
    plain = {
        "padded": torch.nested.to_padded_tensor(nested, 0),
        "jagged": torch.nested.to_padded_tensor(jagged, 0),
        "part": nested.unbind()[1],
        "row": jagged.unbind()[1],
        "sparse": torch.eye(3).to_sparse_csr().to_dense(),
        "mkldnn": torch.ones(2).to_mkldnn().to_dense(),
        "numbers": quantized().int_repr(),
        "conjugate": torch.tensor([1j]).conj().resolve_conj(),
        "negative": torch.tensor([1j]).conj().imag.contiguous().resolve_neg(),
    }
    inner, _ = scaled().__tensor_flatten__()
    plain |= {f"w.{name}": getattr(scaled(), name) for name in inner}
    model = torch.nn.Sequential(torch.nn.LazyLinear(3))
    model(torch.ones(1, 2))
    plain["lazy"] = model[0].weight
    forebay.save_file(plain, tmp_path / "x", durable=False)
    assert np.array_equal(forebay.load_file(tmp_path / "x", framework="numpy")["padded"], [[1, 1, 0], [1, 1, 1]])
