"""What forebay asks of each framework: allocation, dtypes both ways, ownership, and clear refusals."""

from __future__ import annotations

import importlib.util
import io
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forebay
from forebay import errors, frameworks, loading
from forebay.frameworks import CPU, Device, Framework
from forebay.placement import parse_device

DTYPES = ["BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0", "U16", "I16", "F16",
          "BF16", "U32", "I32", "F32", "U64", "I64", "F64", "C64", "F4"]  # fmt: skip


@pytest.fixture(params=["numpy", "torch", "jax", "native"])
def framework(request: pytest.FixtureRequest) -> Framework:
    if request.param != "native":
        pytest.importorskip(request.param, reason=f"{request.param} is not installed")
    return frameworks.get(request.param)


def test_each_dtype_goes_through_a_file(framework: Framework, tmp_path: Path) -> None:
    """Allocated, saved, loaded: the same dtype, shape and bytes. What the framework lacks says so."""
    path = tmp_path / "m.safetensors"
    allocate = framework.allocator(CPU)
    had = []
    for dtype in DTYPES:
        if framework.dtype(dtype) is None:
            assert framework.dtype_hints(dtype), dtype
            continue
        had.append(dtype)
        array = allocate((3, 4), dtype)
        framework.ready([array], CPU)
        fill(framework.address(array), bytes(range(array.nbytes)) if dtype != "BOOL" else b"\1\0" * 6)
        described = framework.describe(array, "a")
        assert (described.dtype, described.shape, described.device) == (dtype, (3, 4), CPU)
        forebay.save_file({"a": array}, path)
        loaded = forebay.load_file(path, device="cpu", framework=framework.name)["a"]
        assert type(loaded) is type(array) and loaded.dtype == array.dtype and loaded.shape == array.shape
        assert content(framework, loaded) == content(framework, array)
        assert framework.dtype_name(loaded.dtype) == dtype
    assert {"F32", "I32", "BOOL", "F16"} <= set(had)


def fill(address: int, data: bytes) -> None:
    import ctypes

    ctypes.memmove(address, data, len(data))


def content(framework: Framework, array: Any) -> bytes:
    import ctypes

    described = framework.describe(array, "a")
    return ctypes.string_at(described.address, described.nbytes)


