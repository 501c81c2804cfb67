"""Batches of records of different lengths."""

from __future__ import annotations

import importlib
import threading
from array import array as packed_array
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, Self, SupportsIndex, overload

from .. import _forebay
from ..errors import InvalidInputError, OutOfMemoryError, UnsupportedError
from ..slices import IndexOutOfBoundsError
from ._memory import is_beyond_memory
from ._ranks import integer
from ._rows import listed_rows, not_row_numbers, one_row

__all__ = ["Jagged"]


class Jagged:
    """Records of different lengths, one behind the other: a sequence of them. ``len``, loops, numbers and slices are of
    records; a record is a view where the framework has views, a slice or a list of numbers gives a :class:`Jagged`.

    torch's and jax's tree functions take it for its two arrays, ``default_collate`` joins several.

    ``in``, :meth:`index` and :meth:`count` compare the elements of records, on the host.
    """

    # A sequence, but no `collections.abc.Sequence`: torch's DataLoader would take it apart into a list of its records.
    __slots__ = ("__weakref__", "_offsets", "_values")

    def __init__(self, values: Any, offsets: Any) -> None:
        self._values, self._offsets = values, offsets
        _make_known(_home(values))

    @property
    def values(self) -> Any:
        """All elements of all records."""
        return self._values

    @property
    def offsets(self) -> Any:
        """Where each record begins in ``values``, and the end of the last: one more number than records."""
        return self._offsets

    def __len__(self) -> int:
        # Not looked at before: tree functions also put together what are no arrays.
        ends = len(self.offsets)
        if not ends:
            raise InvalidInputError("no offsets: not even where the first record begins", hints=["[0] for no records"])
        return ends - 1

    def __iter__(self) -> Iterator[Any]:
        cut = _cutter(self.values)
        # All at once: of a GPU's each one would be waited for.
        return (cut(low, high) for low, high in pairwise(_listed(self.offsets)))

    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...

    @overload
    def __getitem__(self, index: slice | Sequence[int]) -> Self: ...

    def __getitem__(self, index: Any) -> Any:
        """A record by its number, or some of them by a slice, a list or an array of numbers.

        Raises:
            IndexError: there is no such record.
            NotRecordNumbersError: a :class:`TypeError`.
        """
        if isinstance(index, slice):
            return self._some(range(*index.indices(len(self))))
        number = one_row(index)
        if number is not None:
            row = self._place(number)
            ends = self.offsets
            low, high = _listed(ends)[row : row + 2] if _is_ours(ends) else _listed(ends[row : row + 2])
            return _cutter(self.values)(low, high)
        if isinstance(index, bytes):
            raise not_row_numbers("bytes")
        return self._some([self._place(row) for row in listed_rows(index)])

    def _place(self, number: int) -> int:
        count = len(self)
        if not -count <= number < count:
            raise IndexOutOfBoundsError(f"no record {number}: there are {count}")
        return number % count

    def _some(self, rows: range | list[int]) -> Self:
        """Some of the records, one behind the other: where they follow each other a view, as records are."""
        ends = _listed(self.offsets)
        cut = _cutter(self.values)
        if isinstance(rows, range) and rows.step == 1:
            low, high = rows.start, max(rows.start, rows.stop)
            values = cut(ends[low], ends[high])
            kept = [end - ends[low] for end in ends[low : high + 1]]
        else:
            values = _joined([cut(ends[row], ends[row + 1]) for row in rows]) if rows else cut(0, 0)
            kept = [0, *accumulate(ends[row + 1] - ends[row] for row in rows)]
        return type(self)(values, _like(self.offsets, kept))

    def record(self, number: SupportsIndex) -> Any:
        """One record: ``batch[number]``. Negative numbers count from the last one.

        Raises:
            IndexError: there is no such record.
        """
        if not hasattr(number, "__index__"):
            raise not_row_numbers(type(number).__name__)
        return self[number]

    def __contains__(self, record: Any) -> bool:
        return next(self._alike(record, range(len(self))), None) is not None

    def index(self, record: Any, start: int = 0, stop: int | None = None) -> int:
        """The number of the first record with these elements, from ``start`` on and before ``stop``.

        Raises:
            ValueError: there is none.
        """
        found = next(self._alike(record, range(*slice(start, stop).indices(len(self)))), None)
        if found is None:
            raise ValueError("there is no such record")
        return found

    def count(self, record: Any) -> int:
        """How many records have these elements."""
        return sum(1 for _ in self._alike(record, range(len(self))))

    def _alike(self, record: Any, rows: range) -> Iterator[int]:
        """The numbers of the records that have the elements of an array or a list."""
        if not hasattr(record, "__len__") or getattr(record, "shape", None) == ():
            return
        ends, size, wanted = _listed(self.offsets), len(record), _content(record)
        cut = _cutter(self.values)
        for row in rows:
            low, high = ends[row], ends[row + 1]
            if high - low == size and _content(cut(low, high)) == wanted:
                yield row

    def to(self, *where: Any, **words: Any) -> Self:
        """The records elsewhere, or with another dtype, as ``torch.Tensor.to`` does it. torch only."""
        values = self._torchs("to").to(*where, **words)
        offsets = self.offsets.to(values.device, non_blocking=bool(words.get("non_blocking")))
        return type(self)(values, offsets)

    def pin_memory(self) -> Self:
        """The records in pinned memory of the host, as torch's ``DataLoader`` asks for it. torch only."""
        return type(self)(self._torchs("pin_memory").pin_memory(), self.offsets.pin_memory())

    def nested(self) -> Any:
        """torch's nested tensor (layout jagged) over the same memory."""
        import torch

        return torch.nested.nested_tensor_from_jagged(self._torchs("nested"), self.offsets)

    def _torchs(self, asked: str) -> Any:
        if _home(self.values) != "torch":
            raise InvalidInputError(f"{asked}() is of torch's tensors", hints=['framework="torch"'])
        return self.values

    def padded(self, value: Any = 0, length: int | None = None) -> Any:
        """The records as rows of one array, filled up with ``value`` to ``length`` (by default the longest). Not for the
        framework ``"native"``; jax's come as numpy's.

        Raises:
            InvalidInputError: the records are whole numbers of a type that does not have ``value``.
            UnsupportedError: the framework has no such function.
            OutOfMemoryError: there is no memory for them.
        """
        home = _home(self.values)
        if home not in ("torch", "numpy", "jax"):
            raise UnsupportedError("padded() is of torch's and numpy's arrays", hints=['framework="torch"'])
        _check_filler(self.values.dtype, home, value)
        sizes = self.offsets[1:] - self.offsets[:-1]
        longest = (int(sizes.max()) if len(sizes) else 0) if length is None else integer("length", length, 0)
        # Beside the records, the place of each of their elements.
        if is_beyond_memory(len(sizes) * longest * 8):
            hints = ["length= cuts longer records", "nested() takes no memory"]
            raise OutOfMemoryError("no memory for records of one length", hints=hints, length=longest)
        out, columns = _filled((len(sizes), longest, *self.values.shape[1:]), self.values, home, value)
        places = self.offsets[:-1, None] + columns
        present = columns < sizes[:, None]
        out[present] = self.values[places[present]]
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        if _is_ours(self.values):
            return _received, (type(self), *(_sent(part) for part in (self.values, self.offsets)))
        return type(self), (self.values, self.offsets)

    def __repr__(self) -> str:
        return f"Jagged(values={self.values!r}, offsets={self.offsets!r})"


