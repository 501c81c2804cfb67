"""MONAI's ``GDSDataset`` without its needs and faults: ``from forebay.monai import GDSDataset``.

The first epoch computes what does not depend on chance and keeps it in a file for each item; later ones read that file
straight to the device, in one batch. Neither kvikio nor cupy is needed, and the device may be ``"cpu"``.

A file appears once it is whole: a process that is killed, a full disk or a second rank leave none that is half written. It is
read only while its size and version are right; damaged items are computed again. All epochs give the same types: tensors on
the device, :class:`monai.data.MetaTensor` where the transforms made them, dicts and lists of them, and texts and numbers
as they were. Caches of MONAI's own ``GDSDataset`` and ``PersistentDataset`` in the same folder are read, too.
"""

from __future__ import annotations

import functools
import io
import math
import os
import struct
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _forebay, _locations, frameworks
from ._paths import folder_text
from .data._memory import Memory, memory_for
from .errors import Error, IntegrityError, MissingPackageError, NoSpaceError, PermissionDeniedError, ReadOnlyError
from .placement import Device

try:
    import numpy
    import torch
    from monai.data.dataset import PersistentDataset
    from monai.data.meta_tensor import MetaTensor
    from monai.data.utils import pickle_hashing
    from monai.utils.type_conversion import convert_to_tensor

    from .frameworks.torch import no_memory
except ModuleNotFoundError as error:
    package = (error.name or "").split(".")[0]
    # Others of which one is missing say so themselves.
    if package not in ("numpy", "torch", "monai"):
        raise
    raise MissingPackageError(f"{package} is not installed", hints=["pip install monai torch numpy"]) from None

__all__ = ["GDSDataset"]

_MAGIC = b"FBCACHED"
_VERSION = 1
#: magic, version, CRC-32C of the description, its bytes, bytes of the file.
_HEADER = struct.Struct("<8sIIQQ")
_ALIGN = 4096
#: A file that names more bytes, or a longer description, is damaged.
_MAX_BYTES = 1 << 62
_MAX_DESCRIPTION_BYTES = 1 << 30
#: Stands for an array in a description.
_ARRAY_KEY = "forebay.array"
_DTYPES: dict[str, Any] = {
    name: getattr(torch, name)
    for name in (
        "bool", "uint8", "int8", "uint16", "int16", "float16", "bfloat16", "uint32", "int32", "float32", "uint64", "int64",
        "float64", "complex64", "complex128",
    )
    if hasattr(torch, name)
}  # fmt: skip


