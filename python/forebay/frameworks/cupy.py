"""cupy's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy

from ..errors import UnsupportedError
from ..placement import Device, parse_device
from . import Allocator, Described, NotContiguousError, _dtypes, settle
from .numpy import unsupported_dtype_to_save

__all__ = ["FRAMEWORK", "Cupy"]


class Cupy:
    """cupy as a :class:`~forebay.frameworks.Framework`. Its arrays are GPU memory, from its memory pool."""

    name = "cupy"
    array_type: type[Any] = cupy.ndarray
    may_share = False

    def default_device(self) -> Device:
        return Device("cuda", 0)

    def parse_device(self, device: object) -> Device:
        parsed = parse_device(device, lambda: int(cupy.cuda.runtime.getDevice()))
        if parsed.gpu is None:
            raise UnsupportedError(
                "cupy's arrays lie in GPU memory", hints=['device="cuda:0"', 'framework="numpy" for host memory']
            )
        return parsed

    def dtype(self, name: str) -> Any:
        # cupy computes with some of ml_dtypes' dtypes only; it refuses an array of the others.
        found = _dtypes.numpy_dtype(name)
        if found is not None and name in _dtypes.EXTRA and not _takes(found):
            return None
        return found

    def dtype_name(self, dtype: Any) -> str | None:
        return _dtypes.name_of(dtype)

    def dtype_hints(self, name: str) -> list[str]:
        return _dtypes.hints(name)

    def reads(self, name: str) -> bool:
        return self.dtype(name) is not None

    def allocator(self, device: Device) -> Allocator:
        dtypes: dict[str, Any] = {}

        def allocate(shape: tuple[int, ...], dtype: str) -> Any:
            if dtype not in dtypes:
                dtypes[dtype] = self.dtype(dtype)
            with cupy.cuda.Device(device.number):
                return cupy.empty(shape, dtypes[dtype])

        return allocate

    def ready(self, arrays: Sequence[Any], device: Device) -> None:
        settle(self, [device])

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def describe(self, array: Any, name: str) -> Described:
        dtype = _dtypes.NAMES.get(array.dtype.name)
        if dtype is None:
            raise unsupported_dtype_to_save(array.dtype, name)
        if not array.flags.c_contiguous:
            raise NotContiguousError(
                "the array is not contiguous", hints=["cupy.ascontiguousarray(array)"], tensor=name
            )
        device = Device("cuda", int(array.device.id))
        return Described(dtype, array.shape, int(array.data.ptr), int(array.nbytes), device, array)

    def cast(self, array: Any, dtype: str) -> Any:
        with array.device:
            return array.astype(self.dtype(dtype))

    def index(self, array: Any, index: Any) -> Any:
        with array.device:
            return cupy.array(array[index], order="C")

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        return array.reshape(shape)

    def current_stream(self, device: Device) -> int | None:
        with cupy.cuda.Device(device.number):
            return int(cupy.cuda.get_current_stream().ptr)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, (cupy.cuda.memory.OutOfMemoryError, MemoryError))

    def free_bytes(self, device: Device) -> int | None:
        with cupy.cuda.Device(device.number):
            free = int(cupy.cuda.runtime.memGetInfo()[0])
            return free + int(cupy.get_default_memory_pool().free_bytes())


def _takes(dtype: Any) -> bool:
    try:
        cupy.empty(0, dtype)
    except (TypeError, ValueError, NotImplementedError):
        return False
    return True


FRAMEWORK = Cupy()
