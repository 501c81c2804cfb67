"""torch's tensors, from its own allocators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from ..errors import InvalidInputError, UnsupportedError
from ..placement import CPU, Device, parse_device
from . import Allocator, Described, NotContiguousError, _dtypes, settle

__all__ = ["FRAMEWORK", "NoMemory", "Torch", "no_memory", "not_saved", "refusal", "shape_of", "why_not_contiguous"]

# Of F4 two elements are in each byte, which torch counts as one: see `shape_of`.
_DTYPE_NAMES = _dtypes.TORCH
# Versions of torch differ in what they have.
_DTYPES: dict[str, Any] = {ours: getattr(torch, name) for ours, name in _DTYPE_NAMES.items() if hasattr(torch, name)}
_MKLDNN: Any = torch._mkldnn  # type: ignore[attr-defined]
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_NO_HOST_MEMORY = ("can't allocate memory", "not enough memory")
_NAMES: dict[Any, str] = {dtype: ours for ours, dtype in _DTYPES.items()}


class Torch:
    """torch as a :class:`~forebay.frameworks.Framework`. Each tensor it makes owns its storage."""

    name = "torch"
    array_type: type[Any] = torch.Tensor
    may_share = False
    # Thousands of tensors are asked: without a step of Python between.
    address = staticmethod(torch.Tensor.data_ptr)

    def default_device(self) -> Device:
        return Device("cuda", 0) if torch.cuda.is_available() else CPU

    def parse_device(self, device: object) -> Device:
        parsed = parse_device(device, torch.cuda.current_device if torch.cuda.is_available() else lambda: 0)
        if parsed.gpu is not None and not torch.cuda.is_available():
            raise UnsupportedError(
                "torch sees no GPU",
                hints=['device="cpu"', "python -c 'import torch; torch.cuda.init()' says why"],
                device=parsed,
            )
        return parsed

    def dtype(self, name: str) -> Any:
        return _DTYPES.get(name)

    def dtype_name(self, dtype: Any) -> str | None:
        if isinstance(dtype, str):
            return dtype if dtype in _DTYPES else _NAMES.get(getattr(torch, dtype.removeprefix("torch."), None))
        # torch.empty(1, dtype=float) means this one.
        return "F64" if dtype is float else _NAMES.get(dtype)

    def dtype_hints(self, name: str) -> list[str]:
        if name in _DTYPE_NAMES:
            return ["pip install --upgrade torch"]
        return _dtypes.hints(name)

    def reads(self, name: str) -> bool:
        return self.dtype(name) is not None

    def allocator(self, device: Device) -> Allocator:
        empty = torch.empty
        place = torch.device(str(device))

        def allocate(shape: tuple[int, ...], dtype: str) -> Any:
            shape = shape_of(shape, dtype)
            if not shape:
                return empty(shape, dtype=_DTYPES[dtype], device=place)
            # For a tuple torch tries another overload first and fails: that takes longer than the rest of the call.
            return empty(*shape, dtype=_DTYPES[dtype], device=place)

        return allocate

    def ready(self, arrays: Sequence[Any], device: Device) -> None:
        if device.kind == "cuda":
            settle(self, [device])

    def describe(self, array: Any, name: str) -> Described:
        missing = not_saved(array)
        if missing is not None:
            raise InvalidInputError(missing.reason, hints=[missing.hint], tensor=name)
        dtype = _NAMES.get(array.dtype)
        if dtype is None:
            raise UnsupportedError(
                "no file has such a dtype",
                hints=["cast it first: .to(torch.float32)"],
                tensor=name,
                dtype=array.dtype,
            )
        why = why_not_contiguous(array)
        if why is not None:
            raise NotContiguousError(why[0], hints=[why[1]], tensor=name)
        shape = stored_shape(tuple(array.shape), dtype)
        return Described(dtype, shape, array.data_ptr(), array.nbytes, self._device_of(array, name), array)

    def _device_of(self, array: Any, name: str) -> Device:
        where = array.device
        if where.type == "cuda":
            return Device("cuda", where.index)
        if where.type == "cpu":
            return CPU
        raise UnsupportedError(f"cannot save from {where}", hints=['tensor.to("cpu")'], tensor=name)

    def cast(self, array: Any, dtype: str) -> Any:
        return array.to(_DTYPES[dtype])

    def index(self, array: Any, index: Any) -> Any:
        return array[index].clone(memory_format=torch.contiguous_format)

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        return array.view(shape)

    def current_stream(self, device: Device) -> int | None:
        if device.gpu is None:
            return None
        return int(torch.cuda.current_stream(device.number).cuda_stream)

    def is_out_of_memory(self, error: BaseException) -> bool:
        if isinstance(error, torch.cuda.OutOfMemoryError):
            return True
        # The host's allocator has no error of its own, and says it in other words on each system.
        return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_HOST_MEMORY)

    def free_bytes(self, device: Device) -> int | None:
        if device.gpu is None:
            return None
        free = int(torch.cuda.mem_get_info(device.number)[0])
        unused = torch.cuda.memory_reserved(device.number) - torch.cuda.memory_allocated(device.number)
        return free + int(unused)


def shape_of(shape: tuple[int, ...], dtype: str) -> tuple[int, ...]:
    """The shape of torch's tensor for one of a file.

    Raises:
        UnsupportedError: torch has no such tensor.
    """
    if dtype != "F4":
        return shape
    if not shape or shape[-1] % 2:
        raise UnsupportedError("torch holds F4 in pairs: the last dimension has to be even", shape=shape)
    return (*shape[:-1], shape[-1] // 2)


def stored_shape(shape: tuple[int, ...], dtype: str) -> tuple[int, ...]:
    """The shape in a file of a tensor of torch: the other way round."""
    if dtype != "F4":
        return shape
    return (*shape[:-1], 2 * shape[-1]) if shape else (2,)


def is_unread(value: Any) -> bool:
    """Whether it is a tensor of :func:`forebay.torch.weights`, whose bytes are still in a file, or a mapping of these."""
    return getattr(type(value), "_is_unread", False)


class NoMemory(NamedTuple):
    """Why a tensor is no strided piece of memory, or is more than that.

    Attributes:
        reason: for an error.
        hint: what helps.
        has_data: whether there is something behind it that ``torch.save`` can write.
    """

    reason: str
    hint: str
    has_data: bool = False


def no_memory(tensor: Any) -> NoMemory | None:
    """Why a tensor's bytes cannot be read from its memory by shape and strides; ``None`` if they can. Asks nothing of a tensor
    that its kind has no answer for.
    """
    is_plain = type(tensor) in _PLAIN_TYPES
    if not is_plain and isinstance(tensor, UninitializedTensorMixin):
        return NoMemory(
            "the parameter is not made yet: its lazy module makes it in its first forward pass",
            "run the model once before",
        )
    if tensor.is_nested:
        return NoMemory("the tensor is nested", "torch.nested.to_padded_tensor(tensor, 0), or each of tensor.unbind()")
    if tensor.layout != torch.strided:
        kind = "lies in memory of oneDNN" if tensor.layout == _MKLDNN else f"is sparse ({tensor.layout})"
        return NoMemory(f"the tensor {kind}", "tensor.to_dense()")
    if tensor.is_meta:
        hint = 'model.to_empty(device="cpu") makes room for data'
        return NoMemory("the tensor is on the device meta: it has no data", hint)
    if not is_plain and hasattr(tensor, "full_tensor"):
        return NoMemory("the tensor is distributed over several processes", "tensor.full_tensor()")
    if tensor.is_quantized:
        return NoMemory("the tensor is quantized", "tensor.int_repr(), and scale and zero point beside it", True)
    return _no_storage(tensor) if tensor.numel() else None


def not_saved(tensor: Any) -> NoMemory | None:
    """Why a tensor cannot be saved by its bytes alone; ``None`` if it can."""
    missing = no_memory(tensor)
    # From torch 2.13 on dimensions have no names.
    if missing is None and hasattr(tensor, "has_names") and tensor.has_names():
        # torch.save refuses them, too: no file has the names.
        return NoMemory("the tensor's dimensions have names", "tensor.rename(None)")
    return missing


def _no_storage(tensor: Any) -> NoMemory | None:
    try:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError):
        address, size = 0, -1
    needed = _end(tensor) * tensor.itemsize
    if address and needed <= size:
        return None
    kind = type(tensor)
    if not address and isinstance(tensor, FakeTensor):
        return NoMemory(
            "the tensor is a FakeTensor: it has no data", "save tensors that were made outside of FakeTensorMode"
        )
    if hasattr(kind, "__tensor_flatten__"):
        hint = f"save the tensors in it: {kind.__name__}.__tensor_flatten__ names them"
        return NoMemory(f"the tensor has no memory of its own: {kind.__name__} wraps others", hint, True)
    if 0 <= size < needed:
        hint = "take the state while its memory is there (FSDP: model.state_dict())"
        return NoMemory("the memory of the tensor was freed: untyped_storage().resize_() did that", hint)
    hint = "save it outside of what wraps it: torch.func, torch.compile, or a class of its own"
    return NoMemory("the tensor has no memory of its own", hint)


def _end(tensor: Any) -> int:
    """Elements of its storage up to the end of a tensor that has some."""
    start = int(tensor.storage_offset())
    if tensor.is_contiguous():
        return start + int(tensor.numel())
    return start + 1 + sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride(), strict=True))


def why_not_contiguous(tensor: Any) -> tuple[str, str] | None:
    """Why the elements of a tensor with memory do not lie side by side as they are, and what helps."""
    if not tensor.is_contiguous():
        return "the tensor is not contiguous", "tensor.contiguous()"
    return _why_not_as_stored(tensor)


def _why_not_as_stored(tensor: Any) -> tuple[str, str] | None:
    if tensor.is_conj():
        return "the tensor is conjugated lazily", "tensor.resolve_conj()"
    if tensor.is_neg():
        return "the tensor is negated lazily", "tensor.resolve_neg()"
    return None


def refusal(tensor: Any, is_contiguous: bool) -> InvalidInputError | None:
    """The error for a tensor that is not memory to read into, for the native half; ``None`` if it is. `is_contiguous`: it
    has to be one piece.
    """
    missing = no_memory(tensor)
    if missing is not None:
        why: tuple[str, str] | None = (missing.reason, missing.hint)
    else:
        why = why_not_contiguous(tensor) if is_contiguous else _why_not_as_stored(tensor)
    return None if why is None else InvalidInputError(why[0], hints=[why[1]])


FRAMEWORK = Torch()
