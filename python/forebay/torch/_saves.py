"""Saves that go on after the call has returned."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as _Timeout
from typing import Any, Literal

import torch

from .. import errors
from .._forebay import Pending
from .._locations import real
from .._paths import path_text
from . import _container
from ._layout import Blob
from ._state import prepare

Snapshot = Literal["device", "host"] | None


class SaveTask:
    """A save in flight.

    Two moments matter: from the first, :attr:`staged`, the tensors may be changed again; at the second, :meth:`done`,
    the checkpoint is visible and durable, or has failed and left what was there before. It can be awaited.

    A task needs no looking after: it goes on if it is dropped, the interpreter does not exit before its end, and if it
    fails and nobody asks for its result, a line on standard error says so at exit.
    """

    def __init__(self, path: str) -> None:
        #: The path that is being written.
        self.path = path
        self._process = os.getpid()
        self._staged = threading.Event()
        self._future: Future[None] = Future()
        self._future.set_running_or_notify_cancel()
        self._asked = False

    @property
    def staged(self) -> bool:
        """Whether the tensors may be changed: no more byte is taken from them. Also when the save has failed."""
        return self._staged.is_set()

    def wait_staged(self, timeout: float | None = None) -> None:
        """Waits until the tensors may be changed.

        Args:
            timeout: seconds; without it as long as it takes.

        Raises:
            OperationTimeoutError: it takes longer. Nothing is given up.
        """
        self._check_process(self._staged.is_set())
        if not self._staged.wait(timeout):
            raise errors.OperationTimeoutError("the tensors are still being saved", path=self.path, seconds=timeout)

    def done(self) -> bool:
        """Whether the save has ended, well or not."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> None:
        """Waits until the checkpoint is durable, and raises what went wrong if it is not.

        Raises:
            OperationTimeoutError: it takes longer than ``timeout`` seconds. Nothing is given up.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As :meth:`result`, but returns what went wrong."""
        self._check_process(self._future.done())
        try:
            error = self._future.exception(timeout)
        except _Timeout:
            raise errors.OperationTimeoutError("the save is still in flight", path=self.path, seconds=timeout) from None
        self._asked = True
        return error

    def add_done_callback(self, call: Callable[[SaveTask], object]) -> None:
        """Calls ``call(task)`` at the end, on the thread that saves; at once if it has ended."""
        self._future.add_done_callback(lambda _: call(self))

    def __await__(self) -> Generator[Any, None, None]:
        self._check_process(self._future.done())
        self._asked = True
        return asyncio.wrap_future(self._future).__await__()

    def _check_process(self, known: bool) -> None:
        if not known and os.getpid() != self._process:
            raise errors.InvalidInputError(
                "the save belongs to the process that was forked: only that one can wait for it", path=self.path
            )

    def _end(self, error: BaseException | None) -> None:
        self._staged.set()
        if error is None:
            self._future.set_result(None)
        else:
            self._future.set_exception(error)
            _failed.append(self)

    def _run(self, work: Callable[[], None]) -> bool:
        """Does the work on a thread that the interpreter's exit waits for. Whether that has begun; else the task has failed."""

        def body() -> None:
            error: BaseException | None = None
            try:
                work()
            except BaseException as reason:  # it is the result's to raise
                error = reason
            self._end(error)

        try:
            threading.Thread(target=body, name=f"forebay save {os.path.basename(self.path)}", daemon=False).start()
        except RuntimeError as reason:  # no threads any more: the interpreter is going down
            self._end(reason)
            return False
        return True

    def __repr__(self) -> str:
        state = "done" if self.done() else "staged" if self.staged else "staging"
        return f"<forebay.torch.SaveTask {self.path!r} {state}>"


_failed: list[SaveTask] = []
_last: dict[str, SaveTask] = {}
_lock = threading.Lock()


def _report_failures() -> None:
    for task in _failed:
        if not task._asked:
            print(f"forebay: the save of {task.path} failed: {task._future.exception()}", file=sys.stderr)


def _reset_after_fork() -> None:
    # The threads of the parent are not in the child: what they do is the parent's.
    global _lock
    _lock = threading.Lock()
    _failed.clear()
    _last.clear()


atexit.register(_report_failures)
os.register_at_fork(after_in_child=_reset_after_fork)


def wait_for(path: str) -> None:
    """Returns when no save to this path is in flight: an earlier save must not appear afterwards."""
    with _lock:
        before = _last.get(real(path))
    if before is not None:
        before._future.exception()  # its failure is its own


def follow(task: SaveTask) -> Callable[[], None]:
    """Puts a task behind the last one for its path. The returned future waits for that one's end."""
    key = real(task.path)
    with _lock:
        before = _last.get(key)
        _last[key] = task

    def forget(_: SaveTask) -> None:
        with _lock:
            if _last.get(key) is task:
                del _last[key]

    def wait() -> None:
        if before is not None:
            before._future.exception()

    task.add_done_callback(forget)
    return wait


