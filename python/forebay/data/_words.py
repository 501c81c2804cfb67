"""Words of torch's ``DataLoader``, and what a loader has in their place."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import InvalidInputError

__all__ = ["UnknownWordError", "refuse"]


class UnknownWordError(InvalidInputError, TypeError):
    """A word that there is not; also a :class:`TypeError`."""


_NO_WORKERS = "leave it out: there are no worker processes, forebay's own threads read ahead (prefetch=)"
_OWN_ORDER = 'records.select(numbers) with order="sequential" reads them in an order of yours'
_HINTS = {
    "dataset": "data.Loader(records, batch_size)",
    "num_workers": f"{_NO_WORKERS}; workers= is for threads that call record_transform=",
    "collate_fn": "transform= is called with each batch, record_transform= with each record before",
    "pin_memory": "leave it out: batches come to device= without a stop in pinned memory of yours",
    "pin_memory_device": "device=",
    "sampler": _OWN_ORDER,
    "batch_sampler": f"{_OWN_ORDER}; batch_size= makes the batches",
    "generator": "seed=",
    "prefetch_factor": "prefetch=",
    "persistent_workers": _NO_WORKERS,
    "worker_init_fn": _NO_WORKERS,
    "multiprocessing_context": _NO_WORKERS,
    "timeout": _NO_WORKERS,
    "in_order": "leave it out: batches come in order",
}
#: Of these, the hint is to use the source with torch's own.
_ONLY_TORCHS = ("sampler", "batch_sampler", "collate_fn", "worker_init_fn")


def refuse(words: Mapping[str, object]) -> None:
    """Raises for a word of torch's ``DataLoader``."""
    for word, given in words.items():
        if word == "shuffle":
            hints = ['order="random" (the default)' if given else 'order="sequential"']
        elif word in _HINTS:
            hints = [_HINTS[word]]
        else:
            continue
        if word in _ONLY_TORCHS:
            hints.append(f"torch.utils.data.DataLoader(records, {word}=…) takes all sources, too")
        raise UnknownWordError(f"{word}= is a word of torch's DataLoader, not of this loader", hints=hints)
