"""safetensors files: load, look into, save.

>>> import forebay
>>> forebay.save_file({"weight": numpy.zeros((2, 3), "float32")}, path)
>>> forebay.load_file(path, framework="numpy")["weight"].shape
(2, 3)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from . import frameworks
from ._locations import is_folder, name_of
from ._paths import path_text
from .errors import IntegrityError, InvalidInputError
from .loading import Loader, Source, total_bytes

# Modules that a plain load does not need are imported on demand: for small files imports are most of the time.
if TYPE_CHECKING:
    from .casting import Cast
    from .frameworks import Device, Framework
    from .lazy import TensorSlice, safe_open
    from .placement import Placement
    from .shards import Paths, Shard

__all__ = ["TensorSlice", "load_file", "safe_open", "save_file"]

#: Which tensors to load: their names, or a function that says it for a name.
Names = Iterable[str] | Callable[[str], bool]


def load_file(
    path_or_paths: Paths,
    device: object = None,
    framework: str = "torch",
    dtype: Any = None,
    names: Names | None = None,
    verify: bool = False,
    progress: bool | Callable[[int, int], object] | None = None,
) -> dict[str, Any]:
    """Loads the tensors of a safetensors file, or of a model that is spread over several.

    Each tensor owns its memory, which comes from the framework's allocator. All headers are checked before anything is
    allocated. Memory that the framework's current stream still uses is not touched before it is done; on return the
    data is there for every stream.

    Args:
        path_or_paths: a file, several files, an index (``model.safetensors.index.json``), or a folder with one of
            these. Also what ``torch.save`` wrote (``.pt``, ``.bin``, ``pytorch_model.bin.index.json``), of which no
            code is run: only tensors and plain data are taken.
        device: ``"cuda:0"``, ``"cuda"``, ``"cpu"``, a GPU's number, the framework's own device object; or a mapping
            from the beginnings of names to devices, of which the longest wins: ``{"layer.0.": "cuda:0", "": "cpu"}``.
            Default: the first GPU if the framework can use one, the host otherwise.
        framework: ``"torch"``, ``"jax"``, ``"numpy"``, ``"cupy"`` or ``"native"`` (:class:`forebay.Array`).
        dtype: cast while loading, on the device: a dtype for all floating-point tensors (the framework's own, or
            ``"BF16"``), or a function of the name that gives one or ``None``. The memory it takes beside the result is
            about 0.5 GB.
        names: load only these (names, or a function that says it for a name).
        verify: compare each tensor with the checksum that ``save_file(…, checksums=True)`` put into the file.
        progress: ``True`` draws a line on standard error when it takes longer than a second, ``False`` does not,
            ``None`` does if that is a terminal; a function is called with ``(bytes_done, bytes_total)``.

    Returns:
        The tensors by name, in the order of the files.

    Raises:
        NotFoundError: a file or a shard does not exist.
        IntegrityError: an index makes no sense, or a checksum differs (``.tensor`` names it).
        InvalidInputError: a file is truncated, or its header claims what cannot be; a name that no file has or that two
            files have; ``verify`` without checksums; an argument that makes no sense.
        UnsupportedError: the framework is not installed, or has no such dtype or device.
        DeviceOutOfMemoryError, OutOfMemoryError: the tensors do not fit; none of them is kept.
        BusyError: a file was changed in place meanwhile, or truncated.

    >>> tensors = load_file("model.safetensors", device="cuda:0", dtype="BF16")  # doctest: +SKIP
    """
    chosen = frameworks.get(framework)
    shards = _shards(path_or_paths)
    try:
        sources = list(map(_open, shards))
    except (InvalidInputError, IntegrityError):
        # Not safetensors. Perhaps what torch.save wrote: its files are known by how they begin.
        from . import _bins

        if not _bins.written_by_torch(shards):
            raise
        loaded: dict[str, Any] = _bins.load(
            shards, chosen, device, dtype=dtype, names=names, verify=verify, progress=progress
        )
        return loaded
    where = _placement(chosen, device)
    cast = None
    if dtype is not None:
        from .casting import cast_for

        cast = cast_for(chosen, dtype)
    return _load(sources, chosen, where, cast, names, verify, progress)


def open_all(paths: Paths) -> list[Source]:
    """The open files of a checkpoint, with the tensors to take from each.

    Raises:
        As :func:`load_file`.
    """
    sources = list(map(_open, _shards(paths)))
    refuse_twice(sources)
    return sources


def load_with(path: str, framework: Framework, where: Device | Placement, cast: Cast | None = None) -> dict[str, Any]:
    """The body of :func:`load_file` for a safetensors file, with checked arguments."""
    return _load([Source(path)], framework, where, cast, None, False, False)


def _load(
    sources: list[Source],
    framework: Framework,
    where: Device | Placement,
    cast: Cast | None,
    names: Names | None,
    verify: bool,
    progress: bool | Callable[[int, int], object] | None,
) -> dict[str, Any]:
    if len(sources) > 1:
        refuse_twice(sources)
    if names is not None:
        _keep_only(sources, names)
    if progress is False or (progress is None and not _is_terminal()):
        return Loader(framework, where, cast, verify).load(sources)
    from .progress import Progress

    with Progress(total_bytes(sources), progress) as told:
        return Loader(framework, where, cast, verify, told.add).load(sources)


def _is_terminal() -> bool:
    return sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()


def _placement(framework: Framework, device: object) -> Device | Placement:
    if device is None:
        return framework.default_device()
    if isinstance(device, Mapping):
        from .placement import place

        return place({prefix: framework.parse_device(given) for prefix, given in device.items()})
    return framework.parse_device(device)


def _shards(paths: Paths) -> list[Shard]:
    if isinstance(paths, (str, bytes, os.PathLike)):
        path = path_text(paths)
        if name_of(path).endswith(".safetensors") and not is_folder(path):
            return [(path, None)]
    from .shards import resolve

    return resolve(paths)


def _open(shard: Shard) -> Source:
    path, names = shard
    source = Source(path)
    if names is not None:
        present = {entry[0] for entry in source.entries}
        for name in names - present:
            _refuse_missing(name, present, path=path)
        source.entries = [entry for entry in source.entries if entry[0] in names]
    return source


def _refuse_missing(name: str, present: Iterable[str], **context: Any) -> None:
    from ._refusals import missing_name

    raise missing_name(name, present, **context)


def refuse_twice(sources: Sequence[Any]) -> None:
    """Raises InvalidInputError if two open files have a tensor of the same name."""
    entries = chain.from_iterable(source.entries for source in sources)
    if len({entry[0] for entry in entries}) == sum(len(source.entries) for source in sources):
        return
    found: dict[str, Any] = {}
    for source in sources:
        for entry in source.entries:
            if found.setdefault(entry[0], source) is not source:
                raise InvalidInputError(
                    "two files have a tensor of the same name",
                    hints=["load them one by one"],
                    tensor=entry[0],
                    first=found[entry[0]].path,
                    second=source.path,
                )


def _keep_only(sources: list[Source], names: Names) -> None:
    from ._refusals import check_names

    check_names(names)
    if callable(names):
        for source in sources:
            source.entries = [entry for entry in source.entries if names(entry[0])]
        return
    wanted = set(names)
    present: set[str] = set()
    for source in sources:
        present.update(entry[0] for entry in source.entries)
        source.entries = [entry for entry in source.entries if entry[0] in wanted]
    where: dict[str, Any] = {"path": sources[0].path} if len(sources) == 1 else {"files": len(sources)}
    for name in wanted - present:
        _refuse_missing(name, present, **where)


def save_file(
    tensors: Mapping[str, Any],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    *,
    checksums: bool = False,
    durable: bool = True,
) -> None:
    """Saves tensors to a safetensors file, from GPU or host memory.

    The file appears under its name only once it is whole: an old one stays until then, whatever happens. A symbolic
    link is followed, where the kernel follows it. A file that is replaced keeps its mode (without setuid and setgid
    bits), access list and attributes, and its owner where the process may give files away; what cannot be kept makes
    rights narrower, never wider, and is a warning. Work that is queued on the framework's current stream is waited for;
    host memory beside the tensors stays bounded.

    Args:
        tensors: arrays of torch, jax, numpy, cupy or forebay by name, contiguous. Tensors of :func:`forebay.torch.weights` are read 64 MiB at a
            time, also where the new file replaces the one that they come from.
        path: where to.
        metadata: texts to be kept in the header.
        checksums: also keep a CRC-32C of each tensor in the header, for ``load_file(…, verify=True)``. Computed where
            the tensor lies.
        durable: return only when the storage has it all, so that it outlives a power cut.

    Raises:
        InvalidInputError: something is not a tensor, is not contiguous, or two torch tensors share memory.
        UnsupportedError: safetensors has no such dtype.
        NoSpaceError: the disk is full, or a quota or limit is reached. The old file is as it was.
        NotFoundError, PermissionDeniedError, ReadOnlyError: the folder does not take a file.

    >>> save_file(model.state_dict(), "model.safetensors", {"format": "pt"})  # doctest: +SKIP
    """
    from .saving import describe_all, write_safetensors

    write_safetensors(path_text(path, True), describe_all(tensors), metadata, checksums, durable)


def __getattr__(name: str) -> object:
    if name in ("TensorSlice", "safe_open"):
        from . import lazy

        value = globals()[name] = getattr(lazy, name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