# ---- arrays of all frameworks ----------------------------------------------------------------------------------------


def _home(array: Any) -> str:
    """The package that an array is of."""
    home = type(array).__module__.split(".")[0]
    return "jax" if home == "jaxlib" else home


def _is_ours(array: Any) -> bool:
    return isinstance(array, _forebay.Array)


def _listed(offsets: Any) -> list[int]:
    if _is_ours(offsets):
        return memoryview(offsets.tobytes()).cast("q").tolist()
    return [int(end) for end in offsets.tolist()]


def _like(offsets: Any, ends: list[int]) -> Any:
    """Other offsets, where these are."""
    if _is_ours(offsets):
        return _made("I64", (len(ends),), offsets.device, packed_array("q", ends).tobytes())
    if _home(offsets) == "torch":
        return offsets.new_tensor(ends)
    if _home(offsets) == "jax":
        import jax

        return jax.device_put(jax.numpy.asarray(ends, offsets.dtype), next(iter(offsets.devices())))
    # On the device of the offsets that are there: cupy's, too.
    made = offsets[:1].repeat(len(ends))
    made[:] = importlib.import_module(_home(offsets)).asarray(ends, offsets.dtype)
    return made


def _made(dtype: str, shape: tuple[int, ...], device: str, content: bytes) -> _forebay.Array:
    made = _forebay.empty(shape, dtype, device)
    if content:
        made.fill_from(content)
    return made