class GDSDataset(PersistentDataset):
    """In place of ``monai.data.GDSDataset``.

    Args:
        data: as MONAI's.
        transform: as MONAI's: kept is what comes before the first random one.
        cache_dir: of the files; ``None`` keeps nothing.
        device: where tensors go: a GPU's number, ``"cuda:1"``, a ``torch.device``, or ``"cpu"``.
        hash_func: names an item's file.
        hash_transform: makes the transforms a part of that name; without it, empty the folder when they change.
        reset_ops_id: as MONAI's.
        track_meta: gives ``MetaTensor`` where the transforms made one; otherwise plain tensors.
        verify: compares the checksums of items read, and computes an item again whose bytes differ.
        kwargs: of ``monai.data.PersistentDataset``: ``weights_only``, ``pickle_module``, ``pickle_protocol``.
    """

    if TYPE_CHECKING:
        # MONAI does not say what an item is: a checker guesses one from the code, and refuses what an item is used for.
        def __getitem__(self, index: int | slice | Sequence[int]) -> Any: ...

    def __init__(
        self,
        data: Sequence[Any],
        transform: Sequence[Callable[..., Any]] | Callable[..., Any],
        cache_dir: Path | str | None,
        device: Any = None,
        hash_func: Callable[..., bytes] = pickle_hashing,
        hash_transform: Callable[..., bytes] | None = None,
        reset_ops_id: bool = True,
        *,
        track_meta: bool = True,
        verify: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            data=data,
            transform=transform,
            cache_dir=None if cache_dir is None else Path(folder_text(cache_dir, is_here=True)),
            hash_func=hash_func,
            hash_transform=hash_transform,
            reset_ops_id=reset_ops_id,
            **kwargs,
        )
        framework = frameworks.get("torch")
        self._place = framework.default_device() if device is None else framework.parse_device(device)
        self.device = device if device is not None else str(self._place)
        self.track_meta, self.verify = track_meta, verify
        self._meta_cache: dict[Any, dict[Any, Any]] = {}
        self._warned = False

    def _cachecheck(self, item_transformed: Any) -> Any:
        """The item as it is before the first random transform, out of its file or computed."""
        if self.cache_dir is None:
            item, arrays = _taken_apart(self._pre_transform(deepcopy(item_transformed)))
            return self._put_together(item, [_on(_tensor(array), self._place) for array in arrays])
        name = self.hash_func(item_transformed).decode("utf-8") + self.transform_hash
        path = self.cache_dir / f"{name}.forebay"
        found = self._read(path)
        if found is None:
            found = self._read_monais(self.cache_dir / f"{name}.pt")
        return self._compute(item_transformed, path) if found is None else found[0]

    # ---- our files ---------------------------------------------------------------------------------------------------

    def _compute(self, item: Any, path: Path) -> Any:
        item, arrays = _taken_apart(self._pre_transform(deepcopy(item)))
        tensors = [_tensor(array) for array in arrays]
        try:
            description = _packed(item, self.weights_only)
        except Exception as error:
            self._warn(f"an item cannot be kept in the cache: {error}")
            return self._put_together(item, [_on(tensor, self._place) for tensor in tensors])
        try:
            _write(path, description, tensors)
        except (NoSpaceError, PermissionDeniedError, ReadOnlyError) as error:
            self._warn(f"the cache cannot be written: {error}")
        # As a hit gives it.
        kept = _unpacked(description, self.weights_only)
        return self._put_together(kept, [_on(tensor, self._place) for tensor in tensors])

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"{text}; it is computed in each epoch", stacklevel=4)

    def _read(self, path: Path) -> tuple[Any] | None:
        """The item of a file; ``None`` if there is none, or none that can be believed."""
        try:
            # Every epoch reads it again: what memory has room for stays in the page cache.
            with _forebay.open(path, cache="keep") as file:
                table, packed = _opened(file)
                description = _unpacked(packed, self.weights_only)
                tensors = self._load(file, table, self.verify)
        except FileNotFoundError:
            return None
        except (Error, ValueError, KeyError, TypeError, EOFError, struct.error) as error:
            if isinstance(error, MemoryError):
                raise
            warnings.warn(f"a cached item is computed again: {error}", stacklevel=4)
            return None
        return (self._put_together(description, tensors),)

    def _load(
        self, file: _forebay.File, table: list[tuple[Any, tuple[int, ...], int, int, int]], verify: bool
    ) -> list[Any]:
        """All arrays, in one batch."""
        # Nothing has to be waited for: a training step goes on beside the read.
        memory, place = _memory_of(os.getpid(), self._place), _torch_place(self._place)
        tensors = [
            memory.new((nbytes,), "U8").view(dtype).view(shape)
            if nbytes
            else torch.empty(shape, dtype=dtype, device=place)
            for dtype, shape, _, nbytes, _ in table
        ]
        pieces = [
            (tensor.data_ptr(), nbytes, offset)
            for tensor, (_, _, offset, nbytes, _) in zip(tensors, table, strict=True)
            if nbytes
        ]
        file._submit(False, pieces, tensors).result()
        for tensor in tensors:
            memory.hand_out(tensor)
        if verify:
            sums = _forebay.checksums([(address, nbytes) for address, nbytes, _ in pieces])
            if sums != [crc for _, _, _, nbytes, crc in table if nbytes]:
                raise IntegrityError("its bytes differ from those that were written", path=file.path)
        return tensors

    def _put_together(self, item: Any, tensors: list[Any]) -> Any:
        if isinstance(item, dict):
            if _ARRAY_KEY in item:
                return self._array(item, tensors[item[_ARRAY_KEY]])
            return {key: self._put_together(value, tensors) for key, value in item.items()}
        if isinstance(item, (list, tuple)):
            return type(item)(self._put_together(value, tensors) for value in item)
        return item

    def _array(self, about: dict[str, Any], tensor: Any) -> Any:
        if "meta" not in about or not self.track_meta:
            return tensor
        return MetaTensor(tensor, meta=about["meta"], applied_operations=about["operations"])

    # ---- MONAI's files -----------------------------------------------------------------------------------------------

    def _read_monais(self, path: Path) -> tuple[Any] | None:
        """The item of a cache that MONAI wrote. Its files have no marks of being whole but their sizes."""
        text, begin = str(path), f"{path.name}-"
        if not _locations.is_file(text):
            return None
        try:
            if _locations.is_file(f"{text}-meta"):
                return (self._read_raw(text),)
            if _locations.state(text).nbytes:
                return (self._read_pickled(text),)
            there = _locations.names(_locations.parent(text))
            keys = [
                name.removeprefix(begin).removesuffix("-meta")
                for name in there
                if name.startswith(begin) and name.endswith("-meta")
            ]
            if not keys:
                return None
            return ({key: self._read_raw(f"{text}-{key}") for key in keys},)
        except Exception as error:
            if isinstance(error, MemoryError):
                raise
            warnings.warn(f"a cached item of MONAI's is computed again: {error}", stacklevel=4)
            return None

    def _read_raw(self, path: str) -> Any:
        meta = dict(self._unpickled(f"{path}-meta"))
        shape = tuple(int(size) for size in meta.pop("shape"))
        dtype = _DTYPES[str(meta.pop("dtype")).removeprefix("torch.")]
        nbytes = _bytes_of(shape, dtype)
        with _forebay.open(path) as file:
            if file.size != nbytes:
                raise IntegrityError("it has not the bytes of its shape", path=path, bytes=file.size, shape=shape)
            # These files have no checksums.
            tensor = self._load(file, [(dtype, shape, 0, nbytes, 0)], False)[0]
        return MetaTensor(tensor, meta=meta) if meta and self.track_meta else tensor

    def _unpickled(self, path: str) -> Any:
        with _locations.opened(path) as file:
            return torch.load(file, weights_only=self.weights_only)

    def _read_pickled(self, path: str) -> Any:
        item, arrays = _taken_apart(self._unpickled(path))
        return self._put_together(item, [_on(_tensor(array), self._place) for array in arrays])


