"""The models that the serving engines load in these tests: small, of random weights, in several files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

#: What all of them have.
_COMMON = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 32, "vocab_size": 1000, "max_position_embeddings": 512, "dtype": "float32",
}  # fmt: skip


def _dense() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(**_COMMON, tie_word_embeddings=False)


def _experts() -> Any:
    from transformers import MixtralConfig

    return MixtralConfig(**_COMMON, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)


def _tied() -> Any:
    from transformers import Qwen3Config

    return Qwen3Config(**_COMMON, tie_word_embeddings=True)


def _sliding() -> Any:
    from transformers import MistralConfig

    return MistralConfig(**_COMMON, sliding_window=64)


CONFIGS: dict[str, Callable[[], Any]] = {
    "dense": _dense, "experts": _experts, "tied": _tied, "sliding": _sliding,
}  # fmt: skip


def make(kind: str, folder: Path) -> Path:
    """Writes a model, unless it is there; returns its folder."""
    import torch
    from transformers import AutoModelForCausalLM

    path = folder / kind
    if not (path / "config.json").exists():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(CONFIGS[kind]()).save_pretrained(path, max_shard_size="1MB")
    return path
