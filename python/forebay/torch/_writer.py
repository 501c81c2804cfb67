"""Writes checkpoints of :mod:`torch.distributed.checkpoint`."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from .. import _forebay, _locations, errors
from .._paths import folder_text, is_place
from ..frameworks.torch import is_unread, not_saved
from . import _container, _manifest, _stager
from ._layout import Blob
from ._manifest import Place
from ._saves import SaveTask, Snapshot, follow, wait_for

if TYPE_CHECKING:
    from .._forebay import Pending

_SHARD: Final = re.compile(r"shard-\d{5,}-\d{3,}-[0-9a-f]{24}\.safetensors")


@dataclass(slots=True)
class _Shard:
    """One file of a rank: what it holds, and where each item is in it."""

    items: list[tuple[MetadataIndex, int]]
    blobs: list[Blob]
    #: Of the blobs those that are what ``torch.save`` makes of a tensor.
    pickled: set[int]
    nbytes: int = 0


class CheckpointWriter(StorageWriter):
    """A storage for ``torch.distributed.checkpoint.save``.

    >>> dcp.save(state, storage_writer=forebay.torch.CheckpointWriter("checkpoints/1000"))  # doctest: +SKIP

    Each rank writes its tensors straight from their memory to safetensors files in the folder, ``shard_bytes`` each;
    when all are durable, the coordinator writes ``checkpoint.json``, which makes the folder a checkpoint. Before that
    moment a reader sees the checkpoint that was there before, or none.

    Files are named after the checksums of what they hold. A save that is started again after a crash finds those that
    are complete, reads them back to check them, and does not write them again.

    The folder has to be visible to all ranks. No memory is needed beside the state's own, except for tensors that are
    not contiguous: these are copied on their device, 256 MiB (or one tensor) at a time.

    Args:
        path: the folder; made if it is not there. An ``s3://`` URL, too; there two saves to one folder must not overlap.
        shard_bytes: start another file when one has reached this size.
        reuse: look for complete files of an earlier attempt. They cost reading them once.
        durable: return when the checkpoint survives a power failure.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        shard_bytes: int = 8 << 30,
        reuse: bool = True,
        durable: bool = True,
    ) -> None:
        if shard_bytes <= 0:
            raise errors.InvalidInputError("a shard has to have a size", shard_bytes=shard_bytes)
        self.path = folder_text(path)
        self.shard_bytes = shard_bytes
        self.reuse = reuse
        self.durable = durable
        #: Files of the last save by this rank: written, and found complete.
        self.written = 0
        self.reused = 0
        self._rank = 0
        self._found: set[str] = set()
        self._written_call: Callable[[], None] | None = None
        self._behind = False

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Turns to another folder, if one is given."""
        if checkpoint_id is not None:
            self.path = folder_text(checkpoint_id)

    def storage_meta(self) -> StorageMeta:
        """The storage's properties, for planners."""
        return StorageMeta(checkpoint_id=self.path)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether this names a folder: anything but an address with a scheme does."""
        return is_place(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Makes the folder; the coordinator notes what is in it."""
        if kwargs.get("use_collectives") is False:
            raise errors.UnsupportedError(
                "a checkpoint needs all ranks to agree on when it is complete", hints=["use_collectives=True"]
            )
        self._rank = int(kwargs.get("rank", dist.get_rank() if dist.is_initialized() else 0))
        if not self._behind:
            wait_for(self.path)
        _locations.make_folder(self.path)
        self._found = set()
        if is_coordinator and _locations.is_folder(self.path):
            self._found = {name for name in _locations.names(self.path) if _SHARD.fullmatch(name)}

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Leaves the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Leaves the plans as they are."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's items; they are durable when it returns."""
        self.written = self.reused = 0
        results: list[WriteResult] = []
        pending: list[Pending] = []
        try:
            for number, shard in enumerate(self._shards(plan, planner)):
                places, file = self._write_shard(number, shard)
                if file is not None:
                    pending.append(file)
                results += [WriteResult(index, places[at].nbytes, places[at]) for index, at in shard.items]
            if self._written_call is not None:
                self._written_call()
            while pending:
                pending.pop().commit(self.durable)
        finally:
            for file in pending:
                file.abort()
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def _shards(self, plan: SavePlan, planner: SavePlanner) -> Iterator[_Shard]:
        """The plan's items in files of bounded size. A file's tensors are looked up when it is its turn."""
        shard = _Shard([], [], set())
        known: dict[tuple[Any, ...], int] = {}
        for item in plan.items:
            source, is_pickled = _resolve(item, planner)
            layout = (source.data_ptr(), source.dtype, source.shape, source.stride(), source.device)
            if source.numel() and layout in known:
                shard.items.append((item.index, known[layout]))  # another name of the same memory
                continue
            size = source.numel() * source.itemsize
            if shard.items and shard.nbytes + size > self.shard_bytes:
                yield shard
                shard, known = _Shard([], [], set()), {}
            known[layout] = len(shard.blobs)
            if is_pickled:
                shard.pickled.add(len(shard.blobs))
            shard.items.append((item.index, len(shard.blobs)))
            shard.blobs.append(Blob(_item_name(item), source, source.dtype))
            shard.nbytes += size
        if shard.items:
            yield shard

    def _write_shard(self, number: int, shard: _Shard) -> tuple[list[Place], Pending | None]:
        sums = _container.sums_of(shard.blobs)
        name = f"shard-{self._rank:05}-{number:03}-{_digest(shard.blobs, sums)}.safetensors"
        path = _locations.member(self.path, name)
        ranges = _container.is_intact(path, shard.blobs, sums, self.durable) if self.reuse else None
        pending = None
        if ranges is None:
            pending, ranges = _container.write(path, shard.blobs, {"format": "pt"}, sums=sums)
            self.written += 1
        else:
            self.reused += 1
        places = [
            Place(name, offset, size, crc, at in shard.pickled)
            for at, ((offset, size), crc) in enumerate(zip(ranges, sums, strict=True))
        ]
        return places, pending

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Makes the folder a checkpoint, then removes files that no longer belong to it."""
        places = {result.index: result.storage_data for written in results for result in written}
        text = _manifest.encode(metadata, places)
        needed = {place.file for place in places.values()}
        with _locations.changed_folder(self.path):
            gone = sorted(name for name in needed if not _locations.exists(_locations.member(self.path, name)))
            if gone:
                raise errors.BusyError(
                    "another save to the same folder ended meanwhile and removed files of this one",
                    hints=["save to a folder of its own for each step"], path=self.path, file=gone[0],
                )  # fmt: skip
            pending = _forebay.Pending(_locations.member(self.path, _manifest.NAME))
            try:
                pending.file.write_from(bytearray(text), 0)
            except BaseException:
                pending.abort()
                raise
            pending.commit(self.durable)
            for name in self._found - needed:
                # Another save may have been faster; the checkpoint is there.
                _locations.remove(_locations.member(self.path, name))

    def save_async(
        self,
        state: dict[str, Any],
        *,
        snapshot: Snapshot = None,
        planner: SavePlanner | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> SaveTask:
        """As ``torch.distributed.checkpoint.save``, but returns before the checkpoint is durable. All ranks call it.

        Without a snapshot it returns when the last byte of this rank has left the tensors, and needs no memory. With
        one it returns earlier and needs the size of this rank's state: ``"device"`` on the device, ``"host"`` in host
        memory. The ranks agree through ``process_group`` on another thread: it needs a CPU backend (gloo) of its own,
        or nothing else may use it until the end.

        Returns:
            The save in flight.
        """
        # A copy, so that the next save may begin to plan while this one is still being written.
        writer = CheckpointWriter(self.path, shard_bytes=self.shard_bytes, reuse=self.reuse, durable=self.durable)
        state, ready = _stager.snapshot(state, snapshot)
        task = SaveTask(self.path)
        before = follow(task)
        writer._behind = True
        if snapshot is None:
            writer._written_call = task._staged.set

        def work() -> None:
            for mark in ready:
                mark.synchronize()
            if snapshot is not None:
                task._staged.set()
            before()
            alone = not (dist.is_available() and dist.is_initialized())
            save(state, storage_writer=writer, planner=planner, process_group=process_group, no_dist=alone)

        task._run(work)
        if snapshot is None:
            task.wait_staged()
        return task


def _resolve(item: WriteItem, planner: SavePlanner) -> tuple[torch.Tensor, bool]:
    """An item's bytes: a tensor as it is, an object as bytes. And whether they are what ``torch.save`` makes of a tensor: torch's
    own writer saves all tensors so, and those that are no plain piece of memory (quantized ones, say) cannot be saved otherwise.

    Raises:
        UnsupportedError: a tensor has no data, or torch cannot save it either.
    """
    data = planner.resolve_data(item)
    if isinstance(data, io.BytesIO):
        return _bytes_of(data), False
    if is_unread(data):
        return data.clone(), False
    missing = not_saved(data)
    if missing is None:
        return data.detach().resolve_conj().resolve_neg(), False
    name = _item_name(item)
    if not missing.has_data:
        raise errors.UnsupportedError(missing.reason, hints=[missing.hint], tensor=name)
    stream = io.BytesIO()
    try:
        torch.save(data.detach().cpu(), stream)
    except Exception as error:
        reason = f"torch.save cannot write the tensor: {error}"
        raise errors.UnsupportedError(reason, hints=[missing.hint], tensor=name) from None
    return _bytes_of(stream), True


def _bytes_of(stream: io.BytesIO) -> torch.Tensor:
    raw = bytearray(stream.getbuffer())
    return torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)


def _item_name(item: WriteItem) -> str:
    """The name in the file: the tensor's; a part of one has its offsets behind it."""
    index = item.index
    if item.type != WriteItemType.SHARD or index.offset is None:
        return index.fqn
    return f"{index.fqn}@{','.join(str(offset) for offset in index.offset)}"


def _digest(blobs: Sequence[Blob], sums: Sequence[int]) -> str:
    told = [(*_container.stored(blob), crc) for blob, crc in zip(blobs, sums, strict=True)]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:24]
