"""One rank of vLLM's loaders: loads each model with vLLM's own loader and with `--load-format forebay`, and compares all tensors.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun sets them. Prints a line of JSON for each model; ends with 1 where a
tensor differs.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="WARNING")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

import torch
from models import CONFIGS, make
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model_loader
from vllm.plugins import load_general_plugins
from vllm.utils.torch_utils import set_default_torch_dtype

import forebay.torch
from forebay.torch._weights_calls import name_of
from forebay.torch._weights_tensor import Weight

# Ranks that share memory name it by this.
os.environ.setdefault("VLLM_DIST_IDENT", os.environ["MASTER_PORT"])
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


#: What vLLM asked of tensors that were still in their files.
ASKED: Counter[str] = Counter()


def record() -> None:
    """Counts each function of torch that a tensor of ours meets, by name."""
    original = Weight.__torch_function__.__func__

    def counted(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ASKED[name_of(func)] += 1
        return original(cls, func, types, args, kwargs)

    Weight.__torch_function__ = classmethod(counted)


def config_of(path: Path, load_format: str) -> Any:
    return EngineArgs(
        model=str(path), load_format=load_format, tensor_parallel_size=RANKS, dtype="float32", enforce_eager=True,
        max_model_len=256, skip_tokenizer_init=True, distributed_executor_backend="external_launcher",
    ).create_engine_config()  # fmt: skip


def load(path: Path, load_format: str) -> tuple[Any, Any]:
    """A model and its loader, before vLLM packs the weights: its CPU build leaves none behind."""
    config = config_of(path, load_format)
    loader = get_model_loader(config.load_config)
    with set_current_vllm_config(config), set_default_torch_dtype(config.model_config.dtype):
        model = loader.create_model(vllm_config=config, model_config=config.model_config)
        loader.load_weights(model, config.model_config)
    assert all(tensor.numel() for tensor in model.state_dict().values())
    return model, loader


def tensors_of(model: Any) -> dict[str, Any]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def refit(model: Any, path: Path) -> dict[str, Any]:
    """The tensors of a loaded model that was filled again, from nothing."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    weights = forebay.torch.weights(path)
    with weights.collect():
        model.load_weights(weights.items())
    return tensors_of(model)


def different(wanted: dict[str, Any], mine: dict[str, Any]) -> list[str]:
    assert wanted.keys() == mine.keys()
    return [name for name in wanted if not torch.equal(wanted[name], mine[name])]


def compare(kind: str, folder: Path) -> dict[str, Any]:
    path = make(kind, folder)
    wanted = tensors_of(load(path, "safetensors")[0])
    ASKED.clear()
    model, loader = load(path, "forebay")
    stats = loader._reads.stats
    nbytes = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    return {
        "model": kind, "rank": RANK, "ranks": RANKS, "tensors": len(wanted), "differing": different(wanted, tensors_of(model)),
        "refit": different(wanted, refit(model, path)),
        "bytes": stats.bytes, "part": round(stats.bytes / nbytes, 4), "pieces": stats.pieces, "copied": stats.copied,
        "whole": stats.whole, "operations": dict(stats.operations), "asked": dict(ASKED),
    }  # fmt: skip


def main() -> None:
    load_general_plugins()
    record()
    folder, kinds = Path(sys.argv[1]), sys.argv[2:] or list(CONFIGS)
    # Groups of ranks for experts are made only where the model has some.
    with set_current_vllm_config(config_of(make("experts", folder), "safetensors")):
        init_distributed_environment(RANKS, RANK, "env://", RANK, "gloo")
        initialize_model_parallel(RANKS)
    failed = False
    for kind in kinds:
        told = compare(kind, folder)
        failed |= bool(told["differing"] or told["refit"])
        print(json.dumps(told), flush=True)
    # Collectives' threads outlive main: nothing is left for them to do.
    sys.stdout.flush()
    os._exit(1 if failed else 0)


if __name__ == "__main__":
    main()
