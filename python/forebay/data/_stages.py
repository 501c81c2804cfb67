"""Functions of the program over batches and records, in threads, ahead of the program."""

from __future__ import annotations

import concurrent.futures.thread
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from .._captures import left_alone
from ..errors import CancelledError
from ._jagged import Jagged
from ._memory import Memory
from ._records import Pending, split

__all__ = ["Stages", "TransformFailed", "hand_out"]


class TransformFailed(Exception):
    """A function of the program raised ``error``. It may have changed the batch in place."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class Stages:
    """The functions called with batches, and their threads.

    Args:
        transform: called with each batch.
        record_transform: called with each record before; the batch is then the list of what it gave.
        workers: threads that call the second, or, where there is none, the first.
    """

    def __init__(
        self, transform: Callable[[Any], Any] | None, record_transform: Callable[[Any], Any] | None, workers: int
    ) -> None:
        self.transform, self.record_transform, self.workers = transform, record_transform, workers
        # Threads do not survive a fork.
        self._pools: tuple[int, ThreadPoolExecutor, ThreadPoolExecutor | None] | None = None

    def __bool__(self) -> bool:
        return self.transform is not None or self.record_transform is not None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pools": None}

    def start(self, pending: Pending, memory: Memory) -> Work:
        """Has a batch transformed once it is there."""
        if self._pools is None or self._pools[0] != os.getpid():
            # A batch that waits for its records must not hold up a thread that transforms them.
            records = _threads(self.workers, "records") if self.record_transform is not None else None
            batches = _threads(1 if records is not None else self.workers, "batches")
            self._pools = os.getpid(), batches, records
        _, batches, records = self._pools
        place = _Place()
        each = None if records is None else partial(records.map, place.within(self.record_transform))
        return Work(batches.submit(_transformed, pending, memory, place, each, self.transform), place)


def _threads(count: int, what: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix=f"forebay-{what}")


class Work:
    """A batch that is transformed."""

    def __init__(self, future: Future[Any], place: _Place) -> None:
        self._future, self._place = future, place

    def result(self) -> Any:
        """The batch, on the program's current stream. May be called again behind Ctrl-C.

        Raises:
            TransformFailed: a function of the program raised.
        """
        batch = self._future.result()
        self._place.hand_over(batch)
        return batch

    def cancel(self) -> None:
        """Nobody asks for it: work that has not begun does not begin."""
        self._future.cancel()


@left_alone
def _transformed(
    pending: Pending,
    memory: Memory,
    place: _Place,
    each: Callable[[list[Any]], Iterator[Any]] | None,
    transform: Callable[[Any], Any] | None,
) -> Any:
    if getattr(concurrent.futures.thread, "_shutdown", False):
        # The interpreter ends, and waits until its pools have done all that was asked of them.
        raise CancelledError("the program is ending")
    batch = pending.result()
    with place.here():
        hand_out(memory, batch)
        try:
            if each is not None:
                batch = list(each(split(batch, pending.count)))
            return batch if transform is None else transform(batch)
        except BaseException as error:
            raise TransformFailed(error) from None


def hand_out(memory: Memory, batch: Any) -> None:
    """Tells the memory of each array of a batch which stream uses it from now on: the current one."""
    if isinstance(batch, dict):
        for column in batch.values():
            hand_out(memory, column)
    elif isinstance(batch, Jagged):
        memory.hand_out(batch.values)
        memory.hand_out(batch.offsets)
    elif not isinstance(batch, list):
        memory.hand_out(batch)


class _Place:
    """The device and stream of the thread that made it, where other threads work for it: what they queue stands before what
    the program queues behind it.
    """

    def __init__(self) -> None:
        torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
        self._torch: Any = None
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            self._torch = torch.cuda.current_stream()
        self._cupy: Any = None
        if cupy is not None and cupy.cuda.is_available():
            self._cupy = cupy.cuda.Device().id, cupy.cuda.get_current_stream()

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """The caller's thread works there."""
        with contextlib.ExitStack() as stack:
            if self._torch is not None:
                stack.enter_context(sys.modules["torch"].cuda.stream(self._torch))
            if self._cupy is not None:
                stack.enter_context(sys.modules["cupy"].cuda.Device(self._cupy[0]))
                stack.enter_context(self._cupy[1])
            yield

    def within(self, function: Any) -> Callable[[Any], Any]:
        """The function, called here by any thread."""

        @left_alone
        def called(record: Any) -> Any:
            with self.here():
                return function(record)

        return called

    def hand_over(self, batch: Any) -> None:
        """Work queued here comes before work that the program queues now, on any stream."""
        if self._torch is not None:
            now = sys.modules["torch"].cuda.current_stream(self._torch.device)
            if now != self._torch:
                now.wait_stream(self._torch)
                _record(batch, now)
        if self._cupy is not None:
            cuda, (device, stream) = sys.modules["cupy"].cuda, self._cupy
            with cuda.Device(device):
                now = cuda.get_current_stream()
                if now != stream:
                    now.wait_event(stream.record())


def _record(value: Any, stream: Any) -> None:
    """Keeps the memory of all tensors of a batch until a stream is done with them."""
    if isinstance(value, dict):
        value = value.values()
    elif isinstance(value, Jagged):
        value = (value.values, value.offsets)
    elif getattr(value, "is_cuda", False) and hasattr(value, "record_stream"):
        value.record_stream(stream)
        return
    elif not isinstance(value, (list, tuple)):
        return
    for part in value:
        _record(part, stream)
