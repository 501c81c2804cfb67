"""Reads of tensors that are still in their files: at once, or collected in batches that stay in flight."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from .._captures import left_alone
from ..errors import Error
from ._weights_node import NodeReads
from ._weights_pieces import Piece, compact, is_fine, may_overlap, new_like, piece_of, runs_of
from ._weights_stats import Stats

if TYPE_CHECKING:
    from .._forebay import File, Receipt
    from .._paths import Held

__all__ = ["Reads", "Stored"]

#: Bytes of collected copies that are handed to the engine at once. Waiting for each tensor costs a quarter of the rate.
_BATCH_BYTES = 256 << 20
#: Runs of strided pieces that are handed over at once: the engine keeps some 100 bytes for each while it reads them.
_BATCH_RUNS = 1 << 20
#: Ranges that lie closer together than this are registered as one.
_PIN_GAP = 1 << 20
#: By thread, the checkpoints that collect copies on it.
_collecting: dict[int, list[Reads]] = {}
_collecting_lock = threading.Lock()


class Stored:
    """A tensor in a file.

    Args:
        held: its file, open.
        name: of the tensor.
        begin: bytes from the beginning of the file to the tensor's.
        kind: its type and shape as the file has them.
    """

    __slots__ = ("begin", "held", "kind", "name")

    def __init__(self, held: Held, name: str, begin: int, kind: tuple[str, tuple[int, ...]]) -> None:
        self.held = held
        self.name = name
        self.begin = begin
        self.kind = kind


class _Flight:
    """Pieces of one file that are being read together."""

    def __init__(self, held: Held, pieces: list[Piece], by: File | None = None) -> None:
        self._file, self._watch, self._pieces = held.file, held.watch, pieces
        self._future = (by or held.file).read_many_async([piece.for_engine() for piece in pieces])

    def cancel(self) -> None:
        self._future.cancel()

    def wait(self) -> BaseException | None:
        """Waits until no byte is written any more."""
        return self._future.exception()

    def finish(self) -> Receipt:
        """Waits for the bytes.

        Raises:
            ShortReadError, BusyError, IOFailedError, …: with tensor, file and range.
        """
        try:
            with self._watch:
                return self._future.result()
        except Error as error:
            raise self._named(error) from None

    def _named(self, error: Error) -> Error:
        """The error with the tensor that it is about."""
        piece = self._broken(error)
        context = {name: fact for name, fact in error.context.items() if name != "piece"}
        facts: dict[str, object] = {"tensor": piece.name, "bytes": f"{piece.offset}-{piece.end}"}
        return type(error)(
            error.message, hints=error.hints, errno=getattr(error, "errno", None),
            **{"path": self._file.path, **context, **facts},
        )  # fmt: skip

    def _broken(self, error: Error) -> Piece:
        """The piece that an error is about, or most likely: the first behind the file's end."""
        # Facts of native errors are text.
        number = str(error.context.get("piece", ""))
        if number.isdecimal():
            return self._pieces[int(number)]
        size = self._file.size
        return next((piece for piece in self._pieces if piece.end > size), self._pieces[0])


