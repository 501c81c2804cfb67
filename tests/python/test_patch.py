"""patch_safetensors: programs that use safetensors use forebay, whatever they imported when."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import forebay

Run = Callable[..., subprocess.CompletedProcess[str]]

#: Counts what goes through forebay, in a process of its own.
COUNT = """
import sys
import numpy as np
from forebay import loading, saving, lazy
calls = []
for module, name in ((loading, "Source"),):
    original = getattr(module, name).__init__
    def counted(self, path, original=original):
        calls.append(path)
        original(self, path)
    getattr(module, name).__init__ = counted
path = sys.argv[1]
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    forebay.save_file({"a": np.arange(6, dtype="f4").reshape(2, 3), "ids": np.arange(3)}, tmp_path / "m.safetensors")
    return str(tmp_path / "m.safetensors")


def check(run: Run, code: str, *args: str) -> None:
    done = run(COUNT + code + "\nprint('fine')", *args)
    assert done.returncode == 0 and done.stdout.endswith("fine\n"), done.stdout + done.stderr


USE = """
with safe_open(path, framework="np") as file:
    assert np.array_equal(file.get_slice("a")[:, 1:], [[1, 2], [4, 5]])
assert np.array_equal(load_file(path)["a"], np.arange(6).reshape(2, 3))
assert len(calls) == 2, calls
"""


def test_patched_before_anything_is_imported(run_python: Run, path: str) -> None:
    check(
        run_python,
        """
import forebay
forebay.patch_safetensors()
assert "safetensors" not in sys.modules and "torch" not in sys.modules
from safetensors import safe_open
from safetensors.numpy import load_file
"""
        + USE,
        path,
    )


def test_patched_after_names_were_imported(run_python: Run, path: str) -> None:
    check(
        run_python,
        """
import types
user = types.ModuleType("user")
exec("from safetensors import safe_open as so; from safetensors.numpy import load_file as lf; import safetensors.numpy",
     vars(user))
sys.modules["user"] = user
import forebay
forebay.patch_safetensors()
safe_open, load_file = user.so, user.lf
assert safe_open is user.safetensors.safe_open and load_file is user.safetensors.numpy.load_file
"""
        + USE
        + """
forebay.unpatch_safetensors()
assert user.so is user.safetensors.safe_open is user.safetensors._safetensors_rust.safe_open
assert user.lf is user.safetensors.numpy.load_file
user.lf(path)
assert len(calls) == 2
""",
        path,
    )


def test_imported_in_a_block_and_used_after_it(run_python: Run, path: str) -> None:
    check(
        run_python,
        """
import forebay
with forebay.patch_safetensors():
    with forebay.patch_safetensors():
        import safetensors.numpy as sn
    sn.load_file(path)
    assert len(calls) == 1, "the inner block took the outer patch back"
sn.load_file(path)
assert len(calls) == 1
import safetensors, safetensors._safetensors_rust as rust
assert safetensors.safe_open is rust.safe_open is sn.safe_open
with forebay.patch_safetensors():
    sn.load_file(path)
    assert len(calls) == 2
assert not [finder for finder in sys.meta_path if "forebay" in type(finder).__module__]
""",
        path,
    )


def test_saves_of_numpy_are_as_safetensors_does_them(run_python: Run, path: str) -> None:
    check(
        run_python,
        """
import forebay
from safetensors.numpy import load_file, save_file
original = load_file
forebay.patch_safetensors()
tensors = {"t": np.arange(6, dtype="f4").reshape(2, 3).T, "big": np.arange(3, dtype=">i4"), "scalar": np.array(2.0)}
save_file(tensors, path, metadata={"k": "v"})
save_file(tensor_dict=tensors, filename=path)
forebay.unpatch_safetensors()
found = load_file(path)
assert load_file is original
for name, array in tensors.items():
    assert found[name].shape == array.shape and np.array_equal(found[name], array), name
""",
        path,
    )


def test_what_forebay_has_not_goes_to_safetensors(run_python: Run, path: str) -> None:
    check(
        run_python,
        """
import forebay, safetensors
forebay.patch_safetensors()
try:
    safetensors.safe_open(path, framework="bogus")
except safetensors.SafetensorError as error:
    assert "bogus" in str(error)
assert isinstance(safetensors.safe_open(path, framework="np"), safetensors.safe_open)
assert issubclass(safetensors.safe_open, forebay.safe_open)
assert calls == [path]
""",
        path,
    )


def test_errors_are_safetensors_own_too(run_python: Run, path: str, tmp_path: Path) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"nonsense")
    check(
        run_python,
        """
import forebay, safetensors
from safetensors.numpy import load_file
forebay.patch_safetensors()
bad, SafetensorError = sys.argv[2], safetensors.SafetensorError
file = safetensors.safe_open(path, framework="np")
calls_that_fail = [
    lambda: safetensors.safe_open(bad, framework="np"), lambda: sys.modules["safetensors.numpy"].load_file(bad),
    lambda: file.get_tensor("none"), lambda: file.get_slice("none"),
]
for call in calls_that_fail:
    try:
        call()
    except SafetensorError as error:
        assert isinstance(error, forebay.Error) and str(error)
    else:
        raise AssertionError("no error")
try:
    load_file(bad + "x")
except FileNotFoundError:
    pass
""",
        path,
        str(tmp_path / "bad.safetensors"),
    )


