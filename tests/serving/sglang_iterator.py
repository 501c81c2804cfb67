"""SGLang's own iterator and forebay's around it, in SGLang's modules: equal names and tensors.

Ends with 3, and a line that says why, where SGLang's modules cannot be imported without a GPU.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["SGLANG_PLUGINS"] = "forebay"

import torch


def main() -> int:
    try:
        from sglang.srt.model_loader import weight_utils
        from sglang.srt.plugins import load_plugins
    except Exception as error:
        print(f"skipped: SGLang's loaders cannot be imported here: {error!r}")
        return 3
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
