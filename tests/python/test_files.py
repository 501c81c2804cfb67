"""Files, arrays, futures and receipts."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forebay
from forebay import errors


@pytest.fixture
def content() -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(5).integers(0, 256, 3_000_001, dtype=np.uint8)


@pytest.fixture
def path(tmp_path: Path, content: np.ndarray[Any, Any]) -> Path:
    content.tofile(tmp_path / "data")
    return tmp_path / "data"


def filled(size: int, device: str, value: int = 0) -> forebay.Array:
    array = forebay.empty(size, device=device)
    array.fill_from(np.full(size, value, np.uint8))
    return array


# ---- reading and writing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("offset", "size"), [(0, 3_000_001), (0, 1), (4096, 65536), (4097, 1_000_003), (3_000_000, 1)])
def test_read_into(path: Path, content: np.ndarray[Any, Any], device: str, offset: int, size: int) -> None:
    array = forebay.empty(size, device=device)
    with forebay.open(path) as file:
        receipt = file.read_into(array, offset)
    assert array.tobytes() == content[offset : offset + size].tobytes()
    assert receipt.bytes == size == sum(receipt.moved.values()) == sum(receipt.engines.values())
    assert receipt.seconds > 0
    assert receipt.engine in receipt.engines
    assert receipt.mode is None


def test_a_receipt_names_the_engines_mode(path: Path, gpu: str, run_python: Callable[..., Any]) -> None:
    double = cufile_double()
    if double is None:
        pytest.skip("the double of NVIDIA's library is not built: cargo build -p fake-cufile")
    code = """
import sys, forebay
array = forebay.empty(1000, device="cuda:0")
with forebay.open(sys.argv[1]) as file:
    one, many = file.read_into(array), file.read_many([(array, 0)])
print(one.engine, one.mode, "|", str(one).split(" in ")[0], "|", repr(one).split(" in ")[0])
print(many.engine, many.mode, many.engines)
"""
    env = {**os.environ, "FOREBAY_ENGINE": "libcufile", "FOREBAY_VENDOR_LIBCUFILE": double}
    done = run_python(code, str(path), env=env)
    assert done.stdout.splitlines() == [
        "libcufile compat | 1000 bytes by libcufile (compat) | <forebay.Receipt: 1000 bytes by libcufile (compat)",
        "libcufile compat {'libcufile': 1000}",
    ], done.stderr


def cufile_double() -> str | None:
    """The double of NVIDIA's library, if it was built."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).resolve().parents[2] / "target"))
    places = (target / build / "libfake_cufile.so" for build in ("debug", "release"))
    return next((str(place) for place in places if place.exists()), None)


def test_more_than_one_call_moves(tmp_path: Path, device: str) -> None:
    size = (64 << 20) + 12345
    expected = np.random.default_rng(1).integers(0, 256, size, dtype=np.uint8)
    source = forebay.empty(size, device=device)
    source.fill_from(expected)
    with forebay.open(tmp_path / "large", "w") as file:
        assert file.write_from(source).bytes == size
        file.sync()
        target = forebay.empty(size, device=device)
        assert file.read_into(target).bytes == size
    assert target.tobytes() == expected.tobytes() == (tmp_path / "large").read_bytes()


def test_write_from(tmp_path: Path, device: str) -> None:
    with forebay.open(tmp_path / "new", "x") as file:
        file.write_from(filled(100, device, 1))
        file.write_from(filled(50, device, 2), offset=25)
        assert file.size == 100
        file.truncate(80)
    assert (tmp_path / "new").read_bytes() == b"\1" * 25 + b"\2" * 50 + b"\1" * 5


def test_many_pieces_on_several_devices(path: Path, content: np.ndarray[Any, Any], gpu: str) -> None:
    places = [(index * 7919, 100 + index, "cpu" if index % 3 else gpu) for index in range(300)]
    arrays = [(forebay.empty(size, device=device), offset) for offset, size, device in places]
    with forebay.open(path) as file:
        receipt = file.read_many(arrays)
    for (array, offset), (_, size, _) in zip(arrays, places, strict=True):
        assert array.tobytes() == content[offset : offset + size].tobytes()
    assert receipt.bytes == sum(size for _, size, _ in places)
    assert set(receipt.engines) == {"host", "staged"}


