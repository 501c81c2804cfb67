"""load_file: what comes out is what safetensors itself reads, wherever it comes from and goes to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file as reference_load
from safetensors.numpy import save_file as reference_save

import forebay
from forebay import errors, loading

PLAIN = ["bool", "uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32", "uint64", "int64",
         "float64", "complex64"]  # fmt: skip


def some(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray[Any, Any]:
    """Bytes that differ everywhere, as an array."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype == "complex64":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return (rng.standard_normal(shape) * 50).astype(dtype)


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray[Any, Any]]]:
    tensors = {f"layer.{i}.{dtype}": some((i + 2, 5), dtype, i) for i, dtype in enumerate(PLAIN)}
    tensors["scalar"] = np.array(7.5, np.float32)
    tensors["empty"] = np.zeros((0, 3), np.float32)
    path = tmp_path / "model.safetensors"
    reference_save(tensors, path, {"origin": "test"})
    return path, tensors


def assert_same(found: dict[str, Any], wanted: dict[str, np.ndarray[Any, Any]]) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        mine = np.asarray(found[name])
        assert mine.dtype == array.dtype and mine.shape == array.shape, name
        assert mine.tobytes() == array.tobytes(), name


def test_every_plain_dtype_as_safetensors_reads_it(model: tuple[Path, dict[str, Any]]) -> None:
    path, _ = model
    loaded = forebay.load_file(path, framework="numpy")
    assert_same(loaded, reference_load(path))
    assert all(array.flags.owndata and array.flags.writeable for array in loaded.values())


def test_the_order_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    forebay.save_file({"b": np.zeros(1, "u1"), "a": np.zeros(1, "f8"), "c": np.zeros(1, "f4")}, path)
    assert list(forebay.load_file(path, framework="numpy")) == ["a", "c", "b"]


def test_native_arrays_on_each_device(model: tuple[Path, dict[str, Any]], device: str) -> None:
    path, tensors = model
    loaded = forebay.load_file(path, device=device, framework="native")
    for name, array in tensors.items():
        assert loaded[name].device == device
        assert loaded[name].tobytes() == array.tobytes(), name


def test_many_small_and_some_large_tensors_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loading._LIMITS, "group", 5000)
    monkeypatch.setitem(loading._LIMITS, "tensors", 7)
    tensors = {f"t{i:03}": some((i % 13, 11), "float32", i) for i in range(300)}
    tensors["large"] = some((300, 300), "float32")
    reference_save(tensors, tmp_path / "m.safetensors")
    assert_same(forebay.load_file(tmp_path / "m.safetensors", framework="numpy"), tensors)


def test_a_group_is_read_while_the_next_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loading._LIMITS, "group", 2 << 20)
    make, begun = loading.Loader._make, []

    def counting(loader: loading.Loader, *rest: Any) -> Any:
        begun.append(len(loader._waiting))
        return make(loader, *rest)

    monkeypatch.setattr(loading.Loader, "_make", counting)
    tensors = {f"t{i}": some((1 << 19,), "float32", i) for i in range(5)}
    reference_save(tensors, tmp_path / "m.safetensors")
    assert_same(forebay.load_file(tmp_path / "m.safetensors", framework="numpy"), tensors)
    assert begun == [0] * 5, "none that was made waits for another"


