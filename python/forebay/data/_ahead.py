"""Reading blocks ahead into the page cache, for block order."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .._locations import is_url, opened

if TYPE_CHECKING:
    from .._forebay import Order
    from ._records import Records

__all__ = ["Reader"]

#: Windows beyond the one that is read.
_WINDOWS_AHEAD = 2
#: The kernel reads at most so much by one request: a byte of each tells that it has come.
_REQUEST_BYTES = 256 << 10
#: Seconds after which a thread without work ends.
_IDLE_SECONDS = 2.0


class Reader:
    """Has the kernel read the blocks of a window before their records are asked for: cold ones would be read piece by piece."""

    def __init__(self, records: Records, order: Order, epoch: int) -> None:
        self._records, self._order, self._epoch = records, order, epoch
        self._changed = threading.Condition()
        self._wanted: list[int] = []
        # The last window that was asked for, and the last one that is there.
        self._asked = self._there = -1
        self._is_running = False

    def reached(self, first: int, last: int, wait: bool) -> bool:
        """Asks for the windows of a batch, from ``first`` to ``last``, and for some more. Whether the batch's are there."""
        with self._changed:
            begin = max(self._asked + 1, first)
            self._wanted.extend(range(begin, last + _WINDOWS_AHEAD + 1))
            self._asked = max(self._asked, last + _WINDOWS_AHEAD)
            if self._wanted and not self._is_running:
                threading.Thread(target=self._run, name="forebay-blocks", daemon=True).start()
                self._is_running = True
            self._changed.notify_all()
            while wait and self._there < last:
                self._changed.wait()
            return self._there >= last

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._wanted:
                    self._changed.wait(_IDLE_SECONDS)
                if not self._wanted:
                    self._is_running = False
                    return
                window = self._wanted.pop(0)
            # Records that cannot be read ahead are read when they are asked for, or fail there.
            with contextlib.suppress(Exception):
                for read in (self._ask, self._meet):
                    for start, stop in self._order.blocks_of(self._epoch, window):
                        read(start, stop)
            with self._changed:
                self._there = max(self._there, window)
                self._changed.notify_all()

    def _ask(self, start: int, stop: int) -> None:
        for path, offset, nbytes in self._extents(start, stop):
            with opened(path) as file:
                file.expect(offset, nbytes)

    def _meet(self, start: int, stop: int) -> None:
        """Waits until the bytes are there."""
        for path, offset, nbytes in self._extents(start, stop):
            with opened(path) as file:
                for place in (*range(offset, offset + nbytes, _REQUEST_BYTES), offset + nbytes - 1):
                    file.part(place, 1)

    def _extents(self, start: int, stop: int) -> Iterator[tuple[str, int, int]]:
        """Those of this machine: nothing here has a cache of the others."""
        return (one for one in self._records.extents(start, stop) if not is_url(one[0]))
