"""A program that uses KvikIO, recorded as it runs on the drop-in over the software GPU, and replayed: the same calls and bytes, in
the same time."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import forebay

PACKAGED = Path(forebay.__file__).parent / "lib" / "libcufile.so.0"

# GPU memory by the driver's own library: no CuPy. KvikIO's logger is loaded first, since its wheel does so only where CUDA's
# own packages are installed.
PROGRAM = """
import ctypes, os, sys, time
import rapids_logger
rapids_logger.load_library()
import kvikio, kvikio.cufile_driver

MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")

def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)

class Array:
    def __init__(self, length):
        self.pointer, self.length = ctypes.c_uint64(), length
        call("cuMemAlloc_v2", ctypes.byref(self.pointer), ctypes.c_size_t(length))
        self.__cuda_array_interface__ = {"shape": (length,), "strides": None, "typestr": "|u1",
                                         "data": (self.pointer.value, False), "version": 3}
    def set(self, data):
        call("cuMemcpyHtoDAsync_v2", self.pointer, data, ctypes.c_size_t(self.length), ctypes.c_uint64(0))
        call("cuStreamSynchronize", ctypes.c_uint64(0))
    def get(self):
        data = ctypes.create_string_buffer(self.length)
        call("cuMemcpyDtoHAsync_v2", data, self.pointer, ctypes.c_size_t(self.length), ctypes.c_uint64(0))
        call("cuStreamSynchronize", ctypes.c_uint64(0))
        return data.raw

context = ctypes.c_uint64()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
kvikio.cufile_driver.driver_open()
source, copy = sys.argv[1:]
data = open(source, "rb").read()
array = Array(len(data))
with kvikio.CuFile(source, "r") as file:
    assert file.read(array) == len(data)
assert array.get() == data
array.set(data[::-1])
time.sleep(0.3)
with kvikio.CuFile(copy, "w") as file:
    assert file.write(array) == len(data)
assert open(copy, "rb").read() == data[::-1]
part = Array(3 * 4096)
with kvikio.CuFile(source, "r") as file:
    for at in range(0, 8, 2):
        time.sleep(0.3)
        parts = [file.pread(part, 4096, 4096 * place, 4096) for place in (at, at + 1)]
        assert [one.get() for one in parts] == [4096] * 2
"""


@pytest.fixture
def software(tmp_path: Path) -> Path:
    """A folder with the software GPU under the name by which KvikIO loads the driver."""
    if os.environ.get("FOREBAY_TEST_GPU") == "real":
        pytest.skip("a real GPU is asked for; tests/consumers/run.sh runs KvikIO on one")
    driver = os.environ.get("FOREBAY_LIBCUDA", "")
    if not Path(driver).is_file():
        pytest.skip("the software GPU is not built: cargo build -p fake-cuda")
    folder = tmp_path / "driver"
    folder.mkdir()
    shutil.copy(driver, folder / "libcuda.so.1")
    return folder


def test_a_program_of_kvikio_is_recorded_and_replayed(tmp_path: Path, software: Path) -> None:
    # Imported in the program alone: it loads the driver.
    if any(importlib.util.find_spec(name) is None for name in ("kvikio", "rapids_logger", "numpy")):
        pytest.skip("KvikIO is not installed (.ci/python-peers.txt)")
    if not PACKAGED.exists():
        pytest.skip("the drop-in library is not beside the package: make python-test builds both")
    size = 8 << 20
    (tmp_path / "source").write_bytes(os.urandom(size))
    own = {"LD_LIBRARY_PATH": str(software), "FOREBAY_LIBCUDA": str(software / "libcuda.so.1")}
    # Every byte by cuFile, small ones too.
    own |= {"KVIKIO_COMPAT_MODE": "OFF", "KVIKIO_GDS_THRESHOLD": "0", "KVIKIO_NTHREADS": "4"}

    def run(*words: str) -> None:
        line = [sys.executable, "-m", "forebay", *words]
        done = subprocess.run(
            line, cwd=tmp_path, capture_output=True, text=True, timeout=120, env={**os.environ, **own}
        )
        assert done.returncode == 0, done.stderr + done.stdout

    run("run", "--trace", "calls.trace", "--", sys.executable, "-c", PROGRAM, "source", "copy")
    for gaps in [[], ["--fast"]]:
        line = ["replay", "calls.trace", "--engine", "plain,forebay,staged", "--rounds", "1", "--json", "r.json"]
        run(*line, "--dir", str(tmp_path), *gaps)
        report = json.loads((tmp_path / "r.json").read_text())
        recorded = report["recorded"]["turn"]
        assert (recorded["read"], recorded["written"]) == (size + 8 * 4096, size)
        # KvikIO cuts large calls for its threads, so that there are more than the program's ten.
        assert recorded["calls"] >= 10
        assert [turn["way"] for turn in report["turns"]] == ["plain", "forebay", "staged"]
        for turn in report["turns"]:
            found = [turn[name] for name in ("calls", "read", "written", "errors")]
            assert found == [recorded["calls"], recorded["read"], recorded["written"], 0], turn
            # Five pauses of 0.3 s: in their own time, or without them.
            assert recorded["seconds"] > 1.5
            off = abs(turn["seconds"] / recorded["seconds"] - 1)
            assert off > 0.5 if gaps else off <= 0.05, (turn, recorded["seconds"])
