"""Reads checkpoints of :mod:`torch.distributed.checkpoint`, each rank its own slices."""

from __future__ import annotations

import errno
import io
import itertools
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from .. import _forebay, _locations, errors
from .._captures import left_alone
from .._kinds import folder_hints
from .._paths import Watch, is_place, path_text
from ..frameworks.torch import no_memory
from . import _container, _manifest
from ._manifest import Place
from ._memory import checksums, nbytes, settle

if TYPE_CHECKING:
    from .._forebay import File

#: Slices whose contiguous runs are shorter than this are read with the gaps between them, and cut out on the device.
_SHORT_RUN: Final = 1024
#: Most bytes that are read with gaps at a time.
_COVER_BYTES: Final = 128 << 20
_FILES_IN_FLIGHT: Final = 8
#: A longer file is no manifest.
_MAX_MANIFEST_BYTES: Final = 4 << 30

Piece = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Box:
    """A hyper-rectangle of a stored chunk: where the chunk begins in the file, its shape, the part, the element."""

    at: int
    shape: tuple[int, ...]
    start: tuple[int, ...]
    lengths: tuple[int, ...]
    itemsize: int

    def strides(self) -> tuple[int, ...]:
        """Bytes from one index to the next in the file, for each dimension."""
        strides, step = [], self.itemsize
        for size in reversed(self.shape):
            strides.append(step)
            step *= size
        return tuple(reversed(strides))

    def first(self) -> int:
        """Offset in the file of the part's first element."""
        return self.at + sum(at * step for at, step in zip(self.start, self.strides(), strict=True))

    def span(self) -> int:
        """Bytes from the part's first element to the end of its last."""
        last = sum((n - 1) * step for n, step in zip(self.lengths, self.strides(), strict=True))
        return last + self.itemsize


def runs(box: Box, target: torch.Tensor) -> tuple[int, int]:
    """How many inner dimensions of a part are one run in the file and in the target, and the bytes of such a run."""
    inner, dimensions = box.itemsize, 0
    strides = box.strides()
    for at in range(len(box.lengths) - 1, -1, -1):
        length = box.lengths[at]
        if length != 1 and (strides[at] != inner or target.stride(at) * box.itemsize != inner):
            break
        inner *= length
        dimensions += 1
    return dimensions, inner


def pieces(box: Box, target: torch.Tensor) -> Iterator[Piece]:
    """(address, bytes, offset) of each run of a part."""
    dimensions, size = runs(box, target)
    outer = len(box.lengths) - dimensions
    theirs = [step * box.itemsize for step in target.stride()[:outer]]
    ours = box.strides()[:outer]
    address, offset = target.data_ptr(), box.first()
    for index in itertools.product(*(range(length) for length in box.lengths[:outer])):
        there = sum(map(int.__mul__, index, theirs))
        here = sum(map(int.__mul__, index, ours))
        yield address + there, size, offset + here


@dataclass(slots=True)
class _Job:
    """The reads from one file."""

    file: File
    watch: Watch
    pieces: list[Piece] = field(default_factory=list)
    direct: list[tuple[ReadItem, torch.Tensor, Place]] = field(default_factory=list)
    covered: list[tuple[ReadItem, torch.Tensor, Place, Box, torch.dtype]] = field(default_factory=list)
    pickled: list[tuple[ReadItem, torch.Tensor, Place]] = field(default_factory=list)
    objects: list[tuple[ReadItem, bytearray, Place]] = field(default_factory=list)
    future: _forebay.Future | None = None


def _has_names(folder: str) -> bool:
    """Whether something is in a folder. Of one that cannot be listed that is not known."""
    try:
        return bool(_locations.names(folder))
    except errors.Error:
        return False


def _give_up(flying: Iterable[_Job]) -> None:
    """Stops what is in flight and waits for it: memory may go only when nothing writes to it."""
    for job in flying:
        if job.future is not None:
            job.future.cancel()
    for job in flying:
        if job.future is not None:
            job.future.exception()
        job.file.close()


