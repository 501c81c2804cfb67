"""Each format that Python reads, by ``nfs://`` from a real server, compared with the file itself; and each as a file that another
one takes the place of on the server meanwhile.

    tests/nfs/ganesha python tests/nfs/formats.py
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from data_files import npy_bytes, write_litdata, write_mds, write_megatron, write_tar

import forebay
import forebay.data
from forebay import _locations, errors

HOST: dict[str, Any] = {"framework": "numpy", "device": "cpu"}
HAS_TORCH = importlib.util.find_spec("torch") is not None
numbers = np.arange(24_000, dtype="f4").reshape(240, 100)


def rows(records: Any) -> Any:
    """The records of a data set, read."""
    return lambda: records[:]


def load_file(where: str) -> Callable[[], Any]:
    return lambda: forebay.load_file(where, framework="numpy")


def safe_open(where: str) -> Callable[[], Any]:
    file = forebay.safe_open(where, "np")
    return lambda: file.get_tensor("a")


def open_npz(where: str) -> Callable[[], Any]:
    file = forebay.open_npz(where)
    return lambda: {name: file[name] for name in file}


def pickled(where: str) -> Callable[[], Any]:
    import forebay.pickles

    return lambda: {name: one.numpy() for name, one in forebay.pickles.load(where).items()}


def checkpoint(where: str) -> Callable[[], Any]:
    import torch
    import torch.distributed.checkpoint as dcp

    import forebay.torch

    def load() -> Any:
        state = {"w": torch.zeros(240, 100)}
        dcp.load(state, storage_reader=forebay.torch.CheckpointReader(where), no_dist=True)
        return state["w"].numpy()

    return load


def write(folder: Path) -> None:
    """A file of each format."""
    if HAS_TORCH:
        write_torch(folder)
    forebay.save_file({"a": numbers, "b": numbers[:3]}, folder / "model.safetensors")
    (folder / "model").mkdir()
    forebay.save_file({"a": numbers}, folder / "model/1.safetensors")
    forebay.save_file({"b": numbers[:3]}, folder / "model/2.safetensors")
    index = '{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}'
    (folder / "model/model.safetensors.index.json").write_text(index)
    np.save(folder / "a b.npy", numbers)
    # Names of another encoding, too.
    for name in (b"one/a b.bin", b"one/caf\xe9.bin", b"two/deep/\xc3\xa4.bin"):
        path = folder / "classes" / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name * 99)
    np.savez_compressed(folder / "packed.npz", a=numbers, b=numbers[:3])
    samples = [{"cls": b"%d" % number, "npy": npy_bytes(numbers[number])} for number in range(40)]
    for number in range(2):
        write_tar(folder / f"{number:02}.tar", [(f"{key:04}", one) for key, one in enumerate(samples)])
    encoded = [{"x": numbers[number].tobytes(), "t": b"text" * number} for number in range(40)]
    write_mds(folder / "mds", {"x": ("ndarray:float32:100", 400), "t": ("bytes", None)}, [encoded[:20], encoded[20:]])
    write_mds(folder / "streams/one", {"t": ("bytes", None)}, [[{"t": b"text" * number} for number in range(9)]])
    items = [[numbers[number].tobytes()] for number in range(40)]
    write_litdata(folder / "litdata", ["x"], ["no_header_numpy:9"], [items[:20], items[20:]])
    write_megatron(folder / "tokens", [np.arange(50 + number) for number in range(20)], 4, "i4")
    forebay.data.pack([{"x": numbers[number]} for number in range(40)], folder / "packed")


def write_torch(folder: Path) -> None:
    """A file of each format that torch writes."""
    import torch
    import torch.distributed.checkpoint as dcp

    import forebay.torch

    tensor = torch.from_numpy(numbers)
    torch.save({"a": tensor}, folder / "model.pt")
    dcp.save({"w": tensor}, storage_writer=forebay.torch.CheckpointWriter(folder / "step"), no_dist=True)


#: What opens a location for reading, by the name of its file; opening it later than another file came in its place is right, too.
FORMATS: dict[str, tuple[str, Callable[[str], Callable[[], Any]]]] = {
    "load_file": ("model.safetensors", load_file),
    "load_file, index": ("model/model.safetensors.index.json", load_file),
    "safe_open": ("model.safetensors", safe_open),
    "open_npy": ("a b.npy", lambda where: rows(forebay.open_npy(where))),
    "open_npz": ("packed.npz", open_npz),
    "pickles.load": ("model.pt", pickled),
    "checkpoint": ("step", checkpoint),
    "data.raw": ("a b.npy", lambda where: rows(forebay.data.raw(where, "float32", 100, header=128, **HOST))),
    "data.npy": ("a b.npy", lambda where: rows(forebay.data.npy(where, **HOST))),
    "data.ranges": ("a b.npy", lambda where: rows(forebay.data.ranges(where, **HOST))),
    "data.tar": ("{00..01}.tar", lambda where: rows(forebay.data.tar(where, **HOST))),
    "load_file, folder": ("model", load_file),
    "data.tar, folder": ("", lambda where: rows(forebay.data.tar(where, **HOST))),
    "data.tar, glob": ("0[0-9].tar", lambda where: rows(forebay.data.tar(where, **HOST))),
    "data.ranges, folder": ("classes", lambda where: rows(forebay.data.ranges(where, **HOST))),
    "data.ranges, glob": ("classes/**/*.bin", lambda where: rows(forebay.data.ranges(where, **HOST))),
    "data.mds": ("mds", lambda where: rows(forebay.data.mds(where, **HOST))),
    "data.mds, folder": ("streams", lambda where: rows(forebay.data.mds(where, **HOST))),
    "data.litdata": ("litdata", lambda where: rows(forebay.data.litdata(where, **HOST))),
    "data.megatron": ("tokens", lambda where: rows(forebay.data.megatron(where, **HOST))),
    "data.packed": ("packed", lambda where: rows(forebay.data.packed(where, **HOST))),
}
NEED_TORCH = ("pickles.load", "checkpoint")
if not HAS_TORCH:
    FORMATS = {what: how for what, how in FORMATS.items() if what not in NEED_TORCH}
#: What lists a folder.
LISTING = {what for what in FORMATS if what.endswith((", folder", ", glob"))}
#: What opens the file when it reads it.
OPENED_LATER = {"load_file", "load_file, index", "load_file, folder", "pickles.load", "checkpoint"}
#: The file of each format that is replaced.
REPLACED = {
    "data.tar": "00.tar", "data.tar, folder": "00.tar", "data.tar, glob": "00.tar",
    "data.ranges, folder": "classes/one/a b.bin", "data.ranges, glob": "classes/one/a b.bin",
    "data.mds": "mds/shard.00000.mds", "data.mds, folder": "streams/one/shard.00000.mds",
    "data.litdata": "litdata/chunk-0-0.bin", "data.megatron": "tokens.bin",
}  # fmt: skip


def save_pack(where: str) -> None:
    forebay.data.pack([{"x": numbers[number]} for number in range(40)], where)


def save_torch(where: str) -> None:
    import torch

    import forebay.torch

    forebay.torch.save({"w": torch.from_numpy(numbers)}, where)


def load_torch(where: str) -> Any:
    import forebay.torch

    return {name: one.numpy() for name, one in forebay.torch.load(where).items()}


#: What saves a file, and what reads it again, by the name of the file.
SAVERS: dict[str, tuple[Callable[[str], None], Callable[[str], Any]]] = {
    "saved.safetensors": (
        lambda where: forebay.save_file({"a": numbers, "b": numbers[:3]}, where),
        lambda where: load_file(where)(),
    ),
    "saved a.npy": (lambda where: forebay.write_npy(where, numbers), lambda where: forebay.read_npy(where, **HOST)),
    "saved.npz": (
        lambda where: forebay.write_npz(where, {"a": numbers, "b": numbers[:0]}),
        lambda where: open_npz(where)(),
    ),
    "saved.packed": (save_pack, lambda where: forebay.data.packed(where, **HOST)[:]),
    "saved.state": (save_torch, load_torch),
}
if not HAS_TORCH:
    del SAVERS["saved.state"]


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal, whatever they are made of."""
    if isinstance(one, dict):
        return set(one) == set(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, forebay.data.Jagged):
        return same(one.values, other.values) and same(one.offsets, other.offsets)
    return bool(np.array_equal(np.asarray(one), np.asarray(other)))


