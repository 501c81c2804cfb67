"""A loader as the parts that a torch ``DataLoader`` is made of: what accelerate and transformers take apart to skip batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInputError

if TYPE_CHECKING:
    from ._epoch import Epoch
    from ._loader import Loader
    from ._ranks import Step

__all__ = ["Batches", "Rows", "Source"]


class Rows(list[int]):
    """The numbers of a batch's records, and which batch of a loader it is."""

    def __init__(self, numbers: list[int], epoch: int, begin: int) -> None:
        super().__init__(numbers)
        self.place = epoch, begin


class Batches:
    """The batches of a loader's next epoch as lists of record numbers, in place of a ``torch.utils.data.BatchSampler``. They
    are this rank's alone.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self.batch_size, self.drop_last = loader.batch_size, loader.drop_last

    def __len__(self) -> int:
        return len(self._loader)

    def set_epoch(self, epoch: int) -> None:
        """As :meth:`forebay.data.Loader.set_epoch`."""
        self._loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[Rows]:
        loader = self._loader
        loader._decide()
        epoch, begin = loader._next_place()
        step: Step | None
        while (step := loader._share.at(begin)) is not None:
            yield Rows(memoryview(loader._rows(epoch, step)).cast("q").tolist(), epoch, begin)
            begin = step.end


class Source:
    """A loader's records as a data set. What :class:`Batches` names is a batch as the loader hands it out: read ahead,
    transformed, and counted in its state.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._running: Epoch | None = None

    def __len__(self) -> int:
        return len(self._loader.records)

    def __getitem__(self, row: Any) -> Any:
        return self._loader.records[row]

    def __getitems__(self, rows: list[int]) -> Any:
        loader = self._loader
        if not isinstance(rows, Rows):
            return loader.records.__getitems__(rows)
        running = self._running
        is_next = running is not None and loader._current is not None and loader._current() is running
        if running is None or not is_next or running.number != rows.place[0]:
            running = self._running = loader._begin(*rows.place)
        elif rows.place[1] != loader._position:
            # A sampler around the loader's own takes some of the batches, or worker processes do.
            raise InvalidInputError(
                "batches of the loader were left out: each rank, and no worker process, reads all of its own",
                hints=["give the loader itself: accelerator.prepare() leaves it as it is", "rank=0, world=1"],
            )
        return next(running)
