"""Which rank a loader reads for."""

from __future__ import annotations

import operator
import os
import sys
import warnings
from typing import Any, NamedTuple

from ..errors import InvalidInputError

__all__ = ["MAX_NUMBER", "Ranks", "Share", "Step", "integer"]

#: The native half takes signed 64-bit integers.
MAX_NUMBER = (1 << 63) - 1


def integer(what: str, given: Any, least: int, most: int = MAX_NUMBER) -> int:
    """A whole number that a program gave.

    Raises:
        InvalidInputError: it is none, or out of bounds.
    """
    wrong = InvalidInputError(f"{what} cannot be {given!r}", hints=[f"a number from {least} to {most}"])
    try:
        found = operator.index(given)
    except TypeError:
        raise wrong from None
    if isinstance(given, bool) or not least <= found <= most:
        raise wrong
    return found


class Ranks:
    """A rank and the number of ranks: as given, else as they are found when they are first asked for. Loaders are made before
    ``init_process_group`` as well as behind it.
    """

    def __init__(self, rank: int | None, world: int | None) -> None:
        if (rank is None) != (world is None):
            raise InvalidInputError("rank and world belong together", hints=["give both, or none"])
        self._is_given = world is not None
        #: (rank, number of ranks), once they are decided.
        self.known: tuple[int, int] | None = None
        if world is not None:
            world = integer("world", world, 1)
            self.known = integer("rank", rank, 0, world - 1), world

    def decide(self) -> tuple[int, int]:
        """The rank and the number of ranks.

        Raises:
            InvalidInputError: they changed: the counts, and the samples read, were for the old ones; or RANK and
                WORLD_SIZE of the environment are no rank, and there is no process group.
        """
        if self._is_given:
            assert self.known is not None  # since it was made
            return self.known
        group = _of_group()
        told = _of_environment(has_group=group is not None)
        found = group or told or (0, 1)
        if self.known is None:
            self.known = found
            _warn(group, told)
        elif found != self.known:
            before = f"rank {self.known[0]} of {self.known[1]}"
            raise InvalidInputError(
                f"the loader was asked for {before}, and this is rank {found[0]} of {found[1]} now",
                hints=[
                    "ask for len(), and begin loops, behind torch.distributed.init_process_group",
                    "rank=…, world=… says it from the beginning",
                ],
            )
        return found


def _of_group() -> tuple[int, int] | None:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank()), int(distributed.get_world_size())


def _of_environment(has_group: bool) -> tuple[int, int] | None:
    """RANK and WORLD_SIZE, as torchrun and similar launchers set them. Impossible values are an error where no group decides: each
    process would read everything.
    """
    given = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if given == ("", ""):
        return None
    try:
        rank, world = map(int, given)
    except ValueError:
        rank, world = 0, 0
    if 0 <= rank < world:
        return rank, world
    if has_group:
        return None
    told = " and ".join(
        f"{name}={text}" if text else f"no {name}" for name, text in zip(("RANK", "WORLD_SIZE"), given, strict=True)
    )
    raise InvalidInputError(
        f"the environment has {told}: this says no rank",
        hints=[
            "start it by torchrun, which sets both: RANK from 0 to WORLD_SIZE-1",
            "unset RANK WORLD_SIZE, if this process is the only one",
            "rank=…, world=… of the loader says it, or torch.distributed.init_process_group before",
        ],
    )


def _warn(group: tuple[int, int] | None, told: tuple[int, int] | None) -> None:
    if told is None or told == (group or (0, 1)):
        return
    said = f"RANK={told[0]} and WORLD_SIZE={told[1]}"
    if group is None:
        text = f"torch.distributed is not initialised: {said} of the environment say which records this process reads"
    else:
        text = f"{said} of the environment say otherwise than torch.distributed, which is believed: {group[0]} of {group[1]}"
    warnings.warn(f"{text} (rank=…, world=… says it, too)", stacklevel=5)


class Step(NamedTuple):
    """A rank's records in one step of all ranks.

    Attributes:
        places: (first, behind the last) in the order, one behind the other in the batch.
        end: the place behind the step.
        repeated: how many records at the batch's end are those of another rank.
    """

    places: list[tuple[int, int]]
    end: int
    repeated: int


class Share:
    """The places of an order that are a rank's, batch by batch.

    Args:
        total: records.
        batch_size: of them in a batch of one rank.
        ranks: (rank, number of ranks).
        drop_last: leaves out what does not fill a batch of each rank.
    """

    def __init__(self, total: int, batch_size: int, ranks: tuple[int, int], drop_last: bool) -> None:
        self.total, self._size, self._drop_last = total, batch_size, drop_last
        self._rank, self._world = ranks
        self._step = batch_size * self._world

    def __len__(self) -> int:
        whole, rest = divmod(self.total, self._step)
        return whole + (rest > 0 and not self._drop_last)

    def is_end(self, begin: int) -> bool:
        """Whether nothing comes from a place on."""
        return begin >= self.total or (self._drop_last and begin + self._step > self.total)

    def at(self, begin: int) -> Step | None:
        """The step that begins at a place; ``None`` at the end."""
        if self.is_end(begin):
            return None
        end = begin + self._step
        if end <= self.total:
            low = begin + self._rank * self._size
            return Step([(low, low + self._size)], end, 0)
        # A rest that does not fill a batch of each rank is split evenly: the first ranks have one record more, and the
        # others the next rank's first, so that all have equally many.
        left = self.total - begin
        each, longer = divmod(left, self._world)
        low = self._rank * each + min(self._rank, longer)
        count = each + (self._rank < longer)
        places = [(begin + low, begin + low + count)] if count else []
        repeated = int(longer > 0 and self._rank >= longer)
        if repeated:
            place = begin + (low + count) % left
            places.append((place, place + 1))
        return Step(places, self.total, repeated)
