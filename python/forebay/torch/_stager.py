"""Copies of a state for saves that go on while training does."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import torch
from torch.distributed.checkpoint.staging import AsyncStager, DefaultStager, StagingOptions

from .. import errors
from ..frameworks.torch import not_saved


def snapshot(state: dict[str, Any], kind: str | None) -> tuple[dict[str, Any], list[torch.cuda.Event]]:
    """The state to save, and what to wait for before it is read.

    ``"device"`` copies tensors where they are, on the current streams; ``"host"`` to (pinned) host memory.

    Raises:
        UnsupportedError: a tensor has no data. torch would crash where it copies one whose memory was freed.
    """
    _check(state, "")
    if kind is None:
        # Another thread has other current streams: work queued on this thread's must be done first.
        return state, _record_events(state)
    if kind == "device":
        copied = _copy(state)
        return copied, _record_events(copied)
    if kind != "host":
        raise errors.InvalidInputError('snapshot is None, "device" or "host"', got=repr(kind))
    gpu = torch.cuda.is_available()
    stager = DefaultStager(
        StagingOptions(
            use_pinned_memory=gpu, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=gpu
        )
    )
    staged = stager.stage(state)
    return staged.result() if isinstance(staged, Future) else staged, []


def _check(value: Any, name: str) -> None:
    if isinstance(value, torch.Tensor):
        # A part of a distributed one is a plain tensor.
        missing = not_saved(getattr(value, "_local_tensor", value))
        if missing is not None and not missing.has_data:
            raise errors.UnsupportedError(missing.reason, hints=[missing.hint], tensor=name)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check(item, f"{name}.{key}" if name else str(key))
    elif type(value) in (list, tuple):
        for number, item in enumerate(value):
            _check(item, f"{name}.{number}")


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copy(item) for item in value)
    if hasattr(value, "local_shards"):
        raise errors.UnsupportedError("cannot copy a sharded tensor on its device", hints=['snapshot="host"'])
    return copy.deepcopy(value)


def _devices(value: Any) -> set[int]:
    if isinstance(value, torch.Tensor):
        return {value.device.index} if value.device.type == "cuda" and value.device.index is not None else set()
    inner = value.values() if isinstance(value, Mapping) else value if type(value) in (list, tuple) else ()
    return {index for item in inner for index in _devices(item)}


def _record_events(state: Any) -> list[torch.cuda.Event]:
    devices = _devices(state)
    if not devices and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        devices = {torch.cuda.current_device()}  # sharded tensors do not say
    marks = []
    for index in sorted(devices):
        mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
        mark.record(torch.cuda.current_stream(index))
        marks.append(mark)
    return marks


class DeviceStager(AsyncStager):
    """A snapshot on the device, for ``torch.distributed.checkpoint.async_save(…, async_stager=DeviceStager())``.

    It takes a fraction of the time of a copy to the host, and the state's size in GPU memory until the save has ended.
    """

    _synchronize_after_execute = False

    def stage(self, state_dict: dict[str, Any]) -> Future[dict[str, Any]]:
        """Queues the copies on the current streams; the future has the copied state when they are made."""
        copied, marks = snapshot(state_dict, "device")
        future: Future[dict[str, Any]] = Future()

        def wait() -> None:
            try:
                for mark in marks:
                    mark.synchronize()
                future.set_result(copied)
            except Exception as error:
                future.set_exception(error)

        if marks:
            threading.Thread(target=wait, name="forebay staging").start()
        else:
            future.set_result(copied)
        return future

    def synchronize_staging(self) -> None:
        """Nothing to do: the future of :meth:`stage` says when."""

    def close(self) -> None:
        """Nothing is held."""
