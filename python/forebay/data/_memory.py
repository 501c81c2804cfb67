"""Where batches lie: memory that is used again only when nobody can still see it.

torch has its own: a batch is a new tensor of a stream of the loader's, so it need not wait for the program's kernels, and
``record_stream`` keeps it until those that use it are done. Allocators of other makers need not know ``record_stream``: for
them a batch is an ordinary tensor that is waited for. jax and forebay make new arrays, too. numpy and cupy would pay for
new memory each time: their arrays borrow it from a pool, which gets it back when the last of them, views included, is gone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from .. import _forebay
from ..errors import DeviceOutOfMemoryError, Error, OutOfMemoryError
from ..frameworks import unsupported_dtype
from ..placement import Device

if TYPE_CHECKING:
    from ..frameworks import Framework

__all__ = ["Fresh", "Memory", "has_numpy", "is_beyond_memory", "memory_for", "numbers"]

#: Smaller arrays come from the framework's own allocator, which has such memory at hand.
_SMALL_BYTES = 128 << 10
#: The machine's memory is asked for only where more is wanted.
_LARGE_BYTES = 1 << 30
#: The strictest alignment that O_DIRECT asks of memory. The engine reads into memory aligned like this without a bounce buffer.
_ALIGNMENT = 4096
#: Most unused blocks that a pool keeps.
_MAX_FREE_BLOCKS = 8


def is_beyond_memory(nbytes: int) -> bool:
    """Whether these are more bytes than the machine has. Systems that promise memory that they lack give it all the same, and
    end the process when it is used.
    """
    return nbytes > _LARGE_BYTES and nbytes > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Memory(Protocol):
    """Makes arrays for batches."""

    def new(self, shape: tuple[int, ...], dtype: str) -> Any:
        """An array whose bytes may be written at once."""

    def aside(self) -> contextlib.AbstractContextManager[Any]:
        """In it small arrays of a batch are made by the framework itself: they are there for who gets the batch."""

    def hand_out(self, array: Any) -> None:
        """Called when the array goes to the program, whose current stream will use it."""


class Fresh:
    """New arrays of the framework's own allocator, ready to be written."""

    def __init__(self, framework: Framework, device: Device) -> None:
        self._framework, self._device = framework, device
        self._allocate = framework.allocator(device)

    def new(self, shape: tuple[int, ...], dtype: str) -> Any:
        array = self._made(shape, dtype)
        if 0 not in shape:
            self._framework.ready([array], self._device)
        return array

    def _made(self, shape: tuple[int, ...], dtype: str) -> Any:
        if self._framework.dtype(dtype) is None:
            raise unsupported_dtype(self._framework, dtype, "records")
        nbytes = math.prod(shape) * _forebay.dtype_size(dtype) // 8
        # Frameworks count in signed numbers of 64 bits, and have errors of their own for more.
        if nbytes >= 1 << 63 or (self._device.gpu is None and is_beyond_memory(nbytes)):
            raise self._no_memory(shape, dtype)
        try:
            return self._allocate(shape, dtype)
        except Exception as error:
            if not self._framework.is_out_of_memory(error):
                raise
            raise self._no_memory(shape, dtype) from None

    def _no_memory(self, shape: tuple[int, ...], dtype: str) -> Error:
        kind = OutOfMemoryError if self._device.gpu is None else DeviceOutOfMemoryError
        hints = ["a smaller batch_size, or prefetch=1"]
        return kind("no memory for a batch", hints=hints, device=self._device, shape=shape, dtype=dtype)

    def aside(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._device.gpu is None else self._waited_for()

    @contextlib.contextmanager
    def _waited_for(self) -> Iterator[None]:
        """The batch may be handed out on another stream than the one that is current now."""
        yield
        self._framework.ready([], self._device)

    def hand_out(self, array: Any) -> None:
        pass


class TorchStream(Fresh):
    """torch's tensors of a GPU, allocated for a stream on which nothing runs: nothing has to be waited for."""

    def __init__(self, framework: Framework, device: Device) -> None:
        import torch

        super().__init__(framework, device)
        self._torch: Any = torch
        self._stream: Any = self._torch.cuda.Stream(device.number)
        # Of its own: nothing may run on the other one.
        self._side: Any = None

    def new(self, shape: tuple[int, ...], dtype: str) -> Any:
        with self._torch.cuda.stream(self._stream):
            return self._made(shape, dtype)

    def aside(self) -> contextlib.AbstractContextManager[Any]:
        # The batch may be handed out on another stream than the one that is current now.
        if self._side is None:
            self._side = self._torch.cuda.Stream(self._device.number)
        self._side.wait_stream(self._torch.cuda.current_stream(self._device.number))
        return self._torch.cuda.stream(self._side)  # type: ignore[no-any-return]

    def hand_out(self, array: Any) -> None:
        # A column in host memory or on another GPU is not of this stream.
        if getattr(array, "is_cuda", False) and array.device.index == self._device.number:
            current = self._torch.cuda.current_stream(self._device.number)
            if self._side is not None:
                current.wait_stream(self._side)
            array.record_stream(current)


class _Lease:
    """A block of a pool, for as long as it is referenced. Arrays that are made of it hold it, and their views do."""

    __slots__ = ("__array_interface__", "__cuda_array_interface__", "__weakref__", "block", "pool", "stream")
    __array_interface__: dict[str, Any]
    __cuda_array_interface__: dict[str, Any]

    def __init__(self, pool: Pool, block: Any) -> None:
        self.pool, self.block = pool, block
        #: The one that it was handed out on.
        self.stream: Any = None

    def __del__(self) -> None:
        # At the end of the program modules are gone, and nobody asks for memory. Ctrl-C may have left it half made.
        if hasattr(self, "stream") and not sys.is_finalizing():
            self.pool.take_back(self.block, self.stream)


class Pool(Fresh):
    """Blocks of numpy's or cupy's memory, which arrays borrow."""

    def __init__(self, framework: Framework, device: Device) -> None:
        super().__init__(framework, device)
        # Blocks, each with the events that have to pass before it is used again.
        self._free: list[tuple[Any, list[Any]]] = []
        self._lock = threading.Lock()
        # By the ends of arrays, which may come at any moment of any thread: without a lock.
        self._returned: deque[tuple[Any, list[Any]]] = deque()
        # By address: whose they are that are handed out.
        self._leases: weakref.WeakValueDictionary[int, _Lease] = weakref.WeakValueDictionary()
        # The event behind all that was made aside.
        self._beside: Any = None

    def new(self, shape: tuple[int, ...], dtype: str) -> Any:
        wanted = self._framework.dtype(dtype)
        if wanted is None or 0 in shape:
            return super().new(shape, dtype)
        nbytes = math.prod(shape) * wanted.itemsize
        block = self._again(nbytes)
        if block is None:
            block = super().new((nbytes,), "U8") if self._device.gpu is not None else self._aligned(nbytes)
        return self._borrow(block, shape, wanted)

    def _aligned(self, nbytes: int) -> Any:
        block = super().new((nbytes + _ALIGNMENT,), "U8")
        start = -self._framework.address(block) % _ALIGNMENT
        return block[start : start + nbytes]

    @contextlib.contextmanager
    def _waited_for(self) -> Iterator[None]:
        import cupy

        with cupy.cuda.Device(self._device.number):
            current = cupy.cuda.get_current_stream()
            if self._beside is not None:
                # So that the new event stands for the last one, too.
                current.wait_event(self._beside)
            yield
            self._beside = current.record()

    def _again(self, nbytes: int) -> Any:
        with self._lock:
            while self._returned:
                self._free.append(self._returned.popleft())
            for _, events in self._free[:-_MAX_FREE_BLOCKS]:
                _pass(events)
            del self._free[:-_MAX_FREE_BLOCKS]
            for number, (block, events) in enumerate(self._free):
                if nbytes <= block.nbytes <= 2 * nbytes and all(event.done for event in events):
                    del self._free[number]
                    return block
        return None

    def _borrow(self, block: Any, shape: tuple[int, ...], wanted: Any) -> Any:
        lease = _Lease(self, block)
        about = {
            "shape": shape,
            "typestr": wanted.str,
            "data": (self._framework.address(block), False),
            "strides": None,
            "version": 3,
        }
        if self._device.gpu is None:
            import numpy

            lease.__array_interface__ = about
            array = numpy.asarray(lease)
        else:
            import cupy

            lease.__cuda_array_interface__ = about
            self._leases[about["data"][0]] = lease
            with cupy.cuda.Device(self._device.number):
                array = cupy.asarray(lease)
        return array if array.dtype == wanted else array.view(wanted)

    def hand_out(self, array: Any) -> None:
        # A column may be of another framework: texts, or what is on the host.
        if self._device.gpu is None or not isinstance(array, self._framework.array_type):
            return
        import cupy

        with cupy.cuda.Device(self._device.number):
            current = cupy.cuda.get_current_stream()
            if self._beside is not None:
                current.wait_event(self._beside)
            lease = self._leases.get(self._framework.address(array))
            if lease is not None:
                lease.stream = current

    def take_back(self, block: Any, stream: Any) -> None:
        """Keeps a block that nobody sees any more until the kernels are done with it that are queued now: on the current
        stream, and on the one that it was handed out on.
        """
        events = []
        if self._device.gpu is not None:
            import cupy

            with cupy.cuda.Device(self._device.number):
                current = cupy.cuda.get_current_stream()
                events = [one.record() for one in ([current] if stream in (None, current) else [current, stream])]
        if len(self._returned) < _MAX_FREE_BLOCKS:
            self._returned.append((block, events))
        else:
            _pass(events)


def _pass(events: list[Any]) -> None:
    """Waits before a block is released: cupy's memory pool does not record the streams that used it."""
    for event in events:
        event.synchronize()


def _records_streams() -> bool:
    """Whether a block that torch's allocator gives for a stream on which nothing runs may be written at once. CUDA's
    asynchronous allocator orders its blocks by streams alone, and one that is plugged in may ignore ``record_stream``.
    """
    import torch

    return bool(torch.cuda.get_allocator_backend() == "native")


class TorchHost:
    """torch's tensors over numpy's memory: fresh memory of the host costs more than the bytes that are read into it."""

    def __init__(self, framework: Framework, device: Device) -> None:
        from .. import frameworks

        self._fresh = Fresh(framework, device)
        self._framework = framework
        self._pool = Pool(frameworks.get("numpy"), device)

    def new(self, shape: tuple[int, ...], dtype: str) -> Any:
        import torch

        nbytes = math.prod(shape) * _forebay.dtype_size(dtype) // 8
        kind = self._framework.dtype(dtype)
        # torch counts some elements otherwise; and small memory is no matter.
        if nbytes < _SMALL_BYTES or kind is None or kind.itemsize * 8 != _forebay.dtype_size(dtype):
            return self._fresh.new(shape, dtype)
        return torch.from_numpy(self._pool.new((nbytes,), "U8")).view(kind).view(shape)

    def aside(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def hand_out(self, array: Any) -> None:
        pass


def has_numpy() -> bool:
    """Whether torch can use numpy: one that was built for another version of it cannot, though both are there."""
    if importlib.util.find_spec("numpy") is None:
        return False
    import numpy
    import torch

    try:
        torch.from_numpy(numpy.empty(1, "uint8"))
    except RuntimeError:
        return False
    return True


def memory_for(framework: Framework, device: Device) -> Memory:
    """The memory for batches of a framework on a device."""
    if framework.name == "torch" and device.gpu is None and has_numpy():
        return TorchHost(framework, device)
    if framework.name == "torch" and device.gpu is not None and _records_streams():
        return TorchStream(framework, device)
    if framework.name in ("numpy", "cupy"):
        return Pool(framework, device)
    return Fresh(framework, device)


def numbers(framework: Framework, device: Device, packed: bytes) -> Any:
    """An array of 64-bit integers of a framework from packed ones."""
    if framework.name == "torch":
        import torch

        made: Any = torch.frombuffer(bytearray(packed), dtype=torch.int64)
        # Not waited for: what comes later on the stream does, and the driver has the bytes by then.
        return made if device.gpu is None else made.to(f"cuda:{device.number}", non_blocking=True)
    if framework.name == "native":
        array = _forebay.empty(len(packed) // 8, "I64", str(device))
        array.fill_from(packed)
        return array
    import numpy

    host = numpy.frombuffer(packed, "int64")
    if framework.name == "cupy":
        import cupy

        with cupy.cuda.Device(device.number):
            return cupy.asarray(host)
    if framework.name == "jax":
        import jax

        place = framework.allocator(device)((), "I32").devices().pop()
        return jax.device_put(host, place)
    return host.copy()
