"""Writes files of the formats of training data as their libraries do, byte by byte, for tests."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy


def framed(samples: list[bytes], config: bytes = b"") -> bytes:
    """A shard: the number of samples, their offsets, what lies between, the samples."""
    ends = numpy.cumsum([0, *map(len, samples)]) + 4 * (len(samples) + 2) + len(config)
    return struct.pack("<I", len(samples)) + ends.astype("<u4").tobytes() + config + b"".join(samples)


def write_mds(folder: Path, columns: dict[str, tuple[str, int | None]], shards: list[list[dict[str, bytes]]]) -> None:
    """MosaicML's: columns are name to (encoding, bytes or None)."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(columns)
    told = []
    for number, samples in enumerate(shards):
        packed = []
        for sample in samples:
            head = b"".join(struct.pack("<I", len(sample[name])) for name in names if columns[name][1] is None)
            packed.append(head + b"".join(sample[name] for name in names))
        data = framed(packed, b'{"format": "mds"}')
        name = f"shard.{number:05}.mds"
        (folder / name).write_bytes(data)
        told.append(
            {
                "version": 2,
                "format": "mds",
                "compression": None,
                "hashes": [],
                "column_names": names,
                "column_encodings": [columns[name][0] for name in names],
                "column_sizes": [columns[name][1] for name in names],
                "samples": len(samples),
                "size_limit": 1 << 26,
                "raw_data": {"basename": name, "bytes": len(data), "hashes": {}},
                "zip_data": None,
            }
        )
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": told}))


def write_litdata(folder: Path, keys: list[str] | None, formats: list[str], chunks: list[list[list[bytes]]]) -> None:
    """Lightning's: each item is the bytes of its leaves."""
    folder.mkdir(parents=True, exist_ok=True)
    leaf = {"type": None, "context": None, "children_spec": []}
    root: Any = leaf
    if keys is not None:
        root = {"type": "builtins.dict", "context": json.dumps(keys), "children_spec": [leaf] * len(keys)}
    told = []
    for number, items in enumerate(chunks):
        packed = [b"".join(struct.pack("<I", len(one)) for one in leaves) + b"".join(leaves) for leaves in items]
        data = framed(packed)
        name = f"chunk-0-{number}.bin"
        (folder / name).write_bytes(data)
        told.append({"filename": name, "chunk_bytes": len(data), "chunk_size": len(items), "dim": None})
    config = {
        "compression": None,
        "data_format": formats,
        "data_spec": json.dumps([1, root]),
        "encryption": None,
        "item_loader": "PyTreeLoader",
    }
    (folder / "index.json").write_text(json.dumps({"chunks": told, "config": config, "updated_at": "0"}))


def write_megatron(prefix: Path, sequences: list[Any], code: int, dtype: str) -> None:
    """Megatron's: one document for each sequence."""
    lengths = numpy.array([len(one) for one in sequences], "<i4")
    item = numpy.dtype(dtype).itemsize
    pointers = (numpy.cumsum([0, *lengths[:-1]]) * item).astype("<i8") if len(lengths) else numpy.zeros(0, "<i8")
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sequences), len(sequences) + 1)
    documents = numpy.arange(len(sequences) + 1, dtype="<i8")
    Path(f"{prefix}.idx").write_bytes(head + lengths.tobytes() + pointers.tobytes() + documents.tobytes())
    Path(f"{prefix}.bin").write_bytes(b"".join(numpy.asarray(one, dtype).tobytes() for one in sequences))


def write_tar(path: Path, samples: list[tuple[str, dict[str, bytes]]]) -> None:
    """WebDataset's."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for key, members in samples:
            for column, data in members.items():
                member = tarfile.TarInfo(f"{key}.{column}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def npy_bytes(array: Any) -> bytes:
    """A ``.npy`` file."""
    file = io.BytesIO()
    numpy.save(file, array)
    return file.getvalue()


def resident(path: Path) -> float:
    """The share of a file's pages that is in the page cache."""
    import ctypes
    import mmap

    size = path.stat().st_size
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_PRIVATE) as mapped,
    ):
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(mapped)
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), pages) == 0
        del first
    return sum(page & 1 for page in pages) / len(pages)