def replace(path: Path) -> None:
    """Another file of as many bytes takes its place."""
    other = path.with_name("other")
    other.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
    os.replace(other, path)


def check_names(version: str, folder: Path) -> None:
    """A folder of more names than a reply takes."""
    folder.mkdir()
    for number in range(10_000):
        (folder / f"{number} {'x' * (number % 200)}").touch()
    names = _locations.names(f"nfs://127.0.0.1/export/{folder.parent.name}/many?version={version}")
    assert names == sorted(os.listdir(folder)), f"version {version}: other names than the folder's"


def check(version: str, folder: Path) -> None:
    """All formats by one version of the protocol."""
    from urllib.parse import quote

    folder.mkdir()
    write(folder)
    for what, (name, open_it) in FORMATS.items():
        url = f"nfs://127.0.0.1/export/{folder.name}/{quote(name, safe='/{}*[]')}?version={version}"
        read = open_it(url)
        assert same(open_it(str(folder / name))(), read()), f"{what}, version {version}: other bytes than the file's"
    check_names(version, folder / "many")
    for what, (name, open_it) in FORMATS.items():
        path = folder / REPLACED.get(what, name)
        if what in OPENED_LATER:
            continue
        before = open_it(str(folder / name))()
        read = open_it(f"nfs://127.0.0.1/export/{folder.name}/{quote(name, safe='/{}*[]')}?version={version}")
        kept = path.read_bytes()
        replace(path)
        try:
            found = read()
        except errors.BusyError:
            pass
        else:
            # The server may keep the file as long as it is open; a data set opens it when it reads it first.
            is_right = not what.startswith("data.") and same(found, before)
            assert is_right, f"{what}, version {version}: a file that was replaced was read"
        path.write_bytes(kept)
    print(f"v{version}: {len(FORMATS)} ways to read, compared")
    check_savers(version, folder)