class _Collection:
    """Copies that are handed over in batches. They are done when the block that collects them ends."""

    def __init__(self) -> None:
        self._waiting: dict[Held, list[Piece]] = {}
        self._bytes = self._runs = 0
        self._flights: list[_Flight] = []
        self._node = NodeReads()
        self._taken: dict[int, list[torch.Tensor]] = {}

    def settle(self, array: torch.Tensor, stats: Stats) -> None:
        """Has earlier copies to the same memory done, if there are some: the later of two copies wins."""
        rivals = self._taken.get(array.untyped_storage().data_ptr(), ())
        if any(may_overlap(array, rival) for rival in rivals):
            self.finish(stats)

    def add(self, stored: Stored, piece: Piece) -> None:
        """Takes a copy in."""
        self._taken.setdefault(piece.array.untyped_storage().data_ptr(), []).append(piece.array)
        self._waiting.setdefault(stored.held, []).append(piece)
        self._bytes += piece.nbytes
        self._runs += runs_of(piece)
        if self._bytes >= _BATCH_BYTES or self._runs >= _BATCH_RUNS:
            self.submit()

    def submit(self) -> None:
        """Hands what waits to the engine."""
        waiting, self._waiting = self._waiting, {}
        self._bytes = self._runs = 0
        for held, pieces in waiting.items():
            shared = self._node.shared(held, pieces)
            ours = set(map(id, shared))
            if own := [piece for piece in pieces if id(piece) not in ours]:
                self._flights.append(_Flight(held, own))
            if shared:
                self._flights.append(_Flight(held, shared, self._node.bring(held, shared)))

    def finish(self, stats: Stats) -> None:
        """Waits for all copies; the first error is raised once nothing is in flight any more."""
        try:
            self.submit()
            while self._flights:
                stats.add_receipt(self._flights[0].finish())
                self._flights.pop(0)
        except BaseException:
            self.give_up()
            raise
        stats.notes += [note for note in self._node.notes if note not in stats.notes]
        self._taken.clear()

    def give_up(self) -> None:
        """Ends what is in flight."""
        self._waiting.clear()
        for flight in self._flights:
            flight.cancel()
        for flight in self._flights:
            flight.wait()
        self._flights.clear()
        self._taken.clear()


