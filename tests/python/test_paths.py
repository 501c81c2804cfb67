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
}
#: What is sent to other processes.
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


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", ["kept", "used before", "sent", "sent and used"])
def test_what_is_taken_by_a_path_stays_what_it_was(name: str, event: str, way: str, folders: tuple[Path, Path]) -> None:
    case = CASES[name]
    if way.startswith("sent") and name not in PICKLED:
        pytest.skip("it is not sent to other processes")
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
        if name not in PICKLED or name in ("data.mds", "data.litdata", "data.megatron"):
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
    for case in ("open_npy",):
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
