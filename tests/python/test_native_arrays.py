"""What arrays say about themselves, and transfers at the edges of a process's life."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

import forebay

Run = Callable[..., "CompletedProcess[str]"]

# Larger than what runs on the caller's own thread.
LARGE = 80 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").write_bytes(bytes(range(256)) * 400)
    return tmp_path / "data"


@pytest.fixture
def large(tmp_path: Path) -> Path:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(LARGE)
    return tmp_path / "large"


# ---- elements --------------------------------------------------------------------------------------------------------


def test_text_has_four_bytes_a_character(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    words = numpy.array(["hello", "abc"])
    again = numpy.empty_like(words)
    with forebay.open(tmp_path / "words", "w") as file:
        assert file.write_from(words).bytes == words.nbytes == 40
        assert file.read_into(again).bytes == 40
    assert again.tolist() == ["hello", "abc"]


@pytest.mark.parametrize(
    "form",
    ["O", [("a", "i8"), ("o", "O")], [("a", "i8"), ("deep", [("o", "O", (2,))])]],
    ids=["object", "field", "nested"],
)
def test_objects_are_never_overwritten(path: Path, form: Any) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    array = numpy.zeros(4, form)

    class Described:
        """Tells about its fields by its interface alone."""

        def __init__(self) -> None:
            self.__array_interface__ = array.__array_interface__

    with forebay.open(path) as file:
        for given in (array, memoryview(array), Described()):
            with pytest.raises(forebay.errors.InvalidInputError, match="no bytes of their own"):
                file.read_into(given)


def test_plain_fields_are_read(path: Path) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    array = numpy.zeros(4, [("a", "<u4"), ("Other", "u1", (4,))])
    with forebay.open(path) as file:
        assert file.read_into(array).bytes == 32
        assert file.read_into(memoryview(array), 8).bytes == 32
    assert array["Other"][0].tolist() == [12, 13, 14, 15]


def test_an_interface_that_describes_less_than_the_array_is_refused(path: Path) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")

    class Half:
        def __init__(self) -> None:
            self.all = numpy.zeros(8, "u1")
            self.nbytes = 8
            self.__array_interface__ = {**self.all.__array_interface__, "shape": (4,)}

    with forebay.open(path) as file, pytest.raises(forebay.errors.InvalidInputError, match="8 bytes"):
        file.read_into(Half())


@pytest.mark.parametrize("kind", ["f8", ">i8", "M8[s]", "S8", "c8"])
def test_offsets_are_integers(path: Path, kind: str, device: str) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    with forebay.map(path, device=device) as mapped:
        with pytest.raises(forebay.errors.InvalidInputError, match="64-bit integers"):
            mapped.gather(numpy.zeros(2, kind), 8)
        one = memoryview(b"\1" + bytes(7)).cast("q")
        for offsets in ([1, 9], (1, 9), numpy.array([1, 9]), numpy.array([1, 9], "u8"), one):
            assert bytes(mapped.gather(offsets, 8).tobytes())[:8] == bytes(range(1, 9))


def test_offsets_of_torch_are_integers(path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with forebay.map(path, device="cpu") as mapped:
        assert mapped.gather(torch.tensor([3]), 2).tobytes() == b"\3\4"
        with pytest.raises(forebay.errors.InvalidInputError, match="64-bit integers"):
            mapped.gather(torch.tensor([3.0], dtype=torch.float64), 2)


def test_floats_in_gpu_memory_are_no_offsets(path: Path, gpu: str) -> None:
    with forebay.map(path, device=gpu) as mapped:
        with pytest.raises(forebay.errors.InvalidInputError, match="64-bit integers"):
            mapped.gather(forebay.empty(2, "float64", gpu), 8)
        offsets = forebay.empty(1, "int64", gpu)
        offsets.fill_from((5).to_bytes(8, "little"))
        assert mapped.gather(offsets, 2).tobytes() == b"\5\6"


def test_numpy_is_told_where_an_array_is(gpu: str) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    with pytest.raises(TypeError, match="GPU memory") as told:
        numpy.asarray(forebay.empty(4, device=gpu))
    assert any("array.numpy()" in note for note in told.value.__notes__)
    here = forebay.empty(4, "float32", "cpu")
    here.fill_from(numpy.arange(4, dtype="f4"))
    assert numpy.asarray(here).tolist() == here.__array__("f8").tolist() == [0, 1, 2, 3]


# ---- hints -----------------------------------------------------------------------------------------------------------


def test_hints_can_be_typed(path: Path, gpu: str) -> None:
    with pytest.raises(forebay.errors.InvalidInputError) as told:
        forebay.empty(1, device="cuda:99")
    assert "cuda:0" in told.value.hints[0]
    with forebay.map(path, device=gpu) as mapped:
        if not mapped.in_place:
            pytest.skip(f"the file is not read in place: {mapped.reason}")
        path.write_bytes(b"changed" * 1000)
        with pytest.raises(forebay.errors.BusyError) as changed:
            mapped.check()
    assert any("forebay.map(path)" in hint for hint in changed.value.hints)
    assert not any("refresh" in hint for hint in changed.value.hints)


def test_what_cannot_be_is_named(path: Path) -> None:
    for shape in (-1, (2, -3), "ab", 1.5):
        with pytest.raises(forebay.errors.InvalidInputError, match="not a shape"):
            forebay.empty(shape, device="cpu")  # type: ignore[arg-type]
    with forebay.open(path) as file:
        for write in (
            lambda: file.write_from(b"abc"),
            lambda: file.write_from_async(b"abc"),
            lambda: file.write_many([(b"abc", 0)]),
        ):
            with pytest.raises(forebay.errors.InvalidInputError, match="reading only") as told:
                write()
            assert "r+" in told.value.hints[0]


@pytest.mark.parametrize("write", ["save", "truncate"])
def test_a_save_that_fails_names_its_target(tmp_path: Path, run_python: Run, write: str) -> None:
    code = """