def check_savers(version: str, folder: Path) -> None:
    """Each saver writes a file, and another one in its place, as it does on this machine."""
    old = os.umask(0o027)
    for name, (save, load) in SAVERS.items():
        path, url = folder / name, f"nfs://127.0.0.1/export/{folder.name}/{name.replace(' ', '%20')}?version={version}"
        there = folder / f"{name}.local"
        save(str(there))
        for round in range(2):
            save(url)
            assert path.read_bytes() == there.read_bytes(), (
                f"{name}, version {version}: other bytes than a local save's"
            )
            assert same(load(url), load(str(there))), f"{name}, version {version}"
            found = path.stat()
            wanted = (0o640, 0, 0) if round == 0 else (0o604, 7, 8)
            assert (found.st_mode & 0o777, found.st_uid, found.st_gid) == wanted, f"{name}, version {version}: {found}"
            # What replaces it is given its mode, owner and group.
            os.chown(path, 7, 8)
            path.chmod(0o604)
    try:
        forebay.write_npy(f"nfs://127.0.0.1/export/{folder.name}/failed?version={version}", numbers[:, 1:5])
    except errors.InvalidInputError:
        pass
    else:
        raise AssertionError("an array that is not contiguous was saved")
    os.umask(old)
    left = [path for path in folder.iterdir() if "forebay" in path.name or path.name == "failed"]
    assert not left, f"version {version}: {left}"
    print(f"v{version}: {len(SAVERS)} ways to save, compared")


if __name__ == "__main__":
    if not HAS_TORCH:
        print(f"skipped: {' and '.join(NEED_TORCH)} by nfs://: torch is not installed")
    for number, version in enumerate(("3", "4.0", "4.1", "4.2")):
        check(version, Path(os.environ["EXPORT"], f"formats{number}"))
