"""vLLM's load format ``forebay``: each rank reads the slices that it keeps, straight into its parameters.

``vllm serve MODEL --load-format forebay``, or ``LLM(MODEL, load_format="forebay")``. vLLM finds it by the entry point of the
wheel. It takes what ``--load-format safetensors`` takes, and no extra configuration.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from .errors import InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    import torch

__all__ = ["register"]

_log = logging.getLogger("vllm.forebay")
#: vLLM's functions that the loader builds on.
_NEEDED = ("_prepare_weights", "_get_weights_iterator", "load_weights")


def register() -> None:
    """Registers the load format. Where vLLM's interface has moved, it says so and registers nothing."""
    try:
        loader = _loader()
    except UnsupportedError as error:
        _log.warning("%s; %s", error, "; ".join(error.hints))
        return
    from vllm.model_executor.model_loader import register_model_loader

    register_model_loader("forebay")(loader)


def _moved(wanted: str, found: str) -> UnsupportedError:
    hints = ['type --load-format safetensors, or pip install "vllm>=0.32,<0.34"']
    return UnsupportedError(f"--load-format forebay needs {wanted}", hints=hints, found=found)


def _loader() -> type[Any]:
    """The loader's class.

    Raises:
        UnsupportedError: this vLLM is another one than it was written for.
    """
    try:
        import vllm
        from vllm.model_executor.model_loader import register_model_loader  # noqa: F401
        from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
    except ImportError as error:
        raise _moved("vllm.model_executor.model_loader.default_loader.DefaultModelLoader", str(error)) from None
    for name in _NEEDED:
        if not hasattr(DefaultModelLoader, name):
            raise _moved(f"vLLM's DefaultModelLoader.{name}", f"vLLM {vllm.__version__} without it")
    return _made(DefaultModelLoader)


def _made(base: type[Any]) -> type[Any]:
    from .torch._weights import Weights
    from .torch._weights_reads import Reads

    class ForebayLoader(base):  # type: ignore[misc]
        """vLLM's own loader, but for the reading of tensors."""

        def __init__(self, load_config: Any) -> None:
            if load_config.model_loader_extra_config:
                raise InvalidInputError(
                    "--load-format forebay has no extra configuration",
                    hints=["leave --model-loader-extra-config out"],
                    keys=sorted(load_config.model_loader_extra_config),
                )
            super().__init__(dataclasses.replace(load_config, load_format="safetensors"))
            self._reads = Reads()

        def _get_weights_iterator(self, source: Any) -> Iterator[tuple[str, torch.Tensor]]:
            from .safetensors import open_all

            _, files, _, _ = self._prepare_weights(
                source.model_or_path, source.subfolder, source.revision, source.fall_back_to_pt,
                source.allow_patterns_overrides,
            )  # fmt: skip
            if not getattr(self, "counter_before_loading_weights", 0.0):
                self.counter_before_loading_weights = time.perf_counter()
            for name, tensor in Weights(open_all(files), self._reads).items():
                yield source.prefix + name, tensor

        def load_weights(self, model: Any, model_config: Any) -> None:
            # Online quantization uses a layer's weights as soon as it has them.
            with _node(), nullcontext() if _is_quantized_online(model) else self._reads.collect():
                super().load_weights(model, model_config)
            _log.info("forebay: %s", self._reads.stats)

    return ForebayLoader


@contextmanager
def _node() -> Iterator[None]:
    """While a model is loaded, the variables by which torchrun names a rank of a node and their number: forebay has ranks share
    CPUs and reads by them. vLLM's own executors start ranks without them.
    """
    state = sys.modules.get("vllm.distributed.parallel_state")
    nodes, group = getattr(state, "_NODE_COUNT", None), getattr(state, "_WORLD", None)
    # Nodes with different numbers of ranks are not told apart. Data-parallel engines of a dense model are configured as if each were
    # alone: nothing says how many the node has.
    if not nodes or group is None or group.world_size % nodes or "LOCAL_RANK" in os.environ:
        yield
        return
    count = group.world_size // nodes
    before = {name: os.environ.get(name) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    os.environ.update(LOCAL_RANK=str(group.rank_in_group % count), LOCAL_WORLD_SIZE=str(count))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _is_quantized_online(model: Any) -> bool:
    methods = (getattr(module, "quant_method", None) for module in model.modules())
    return any(getattr(method, "uses_meta_device", False) for method in methods)
