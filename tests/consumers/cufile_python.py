#!/usr/bin/env python3
"""The PyPI wheel `cufile-python`, which LMCache uses: the tests inside of it, and checks of our own.

    forebay run -- python3 cufile_python.py

It opens the library as `libcufile.so`, without a version. Runs over a GPU or the software GPU, whose driver lacks some
functions that the wheel's tests call: there they get a stand-in for `cuda.bindings.driver`.
"""

import ctypes
import os
import sys
import types
from importlib.metadata import version

import checks
from checks import Skip, equal, folder, pattern
from gpu import Gpu

MIB = 1 << 20
gpu = None
CuFile = None


def start():
    global gpu, CuFile
    try:
        import cufile
    except ImportError as error:
        raise Skip(f"no Python module cufile: pip install cufile-python ({error})") from error
    gpu = Gpu()
    CuFile = cufile.CuFile
    checks.check_that_it_is_ours()
    print(f"version {version('cufile-python')}")
    print(f"{checks.mapped_library()[0]}, {'software GPU' if gpu.is_software else 'GPU'}")


# ---- the wheel's own tests ------------------------------------------------------------------------------------------


def stand_in():
    """What the wheel's tests call of `cuda.bindings.driver`, over the driver that `gpu` has loaded."""

    def place(name, kind, *arguments):
        value = kind()
        gpu.call(name, ctypes.byref(value), *arguments)
        return 0, value.value

    def fill(address, byte, length):
        gpu.put(address, bytes([byte]) * length)
        return (0,)

    def fetch(host, address, length):
        ctypes.memmove(host, gpu.get(address, length), length)
        return (0,)

    made = types.ModuleType("cuda.bindings.driver")
    made.cuInit = lambda flags: (gpu.call("cuInit", ctypes.c_uint(flags)) or 0,)
    made.cuDeviceGet = lambda number: place("cuDeviceGet", ctypes.c_int, ctypes.c_int(number))
    made.CUctxCreateParams = object
    made.cuCtxCreate = lambda _, flags, device: place(
        "cuCtxCreate_v2", ctypes.c_void_p, ctypes.c_uint(flags), ctypes.c_int(device)
    )
    made.cuMemAlloc = lambda length: place("cuMemAlloc_v2", ctypes.c_uint64, ctypes.c_size_t(length))
    made.cuMemAllocHost = lambda length: place(
        "cuMemHostAlloc", ctypes.c_void_p, ctypes.c_size_t(length), ctypes.c_uint(0)
    )
    made.cuMemsetD8 = fill
    made.cuMemcpyDtoH = fetch
    return made


def use_stand_in():
    for name in ("cuda", "cuda.bindings"):
        try:
            __import__(name)
        except ImportError:
            sys.modules[name] = types.ModuleType(name)
    sys.modules["cuda.bindings.driver"] = sys.modules["cuda.bindings"].driver = stand_in()


def the_tests_inside_the_wheel_pass():
    import cufile
    import pytest

    if gpu.is_software:
        use_stand_in()
    path = os.path.join(os.path.dirname(os.path.dirname(cufile.__file__)), "tests", "test_cufile.py")
    with folder() as here:
        # They look at each byte in Python: their own size of 256 MiB takes minutes.
        os.environ.setdefault("TEST_CUFILE_BUF_SIZE", "1" if gpu.is_software else "16")
        os.environ["TEST_CUFILE_WORK_DIR"] = here
        passed = Count()
        arguments = ["-q", "-p", "no:cacheprovider", "-W", "ignore", f"--rootdir={here}", "--import-mode=importlib"]
        equal(int(pytest.main([*arguments, path], plugins=[passed])), 0, "pytest's exit code")
        equal((passed.passed, passed.other), (5, 0), "tests passed, others")
    # The tests have made a context of their own current.
    gpu.make_current()


class Count:
    """A plugin of pytest that counts tests."""

    def __init__(self):
        self.passed = self.other = 0

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            self.passed += 1
        elif not report.passed:
            self.other += 1


# ---- our own --------------------------------------------------------------------------------------------------------


def bytes_come_back():
    data = pattern(3 * MIB + 17)
    for direct in (False, True):
        for kind in ("device", "host"):
            is_host = kind == "host"
            with folder() as here, getattr(gpu, kind)(4 * MIB) as address:
                path = os.path.join(here, "file")
                gpu.put(address + 5, data, is_host)
                with CuFile(path, "w", use_direct_io=direct) as file:
                    equal(file.write(ctypes.c_void_p(address), len(data), 0, 5), len(data), "written")
                with open(path, "rb") as file:
                    equal(file.read() == data, True, "the file's bytes")
                gpu.put(address, bytes(4 * MIB), is_host)
                with CuFile(path, "r", use_direct_io=direct) as file:
                    equal(file.read(ctypes.c_void_p(address), len(data) - 100, 100, 7), len(data) - 100, "read")
                    equal(gpu.get(address + 7, len(data) - 100, is_host) == data[100:], True, "bytes")
                    equal(file.read(ctypes.c_void_p(address), MIB, len(data), 0), 0, "at the end")


def read_and_write_modes_work():
    with folder() as here, gpu.device(MIB) as address:
        path = os.path.join(here, "file")
        gpu.put(address, pattern(MIB))
        with CuFile(path, "w+") as file:
            equal(file.write(ctypes.c_void_p(address), MIB), MIB)
            gpu.put(address, bytes(MIB))
            equal(file.read(ctypes.c_void_p(address), MIB), MIB)
            equal(gpu.get(address, MIB) == pattern(MIB), True, "bytes")
        with CuFile(path, "r+") as file:
            equal(file.read(ctypes.c_void_p(address), 10, MIB - 4), 4, "short read")


def mistakes_are_minus_one():
    with folder() as here, gpu.device(MIB) as address:
        path = os.path.join(here, "file")
        with CuFile(path, "w") as file:
            # The wheel takes results for unsigned.
            equal(file.read(ctypes.c_void_p(address), MIB), 2**64 - 1, "read from a file open for writing")
        try:
            CuFile(path, "a").open()
        except RuntimeError as error:
            equal("err=5019" in str(error), True, str(error))
        else:
            raise AssertionError("a file open for appending was registered")


def buffers_are_registered():
    from cufile import bindings

    with gpu.device(MIB) as address:
        bindings.cuFileBufRegister(ctypes.c_void_p(address), MIB, 0)
        bindings.cuFileBufDeregister(ctypes.c_void_p(address))
        try:
            bindings.cuFileBufDeregister(ctypes.c_void_p(address))
        except RuntimeError as error:
            equal("err=5024" in str(error), True, str(error))
        else:
            raise AssertionError("a buffer that is not registered was deregistered")


CHECKS = [
    bytes_come_back,
    read_and_write_modes_work,
    mistakes_are_minus_one,
    buffers_are_registered,
    the_tests_inside_the_wheel_pass,
]

if __name__ == "__main__":
    checks.main(CHECKS, start)