def test_scalars_and_empty_tensors(framework: Framework, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    tensors = {"scalar": np.array(7, "i4"), "empty": np.zeros((0, 5), "f4"), "none": np.zeros((3, 0, 2), "f2")}
    forebay.save_file(tensors, path)
    loaded = forebay.load_file(path, device="cpu", framework=framework.name)
    assert tuple(loaded["scalar"].shape) == () and content(framework, loaded["scalar"]) == b"\7\0\0\0"
    assert tuple(loaded["empty"].shape) == (0, 5) and tuple(loaded["none"].shape) == (3, 0, 2)
    forebay.save_file(loaded, path)
    assert forebay.load_file(path, framework="numpy")["none"].shape == (3, 0, 2)


def test_numpy_without_ml_dtypes(tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    path = tmp_path / "m.safetensors"
    forebay.save_file({"w": forebay.empty((4,), "BF16", "cpu")}, path)
    done = run_python(
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "import forebay\n"
        "try: forebay.load_file(sys.argv[1], framework='numpy')\n"
        "except forebay.errors.UnsupportedError as error: print(error, error.hints)",
        str(path),
    )
    assert "numpy has no dtype for BF16 (tensor=w" in done.stdout, done.stderr
    assert "pip install ml_dtypes" in done.stdout


def test_no_framework_is_imported_that_was_not_named(
    tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    path = tmp_path / "m.safetensors"
    forebay.save_file({"w": np.ones(4, "f4")}, path)
    done = run_python(
        "import sys, forebay\n"
        "array = forebay.load_file(sys.argv[1], framework='native', device='cpu')\n"
        "forebay.save_file(array, sys.argv[1], checksums=True)\n"
        "print([name for name in ('numpy', 'torch', 'jax', 'cupy', 'safetensors') if name in sys.modules])\n"
        "import numpy\n"
        "forebay.save_file({'a': numpy.ones(3), **array}, sys.argv[1])\n"
        "forebay.load_file(sys.argv[1], framework='numpy')\n"
        "print([name for name in ('torch', 'jax', 'cupy', 'safetensors') if name in sys.modules])",
        str(path),
    )
    assert done.stdout == "[]\n[]\n", done.stdout + done.stderr


def test_frameworks_that_are_not_there(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    with pytest.raises(errors.InvalidInputError, match="unknown framework"):
        frameworks.get("tensorflow")
    done = run_python(
        "import sys; sys.modules['torch'] = None\n"
        "import forebay\n"
        "try: forebay.load_file('x')\n"
        "except forebay.errors.UnsupportedError as error: print(error, error.hints)"
    )
    assert "torch is not installed" in done.stdout and "pip install torch" in done.stdout, done.stderr
    assert 'framework="numpy"' in done.stdout


def test_the_way_to_tensorflow(tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """As the hint says it, and in memory that TensorFlow computes with."""
    pytest.importorskip("torch", reason="torch is not installed")
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("tensorflow is not installed")
    with pytest.raises(errors.InvalidInputError) as caught:
        frameworks.get("tf")
    _, _, way = caught.value.hints[-1].partition(", then ")
    tensors = {f"t{size}": np.arange(size, dtype="float32") for size in range(1, 40)}
    forebay.save_file({**tensors, "half": np.ones(3, "float16")}, tmp_path / "a.safetensors")
    done = run_python(
        "import sys, forebay, tensorflow as tf\n"
        "for framework in ('torch', 'native'):\n"
        "    arrays = forebay.load_file(sys.argv[1], framework=framework, device='cpu')\n"
        f"    tensors = {{name: {way} for name, array in arrays.items()}}\n"
        "    del arrays\n"
        "    print(all((tensors[f't{n}'] * 2).numpy().tolist() == list(range(0, 2 * n, 2)) for n in range(1, 40)))\n"
        "    print(tensors['half'].dtype.name)",
        str(tmp_path / "a.safetensors"),
    )
    assert done.stdout == 2 * "True\nfloat16\n", done.stdout + done.stderr


def test_devices() -> None:
    assert parse_device("cuda", lambda: 3) == Device("cuda", 3)
    assert parse_device("cuda:2") == parse_device(2) == parse_device("gpu:2") == Device("cuda", 2)
    assert parse_device("cpu") == CPU and str(CPU) == "cpu" and str(Device("cuda", 1)) == "cuda:1"
    assert parse_device("CPU") == CPU and parse_device("CUDA:1") == Device("cuda", 1)
    for wrong in ("cuda:", "cudas", "", None, "cpu:1", object()):
        with pytest.raises(errors.InvalidInputError):
            parse_device(wrong)


# ---- torch -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed")


def test_torch_tensors_own_their_storage(torch: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    forebay.save_file({f"t{i}": torch.full((10, 3), float(i)) for i in range(5)}, path)
    loaded = forebay.load_file(path, device=torch.device("cpu"))
    for tensor in loaded.values():
        assert tensor.untyped_storage().nbytes() == 120 and tensor.storage_offset() == 0
        assert not tensor.requires_grad and tensor.is_leaf and tensor.untyped_storage().resizable()
        assert tensor.data_ptr() % 64 == 0
    buffer = io.BytesIO()
    torch.save(loaded["t3"], buffer)
    assert len(buffer.getvalue()) < 3000, "only its own bytes"
    kept = loaded.pop("t4")
    kept.resize_(1000)
    del loaded
    assert kept[:30].eq(4).all()


def test_torch_in_inference_mode_and_with_another_default(torch: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    forebay.save_file({"a": torch.ones(4)}, path)
    with torch.device("meta"):
        assert forebay.load_file(path, device="cpu")["a"].device.type == "cpu"
    torch.set_default_dtype(torch.float64)
    try:
        assert forebay.load_file(path, device="cpu")["a"].dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    parameter = torch.nn.Parameter(torch.ones(3))
    forebay.save_file({"p": parameter, "grad": torch.ones(3, requires_grad=True)}, path)
    assert torch.equal(forebay.load_file(path, device="cpu")["p"], parameter.data)


def test_torch_casts(torch: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    forebay.save_file({"w": torch.ones(4, 3), "ids": torch.arange(3)}, path)
    for dtype in (torch.bfloat16, "BF16", "bfloat16", "torch.bfloat16"):
        loaded = forebay.load_file(path, device="cpu", dtype=dtype)
        assert loaded["w"].dtype == torch.bfloat16 and loaded["ids"].dtype == torch.int64
    by_name = forebay.load_file(path, device="cpu", dtype=lambda name: torch.float8_e4m3fn if name == "w" else None)
    assert by_name["w"].dtype == torch.float8_e4m3fn


def test_torch_meta_has_shapes_only(torch: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    forebay.save_file({"w": torch.ones(4, 3)}, path)
    loaded = forebay.load_file(path, device="meta")["w"]
    assert loaded.is_meta and loaded.shape == (4, 3)
    with forebay.safe_open(path, "pt", device="meta") as file:
        assert file.get_slice("w")[1:3].shape == (2, 3)


def test_torch_tensors_that_cannot_be_saved(torch: Any, tmp_path: Path) -> None:
    base = torch.zeros(4, 6)
    wrong = {
        "contiguous()": base.t(),
        "to_dense()": base.to_sparse(),
        "resolve_conj()": torch.zeros(3, dtype=torch.complex64).conj(),
        "resolve_neg()": torch.zeros(3, dtype=torch.complex64).conj().imag.clone()._neg_view(),
        "meta": torch.zeros(3, device="meta"),
        "float32": torch.zeros(3, dtype=torch.complex128),
    }
    for hint, tensor in wrong.items():
        with pytest.raises((errors.InvalidInputError, errors.UnsupportedError), match="tensor=bad") as caught:
            forebay.save_file({"fine": base, "bad": tensor}, tmp_path / "m.safetensors")
        assert hint in str(caught.value.hints) + str(caught.value), hint


def test_torch_tensors_that_share_memory(torch: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    base = torch.arange(12.0)
    apart = {"x": base[:8], "z": torch.ones(2), "y": base[7:]}
    for shared in ({"x": base, "y": base}, {"x": base, "y": base[3:]}, apart):
        with pytest.raises(errors.InvalidInputError, match="share memory: x, y") as caught:
            forebay.save_file(shared, path)
        assert any("clone()" in hint for hint in caught.value.hints)
    # Parts that do not overlap are fine, as in safetensors.
    forebay.save_file({"x": base[:6], "y": base[6:], "e": base[:0], "e2": base[:0]}, path)
    assert torch.equal(forebay.load_file(path, device="cpu")["y"], base[6:])


def test_torch_four_bits(torch: Any, tmp_path: Path) -> None:
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no float4_e2m1fn_x2")
    from safetensors.torch import load_file, save_file

    packed = torch.arange(16, dtype=torch.uint8).reshape(2, 8).view(torch.float4_e2m1fn_x2)
    save_file({"a": packed}, tmp_path / "theirs")
    forebay.save_file({"a": packed}, tmp_path / "ours")
    for loaded in (forebay.load_file(tmp_path / "theirs", device="cpu"), load_file(tmp_path / "ours")):
        assert loaded["a"].shape == (2, 8) and torch.equal(loaded["a"].view(torch.uint8), packed.view(torch.uint8))


def test_torch_without_a_gpu_says_so(torch: Any, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("torch sees a GPU here")
    forebay.save_file({"a": torch.ones(1)}, tmp_path / "m.safetensors")
    with pytest.raises(errors.UnsupportedError, match="torch sees no GPU") as caught:
        forebay.load_file(tmp_path / "m.safetensors", device="cuda:0")
    assert 'device="cpu"' in caught.value.hints
    assert forebay.load_file(tmp_path / "m.safetensors")["a"].device.type == "cpu", "the default goes where it can"


def test_torch_on_a_gpu(torch: Any, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU that torch can use")
    path = tmp_path / "m.safetensors"
    tensors = {f"t{i}": torch.randn(257, 33, device="cuda") for i in range(50)}
    forebay.save_file(tensors, path, checksums=True)
    loaded = forebay.load_file(path, verify=True, dtype=None)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    before = torch.cuda.memory_allocated()
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(min(1.0, (before + 600_000) / total))
    try:
        with pytest.raises(errors.DeviceOutOfMemoryError, match="not enough memory on cuda:0"):
            for _ in range(1000):
                loaded |= {f"{len(loaded)}{name}": t for name, t in forebay.load_file(path).items()}
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_torch_blocks_of_deleted_tensors(torch: Any, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU that torch can use")
    path = tmp_path / "m.safetensors"
    size = 1 << 24
    forebay.save_file({"a": torch.full((size,), 7.0)}, path)
    for _ in range(5):
        old = torch.empty(size, device="cuda")
        torch.cuda._sleep(200_000_000)
        old.fill_(1.0)
        place = old.data_ptr()
        del old
        new = forebay.load_file(path, device="cuda")["a"]
        assert new.data_ptr() == place, "the block was not used again: this test shows nothing"
        torch.cuda.synchronize()
        assert new.eq(7).all()
        del new


# ---- jax -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def jax() -> Any:
    return pytest.importorskip("jax", reason="jax is not installed")


def test_jax_arrays_behave(jax: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    tensors = {f"t{i}": np.full((3, 4), i, "f4") for i in range(30)}
    forebay.save_file(tensors, path)
    loaded = forebay.load_file(path, device=jax.devices("cpu")[0], framework="flax")
    for name, array in tensors.items():
        assert np.array_equal(loaded[name], array)
        assert np.array_equal(jax.jit(lambda x: x + 1)(loaded[name]), array + 1)
    assert forebay.load_file(path, device="cpu", framework="jax", dtype="BF16")["t1"].dtype == "bfloat16"
    with forebay.safe_open(path, "jax") as file:
        assert np.array_equal(file.get_slice("t3")[1:, None, ::2], tensors["t3"][1:, None, ::2])


def test_jax_may_not_give_one_memory_to_two(jax: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not to tensors that are read by different batches."""
    path = tmp_path / "m.safetensors"
    forebay.save_file({f"t{i}": np.full((3, 4), i, "f4") for i in range(4)}, path)
    framework = frameworks.get("jax")
    made = framework.allocator(CPU)
    shared = made((3, 4), "F32")
    given: list[Any] = []

    def allocator(self: object, device: object) -> Callable[..., Any]:
        return lambda shape, dtype: given.append(shape) or (shared if len(given) in (1, 4) else made(shape, dtype))

    monkeypatch.setattr(type(framework), "allocator", allocator)
    monkeypatch.setitem(loading._LIMITS, "tensors", 1)
    with pytest.raises(errors.InternalError, match="same memory to two arrays") as caught:
        forebay.load_file(path, device="cpu", framework="jax")
    assert caught.value.context["tensor"] == "t3"


def test_jax_casts_of_more_than_one_batch(jax: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was cast lets go of its memory: the next tensors may have it."""
    path = tmp_path / "m.safetensors"
    forebay.save_file({f"t{i}": np.full((64, 64), i, "f4") for i in range(40)}, path)
    monkeypatch.setitem(loading._LIMITS, "tensors", 2)
    loaded = forebay.load_file(path, device="cpu", framework="jax", dtype="BF16")
    assert [float(loaded[f"t{i}"].sum()) / 4096 for i in range(40)] == list(range(40))


def test_jax_wide_types(jax: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    forebay.save_file({"ids": np.arange(4, dtype="i8"), "w": np.ones(3, "f8")}, path)
    with pytest.raises(errors.UnsupportedError, match="jax has no dtype for") as caught:
        forebay.load_file(path, device="cpu", framework="jax")
    assert "jax_enable_x64" in caught.value.hints[0]
    narrow = forebay.load_file(path, device="cpu", framework="jax", dtype=lambda name: {"ids": "I32", "w": "F32"}[name])
    assert narrow["ids"].dtype == "int32" and np.array_equal(narrow["ids"], np.arange(4))
    with jax.enable_x64(True):
        wide = forebay.load_file(path, device="cpu", framework="jax")
    assert wide["ids"].dtype == "int64" and wide["w"].dtype == "float64"
