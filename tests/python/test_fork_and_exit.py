"""Forks, other front ends in one process, and the interpreter's end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").write_bytes(bytes(range(256)) * 40_000)
    return tmp_path / "data"


def no_gpu() -> dict[str, str]:
    return {**os.environ, "FOREBAY_LIBCUDA": "/nonexistent/libcuda.so.1"}


FORK = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: this test does that
import os, sys, threading, time, forebay
path, when = sys.argv[1:]
expected = open(path, "rb").read()[:5000]
file = forebay.open(path)
if when == "after":
    file.read_into(bytearray(1 << 20))
    futures = [file.read_into_async(bytearray(1 << 20)) for _ in range(8)]
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        # A file of the parent's, and one of the child's own.
        inherited, own = bytearray(5000), bytearray(5000)
        file.read_into(inherited)
        forebay.open(path).read_into_async(own).result(timeout=20)
        os._exit(0 if inherited == own == expected else 1)
    children.append(child)
print([os.waitpid(child, 0)[1] for child in children])
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_forked_children_read(path: Path, run_python: Any, when: str) -> None:
    done = run_python(FORK, str(path), when, env=no_gpu())
    assert (done.stdout, done.stderr, done.returncode) == ("[0, 0, 0, 0]\n", "", 0)


def test_a_forked_child_is_told_about_its_gpu(path: Path, gpu: str, run_python: Any) -> None:
    code = """
import os, sys, forebay
with forebay.open(sys.argv[1]) as file:
    file.read_into(forebay.empty(1000, device="cuda:0"))
    if os.fork() == 0:
        file.read_into(bytearray(1000))   # host memory works
        try:
            forebay.empty(1, device="cuda:0")
        except forebay.Error as error:
            print(error, "|", *error.hints, flush=True)
        os._exit(0)
    os.wait()
"""
    done = run_python(code, str(path))
    assert done.returncode == 0, done.stderr
    assert "fork" in done.stdout
    assert "spawn" in done.stdout


def test_data_loaders_may_fork(path: Path, run_python: Any) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    code = """
import sys, torch, forebay

class Rows(torch.utils.data.Dataset):
    def __init__(self, path):
        self.file = forebay.open(path)
    def __len__(self):
        return 64
    def __getitem__(self, index):
        row = torch.empty(256, dtype=torch.uint8)
        self.file.read_into(row, index * 256)
        return row

rows = Rows(sys.argv[1])
rows[0]
for method in ("fork", "forkserver"):
    if method == "forkserver":
        break  # files are not sent to other processes: tested below
    loader = torch.utils.data.DataLoader(rows, batch_size=8, num_workers=2, multiprocessing_context=method)
    batches = list(loader)
    print(len(batches), all((batch == torch.arange(256, dtype=torch.uint8)).all() for batch in batches))
"""
    done = run_python(code, str(path), env=no_gpu())
    assert done.stdout == "8 True\n", done.stderr


LOAD_AFTER_FORK = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: this test does that
import os, sys, numpy, forebay
path = sys.argv[1]
expected = {f"t{i}": numpy.full(70_000, i, "f4") for i in range(20)}
forebay.save_file(expected, path)
def load():
    loaded = forebay.load_file(path, framework="numpy")
    return all(numpy.array_equal(loaded[name], array) for name, array in expected.items())
assert load()
opened = forebay.safe_open(path, "numpy")
assert opened.get_tensor("t3")[0] == 3
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        right = load() and numpy.array_equal(opened.get_tensor("t7"), expected["t7"])
        right = right and len(opened.get_tensors()) == 20
        forebay.save_file(expected, f"{path}.{os.getpid()}", checksums=True)
        right = right and len(forebay.load_file(f"{path}.{os.getpid()}", framework="numpy", verify=True)) == 20
        os._exit(0 if right else 1)
    children.append(child)
print([os.waitpid(child, 0)[1] for child in children], load())
"""


def test_forked_children_load_and_save(tmp_path: Path, run_python: Any) -> None:
    pytest.importorskip("numpy", reason="numpy is not installed")
    done = run_python(LOAD_AFTER_FORK, str(tmp_path / "m.safetensors"), env=no_gpu())
    assert (done.stdout, done.stderr, done.returncode) == ("[0, 0, 0, 0] True\n", "", 0)


def test_workers_of_a_data_loader_load_models(tmp_path: Path, run_python: Any) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    code = """
import sys, torch, forebay
path = sys.argv[1]
forebay.save_file({f"t{i}": torch.full((5_000,), float(i)) for i in range(16)}, path)

class Tensors(torch.utils.data.Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        return forebay.load_file(path, device="cpu", names=[f"t{index}"])[f"t{index}"]

rows = Tensors()
assert rows[5][0] == 5
loader = torch.utils.data.DataLoader(rows, batch_size=4, num_workers=2, multiprocessing_context="fork")
print([batch[:, 0].tolist() for batch in loader])
"""
    done = run_python(code, str(tmp_path / "m.safetensors"), env=no_gpu())
    expected = [[float(4 * batch + i) for i in range(4)] for batch in range(4)]
    assert done.stdout == f"{expected}\n", done.stderr


def test_files_are_reopened_by_other_processes(path: Path) -> None:
    import pickle

    import forebay

    with forebay.open(path) as file:
        again = pickle.loads(pickle.dumps(file))
        assert (again.path, again.mode) == (file.path, "r")
        target = bytearray(10)
        again.read_into(target, 256)
        assert target == bytes(range(10))
    with forebay.open(path, "r+") as file, pytest.raises(TypeError, match="written"):
        pickle.dumps(file)


def library() -> Path | None:
    import forebay

    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    packaged = Path(forebay.__file__).parent / "lib/libcufile.so.0"
    return next((place for place in (packaged, target / "debug/libcufile.so") if place.exists()), None)


@pytest.mark.parametrize("first", ["module", "library"])
def test_the_library_and_the_module_share_a_session(path: Path, run_python: Any, first: str) -> None:
    found = library()
    if found is None:
        pytest.skip("libcufile is not built: cargo build -p forebay-cufile")
    code = """
import ctypes, sys
path, library, first = sys.argv[1:]
def load():
    cufile = ctypes.CDLL(library)
    assert cufile.cuFileDriverOpen() == 0
if first == "library":
    load()
import forebay
with forebay.open(path) as file:
    file.read_into(bytearray(1000))
if first == "module":
    load()
# Two builds would each have their own session, and say so.
print(forebay.notes())
"""
    done = run_python(code, str(path), str(found), first)
    assert done.stdout == "[]\n", done.stderr


def test_the_command(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "forebay", "cp", str(path), str(path) + ".copy", "--verify"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert Path(str(path) + ".copy").read_bytes() == path.read_bytes()
