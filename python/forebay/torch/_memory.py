"""Facts about a ``torch.Tensor``: the address of its bytes, their type, and when they are final."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch

from .. import _forebay, errors, placement
from ..frameworks import _dtypes
from ..frameworks.torch import FRAMEWORK, is_unread, not_saved

#: Types whose elements safetensors counts otherwise than PyTorch.
_STORED_AS_BYTES: Final = ("F4",)


def stored_dtype(dtype: torch.dtype) -> str | None:
    """safetensors' name for a type, None where it has none (or counts its elements differently)."""
    name = FRAMEWORK.dtype_name(dtype)
    return name if name in _dtypes.STORABLE and name not in _STORED_AS_BYTES else None


def dtype_name(dtype: torch.dtype) -> str:
    """``torch.float32`` -> "float32"."""
    return str(dtype).removeprefix("torch.")


def dtype_called(name: str) -> torch.dtype:
    """The type with this name; UnsupportedError where this PyTorch has none."""
    found = getattr(torch, name, None) if name.isidentifier() else None
    if not isinstance(found, torch.dtype):
        raise errors.UnsupportedError("this PyTorch does not have the type of a tensor", dtype=name[:40])
    return found


def place(device: Any) -> placement.Placement:
    """Where each tensor goes, by its name: a device, or a mapping from beginnings of names to devices."""
    if isinstance(device, Mapping):
        return placement.place({name: FRAMEWORK.parse_device(given) for name, given in device.items()})
    return placement.place(FRAMEWORK.parse_device(device))


def nbytes(tensor: torch.Tensor) -> int:
    """Bytes of the elements of a tensor."""
    return tensor.numel() * tensor.itemsize


def check_plain(tensor: torch.Tensor, name: str) -> None:
    """Refuses tensors that are not one strided piece of memory on the host or a GPU."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) and hasattr(tensor, "placements"):
        raise errors.UnsupportedError(
            "cannot save a tensor that is spread over processes to one file",
            hints=["torch.distributed.checkpoint.save(state, storage_writer=forebay.torch.CheckpointWriter(path))"],
            tensor=name,
        )
    missing = None if is_unread(tensor) else not_saved(tensor)
    if missing is not None:
        raise errors.UnsupportedError(missing.reason, hints=[missing.hint], tensor=name)
    if tensor.device.type not in ("cpu", "cuda"):
        raise errors.UnsupportedError(
            "cannot save a tensor of this kind of device", hints=[f"state[{name!r}].cpu()"], tensor=name,
            device=str(tensor.device),
        )  # fmt: skip


def settle(tensors: Iterable[torch.Tensor]) -> None:
    """Returns when the work queued so far on the current stream of each GPU that holds one of the tensors is done."""
    indices = {tensor.device.index for tensor in tensors if tensor.device.type == "cuda"}
    if not indices:
        return
    for index in sorted(indices):
        _forebay.wait_stream(index, torch.cuda.current_stream(index).cuda_stream)


def checksums(tensors: Sequence[torch.Tensor]) -> list[int]:
    """CRC-32C of the bytes of contiguous, settled tensors, computed where they lie."""
    return _forebay.checksums([(tensor.data_ptr(), nbytes(tensor)) for tensor in tensors])
