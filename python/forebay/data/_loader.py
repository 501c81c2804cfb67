"""Batches of records in a global order, read ahead without worker processes."""

from __future__ import annotations

import operator
import os
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .. import _forebay
from ..errors import BusyError, InvalidInputError, UnsupportedError
from ._ahead import Reader
from ._jagged import Jagged
from ._memory import memory_for
from ._records import Pending, Records

__all__ = ["Loader", "LoaderStats"]

#: Of the state and of the order that it stands for.
_VERSION = 1
#: Bytes of a block where the program gives no size.
_BLOCK_BYTES = 4 << 20
#: Blocks of a window where the program gives no number.
_WINDOW_BLOCKS = 16
#: Bytes on their way where the program gives no number of batches, and the fewest and the most of these. One H200, batches of 16 MiB: with two
#: the link waited for the next batch, and carried 35 to 39 GB/s of 50.
_BYTES_AHEAD, _MIN_BATCHES_AHEAD, _MAX_BATCHES_AHEAD = 64 << 20, 2, 4
#: The native half takes signed 64-bit integers.
_MAX_NUMBER = (1 << 63) - 1


@dataclass
class LoaderStats:
    """What a loader did so far.

    Attributes:
        batches: handed out.
        records: in them.
        bytes: read for them.
        stalled: seconds that the program waited for them.
        engines: bytes by the engine that moved them.
    """

    batches: int = 0
    records: int = 0
    bytes: int = 0
    stalled: float = 0.0
    engines: dict[str, int] = field(default_factory=dict)


