"""safetensors files: load, look into, save.

>>> import forebay
>>> forebay.save_file({"weight": numpy.zeros((2, 3), "float32")}, path)
>>> forebay.load_file(path, framework="numpy")["weight"].shape
(2, 3)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import frameworks
from .errors import InvalidInputError
from .lazy import TensorSlice, missing_name, safe_open
from .loading import Cast, Loader, Source, cast_for, total_bytes
from .placement import place
from .progress import Progress
from .saving import describe_all, write_safetensors
from .shards import Paths, Shard, resolve

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
            these.
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
        IntegrityError: a header claims what cannot be, an index makes no sense, or a checksum differs (``.tensor``
            names it).
        InvalidInputError: a name that no file has or that two files have; ``verify`` without checksums; an argument
            that makes no sense.
        UnsupportedError: the framework is not installed, or has no such dtype or device.
        DeviceOutOfMemoryError, OutOfMemoryError: the tensors do not fit; none of them is kept.
        BusyError, ShortReadError: a file was replaced or truncated meanwhile.

    >>> tensors = load_file("model.safetensors", device="cuda:0", dtype="BF16")  # doctest: +SKIP
    """
    chosen = frameworks.get(framework)
    if chosen.name == "torch" and isinstance(path_or_paths, (str, os.PathLike)):
        from . import pickles

        if pickles.is_zip_checkpoint(path_or_paths):
            loaded: dict[str, Any] = pickles.load(
                path_or_paths, device, dtype=dtype, names=names, verify=verify, progress=progress
            )
            return loaded
    where = _placement(chosen, device)
    return load_with(path_or_paths, chosen, where, cast_for(chosen, dtype), names, verify, progress)


def load_with(
    paths: Paths,
    framework: frameworks.Framework,
    where: Callable[[str], frameworks.Device],
    cast: Cast | None,
    names: Names | None = None,
    verify: bool = False,
    progress: bool | Callable[[int, int], object] | None = False,
) -> dict[str, Any]:
    """What :func:`load_file` does once it has understood its arguments."""
    sources = [_open(shard) for shard in resolve(paths)]
    _refuse_twice(sources)
    if names is not None:
        _keep_only(sources, names)
    with Progress(total_bytes(sources), progress) as told:
        return Loader(framework, where, cast, verify, told).load(sources)


def _placement(framework: frameworks.Framework, device: object) -> Callable[[str], frameworks.Device]:
    if device is None:
        return place(framework.default_device())
    if isinstance(device, Mapping):
        return place({prefix: framework.parse_device(given) for prefix, given in device.items()})
    return place(framework.parse_device(device))


def _open(shard: Shard) -> Source:
    source = Source(shard.path)
    if shard.names is not None:
        present = {entry[0] for entry in source.entries}
        for name in shard.names - present:
            raise missing_name(name, present, path=shard.path)
        source.entries = [entry for entry in source.entries if entry[0] in shard.names]
    return source


def _refuse_twice(sources: Iterable[Source]) -> None:
    found: dict[str, str] = {}
    for source in sources:
        for entry in source.entries:
            if found.setdefault(entry[0], source.path) is not source.path:
                raise InvalidInputError(
                    "two files have a tensor of the same name",
                    hints=["load them one by one"],
                    tensor=entry[0],
                    first=found[entry[0]],
                    second=source.path,
                )


def _keep_only(sources: Iterable[Source], names: Names) -> None:
    if isinstance(names, str):
        raise InvalidInputError("names is a list of names, not a name", hints=[f"names=[{names!r}]"])
    if callable(names):
        for source in sources:
            source.entries = [entry for entry in source.entries if names(entry[0])]
        return
    wanted = set(names)
    present: set[str] = set()
    for source in sources:
        present.update(entry[0] for entry in source.entries)
        source.entries = [entry for entry in source.entries if entry[0] in wanted]
    for name in wanted - present:
        raise missing_name(name, present)


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
    link is followed; the permissions of a file that is replaced are kept. Work that is queued on the framework's
    current stream is waited for; host memory beside the tensors stays bounded.

    Args:
        tensors: arrays of torch, jax, numpy, cupy or forebay by name, contiguous.
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
    write_safetensors(os.fsdecode(os.fspath(path)), describe_all(tensors), metadata, checksums, durable)
