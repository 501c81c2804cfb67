"""jax's arrays, from its own allocator.

An array of jax never changes once a program has seen it. Ours are filled in place *before* anybody sees them: a fresh
array is allocated by jax, its allocation is waited for, its bytes are read to where it lies, and only then is it handed
out. Nothing of jax has looked at its content until then, so nothing can have kept an old copy of it.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp

from ..errors import InvalidInputError, UnsupportedError
from ..placement import CPU, Device, parse_device
from . import Allocator, Described, _dtypes
from .numpy import unsupported_dtype_to_save

__all__ = ["FRAMEWORK", "UNCOMMITTED", "Jax", "Uncommitted"]

# Not all of jax is typed.
_block_until_ready: Any = jax.block_until_ready
_config: Any = jax.config
#: jax has these only while its option jax_enable_x64 is on.
_WIDE = frozenset({"I64", "U64", "F64", "complex128"})
_NOTHING: AbstractContextManager[Any] = nullcontext()


class Jax:
    """jax as a :class:`~forebay.frameworks.Framework`."""

    name = "jax"
    array_type: type[Any] = jax.Array
    # jax may share memory between equal constants.
    may_share = True

    def default_device(self) -> Device:
        return Device("cuda", 0) if _gpus() else CPU

    def parse_device(self, device: object) -> Device:
        parsed = parse_device(device)
        if parsed.kind == "meta":
            raise UnsupportedError('jax has no device "meta"', hints=['device="cpu"'])
        if parsed.gpu is not None and parsed.number >= len(_gpus()):
            raise UnsupportedError(
                f"jax sees {len(_gpus())} GPUs", hints=['device="cpu"', "jax.devices() lists them"], device=parsed
            )
        return parsed

    def dtype(self, name: str) -> Any:
        if name in _WIDE and not _config.jax_enable_x64:
            return None
        return _dtype(name)

    def dtype_name(self, dtype: Any) -> str | None:
        return _dtypes.name_of(dtype)

    def dtype_hints(self, name: str) -> list[str]:
        if name in _WIDE:
            half = "C64" if name == "complex128" else f"{name[0]}32"
            narrow = f'dtype=lambda name: "{half}" if name == … else None'
            return ['jax.config.update("jax_enable_x64", True)', f"or cast it: {narrow}"]
        return _dtypes.hints(name)

    def reads(self, name: str) -> bool:
        # Wide ones too: while they are cast jax's option is on.
        return _dtype(name) is not None

    def allocator(self, device: Device) -> Allocator:
        place = self._place(device)

        def allocate(shape: tuple[int, ...], dtype: str) -> Any:
            with _wide_enabled() if dtype in _WIDE else _NOTHING:
                return jnp.empty(shape, _dtypes.numpy_dtype(dtype), device=place)

        return allocate

    def _place(self, device: Device) -> Any:
        return _jax_device(device)

    def ready(self, arrays: Sequence[Any], device: Device) -> None:
        _block_until_ready(list(arrays))

    def address(self, array: Any) -> int:
        return int(array.unsafe_buffer_pointer())

    def describe(self, array: Any, name: str) -> Described:
        dtype = _dtypes.NAMES.get(array.dtype.name)
        if dtype is None:
            raise unsupported_dtype_to_save(array.dtype, name)
        if isinstance(array, jax.core.Tracer):
            raise InvalidInputError("the array is being traced: it has no data", tensor=name)
        if array.is_deleted():
            hints = ["use what the function returned that it was donated to"]
            raise InvalidInputError(
                "the array was deleted: jax gave its memory to another one", hints=hints, tensor=name
            )
        devices = array.devices()
        if len(devices) != 1:
            raise InvalidInputError(
                "the array lies on several devices",
                hints=["jax.device_put(array, jax.devices()[0])"],
                tensor=name,
                devices=len(devices),
            )
        _block_until_ready(array)
        device = parse_device(next(iter(devices)))
        if device.gpu is not None:
            device = Device("cuda", int(next(iter(devices)).local_hardware_id))
        return Described(dtype, array.shape, self.address(array), array.nbytes, device, array)

    def cast(self, array: Any, dtype: str) -> Any:
        with _wide_enabled():
            return array.astype(_dtypes.numpy_dtype(dtype))

    def index(self, array: Any, index: Any) -> Any:
        return array[index]

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        return array.reshape(shape)

    def current_stream(self, device: Device) -> int | None:
        # jax keeps its streams to itself; `ready` and `describe` wait for the arrays instead.
        return None

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in str(error)

    def free_bytes(self, device: Device) -> int | None:
        stats = _jax_device(device).memory_stats() or {}
        if "bytes_limit" not in stats:
            return None
        return int(stats["bytes_limit"]) - int(stats["bytes_in_use"])


class Uncommitted(Jax):
    """jax with arrays on its default device that are not bound to it, as ``jax.numpy.asarray`` makes them."""

    def default_device(self) -> Device:
        return parse_device(next(iter(jnp.zeros(()).devices())))

    def _place(self, device: Device) -> Any:
        return None


def _dtype(name: str) -> Any:
    found = _dtypes.numpy_dtype(name)
    if name in _dtypes.PLAIN or found is None:
        return found
    # jax packs what has less than a byte, and has some of ml_dtypes' types only.
    known = getattr(jnp, _dtypes.EXTRA[name], None)
    return found if known is not None and name not in _dtypes.UNPACKED else None


def _gpus() -> list[Any]:
    try:
        return list(jax.local_devices(backend="gpu"))
    except RuntimeError:
        return []


def _jax_device(device: Device) -> Any:
    return jax.local_devices(backend="cpu")[0] if device.gpu is None else _gpus()[device.number]


def _wide_enabled() -> AbstractContextManager[Any]:
    # Older versions have it as an experiment.
    home: Any = jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")
    context: AbstractContextManager[Any] = home.enable_x64(True)
    return context


FRAMEWORK = Jax()
UNCOMMITTED = Uncommitted()