class Loader:
    """Batches of records in a global order, read ahead by forebay's own threads: no worker processes.

    Iterating it gives the batches of one epoch; the next ``for`` loop gives the next one, also where the last one was left
    early. To go on behind an error, use the same iterator again, or :meth:`load_state_dict`. All ranks together go through
    one order, in which the seed and the epoch alone decide what stands where: with another number of ranks, or after
    :meth:`load_state_dict`, the records come in the same order.

    Args:
        records: of any source of :mod:`forebay.data`, or torch's ``Subset`` of one (``random_split``).
        batch_size: records in a batch of one rank.
        order: ``"random"``; ``"block"`` (blocks of neighbours in random order, mixed within a window of blocks: for cold
            files, hard disks and network file systems); or ``"sequential"``.
        block: records of a block, of block order; by default about 4 MiB.
        window: blocks that are mixed with each other; by default 16.
        seed: of the order.
        rank: of this process; by default ``torch.distributed``'s, if it is initialised, else 0.
        world: number of ranks; by default likewise.
        drop_last: leaves out the records at the end that do not fill a batch of each rank. Without it they are split
            evenly; where there are fewer than ranks some come twice, so that all ranks have equally many batches.
        prefetch: batches on their way beside the one that the program has; by default 2, of small ones up to 4. At the
            end of an epoch they are the next one's first.
        transform: called with each batch before it is handed out, with the program's current stream. If it raises, the batch
            was not handed out: the next call reads it again.
        device: where batches go, if not where the records say.
        framework: whose arrays batches are, if not those that the records say.
    """

    def __init__(
        self,
        records: Records,
        batch_size: int,
        *,
        order: str = "random",
        block: int | None = None,
        window: int | None = None,
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
        drop_last: bool = True,
        prefetch: int | None = None,
        transform: Callable[[Any], Any] | None = None,
        device: object = None,
        framework: str | None = None,
    ) -> None:
        records = _source(records)
        self.records = records if device is None and framework is None else records.to(device, framework)
        self.batch_size = _integer("batch_size", batch_size, 1)
        self.rank, self.world = _ranks(rank, world)
        self.prefetch = self._ahead() if prefetch is None else _integer("prefetch", prefetch, 1)
        if transform is not None and not callable(transform):
            raise InvalidInputError(f"transform cannot be {transform!r}", hints=["a function that takes a batch"])
        if not isinstance(drop_last, bool):
            raise InvalidInputError(f"drop_last cannot be {drop_last!r}", hints=["True or False"])
        self.drop_last, self.transform = drop_last, transform
        self.stats = LoaderStats()
        self._kind = _order(order, block, window, records.nbytes_hint)
        self._memory = memory_for(self.records.framework, self.records.device)
        self._use_seed(seed)
        self._epoch, self._position = 0, 0
        self._use_epoch(None)
        if not len(self) and len(self.records):
            told = f"{len(self.records)} records are no batch of {self.batch_size} for each rank: epochs are empty"
            warnings.warn(f"{told} (a smaller batch_size, or drop_last=False)", stacklevel=2)

    def _ahead(self) -> int:
        batch = self.batch_size * max(1, self.records.nbytes_hint)
        return min(_MAX_BATCHES_AHEAD, max(_MIN_BATCHES_AHEAD, _BYTES_AHEAD // batch))

    def _use_epoch(self, epoch: _Epoch | None) -> None:
        """The program's loop. It holds the loader, which does not hold it: batches on their way go with the last of both."""
        self._current = weakref.ref(epoch) if epoch is not None else None
        # The loop has handed out a batch.
        self._begun = False

    def _use_seed(self, seed: int) -> None:
        self.seed = _integer("seed", seed, 0, 2**64 - 1)
        self._order = _forebay.Order(len(self.records), self.seed, *self._kind)
        # What is on its way of the epoch behind the current one; it is of this order.
        self._following: _Epoch | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Another process goes on behind the last batch of this one.
        return {
            key: value
            for key, value in self.__dict__.items()
            if key not in ("_memory", "_order", "_current", "_following", "_begun")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._use_epoch(None)
        self._memory = memory_for(self.records.framework, self.records.device)
        self._use_seed(self.seed)

    @property
    def epoch(self) -> int:
        """The number of the epoch that is being read, or that the next loop reads."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch the next loop reads, from its beginning. Needed only to leave the order 0, 1, 2, …"""
        self._epoch, self._position = _integer("epoch", epoch, 0, _MAX_NUMBER), 0
        self._use_epoch(None)

    @property
    def _step(self) -> int:
        return self.batch_size * self.world

    def __len__(self) -> int:
        """Batches of an epoch, for each rank."""
        whole, rest = divmod(len(self.records), self._step)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        # Before anything changes: one that raises may be asked again.
        self.records.check()
        if self._begun:
            # The program left the last loop early: its rest is not what it asks for now.
            self._epoch, self._position = self._epoch + 1, 0
        following, self._following = self._following, None
        if following is None or not following.is_of(self._epoch, self._position):
            following = _Epoch(self, self._epoch, self._position)
        following.hold(self)
        self._use_epoch(following)
        return following

    def __repr__(self) -> str:
        ranks = f", rank {self.rank} of {self.world}" if self.world > 1 else ""
        return f"<forebay.data.Loader: {len(self)} batches of {self.batch_size}, {self._kind[0]} order{ranks}, {self.records!r}>"

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`load_state_dict` needs to go on behind the last batch that was handed out, with any number of
        ranks. Plain numbers and texts. All ranks have the same one after the same number of batches.
        """
        return {
            "version": _VERSION,
            "epoch": self._epoch,
            "position": self._position,
            "seed": self.seed,
            "length": len(self.records),
            "order": list(self._kind),
            "fingerprint": self.records.fingerprint,
        }

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """The next loop goes on where the state was taken.

        Args:
            state: of :meth:`state_dict`.
            strict: refuses another state of the files. Without it their sizes and times are not compared: for files
                that were copied to another machine.

        Raises:
            BusyError: the files changed.
            InvalidInputError: a state of other records or another order, or none at all.
            UnsupportedError: a state of a later version.
        """
        if not isinstance(state, dict) or not {"version", "epoch", "position", "seed", "length"} <= state.keys():
            raise InvalidInputError("not a loader's state", hints=["give what state_dict() returned"])
        if state["version"] != _VERSION:
            raise UnsupportedError(
                f"a state of version {state['version']!r}", hints=["load it with the forebay that saved it"]
            )
        if state["length"] != len(self.records) or _listed(state.get("order")) != self._kind:
            raise InvalidInputError(
                "the state belongs to other records or another order",
                hints=["use the same files, order, block and window"],
                length=state["length"],
                order=state.get("order"),
            )
        if strict and state.get("fingerprint") != self.records.fingerprint:
            raise BusyError(
                "the files changed since the state was taken",
                hints=["strict=False goes on all the same: for copies of the same files"],
            )
        epoch = _integer("epoch", state["epoch"], 0, _MAX_NUMBER)
        position = _integer("position", state["position"], 0, len(self.records))
        self._use_seed(state["seed"])
        self._epoch, self._position = epoch, position
        self._use_epoch(None)

    def node(self) -> Any:
        """A torchdata node (``torchdata.nodes.BaseNode``) of the batches, with the loader's state."""
        from ._node import node_of

        return node_of(self)


class _Epoch:
    """The batches of one epoch from a place on. Threads may share it: each batch comes once."""

    def __init__(self, loader: Loader, epoch: int, position: int) -> None:
        # Weak while the loader holds it, which reads it ahead.
        self._owner = weakref.ref(loader)
        self._held: Loader | None = None
        self._epoch = epoch
        # The place behind the batches that were started.
        self._ahead = position
        self._flying: deque[tuple[int, Pending]] = deque()
        self._reader = Reader(loader.records, loader._order, epoch) if loader._kind[0] == "block" else None
        self._process, self._turn = os.getpid(), threading.RLock()
        self.ended = False
        # Reading the next epoch ahead failed: its own first call tells why.
        self._is_alone = False

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
        return (self._epoch, 0) == (epoch, position) and self._process == os.getpid()

    def __iter__(self) -> _Epoch:
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
        end, pending = self._flying[0]
        # Ctrl-C and errors leave it where it is: the next call waits for it again.
        batch = pending.result()
        stalled = time.perf_counter() - started
        _hand_out(loader._memory, batch)
        if loader.transform is not None:
            try:
                batch = loader.transform(batch)
            except BaseException:
                # It may have changed the batch in place: the next call has the records read again, from here on.
                self._flying.clear()
                self._ahead = loader._position
                raise
        self._ahead = max(self._ahead, end)
        self._count(pending, stalled)
        # Last of all: Ctrl-C before it has the next call hand out this batch.
        loader._begun, loader._position = True, end
        self._flying.popleft()
        return batch

    def _on_their_way(self) -> int:
        following = self._loader._following
        return len(self._flying) + (len(following._flying) if following is not None else 0)

    def _start_following(self) -> bool:
        """Starts the next epoch's first batches while this one's last are used."""
        loader, total = self._loader, len(self._loader.records)
        is_rest = self._ahead < total and not (loader.drop_last and self._ahead + loader._step > total)
        if is_rest or self._is_alone or not self._flying:
            return False
        if loader._following is None or not loader._following.is_of(self._epoch + 1, 0):
            loader._following = _Epoch(loader, self._epoch + 1, 0)
        try:
            return loader._following._start(may_wait=False)
        except Exception:
            self._is_alone, loader._following = True, None
            return False

    def _start(self, may_wait: bool = True) -> bool:
        """Starts reading one more batch; false at the end, or while its blocks are still read ahead and others are on
        their way.
        """
        loader, total = self._loader, len(self._loader.records)
        # Not by `_ahead` alone: Ctrl-C may have come before it was set.
        begin, size = self._flying[-1][0] if self._flying else self._ahead, self._loader.batch_size
        end = begin + loader._step
        if self._reader is not None and begin < total:
            last = min(end, total) - 1
            if not self._reader.reached(
                loader._order.window_of(begin), loader._order.window_of(last), may_wait and not self._flying
            ):
                return False
        if end <= total:
            low = begin + loader.rank * size
            rows = loader._order.rows(self._epoch, low, low + size)
        elif loader.drop_last or begin >= total:
            return False
        else:
            rows, end = self._last(begin, total), total
        self._flying.append((end, loader.records.read_async(rows, loader._memory)))
        self._ahead = end
        return True

    def _last(self, begin: int, total: int) -> bytes:
        """This rank's share of what does not fill a batch of each."""
        loader, left = self._loader, total - begin
        rank, world = loader.rank, loader.world
        low, high = left * rank // world, left * (rank + 1) // world
        share = -(-left // world)
        # All ranks read equally many: shares that are one record short begin one earlier.
        low = max(0, high - share) if high > low else min(low, left - 1)
        return loader._order.rows(self._epoch, begin + low, begin + min(left, low + share))

    def _count(self, pending: Pending, stalled: float) -> None:
        stats = self._loader.stats
        stats.batches += 1
        stats.stalled += stalled
        stats.records += pending.count
        for receipt in pending.receipts:
            for engine, nbytes in receipt.engines.items():
                stats.bytes += nbytes
                stats.engines[engine] = stats.engines.get(engine, 0) + nbytes

    def _end(self) -> None:
        loader = self._loader
        loader.records.check()
        loader._epoch, loader._position = self._epoch + 1, 0
        loader._use_epoch(None)
        self.ended = True


def _listed(order: Any) -> Any:
    # Some that keep states make tuples of lists.
    return list(order) if isinstance(order, tuple) else order


def _source(given: Any) -> Records:
    if isinstance(given, Records):
        return given
    # torch's Subset, of which random_split makes its parts.
    whole, rows = getattr(given, "dataset", None), getattr(given, "indices", None)
    if whole is not None and rows is not None:
        return _source(whole).select(rows)
    raise InvalidInputError(
        "not a source of records",
        hints=["forebay.data.raw(…), npy(…), mds(…), …", "torch.utils.data.DataLoader takes other data sets"],
        type=type(given).__name__,
    )


def _hand_out(memory: Any, batch: Any) -> None:
    if isinstance(batch, dict):
        for column in batch.values():
            _hand_out(memory, column)
    elif isinstance(batch, Jagged):
        memory.hand_out(batch.values)
        memory.hand_out(batch.offsets)
    elif not isinstance(batch, list):
        memory.hand_out(batch)


def _order(order: str, block: int | None, window: int | None, nbytes: int) -> list[Any]:
    """The order as the native half takes it, and the state has it. Records have about ``nbytes``."""
    if order not in ("random", "block", "sequential"):
        hints = ['order="random", order="block" or order="sequential"']
        raise InvalidInputError(f"unknown order: {order!r}", hints=hints)
    if order != "block":
        if block is not None or window is not None:
            hints = ['order="block", or neither block= nor window=']
            raise InvalidInputError(f"blocks and windows are of block order, not of order={order!r}", hints=hints)
        return [order]
    size = max(1, _BLOCK_BYTES // max(1, nbytes)) if block is None else _integer("block", block, 1)
    return [order, size, _integer("window", _WINDOW_BLOCKS if window is None else window, 1)]


def _integer(what: str, given: Any, least: int, most: int = _MAX_NUMBER) -> int:
    wrong = InvalidInputError(f"{what} cannot be {given!r}", hints=[f"a number from {least} to {most}"])
    try:
        found = operator.index(given)
    except TypeError:
        raise wrong from None
    if isinstance(given, bool) or not least <= found <= most:
        raise wrong
    return found


def _ranks(rank: int | None, world: int | None) -> tuple[int, int]:
    if rank is None and world is None:
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank()), int(distributed.get_world_size())
        return 0, 1
    if rank is None or world is None:
        raise InvalidInputError("rank and world belong together", hints=["give both, or none"])
    return _integer("rank", rank, 0, _integer("world", world, 1) - 1), world
