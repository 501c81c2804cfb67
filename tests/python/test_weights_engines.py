"""transformers and accelerate with `patch_safetensors()`: equal models, whose tensors were read where they were placed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

import forebay  # noqa: E402
import forebay.torch as ft  # noqa: E402
from forebay import _stand_ins  # noqa: E402

#: transformers imports for seconds.
pytestmark = pytest.mark.timeout(300)
_COMMON = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": 200, "max_position_embeddings": 64,
}  # fmt: skip


def config_of(kind: str) -> Any:
    if kind == "dense":
        return transformers.LlamaConfig(**_COMMON, tie_word_embeddings=False)
    if kind == "tied":
        return transformers.Qwen3Config(**_COMMON, tie_word_embeddings=True)
    return transformers.MixtralConfig(**_COMMON, num_local_experts=2)


@pytest.fixture(params=["dense", "tied", "experts"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config_of(request.param))
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    return tmp_path


@pytest.fixture(autouse=True)
def patch() -> Iterator[None]:
    """None of the tests leaves the patch behind."""
    yield
    forebay.unpatch_safetensors()
    _stand_ins._reads.cache_clear()


def differing(one: Any, other: Any) -> list[str]:
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    return [
        name for name in mine if mine[name].dtype != theirs[name].dtype or not torch.equal(mine[name], theirs[name])
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_from_pretrained_is_equal(folder: Path, dtype: Any) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    with forebay.patch_safetensors():
        mine = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    assert differing(mine, theirs) == []
    assert {type(parameter) for parameter in mine.parameters()} == {torch.nn.Parameter}
    assert {type(parameter.data) for parameter in mine.parameters()} == {torch.Tensor}
    stats = _stand_ins._reads().stats
    assert stats.moved > 0 and stats.whole == 0 and set(stats.operations) == {"to"}
    assert stats.cast == (0 if dtype == torch.float32 else stats.moved)
    # The model is its own: files that go do it no harm, and it can be trained.
    for path in folder.glob("*.safetensors"):
        path.unlink()
    with torch.no_grad():
        next(mine.parameters()).add_(1)


def test_everybody_else_gets_plain_tensors(folder: Path) -> None:
    import safetensors

    path = min(folder.glob("*.safetensors"))
    with forebay.patch_safetensors(), safetensors.safe_open(path, "pt") as file:
        name = file.keys()[0]
        assert type(file.get_tensor(name)) is torch.Tensor and type(file.get_slice(name)[:1]) is torch.Tensor


def opened_by(module: str, path: Path) -> Any:
    """A file that a module of this name opens."""
    import safetensors

    names: dict[str, Any] = {"__name__": module, "safetensors": safetensors, "path": path}
    exec("file = safetensors.safe_open(path, framework='pt')", names)  # noqa: S102 (a module's name is what counts)
    return names["file"]


def test_packages_that_place_tensors_get_them_unread(folder: Path) -> None:
    path = min(folder.glob("*.safetensors"))
    with forebay.patch_safetensors():
        for module in (
            "transformers.modeling_utils",
            "diffusers.models.model_loading_utils",
            "accelerate.utils.modeling",
        ):
            file = opened_by(module, path)
            name = file.keys()[0]
            part, whole = file.get_slice(name), file.get_tensor(name)
            assert isinstance(part, ft.Weight) and isinstance(whole, ft.Weight)
            assert part.get_shape() == list(whole.shape) and part.get_dtype() == "F32"
            with pytest.raises(safetensors_error()):
                file.get_tensor("none")
            file.__exit__(None, None, None)
            assert torch.equal(part[:1].to("cpu"), whole.clone()[:1])
        plain = opened_by("accelerate.utils.offload", path)
        assert type(plain.get_tensor(name)) is torch.Tensor


def safetensors_error() -> type[Exception]:
    import safetensors

    kind: type[Exception] = safetensors.SafetensorError
    return kind


def test_shards_of_tensor_parallel_are_read_alone(folder: Path) -> None:
    """What transformers cuts for `tp_plan`: slices of get_slice, then `.to`."""
    path = min(folder.glob("*.safetensors"))
    with forebay.patch_safetensors():
        file = opened_by("transformers.modeling_utils", path)
        name = next(name for name in file.keys() if len(file.get_slice(name).get_shape()) == 2)
        part = file.get_slice(name)
        rows, columns = part.get_shape()
        shard = part[(slice(0, rows), slice(columns // 2, columns))].to(device="cpu", dtype=torch.float32)
    whole = ft.weights(path)[name].clone()
    assert torch.equal(shard, whole[:, columns // 2 :])
    assert _stand_ins._reads().stats.bytes == shard.nbytes


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
def test_accelerate_loads_and_offloads(folder: Path, tmp_path: Path) -> None:
    import accelerate

    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with forebay.patch_safetensors():
        mine = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map="cpu")
        assert differing(mine, theirs) == []
        with accelerate.init_empty_weights():
            empty = transformers.AutoModelForCausalLM.from_config(config_of("dense"))
        if type(theirs) is type(empty):
            accelerate.load_checkpoint_and_dispatch(empty, str(folder), device_map={"": "cpu"})
            assert differing(empty, theirs) == []
        names = {"model.layers": "disk", **dict.fromkeys(("model.embed_tokens", "model.norm", "lm_head"), "cpu")}
        names["model.rotary_emb"] = "cpu"
        off = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, device_map=names, offload_folder=str(tmp_path / "off")
        )
        tokens = torch.arange(8)[None]
        assert torch.allclose(off(tokens).logits, theirs(tokens).logits)
