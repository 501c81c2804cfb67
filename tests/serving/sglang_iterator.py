"""SGLang's own iterator and forebay's around it, put there by SGLang's own registry of hooks: equal names and tensors.

Ends with 3, and a line that says why, where SGLang is not installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

os.environ["SGLANG_PLUGINS"] = "forebay"

import torch

#: SGLang's own modules that are used. All else that they import of it is for GPUs and servers: doubles.
REAL = ("sglang.srt.model_loader.weight_utils", "sglang.srt.plugins", "sglang.srt.plugins.hook_registry")


class Doubles(MetaPathFinder, Loader):
    """Finds packages of SGLang without what they import, and doubles of its other modules."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "sglang" or fullname in REAL:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> Any:
        if any(name.startswith(f"{spec.name}.") for name in REAL):
            return None
        return MagicMock(name=spec.name)

    def exec_module(self, module: Any) -> None:
        if not isinstance(module, MagicMock):
            module.__path__ = [str(self._folder.joinpath(*module.__name__.split(".")[1:]))]


def main() -> int:
    found = importlib.util.find_spec("sglang")
    if found is None or found.origin is None:
        print("skipped: SGLang is not installed")
        return 3
    sys.meta_path.insert(0, Doubles(Path(found.origin).parent))
    weight_utils = importlib.import_module(REAL[0])
    envs = importlib.import_module("sglang.srt.environ").envs
    envs.SGLANG_PLUGINS.get.return_value, envs.SGLANG_PLATFORM.get.return_value = "forebay", ""
    load_plugins = importlib.import_module(REAL[1]).load_plugins
    files = sorted(map(str, Path(sys.argv[1]).glob("*.safetensors")))
    wanted = dict(weight_utils.safetensors_weights_iterator(files))
    stock = weight_utils.safetensors_weights_iterator
    load_plugins()
    assert weight_utils.safetensors_weights_iterator is not stock, "the plug-in is not in place"
    made = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    found = set()
    for name, tensor in weight_utils.safetensors_weights_iterator(files):
        assert type(tensor).__name__ == "Weight", type(tensor)
        made[name].copy_(tensor)
        found.add(name)
    differing = [name for name in wanted if not torch.equal(made[name], wanted[name])]
    print({"tensors": len(wanted), "differing": differing, "lacking": sorted(wanted.keys() - found)})
    return 1 if differing or found != wanted.keys() else 0


if __name__ == "__main__":
    sys.exit(main())