def _sent(array: _forebay.Array) -> tuple[Any, ...]:
    """The arguments of :func:`_made`, also in another process."""
    return array.dtype, array.shape, array.device, array.tobytes()


def _received(kind: type[Jagged], values: tuple[Any, ...], offsets: tuple[Any, ...]) -> Jagged:
    return kind(_made(*values), _made(*offsets))


def _content(array: Any) -> Any:
    """A key that is equal for arrays with the same elements, in any memory."""
    if _is_ours(array):
        return array.dtype, array.shape, array.tobytes()
    if not hasattr(array, "tolist"):
        return list(array)
    return array.tolist()


def _check_filler(dtype: Any, home: str, value: Any) -> None:
    """Refuses what an array of whole numbers would have as another number."""
    package = importlib.import_module("torch" if home == "torch" else "numpy")
    if home == "torch":
        is_whole = not (dtype.is_floating_point or dtype.is_complex)
        name = str(dtype).removeprefix("torch.")
    else:
        is_whole, name = dtype.kind in "iub", str(dtype)
    if not is_whole:
        return
    low, high = (0, 1) if name == "bool" else (package.iinfo(dtype).min, package.iinfo(dtype).max)
    try:
        fits = int(value) == value and low <= value <= high
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        hints = [f"a whole number from {low} to {high}", 'or other records: batch.to(torch.float32), dtype="float32"']
        raise InvalidInputError(f"{name} has no value {value!r} to fill up with", hints=hints)


def _filled(shape: tuple[int, ...], values: Any, home: str, value: Any) -> tuple[Any, Any]:
    """An array full of one value, and the numbers of its columns, where the values are."""
    if home == "torch":
        import torch

        full = torch.full(shape, value, dtype=values.dtype, device=values.device)
        return full, torch.arange(shape[1], device=values.device)
    import numpy

    return numpy.full(shape, value, dtype=values.dtype), numpy.arange(shape[1])


def _cutter(values: Any) -> Callable[[int, int], Any]:
    """The function that returns a range of elements."""
    if not _is_ours(values):
        return lambda low, high: values[low:high]
    # forebay's own arrays have no views: a record is a copy.
    content, size = values.tobytes(), values.nbytes // max(1, len(values))
    return lambda low, high: _made(
        values.dtype, (high - low, *values.shape[1:]), values.device, content[low * size : high * size]
    )


def _joined(parts: list[Any]) -> Any:
    first = parts[0]
    if _is_ours(first):
        shape = (sum(part.shape[0] for part in parts), *first.shape[1:])
        return _made(first.dtype, shape, first.device, b"".join(part.tobytes() for part in parts))
    if _home(first) == "torch":
        return importlib.import_module("torch").cat(parts)
    home = _home(first)
    return importlib.import_module("jax.numpy" if home == "jax" else home).concatenate(parts)


# ---- its frameworks' forms
# ---------------------------------------------------------------------------------------------

_known: set[str] = set()
_lock = threading.Lock()


def _make_known(home: str) -> None:
    """Registers the class with the framework whose arrays it holds, once."""
    if home in _known or home not in _REGISTRIES:
        return
    with _lock:
        if home not in _known:
            _REGISTRIES[home]()
            _known.add(home)


def _register_torch() -> None:
    from torch.utils import _pytree
    from torch.utils.data._utils import collate

    _pytree.register_pytree_node(
        Jagged,
        lambda jagged: ([jagged.values, jagged.offsets], None),
        lambda parts, _: Jagged(*parts),
        serialized_type_name="forebay.data.Jagged",
    )
    collate.default_collate_fn_map[Jagged] = _collated


def _collated(batch: list[Jagged], *, collate_fn_map: Any = None) -> Jagged:
    """All records of several batches, for torch's ``default_collate``."""
    lengths = [high - low for jagged in batch for low, high in pairwise(_listed(jagged.offsets))]
    ends = [0, *accumulate(lengths)]
    return Jagged(_joined([jagged.values for jagged in batch]), _like(batch[0].offsets, ends))


def _register_jax() -> None:
    import jax

    jax.tree_util.register_pytree_node(
        Jagged, lambda jagged: ((jagged.values, jagged.offsets), None), lambda _, parts: Jagged(*parts)
    )


_REGISTRIES = {"torch": _register_torch, "jax": _register_jax}
