"""PyTorch's own checkpoints (``.pt``, ``.pth``, ``.bin``): tensors through the engine, the pickle as data only.

Such a file is one pickle that describes a nest of containers and tensors, and the bytes of each storage. The pickle is
read by what ``torch.load(…, weights_only=True)`` reads it with, over storages without memory, which tell what to read;
that is read straight into the storages of the tensors that are made. Where a value is no tensor over a plain storage
(sparse, quantized, of a class that the program allowed), it may need its data while it is made: then all storages are
read, and the pickle is read once more over them.

``torch.load(…, mmap=True)`` would give the same tree over the mapped file. It maps privately and for writing, which Linux
refuses for a file that is larger than memory and swap: "unable to mmap … bytes", seen with 40 GiB on 24 GB.
"""

from __future__ import annotations

import contextlib
import io
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, Final, NoReturn

from . import _forebay, errors
from ._captures import left_alone
from ._kinds import START_BYTES, is_npz
from ._locations import is_file
from ._paths import Watch, path_text
from ._refusals import check_names, missing_name, room_hints
from ._torch_archives import Archive as _Archive
from ._torch_archives import Legacy as _Legacy
from ._torch_archives import is_legacy, open_archive, unsupported_protocol
from ._torch_trees import NeedsDataError as _NeedsDataError
from ._torch_trees import refuse as _refuse
from ._torch_trees import replace as _replace
from ._torch_trees import tensors as _tensors
from .progress import Progress

if TYPE_CHECKING:
    import torch

    from ._forebay import File, Future

__all__ = ["is_zip_checkpoint", "load", "load_open"]

_ZIP: Final = b"PK\x03\x04"
_VERIFY_CHUNK: Final = 64 << 20
_GROUP_BYTES: Final = 512 << 20
_GROUPS_IN_FLIGHT: Final = 4

Place = Any  # str, int, torch.device, or a mapping from beginnings of names to one of these
Names = Iterable[str] | Callable[[str], bool] | None


def is_zip_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as one that ``torch.save`` wrote, in today's format (zip) or in the one before it. Of a file that
    cannot be read, ``False``.

    Raises:
        InvalidInputError: something that is no path.
        UnsupportedError: what lies elsewhere: ``s3://…``.
    """
    try:
        text = path_text(path)
    except errors.NotFoundError:
        return False
    try:
        # Opening a pipe would wait for a writer.
        if not is_file(text):
            return False
        with _forebay.open(text) as file:
            start = file.read(START_BYTES)
    except (errors.Error, OSError, ValueError):
        # The next reader raises the error, also for what cannot be a path.
        return False
    return (start.startswith(_ZIP) and not is_npz(start)) or is_legacy(start)


def load(
    path: str | os.PathLike[str],
    device: Place = None,
    *,
    dtype: Any = None,
    names: Names = None,
    verify: bool = False,
    progress: bool | Callable[[int, int], object] | None = None,
) -> Any:
    """Loads what ``torch.save`` wrote, with its tensors on ``device``; no code of the file is run. This takes PyTorch.

    Tensors that shared a storage share one again, views keep their offsets and strides. A storage is read once, whole.

    Args:
        path: the file.
        device: "cpu", "cuda:1", a number, or a mapping from beginnings of names to these ("" for all others). The name
            of a tensor is the path of keys that leads to it, joined by dots. Default: the first GPU if there is one.
        dtype: cast floating-point tensors to this type ("BF16", ``torch.bfloat16``), or a function of the name that
            gives one or None. A tensor that is cast has a storage of its own.
        names: load only these keys of the outermost dictionary, or those for which a function says so. A file with other
            values than tensors over plain storages and plain data is read whole.
        verify: compare each storage with the CRC-32 that the archive holds for it. This is done by the host.
        progress: as for :func:`forebay.load_file`.

    Returns:
        The object: usually a dictionary of ``torch.Tensor``.

    Raises:
        InvalidInputError: the pickle asks for what ``torch.load(path, weights_only=True)`` does not allow, the format is
            not this one, or one of ``names`` is not in it.
        IntegrityError: the file is damaged, or describes storages that it does not hold.
        UnsupportedError: PyTorch is not installed, or cannot read the pickle's protocol without running code; or
            ``dtype`` does not reach what lies within a value of another kind.
        NotFoundError: no such file.
        BusyError: the file was changed in place meanwhile.
    """
    with _forebay.open(path_text(path)) as file, Progress(0, progress) as told:
        return load_open(file, device, dtype, names, verify, told)


def load_open(file: File, device: Place, dtype: Any, names: Names, verify: bool, told: Progress, rest: int = 0) -> Any:
    """As :func:`load`, of a file that is open, and that ``rest`` bytes of other files follow."""
    with Watch(file):
        archive = open_archive(file, file.path)
        tree, keys = _described(archive)
        builder = _Builder(archive, keys, device, dtype)
        if tree is not _NEEDS_DATA:
            chosen = tree if names is None else _choose(tree, names, file.path)
            with contextlib.suppress(_NeedsDataError):
                return builder.build(chosen, verify, told, rest)
        return builder.build_around(tree, names, verify, told, rest)


#: Stands for a tree that cannot be described without the data.
_NEEDS_DATA: Final = object()
_Storages = dict[str, "torch.UntypedStorage"]


def _described(archive: _Archive | _Legacy) -> tuple[Any, _Storages]:
    """The pickle's object, with tensors over storages without memory, and these storages by their keys."""
    keys: _Storages = {}
    try:
        tree, _ = _unpickled(archive, keys)
    except _NeedsDataError:
        tree = _NEEDS_DATA
        if isinstance(archive, _Legacy):
            # Where its storages lie is known once the pickle was read, be it over zeros.
            _over_zeros(archive)
    return tree, keys


