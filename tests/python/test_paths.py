"""What a program opens by a path stays what it was: when the program changes its folder, and when the file is replaced, rewritten
or removed before it is read. It gives the old values or an error that says so, never other bytes.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import data_files as files
import numpy as np
import pytest

import forebay
import forebay.data
from forebay import errors

ROWS = 6


class Case(NamedTuple):
    """How a file is made, taken by its path, and used.

    Attributes:
        make: writes it, with these values.
        take: what a program keeps.
        use: the values in it.
        is_live: what is rewritten in place is read as it is then: a plain file, or an array that is being filled.
    """

    make: Callable[[Path, Any], object]
    take: Callable[[str], Any]
    use: Callable[[Any], Any]
    is_live: bool = False


def numbers(factor: int) -> Any:
    return np.arange(ROWS * 3, dtype="int64").reshape(ROWS, 3) * factor


def make_npy(path: Path, values: Any) -> None:
    with path.open("wb") as file:
        np.save(file, values)


def in_order(save: Callable[..., object]) -> Callable[[Path, Any], None]:
    def make(path: Path, values: Any) -> None:
        names = ("a", "b") if values[0, 1] == 1 else ("b", "a")
        with path.open("wb") as file:
            save(file, **{name: values + (name == "b") for name in names})

    return make


def make_safetensors(path: Path, values: Any) -> None:
    forebay.save_file({"a": values}, path, durable=False)


def make_pack(path: Path, values: Any) -> None:
    forebay.data.pack([{"x": row} for row in values], path, durable=False)


def make_mds(path: Path, values: Any) -> None:
    files.write_mds(path, {"x": ("ndarray:int64:3", 24)}, [[{"x": row.tobytes()} for row in values]])


def make_litdata(path: Path, values: Any) -> None:
    files.write_litdata(path, ["x"], ["no_header_numpy:3"], [[[row.tobytes()] for row in values]])


def make_megatron(path: Path, values: Any) -> None:
    path.mkdir(exist_ok=True)
    files.write_megatron(path / "x", [values.reshape(-1)], 5, "int64")


def all_of(records: Any) -> Any:
    """All records as one array."""
    batch = records[:]
    batch = batch["x"] if isinstance(batch, dict) else batch
    batch = getattr(batch, "values", batch)
    return np.asarray(batch).view("int64").reshape(ROWS, 3)


HOST: dict[str, Any] = {"framework": "numpy", "device": "cpu"}
CASES = {
    "open": Case(
        lambda path, values: path.write_bytes(values.tobytes()),
        forebay.open,
        lambda file: np.frombuffer(file.read(), "int64").reshape(ROWS, 3),
        True,
    ),
    "open_npy": Case(make_npy, forebay.open_npy, lambda array: array[...], True),
    "open_npy, rows": Case(make_npy, forebay.open_npy, lambda array: array[list(range(ROWS))], True),
    "open_npz, item": Case(in_order(np.savez), forebay.open_npz, lambda archive: archive["a"]),
    "open_npz, read": Case(in_order(np.savez), forebay.open_npz, lambda archive: archive.read()["a"]),
    "open_npz, compressed": Case(in_order(np.savez_compressed), forebay.open_npz, lambda archive: archive["a"]),
    "NpzFile.open": Case(in_order(np.savez), forebay.open_npz, lambda archive: archive.open("a")[...]),
    "NpzFile.open, early": Case(
        in_order(np.savez), lambda path: forebay.open_npz(path).open("a"), lambda array: array[:, :]
    ),
    "NpzFile.open, compressed": Case(
        in_order(np.savez_compressed), lambda path: forebay.open_npz(path).open("a"), lambda array: array[...]
    ),
    "safe_open": Case(make_safetensors, lambda path: forebay.safe_open(path, "np"), lambda file: file.get_tensor("a")),
    "safe_open, all": Case(
        make_safetensors, lambda path: forebay.safe_open(path, "np"), lambda file: file.get_tensors()["a"]
    ),
    "safe_open, slice": Case(
        make_safetensors, lambda path: forebay.safe_open(path, "np").get_slice("a"), lambda part: part[:, :]
    ),
    "data.raw": Case(
        lambda path, values: path.write_bytes(values.tobytes()),
        lambda path: forebay.data.raw(path, "int64", 3, **HOST),
        all_of,
    ),
    "data.ranges": Case(
        lambda path, values: path.write_bytes(values.tobytes()),
        lambda path: forebay.data.ranges(path, [0, 24], [24, 24 * (ROWS - 1)], "int64", **HOST),
        all_of,
    ),
    "data.npy": Case(make_npy, lambda path: forebay.data.npy(path, **HOST), all_of),
    "data.packed": Case(make_pack, lambda path: forebay.data.packed(path, **HOST), all_of),
    "data.tar": Case(
        lambda path, values: files.write_tar(path, [(f"{i}", {"x": row.tobytes()}) for i, row in enumerate(values)]),
        lambda path: forebay.data.tar(path, **HOST),
        all_of,
    ),
    "data.mds": Case(make_mds, lambda path: forebay.data.mds(path, **HOST), all_of),
    "data.litdata": Case(make_litdata, lambda path: forebay.data.litdata(path, **HOST), all_of),
    "data.megatron": Case(make_megatron, lambda path: forebay.data.megatron(f"{path}/x", **HOST), all_of),
}
#: Objects sent to other processes.
PICKLED = [name for name in CASES if not name.startswith("safe_open")]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """Two folders; the program is in the first."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(), two.mkdir()
    monkeypatch.chdir(one)
    yield one, two


