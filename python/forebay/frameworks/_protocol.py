"""The interface of a framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..placement import Device
from . import Allocator, Described

__all__ = ["Framework"]


class Framework(Protocol):
    """The interface of a framework. Dtypes are safetensors' names (``"F32"``, ``"BF16"``, ``"F8_E4M3"``, …)."""

    #: The name that users say.
    name: str
    #: Its array type.
    array_type: type[Any]
    #: Whether it may give two new arrays the same memory. They are filled in place: that is refused then.
    may_share: bool

    def default_device(self) -> Device:
        """GPU 0 if the framework can use one here, the host otherwise."""

    def parse_device(self, device: object) -> Device:
        """The framework's device for the user's ``device``.

        Raises:
            InvalidInputError: nothing that is known.
            UnsupportedError: the framework cannot have arrays there; the hints say what to do.
        """

    def dtype(self, name: str) -> Any:
        """The framework's own dtype for a safetensors name, ``None`` where it has none."""

    def dtype_name(self, dtype: Any) -> str | None:
        """The safetensors name of a framework's dtype (or of what users write for it), ``None`` where there is none."""

    def dtype_hints(self, name: str) -> list[str]:
        """The hint where :meth:`dtype` gives ``None``."""

    def reads(self, name: str) -> bool:
        """Whether :meth:`allocator` takes this dtype, be it only to cast from it."""

    def allocator(self, device: Device) -> Allocator:
        """Gives a function that makes arrays of this framework's own allocator on ``device``."""

    def ready(self, arrays: Sequence[Any], device: Device) -> None:
        """Returns when the memory of new arrays may be written by others than the framework's own stream."""

    def address(self, array: Any) -> int:
        """Where an array's first byte lies. Only for arrays that are :meth:`ready`."""

    def describe(self, array: Any, name: str) -> Described:
        """An existing array as bytes.

        Raises:
            InvalidInputError: it is not contiguous, or has no plain memory; ``name`` is in the message.
            UnsupportedError: safetensors has no such dtype.
        """

    def cast(self, array: Any, dtype: str) -> Any:
        """The array with another dtype, made on its device."""

    def index(self, array: Any, index: Any) -> Any:
        """``array[index]`` with memory of its own."""

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        """The same memory with another shape."""

    def current_stream(self, device: Device) -> int | None:
        """The CUDA stream that the framework uses now in this thread, ``None`` for host memory."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether the framework's allocator failed because memory ran out."""

    def free_bytes(self, device: Device) -> int | None:
        """How many bytes the allocator could still give, ``None`` where it cannot be asked."""
