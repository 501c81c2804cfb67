"""Recognises a file of an unexpected format by its first bytes, and names its reader. Imported only then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from . import _locations
from ._shell import word
from ._torch_archives import is_legacy
from .errors import InvalidInputError

if TYPE_CHECKING:
    from ._forebay import File

__all__ = [
    "NPY",
    "NPZ",
    "PACKED",
    "SAFETENSORS",
    "START_BYTES",
    "TAR",
    "TORCH",
    "folder_hints",
    "is_npz",
    "other_kind",
    "other_start",
]

SAFETENSORS: Final = "safetensors"
NPY: Final = "a .npy file"
NPZ: Final = "a .npz file"
TORCH: Final = "a file of torch.save"
PACKED: Final = "a file of forebay.data.pack"
TAR: Final = "a tar archive"

START_BYTES: Final = 512
#: How files begin, what they are, and what to do with them.
_KINDS: Final = (
    (b"\x1f\x8b", "a gzip file", "unpack it first: gunzip -k FILE"),
    (b"BZh", "a bzip2 file", "unpack it first: bunzip2 -k FILE"),
    (b"\xfd7zXZ\x00", "an xz file", "unpack it first: unxz -k FILE"),
    (b"\x28\xb5\x2f\xfd", "a zstd file", "unpack it first: unzstd FILE"),
    (b"\x93NUMPY", NPY, "forebay.read_npy(path)"),
    (b"FBRECORD", PACKED, "forebay.data.packed(path)"),
    (b"GGUF", "a GGUF file", "forebay.torch.weights(path), llama.cpp and transformers (gguf_file=…) read those"),
    (b"\x89HDF\r\n", "an HDF5 file", "h5py reads those"),
    (b"PAR1", "a Parquet file", "pyarrow.parquet.read_table reads those"),
    (b"ARROW1", "an Arrow file", "pyarrow.ipc.open_file reads those"),
    (b"version https://git-lfs", "a pointer of Git LFS, not the file", "fetch the file: git lfs pull"),
)
_ZIP: Final = b"PK\x03\x04"
#: The fields that follow the version in an ONNX model, as protobuf marks them: names, versions, the graph.
_ONNX_FIELDS: Final = b"\x12\x1a\x22\x28\x32\x3a\x42"
_MAX_ONNX_VERSION: Final = 30


def other_kind(file: File, wanted: str) -> InvalidInputError | None:
    """The error with the format of an open file that is not the wanted one; ``None`` where the format is unknown."""
    try:
        start = file.read(START_BYTES)
    except (OSError, ValueError, EOFError):
        return None
    return other_start(start, file.size, file.path, wanted)


def other_start(start: bytes, size: int, path: str, wanted: str) -> InvalidInputError | None:
    """The same of a file's first ``START_BYTES``."""
    what, hint = _kind(start, size)
    if what == wanted:
        return None
    if what:
        what, hint = what.replace("FILE", path), hint.replace("FILE", word(path))
        return InvalidInputError(f"this is {what}, not {wanted}", hints=[hint], path=path)
    if not start:
        return InvalidInputError("the file is empty", hints=["write it again, or fetch it again"], path=path)
    if _is_text(start):
        is_page = start.lstrip()[:9].lower().startswith((b"<!doctype", b"<html"))
        hints = ["an index is loaded under its own name: model.safetensors.index.json"] if start[:1] == b"{" else []
        hints = hints or (["download it again"] if is_page else [f"look at it: head -c 200 {word(path)}"])
        return InvalidInputError(
            f"this is {'a web page' if is_page else 'a text'}, not {wanted}", hints=hints, path=path
        )
    return None


def _kind(start: bytes, size: int) -> tuple[str, str]:
    """A file's format and its reader; empty if unknown."""
    for begin, what, hint in _KINDS:
        if start.startswith(begin):
            return what, hint
    if is_npz(start):
        return NPZ, "forebay.read_npz(path)"
    if start.startswith(_ZIP):
        return _zip_kind(start)
    if is_legacy(start):
        return TORCH, "forebay.pickles.load(path)"
    if start[257:262] == b"ustar":
        return TAR, "forebay.data.tar(path), or unpack it: tar -xf FILE"
    if 0 < int.from_bytes(start[:8], "little") <= size - 8 and start[8:9] == b"{":
        return SAFETENSORS, "forebay.load_file(path)"
    if start[:1] == b"\x80" and start[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        return "a pickle", "it can run code: if you trust its maker, pickle.load reads it"
    if start[:1] == b"\x08" and 0 < start[1] <= _MAX_ONNX_VERSION and start[2:3] and start[2] in _ONNX_FIELDS:
        return "an ONNX model", "onnx.load reads those"
    return "", ""


def _zip_kind(start: bytes) -> tuple[str, str]:
    first = _first_member(start)
    if first.endswith((b"/data.pkl", b"/.format_version", b"/.data/serialization_id")):
        return TORCH, "forebay.pickles.load(path)"
    return "a zip archive", "unpack it: unzip FILE"


def _first_member(start: bytes) -> bytes:
    return start[30 : 30 + int.from_bytes(start[26:28], "little")]


def is_npz(start: bytes) -> bool:
    """Whether the first bytes are of a zip whose first member is an array of numpy's."""
    return start.startswith(_ZIP) and _first_member(start).endswith(b".npy")


def folder_hints(folder: str) -> list[str]:
    """The reader of a folder without a model."""
    if _locations.is_file(_locations.member(folder, ".metadata")):
        return [
            "torch.distributed.checkpoint wrote this folder: "
            f"torch.distributed.checkpoint.load(state, checkpoint_id={folder!r})"
        ]
    if _locations.is_file(_locations.member(folder, "checkpoint.json")):
        reader = f"forebay.torch.CheckpointReader({folder!r})"
        return [f"it is a checkpoint: torch.distributed.checkpoint.load(state, storage_reader={reader})"]
    if any(_locations.exists(_locations.member(folder, name)) for name in ("zarr.json", ".zgroup", ".zarray")):
        return ["it is a Zarr store: zarr.open reads it"]
    return []


def _is_text(start: bytes) -> bool:
    # The last character may be cut.
    text = start.decode("utf-8", "replace")[:-1]
    return all(letter.isprintable() or letter in "\t\n\r\f" for letter in text) and "\ufffd" not in text