def put(path: Path, new: Path) -> None:
    """Renames a new file, or each file of a new folder, onto the old."""
    if not new.is_dir():
        os.replace(new, path)
        return
    for one in sorted(new.iterdir()):
        os.replace(one, path / one.name)


def rewrite(path: Path, new: Path) -> None:
    pairs = [(path, new)] if not new.is_dir() else [(path / one.name, one) for one in sorted(new.iterdir())]
    for old, other in pairs:
        with old.open("r+b") as file:
            file.write(other.read_bytes())


def remove(path: Path, _new: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


EVENTS: dict[str, Callable[[Path, Path], None]] = {
    "chdir": lambda path, new: os.chdir(new.parent),
    "replaced": put,
    "rewritten": rewrite,
    "removed": remove,
}


WAYS = [
    (name, way)
    for name in CASES
    for way in ("kept", "used before", "sent", "sent and used")
    if name in PICKLED or not way.startswith("sent")
]


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize(("name", "way"), WAYS)
def test_what_is_taken_by_a_path_stays_what_it_was(name: str, way: str, event: str, folders: tuple[Path, Path]) -> None:
    case = CASES[name]
    one, two = folders
    case.make(one / "x", numbers(1))
    case.make(two / "x", numbers(100))
    taken = case.take("x")
    if way in ("used before", "sent and used"):
        assert np.array_equal(case.use(taken), numbers(1))
    sent = pickle.dumps(taken) if way.startswith("sent") else None
    EVENTS[event](one / "x", two / "x")
    try:
        found = case.use(taken if sent is None else pickle.loads(sent))
    except (errors.BusyError, errors.NotFoundError):
        assert event != "chdir"
        return
    wanted = numbers(100 if event == "rewritten" and case.is_live and sent is None else 1)
    assert np.array_equal(found, wanted)


def test_a_live_array_that_becomes_another_one(folders: tuple[Path, Path]) -> None:
    np.save("x.npy", numbers(1))
    array = forebay.open_npy("x.npy")
    filling = np.load("x.npy", mmap_mode="r+")
    filling[2] = 7
    filling.flush()
    assert array[2].tolist() == [7, 7, 7]
    assert pickle.loads(pickle.dumps(array))[2].tolist() == [7, 7, 7]
    np.save("x.npy", numbers(1).astype("float32"))
    for read in (lambda: array[2], lambda: array[...], lambda: array[[1, 2]], lambda: pickle.dumps(array)):
        with pytest.raises(errors.BusyError, match="changed while it was read"):
            read()


def test_a_copy_with_the_same_size_and_time_is_another_file(folders: tuple[Path, Path]) -> None:
    one, _ = folders
    for name, case in CASES.items():
        path = one / f"{list(CASES).index(name)}"
        if name not in PICKLED or name.startswith("data."):
            continue
        case.make(path, numbers(1))
        times = path.stat()
        sent = pickle.dumps(case.take(str(path)))
        case.make(one / "new", numbers(100))
        if (one / "new").stat().st_size != times.st_size:
            (one / "new").unlink()
            continue
        os.utime(one / "new", ns=(times.st_atime_ns, times.st_mtime_ns))
        os.replace(one / "new", path)
        with pytest.raises(errors.BusyError):
            print(name, case.use(pickle.loads(sent)))


def test_what_was_moved_and_moved_back_is_the_same(folders: tuple[Path, Path]) -> None:
    np.save("x.npy", numbers(1))
    sent = pickle.dumps(forebay.open_npy("x.npy"))
    os.rename("x.npy", "y.npy")
    with pytest.raises(errors.NotFoundError):
        pickle.loads(sent)
    os.rename("y.npy", "x.npy")
    os.chmod("x.npy", 0o600)
    assert np.array_equal(pickle.loads(sent)[...], numbers(1))


def test_dots_behind_a_link_are_the_kernels(folders: tuple[Path, Path]) -> None:
    """``link/..`` is the folder above what the link leads to: not the one that the link lies in."""
    one, two = folders
    (two / "inner").mkdir()
    os.symlink(two / "inner", one / "link")
    np.save(one / "x.npy", numbers(100))
    np.save(two / "x.npy", numbers(1))
    for case in ("open_npy", "data.npy"):
        taken = CASES[case].take("link/../x.npy")
        assert np.array_equal(CASES[case].use(taken), numbers(1))
        assert np.array_equal(CASES[case].use(pickle.loads(pickle.dumps(taken))), numbers(1))
    assert np.array_equal(
        np.frombuffer(pickle.loads(pickle.dumps(forebay.open("link/../x.npy"))).read()[-8:], "i8"), [17]
    )


READER = """
import pickle, sys
import numpy
print([int(numpy.asarray(one[1]).reshape(-1)[0]) if not hasattr(one, "read") else one.size for one in pickle.load(sys.stdin.buffer)])
"""


def test_other_processes_in_other_folders(folders: tuple[Path, Path]) -> None:
    one, two = folders
    for folder, factor in ((one, 1), (two, 100)):
        np.save(folder / "x.npy", numbers(factor))
        np.savez(folder / "x.npz", a=numbers(factor))
        (folder / "x").write_bytes(numbers(factor).tobytes())
    taken = [forebay.open("x"), forebay.open_npy("x.npy"), forebay.open_npz("x.npz").open("a")]
    taken.append(forebay.data.raw("x", "int64", 3, **HOST))
    os.chdir(two)
    done = subprocess.run(
        [sys.executable, "-c", READER], input=pickle.dumps(taken), capture_output=True, cwd=two, check=False
    )
    assert done.stdout.decode() == f"[{numbers(1).nbytes}, 3, 3, 3]\n", done.stderr.decode()


def test_a_folder_that_was_removed(folders: tuple[Path, Path]) -> None:
    one, two = folders
    np.save(two / "x.npy", numbers(1))
    one.rmdir()
    for call in (forebay.open, forebay.open_npy, lambda path: forebay.load_file(path, framework="numpy")):
        with pytest.raises(errors.NotFoundError, match="the program's folder was removed") as caught:
            call("x.npy")
        assert caught.value.hints
    assert np.array_equal(forebay.read_npy(two / "x.npy"), numbers(1))


def test_writers_write_where_they_were_called(folders: tuple[Path, Path]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import torch.distributed.checkpoint as dcp

    import forebay.torch as ft

    one, two = folders
    writer, reader = ft.CheckpointWriter("step"), ft.CheckpointReader("step")
    task = ft.save_async({"w": torch.ones(2)}, "state", snapshot="host", durable=False)
    pending = forebay._forebay.Pending("file")
    behind = writer.save_async({"w": torch.ones(3)}, snapshot="host")
    os.chdir(two)
    pending.commit(False)
    task.result()
    behind.result()
    state = {"w": torch.zeros(3)}
    dcp.load(state, storage_reader=reader, no_dist=True)
    assert state["w"].tolist() == [1, 1, 1]
    assert sorted(path.name for path in one.iterdir()) == ["file", "state", "step"] and not list(two.iterdir())
    assert ft.load(one / "state", "cpu")["w"].tolist() == [1, 1]


def test_shards_of_torch_are_of_one_model(folders: tuple[Path, Path]) -> None:
    """The second file of a model is replaced while the first is read."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    one, two = folders
    for folder, value in ((one, 1.0), (two, 100.0)):
        for name in ("a", "b"):
            torch.save({name: torch.full((4,), value)}, folder / f"{name}.bin")
    (one / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "a.bin", "b": "b.bin"}}')

    def replace(done: int, total: int) -> None:
        if (two / "b.bin").exists():
            os.replace(two / "b.bin", one / "b.bin")
            os.chdir(two)

    loaded = forebay.load_file(".", device="cpu", progress=replace)
    assert not (two / "b.bin").exists()
    assert loaded["a"].tolist() == loaded["b"].tolist() == [1.0] * 4


def test_paths_in_errors_and_attributes_are_absolute(folders: tuple[Path, Path]) -> None:
    one, _ = folders
    with pytest.raises(errors.NotFoundError) as caught:
        forebay.open("none")
    assert str(one / "none") in str(caught.value)
    np.save("x.npy", numbers(1))
    assert forebay.open("x.npy").path == forebay.open_npy(Path("x.npy")).path == str(one / "x.npy")
    assert forebay.open(b"x.npy").path == str(one / "x.npy")


#: What takes the path of a file or folder that is there.
READERS: dict[str, Callable[[Any], object]] = {
    "open": forebay.open,
    "load_file": lambda path: forebay.load_file(path, framework="numpy"),
    "load_file, several": lambda path: forebay.load_file([path, path], framework="numpy"),
    "safe_open": lambda path: forebay.safe_open(path, "np"),
    "read_npy": forebay.read_npy,
    "open_npy": forebay.open_npy,
    "read_npz": forebay.read_npz,
    "open_npz": forebay.open_npz,
    "map": lambda path: forebay.map(path, "cuda:0"),
    "data.raw": lambda path: forebay.data.raw(path, "uint8", 1, **HOST),
    "data.raw, several": lambda path: forebay.data.raw([path], "uint8", 1, **HOST),
    "data.npy": lambda path: forebay.data.npy(path, **HOST),
    "data.ranges": lambda path: forebay.data.ranges(path, **HOST),
    "data.tar": lambda path: forebay.data.tar(path, **HOST),
    "data.mds": lambda path: forebay.data.mds(path, **HOST),
    "data.litdata": lambda path: forebay.data.litdata(path, **HOST),
    "data.megatron": lambda path: forebay.data.megatron(path, **HOST),
    "data.packed": lambda path: forebay.data.packed(path, **HOST),
    "data.verify": forebay.data.verify,
}
WRITERS: dict[str, Callable[[Any], object]] = {
    "open, w": lambda path: forebay.open(path, "w"),
    "save_file": lambda path: forebay.save_file({"a": numbers(1)}, path),
    "write_npy": lambda path: forebay.write_npy(path, numbers(1)),
    "write_npz": lambda path: forebay.write_npz(path, {"a": numbers(1)}),
    "data.pack": lambda path: forebay.data.pack([{"x": 1}], path),
}
try:
    import torch

    import forebay.pickles
    import forebay.torch as ft
except ImportError:
    pass
else:
    READERS |= {
        "pickles.load": forebay.pickles.load,
        "torch.load": lambda path: ft.load(path, "cpu"),
        "CheckpointReader": ft.CheckpointReader,
        "CheckpointReader.reset": lambda path: ft.CheckpointReader("x").reset(path),
    }
    WRITERS |= {
        "torch.save": lambda path: ft.save({"w": torch.ones(1)}, path),
        "save_async": lambda path: ft.save_async({"w": torch.ones(1)}, path).result(),
        "CheckpointWriter": ft.CheckpointWriter,
        "CheckpointWriter.reset": lambda path: ft.CheckpointWriter("x").reset(path),
    }


class Elsewhere:
    """A path of a library for objects in stores, which has no path of a file."""

    def __str__(self) -> str:
        return "gs://bucket/key"


def test_what_lies_elsewhere_is_refused_by_every_function(folders: tuple[Path, Path]) -> None:
    one, _ = folders
    fetch = {
        "gs://bucket/a key.safetensors": "gcloud storage cp 'gs://bucket/a key.safetensors' .",
        "gs://bucket/x.tar": "gcloud storage cp gs://bucket/x.tar .",
        "hf://org/model/x.safetensors": "hf download org/model x.safetensors --local-dir DIRECTORY",
        "https://host/x.npy": "curl -fLO https://host/x.npy",
        b"gs://bucket/key": "gcloud storage cp gs://bucket/key .",
        Path("gs://bucket/key"): "gcloud storage cp gs://bucket/key .",
        Elsewhere(): "gcloud storage cp gs://bucket/key .",
    }
    for url, command in fetch.items():
        for name, call in READERS.items():
            with pytest.raises(errors.UnsupportedError, match="forebay has no client for") as caught:
                call(url)
            assert any(command in hint for hint in caught.value.hints), (name, caught.value.hints)
        if "pickles.load" in READERS:
            with pytest.raises(errors.UnsupportedError, match="forebay has no client for"):
                forebay.pickles.is_zip_checkpoint(url)  # type: ignore[arg-type]
            assert not ft.CheckpointWriter.validate_checkpoint_id(url)  # type: ignore[arg-type]
            assert not ft.CheckpointReader.validate_checkpoint_id(url)  # type: ignore[arg-type]
    for name, call in WRITERS.items():
        with pytest.raises(
            errors.UnsupportedError, match="cannot create file: forebay has no client for Google"
        ) as caught:
            call("gs://bucket/key")
        assert caught.value.hints == [
            "write a file of this machine, then copy it: gcloud storage cp FILE gs://bucket/key"
        ], name
    with pytest.raises(errors.InvalidInputError, match="not by a file: URL") as named:
        forebay.open("file:///data/x")
    assert named.value.hints == ["name the path: /data/x"]
    assert not list(one.iterdir())


def test_names_of_models_are_no_paths(folders: tuple[Path, Path]) -> None:
    one, _ = folders
    for name, call in READERS.items():
        with pytest.raises(errors.NotFoundError) as caught:
            call("org/model-7.5")
        hint = "hf download org/model-7.5 --local-dir DIRECTORY"
        assert any(hint in given for given in caught.value.hints), (name, caught.value)
    # A folder of that name is one.
    (one / "org").mkdir()
    np.save(one / "org/model-7.5", numbers(1))
    os.rename(one / "org/model-7.5.npy", one / "org/model-7.5")
    assert np.array_equal(forebay.read_npy("org/model-7.5"), numbers(1))


@pytest.mark.parametrize("named", ["server:/export/x", "nfs:/server/export/x"])
def test_names_of_servers_are_told_as_urls(folders: tuple[Path, Path], named: str) -> None:
    one, _ = folders
    for name, call in READERS.items():
        with pytest.raises(errors.NotFoundError) as caught:
            call(named)
        assert caught.value.hints == ["a file of a server is named nfs://server/export/x"], (name, caught.value)
    # A folder of that name is one.
    folder = one / named.rpartition("/")[0]
    folder.mkdir(parents=True)
    np.save(folder / "y.npy", numbers(1))
    assert np.array_equal(forebay.read_npy(named.removesuffix("x") + "y.npy"), numbers(1))


def test_nothing_is_made_here_of_urls_of_a_server(folders: tuple[Path, Path]) -> None:
    one, _ = folders
    url = "nfs://server.invalid/export/x"
    for name, call in WRITERS.items():
        if name == "open, w":
            continue
        with pytest.raises(errors.Error) as caught:
            call(url)
        # A file is made there if the server is; a folder is not.
        is_unmade = isinstance(caught.value, errors.UnsupportedError) and "mount" in caught.value.hints[0]
        assert is_unmade or "no address" in str(caught.value), (name, caught.value)
    assert not list(one.iterdir())


def test_the_cache_of_monai_stays_where_it_was(folders: tuple[Path, Path]) -> None:
    pytest.importorskip("monai", reason="monai is not installed")
    from forebay.monai import GDSDataset

    one, two = folders
    data = GDSDataset([1.0], lambda number: torch.full((2,), number), "cache", "cpu")
    os.chdir(two)
    assert data[0].tolist() == [1, 1]
    assert len(list((one / "cache").iterdir())) == 1 and not list(two.iterdir())
    with pytest.raises(errors.UnsupportedError):
        GDSDataset([1.0], lambda number: number, "gs://bucket/cache", "cpu")
