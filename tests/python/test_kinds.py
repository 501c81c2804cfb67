"""Files of another format than asked for: named by their content, with the function that reads them."""

from __future__ import annotations

import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forebay
import forebay.torch
from forebay import data, errors, pickles

torch = pytest.importorskip("torch", reason="torch is not installed")


def _tar(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("a.txt")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"abc"))


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "{}")


#: What makes a file, what it is called, and what its hint says.
MAKERS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "safetensors": (lambda path: forebay.save_file({"a": np.ones(3)}, path), "safetensors", "forebay.load_file"),
    "npy": (lambda path: forebay.write_npy(path, np.ones(3)), "a .npy file", "forebay.read_npy"),
    "npz": (lambda path: forebay.write_npz(path, {"a": np.ones(3)}), "a .npz file", "forebay.read_npz"),
    "torch": (lambda path: torch.save({"a": torch.ones(3)}, path), "a file of torch.save", "forebay.pickles.load"),
    "old torch": (
        lambda path: torch.save({"a": torch.ones(3)}, path, _use_new_zipfile_serialization=False),
        "a file of torch.save",
        "forebay.pickles.load",
    ),
    "packed": (lambda path: data.pack([np.ones(3)], path), "a file of forebay.data.pack", "forebay.data.packed"),
    "tar": (_tar, "a tar archive", "forebay.data.tar"),
    "zip": (_zip, "a zip archive", "unzip"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps({"a": 1})), "a pickle", "pickle.load"),
    "ONNX": (lambda path: path.write_bytes(b"\x08\x08\x12\x07pytorch\x1a\x052.1.0" + bytes(50)), "ONNX", "onnx.load"),
    "GGUF": (lambda path: path.write_bytes(b"GGUF\3\0\0\0" + bytes(50)), "GGUF", "llama.cpp"),
    "HDF5": (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(50)), "HDF5", "h5py"),
    "gzip": (lambda path: path.write_bytes(b"\x1f\x8b\x08" + bytes(50)), "gzip", "gunzip"),
    "Parquet": (lambda path: path.write_bytes(b"PAR1" + bytes(50)), "Parquet", "pyarrow"),
    "text": (lambda path: path.write_text("hello world\n" * 9), "a text", "head -c"),
    "page": (lambda path: path.write_text("<!DOCTYPE html><html>" + " " * 99), "a web page", "download"),
    "empty": (lambda path: path.write_bytes(b""), "empty", "fetch it again"),
}

READERS: dict[str, tuple[Callable[[Path], Any], set[str]]] = {
    "load_file": (lambda path: forebay.load_file(path, "cpu"), {"safetensors", "torch", "old torch"}),
    "safe_open": (lambda path: forebay.safe_open(path, "numpy"), {"safetensors"}),
    "forebay.torch.load": (lambda path: forebay.torch.load(path, "cpu"), {"safetensors", "torch", "old torch"}),
    "read_npy": (forebay.read_npy, {"npy"}),
    "open_npy": (forebay.open_npy, {"npy"}),
    "data.npy": (data.npy, {"npy"}),
    "read_npz": (forebay.read_npz, {"npz", "torch", "zip"}),
    "open_npz": (forebay.open_npz, {"npz", "torch", "zip"}),
    "pickles.load": (lambda path: pickles.load(path, "cpu"), {"torch", "old torch"}),
    "packed": (data.packed, {"packed"}),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_what_it_is_and_what_reads_it(kind: str, tmp_path: Path) -> None:
    make, what, hint = MAKERS[kind]
    path = tmp_path / "it is"
    make(path)
    for reader, (read, takes) in READERS.items():
        if kind in takes:
            continue
        with pytest.raises(errors.InvalidInputError) as caught:
            read(path)
        assert what in str(caught.value) and hint in caught.value.hints[0], (
            f"{reader}: {caught.value!r} {caught.value.hints}"
        )
        assert len(caught.value.hints) == 1, f"{reader}: {caught.value.hints}"


def test_programs_of_torchscript(tmp_path: Path) -> None:
    path = tmp_path / "script.pt"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("data.pkl", "constants.pkl", "code/x.py"):
            archive.writestr(f"script/{name}", b"\x80\x02N.")
    for read in (lambda: pickles.load(path), lambda: forebay.load_file(path, "cpu")):
        with pytest.raises(errors.InvalidInputError, match="TorchScript") as caught:
            read()
        assert "torch.jit.load" in caught.value.hints[0]
    with pytest.raises(errors.InvalidInputError, match="a file of torch.save"):
        forebay.read_npy(path)


def test_folders_of_checkpoints(tmp_path: Path) -> None:
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    state = {"a": torch.arange(5.0)}
    dcp.save(state, checkpoint_id=tmp_path / "theirs", no_dist=True)
    dcp.save(state, storage_writer=forebay.torch.CheckpointWriter(tmp_path / "ours"), no_dist=True)
    reader = forebay.torch.CheckpointReader(tmp_path / "theirs")
    with pytest.raises(errors.NotFoundError) as of_reader:
        reader.metadata()
    with pytest.raises(errors.NotFoundError) as of_file:
        forebay.load_file(tmp_path / "theirs")
    scope = {"torch": torch, "forebay": forebay}
    for refusal in (of_reader, of_file):
        scope["state"] = {"a": torch.zeros(5)}
        exec(refusal.value.hints[0].partition(": ")[2], scope)  # noqa: S102
        assert scope["state"]["a"].tolist() == [0, 1, 2, 3, 4]
