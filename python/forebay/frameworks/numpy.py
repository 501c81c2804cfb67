"""numpy's arrays, with the dtypes of ml_dtypes where that package is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from ..errors import InvalidInputError, UnsupportedError
from ..placement import CPU, Device, parse_device
from . import Allocator, Described, _dtypes

__all__ = ["FRAMEWORK", "Numpy"]


class Numpy:
    """numpy as a :class:`~forebay.frameworks.Framework`. Its arrays are host memory."""

    name = "numpy"
    array_type: type[Any] = numpy.ndarray
    may_share = False

    def default_device(self) -> Device:
        return CPU

    def parse_device(self, device: object) -> Device:
        parsed = parse_device(device)
        if parsed != CPU:
            raise UnsupportedError(
                f"numpy's arrays lie in host memory, not on {parsed}",
                hints=['device="cpu"', 'framework="torch", "jax" or "cupy"'],
            )
        return parsed

    def dtype(self, name: str) -> Any:
        return _dtypes.numpy_dtype(name)

    def dtype_name(self, dtype: Any) -> str | None:
        return _dtypes.name_of(dtype)

    def dtype_hints(self, name: str) -> list[str]:
        return ["pip install ml_dtypes", *_dtypes.hints(name)] if name in _dtypes.EXTRA else _dtypes.hints(name)

    def reads(self, name: str) -> bool:
        return self.dtype(name) is not None

    def allocator(self, device: Device) -> Allocator:
        dtypes: dict[str, Any] = {}
        empty = numpy.empty

        def allocate(shape: tuple[int, ...], dtype: str) -> Any:
            if dtype not in dtypes:
                dtypes[dtype] = self.dtype(dtype)
            return empty(shape, dtypes[dtype])

        return allocate

    def ready(self, arrays: Sequence[Any], device: Device) -> None:
        pass

    def address(self, array: Any) -> int:
        found: int = array.__array_interface__["data"][0]
        return found

    def describe(self, array: Any, name: str) -> Described:
        dtype = _dtypes.NAMES.get(array.dtype.name)
        if dtype is None:
            raise unsupported_dtype_to_save(array.dtype, name)
        if not array.dtype.isnative:
            raise InvalidInputError(
                "the array's byte order is not this machine's",
                hints=['array.astype(array.dtype.newbyteorder("="))'],
                tensor=name,
            )
        if not array.flags.c_contiguous:
            raise InvalidInputError(
                "the array is not contiguous", hints=["numpy.ascontiguousarray(array)"], tensor=name
            )
        return Described(dtype, array.shape, self.address(array), array.nbytes, CPU, array)

    def cast(self, array: Any, dtype: str) -> Any:
        return array.astype(self.dtype(dtype))

    def index(self, array: Any, index: Any) -> Any:
        return numpy.array(array[index], order="C")

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        return array.reshape(shape)

    def current_stream(self, device: Device) -> int | None:
        return None

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)

    def free_bytes(self, device: Device) -> int | None:
        return None


def unsupported_dtype_to_save(dtype: object, name: str) -> UnsupportedError:
    """The error for an array whose dtype safetensors does not know."""
    return UnsupportedError(
        "safetensors has no such dtype", hints=['cast it first, e.g. .astype("float32")'], tensor=name, dtype=dtype
    )


FRAMEWORK = Numpy()
