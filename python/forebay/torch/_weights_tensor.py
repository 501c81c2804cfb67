"""A tensor whose bytes stay in its file until they are used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, cast

import torch

from .._paths import Held
from ..errors import InvalidInputError
from ..frameworks.torch import no_memory
from ..slices import is_simple
from . import _weights_calls as calls
from ._weights_pieces import compact, new_like, takes_bytes
from ._weights_reads import Reads, Stored

__all__ = ["Weight", "is_saved"]

_CPU = torch.device("cpu")
_META = torch.device("meta")
_READ_HINT = "read it first: tensor.clone(), or tensor.to(device)"
#: Its own functions are not asked about within this.
_plainly = torch._C.DisableTorchFunctionSubclass


class Weight(torch.Tensor):
    """A tensor of a checkpoint that is read when, where and as far as it is used. Made by :func:`forebay.torch.weights`.

    Views (slices, ``narrow``, ``chunk``, ``view``, ``transpose``, …) are of the same kind and cost nothing.
    ``destination.copy_(tensor)`` and ``destination[…] = tensor`` read straight into the destination. ``to``, ``cuda``,
    ``cpu`` and ``clone`` read on the device that they name. Any other operation reads the tensor first, and
    :attr:`Weights.stats <forebay.torch.Weights.stats>` counts it. It is a tensor of the host (``device`` is ``cpu``), and is never
    written: operations in place are errors. Its pickles name the file: taking one out raises ``BusyError`` where another file has the name by now.

    Attributes:
        path: of its file.
        offset: bytes from the beginning of the file to the first element.
        key: the name of the tensor in the file that it is, or is a part of.
        stored_type: that tensor's type as the file names it: ``"BF16"``, GGUF's ``"Q4_K"``.
        stored_shape: that tensor's shape in elements. Of a quantised tensor of GGUF the last dimension of ``shape`` counts bytes.
    """

    #: See :func:`forebay.frameworks.torch.is_unread`.
    _is_unread = True
    _stored: Stored
    _plain: torch.Tensor
    _reads: Reads

    @staticmethod
    def _make(stored: Stored, plain: torch.Tensor, reads: Reads) -> Weight:
        """The part of a tensor that has the shape, strides and offset of ``plain``, a tensor on the device meta."""
        made: Weight = torch.Tensor._make_subclass(Weight, plain)
        made._stored, made._plain, made._reads = stored, plain, reads
        return made

    @property
    def path(self) -> str:
        """The path of its file."""
        return self._stored.held.file.path

    @property
    def offset(self) -> int:
        """Bytes from the beginning of the file to its first element. The others follow by its strides."""
        return self._stored.begin + int(self._plain.storage_offset()) * self._plain.element_size()

    @property
    def key(self) -> str:
        """The name of the tensor in the file that it is, or is a part of."""
        return self._stored.name

    @property
    def stored_type(self) -> str:
        """The type, as the file names it, of the tensor that it is or is a part of."""
        return self._stored.kind[0]

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape, in elements, of the tensor in the file that it is or is a part of."""
        return self._stored.kind[1]

    def get_shape(self) -> list[int]:
        """Its shape, as slices of safetensors tell it."""
        return list(self._plain.shape)

    def get_dtype(self) -> str:
        """Its dtype as safetensors names it: ``"F32"``, ``"BF16"``, …"""
        from ..frameworks.torch import FRAMEWORK

        return FRAMEWORK.dtype_name(self._plain.dtype) or str(self._plain.dtype)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        plain = self._plain
        return f"Weight({self.key!r}, shape={tuple(plain.shape)}, dtype={plain.dtype}, {self.path}:{self.offset})"

    def __hash__(self) -> int:
        return id(self)

    def __deepcopy__(self, memo: dict[int, object]) -> Weight:
        # Nobody can write it.
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        if is_saved(sys._getframe(1)):
            made: Any = self._read("save", _CPU)
            return made.__reduce_ex__(protocol)
        plain, stored = self._plain, self._stored
        with _plainly():
            room = plain.untyped_storage().nbytes()
            form = (plain.dtype, tuple(plain.shape), plain.stride(), plain.storage_offset(), room)
        return _again, (stored.held, stored.name, stored.begin, stored.kind, form, self._reads)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        words = kwargs or {}
        with _plainly():
            if func in calls.ASKS:
                return func(*_replaced(args, _plain_of), **_replaced(words, _plain_of))
            answer = _ANSWERS.get(func)
            if answer is not None:
                return answer(func, args, words)
            return _run(func, args, words)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Operators that native code calls, for which the tensor is on the device meta."""
        words = dict(kwargs or {})
        if words.get("device") == _META:
            words["device"] = _CPU
        with _plainly():
            return _run(func, args, words)

    def _read(
        self,
        operation: str,
        device: torch.device,
        *,
        kind: str = "whole",
        in_order: bool = False,
        is_cast: bool = False,
    ) -> torch.Tensor:
        """Reads it for an operation, into a tensor of its own."""
        made = self._reads.read(self._stored, self._plain, device, in_order)
        self._reads.count(kind, operation, is_cast)
        return made


def is_saved(caller: FrameType) -> bool:
    """Whether a pickle is made by ``torch.save``: it keeps values, also where the file is not."""
    return caller.f_globals.get("__name__") == "torch.serialization"


def _again(
    held: Held, name: str, begin: int, kind: tuple[str, tuple[int, ...]], form: tuple[Any, ...], reads: Reads
) -> Weight:
    """A tensor from its pickle."""
    dtype, shape, strides, offset, room = form
    whole = torch.UntypedStorage(room, device="meta")  # type: ignore[no-untyped-call]
    plain = torch.empty(0, dtype=dtype, device="meta").set_(whole, offset, shape, strides)
    return Weight._make(Stored(held, name, begin, kind), plain, reads)


def _plain_of(weight: Weight) -> torch.Tensor:
    return weight._plain


def _replaced(given: Any, by: Callable[[Weight], Any]) -> Any:
    """Arguments with something else in place of each tensor of ours."""
    if isinstance(given, Weight):
        return by(given)
    if isinstance(given, dict):
        return {name: _replaced(one, by) for name, one in given.items()}
    if type(given) in (list, tuple):
        return type(given)(_replaced(one, by) for one in given)
    return given


def _has_weight(given: Any) -> bool:
    return isinstance(given, Weight) or (isinstance(given, (list, tuple)) and any(map(_has_weight, given)))


def _run(func: Any, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
    """An operation that needs the bytes."""
    name = calls.name_of(func)
    if _has_weight(words.get("out")) or (calls.in_place(func, words) and args and _has_weight(args[0])):
        raise InvalidInputError(
            f"a tensor that is still in its file is never written: {name}", hints=[_READ_HINT], **_about(args, words)
        )

    def read(weight: Weight) -> torch.Tensor:
        return weight._read(name, _CPU)

    return func(*_replaced(args, read), **_replaced(words, read))


def _about(args: tuple[Any, ...], words: dict[str, Any]) -> dict[str, Any]:
    """The first tensor of ours among arguments, for an error."""
    found: list[Weight] = []
    _replaced((args, words), found.append)
    return {"tensor": found[0].key, "path": found[0].path} if found else {}


def _refuse(func: Any, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
    raise InvalidInputError(
        f"the tensor has no memory, its bytes are still in the file: {calls.name_of(func)}",
        hints=[_READ_HINT],
        **_about(args, words),
    )


def _view(func: Any, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
    """Moves offset and strides; reads where no view has the elements."""
    weight = args[0] if args else None
    if not isinstance(weight, Weight):
        return _run(func, args, words)
    plain = weight._plain
    if func == _GETITEM and not _is_plain_index(args[1]):
        return _run(func, args, words)
    if len(args) > 1 and isinstance(args[1], Weight):
        # `tensor.view_as(other)` and its like.
        args = (weight, args[1]._plain, *args[2:])
    result = func(plain, *args[1:], **words)
    home = plain.untyped_storage()._cdata
    parts = result if isinstance(result, (tuple, list)) else (result,)
    if any(part.untyped_storage()._cdata != home for part in parts):
        if func in _CONTIGUOUS and not words and len(args) == 1:
            return weight._read("contiguous", _CPU, in_order=True)
        return _run(func, args, words)
    if any(part.is_conj() or part.is_neg() for part in parts):
        # `adjoint` of complex numbers: the file has the numbers as they were.
        return _run(func, args, words)
    if calls.name_of(func) == "as_strided":
        _refuse_outside(plain, parts[0], [*args[1:], *words.values()])
    made = [Weight._make(weight._stored, part, weight._reads) for part in parts]
    return type(result)(made) if isinstance(result, (tuple, list)) else made[0]


def _refuse_outside(plain: torch.Tensor, part: torch.Tensor, asked: list[Any]) -> None:
    """Raises InvalidInputError if a view has elements that its tensor has not: tensors on the device meta are not checked by torch."""
    room = plain.untyped_storage().nbytes()
    end = (
        part.storage_offset() + 1 + sum((size - 1) * step for size, step in zip(part.shape, part.stride(), strict=True))
    )
    # On the device meta torch replaces a negative stride by another one: the arguments are checked, too.
    numbers = [number for one in asked for number in (one if isinstance(one, (tuple, list)) else [one])]
    is_back = any(number is not None and number < 0 for number in numbers)
    if part.numel() and (is_back or end * part.element_size() > room):
        raise InvalidInputError(
            "as_strided leaves the tensor",
            hints=["take a view of the whole tensor: weights[name]"],
            shape=tuple(part.shape), strides=part.stride(), offset=part.storage_offset(),
        )  # fmt: skip


def _is_plain_index(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return all(not isinstance(part, torch.Tensor) and is_simple(part) for part in parts)


def _by_form(func: Any, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
    """What takes nothing of its first argument but shape and dtype."""
    if not args or not isinstance(args[0], Weight) or _has_weight(args[1:]):
        return _run(func, args, words)
    return func(_empty(args[0]), *args[1:], **words)


def _empty(weight: Weight) -> torch.Tensor:
    """A tensor of its shape and dtype. Memory that nobody writes is not there."""
    return new_like(weight._plain, _CPU)


def _no_grad(func: Any, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
    """``tensor.requires_grad_(False)``, which loaders do to what they get."""
    wants = (*args[1:], *words.values(), True)[0]
    return _run(func, args, words) if wants else args[0]


def _type(func: Any, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
    """Without arguments the name of a tensor's type; with them a cast."""
    return (_by_form if len(args) == 1 and not words else _run)(func, args, words)


