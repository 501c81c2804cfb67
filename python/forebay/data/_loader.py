"""Batches of records in a global order, read ahead without worker processes."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from .. import _forebay
from ..errors import BusyError, InvalidInputError, UnsupportedError
from ._epoch import Epoch
from ._memory import memory_for
from ._ranks import MAX_NUMBER, Ranks, Share, Step, integer
from ._records import Records, collate
from ._stages import Stages
from ._view import Batches, Source
from ._words import refuse

if TYPE_CHECKING:
    from torch.utils.data import Subset

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


@dataclass
class LoaderStats:
    """Counters of a loader.

    Attributes:
        batches: handed out.
        records: in them.
        repeated: of these, records at the end of an epoch's last batch that another rank has, too, so that all have equally
            many.
        bytes: read for them.
        stalled: seconds that the program waited for them.
        engines: bytes by the engine that moved them.
    """

    batches: int = 0
    records: int = 0
    repeated: int = 0
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
        rank: of this process. By default ``torch.distributed``'s, if it is initialised when the loader is first asked for
            batches or their number, else RANK of the environment, else 0.
        world: number of ranks; by default likewise (WORLD_SIZE).
        drop_last: leaves out the records at the end that do not fill a batch of each rank. Without it they are split
            evenly; ``stats.repeated`` counts those that a rank has from another one, so that all have equally many.
        prefetch: batches on their way beside the one that the program has; by default 2, of small ones up to 4. At the
            end of an epoch they are the next one's first.
        transform: called with each batch, in a thread, ahead of the program: what it queues on a GPU goes to the stream that
            was the program's current one. If it raises, the batch was not handed out: the next call reads it again.
        record_transform: called with each record, in ``workers`` threads; the batch is then the list of what it gave, which
            ``transform`` may put together.
        workers: threads that call ``record_transform`` or, without one, ``transform``. With one thread batches are
            transformed in their order.
        device: where batches go, if not where the records say.
        framework: whose arrays batches are, if not those that the records say.
    """

    def __new__(cls, *given: Any, **words: Any) -> Self:
        # Here, so that the signature of `__init__` names what there is.
        refuse(words)
        return super().__new__(cls)

    def __init__(
        self,
        records: Records | Subset[Any],
        batch_size: int,
        *,
        order: str = "random",
        block: int | None = None,
        window: int | None = None,
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
        drop_last: bool = False,
        prefetch: int | None = None,
        transform: Callable[[Any], Any] | None = None,
        record_transform: Callable[[Any], Any] | None = None,
        workers: int = 1,
        device: object = None,
        framework: str | None = None,
    ) -> None:
        records = _source(records)
        self.records = records if device is None and framework is None else records.to(device, framework)
        self.batch_size = integer("batch_size", batch_size, 1)
        self._ranks = Ranks(rank, world)
        self.prefetch = self._ahead() if prefetch is None else integer("prefetch", prefetch, 1)
        if not isinstance(drop_last, bool):
            raise InvalidInputError(f"drop_last cannot be {drop_last!r}", hints=["True or False"])
        self.drop_last = drop_last
        self._stages = _stages(transform, record_transform, workers)
        self.stats = LoaderStats()
        self._kind = _order(order, block, window, records.nbytes_hint)
        self._memory = memory_for(self.records.framework, self.records.device)
        self._use_seed(seed)
        self._epoch, self._position = 0, 0
        self._use_epoch(None)
        self._share: Share
        if self._ranks.known is not None:
            self._use_ranks(self._ranks.known)

    def _ahead(self) -> int:
        batch = self.batch_size * max(1, self.records.nbytes_hint)
        return min(_MAX_BATCHES_AHEAD, max(_MIN_BATCHES_AHEAD, _BYTES_AHEAD // batch))

    def _decide(self) -> tuple[int, int]:
        """Rank and number of ranks. They stay what they are when this is called first."""
        is_first = self._ranks.known is None
        ranks = self._ranks.decide()
        if is_first:
            self._use_ranks(ranks)
        return ranks

    def _use_ranks(self, ranks: tuple[int, int]) -> None:
        self._share = Share(len(self.records), self.batch_size, ranks, self.drop_last)
        if not len(self._share) and len(self.records):
            told = f"{len(self.records)} records are no batch of {self.batch_size} for each rank: epochs are empty"
            warnings.warn(f"{told} (a smaller batch_size, or drop_last=False)", stacklevel=4)

    @property
    def rank(self) -> int:
        """Of this process. Asking decides, as :meth:`__len__` does."""
        return self._decide()[0]

    @property
    def world(self) -> int:
        """The number of ranks. Asking decides, as :meth:`__len__` does."""
        return self._decide()[1]

    @property
    def transform(self) -> Callable[[Any], Any] | None:
        """The functions called with each batch."""
        return self._stages.transform

    def _use_epoch(self, epoch: Epoch | None) -> None:
        """The program's loop. It holds the loader, which does not hold it: batches on their way go with the last of both."""
        self._current = weakref.ref(epoch) if epoch is not None else None
        # The loop has handed out a batch.
        self._begun = False

    def _use_seed(self, seed: int) -> None:
        self.seed = integer("seed", seed, 0, 2**64 - 1)
        self._order = _forebay.Order(len(self.records), self.seed, *self._kind)
        # The part of the next epoch that is being read; it has this order.
        self._following: Epoch | None = None

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
        self._epoch, self._position = integer("epoch", epoch, 0, MAX_NUMBER), 0
        self._use_epoch(None)

    def __len__(self) -> int:
        """Batches of an epoch, for each rank. Which rank this is, is decided by now.

        Raises:
            InvalidInputError: it was decided otherwise before.
        """
        self._decide()
        return len(self._share)

    def __iter__(self) -> Iterator[Any]:
        self._decide()
        return self._begin(*self._next_place())

    def _next_place(self) -> tuple[int, int]:
        """Epoch and position that the next loop begins at: if the program left the last one early, its rest is not what it
        asks for now.
        """
        return (self._epoch + 1, 0) if self._begun else (self._epoch, self._position)

    def _begin(self, epoch: int, position: int) -> Epoch:
        # Before anything changes: one that raises may be asked again.
        self.records.check()
        self._epoch, self._position = epoch, position
        following, self._following = self._following, None
        if following is None or not following.is_of(epoch, position):
            following = Epoch(self, epoch, position)
        following.hold(self)
        self._use_epoch(following)
        return following

    def _rows(self, epoch: int, step: Step) -> bytes:
        return b"".join([self._order.rows(epoch, low, high) for low, high in step.places])

    # ---- what accelerate and transformers ask a DataLoader for -------------------------------------------------------

    #: They have no meaning here, and are read all the same: of `prefetch_factor` accelerate has a default that torch refuses.
    num_workers, pin_memory, sampler, prefetch_factor = 0, False, None, None
    collate_fn = staticmethod(collate)

    @property
    def dataset(self) -> Source:
        """The records as a data set, for programs that make a ``DataLoader`` of ``dataset`` and :attr:`batch_sampler`:
        its batches are the loader's own.
        """
        return Source(self)

    @property
    def batch_sampler(self) -> Batches:
        """This rank's batches of the next epoch, as lists of record numbers."""
        return Batches(self)

    def __repr__(self) -> str:
        count, ranks = "batches", ""
        if self._ranks.known is not None:
            rank, world = self._ranks.known
            count = f"{len(self._share)} batches"
            ranks = f", rank {rank} of {world}" if world > 1 else ""
        return f"<forebay.data.Loader: {count} of {self.batch_size}, {self._kind[0]} order{ranks}, {self.records!r}>"

    def state_dict(self) -> dict[str, Any]:
        """The state for :meth:`load_state_dict`, to continue after the last batch that the program got, with any number of
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
            BusyError: the files changed, or values that are held in memory did.
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
                "the files changed since the state was taken, or values in memory did",
                hints=[
                    "strict=False goes on all the same: for copies of the same files, and states of an older forebay"
                ],
            )
        epoch = integer("epoch", state["epoch"], 0, MAX_NUMBER)
        position = integer("position", state["position"], 0, len(self.records))
        self._use_seed(state["seed"])
        self._epoch, self._position = epoch, position
        self._use_epoch(None)

    def node(self) -> Any:
        """A torchdata node (``torchdata.nodes.BaseNode``) of the batches, with the loader's state."""
        from ._node import node_of

        return node_of(self)


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


def _stages(transform: Any, record_transform: Any, workers: Any) -> Stages:
    for name, given, takes in (("transform", transform, "batch"), ("record_transform", record_transform, "record")):
        if given is not None and not callable(given):
            raise InvalidInputError(f"{name} cannot be {given!r}", hints=[f"a function that takes a {takes}"])
    stages = Stages(transform, record_transform, integer("workers", workers, 1))
    if stages.workers > 1 and not stages:
        hints = ["record_transform=, or transform=; reading needs no workers"]
        raise InvalidInputError(f"workers={workers} have nothing to call", hints=hints)
    return stages


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
    size = max(1, _BLOCK_BYTES // max(1, nbytes)) if block is None else integer("block", block, 1)
    return [order, size, integer("window", _WINDOW_BLOCKS if window is None else window, 1)]
