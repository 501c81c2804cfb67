"""Lightning's chunks (litdata), not compressed."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import _forebay, _locations
from ..errors import InvalidInputError, UnsupportedError
from ..frameworks import _dtypes
from ._decoded import WRAPPED, litdata_list, wrapped
from ._files import FileSet, bounded, chosen, index_in, read_json, read_start
from ._framed import Spans, alike, read_frames, split
from ._patterns import text_paths
from ._plain import need_numpy, whole_number
from ._records import FileRecords, Part, Records, Zipped

__all__ = ["litdata"]

_TORCH = {
    0: "float32", 1: "float32", 2: "float64", 3: "float64", 4: "complex64", 5: "complex64", 8: "float16", 9: "float16",
    10: "bfloat16", 11: "uint8", 12: "int8", 13: "int16", 14: "int16", 15: "int32", 16: "int32", 17: "int64",
    18: "int64", 19: "bool", 20: "uint16",
}  # fmt: skip
_NUMPY = {
    0: "int8", 1: "int16", 2: "int32", 3: "int64", 4: "uint8", 5: "uint16", 6: "uint32", 7: "uint64", 8: "float16",
    9: "float32", 10: "float64", 11: "complex64", 13: "bool",
}  # fmt: skip
_SCALARS = {"int": "I64", "float": "F64", "bool": "BOOL"}
#: Serializers whose values are bytes of any length, which come as they are.
_BYTES = {
    "str", "text", "bytes", "file", "jpeg", "image", "video", "audio", "tifffile", "tiff", "nifti", "mesh", "pdf",
}  # fmt: skip
#: An index with a larger number is damaged.
_MAX_COUNT = 1 << 40
#: Most values of a sample. An index that names more is damaged.
_MAX_LEAVES = 1 << 20
#: The last bytes of a chunk that keeps its samples as a table of Arrow's.
_ARROW = b"LDARW01\0"
_WAY_OUT = "forebay.data.pack(litdata.StreamingDataset(folder), path), then forebay.data.packed(path)"


class _Chunk(NamedTuple):
    """A chunk as its index describes it."""

    path: str
    described_in: str
    samples: Any
    tokens: Any


class _Index(NamedTuple):
    """The index of a folder."""

    path: str
    config: dict[str, Any]
    formats: list[str]
    chunks: list[_Chunk]


def litdata(
    folder: Any,
    columns: Sequence[str] | None = None,
    *,
    window: int | None = None,
    framework: str = "torch",
    device: object = None,
) -> Records:
    """A folder that litdata's ``optimize`` wrote, without compression, or several. Samples that are dicts come as dicts, others
    as they are. Numbers come as arrays, and so do arrays, pictures (``pil``) and lists of numbers of one shape; arrays and
    lists of numbers of different lengths as :class:`~forebay.data.Jagged`; other lists, dicts in lists and pictures that
    differ as lists of Python's values or arrays on the host; all else (``jpeg``, ``str``, arrays of different shapes, …)
    as ``Jagged`` bytes, not decoded.

    Args:
        folder: with ``index.json``, or the path of that, and the chunks; or several, or a pattern.
        columns: to read, of samples that are dicts; by default all. Nested ones are called ``"a.b"``.
        window: tokens of a record, for data written for ``TokensLoader``: its ``block_size``.
        framework: as for :func:`~forebay.data.raw`.
        device: as for :func:`~forebay.data.raw`.

    Raises:
        InvalidInputError: index and chunks contradict each other, or folders have different samples.
        UnsupportedError: compressed or encrypted chunks, pickled leaves, another kind of chunks.
        NotFoundError: an index or a chunk is missing.
    """
    described = [_described(*index_in(one)) for one in text_paths(folder)]
    first = described[0]
    for other in described:
        for what in ("item_loader", "data_format", "data_spec"):
            if other.config.get(what) != first.config.get(what):
                raise InvalidInputError(
                    f"the folders differ in {what}", hints=["open them apart"], path=other.path, before=first.path
                )
    chunks = [chunk for index in described for chunk in index.chunks]
    files = FileSet(chunk.path for chunk in chunks)
    loader = first.config.get("item_loader")
    if loader == "TokensLoader":
        return _tokens(files, chunks, first, window, framework, device)
    if loader not in (None, "PyTreeLoader"):
        raise UnsupportedError(
            f"chunks for litdata's {loader}", hints=["PyTreeLoader and TokensLoader"], path=first.path
        )
    if window is not None:
        raise InvalidInputError("window= is for chunks of TokensLoader", path=first.path)
    return _tree(files, chunks, first, columns, framework, device)


def _described(folder: str, path: str) -> _Index:
    described = read_json(path)
    chunks, config = described.get("chunks"), described.get("config")
    if not isinstance(chunks, list) or not chunks or not isinstance(config, dict):
        raise InvalidInputError("the index has no chunks", path=path)
    for key in ("compression", "compression_level", "ipc_compression", "encryption"):
        if config.get(key) is not None:
            raise UnsupportedError(
                f"the chunks are written with {key}",
                hints=["write them without it", _WAY_OUT],
                path=path,
                value=config[key],
            )
    formats = config.get("data_format")
    if not isinstance(formats, list) or not formats or not all(isinstance(one, str) for one in formats):
        raise InvalidInputError("the index names no data_format", path=path)
    return _Index(path, config, formats, [_chunk(chunk, folder, path) for chunk in chunks])


def _chunk(chunk: Any, folder: str, index: str) -> _Chunk:
    path = _locations.member(folder, _file_name(chunk, index))
    return _Chunk(path, index, chunk.get("chunk_size"), chunk.get("dim"))


def _file_name(chunk: Any, index: str) -> str:
    name = chunk.get("filename") if isinstance(chunk, dict) else None
    if not isinstance(name, str) or "/" in name or name in ("", ".", ".."):
        raise InvalidInputError(f"a chunk cannot be called {name!r}", path=index)
    if not name.endswith(".bin") or ".zstd" in name:
        raise UnsupportedError(f"a chunk that is no plain .bin: {name!r}", path=index)
    return name


def _tokens(
    files: FileSet, chunks: list[_Chunk], index: _Index, window: int | None, framework: str, device: object
) -> FileRecords:
    if window is None:
        raise InvalidInputError("how many tokens has a record?", hints=["window=2048, TokensLoader's block_size"])
    window = whole_number("window", window, 1)
    bounded(window, _MAX_COUNT, "a window", index.path)
    dtype = _flat(index.formats[0], index.path)
    if dtype is None or len(index.formats) != 1:
        raise InvalidInputError("the index describes no tokens", path=index.path, data_format=index.formats)
    item = _forebay.dtype_size(dtype) // 8
    parts: list[Part] = []
    for number, chunk in enumerate(chunks):
        tokens = bounded(chunk.tokens, _MAX_COUNT, "the tokens of a chunk", chunk.described_in)
        frames = read_frames(files, number, chunk.samples, "chunk")
        begin = int(frames.starts[0]) if len(frames.starts) else 0
        end = int(frames.ends[-1]) if len(frames.ends) else 0
        if tokens * item != end - begin:
            raise InvalidInputError(
                "a chunk has other bytes than its tokens", path=files.paths[number], tokens=tokens, bytes=end - begin
            )
        parts.append((number, (tokens // window, begin, window * item, window * item)))
    return FileRecords(files, parts, dtype, (window,), framework, device)


def _tree(
    files: FileSet,
    chunks: list[_Chunk],
    described: _Index,
    columns: Sequence[str] | None,
    framework: str,
    device: object,
) -> Records:
    index, formats = described.path, described.formats
    names = _leaves(described.config.get("data_spec"), index)
    if len(names) != len(formats):
        raise InvalidInputError(
            "the index has not one format for each leaf", path=index, leaves=len(names), formats=len(formats)
        )
    if len(set(names)) < len(names):
        raise UnsupportedError("two leaves of a sample have one name", hints=[_WAY_OUT], path=index)
    wanted = chosen(columns, names, index)
    chosen_names = set(wanted)
    # Others have their size before them whatever they are.
    sizes = [
        _size(name, format, index) if name in chosen_names else None
        for name, format in zip(names, formats, strict=True)
    ]
    _refuse_arrow(files)
    frames = [read_frames(files, number, chunk.samples, "chunk") for number, chunk in enumerate(chunks)]
    places = split(files, frames, sizes, [True] * len(sizes), "chunk")
    made: dict[str, Records] = {}
    for name, format, spans in zip(names, formats, places, strict=True):
        if name in chosen_names:
            made[name] = _leaf(files, name, format, spans, framework, device, index)
    return made[""] if names == [""] else Zipped({name: made[name] for name in wanted})


def _refuse_arrow(files: FileSet) -> None:
    """Raises where chunks keep no leaves, as litdata writes them for plain values where pyarrow is installed."""
    for number, path in enumerate(files.paths):
        size = files.size(number)
        if size >= len(_ARROW) and read_start(path, size - len(_ARROW), len(_ARROW)) == _ARROW:
            raise UnsupportedError("a chunk keeps its samples as a table of Arrow's", hints=[_WAY_OUT], path=path)


def _size(name: str, format: str, index: str) -> int | None:
    """Bytes of a leaf, ``None`` where they differ."""
    if format in _SCALARS:
        return _forebay.dtype_size(_SCALARS[format]) // 8
    kind = format.split(":")[0]
    # A sample that is no dict, list or tuple has one leaf, without a name.
    what = f"leaf {name!r}" if name else "each sample"
    way_out = ["columns= leaves it out", _WAY_OUT] if name else [_WAY_OUT]
    if kind == "pickle" or format == "graph:pickle":
        raise UnsupportedError(
            f"{what} is pickled: to read it is to run code out of the file",
            hints=["write numbers, arrays, texts or bytes", *way_out],
            path=index,
        )
    known = (
        kind in _BYTES or kind in WRAPPED or kind in ("json", "no_header_numpy", "no_header_tensor", "numpy", "tensor")
    )
    if not known:
        raise UnsupportedError(f"{what} has the unknown format {format!r}", hints=way_out, path=index)
    return None


def _leaves(spec: Any, index: str) -> list[str]:
    """The names of a sample's leaves, from litdata's (torch's) description of the tree."""
    try:
        version, root = json.loads(spec) if isinstance(spec, str) else (None, None)
    except (ValueError, TypeError, RecursionError):
        version, root = None, None
    if version != 1 or not isinstance(root, dict):
        raise UnsupportedError(f"a data_spec of version {version!r}", hints=["version 1 is known"], path=index)
    names: list[str] = []
    waiting: list[tuple[str, Any]] = [("", root)]
    while waiting:
        name, node = waiting.pop()
        children = node.get("children_spec") if isinstance(node, dict) else None
        if not isinstance(children, list) or len(names) + len(waiting) + len(children) > _MAX_LEAVES:
            raise InvalidInputError("the index describes no sample", path=index)
        if node.get("type") is None:
            names.append(name)
            continue
        keys = _keys(node, len(children), index)
        pairs = [(f"{name}.{key}" if name else key, child) for key, child in zip(keys, children, strict=True)]
        waiting.extend(reversed(pairs))
    return names


def _keys(node: dict[str, Any], count: int, index: str) -> list[str]:
    if node["type"] in ("builtins.list", "builtins.tuple"):
        return [str(number) for number in range(count)]
    try:
        context = json.loads(node["context"])
    except (KeyError, ValueError, TypeError, RecursionError):
        context = None
    if node["type"] != "builtins.dict" or not isinstance(context, list) or len(context) != count:
        raise UnsupportedError(f"samples of {node['type']!r}", hints=["dicts, lists and tuples"], path=index)
    return [str(key) for key in context]


def _flat(format: str, index: str) -> str | None:
    """safetensors' name of the elements of a one-dimensional array without a header."""
    kind, _, code = format.partition(":")
    if kind not in ("no_header_numpy", "no_header_tensor"):
        return None
    return _coded(kind.removeprefix("no_header_"), int(code) if code.isdecimal() and len(code) < 4 else -1, index)


def _coded(kind: str, code: int, index: str) -> str:
    name = (_TORCH if kind == "tensor" else _NUMPY).get(code)
    if name is None:
        raise UnsupportedError(f"elements of litdata's {kind} dtype {code}", path=index)
    return _dtypes.NAMES[name]


def _leaf(
    files: FileSet, name: str, format: str, spans: list[Spans], framework: str, device: object, index: str
) -> Records:
    parts = [span.part for span in spans]
    if format == "json":
        return litdata_list(files, spans, name, framework, device)
    if format in WRAPPED:
        return wrapped(files, spans, format, name, framework, device)
    if format in _SCALARS:
        return FileRecords(files, parts, _SCALARS[format], (), framework, device)
    dtype = _flat(format, index)
    if dtype is not None:
        item = _forebay.dtype_size(dtype) // 8
        shape = _same_length(files, spans, item, name)
        if shape is None:
            return FileRecords(files, parts, dtype, (), framework, device, jagged=True)
        return FileRecords(
            files, [(span.file, (span.starts, shape * item)) for span in spans], dtype, (shape,), framework, device
        )
    if format in ("numpy", "tensor"):
        return _with_header(files, name, format, spans, framework, device, index)
    return FileRecords(files, parts, "U8", (), framework, device, jagged=True)


def _same_length(files: FileSet, spans: list[Spans], item: int, name: str) -> int | None:
    """The elements that all values have; ``None`` if they differ."""
    numpy = need_numpy()
    lengths = numpy.unique(numpy.concatenate([numpy.atleast_1d(span.lengths) for span in spans]))
    wrong = lengths[lengths % item != 0]
    if len(wrong):
        raise InvalidInputError(
            f"a value of {name!r} is no whole number of elements", bytes=int(wrong[0]), path=files.paths[0]
        )
    return int(lengths[0]) // item if len(lengths) == 1 else None


def _with_header(
    files: FileSet, name: str, format: str, spans: list[Spans], framework: str, device: object, index: str
) -> FileRecords:
    """Arrays with dtype and shape before them; bytes where these differ."""
    numpy = need_numpy()
    order = ">" if format == "tensor" else "<"
    start = alike(files, spans, 8, name)
    if start == b"":
        return FileRecords(files, [], "U8", (), framework, device)
    code, dimensions = struct.unpack(f"{order}II", start) if start else (0, 0)
    skip = 8 + 4 * bounded(dimensions, 32, "the dimensions of a value", files.paths[0])
    header = alike(files, spans, skip, name) if start else None
    if header is None:
        # Of different shapes: each with its header.
        return FileRecords(files, [span.part for span in spans], "U8", (), framework, device, jagged=True)
    shape = struct.unpack(f"{order}{dimensions}I", header[8:])
    dtype = _coded(format, code, index)
    nbytes = math.prod(shape) * _forebay.dtype_size(dtype) // 8
    for span in spans:
        if bool((numpy.asarray(span.lengths) != skip + nbytes).any()):
            raise InvalidInputError(f"a value of {name!r} has not the bytes of its shape", path=files.paths[span.file])
    parts: list[Part] = [(span.file, (span.starts + numpy.uint64(skip), nbytes)) for span in spans]
    return FileRecords(files, parts, dtype, shape, framework, device)
