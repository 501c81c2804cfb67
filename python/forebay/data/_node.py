"""The loader as a node of torchdata."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..errors import MissingPackageError

if TYPE_CHECKING:
    from ._loader import Loader

__all__ = ["node_of"]

#: In a node's state, beside the loader's: the epoch before was handed out whole, and the node has nothing more before it is reset.
_ENDED = "ended"


def node_of(loader: Loader) -> Any:
    """A ``torchdata.nodes.BaseNode`` of a loader's batches.

    Raises:
        MissingPackageError: torchdata is not installed.
    """
    try:
        from torchdata.nodes import BaseNode
    except ImportError:
        raise MissingPackageError("torchdata is not installed", hints=["pip install torchdata"]) from None

    class LoaderNode(BaseNode):  # type: ignore[misc]
        """Batches of a :class:`~forebay.data.Loader`. It ends with an epoch; ``reset()``, or a loop over it behind the end,
        begins the next one.
        """

        def __init__(self) -> None:
            super().__init__()
            self._batches: Iterator[Any] = iter(())
            # The end of an epoch was met, and told by this node.
            self._is_at_end = self._was_told = False

        def __iter__(self) -> Any:
            if self._was_told:
                self.reset()
            return self

        def reset(self, initial_state: dict[str, Any] | None = None) -> None:
            """Begins an epoch, or goes on from a state."""
            super().reset(initial_state)
            if initial_state is not None:
                loader.load_state_dict(initial_state)
            self._is_at_end, self._was_told = bool(initial_state and initial_state.get(_ENDED)), False
            self._batches = iter(()) if self._is_at_end else iter(loader)

        def next(self) -> Any:
            """The next batch."""
            try:
                return next(self._batches)
            except StopIteration:
                self._is_at_end = self._was_told = True
                raise

        def get_state(self) -> dict[str, Any]:
            """The loader's state."""
            return {**loader.state_dict(), _ENDED: self._is_at_end}

    return LoaderNode()