def sharded(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    parts = [{"a.0": some((3, 4), "float32"), "a.1": some((2,), "int64")}, {"b.0": some((5,), "float16")}]
    weights: dict[str, str] = {}
    for number, part in enumerate(parts):
        file = f"model-{number + 1:05}-of-00002.safetensors"
        reference_save(part, folder / file)
        weights |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    return parts[0] | parts[1]


def test_shards_by_folder_by_index_and_one_by_one(tmp_path: Path) -> None:
    tensors = sharded(tmp_path)
    files = sorted(tmp_path.glob("*.safetensors"))
    for paths in (tmp_path, str(tmp_path / "model.safetensors.index.json"), files, tuple(map(str, files))):
        assert_same(forebay.load_file(paths, framework="numpy"), tensors)


def test_an_index_takes_only_what_it_names(tmp_path: Path) -> None:
    sharded(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    del content["weight_map"]["a.1"]
    index.write_text(json.dumps(content))
    assert set(forebay.load_file(tmp_path, framework="numpy")) == {"a.0", "b.0"}


def test_a_missing_shard_is_named_before_anything_is_read(tmp_path: Path) -> None:
    sharded(tmp_path)
    missing = tmp_path / "model-00002-of-00002.safetensors"
    missing.unlink()
    with pytest.raises(FileNotFoundError, match="1 of the 2 shards") as caught:
        forebay.load_file(tmp_path, framework="numpy")
    assert isinstance(caught.value, errors.NotFoundError)
    assert str(missing) in str(caught.value) and caught.value.hints


def test_a_shard_without_a_tensor_of_the_index(tmp_path: Path) -> None:
    sharded(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(index.read_text().replace('"a.1"', '"a.7"'))
    with pytest.raises(errors.InvalidInputError, match=r"a\.7") as caught:
        forebay.load_file(tmp_path, framework="numpy")
    assert "a.1" in str(caught.value.hints)


@pytest.mark.parametrize("shard", ["../secret.safetensors", "/etc/passwd", "a/../../b.safetensors", "", 5, None])
def test_an_index_cannot_reach_out_of_its_folder(tmp_path: Path, shard: object) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(errors.IntegrityError, match="outside of its folder"):
        forebay.load_file(index, framework="numpy")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map"', "[" * 100_000, "\x00\xff"])
def test_an_index_that_makes_no_sense(tmp_path: Path, text: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text)
    with pytest.raises(errors.IntegrityError, match="cannot understand the index"):
        forebay.load_file(index, framework="numpy")


def test_folders_that_are_not_clear(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError, match=r"no \.safetensors or \.bin file"):
        forebay.load_file(tmp_path, framework="numpy")
    reference_save({"a": np.zeros(1)}, tmp_path / "one.safetensors")
    assert set(forebay.load_file(tmp_path, framework="numpy")) == {"a"}
    reference_save({"a": np.zeros(1)}, tmp_path / "two.safetensors")
    with pytest.raises(errors.InvalidInputError, match="several") as caught:
        forebay.load_file(tmp_path, framework="numpy")
    assert "one.safetensors" in caught.value.hints[0]
    with pytest.raises(errors.InvalidInputError, match="two files have a tensor of the same name"):
        forebay.load_file([tmp_path / "one.safetensors", tmp_path / "two.safetensors"], framework="numpy")
    with pytest.raises(errors.InvalidInputError, match="empty"):
        forebay.load_file([], framework="numpy")


def test_a_placement_sends_each_tensor_to_its_device(tmp_path: Path, gpu: str) -> None:
    names = ["layer.0.a", "layer.0.b", "layer.1.a", "head"]
    tensors = {name: some((4, 4), "float32", i) for i, name in enumerate(names)}
    path = tmp_path / "m.safetensors"
    reference_save(tensors, path)
    loaded = forebay.load_file(path, device={"layer.0.": gpu, "layer.0.b": "cpu", "": "cpu"}, framework="native")
    assert {name: array.device for name, array in loaded.items()} == {
        "layer.0.a": gpu, "layer.0.b": "cpu", "layer.1.a": "cpu", "head": "cpu"
    }  # fmt: skip
    for name, array in tensors.items():
        assert loaded[name].tobytes() == array.tobytes()
    with pytest.raises(errors.InvalidInputError, match=r"no device for a tensor.*tensor=head"):
        forebay.load_file(path, device={"layer.": gpu}, framework="native")


@pytest.mark.parametrize("device", ["xpu", "cuda:x", -1, True, 1.5, "cuda:0:1"])
def test_unknown_devices(model: tuple[Path, dict[str, Any]], device: object) -> None:
    with pytest.raises(errors.InvalidInputError, match="unknown device"):
        forebay.load_file(model[0], device=device, framework="native")


def test_names_choose(model: tuple[Path, dict[str, Any]]) -> None:
    path, tensors = model
    chosen = ["layer.0.bool", "scalar"]
    wanted = {name: tensors[name] for name in chosen}
    assert_same(forebay.load_file(path, framework="numpy", names=chosen), wanted)
    assert_same(forebay.load_file(path, framework="numpy", names=lambda name: name in chosen), wanted)
    assert forebay.load_file(path, framework="numpy", names=[]) == {}
    with pytest.raises(errors.InvalidInputError, match="tensor=scaler") as caught:
        forebay.load_file(path, framework="numpy", names=["scaler"])
    assert "'scalar'" in caught.value.hints[0]
    with pytest.raises(errors.InvalidInputError, match="not a name"):
        forebay.load_file(path, framework="numpy", names="scalar")


def test_a_dtype_casts_what_is_floating_point(model: tuple[Path, dict[str, Any]]) -> None:
    path, tensors = model
    loaded = forebay.load_file(path, framework="numpy", dtype="F32")
    for name, array in tensors.items():
        wanted = array.astype("float32") if array.dtype.kind == "f" else array
        assert loaded[name].dtype == wanted.dtype and np.array_equal(loaded[name], wanted), name
    assert list(loaded) == list(forebay.load_file(path, framework="numpy"))
    assert forebay.load_file(path, framework="numpy", dtype=np.float64)["scalar"].dtype == np.float64
    with pytest.raises(errors.InvalidInputError, match="floating-point"):
        forebay.load_file(path, framework="numpy", dtype="int8")


def test_types_of_python_are_no_functions_of_a_name(model: tuple[Path, dict[str, Any]]) -> None:
    path, _ = model
    assert forebay.load_file(path, framework="numpy", dtype=float)["scalar"].dtype == np.float64
    with pytest.raises(errors.InvalidInputError, match="unknown dtype"):
        forebay.load_file(path, framework="numpy", dtype=str)
    torch = pytest.importorskip("torch", reason="torch is not installed")
    forebay.save_file({"w": np.ones(3, "f4")}, path.with_name("w.safetensors"))
    assert forebay.load_file(path.with_name("w.safetensors"), "cpu", dtype=float)["w"].dtype == torch.float64
    with pytest.raises(errors.InvalidInputError, match="unknown dtype"):
        forebay.load_file(path.with_name("w.safetensors"), "cpu", dtype=np.float32)


def test_a_function_casts_single_tensors(model: tuple[Path, dict[str, Any]]) -> None:
    path, tensors = model
    loaded = forebay.load_file(path, framework="numpy", dtype=lambda name: "int32" if name.endswith("int64") else None)
    changed = {name for name in tensors if loaded[name].dtype != tensors[name].dtype}
    assert changed == {"layer.9.uint64", "layer.10.int64"}
    for wrong in (lambda name: "nonsense", "nonsense", object()):
        with pytest.raises(errors.InvalidInputError, match="unknown dtype"):
            forebay.load_file(path, framework="numpy", dtype=wrong)


def test_progress_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(loading._LIMITS, "group", 400)
    path = tmp_path / "m.safetensors"
    reference_save({f"t{i}": some((25,), "float32") for i in range(40)}, path)
    told: list[tuple[int, int]] = []
    forebay.load_file(path, framework="numpy", progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (4000, 4000) and len(told) > 5
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    # Asked for, but too short to be worth a line; then with no patience.
    forebay.load_file(path, framework="numpy", progress=True)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("forebay.progress._SHOW_AFTER", 0.0)
    forebay.load_file(path, framework="numpy", progress=True)
    drawn = capsys.readouterr().err
    assert "loading" in drawn and "GB/s" in drawn and drawn.endswith("\r")
    forebay.load_file(path, framework="numpy")
    assert capsys.readouterr().err == "", "standard error is no terminal"


def test_an_error_in_the_callers_progress_ends_the_load(model: tuple[Path, dict[str, Any]]) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        forebay.load_file(model[0], framework="numpy", progress=stop)


def test_verify_names_the_damaged_tensor(tmp_path: Path, device: str) -> None:
    path = tmp_path / "m.safetensors"
    tensors = {f"t{i}": some((100 + i,), "float32", i) for i in range(20)} | {"none": np.zeros((0,), "f4")}
    forebay.save_file(tensors, path, {"mine": "stays"}, checksums=True)
    loaded = forebay.load_file(path, device=device, framework="native", verify=True)
    assert loaded["t7"].tobytes() == tensors["t7"].tobytes()
    assert forebay.load_file(path, framework="numpy", verify=True, dtype="F16")["t7"].dtype == np.float16
    with forebay.safe_open(path, "numpy") as file:
        entry = file._entries["t7"]
        assert file.metadata()["mine"] == "stays"
    with path.open("r+b") as raw:
        raw.seek(entry[3] + 123)
        byte = raw.read(1)
        raw.seek(-1, os.SEEK_CUR)
        raw.write(bytes([byte[0] ^ 4]))
    with pytest.raises(errors.IntegrityError, match="tensor=t7") as caught:
        forebay.load_file(path, device=device, framework="native", verify=True)
    assert caught.value.tensor == "t7" and caught.value.hints
    assert len(forebay.load_file(path, framework="numpy")) == 21, "without verify nobody looks"
    assert len(forebay.load_file(path, framework="numpy", verify=True, names=["t6"])) == 1


def test_verify_needs_checksums(model: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidInputError, match="no checksums") as caught:
        forebay.load_file(model[0], framework="numpy", verify=True)
    assert "checksums=True" in caught.value.hints[0]
    for text in ("", "[1]", '{"a": 5}', '{"a": "xyz"}', "[" * 100_000):
        reference_save({"a": np.zeros(1)}, tmp_path / "bad.safetensors", {"forebay.crc32c": text})
        with pytest.raises(errors.IntegrityError, match="checksums"):
            forebay.load_file(tmp_path / "bad.safetensors", framework="numpy", verify=True)
    reference_save({"a": np.zeros(1)}, tmp_path / "bad.safetensors", {"forebay.crc32c": "{}"})
    with pytest.raises(errors.IntegrityError, match="no checksum for a tensor"):
        forebay.load_file(tmp_path / "bad.safetensors", framework="numpy", verify=True)


def test_loads_from_many_threads(model: tuple[Path, dict[str, Any]]) -> None:
    path, tensors = model
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(10):
                assert_same(forebay.load_file(path, framework="numpy"), tensors)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        forebay.load_file(tmp_path / "none.safetensors", framework="numpy")
    assert isinstance(caught.value, errors.NotFoundError) and "none.safetensors" in str(caught.value)
    with pytest.raises(errors.InvalidInputError, match="strings or path objects"):
        forebay.load_file(5, framework="numpy")  # type: ignore[arg-type]


def test_names_of_files_that_are_no_unicode(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/m\xff.safetensors"
    forebay.save_file({"a": np.ones(3)}, os.fsdecode(path))
    assert np.array_equal(forebay.load_file(os.fsdecode(path), framework="numpy")["a"], np.ones(3))


def test_paths_of_bytes(tmp_path: Path) -> None:
    forebay.save_file({"a": np.ones(3, "f4")}, tmp_path / "model.safetensors")
    path = os.fsencode(tmp_path)
    for given in (path, path + b"/model.safetensors", [path + b"/model.safetensors"]):
        assert forebay.load_file(given, "cpu", "numpy")["a"].tolist() == [1, 1, 1]


LANES = """
import glob
import sys
import time

import forebay
from forebay import loading

make = loading.Loader._make


def lanes():
    names = [open(f"{task}/comm").read().strip() for task in glob.glob("/proc/self/task/*")]
    return sum(name.startswith("forebay-0-") and name[-1].isdigit() for name in names)


def wait_for_lanes(loader, *rest):
    deadline = time.monotonic() + 20
    while not lanes() and time.monotonic() < deadline:
        time.sleep(0.01)
    print(lanes() > 0)
    return make(loader, *rest)


loading.Loader._make = wait_for_lanes
assert not lanes()
found = forebay.load_file(sys.argv[1], device="cuda:0", framework="native")
assert all(array.tobytes() == array.nbytes // 4 * int(name).to_bytes(4, "little") for name, array in found.items())
"""


# Tensors were made first, and then the lanes began that read them.
def test_lanes_start_while_tensors_are_made(tmp_path: Path, gpu: str) -> None:
    path = tmp_path / "large.safetensors"
    forebay.save_file({str(i): np.full(1 << 22, i, "i4") for i in range(5)}, path)
    path.read_bytes()
    found = subprocess.run([sys.executable, "-c", LANES, path], capture_output=True, text=True, timeout=100)
    assert (found.stdout, found.returncode) == ("True\n", 0), found.stderr