def test_nothing_is_moved_for_nothing(path: Path, device: str) -> None:
    with forebay.open(path) as file:
        assert file.read_into(forebay.empty(0, device=device)).bytes == 0
        assert file.read_many([]).bytes == 0
        assert file.read_many([(forebay.empty((3, 0), device=device), 5)]).bytes == 0
        assert file.read_into_async(forebay.empty(0, device=device)).result().bytes == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros((10, 10), np.float32),
        lambda: np.zeros((), np.float64),
        lambda: np.zeros((4, 1, 3), np.int16)[:, :, :].transpose(1, 0, 2).transpose(1, 0, 2),
        lambda: bytearray(64),
        lambda: memoryview(bytearray(64)),
    ],
)
def test_kinds_of_arrays(path: Path, content: np.ndarray[Any, Any], make: Callable[[], Any]) -> None:
    array = make()
    with forebay.open(path) as file:
        receipt = file.read_into(array, 11)
    got = array.tobytes() if hasattr(array, "tobytes") else bytes(array)
    assert got == content[11 : 11 + len(got)].tobytes()
    assert receipt.bytes == len(got)


class OnlyDlpack:
    """An array that speaks nothing but DLPack, of a version that knows no `max_version`."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack__(self, stream: object = None) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_old_dlpack(path: Path, content: np.ndarray[Any, Any]) -> None:
    array = np.zeros((5, 5), np.int32)
    with forebay.open(path) as file:
        file.read_into(OnlyDlpack(array), 3)
        with pytest.raises(ValueError, match="not contiguous"):
            file.read_into(OnlyDlpack(array[:, 1:3]))
    assert array.tobytes() == content[3:103].tobytes()


def test_arrays_that_are_refused(path: Path) -> None:
    read_only = np.zeros(10)
    read_only.flags.writeable = False
    with forebay.open(path) as file:
        for array, words in [
            (np.zeros((10, 10))[:, ::2], "not contiguous"),
            (np.asfortranarray(np.zeros((3, 4))), "not contiguous"),
            (read_only, "read-only"),
            (b"constant", "read-only"),
            (np.array([object()]), "no bytes of their own"),
        ]:
            with pytest.raises(ValueError, match=words) as caught:
                file.read_into(array)
            assert isinstance(caught.value, forebay.errors.InvalidInputError)
            assert caught.value.hints
            assert caught.value.__notes__[0].startswith("hint: ")
        with pytest.raises(TypeError, match="no array that forebay knows"):
            file.read_into("text")
        with pytest.raises(ValueError, match=r"not \(array, offset\)"):
            file.read_many([np.zeros(3)])


def test_jax_arrays_are_not_changed(path: Path) -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    with forebay.open(path, "r+") as file:
        with pytest.raises(ValueError, match="never change") as caught:
            file.read_into(jax.numpy.zeros(4))
        assert "device_put" in caught.value.hints[0]
        values = jax.numpy.arange(5, dtype="bfloat16")
        assert file.write_from(values).bytes == 10
    assert path.read_bytes()[:10] == np.asarray(values).tobytes()


# ---- errors -----------------------------------------------------------------------------------------------------------


def test_errors_are_the_natural_exceptions(path: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        forebay.open(tmp_path / "nothing")
    assert (missing.value.errno, missing.value.filename) == (errno.ENOENT, str(tmp_path / "nothing"))
    with pytest.raises(IsADirectoryError):
        forebay.open(tmp_path, "w")
    with pytest.raises(FileExistsError):
        forebay.open(path, "x")
    with pytest.raises(ValueError, match="unknown mode"):
        forebay.open(path, "a")
    with pytest.raises(ValueError, match="cache"):
        forebay.open(path, cache="sometimes")
    with forebay.open(path) as file, pytest.raises(EOFError, match="got=1, wanted=10") as short:
        file.read_into(bytearray(10), 3_000_000)
    assert short.value.context["got"] == "1"
    with pytest.raises(ValueError, match="closed file"):
        file.read_into(bytearray(1))
    with pytest.raises(ValueError, match="unknown device"):
        forebay.empty(1, device="tpu:0")
    with pytest.raises(ValueError, match="unknown dtype"):
        forebay.empty(1, "float31")
    with pytest.raises(errors.UnsupportedError, match="share bytes: no array has them") as halves:
        forebay.empty(8, "F4")
    assert "uint8" in halves.value.hints[0]


def test_errors_can_be_sent_to_other_processes(tmp_path: Path) -> None:
    import pickle

    with pytest.raises(FileNotFoundError) as caught:
        forebay.open(tmp_path / "nothing")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.hints, again.errno) == (
        type(caught.value),
        str(caught.value),
        caught.value.hints,
        errno.ENOENT,
    )


def test_a_file_opened_for_reading_is_not_written(path: Path) -> None:
    before = path.read_bytes()
    with forebay.open(path) as file, pytest.raises((ValueError, OSError)):
        file.write_from(b"x" * 100)
    assert path.read_bytes() == before


def test_one_bad_piece_fails_the_call_and_says_so(path: Path, device: str) -> None:
    with forebay.open(path) as file, pytest.raises(EOFError):
        file.read_many([(forebay.empty(10, device=device), 0), (forebay.empty(10, device=device), 3_000_000)])


# ---- futures ----------------------------------------------------------------------------------------------------------


def test_futures(path: Path, content: np.ndarray[Any, Any], device: str) -> None:
    arrays = [forebay.empty(10_000, device=device) for _ in range(20)]
    told: list[forebay.Future] = []
    with forebay.open(path) as file:
        futures = [file.read_into_async(array, index * 10_000) for index, array in enumerate(arrays)]
        for future in futures:
            future.add_done_callback(told.append)
    for index, (future, array) in enumerate(zip(futures, arrays, strict=True)):
        assert future.result(timeout=30).bytes == 10_000
        assert future.done()
        assert future.exception() is None
        assert array.tobytes() == content[index * 10_000 :][:10_000].tobytes()
    late: list[forebay.Future] = []
    futures[0].add_done_callback(late.append)
    assert late
    deadline = time.monotonic() + 10
    while len(told) < 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(told) == 20


def test_a_future_tells_what_went_wrong(path: Path, device: str) -> None:
    with forebay.open(path) as file:
        future = file.read_into_async(forebay.empty(10, device=device), 3_000_000)
        assert isinstance(future.exception(timeout=30), EOFError)
        with pytest.raises(EOFError):
            future.result()


def test_await(path: Path, content: np.ndarray[Any, Any], device: str) -> None:
    async def main() -> list[int]:
        with forebay.open(path) as file:
            arrays = [forebay.empty(1000, device=device) for _ in range(10)]

            async def one(index: int) -> int:
                return (await file.read_into_async(arrays[index], index)).bytes

            got = await asyncio.gather(*(one(index) for index in range(10)))
            assert arrays[9].tobytes() == content[9:1009].tobytes()
            with pytest.raises(EOFError):
                await file.read_into_async(arrays[0], 3_000_000)
            return got

    assert asyncio.run(main()) == [1000] * 10


def test_dropped_futures_keep_their_memory(path: Path, content: np.ndarray[Any, Any]) -> None:
    gone = []

    class Tracked(bytearray):
        def __del__(self) -> None:
            gone.append(bytes(self[:4]))

    with forebay.open(path) as file:
        for _ in range(50):
            file.read_into_async(Tracked(100_000), 5)
    deadline = time.monotonic() + 20
    while len(gone) < 50 and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    # Each was freed, and only after its bytes had come.
    assert gone == [content[5:9].tobytes()] * 50


def test_threads_share_a_file(path: Path, content: np.ndarray[Any, Any], device: str) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            rng = np.random.default_rng(seed)
            for _ in range(50):
                offset, size = int(rng.integers(0, 2_000_000)), int(rng.integers(1, 100_000))
                array = forebay.empty(size, device=device)
                file.read_into(array, offset)
                assert array.tobytes() == content[offset : offset + size].tobytes()
        except BaseException as error:
            failures.append(error)

    with forebay.open(path) as file:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


# ---- processes --------------------------------------------------------------------------------------------------------


def test_exit_with_transfers_in_flight(path: Path, run_python: Any) -> None:
    done = run_python(
        """
