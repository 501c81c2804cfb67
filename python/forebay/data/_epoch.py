"""One epoch of a loader: what is on its way, and what comes next."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInputError
from ._ahead import Reader
from ._ranks import Step
from ._records import Pending
from ._stages import TransformFailed, Work, hand_out

if TYPE_CHECKING:
    from ._loader import Loader

__all__ = ["Epoch"]


class Epoch:
    """The batches of one epoch from a place on. Threads may share it: each batch comes once."""

    def __init__(self, loader: Loader, epoch: int, position: int) -> None:
        # Weak while the loader holds it, which reads it ahead.
        self._owner = weakref.ref(loader)
        self._held: Loader | None = None
        self.number = epoch
        # The place behind the batches that were started.
        self._ahead = position
        self._flying: deque[tuple[Step, Pending, Work | None]] = deque()
        self._share = loader._share
        self._reader = Reader(loader.records, loader._order, epoch) if loader._kind[0] == "block" else None
        self._process, self._turn = os.getpid(), threading.RLock()
        self.ended = False
        # Reading the next epoch ahead failed: its own first call tells why.
        self._is_alone = False

    def __del__(self) -> None:
        # When the interpreter ends, this module's names are gone before the last objects.
        if os is None:
            return
        if hasattr(self, "_process") and self._process == os.getpid():
            self._forget()

    def hold(self, loader: Loader) -> None:
        """The program has it from now on, and may have nothing else of the loader."""
        self._held = loader

    @property
    def _loader(self) -> Loader:
        loader = self._owner()
        assert loader is not None  # who calls holds it, or this does
        return loader

    def is_of(self, epoch: int, position: int) -> bool:
        """Whether it begins there, in this process."""
        return (self.number, 0) == (epoch, position) and self._process == os.getpid()

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        if self._process != os.getpid():
            # Its reads are the parent's.
            raise InvalidInputError(
                "the batches belong to the process that was forked", hints=["begin a loop in the child: iter(loader)"]
            )
        with self._turn:
            return self._next()

    def _next(self) -> Any:
        loader = self._loader
        if self.ended:
            raise StopIteration
        if loader._current is None or loader._current() is not self:
            raise InvalidInputError("the loader went on to another epoch", hints=["use the iterator of the last loop"])
        started = time.perf_counter()
        while self._on_their_way() <= loader.prefetch and (self._start() or self._start_following()):
            pass
        if not self._flying:
            self._end()
            raise StopIteration
        step, pending, work = self._flying[0]
        # Ctrl-C and errors leave it where it is: the next call waits for it again.
        if work is None:
            batch = pending.result()
            stalled = time.perf_counter() - started
            hand_out(loader._memory, batch)
        else:
            batch = self._transformed(work)
            stalled = time.perf_counter() - started
        self._ahead = max(self._ahead, step.end)
        self._count(step, pending, stalled)
        # Last of all: Ctrl-C before it has the next call hand out this batch.
        loader._begun, loader._position = True, step.end
        self._flying.popleft()
        return batch

    def _transformed(self, work: Work) -> Any:
        try:
            return work.result()
        except TransformFailed as failed:
            error = failed.error
        # It may have changed the batch in place: the next call has the records read again, from here on.
        self._forget()
        self._ahead = self._loader._position
        raise error

    def _forget(self) -> None:
        for _, _, work in self._flying:
            if work is not None:
                work.cancel()
        self._flying.clear()

    def _on_their_way(self) -> int:
        following = self._loader._following
        return len(self._flying) + (len(following._flying) if following is not None else 0)

    def _start_following(self) -> bool:
        """Starts the next epoch's first batches while this one's last are used."""
        loader = self._loader
        if not self._share.is_end(self._ahead) or self._is_alone or not self._flying:
            return False
        if loader._following is None or not loader._following.is_of(self.number + 1, 0):
            loader._following = Epoch(loader, self.number + 1, 0)
        try:
            return loader._following._start(may_wait=False)
        except Exception:
            self._is_alone, loader._following = True, None
            return False

    def _start(self, may_wait: bool = True) -> bool:
        """Starts reading one more batch; false at the end, or while its blocks are still read ahead and others are on
        their way.
        """
        loader = self._loader
        # Not by `_ahead` alone: Ctrl-C may have come before it was set.
        begin = self._flying[-1][0].end if self._flying else self._ahead
        step = self._share.at(begin)
        if step is None:
            return False
        if self._reader is not None:
            windows = loader._order.window_of(begin), loader._order.window_of(step.end - 1)
            if not self._reader.reached(*windows, may_wait and not self._flying):
                return False
        pending = loader.records.read_async(loader._rows(self.number, step), loader._memory)
        work = loader._stages.start(pending, loader._memory) if loader._stages else None
        self._flying.append((step, pending, work))
        self._ahead = step.end
        return True

    def _count(self, step: Step, pending: Pending, stalled: float) -> None:
        stats = self._loader.stats
        stats.batches += 1
        stats.stalled += stalled
        stats.records += pending.count
        stats.repeated += step.repeated
        for receipt in pending.receipts:
            for engine, nbytes in receipt.engines.items():
                stats.bytes += nbytes
                stats.engines[engine] = stats.engines.get(engine, 0) + nbytes

    def _end(self) -> None:
        loader = self._loader
        loader.records.check()
        loader._epoch, loader._position = self.number + 1, 0
        loader._use_epoch(None)
        self.ended = True
