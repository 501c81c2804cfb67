"""Models in several files of ``torch.save``, with an index: as those in safetensors, and nothing in them is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import forebay  # noqa: E402
from forebay import errors  # noqa: E402

INDEX = "pytorch_model.bin.index.json"


@pytest.fixture
def model(tmp_path: Path) -> dict[str, Any]:
    """A model in two files with an index, in ``tmp_path``."""
    parts: list[dict[str, Any]] = [
        {"a.0": torch.randn(3, 4), "a.1": torch.arange(5)},
        {"b.0": torch.randn(7, dtype=torch.float16)},
    ]
    weights: dict[str, str] = {}
    for number, part in enumerate(parts):
        file = f"pytorch_model-{number + 1:05}-of-00002.bin"
        torch.save(part, tmp_path / file)
        weights |= dict.fromkeys(part, file)
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    return parts[0] | parts[1]


def assert_same(loaded: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert list(loaded) == list(wanted)
    for name, tensor in wanted.items():
        assert loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor), name


def test_by_folder_by_index_and_one_by_one(model: dict[str, Any], tmp_path: Path) -> None:
    files = sorted(tmp_path.glob("*.bin"))
    for paths in (tmp_path, str(tmp_path / INDEX), files, tuple(map(str, files))):
        assert_same(forebay.load_file(paths, device="cpu"), model)


def test_one_file_in_a_folder(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "pytorch_model.bin")
    torch.save({"b": torch.ones(3)}, tmp_path / "training_args.bin")
    assert set(forebay.load_file(tmp_path, device="cpu")) == {"a"}


def test_safetensors_come_first(model: dict[str, Any], tmp_path: Path) -> None:
    forebay.save_file({"s": np.ones(3, "f4")}, tmp_path / "model.safetensors")
    assert set(forebay.load_file(tmp_path, device="cpu")) == {"s"}


def test_names_and_dtypes_choose(model: dict[str, Any], tmp_path: Path) -> None:
    loaded = forebay.load_file(tmp_path, device="cpu", names=iter(["b.0", "a.1"]), dtype="BF16")
    assert {name: tensor.dtype for name, tensor in loaded.items()} == {"a.1": torch.int64, "b.0": torch.bfloat16}
    assert set(forebay.load_file(tmp_path, device="cpu", names=lambda name: name.startswith("a."))) == {"a.0", "a.1"}
    with pytest.raises(errors.InvalidInputError, match="no tensor of this name") as caught:
        forebay.load_file(tmp_path, device="cpu", names=["a.2"])
    assert "a.2" in str(caught.value)


def test_a_placement(model: dict[str, Any], tmp_path: Path) -> None:
    loaded = forebay.load_file(tmp_path, device={"a.": "cpu", "": "meta"})
    assert {name: tensor.device.type for name, tensor in loaded.items()} == {"a.0": "cpu", "a.1": "cpu", "b.0": "meta"}


def test_progress_counts_all_files(model: dict[str, Any], tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    forebay.load_file(tmp_path, device="cpu", progress=lambda done, total: told.append((done, total)))
    size = sum(tensor.nbytes for tensor in model.values())
    assert told[-1] == (size, size)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_missing_shard_is_named_before_anything_is_read(model: dict[str, Any], tmp_path: Path) -> None:
    missing = tmp_path / "pytorch_model-00002-of-00002.bin"
    missing.unlink()
    with pytest.raises(errors.NotFoundError, match="1 of the 2 shards") as caught:
        forebay.load_file(tmp_path, device="cpu")
    assert str(missing) in str(caught.value) and caught.value.hints


def test_a_shard_without_a_tensor_of_the_index(model: dict[str, Any], tmp_path: Path) -> None:
    index = tmp_path / INDEX
    index.write_text(index.read_text().replace('"a.1"', '"a.7"'))
    with pytest.raises(errors.InvalidInputError, match=r"a\.7") as caught:
        forebay.load_file(tmp_path, device="cpu")
    assert "00001-of-00002.bin" in str(caught.value)


def test_an_index_takes_only_what_it_names(model: dict[str, Any], tmp_path: Path) -> None:
    content = json.loads((tmp_path / INDEX).read_text())
    del content["weight_map"]["a.1"]
    (tmp_path / INDEX).write_text(json.dumps(content))
    assert set(forebay.load_file(tmp_path, device="cpu")) == {"a.0", "b.0"}


def test_code_is_refused(model: dict[str, Any], tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (print, ("run",))

    torch.save({"b.0": Evil()}, tmp_path / "pytorch_model-00002-of-00002.bin")
    with pytest.raises(errors.InvalidInputError, match="print"):
        forebay.load_file(tmp_path, device="cpu")


def test_other_frameworks_and_mixtures(model: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(errors.UnsupportedError, match=r"torch\.save wrote this file") as caught:
        forebay.load_file(tmp_path, framework="numpy")
    assert caught.value.hints[0] == 'framework="torch"'
    forebay.save_file({"s": np.ones(3, "f4")}, tmp_path / "model.safetensors")
    files = [*sorted(tmp_path.glob("*.bin")), tmp_path / "model.safetensors"]
    with pytest.raises(errors.InvalidInputError, match="some of the files"):
        forebay.load_file(files, device="cpu")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(errors.InvalidInputError, match="two files have a tensor of the same name"):
        forebay.load_file([files[0], files[0]], device="cpu")