def _over_zeros(archive: _Legacy) -> None:
    try:
        _unpickled(archive, memory="cpu")
    except _NeedsDataError as reason:
        hints = ["save it in today's format: torch.save(torch.load(path, weights_only=True), path)"]
        raise errors.UnsupportedError(
            "the checkpoint has the format of PyTorch before 1.6, and values that cannot be made before their data",
            hints=hints, reason=_first_line(reason), path=archive.path,
        ) from None  # fmt: skip


class _StorageMaker:
    """Gives an unpickler the storages that it asks for, and keeps them by their keys: parameters as for :func:`_unpickled`."""

    def __init__(self, archive: _Archive | _Legacy, made: _Storages, is_filled: bool, memory: str) -> None:
        self._archive, self._made, self._memory = archive, made, memory
        self._turns = is_filled and archive.is_swapped
        self._turned: set[str] = set()

    def __call__(self, told: Any) -> torch.TypedStorage:
        """A persistent id: ("storage", type, key, place, elements), and in old files the part that is meant."""
        import torch

        _, kind, key, _, elements, *part = told
        if any(part):
            raise errors.UnsupportedError(
                "the checkpoint has parts of storages, as PyTorch before 0.4 wrote them",
                hints=["torch.save(torch.load(path, weights_only=True), path)"], path=self._archive.path,
            )  # fmt: skip
        dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
        size = self._archive.claim(key, elements, dtype.itemsize)
        if key not in self._made:
            self._made[key] = torch.zeros(size, dtype=torch.uint8, device=self._memory).untyped_storage()
        if self._turns and key not in self._turned:
            _swap(self._made[key], dtype)
            self._turned.add(key)
        untyped: Any = torch.storage
        typed: torch.TypedStorage = untyped.TypedStorage(wrap_storage=self._made[key], dtype=dtype, _internal=True)
        return typed


