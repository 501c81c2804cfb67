"""How far a load or a save is, on a terminal or for a callable."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType

__all__ = ["Progress"]

#: Seconds until the line appears: shorter work shows none.
_SHOW_AFTER = 1.0
#: Seconds between two drawings of the line.
_REDRAW_INTERVAL = 0.1


class Progress:
    """Counts bytes and tells about them.

    Args:
        total: the bytes of the whole work.
        wanted: a callable that gets ``(bytes_done, bytes_total)`` after each part; ``True`` to draw a line on standard
            error, ``False`` not to, ``None`` to draw it if standard error is a terminal. A line appears only for what
            takes longer than a second.
        verb: the first word of the line.
    """

    def __init__(self, total: int, wanted: bool | Callable[[int, int], object] | None, verb: str = "loading") -> None:
        self.total = total
        self.done = 0
        self._verb = verb
        self._tell = wanted if callable(wanted) else None
        self._draws = self._tell is None and (_is_terminal() if wanted is None else bool(wanted))
        self._started = time.monotonic()
        self._drawn = 0.0

    def add(self, count: int) -> None:
        """Another ``count`` bytes are done."""
        self.done += count
        if self._tell is not None:
            self._tell(self.done, self.total)
        elif self._draws:
            self._draw()

    def _draw(self) -> None:
        now = time.monotonic()
        if now - self._started < _SHOW_AFTER or now - self._drawn < _REDRAW_INTERVAL:
            return
        self._drawn = now
        rate = self.done / (now - self._started)
        share = self.done / self.total if self.total else 1.0
        line = f"{self._verb} {share:4.0%} of {self.total / 1e9:.2f} GB, {rate / 1e9:.2f} GB/s"
        print(f"\r{line:<60}", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The line is for the time of waiting only.
        if self._drawn:
            print(f"\r{'':<60}\r", end="", file=sys.stderr, flush=True)


def _is_terminal() -> bool:
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:
        return False
