"""forebay's own arrays: for programs without a framework, and for dtypes that a framework lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._forebay import Array, device_count, empty
from ..errors import DeviceOutOfMemoryError, UnsupportedError
from ..placement import CPU, Device, parse_device
from . import Allocator, Described, _dtypes

__all__ = ["FRAMEWORK", "Native"]


class Native:
    """forebay's own :class:`~forebay.Array` as a
    :class:`~forebay.frameworks.Framework`. Their elements have at least a byte."""

    name = "native"
    array_type: type[Any] = Array
    may_share = False

    def default_device(self) -> Device:
        return Device("cuda", 0) if device_count() else CPU

    def parse_device(self, device: object) -> Device:
        return parse_device(device)

    def dtype(self, name: str) -> Any:
        return name if name in _dtypes.PLAIN or name in _dtypes.EXTRA else None

    def dtype_name(self, dtype: Any) -> str | None:
        return _dtypes.name_of(dtype)

    def dtype_hints(self, name: str) -> list[str]:
        return _dtypes.hints(name)

    def reads(self, name: str) -> bool:
        return self.dtype(name) is not None

    def allocator(self, device: Device) -> Allocator:
        place = str(device)
        return lambda shape, dtype: empty(shape, dtype, place)

    def ready(self, arrays: Sequence[Any], device: Device) -> None:
        pass

    def address(self, array: Any) -> int:
        return int(array.address)

    def describe(self, array: Any, name: str) -> Described:
        return Described(
            str(array.dtype), tuple(array.shape), self.address(array), array.nbytes, parse_device(array.device), array
        )

    def cast(self, array: Any, dtype: str) -> Any:
        raise UnsupportedError(
            "forebay's own arrays cannot be cast", hints=['framework="torch", "jax", "numpy" or "cupy"']
        )

    def index(self, array: Any, index: Any) -> Any:
        raise UnsupportedError(
            "forebay's own arrays take numbers, slices, None and ... as an index",
            hints=['framework="torch", "jax", "numpy" or "cupy"'],
        )

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        raise UnsupportedError("forebay's own arrays cannot be reshaped", hints=['framework="numpy" or "cupy"'])

    def current_stream(self, device: Device) -> int | None:
        # They have no current stream: the work on the default stream, where kernels go by default.
        return None if device.gpu is None else 0

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, (DeviceOutOfMemoryError, MemoryError))

    def free_bytes(self, device: Device) -> int | None:
        return None


FRAMEWORK = Native()