def _unpickled(
    archive: _Archive | _Legacy, keys: _Storages | None = None, *, is_filled: bool = False, memory: str = "meta"
) -> tuple[Any, _Storages]:
    """The pickle's object, and its storages by their keys.

    Args:
        archive: holds the pickle.
        keys: storages that are there; others are made, and hold no data.
        is_filled: these hold their data.
        memory: of others: ``"meta"`` for none.

    Raises:
        _NeedsDataError: it cannot be described over storages without memory.
    """
    try:
        import torch
        from torch._weights_only_unpickler import Unpickler
    except ImportError as reason:
        raise errors.MissingPackageError(
            f"files of torch.save are read with PyTorch: {reason}", hints=["pip install torch"], path=archive.path
        ) from None
    # These calls have no types in torch.
    untyped: Any = torch
    storages: _Storages = {} if keys is None else keys
    with archive.pickle() as file:
        unpickler: Any = Unpickler(file, encoding="utf-8")
        unpickler.persistent_load = _StorageMaker(archive, storages, is_filled, memory)
        try:
            tree = unpickler.load()
            if is_filled:
                untyped._utils._validate_loaded_sparse_tensors()
        except errors.Error:
            raise
        except UnpicklingError as reason:
            _refuse_pickle(reason, archive)
        except Exception as reason:
            # torch's own words for what a tensor without memory cannot be; what a class of the program's says is not known.
            if not is_filled and (isinstance(reason, RuntimeError) or _asks_program(archive, file)):
                raise _NeedsDataError(str(reason)) from reason
            raise errors.IntegrityError(
                f"the checkpoint's pickle is damaged: {type(reason).__name__}: {_first_line(reason)}", path=archive.path
            ) from reason
        finally:
            # A sparse tensor is on a list that the next torch.load would go through.
            with contextlib.suppress(Exception):
                untyped._utils._validate_loaded_sparse_tensors()
        if not is_filled:
            archive.asks_program = _asks_program(archive, file)
            archive.locate(file)
    return tree, storages


def _swap(storage: torch.UntypedStorage, dtype: torch.dtype) -> None:
    """Turns the bytes of each number around."""
    if storage.device.type != "meta":
        host: Any = storage.cpu()  # type: ignore[no-untyped-call]
        host.byteswap(dtype)
        storage.copy_(host)


def _allowed_by_program() -> dict[str, Any]:
    """Names that the program allowed for pickles by ``torch.serialization.add_safe_globals``."""
    from torch import _weights_only_unpickler

    untyped: Any = _weights_only_unpickler
    found: dict[str, Any] = untyped._get_user_allowed_globals()
    return found


def _asks_program(archive: _Archive | _Legacy, file: io.BufferedIOBase) -> bool:
    """Whether the pickle, up to where ``file`` stands, seems to name one of these: its code may look at data."""
    names = {full.rpartition(".")[2] for full in _allowed_by_program()}
    if not names:
        return False
    end = file.tell()
    file.seek(archive.start)
    text = file.read(end - archive.start)
    file.seek(end)
    return any(f"{name}\n".encode() in text for name in names)