def save(state: Any, path: str | os.PathLike[str], *, checksums: bool = True, durable: bool = True) -> None:
    """Saves a nested state: dictionaries, lists and tuples of tensors, numbers, strings, bytes and None.

    The file is a safetensors file; its tensors are named by the path of keys that leads to them ("model.layer.weight").
    What the nest looks like stands as JSON in its header. Bytes that several tensors share are kept once, and are
    shared again after :func:`load`. The old file stays until the new one is complete.

    Tensors that are not contiguous are copied on their device first, 256 MiB (or one tensor) at a time; they are
    contiguous after :func:`load`. So are tensors of :func:`weights` read.

    Args:
        state: what to save. Numbers are Python's own.
        path: the file.
        checksums: keep the CRC-32C of each tensor in the header, for ``load(verify=True)``.
        durable: return when the file survives a power failure.

    Raises:
        UnsupportedError: the state holds something else; the message says what and where.
        NoSpaceError, …: the file could not be written. The old one is as it was.
    """
    blobs, metadata = prepare(state)
    text = path_text(path, True)
    pending, _ = _container.write(text, blobs, metadata, checked=checksums)
    with pending:
        wait_for(text)
        pending.commit(durable)


def save_async(
    state: Any,
    path: str | os.PathLike[str],
    *,
    snapshot: Snapshot = None,
    checksums: bool = True,
    durable: bool = True,
) -> SaveTask:
    """As :func:`forebay.torch.save`, but returns before the file is durable.

    =========== ======================================= ======================= ==============================
    snapshot    returns when                            costs                   then until ``staged``
    =========== ======================================= ======================= ==============================
    ``None``    the last byte has left the tensors      no memory               nothing: it is staged
    "device"    a copy on the device is queued          the state's size on     the tensors may be changed by
                                                        their devices           work on the same stream
    "host"      at once; they are copied to the host    the state's size in     the tensors must not be changed
                in the background                       (pinned) host memory
    =========== ======================================= ======================= ==============================

    Saves to one path become visible in the order of the calls.

    Args:
        state, path, checksums, durable: as for :func:`forebay.torch.save`.
        snapshot: see above.

    Returns:
        The save in flight. Its ``result()`` raises what went wrong with the file.

    Raises:
        UnsupportedError: the state holds something that cannot be saved.
    """
    if snapshot not in (None, "device", "host"):
        raise errors.InvalidInputError('snapshot is None, "device" or "host"', got=repr(snapshot))
    text = path_text(path, True)
    blobs, metadata = prepare(state)
    ready = _record_events(blobs)
    if snapshot == "device":
        blobs = [Blob(blob.name, _clone(blob.source), blob.dtype) for blob in blobs]
        ready = _record_events(blobs)
    task = SaveTask(text)
    before = follow(task)

    def write() -> Pending:
        return _container.write(text, blobs, metadata, checked=checksums)[0]

    def publish(pending: Pending) -> None:
        before()
        pending.commit(durable)

    def work() -> None:
        nonlocal blobs
        for mark in ready:
            mark.synchronize()
        if snapshot == "host":
            blobs = to_host(blobs)
        task._staged.set()
        publish(write())

    if snapshot is not None:
        task._run(work)
        return task
    try:
        pending = write()
    except BaseException as error:
        task._end(error)
        if not isinstance(error, Exception):
            task._asked = True
            raise
        return task
    task._staged.set()
    if not task._run(lambda: publish(pending)):
        pending.abort()
    return task


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _record_events(blobs: list[Blob]) -> list[torch.cuda.Event]:
    """Events behind the work queued so far on the current stream of each GPU involved."""
    marks = []
    for index in sorted({blob.source.device.index for blob in blobs if blob.source.device.type == "cuda"}):
        mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
        mark.record(torch.cuda.current_stream(index))
        marks.append(mark)
    return marks


def to_host(blobs: list[Blob]) -> list[Blob]:
    """Copies on the host; from GPUs into pinned memory, on streams of their own."""
    copies = []
    streams: dict[int, torch.cuda.Stream] = {}
    for blob in blobs:
        source = blob.source.detach()
        if source.device.type != "cuda":
            copies.append(_clone(source))
            continue
        index = source.device.index
        stream = streams.setdefault(index, torch.cuda.Stream(index))  # type: ignore[no-untyped-call]
        room = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        with torch.cuda.stream(stream):
            room.copy_(source, non_blocking=True)
        copies.append(room)
    for stream in streams.values():
        stream.synchronize()
    return [Blob(blob.name, copy, blob.dtype) for blob, copy in zip(blobs, copies, strict=True)]