def test_torch_functions(run_python: Run, path: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    check(
        run_python,
        """
import torch
from safetensors.torch import load_file, load_model, save_file, save_model
import forebay
forebay.patch_safetensors()
import safetensors.torch as st
assert np.array_equal(st.load_file(path, device="cpu")["a"], np.arange(6).reshape(2, 3))
assert st.load_file(path, backend="pread")["ids"].dtype == torch.int64
assert len(calls) == 2 and load_file is st.load_file
model = torch.nn.Linear(3, 4)
save_model(model, path)
other = torch.nn.Linear(3, 4)
assert load_model(other, path) == (set(), []) or load_model(other, path) == ([], [])
assert torch.equal(other.weight, model.weight)
assert len(calls) >= 3
try:
    save_file({"x": model.weight, "y": model.weight}, path)
except RuntimeError as error:
    assert "share memory" in str(error) and isinstance(error, ValueError)
else:
    raise AssertionError("shared memory was saved")
""",
        path,
    )


def test_arguments_are_safetensors_own(run_python: Run, path: str) -> None:
    check(
        run_python,
        """
import forebay, safetensors
import safetensors.numpy as sn
def refusals():
    for call in (
        lambda: sn.load_file(path, engine="pread"), lambda: safetensors.safe_open(path),
        lambda: safetensors.safe_open(path, "np", engine="pread"), lambda: sn.load_file(path, "cpu", "mmap"),
    ):
        try:
            call()
        except TypeError as error:
            yield str(error)
assert len(list(refusals())) == 4
forebay.patch_safetensors()
assert len(list(refusals())) == 4
# A backend that there is not is refused before anything is read, whether the file is there or not.
for wrong, refusal in (("fast", safetensors.SafetensorError), (3, TypeError)):
    for read in (sn.load_file, lambda name, backend: safetensors.safe_open(name, "np", backend=backend)):
        for name in (path, path + "x"):
            try:
                read(name, backend=wrong)
            except refusal as error:
                assert "backend" in str(error)
            else:
                raise AssertionError(f"{wrong!r} was taken")
assert not calls, calls
sn.load_file(path, backend="mmap")
assert len(calls) == 1
safetensors.safe_open(path, "np", "cpu", backend="mmap")
""",
        path,
    )


def test_flax_functions(run_python: Run, path: str) -> None:
    pytest.importorskip("jax", reason="jax is not installed")
    check(
        run_python,
        """
import os
os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=2")
import forebay
forebay.patch_safetensors()
import safetensors.flax as sf
found = sf.load_file(path)
assert found["ids"].dtype == "int32" and found["a"].shape == (2, 3) and len(calls) == 1
sf.save_file(found, path)
assert np.array_equal(sf.load_file(path)["a"], found["a"])
# On jax's default device, and free to go to another: as safetensors makes them.
import jax, safetensors
assert not any(array.committed for array in sf.load_file(path).values())
with safetensors.safe_open(path, "flax") as file:
    assert not file.get_tensor("a").committed and not file.get_slice("a")[:1].committed
second = jax.devices()[1]
with jax.default_device(second):
    assert sf.load_file(path)["a"].devices() == {second}
forebay.unpatch_safetensors()
assert not any(array.committed for array in sf.load_file(path).values())
""",
        path,
    )


@pytest.mark.parametrize("order", ["before", "after"])
def test_transformers(run_python: Run, tmp_path: Path, order: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    first, second = "forebay.patch_safetensors()", "from transformers import BertConfig, BertModel, modeling_utils"
    if order == "after":
        first, second = second, first
    check(
        run_python,
        f"""
import os
os.environ["HF_HUB_OFFLINE"] = "1"
import torch, forebay
{first}
{second}
config = BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=50)
model = BertModel(config)
model.save_pretrained(path, max_shard_size="20KB")
assert len([name for name in os.listdir(path) if name.endswith(".safetensors")]) > 1
calls.clear()
loaded = BertModel.from_pretrained(path)
assert len(calls) > 1, "forebay was not used"
for (name, one), (_, two) in zip(model.state_dict().items(), loaded.state_dict().items()):
    assert torch.equal(one, two), name
half = BertModel.from_pretrained(path, dtype=torch.bfloat16)
assert half.embeddings.word_embeddings.weight.dtype == torch.bfloat16
forebay.unpatch_safetensors()
calls.clear()
again = BertModel.from_pretrained(path)
assert not calls
assert torch.equal(again.embeddings.word_embeddings.weight, model.embeddings.word_embeddings.weight)
""",
        str(tmp_path / "model"),
    )