class Reads:
    """What the tensors of one checkpoint share: the account of their reads, and the blocks that collect copies.

    Args:
        may_pin: keeps in mind which ranges were read to GPUs, and the files open, for :meth:`pin`.
    """

    def __init__(self, may_pin: bool = False) -> None:
        self._may_pin = may_pin
        self.stats = Stats()
        self._lock = threading.RLock()
        #: By thread: a block collects the copies of its own thread.
        self._collections: dict[int, _Collection] = {}
        #: Of each file and GPU, the ranges that were read.
        self._ranges: dict[tuple[Held, int], list[tuple[int, int]]] = {}

    def __reduce__(self) -> tuple[object, ...]:
        # Of another process: an account of its own.
        return Reads, (self._may_pin,)

    def count(self, kind: str, operation: str | None = None, is_cast: bool = False) -> None:
        """Counts a tensor that was read: as ``copied``, ``moved`` or ``whole``, for an operation."""
        with self._lock:
            setattr(self.stats, kind, getattr(self.stats, kind) + 1)
            self.stats.cast += is_cast
            if operation is not None:
                self.stats.operations[operation] += 1

    @property
    def _collection(self) -> _Collection | None:
        """This thread's."""
        return self._collections.get(threading.get_ident())

    def settle(self, destination: torch.Tensor) -> None:
        """Before something else is written to a destination, which has memory: collected copies to the same memory are done."""
        # Of all checkpoints: the later of two copies wins, whichever they come from.
        with _collecting_lock:
            found = tuple(_collecting.get(threading.get_ident(), ())) if destination.numel() else ()
        for reads in found:
            with reads._lock:
                if reads._collection is not None:
                    reads._collection.settle(destination, reads.stats)

    def fill(self, stored: Stored, plain: torch.Tensor, destination: torch.Tensor) -> bool:
        """Reads a view of a tensor into memory of its shape and dtype: at once, or when the block that collects says so.

        Returns:
            Whether it does. Very many short runs it does not read like this.
        """
        if plain.numel() == 0:
            self.count("copied")
            return True
        piece = piece_of(stored.name, stored.begin, plain, destination)
        if is_fine(piece):
            return False
        with self._lock:
            self.stats.copied += 1
            self._count(stored, piece)
            if self._collection is not None:
                self._collection.add(stored, piece)
                return True
        self._read(stored, piece)
        return True

    @left_alone
    def read(self, stored: Stored, plain: torch.Tensor, device: torch.device, in_order: bool = False) -> torch.Tensor:
        """A new tensor on a device with the elements of a view; at once, whatever is collected.

        Args:
            stored: the tensor.
            plain: shape, strides and offset of the view.
            device: of the host, or a GPU.
            in_order: contiguous, whatever the strides of the view.
        """
        once = compact(plain)
        made = self._new(once, device, in_order)
        if once.numel():
            piece = piece_of(stored.name, stored.begin, once, made)
            if is_fine(piece):
                made = self._between(stored, once, device)
            else:
                self._read_now(stored, piece)
        if once is plain and not in_order:
            return made
        made = made.expand(plain.shape)
        return made.contiguous() if in_order else made.clone()

    def _new(self, plain: torch.Tensor, device: torch.device, in_order: bool) -> torch.Tensor:
        if in_order:
            return torch.empty(plain.shape, dtype=plain.dtype, device=device)
        return new_like(plain, device)

    def _between(self, stored: Stored, plain: torch.Tensor, device: torch.device) -> torch.Tensor:
        """The elements of a view out of all bytes from its first to its last."""
        steps = zip(plain.shape, plain.stride(), strict=True)
        count = 1 + sum((size - 1) * step for size, step in steps)
        run = plain.as_strided((count,), (1,))
        made = torch.empty(count, dtype=plain.dtype, device=device)
        self._read_now(stored, piece_of(stored.name, stored.begin, run, made))
        return made.as_strided(plain.shape, plain.stride()).clone()

    def read_all(self, wanted: Iterable[tuple[Stored, Piece]]) -> None:
        """Reads pieces together; at once, whatever is collected."""
        collection = _Collection()
        with self._lock:
            for stored, piece in wanted:
                self._count(stored, piece)
                collection.add(stored, piece)
            collection.finish(self.stats)

    def _read_now(self, stored: Stored, piece: Piece) -> None:
        with self._lock:
            self._count(stored, piece)
        self._read(stored, piece)

    def _count(self, stored: Stored, piece: Piece) -> None:
        self.stats.bytes += piece.nbytes
        self.stats.pieces += 1
        if self._may_pin and piece.array.is_cuda:
            ranges = self._ranges.setdefault((stored.held, piece.array.get_device()), [])
            ranges.append((piece.offset, piece.end))

    def pin(self) -> None:
        """Has the ranges that were read to GPUs registered in the background."""
        with self._lock:
            read, self._ranges = self._ranges, {}
        for (held, gpu), ranges in read.items():
            for start, end in _merged(ranges):
                refused = held.file._pin_later(gpu, start, end)
                if refused is not None and (refused, None) not in self.stats.notes:
                    self.stats.notes.append((refused, None))

    def _read(self, stored: Stored, piece: Piece) -> None:
        flight = _Flight(stored.held, [piece])
        try:
            receipt = flight.finish()
        except BaseException:
            flight.cancel()
            flight.wait()
            raise
        with self._lock:
            self.stats.add_receipt(receipt)

    @contextmanager
    def collect(self) -> Iterator[None]:
        """A block in which this thread's copies are collected. A block inside of another one is part of it."""
        thread = threading.get_ident()
        with self._lock:
            is_mine = thread not in self._collections
            if is_mine:
                self._collections[thread] = _Collection()
                with _collecting_lock:
                    _collecting.setdefault(thread, []).append(self)
        try:
            yield
        except GeneratorExit:
            # Who takes tensors out of a generator that collects has had enough: the copies are wanted.
            if is_mine:
                self._end(thread, True)
            raise
        except BaseException:
            if is_mine:
                self._end(thread, False)
            raise
        if is_mine:
            self._end(thread, True)

    def _end(self, thread: int, is_good: bool) -> None:
        # A generator may be closed by another thread.
        with self._lock:
            collection = self._collections.pop(thread, None)
        if collection is None:
            return
        with _collecting_lock:
            _collecting[thread].remove(self)
            if not _collecting[thread]:
                del _collecting[thread]
        if is_good:
            collection.finish(self.stats)
        else:
            collection.give_up()


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes in fewer ranges."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1] + _PIN_GAP:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found
