"""The loader as a node of torchdata."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError

if TYPE_CHECKING:
    from ._loader import Loader

__all__ = ["node_of"]


def node_of(loader: Loader) -> Any:
    """A ``torchdata.nodes.BaseNode`` of a loader's batches.

    Raises:
        UnsupportedError: torchdata is not installed.
    """
    try:
        from torchdata.nodes import BaseNode
    except ImportError:
        raise UnsupportedError("torchdata is not installed", hints=["pip install torchdata"]) from None

    class LoaderNode(BaseNode):  # type: ignore[misc]
        """Batches of a :class:`~forebay.data.Loader`."""

        def __init__(self) -> None:
            super().__init__()
            self._batches: Iterator[Any] = iter(())

        def reset(self, initial_state: dict[str, Any] | None = None) -> None:
            """Begins an epoch, or goes on from a state."""
            super().reset(initial_state)
            if initial_state is not None:
                loader.load_state_dict(initial_state)
            self._batches = iter(loader)

        def next(self) -> Any:
            """The next batch."""
            return next(self._batches)

        def get_state(self) -> dict[str, Any]:
            """The loader's state."""
            return loader.state_dict()

    return LoaderNode()
