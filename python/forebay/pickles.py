"""PyTorch's own checkpoints (``.pt``, ``.pth``, ``.bin``): tensors through the engine, the pickle as data only.

Such a file is a zip archive: one pickle that describes a nest of containers and tensors, and one uncompressed record
for each storage. The pickle is read by what ``torch.load(…, weights_only=True)`` reads it with, over storages without
memory, which tell the records; these are read straight into the storages of the tensors that are made.

``torch.load(…, mmap=True)`` would give the same tree over the mapped file. It maps privately and for writing, which Linux
refuses for a file that is larger than memory and swap: "unable to mmap … bytes", seen with 40 GiB on 24 GB.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, Final, NoReturn

from . import _forebay, errors
from ._captures import left_alone
from ._refusals import check_names, is_npz, missing_name, room_hints
from .loading import Watch, path_text
from .progress import Progress

if TYPE_CHECKING:
    import torch

    from ._forebay import File, Future

__all__ = ["is_zip_checkpoint", "load"]

_ZIP: Final = b"PK\x03\x04"
#: How files begin that PyTorch before 1.6 wrote: a pickle of the number 0x1950A86A20F9469CFC6C.
_LEGACY: Final = b"\x80\x02\x8a\nl\xfc\x9cF"
#: A longer pickle is refused: its tensors lie outside it, so honest ones have a few hundred bytes for each tensor.
_PICKLE_LIMIT: Final = 256 << 20
_DEPTH_LIMIT: Final = 200
_NAME_LIMIT: Final = 2048
_VERIFY_CHUNK: Final = 64 << 20
_GROUP_BYTES: Final = 512 << 20
_GROUPS_IN_FLIGHT: Final = 4

Place = Any  # str, int, torch.device, or a mapping from beginnings of names to one of these


def is_zip_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as one that ``torch.save`` wrote, in today's format (zip) or in the one before it."""
    try:
        # To open a pipe would wait for somebody who writes to it.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with open(path, "rb") as file:
            start = file.read(512)
    except (OSError, ValueError):
        # The next reader raises the error, also for what cannot be a path.
        return False
    return (start.startswith(_ZIP) and not is_npz(start)) or start[:8] == _LEGACY


def load(
    path: str | os.PathLike[str],
    device: Place = None,
    *,
    dtype: Any = None,
    names: Iterable[str] | Callable[[str], bool] | None = None,
    verify: bool = False,
    progress: bool | Callable[[int, int], object] | Progress | None = None,
    rest: int = 0,
) -> Any:
    """Loads what ``torch.save`` wrote, with its tensors on ``device``; no code of the file is run. This takes PyTorch.

    Tensors that shared a storage share one again, views keep their offsets and strides. A storage is read once, whole.

    Args:
        path: the file.
        device: "cpu", "cuda:1", a number, or a mapping from beginnings of names to these ("" for all others). The name
            of a tensor is the path of keys that leads to it, joined by dots. Default: the first GPU if there is one.
        dtype: cast floating-point tensors to this type ("BF16", ``torch.bfloat16``), or a function of the name that
            gives one or None. A tensor that is cast has a storage of its own.
        names: load only these keys of the outermost dictionary, or those for which a function says so.
        verify: compare each storage with the CRC-32 that the archive holds for it. This is done by the host.
        progress: as for :func:`forebay.load_file`; or one that counts several files.
        rest: how many bytes follow in other files.

    Returns:
        The object: usually a dictionary of ``torch.Tensor``.

    Raises:
        InvalidInputError: the pickle asks for anything but tensors and plain data, the format is not this one, or one of
            ``names`` is not in it.
        IntegrityError: the file is damaged, or describes storages that it does not hold.
        UnsupportedError: PyTorch is not installed, or the file has tensors without a plain storage (sparse ones, say).
        NotFoundError: no such file.
        BusyError: the file was changed in place meanwhile.
    """
    text = path_text(path)
    watch = Watch(text)
    with _forebay.open(text) as file:
        archive = _Archive(file, text)
        tree, keys = _unpickled(archive)
        if names is not None:
            tree = _choose(tree, names, text)
        told = progress if isinstance(progress, Progress) else Progress(0, progress)
        return _Builder(archive, keys, device, dtype, watch).build(tree, verify, told, rest)