@functools.cache
def _memory_of(process: int, place: Device) -> Memory:
    """Where items are read to, in one process."""
    return memory_for(frameworks.get("torch"), place)


def _torch_place(place: Device) -> str:
    return str(place)


def _on(tensor: Any, place: Device) -> Any:
    return tensor.to(_torch_place(place))


def _bytes_of(shape: tuple[int, ...], dtype: Any) -> int:
    if any(size < 0 for size in shape):
        raise ValueError(f"not a shape: {shape}")
    return math.prod(shape) * int(dtype.itemsize)


def _is_array(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        # Others go with the description, as torch saves them.
        return no_memory(value) is None
    return isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc"


def _taken_apart(item: Any) -> tuple[Any, list[Any]]:
    """An item with marks in place of its arrays, and these."""
    arrays: list[Any] = []

    def without(value: Any) -> Any:
        if _is_array(value):
            arrays.append(value)
            mark: dict[str, Any] = {_ARRAY_KEY: len(arrays) - 1}
            if isinstance(value, MetaTensor):
                mark |= {"meta": told(dict(value.meta)), "operations": told(list(value.applied_operations))}
            return mark
        return walk(value, without)

    def walk(value: Any, each: Callable[[Any], Any]) -> Any:
        if isinstance(value, dict):
            return {_plain(key): each(one) for key, one in value.items()}
        if type(value) in (list, tuple):
            return type(value)(each(one) for one in value)
        return _plain(value)

    def told(value: Any) -> Any:
        return walk(value, told)

    return convert_to_tensor(without(item), convert_numeric=False), arrays


def _plain(value: Any) -> Any:
    """Texts and numbers of types of their own (MONAI's keys, numpy's scalars) as plain ones, which torch loads again."""
    if isinstance(value, str):
        return str(value.value if isinstance(value, Enum) else value)
    return value.item() if isinstance(value, numpy.generic) else value


def _tensor(array: Any) -> Any:
    """A plain contiguous tensor, where the array lies."""
    if isinstance(array, MetaTensor):
        array = array.as_tensor()
    if isinstance(array, numpy.ndarray):
        array = torch.from_numpy(
            numpy.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False)).copy()
        )
    return array.detach().contiguous().resolve_conj().resolve_neg()


