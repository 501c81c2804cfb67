"""The plug-ins of serving engines, against doubles of the engines: what they register, refuse, and say where an interface has moved.
`make serving` runs them in the engines themselves."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import forebay  # noqa: E402
from forebay import sglang, vllm  # noqa: E402


@dataclasses.dataclass
class LoadConfig:
    load_format: str = "forebay"
    model_loader_extra_config: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Source:
    model_or_path: str
    subfolder: str | None = None
    revision: str | None = None
    fall_back_to_pt: bool = True
    allow_patterns_overrides: list[str] | None = None
    prefix: str = ""


class DefaultModelLoader:
    """As much of vLLM's as forebay's builds on."""

    def __init__(self, load_config: LoadConfig) -> None:
        assert load_config.load_format == "safetensors" and not load_config.model_loader_extra_config
        self.load_config = load_config

    def _prepare_weights(self, folder: str, *_: Any) -> tuple[str, list[str], bool, str]:
        return folder, sorted(map(str, Path(folder).glob("*.safetensors"))), True, "model.safetensors.index.json"

    def _get_weights_iterator(self, source: Source) -> Iterator[tuple[str, Any]]:
        raise NotImplementedError

    def load_weights(self, model: Any, model_config: str) -> None:
        for name, tensor in self._get_weights_iterator(Source(model_config, prefix="model.")):
            parameter = model.get_parameter(name.removeprefix("model."))
            parameter.data.copy_(tensor)
            getattr(model, "quantise", lambda *_: None)(name, parameter)


def module(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    made = ModuleType(name)
    made.__dict__.update(members)
    monkeypatch.setitem(sys.modules, name, made)


@pytest.fixture
def loaders(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """vLLM's registered loaders."""
    found: dict[str, Any] = {}

    def register_model_loader(name: str) -> Callable[[Any], Any]:
        return lambda loader: found.setdefault(name, loader)

    module(monkeypatch, "vllm", __version__="0.32.0")
    module(monkeypatch, "vllm.model_executor")
    module(monkeypatch, "vllm.model_executor.model_loader", register_model_loader=register_model_loader)
    place = "vllm.model_executor.model_loader.default_loader"
    module(monkeypatch, place, DefaultModelLoader=DefaultModelLoader)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    forebay.save_file(torch.nn.Linear(4, 3).state_dict(), tmp_path / "model.safetensors")
    return tmp_path


def test_vllm_loads_by_it(loaders: dict[str, Any], folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    vllm.register()
    loader, model = loaders["forebay"](LoadConfig()), torch.nn.Linear(4, 3)
    with caplog.at_level(logging.INFO, "vllm.forebay"):
        loader.load_weights(model, str(folder))
    wanted = forebay.load_file(folder, device="cpu")
    assert all(torch.equal(model.state_dict()[name], wanted[name]) for name in wanted)
    assert "2 straight into place" in caplog.text


def test_vllm_collects_nothing_where_it_quantises_online(loaders: dict[str, Any], folder: Path) -> None:
    vllm.register()
    loader, model = loaders["forebay"](LoadConfig()), torch.nn.Linear(4, 3)
    model.quant_method = type("Online", (), {"uses_meta_device": True})()
    wanted, used = forebay.load_file(folder, device="cpu"), []

    def quantise(name: str, parameter: Any) -> None:
        assert torch.equal(parameter, wanted[name.removeprefix("model.")])
        used.append(name)

    model.quantise = quantise
    loader.load_weights(model, str(folder))
    assert used == ["model.bias", "model.weight"]


@pytest.mark.parametrize(("rank", "nodes", "of_node"), [(1, 1, ("1", "4")), (3, 2, ("1", "2"))])
def test_vllm_ranks_know_their_node(
    rank: int,
    nodes: int,
    of_node: tuple[str, str],
    loaders: dict[str, Any],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    # vLLM's CPU build sets one of the two.
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "9")
    world = SimpleNamespace(world_size=4, rank_in_group=rank)
    module(monkeypatch, "vllm.distributed.parallel_state", _WORLD=world, _NODE_COUNT=nodes)
    vllm.register()
    loader, model, seen = loaders["forebay"](LoadConfig()), torch.nn.Linear(4, 3), set()
    model.quantise = lambda *_: seen.add(tuple(map(os.environ.get, names)))
    loader.load_weights(model, str(folder))
    assert seen == {of_node}
    assert tuple(map(os.environ.get, names)) == (None, "9")


def test_vllm_refuses_keys(loaders: dict[str, Any]) -> None:
    vllm.register()
    with pytest.raises(forebay.errors.InvalidInputError, match="no extra configuration") as told:
        loaders["forebay"](LoadConfig(model_loader_extra_config={"num_threads": 4}))
    assert "num_threads" in str(told.value)


@pytest.mark.parametrize("lacks", ["_prepare_weights", "module"])
def test_vllm_that_moved_is_told_in_one_line(
    lacks: str, loaders: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if lacks == "module":
        module(monkeypatch, "vllm.model_executor.model_loader.default_loader")
    else:
        monkeypatch.delattr(DefaultModelLoader, lacks)
    vllm.register()
    assert not loaders
    (line,) = caplog.messages
    assert "DefaultModelLoader" in line and "found" in line and "--load-format safetensors" in line and "\n" not in line


class Hooks:
    """SGLang's registry of hooks."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def register(self, target: str, hook: Any, kind: str) -> None:
        assert kind == "around"
        self.found[target] = hook


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Hooks:
    made = Hooks()
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins", "sglang.srt.model_loader"):
        module(monkeypatch, name)
    kinds = type("HookType", (), {"AROUND": "around"})
    module(monkeypatch, "sglang.srt.plugins.hook_registry", HookRegistry=made, HookType=kinds)
    module(monkeypatch, "sglang.srt.model_loader.weight_utils", safetensors_weights_iterator=print)
    return made


def test_sglang_loads_by_it_where_it_is_named(hooks: Hooks, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
    sglang.register()
    assert not hooks.found
    monkeypatch.setenv("SGLANG_PLUGINS", "other, forebay")
    sglang.register()
    (target,) = hooks.found
    assert target == "sglang.srt.model_loader.weight_utils.safetensors_weights_iterator"
    model, wanted = torch.nn.Linear(4, 3), forebay.load_file(folder, device="cpu")
    for name, tensor in hooks.found[target](print, [str(folder / "model.safetensors")], disable_mmap=False):
        model.get_parameter(name).data.copy_(tensor)
    assert all(torch.equal(model.state_dict()[name], wanted[name]) for name in wanted)


def test_sglang_that_takes_only_some_has_those(hooks: Hooks, folder: Path) -> None:
    into = torch.zeros(3)
    iterator = sglang.weights_iterator(print, [str(folder / "model.safetensors")])
    name, tensor = next(iterator)
    into.copy_(tensor)
    iterator.close()
    assert name == "bias" and torch.equal(into, forebay.load_file(folder, device="cpu")["bias"])


def test_sglang_that_moved_is_told_in_one_line(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SGLANG_PLUGINS", "forebay")
    module(monkeypatch, "sglang.srt.model_loader.weight_utils")
    sglang.register()
    (line,) = caplog.messages
    assert not hooks.found and "safetensors_weights_iterator" in line and "unset SGLANG_PLUGINS" in line
