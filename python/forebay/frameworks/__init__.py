"""The frameworks whose tensors forebay makes and takes.

One module for each: ``torch``, ``jax``, ``numpy``, ``cupy`` and ``native`` (forebay's own :class:`~forebay.Array`).
None of them is imported before a program names it or passes one of its arrays.

>>> from forebay import frameworks
>>> numpy = frameworks.get("numpy")
>>> numpy.allocator(frameworks.CPU)((2, 3), "F32").shape
(2, 3)
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _forebay
from ..errors import InvalidInputError, MissingPackageError, UnsupportedError
from ..placement import CPU, Device

if TYPE_CHECKING:
    from ._protocol import Framework

__all__ = [
    "CPU",
    "Allocator",
    "Described",
    "Device",
    "Framework",
    "NotContiguousError",
    "get",
    "of_array",
    "settle",
    "unsupported_dtype",
]

#: Makes an array of a shape and a safetensors dtype, with undefined content, on one device.
Allocator = Callable[[tuple[int, ...], str], Any]


class NotContiguousError(InvalidInputError):
    """An array whose elements do not lie side by side in C order."""


class Described(NamedTuple):
    """An array as bytes in memory.

    Attributes:
        dtype: the safetensors name of its elements' type.
        shape: as a safetensors header says it.
        address: of its first byte.
        nbytes: how many bytes follow it, without gaps.
        device: where they lie.
        keep: what keeps them there; usually the array itself.
    """

    dtype: str
    shape: tuple[int, ...]
    address: int
    nbytes: int
    device: Device
    keep: Any


_NAMES = {
    "torch": "torch",
    "pt": "torch",
    "pytorch": "torch",
    "numpy": "numpy",
    "np": "numpy",
    "jax": "jax",
    "flax": "jax",
    "cupy": "cupy",
    "native": "native",
    "forebay": "native",
}
#: The package that has to be there.
_PACKAGES = {"torch": "torch", "numpy": "numpy", "jax": "jax", "cupy": "cupy", "native": "forebay"}
# Not numpy, whose memory lies at multiples of 16 bytes: TensorFlow ends the process where it is no multiple of 64.
_FOR_TENSORFLOW = 'framework="torch" or "native", then tf.experimental.dlpack.from_dlpack(array.__dlpack__())'
_known: dict[str, Framework] = {}
_by_type: dict[type[Any], Framework] = {}


def get(name: str) -> Framework:
    """The framework that ``name`` means: ``"torch"`` (``"pt"``), ``"jax"`` (``"flax"``), ``"numpy"`` (``"np"``),
    ``"cupy"`` or ``"native"``. Imports it.

    Raises:
        InvalidInputError: no such framework.
        MissingPackageError: it is not installed.
    """
    if not isinstance(name, str) or name not in _NAMES:
        hints = ['framework="torch", "jax", "numpy", "cupy" or "native"']
        if name in ("tensorflow", "tf"):
            hints.append(_FOR_TENSORFLOW)
        raise InvalidInputError(f"unknown framework: {name!r}", hints=hints)
    name = _NAMES[name]
    found = _known.get(name)
    if found is None:
        try:
            found = importlib.import_module(f".{name}", __name__).FRAMEWORK
        except ImportError as error:
            if error.name is None or error.name.split(".")[0] != _PACKAGES[name]:
                raise
            raise MissingPackageError(
                f"{name} is not installed",
                hints=[f"pip install {_PACKAGES[name]}", *_without(name)],
            ) from None
        _known[name] = found
    return found


def _without(name: str) -> list[str]:
    """The error for a framework that is not installed."""
    import importlib.util

    hints = ['framework="native" needs no other package']
    if name != "numpy" and importlib.util.find_spec("numpy") is not None:
        hints.insert(0, 'framework="numpy"')
    return hints


def of_array(array: Any, name: str) -> Framework:
    """The framework of an existing array.

    Raises:
        InvalidInputError: it is no array that forebay knows; ``name`` is in the message.
    """
    kind = type(array)
    found = _by_type.get(kind)
    if found is None:
        found = _by_type[kind] = _find(array, name)
    return found


def _find(array: Any, name: str) -> Framework:
    for candidate, package in _PACKAGES.items():
        # A framework that is not imported has no arrays.
        if package in sys.modules and not _is_partly_imported(package):
            framework = get(candidate)
            if isinstance(array, framework.array_type):
                return framework
    raise InvalidInputError(
        "not an array of torch, jax, numpy, cupy or forebay",
        hints=["turn it into one first, e.g. numpy.asarray(value)"],
        tensor=name,
        type=f"{type(array).__module__}.{type(array).__qualname__}",
    )


def _is_partly_imported(package: str) -> bool:
    spec = getattr(sys.modules[package], "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def settle(framework: Framework, devices: Iterable[Device]) -> None:
    """Waits until the work that ``framework`` has queued on these devices is done.

    A caching allocator hands out blocks that a kernel in flight may still use, and counts on the next user queueing
    behind it. Our transfers do not queue there, so they begin after this.
    """
    for device in devices:
        stream = framework.current_stream(device)
        if stream is not None:
            _forebay.wait_stream(device.number, stream)


def unsupported_dtype(framework: Framework, dtype: str, tensor: str) -> UnsupportedError:
    """The error for a tensor whose dtype the framework lacks."""
    return UnsupportedError(
        f"{framework.name} has no dtype for {dtype}",
        hints=framework.dtype_hints(dtype),
        tensor=tensor,
        dtype=dtype,
        framework=framework.name,
    )


def __getattr__(name: str) -> object:
    # The protocol of frameworks is for those who write one or check types.
    if name == "Framework":
        from ._protocol import Framework

        return Framework
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