class _Refusal(dict[MetadataIndex, Place]):
    """Stands for the places of a checkpoint that cannot be read."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class CheckpointReader(StorageReader):
    """A storage for ``torch.distributed.checkpoint.load``.

    >>> dcp.load(state, storage_reader=forebay.torch.CheckpointReader("checkpoints/1000"))  # doctest: +SKIP

    Each rank reads the slices it needs, straight into its tensors; how many ranks saved the checkpoint, and how they
    had cut it, does not matter. A folder without ``checkpoint.json`` is refused: its save was not completed.

    Args:
        path: the folder.
        verify: compare the checksum of each stored part that something is read from. Where a tensor gets it whole and
            as it was stored, that costs no reading; where it is cast, cut otherwise, or read into a tensor that is not
            contiguous, the part is read a second time, whole, by each rank that needs any of it. Bytes of objects are
            always compared.
    """

    def __init__(self, path: str | os.PathLike[str], *, verify: bool = False) -> None:
        self.path = path_text(path)
        self.verify = verify
        #: Bytes that the last load of this rank read from files.
        self.bytes_read = 0
        self._metadata: Metadata | None = None
        self._verified: set[Place] = set()
        #: The stored parts of each tensor by where they begin.
        self._chunks: dict[str, dict[torch.Size, ChunkStorageMetadata]] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Turns to another folder, if one is given."""
        self._metadata = None
        if checkpoint_id is not None:
            self.path = path_text(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether this names a folder: anything but an address with a scheme does."""
        return is_place(checkpoint_id) or (isinstance(checkpoint_id, str) and _locations.is_url(checkpoint_id))

    def metadata(self) -> Metadata:
        """The contents of the checkpoint.

        Raises:
            NotFoundError: the folder is not there, or its save was not completed.
            IntegrityError: its manifest is damaged.
        """
        path = _locations.member(self.path, _manifest.NAME)
        try:
            text = _locations.text_of(path, _MAX_MANIFEST_BYTES)
        except errors.PermissionDeniedError:
            hints = ["check owner and mode of the folder and of what is above it: ls -ld"]
            raise errors.PermissionDeniedError("cannot read the manifest", hints=hints, path=path) from None
        except (errors.NotFoundError, errors.IOFailedError) as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
            hints = (
                []
                if _locations.is_folder(self.path)
                else ["give the folder of a checkpoint; forebay.torch.load reads files"]
            )
            if _has_names(self.path):
                hints = folder_hints(self.path) or ["save it again: files that are complete are used again"]
            raise errors.NotFoundError(
                "no complete checkpoint: the folder has no manifest", hints=hints, path=path
            ) from None
        found = _manifest.decode(text, path)
        found.storage_meta = StorageMeta(checkpoint_id=self.path)
        return found

    def read_metadata(self) -> Metadata:
        """For ``torch.distributed.checkpoint``, which hides errors from here: they are raised by
        :meth:`set_up_storage_reader`, so that all ranks hear of them. :meth:`metadata` raises them itself.
        """
        try:
            return self.metadata()
        except Exception as error:
            return Metadata(state_dict_metadata={}, storage_data=_Refusal(error))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Takes the metadata; refuses here what :meth:`read_metadata` could not read."""
        if isinstance(metadata.storage_data, _Refusal):
            raise metadata.storage_data.error
        self._metadata = metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Leaves the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Leaves the plans as they are."""
        return plans

    @left_alone
    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads the plan's items into the planner's tensors."""
        if self._metadata is None:
            raise errors.InvalidInputError("the reader was not set up: dcp.load does that")
        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            by_file.setdefault(self._place(item).file, []).append(item)
        self.bytes_read = 0
        self._verified.clear()
        self._chunks.clear()
        flying: deque[_Job] = deque()
        try:
            for name in sorted(by_file):
                flying.append(self._start(name, by_file[name], planner))
                if len(flying) >= _FILES_IN_FLIGHT:
                    self._finish_first(flying, planner)
            while flying:
                self._finish_first(flying, planner)
        except BaseException:
            _give_up(flying)
            raise
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _place(self, item: ReadItem) -> Place:
        assert self._metadata is not None
        found = self._metadata.storage_data.get(item.storage_index)
        if not isinstance(found, Place):
            raise errors.IntegrityError(
                "the checkpoint does not say where a part lies", tensor=item.storage_index.fqn, path=self.path
            )
        return found

    def _box(self, item: ReadItem, place: Place) -> tuple[Box, torch.dtype]:
        assert self._metadata is not None
        index = item.storage_index
        told = self._metadata.state_dict_metadata[index.fqn]
        if not isinstance(told, TensorStorageMetadata):
            raise errors.IntegrityError("the checkpoint holds an object where a tensor is wanted", tensor=index.fqn)
        if index.fqn not in self._chunks:
            self._chunks[index.fqn] = {chunk.offsets: chunk for chunk in told.chunks}
        chunks = self._chunks[index.fqn]
        chunk = told.chunks[0] if index.offset is None else chunks[index.offset]
        dtype = told.properties.dtype
        return (
            Box(place.offset, tuple(chunk.sizes), tuple(item.storage_offsets), tuple(item.lengths), dtype.itemsize),
            dtype,
        )

    def _start(self, name: str, items: list[ReadItem], planner: LoadPlanner) -> _Job:
        file = _forebay.open(_locations.member(self.path, name))
        job = _Job(file, Watch(file))
        targets: list[Any] = []
        for item in items:
            place = self._place(item)
            if item.type == LoadItemType.BYTE_IO:
                self._plan_object(job, item, place)
                continue
            given = planner.resolve_tensor(item)
            target = given.detach()
            has_memory = _check_target(target, item)
            box, dtype = self._box(item, place)
            if tuple(target.shape) != box.lengths:
                raise errors.InvalidInputError(
                    "a tensor has another shape than the part it shall hold", tensor=item.dest_index.fqn,
                    shape=tuple(target.shape), part=box.lengths,
                )  # fmt: skip
            if target.numel() == 0:
                planner.commit_tensor(item, target)
            elif place.is_pickled:
                # A scale set on a detached copy would not be the tensor's own.
                job.pickled.append((item, given, place))
            elif has_memory and _is_direct(box, target, dtype):
                job.pieces += pieces(box, target)
                job.direct.append((item, target, place))
                targets.append(target)
            else:
                job.covered.append((item, target, place, box, dtype))
        settle(targets)
        targets += [room for _, room, _ in job.objects]
        if job.pieces:
            self.bytes_read += sum(size for _, size, _ in job.pieces)
            job.future = job.file._submit(False, job.pieces, targets)
        return job

    def _plan_object(self, job: _Job, item: ReadItem, place: Place) -> None:
        _check_end(job.file, item, place)
        job.objects.append((item, bytearray(place.nbytes), place))

    def _finish_first(self, flying: deque[_Job], planner: LoadPlanner) -> None:
        # Taken out when it is done: Ctrl-C ends the waiting, not the read.
        self._finish(flying[0], planner)
        flying.popleft()

    def _finish(self, job: _Job, planner: LoadPlanner) -> None:
        with job.file, job.watch:
            if job.future is not None:
                job.future.result()
            for item, room, place in job.objects:
                if room:
                    job.file.read_into(room, place.offset)
                    self.bytes_read += len(room)
                    self._compare(_tensor_of(room), item, place)
                planner.load_bytes(item, io.BytesIO(room))
            for item, target, place in job.pickled:
                _fill(target, self._unpickled(job.file, item, place), item)
                planner.commit_tensor(item, target)
            for item, target, place in job.direct:
                if self.verify and nbytes(target) == place.nbytes and target.is_contiguous():
                    self._compare(target, item, place)
                else:
                    self._verify_in_file(job.file, item, place)
                planner.commit_tensor(item, target)
            for item, target, place, box, dtype in job.covered:
                self._verify_in_file(job.file, item, place)
                self._read_covered(job.file, box, target, dtype, item)
                planner.commit_tensor(item, target)

    def _verify_in_file(self, file: File, item: ReadItem, place: Place) -> None:
        """Compares a stored part that no tensor holds as it was stored."""
        if not self.verify or place in self._verified:
            return
        room = torch.empty(min(place.nbytes, _container.CHECK_BYTES), dtype=torch.uint8)
        self._refuse_other(_container.sum_in_file(file, place.offset, place.nbytes, room), item, place)
        self.bytes_read += place.nbytes
        self._verified.add(place)

    def _compare(self, tensor: torch.Tensor, item: ReadItem, place: Place) -> None:
        (found,) = checksums([tensor])
        self._refuse_other(found, item, place)

    def _refuse_other(self, found: int, item: ReadItem, place: Place) -> None:
        if found != place.crc32c:
            name = item.storage_index.fqn
            raise errors.IntegrityError(
                "a tensor of the checkpoint has changed since it was written", tensor=name,
                path=_locations.member(self.path, place.file),
            )  # fmt: skip

    def _unpickled(self, file: File, item: ReadItem, place: Place) -> torch.Tensor:
        """The part of a tensor that was saved as ``torch.save`` does it."""
        _check_end(file, item, place)
        room = bytearray(place.nbytes)
        file.read_into(room, place.offset)
        self.bytes_read += len(room)
        self._compare(_tensor_of(room), item, place)
        try:
            found: torch.Tensor = torch.load(io.BytesIO(room), map_location="cpu", weights_only=True)
            for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                # A tensor of a class of its own may turn into another when it is cut.
                if length < found.shape[dimension]:
                    found = found.narrow(dimension, start, length)
            return found
        except Exception as error:
            hints = ["torch.serialization.add_safe_globals([CLASS]) for the class of the tensor, if you trust it"]
            raise errors.UnsupportedError(
                f"torch.load cannot read a tensor: {str(error).partition(chr(10))[0]}", hints=hints,
                tensor=item.storage_index.fqn, path=file.path,
            ) from error  # fmt: skip

    def _read_covered(self, file: File, box: Box, target: torch.Tensor, dtype: torch.dtype, item: ReadItem) -> None:
        """Reads a part with the gaps in it, to memory beside the target, and copies (and casts) the wanted part."""
        cut = next((at for at, length in enumerate(box.lengths) if length > 1), None)
        if box.span() > _COVER_BYTES and cut is not None:
            half = box.lengths[cut] // 2
            for start, length in ((0, half), (half, box.lengths[cut] - half)):
                starts, lengths = list(box.start), list(box.lengths)
                starts[cut] += start
                lengths[cut] = length
                part = Box(box.at, box.shape, tuple(starts), tuple(lengths), box.itemsize)
                self._read_covered(file, part, target.narrow(cut, start, length), dtype, item)
            return
        device = target.device if target.device.type == "cuda" else torch.device("cpu")
        room = torch.empty(box.span(), dtype=torch.uint8, device=device)
        settle([room])
        file._submit(False, [(room.data_ptr(), box.span(), box.first())], room).result()
        self.bytes_read += box.span()
        seen = torch.empty(0, dtype=dtype, device=device)
        seen.set_(room.untyped_storage(), 0, box.lengths, [step // box.itemsize for step in box.strides()])
        _fill(target, seen, item)


def _check_target(target: torch.Tensor, item: ReadItem) -> bool:
    """Whether a tensor can be filled by its memory; else torch does it.

    Raises:
        InvalidInputError: it cannot be filled at all.
    """
    missing = no_memory(target)
    if missing is not None and not missing.has_data:
        raise errors.InvalidInputError(missing.reason, hints=[missing.hint], tensor=item.dest_index.fqn)
    if missing is None and any(
        step == 0 and length > 1 for step, length in zip(target.stride(), target.shape, strict=True)
    ):
        raise errors.InvalidInputError(
            "the elements of the tensor share memory: it cannot be filled", hints=["tensor.contiguous()"],
            tensor=item.dest_index.fqn,
        )  # fmt: skip
    return missing is None


def _check_end(file: File, item: ReadItem, place: Place) -> None:
    end = file.size
    if place.offset + place.nbytes > end:
        raise errors.IntegrityError("an object reaches beyond its file", tensor=item.dest_index.fqn, size=end)


def _fill(target: torch.Tensor, source: torch.Tensor, item: ReadItem) -> None:
    try:
        with torch.no_grad():
            target.copy_(source)
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise errors.InvalidInputError(
            f"a tensor cannot be filled with the saved one: {str(error).partition(chr(10))[0]}",
            hints=["give one as it was when it was saved"], tensor=item.dest_index.fqn, type=type(target).__name__,
            dtype=target.dtype, saved=source.dtype,
        ) from None  # fmt: skip


def _is_direct(box: Box, target: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether the bytes in the file are the target's, in runs that are worth a piece each."""
    if target.dtype != dtype or target.device.type not in ("cpu", "cuda") or target.is_conj() or target.is_neg():
        return False
    size = runs(box, target)[1]
    return size >= _SHORT_RUN or size == math.prod(box.lengths) * box.itemsize


def _tensor_of(room: bytearray) -> torch.Tensor:
    return torch.frombuffer(room, dtype=torch.uint8)