def _packed(item: Any, weights_only: bool) -> bytes:
    """The rest of an item without its arrays, as torch saves it: torch must be able to load it."""
    text = io.BytesIO()
    torch.save(item, text)
    _unpacked(text.getvalue(), weights_only)
    return text.getvalue()


def _unpacked(description: bytes, weights_only: bool) -> Any:
    return torch.load(io.BytesIO(description), weights_only=weights_only)


def _write(path: Path, description: bytes, tensors: list[Any]) -> None:
    """A file with a description and arrays, which appears once it is whole."""
    gpus = {Device("cuda", tensor.device.index) for tensor in tensors if tensor.is_cuda}
    frameworks.settle(frameworks.get("torch"), gpus)
    table = []
    offset = 0
    for tensor in tensors:
        nbytes = _bytes_of(tuple(tensor.shape), tensor.dtype)
        crc = _forebay.checksums([(tensor.data_ptr(), nbytes)])[0] if nbytes else 0
        table.append((str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), offset, nbytes, crc))
        offset += -(-nbytes // _ALIGN) * _ALIGN
    text = io.BytesIO()
    torch.save((table, description), text)
    head = text.getvalue()
    begin = -(-(_HEADER.size + len(head)) // _ALIGN) * _ALIGN
    header = _HEADER.pack(_MAGIC, _VERSION, _crc(head), len(head), begin + offset)
    with _forebay.Pending(path, cache="keep") as pending:
        pending.file.write_from(header + head + bytes(begin - _HEADER.size - len(head)), 0)
        pending.file.truncate(begin + offset)
        pieces = [(one.data_ptr(), row[3], begin + row[2]) for one, row in zip(tensors, table, strict=True) if row[3]]
        pending.file._submit(True, pieces, tensors).result()
        pending.commit()


def _crc(data: bytes) -> int:
    array = numpy.frombuffer(data, "uint8")
    return _forebay.checksums([(array.__array_interface__["data"][0], len(data))])[0]


def _opened(file: _forebay.File) -> tuple[list[tuple[Any, tuple[int, ...], int, int, int]], bytes]:
    """The arrays' places and the description of a file; each is checked."""
    size = file.size
    magic, version, crc, length, whole = _HEADER.unpack(file.read(_HEADER.size))
    if magic != _MAGIC or version != _VERSION or whole != size or length > min(size, _MAX_DESCRIPTION_BYTES):
        raise IntegrityError("it is no whole file of this version", path=file.path, version=version, bytes=size)
    head = file.read(length, _HEADER.size)
    if len(head) != length or _crc(head) != crc:
        raise IntegrityError("its description is damaged", path=file.path)
    begin = -(-(_HEADER.size + length) // _ALIGN) * _ALIGN
    rows, description = torch.load(io.BytesIO(head), weights_only=True)
    table = []
    for name, shape, offset, nbytes, saved in rows:
        dtype, sizes = _DTYPES[name], tuple(int(one) for one in shape)
        if not 0 <= offset <= _MAX_BYTES or _bytes_of(sizes, dtype) != nbytes or begin + offset + nbytes > size:
            raise IntegrityError("an array lies beyond the end of its file", path=file.path)
        table.append((dtype, sizes, begin + offset, nbytes, saved))
    return table, description