import resource, sys, forebay
path = sys.argv[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # what a full disk does to writes
pending = forebay._forebay.Pending(path)
try:
    if sys.argv[2] == "save":
        pending.file.write_from(bytes(1 << 20))
    else:
        pending.file.truncate(1 << 20)
except forebay.Error as error:
    print(error)
"""
    done = run_python(code, str(tmp_path / "model.safetensors"), write)
    assert "model.safetensors" in done.stdout, done.stderr
    assert "/proc/" not in done.stdout


# ---- streams ---------------------------------------------------------------------------------------------------------

SLOW = """
import ctypes, os, sys, time, forebay
path = sys.argv[1]
driver = ctypes.CDLL(os.environ["FOREBAY_LIBCUDA"])
context = ctypes.c_void_p()
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxSetCurrent(context)
array = forebay.empty(100_000, device="cuda:0")
nap = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(0.3))

class Foreign:
    __cuda_array_interface__ = property(lambda _: array.__cuda_array_interface__)

def queue():
    driver.cuCtxSynchronize()
    array.fill_from(bytes(array.nbytes))
    assert driver.cuLaunchHostFunc(None, nap, None) == 0
    size = ctypes.c_size_t(array.nbytes)
    assert driver.cuMemsetD8Async(ctypes.c_void_p(array.address), ctypes.c_ubyte(1), size, None) == 0

def written(array):
    with forebay.open(path, "w") as file:
        file.write_from(array)
    return open(path, "rb").read()

def written_later(array):
    with forebay.open(path, "w") as file:
        file.write_many_async([(array, 0)]).result()
    return open(path, "rb").read()

for look in (
    lambda: written(array),
    lambda: written_later(array),
    lambda: written(Foreign()),
    lambda: array.tobytes(),
    lambda: array.fill_from(bytes([2]) * array.nbytes) or bytes([byte - 1 for byte in array.tobytes()]),
):
    queue()
    print(set(look()))