import forebay, sys
file = forebay.open(sys.argv[1])
arrays = [forebay.empty(1_000_000) for _ in range(100)]
for array in arrays:
    file.read_into_async(array)
print("bye")
""",
        str(path),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "bye\n", "")


def test_ctrl_c_ends_a_wait(tmp_path: Path, start_python: Callable[..., subprocess.Popen[str]]) -> None:
    # A write into a FIFO-like slow target cannot be made everywhere: a future that never comes stands in for it.
    code = """
import asyncio, forebay, sys, os
path = sys.argv[1]
with open(path, "wb") as file:
    file.truncate(1 << 40)
array = forebay.empty(1 << 20)
file = forebay.open(path)
print("waiting", flush=True)
try:
    while True:
        file.read_many([(array, index << 20) for index in range(4)])
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    child = start_python(code, str(tmp_path / "sparse"))
    assert child.stdout is not None
    assert child.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=30)[0] == "interrupted\n"
    assert child.returncode == 0


def test_file_descriptors_are_given_back(path: Path) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    with forebay.open(path) as file:
        file.read_into(bytearray(10))
    before = count()
    for _ in range(20):
        with forebay.open(path) as file:
            file.read_into(bytearray(10))
    deadline = time.monotonic() + 10
    while count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert count() <= before


