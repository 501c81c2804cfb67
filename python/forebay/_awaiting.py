"""How a transfer in flight is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._forebay import Future, Receipt


def awaiter(future: Future) -> Generator[Any, None, Receipt]:
    """The body of ``await future``: the thread that sees the transfer's end wakes the loop."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[Receipt] = loop.create_future()

    def settle(done: Future) -> None:
        if waiter.done():  # cancelled meanwhile
            return
        error = done.exception()
        if error is None:
            waiter.set_result(done.result())
        else:
            waiter.set_exception(error)

    def tell(done: Future) -> None:
        # A loop that is closed by now has nobody waiting.
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, done)

    future.add_done_callback(tell)
    return waiter.__await__()