"""


def test_what_is_queued_on_the_default_stream_is_waited_for(tmp_path: Path, gpu: str, run_python: Run) -> None:
    if "fake_cuda" not in os.environ.get("FOREBAY_LIBCUDA", ""):
        pytest.skip("slow work is queued through the software GPU's driver, which is not in use")
    done = run_python(SLOW, str(tmp_path / "out"))
    assert (done.stdout, done.stderr) == ("{1}\n" * 5, "")


# ---- forks -----------------------------------------------------------------------------------------------------------

GPU_ARRAYS = """
import os, sys, warnings, forebay
warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: this test does that
path, model = sys.argv[1], sys.argv[1] + ".model"
array, host = forebay.empty(1 << 20, device="cuda:0"), forebay.empty(1 << 20, device="cpu")
array.fill_from(bytes(1 << 20))
forebay.save_file({"a": array}, model)
tries = {
    "write": lambda: forebay.open(path, "w").write_from(array),
    "write many": lambda: forebay.open(path, "w").write_many([(array, 0)]),
    "copy": lambda: array.tobytes(),
    "fill": lambda: array.fill_from(bytes(1 << 20)),
    "save": lambda: forebay.save_file({"a": array}, path),
    "save with sums": lambda: forebay.save_file({"a": array}, path, checksums=True),
    "save npy": lambda: forebay.write_npy(path, array),
    "write raw": lambda: forebay.open(path, "w")._submit(True, [(array.address, 1 << 20, 0)], array).result(),
    "read raw": lambda: forebay.open(model)._read_one(array.address, 100, 0, array),
    "load": lambda: forebay.load_file(model, device="cuda:0", framework="native"),
    "wait": lambda: forebay._forebay.wait_stream(0, 0),
    "sums": lambda: forebay._forebay.checksums([(array.address, 1 << 20)]),
    "save from the host": lambda: forebay.save_file({"a": host}, path) or os._exit(0),
}
for name, call in tries.items():
    child = os.fork()
    if child == 0:
        try:
            call()
        except forebay.Error as error:
            os._exit(7 if "fork" in str(error) + str(error.hints) else 1)
        except BaseException as error:
            print(name, repr(error), flush=True)
        os._exit(1)
    print(name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_is_told_that_gpu_arrays_stay_behind(tmp_path: Path, gpu: str, run_python: Run) -> None:
    done = run_python(GPU_ARRAYS, str(tmp_path / "out"))
    lines = done.stdout.splitlines()
    assert len(lines) == 13 and lines[-1] == "save from the host 0", (done.stdout, done.stderr)
    assert all(line.endswith(" 7") for line in lines[:-1]), (done.stdout, done.stderr)


INHERITED = """
import os, sys, warnings, forebay
warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: this test does that
path, what = sys.argv[1:]
size = os.path.getsize(path)
file = forebay.open(path)
landed = file.read_into_async(bytearray(100))
landed.result()
futures = [file.read_into_async(bytearray(size)) for _ in range(8)]
child = os.fork()
if child == 0:
    late = next((future for future in reversed(futures) if not future.done()), None)
    if what == "read":
        target = bytearray(size)
        assert file.read_into(target).bytes == size
        assert file.read_into_async(target).result(30).bytes == size
    elif what == "landed":
        assert landed.done() and landed.result().bytes == 100 and landed.exception() is None
    elif late is not None:
        repr(late), late.cancel()
        for call in (late.result, late.exception, lambda: late.add_done_callback(print)):
            try:
                call()
            except forebay.Error as error:
                assert "forked" in str(error), error
            else:
                sys.exit(1)
    sys.exit(0)  # not os._exit: the child waits for its own transfers
status = os.waitpid(child, 0)[1]
assert all(future.result().bytes == size for future in futures)
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("what", ["exit", "read", "landed"])
def test_a_forked_child_does_not_wait_for_its_parents_transfers(large: Path, run_python: Run, what: str) -> None:
    done = run_python(INHERITED, str(large), what, env={**os.environ, "FOREBAY_LIBCUDA": "/nonexistent/libcuda.so.1"})
    assert (done.stdout, done.stderr) == ("0\n", "")


# ---- futures and the interpreter's end -------------------------------------------------------------------------------

CALLBACK = """
import sys, threading, forebay
path = sys.argv[1]
file, ended = forebay.open(path), threading.Semaphore(0)

def tell(*what):
    sys.stdout.write(" ".join(map(str, what)) + "\\n")  # in one piece: several threads write

def again(future):
    future.result()
    small, large = file.read_many([(bytearray(10), 0)]), file.read_into(bytearray(file.size))
    tell(small.bytes, large.bytes == file.size)
    ended.release()

class Memory(bytearray):
    def __del__(self):
        tell(file.read_many([(bytearray(20), 0)]).bytes)
        ended.release()

file.read_into_async(bytearray(100)).add_done_callback(again)
first = file.read_into_async(bytearray(file.size))
first.add_done_callback(again)
assert ended.acquire(timeout=20) and ended.acquire(timeout=20)
first.result(20)
file.read_into_async(Memory(file.size))
assert ended.acquire(timeout=20)
tell(file.read_into_async(bytearray(30)).result(20).bytes)
"""


def test_callbacks_and_finalizers_may_read(large: Path, run_python: Run) -> None:
    done = run_python(CALLBACK, str(large))
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.splitlines() == ["10 True", "10 True", "20", "30"]


def test_memory_is_free_once_somebody_has_waited(path: Path) -> None:
    with forebay.open(path) as file:
        for _ in range(300):
            target = bytearray(1000)
            file.read_into_async(target).result()
            # A bytearray that is lent to anybody cannot be resized.
            target.extend(b"more")


def test_what_ended_well_is_never_called_a_timeout(path: Path) -> None:
    target, end = bytearray(1 << 14), time.monotonic() + 3
    with forebay.open(path) as file:
        while time.monotonic() < end:
            future = file.read_into_async(target)
            while True:
                try:
                    error = future.exception(timeout=0)
                except forebay.errors.OperationTimeoutError:
                    continue
                assert error is None
                break
        failing = file.read_into_async(bytearray(10), 1 << 40)
        assert isinstance(failing.exception(), forebay.errors.ShortReadError)


DAEMONS = """
import sys, threading, time, forebay
threading.excepthook = lambda about: None
path, size = sys.argv[1], int(sys.argv[2])

def read():
    file, target = forebay.open(path), bytearray(size)
    while True:
        file.read_into_async(target).result()

for _ in range(4):
    threading.Thread(target=read, daemon=True).start()
time.sleep(0.3)
print("ends", flush=True)
"""


@pytest.mark.parametrize("size", [4096, LARGE])
def test_daemon_threads_that_read_do_not_hold_up_the_end(large: Path, run_python: Run, size: int) -> None:
    done = run_python(DAEMONS, str(large), str(size))
    assert (done.stdout, done.returncode) == ("ends\n", 0), done.stderr


def test_nothing_starts_once_the_interpreter_ends(path: Path, run_python: Run) -> None:
    code = """
import atexit, sys, forebay
file = forebay.open(sys.argv[1])
forebay._forebay._drain()
try:
    file.read_into_async(bytearray(10))
except forebay.Error as error:
    print(error)
print(file.read_into(bytearray(10)).bytes)  # on this thread: nobody has to wait for it
"""
    done = run_python(code, str(path))
    assert "the interpreter is ending" in done.stdout, done.stderr
    assert done.stdout.endswith("10\n")
