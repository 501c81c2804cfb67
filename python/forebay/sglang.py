"""SGLang's plug-in ``forebay``: each rank reads the slices that it keeps, straight into its parameters.

``SGLANG_PLUGINS=forebay python -m sglang.launch_server --model-path MODEL``. SGLang finds it by the entry point of the wheel; without
its name in ``SGLANG_PLUGINS`` it changes nothing.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["register", "weights_iterator"]

_log = logging.getLogger("sglang.forebay")
#: SGLang's iterators over the tensors of safetensors files: the plain one, and the one of its own threads.
_MODULE = "sglang.srt.model_loader.weight_utils"
_TARGETS = ("safetensors_weights_iterator", "buffered_multi_thread_safetensors_weights_iterator")


def register() -> None:
    """Puts forebay's iterator around SGLang's, where ``SGLANG_PLUGINS`` names it. Where SGLang's interface has moved, it says so
    and changes nothing."""
    if "forebay" not in os.environ.get("SGLANG_PLUGINS", "").replace(" ", "").split(","):
        return
    try:
        hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
        there = [name for name in _TARGETS if hasattr(importlib.import_module(_MODULE), name)]
        around = hooks.HookType.AROUND
    except (ImportError, AttributeError) as error:
        _moved(str(error))
        return
    if _TARGETS[0] not in there:
        _moved(f"{_MODULE} without {_TARGETS[0]}")
        return
    for name in there:
        hooks.HookRegistry.register(f"{_MODULE}.{name}", weights_iterator, around)


def _moved(found: str) -> None:
    _log.warning(
        "forebay does not load weights: it looked for sglang.srt.plugins.hook_registry and %s.%s, and found: %s; type: "
        'unset SGLANG_PLUGINS, or pip install "sglang==0.5.23"',
        _MODULE, _TARGETS[0], found,
    )  # fmt: skip


def weights_iterator(
    original: Callable[..., Any], hf_weights_files: list[str], *args: Any, **options: Any
) -> Iterator[tuple[str, torch.Tensor]]:
    """The names and tensors of these files. Copies of them are collected until the last one was taken. How SGLang would have read
    them has no meaning here."""
    from .torch import weights

    checkpoint = weights(hf_weights_files)
    with checkpoint.collect():
        yield from checkpoint.items()
    _log.info("forebay: %s", checkpoint.stats)