class _Archive:
    """The records of a checkpoint, checked: stored as they are, inside the file, none over another."""

    def __init__(self, file: File, path: str) -> None:
        self.file = file
        self.path = path
        self.records = self._directory()
        self.root = self._root()
        self._check_byte_order()

    def _directory(self) -> dict[str, tuple[int, int, int]]:
        """Name -> (offset, size, CRC-32) of each record."""
        if self._start() == _LEGACY:
            raise errors.InvalidInputError(
                "the checkpoint has the format of PyTorch before 1.6, which only unpickling can read",
                hints=["torch.save(torch.load(path, weights_only=True), path)  # writes it in today's format"],
                path=self.path,
            )
        # The directory is checked where it is read: entries lie inside the file and apart, and no name is there twice.
        records: dict[str, tuple[int, int, int]] = {}
        for name, method, offset, _, size, crc in _forebay.read_zip(self.file):
            if method != 0:
                raise errors.UnsupportedError(
                    "the archive is compressed: torch.save stores records as they are", record=name, path=self.path
                )
            records[name] = (offset, size, crc)
        return records

    def _start(self) -> bytes:
        return self.read(0, min(8, self.file.size))

    def _root(self) -> str:
        roots = [name[: -len("/data.pkl")] for name in self.records if name.endswith("/data.pkl")]
        if len(roots) != 1 or "/" in roots[0]:
            raise errors.InvalidInputError(
                "the archive is no PyTorch checkpoint: it does not hold one data.pkl", path=self.path
            )
        root = roots[0]
        if f"{root}/constants.pkl" in self.records or any(n.startswith(f"{root}/code/") for n in self.records):
            raise errors.InvalidInputError(
                "the archive is a TorchScript program, not a checkpoint",
                hints=["torch.save(torch.jit.load(path).state_dict(), 'weights.pt')"],
                path=self.path,
            )
        return root

    def _check_byte_order(self) -> None:
        found = self.records.get(f"{self.root}/byteorder")
        if found is None:
            return
        order = self.read(found[0], min(found[1], 16))
        if order != b"little":
            raise errors.UnsupportedError(
                "the checkpoint was written on a big-endian machine", order=order.decode("ascii", "replace"),
                path=self.path,
            )  # fmt: skip

    def read(self, offset: int, size: int) -> bytes:
        room = bytearray(size)
        if size:
            self.file.read_into(room, offset)
        return bytes(room)

    def pickle(self) -> bytes:
        offset, size, _ = self.records[f"{self.root}/data.pkl"]
        if size > _PICKLE_LIMIT:
            raise errors.InvalidInputError(
                "the checkpoint's pickle is too large", size=size, limit=_PICKLE_LIMIT, path=self.path
            )
        return self.read(offset, size)

    def storage(self, key: str) -> tuple[int, int, int]:
        found = self.records.get(f"{self.root}/data/{key}")
        if found is None:
            raise errors.IntegrityError("the checkpoint names a storage that it does not hold", key=key, path=self.path)
        return found


def _unpickled(archive: _Archive) -> tuple[Any, dict[str, torch.UntypedStorage]]:
    """What the pickle describes, with tensors over storages without memory, and these storages by their keys."""
    try:
        import torch
        from torch._weights_only_unpickler import Unpickler
    except ImportError as reason:
        raise errors.UnsupportedError(
            f"files of torch.save are read with PyTorch: {reason}", hints=["pip install torch"], path=archive.path
        ) from None
    # These calls have no types in torch.
    untyped: Any = torch
    storages: dict[str, torch.UntypedStorage] = {}

    def storage(told: Any) -> torch.TypedStorage:
        """A persistent id: ("storage", type, key, place, elements)."""
        _, kind, key, _, elements = told
        dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
        size = archive.storage(key)[1]
        if elements * dtype.itemsize != size:
            raise errors.IntegrityError(
                "the checkpoint lies about the size of a storage",
                key=key, told=elements * dtype.itemsize, found=size, path=archive.path,
            )  # fmt: skip
        if key not in storages:
            storages[key] = untyped.UntypedStorage(size, device="meta")
        made: torch.TypedStorage = untyped.storage.TypedStorage(wrap_storage=storages[key], dtype=dtype, _internal=True)
        return made

    pickled = archive.pickle()
    if pickled[:1] == b"\x80" and pickled[1:2] > b"\2":
        raise errors.UnsupportedError(
            "the checkpoint's pickle has a protocol that PyTorch cannot read without running code",
            hints=["if you trust the source of the file: torch.save(torch.load(path, weights_only=False), path)"],
            protocol=pickled[1], path=archive.path,
        )  # fmt: skip
    unpickler: Any = Unpickler(io.BytesIO(pickled), encoding="utf-8")
    unpickler.persistent_load = storage
    try:
        return unpickler.load(), storages
    except errors.Error:
        raise
    except UnpicklingError as reason:
        _refuse(_first_line(reason), archive.path)
    except NotImplementedError as reason:
        # What a tensor without memory cannot be.
        raise _no_view(archive.path, reason=_first_line(reason)[:200]) from None
    except Exception as reason:
        raise errors.IntegrityError(
            f"the checkpoint's pickle is damaged: {type(reason).__name__}: {_first_line(reason)}", path=archive.path
        ) from reason
    finally:
        # A sparse tensor is on a list that the next torch.load would go through.
        with contextlib.suppress(Exception):
            untyped._utils._validate_loaded_sparse_tensors()


