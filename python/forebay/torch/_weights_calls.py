"""torch's functions, by what they need of a tensor that is still in its file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

__all__ = ["ASKS", "LIKE", "REFUSED", "VIEWS", "both", "getter", "in_place", "name_of"]


def both(*names: str) -> set[Any]:
    """Methods of tensors and functions of torch with these names: those that this torch has."""
    owners = (torch.Tensor, torch)
    return {getattr(owner, name) for name in names for owner in owners if callable(getattr(owner, name, None))}


def getter(*names: str) -> set[Any]:
    """What reads these attributes of a tensor."""
    return {getattr(torch.Tensor, name).__get__ for name in names if hasattr(torch.Tensor, name)}


def _written(names: Iterable[str]) -> frozenset[str]:
    return frozenset(f"__i{name}__" for name in names)


#: Answered by shape, strides and dtype alone.
ASKS: frozenset[Any] = frozenset(
    both(
        "size", "stride", "dim", "ndimension", "numel", "nelement", "element_size", "storage_offset", "is_contiguous",
        "is_floating_point", "is_complex", "is_signed", "is_conj", "is_neg", "is_inference",
        "has_names", "is_same_size", "dim_order", "sym_numel", "sym_size", "sym_storage_offset",
        "sym_stride", "is_distributed", "__len__", "__dir__",
    )
    | getter(
        "shape", "dtype", "ndim", "itemsize", "nbytes", "layout", "names", "requires_grad", "grad", "grad_fn", "is_leaf",
        "retains_grad", "is_sparse", "is_sparse_csr", "is_nested", "is_mkldnn", "is_quantized", "is_vulkan", "_version",
        "_backward_hooks", "_post_accumulate_grad_hooks", "_grad", "_grad_fn", "output_nr", "name",
    )
)  # fmt: skip

#: Give a part of the tensor, or the same elements in another shape, wherever memory allows it.
VIEWS: frozenset[Any] = frozenset(
    both(
        "__getitem__", "alias", "as_strided", "broadcast_to", "chunk", "detach", "diagonal", "dsplit", "expand",
        "expand_as", "flatten", "hsplit", "moveaxis", "movedim", "narrow", "permute", "ravel", "reshape", "reshape_as",
        "select", "split", "split_with_sizes", "squeeze", "swapaxes", "swapdims", "t", "tensor_split", "transpose",
        "unbind", "unflatten", "unfold", "unsafe_chunk", "unsafe_split", "unsqueeze", "view", "view_as", "vsplit",
        "adjoint", "__iter__", "contiguous",
    )
    | getter("T", "mT", "H", "mH", "data")
)  # fmt: skip

#: Take nothing of a tensor but its shape and dtype.
LIKE: frozenset[Any] = frozenset(
    both(
        "empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like", "new_empty",
        "new_empty_strided", "new_full", "new_ones", "new_zeros",
    )
)  # fmt: skip

#: Would give away memory that there is none of.
REFUSED: frozenset[Any] = frozenset(
    both("data_ptr", "storage", "untyped_storage", "_typed_storage", "storage_type", "const_data_ptr", "is_set_to")
    | getter("__cuda_array_interface__")
)

_OPERATORS = _written(
    ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift", "div")
)


def name_of(function: Any) -> str:
    """The name of a function, or of the attribute that it gets."""
    name: str = getattr(function, "__name__", "") or str(function)
    if name in ("__get__", "__set__", "__delete__"):
        return str(getattr(function.__self__, "__name__", name))
    return name.removeprefix("aten::").partition(".")[0]


def in_place(function: Any, words: dict[str, Any]) -> bool:
    """Whether a function writes to the tensors that it gets first, or as ``out``."""
    # An operator has its overload behind a dot.
    name = getattr(function, "__name__", "").partition(".")[0]
    if name in ("__set__", "__delete__", "__setitem__", "__setstate__") or name in _OPERATORS:
        return True
    return (name.endswith("_") and not name.endswith("__")) or bool(words.get("inplace"))