def _copy(func: Any, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
    """``destination.copy_(tensor)``: reads straight into the destination."""
    destination, source = (*args, words.get("src", words.get("other")))[:2]
    if isinstance(destination, Weight) or not isinstance(source, Weight):
        return _run(func, args, words)
    if not destination.is_meta and not _fill(destination, source):
        device = destination.device if destination.is_cuda else _CPU
        destination.copy_(_cast(source, "copy_", device, destination.dtype))
    return destination


def _set_item(func: Any, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
    """``destination[index] = tensor``."""
    destination, index, value = args
    if not isinstance(value, Weight) or isinstance(destination, Weight) or not _is_plain_index(index):
        return _run(func, args, words)
    part, source = destination[index], cast("Any", value)
    while source.dim() > part.dim() and source._plain.shape[0] == 1:
        source = source[0]
    if part.is_meta or _fill(part, source):
        return None
    device = part.device if part.is_cuda else _CPU
    destination[index] = _cast(value, "__setitem__", device, part.dtype)
    return None


def _cast(source: Weight, name: str, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    is_cast = dtype != source._plain.dtype
    return source._read(name, device, kind="moved" if is_cast else "whole", is_cast=is_cast)


def _fill(destination: torch.Tensor, source: Weight) -> bool:
    """Reads straight into a destination, where its bytes are to be those of the file."""
    if no_memory(destination) is not None:
        return False
    source._reads.settle(destination)
    plain = source._plain
    # Elements that are repeated are read once; and torch refuses other shapes in words of its own.
    if plain.shape != destination.shape or compact(plain) is not plain or not takes_bytes(destination, plain.dtype):
        return False
    if not source._reads.fill(source._stored, plain, destination):
        return False
    if not destination.is_inference():
        torch.autograd.graph.increment_version(destination)
    return True


def _to(func: Any, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
    """``tensor.to(…)``: reads on the device that is named, and casts there."""
    weight = args[0]
    # Another tensor stands for its dtype and device.
    others = _replaced((args[1:], words), _empty)
    if not isinstance(weight, Weight):
        return func(weight, *others[0], **others[1])
    device, dtype, _, form = torch._C._nn._parse_to(*others[0], **others[1])
    return _moved(weight, calls.name_of(func), device or _CPU, dtype, form)


def _cuda(func: Any, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
    weight, device = (*args, words.get("device"))[:2]
    named = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")
    return _moved(weight, "cuda", named, None, words.get("memory_format"))


def _cpu(func: Any, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
    return _moved(args[0], "cpu", _CPU, None, words.get("memory_format"))


def _moved(weight: Weight, name: str, device: torch.device, dtype: Any, form: Any) -> torch.Tensor:
    if device.type == "meta":
        return new_like(weight._plain, device, dtype)
    is_cast = dtype not in (None, weight._plain.dtype)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    place = device if device.type == "cuda" else _CPU
    made = weight._read(name, place, kind="moved", is_cast=is_cast)
    return made.to(device=device, dtype=dtype, memory_format=form or torch.preserve_format)


def _clone(func: Any, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
    weight = args[0] if args else words["input"]
    made = weight._read("clone", _CPU, kind="moved")
    form = words.get("memory_format", torch.preserve_format)
    return made if form is torch.preserve_format else made.contiguous(memory_format=form)


def _always(value: Any) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]:
    return lambda func, args, words: value


_GETITEM: Any = torch.Tensor.__getitem__
_CONTIGUOUS = calls.both("contiguous")
_Answer = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def _answers() -> dict[Any, _Answer]:
    groups: list[tuple[Any, _Answer]] = [
        (calls.VIEWS, _view),
        (calls.LIKE, _by_form),
        (calls.REFUSED, _refuse),
        ([torch.Tensor.copy_], _copy),
        ([torch.Tensor.__setitem__], _set_item),
        ([torch.Tensor.to], _to),
        ([torch.Tensor.type], _type),
        ([torch.Tensor.requires_grad_], _no_grad),
        ([torch.Tensor.cuda], _cuda),
        ([torch.Tensor.cpu], _cpu),
        (calls.both("clone"), _clone),
        (calls.getter("device"), _always(_CPU)),
        (calls.getter("is_cpu"), _always(True)),
        (calls.getter("is_cuda", "is_meta", "is_xpu", "is_mps"), _always(False)),
        (calls.both("is_pinned", "is_shared", "_is_view"), _always(False)),
        (calls.both("get_device"), _always(-1)),
    ]
    return {function: answer for functions, answer in groups for function in functions}


_ANSWERS = _answers()
