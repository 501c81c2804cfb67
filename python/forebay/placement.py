"""Which device a tensor goes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .errors import InvalidInputError

__all__ = ["CPU", "META", "Device", "Placement", "parse_device", "place"]


class Device(NamedTuple):
    """A device by its kind (``"cpu"``, ``"cuda"`` or ``"meta"``) and its number (0 unless it is a GPU)."""

    kind: str
    number: int = 0

    @property
    def gpu(self) -> int | None:
        """The GPU's number as the CUDA driver counts, ``None`` for host memory."""
        return self.number if self.kind == "cuda" else None

    def __str__(self) -> str:
        return f"cuda:{self.number}" if self.kind == "cuda" else self.kind


CPU = Device("cpu")
#: torch's device for tensors that have a shape and no data.
META = Device("meta")

#: Tells for a tensor's name which device it goes to.
Placement = Callable[[str], Device]


def parse_device(device: object, current: Callable[[], int] = lambda: 0) -> Device:
    """The device that ``"cpu"``, ``"cuda"``, ``"cuda:1"``, a GPU's number or a framework's device object names.

    Args:
        device: what the user gave. Objects of frameworks count by what they print (``torch.device``), or by their
            ``platform`` and ``id`` (jax), or by their ``id`` alone (cupy).
        current: gives the number of the GPU that ``"cuda"`` without a number means.

    Raises:
        InvalidInputError: nothing that forebay knows.
    """
    if isinstance(device, Device):
        return device
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        return Device("cuda", device)
    text = (device if isinstance(device, str) else _text_of(device)).lower()
    if text in ("cpu", "host", "cpu:0"):
        return CPU
    if text == "meta":
        return META
    kind, colon, number = text.partition(":")
    if kind in ("cuda", "gpu") and (number.isdecimal() if colon else True):
        return Device("cuda", int(number) if colon else current())
    shown = device if isinstance(device, str) else text
    raise InvalidInputError(f"unknown device: {shown!r}", hints=['use "cpu", "cuda", "cuda:1" or a GPU\'s number'])


def _text_of(device: Any) -> str:
    platform = getattr(device, "platform", None)
    if isinstance(platform, str):
        return "cpu" if platform == "cpu" else f"{'cuda' if platform == 'gpu' else platform}:{device.id}"
    if type(device).__module__.split(".")[0] == "cupy" and isinstance(getattr(device, "id", None), int):
        return f"cuda:{device.id}"
    return str(device)


def place(device: object, current: Callable[[], int] = lambda: 0) -> Placement:
    """Turns a device, or a mapping from the beginnings of names to devices, into a placement.

    In a mapping the longest beginning that a name has wins; ``""`` stands for all others.

    >>> where = place({"layer.0.": "cuda:1", "": "cpu"})
    >>> str(where("layer.0.weight")), str(where("head.weight"))
    ('cuda:1', 'cpu')

    Raises:
        InvalidInputError: an unknown device; when it is called, a name that no entry of the mapping is a beginning of.
    """
    if not isinstance(device, Mapping):
        single = parse_device(device, current)
        return lambda name: single
    entries = {_prefix(prefix): parse_device(given, current) for prefix, given in device.items()}
    lengths = sorted({len(prefix) for prefix in entries}, reverse=True)

    def by_prefix(name: str) -> Device:
        for length in lengths:
            found = entries.get(name[:length])
            if found is not None:
                return found
        raise InvalidInputError(
            "the placement has no device for a tensor", hints=['add an entry for all others: "": "cpu"'], tensor=name
        )

    return by_prefix


def _prefix(prefix: object) -> str:
    if not isinstance(prefix, str):
        raise InvalidInputError("the beginnings of names in a placement are strings", got=type(prefix).__name__)
    return prefix