def _no_view(path: str, **context: Any) -> errors.UnsupportedError:
    return errors.UnsupportedError(
        "the checkpoint holds a tensor that is sparse, quantized, conjugated, or has a class or attributes of its own",
        hints=["torch.load(path, weights_only=True) reads it into host memory"],
        **context,
        path=path,
    )


def _refuse(what: str, path: str) -> NoReturn:
    raise errors.InvalidInputError(
        f"the checkpoint asks for more than tensors and plain data: {what[:400]}",
        hints=[
            "if you trust the source of the file: found = torch.load(path, weights_only=False)",
            'then save its tensors: forebay.save_file(found, "model.safetensors"), or found["state_dict"] if it has that',
        ],
        path=path,
    )


def _choose(tree: Any, names: Iterable[str] | Callable[[str], bool], path: str) -> Any:
    check_names(names)
    if not isinstance(tree, dict):
        raise errors.InvalidInputError("names choose keys of a dictionary: the checkpoint is none", path=path)
    chosen = {}
    for name in filter(names, list(tree)) if callable(names) else names:
        if name not in tree:
            raise missing_name(name, tree, path=path)
        chosen[name] = tree[name]
    return chosen


class _Builder:
    """Makes the tensors that the pickle describes."""

    def __init__(
        self, archive: _Archive, keys: dict[str, torch.UntypedStorage], device: Place, dtype: Any, watch: Watch
    ) -> None:
        import torch

        from .casting import cast_for
        from .frameworks.torch import FRAMEWORK
        from .torch import _memory

        self.framework = FRAMEWORK
        self.memory = _memory
        self.archive = archive
        self.watch = watch
        #: The address of each described storage's object, and its key.
        self.keys = {storage._cdata: key for key, storage in keys.items()}
        self.kept = keys
        self.cast = cast_for(FRAMEWORK, dtype)
        where = _memory.place(FRAMEWORK.default_device() if device is None else device)
        self.place: Callable[[str], torch.device] = lambda name: torch.device(str(where(name)))
        self.storages: dict[tuple[str, torch.device], torch.Tensor] = {}
        self.tensors: dict[int, torch.Tensor] = {}

    @left_alone
    def build(self, tree: Any, verify: bool, progress: Progress, rest: int) -> Any:
        places = {
            id(told): (name, told, self._key(name, told), self.place(name))
            for name, told in _tensors(tree, self.archive.path)
        }
        for _, _, key, device in places.values():
            self._allocate(key, device)
        progress.total = progress.done + self._bytes_to_read() + rest
        with progress, self.watch:
            self._read(progress)
        if verify:
            self._verify()
        for name, told, key, device in places.values():
            self.tensors[id(told)] = self._made(name, told, self.storages[key, device])
        try:
            return _replace(tree, self.tensors, {})
        except RecursionError:
            # What is shared may lie deeper than where it was first seen.
            raise errors.IntegrityError("the checkpoint is nested too deep", path=self.archive.path) from None

    def _key(self, name: str, told: torch.Tensor) -> str:
        """The storage of a described tensor, within which it lies."""
        import torch

        plain = type(told) in (torch.Tensor, torch.nn.Parameter) and told.layout is torch.strided
        if not plain or told.is_quantized or told.is_nested or told.is_conj() or told.is_neg() or vars(told):
            raise _no_view(self.archive.path, tensor=name, type=type(told).__name__, layout=told.layout)
        key = self.keys.get(told.untyped_storage()._cdata)
        if key is None:
            raise errors.UnsupportedError(
                "the checkpoint holds a tensor without a storage", tensor=name, path=self.archive.path
            )
        last = 0 if 0 in told.shape else 1 + sum((n - 1) * s for n, s in zip(told.shape, told.stride(), strict=True))
        end, size = (told.storage_offset() + last) * told.itemsize, self.archive.storage(key)[1]
        if end > size:
            raise errors.IntegrityError(
                "a tensor reaches beyond its storage", key=key, end=end, size=size, tensor=name, path=self.archive.path
            )
        return key

    def _bytes_to_read(self) -> int:
        return sum(room.numel() for room in self.storages.values() if not room.is_meta)

    def _allocate(self, key: str, device: torch.device) -> None:
        import torch

        if (key, device) in self.storages:
            return
        size = self.archive.storage(key)[1]
        try:
            self.storages[key, device] = torch.empty(size, dtype=torch.uint8, device=device)
        except RuntimeError as reason:
            if not self.framework.is_out_of_memory(reason):
                raise
            kind = errors.OutOfMemoryError if device.type == "cpu" else errors.DeviceOutOfMemoryError
            raise kind(
                f"not enough memory on {device} for the tensors",
                hints=room_hints(device.type != "cpu", "model."), path=self.archive.path,
            ) from None  # fmt: skip

    def _read(self, progress: Progress) -> None:
        """Reads all storages, a bounded number of bytes in flight: after Ctrl-C they have to be waited for."""
        self.memory.settle(self.storages.values())
        flying: deque[tuple[Future, int]] = deque()
        group: list[tuple[int, int, int]] = []
        rooms: list[torch.Tensor] = []
        total = 0

        def start() -> None:
            nonlocal group, rooms, total
            if group:
                flying.append((self.archive.file._submit(False, group, rooms), total))
            group, rooms, total = [], [], 0

        def finish(at_most: int) -> None:
            while len(flying) > at_most:
                future, size = flying[0]
                future.result()
                flying.popleft()
                progress.add(size)

        try:
            for (key, _), room in self.storages.items():
                offset, size, _ = self.archive.storage(key)
                if size and not room.is_meta:
                    group.append((room.data_ptr(), size, offset))
                    rooms.append(room)
                    total += size
                if total >= _GROUP_BYTES:
                    start()
                    finish(_GROUPS_IN_FLIGHT)
            start()
            finish(0)
        except BaseException:
            for future, _ in flying:
                future.cancel()
            for future, _ in flying:
                future.exception()
            raise

    def _verify(self) -> None:
        for (key, _), room in self.storages.items():
            if room.is_meta:
                continue
            told = self.archive.storage(key)[2]
            found = 0
            for start in range(0, room.numel(), _VERIFY_CHUNK):
                found = zlib.crc32(_bytes_of(room[start : start + _VERIFY_CHUNK]), found)
            if told == 0 and found != 0:
                raise errors.UnsupportedError(
                    "the checkpoint was written without checksums: it cannot be verified", path=self.archive.path
                )
            if told != found:
                raise errors.IntegrityError(
                    "a storage of the checkpoint has changed since it was written", key=key, path=self.archive.path
                )

    def _made(self, name: str, told: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
        try:
            return self._tensor(name, told, room)
        except (RuntimeError, OverflowError, ValueError, TypeError) as reason:
            if isinstance(reason, errors.Error) or self.framework.is_out_of_memory(reason):
                raise
            raise errors.IntegrityError(
                f"the checkpoint describes a tensor that PyTorch cannot make: {_first_line(reason)}", tensor=name,
                path=self.archive.path,
            ) from None  # fmt: skip

    def _tensor(self, name: str, told: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
        import torch

        tensor: torch.Tensor = torch.empty(0, dtype=told.dtype, device=room.device)
        tensor.set_(room.untyped_storage(), told.storage_offset(), told.size(), told.stride())
        present = self.framework.dtype_name(told.dtype)
        if self.cast is not None and present is not None:
            target = self.framework.dtype(self.cast(name, present))
            if target != told.dtype and tensor.numel() * tensor.itemsize > 8 * max(room.numel(), 1):
                raise errors.InvalidInputError(
                    "cannot cast a tensor that repeats its few elements many times", tensor=name, shape=told.size()
                )
            tensor = tensor.to(target)
        if type(told) is torch.nn.Parameter:
            return torch.nn.Parameter(tensor, requires_grad=told.requires_grad)
        return tensor.requires_grad_() if told.requires_grad else tensor


def _first_line(reason: Exception) -> str:
    return str(reason).partition("\n")[0]


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """A copy of the bytes of a tensor of uint8; numpy is not needed."""
    import ctypes

    host = tensor.cpu()
    return ctypes.string_at(host.data_ptr(), host.numel())


#: A key in a dictionary or list, after the key path of that dictionary or list itself.
_KeyPath = tuple["_KeyPath | None", object]
_PLAIN: Final = (type(None), bool, int, float, str, bytes, complex)


def _tensors(tree: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of a tree with their names. Refuses a tree that is too deep, or holds what is not plain data."""
    import torch

    plain = (*_PLAIN, torch.dtype, torch.device, torch.Size)
    seen: set[int] = set()
    todo: list[tuple[_KeyPath | None, int, Any]] = [(None, 0, tree)]
    while todo:
        trail, depth, node = todo.pop()
        if isinstance(node, torch.Tensor):
            yield _name_of_keys(trail, path), node
            continue
        if type(node) in plain or id(node) in seen:
            continue
        seen.add(id(node))
        if depth > _DEPTH_LIMIT:
            raise errors.IntegrityError("the checkpoint is nested too deep", limit=_DEPTH_LIMIT, path=path)
        kept = getattr(node, "__dict__", {})
        if type(node) not in (dict, OrderedDict, list, tuple, set) or kept.keys() - {"_metadata"}:
            _refuse(f"a value of the type {type(node).__name__}, or with a state of its own", path)
        # Of what is hashed, torch.save writes text and numbers, alone or in tuples.
        for key in node if isinstance(node, (dict, set)) else ():
            if not all(type(part) in plain for part in (key if type(key) is tuple else (key,))):
                _refuse("a key or a member of a set that is neither text nor a number", path)
        inner = node.items() if isinstance(node, dict) else () if isinstance(node, set) else enumerate(node)
        todo.extend(((trail, key), depth + 1, value) for key, value in (*inner, *kept.items()))


def _name_of_keys(trail: _KeyPath | None, path: str) -> str:
    """The keys that lead to a tensor, as its name."""
    keys: list[str] = []
    length = 0
    while trail is not None:
        trail, key = trail
        keys.append(str(key))
        length += 1 + len(keys[-1])
        # A long key is written once, and may be meant in every name.
        if length > _NAME_LIMIT:
            raise errors.IntegrityError("the name of a tensor is too long", limit=_NAME_LIMIT, path=path)
    # Empty keys at the beginning give no dot; a key may begin with one.
    while keys and not keys[-1]:
        keys.pop()
    return ".".join(reversed(keys))


def _replace(node: Any, tensors: Mapping[int, torch.Tensor], made: dict[int, Any]) -> Any:
    """The tree with the tensors that were made; lists and dictionaries in place. ``made`` keeps what was shared shared."""
    kind = type(node)
    if id(node) in tensors:
        return tensors[id(node)]
    if kind not in (dict, OrderedDict, list, tuple):
        return node
    if id(node) in made:
        found = made[id(node)]
        if found is _UNFINISHED:
            raise errors.IntegrityError("the checkpoint holds something that contains itself")
        return found[1]
    made[id(node)] = _UNFINISHED
    result = node
    if kind is list:
        node[:] = [_replace(item, tensors, made) for item in node]
    elif kind is tuple:
        result = tuple(_replace(item, tensors, made) for item in node)
    else:
        for key in node:
            node[key] = _replace(node[key], tensors, made)
        if "_metadata" in getattr(node, "__dict__", ()):
            node._metadata = _replace(node._metadata, tensors, made)
    made[id(node)] = (node, result)  # the node is kept: its id must not be used again meanwhile
    return result


_UNFINISHED: Final = object()