def _refuse_pickle(reason: UnpicklingError, archive: _Archive | _Legacy) -> NoReturn:
    what = _first_line(reason)
    with archive.pickle() as file:
        start = file.read(2)
    if what.startswith("Unsupported operand"):
        refusal = unsupported_protocol(start, archive.path)
        if refusal is not None:
            raise refusal from None
    _refuse(what, archive.path)


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

    def __init__(self, archive: _Archive | _Legacy, keys: _Storages, device: Place, dtype: Any) -> None:
        import torch

        from .casting import cast_for
        from .frameworks.torch import FRAMEWORK
        from .torch import _memory

        self.framework = FRAMEWORK
        self.memory = _memory
        self.archive = archive
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
        """The tree with tensors over storages of their own, which are read into them.

        Raises:
            _NeedsDataError: something in it is no tensor over a plain storage, nor plain data.
        """
        if self.archive.is_swapped or self.archive.asks_program:
            raise _NeedsDataError
        places = {
            id(told): (name, told, self._key(name, told), self.place(name))
            for name, told in _tensors(tree, self.archive.path)
        }
        for _, _, key, device in places.values():
            self._allocate(key, device)
        self._fill(verify, progress, rest)
        for name, told, key, device in places.values():
            self.tensors[id(told)] = self._made(name, told, self.storages[key, device])
        try:
            return _replace(tree, self.tensors, {})
        except RecursionError:
            raise _NeedsDataError from None

    def _fill(self, verify: bool, progress: Progress, rest: int) -> None:
        progress.total = progress.done + self._bytes_to_read() + rest
        with progress:
            self._read(progress)
        if verify:
            self._verify()

    @left_alone
    def build_around(self, described: Any, names: Any, verify: bool, progress: Progress, rest: int) -> Any:
        """The pickle's object over storages that have been read: all of them, since it may look at any.

        Args:
            described: the tree over storages without memory, if there is one: it tells where storages go.
        """
        path = self.archive.path
        where = {} if described is _NEEDS_DATA else self._places_of_keys(described)
        for key in self.archive.keys() if described is _NEEDS_DATA else self.kept:
            self._allocate(key, where.get(key) or self.place(""))
        self._fill(verify, progress, rest)
        rooms = {key: room for (key, _), room in self.storages.items()}
        storages = {key: room.untyped_storage() for key, room in rooms.items()}
        tree, _ = _unpickled(self.archive, storages, is_filled=True)
        for key, room in rooms.items():
            if room.untyped_storage().nbytes() != room.numel():
                raise errors.IntegrityError("a tensor reaches beyond its storage", key=key, path=path)
        if names is not None:
            tree = _choose(tree, names, path)
        return tree if self.cast is None else self._recast(tree)

    def _places_of_keys(self, described: Any) -> dict[str, torch.device]:
        """Where the storages of the tensors go that can be found in a tree."""
        places: dict[str, torch.device] = {}
        for name, told in _tensors(described, self.archive.path, lambda name, node: getattr(node, "__dict__", {})):
            for cdata in _storages_of(told):
                if cdata in self.keys:
                    places.setdefault(self.keys[cdata], self.place(name))
        return places

    def _recast(self, tree: Any) -> Any:
        def refuse(name: str, node: Any) -> NoReturn:
            raise errors.UnsupportedError(
                "cannot cast what lies within a value of this kind",
                hints=["load without dtype=, then cast"], at=name, type=type(node).__name__, path=self.archive.path,
            )  # fmt: skip

        for name, tensor in _tensors(tree, self.archive.path, refuse):
            self.tensors[id(tensor)] = self._with_dtype(name, tensor)
        try:
            return _replace(tree, self.tensors, {})
        except RecursionError:
            refuse("", tree)

    def _key(self, name: str, told: torch.Tensor) -> str:
        """The storage of a described tensor, within which it lies."""
        import torch

        plain = type(told) in (torch.Tensor, torch.nn.Parameter) and told.layout is torch.strided
        if not plain or told.is_quantized or told.is_nested or told.is_conj() or told.is_neg() or vars(told):
            raise _NeedsDataError
        key = self.keys.get(told.untyped_storage()._cdata)
        if key is None:
            raise _NeedsDataError
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
            if told is None or (told == 0 and found != 0):
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
        tensor = self._with_dtype(name, tensor)
        if type(told) is torch.nn.Parameter:
            return torch.nn.Parameter(tensor, requires_grad=told.requires_grad)
        return tensor.requires_grad_() if told.requires_grad else tensor

    def _with_dtype(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as it is, or cast: of the same class, with the same attributes."""
        import torch

        present = self.framework.dtype_name(tensor.dtype)
        target = None if self.cast is None or present is None else self.framework.dtype(self.cast(name, present))
        if target is None or target == tensor.dtype:
            return tensor
        is_plain = tensor.layout is torch.strided and type(tensor) in (torch.Tensor, torch.nn.Parameter)
        if is_plain and tensor.numel() * tensor.itemsize > 8 * max(tensor.untyped_storage().nbytes(), 1):
            raise errors.InvalidInputError(
                "cannot cast a tensor that repeats its few elements many times", tensor=name, shape=tensor.size()
            )
        made = tensor.detach().to(target)
        if type(tensor) is torch.nn.Parameter:
            made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
        elif tensor.requires_grad:
            made.requires_grad_()
        vars(made).update(vars(tensor))
        return made


def _storages_of(told: torch.Tensor) -> Iterator[int]:
    """The identity of a tensor's storages: of a sparse one, those of its parts."""
    import torch

    parts: tuple[str, ...] = ()
    if told.layout is torch.sparse_coo:
        parts = ("_indices", "_values")
    elif told.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = ("crow_indices", "col_indices", "values")
    elif told.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = ("ccol_indices", "row_indices", "values")
    for part in [getattr(told, part)() for part in parts] or [told]:
        # A subclass may have none.
        with contextlib.suppress(Exception):
            yield part.untyped_storage()._cdata


def _first_line(reason: Exception) -> str:
    return str(reason).partition("\n")[0]


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """A copy of the bytes of a tensor of uint8; numpy is not needed."""
    import ctypes

    host = tensor.cpu()
    return ctypes.string_at(host.data_ptr(), host.numel())