REUSED_NUMBERS = """
import os, sys, threading, forebay
folder = sys.argv[1]
other = os.path.join(folder, "other")
with open(other, "wb") as file:
    file.write(bytes(8 << 20))
stop = threading.Event()

def keep_the_lane_busy():
    room = memoryview(bytearray(8 << 20))
    with forebay.open(other, cache="bypass") as file:
        while not stop.is_set():
            file.read_many([(room[at : at + (1 << 20)], at) for at in range(0, 8 << 20, 1 << 20)])

threads = [threading.Thread(target=keep_the_lane_busy) for _ in range(2)]
for thread in threads:
    thread.start()
wrong = 0
for round in range(1, 101):
    path = os.path.join(folder, f"file{round}")
    content = bytes([round]) * 5000
    with forebay.open(path, "w") as file:
        file.truncate(20 * 5000)
        file.write_many([(content, at * 5000) for at in range(20)])
    with open(path, "rb") as file:
        wrong += file.read() != content * 20
    with forebay.open(path, cache="bypass") as file:
        pieces = [bytearray(5000) for _ in range(20)]
        file.read_many([(piece, at * 5000) for at, piece in enumerate(pieces)])
        wrong += any(piece != content for piece in pieces)
stop.set()
for thread in threads:
    thread.join()
print(wrong)
"""


def test_each_file_gets_its_own_bytes_though_descriptors_have_the_same_numbers(
    tmp_path: Path, run_python: Callable[..., Any]
) -> None:
    """A closed file's number is the next one's, while the only lane has no pause to forget it in."""
    done = run_python(REUSED_NUMBERS, str(tmp_path), env={**os.environ, "FOREBAY_LANES": "1"})
    assert done.stdout == "0\n", done.stderr


@pytest.mark.parametrize("offset", [-1, 1 << 64])
def test_offsets_that_no_file_has_are_refused(tmp_path: Path, offset: int) -> None:
    room = bytearray(4)
    with forebay.open(tmp_path / "x", "w") as file:
        calls: list[Callable[[], object]] = [
            lambda: file.read_into(room, offset),
            lambda: file.write_from(room, offset),
            lambda: file.read_into_async(room, offset),
            lambda: file.write_from_async(room, offset),
            lambda: file.read_many([(room, offset)]),
        ]
        for call in calls:
            with pytest.raises(errors.InvalidInputError, match="offset that no file has") as caught:
                call()
            assert "0 or more" in caught.value.hints[0]
