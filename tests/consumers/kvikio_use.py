#!/usr/bin/env python3
"""KvikIO, which is also how cuDF, MONAI and Zarr come to cuFile.

    forebay run -- python3 kvikio_use.py

Memory is the driver's own, so that the script needs no CuPy; with CuPy its arrays and memory pools are used as well.
KvikIO moves host memory itself, without cuFile: those bytes are checked, but libcufile must not have seen them.
"""

import os

import checks
from checks import NotRun, Skip, equal, folder, pattern
from gpu import Gpu

MIB = 1 << 20
KINDS = ["device", "managed", "pool", "virtual"]
gpu = kvikio = counted = None


def start():
    global gpu, kvikio, counted
    checks.need("numpy", ", which KvikIO needs")
    if os.environ.get("KVIKIO_COMPAT_MODE", "").upper() != "OFF":
        raise Skip("KVIKIO_COMPAT_MODE is not OFF: forebay run -- python3 kvikio_use.py")
    kvikio = checks.need("kvikio", ": pip install kvikio-cu13")
    import kvikio.cufile_driver
    import kvikio.defaults

    gpu = Gpu()
    kvikio.cufile_driver.driver_open()
    checks.check_that_it_is_ours()
    counted = checks.Counted()
    print(f"version {kvikio.__version__}")
    print(checks.mapped_library()[0])


class Array:
    """GPU memory as KvikIO takes it."""

    def __init__(self, address, length):
        self.__cuda_array_interface__ = {
            "shape": (length,),
            "strides": None,
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def write_file(path, data):
    with open(path, "wb") as file:
        file.write(data)


def read_file(path):
    with open(path, "rb") as file:
        return file.read()


def cufile_is_in_use():
    from kvikio import CompatMode, cufile_driver, defaults

    equal(defaults.get("compat_mode"), CompatMode.OFF)
    equal(defaults.is_compat_mode_preferred(), False)
    equal(cufile_driver.libcufile_version(), (1, 15))
    # There is no nvidia-fs, and nobody claims so.
    equal(cufile_driver.get("is_gds_available"), False)
    equal((cufile_driver.get("major_version"), cufile_driver.get("minor_version")), (0, 0))


def driver_properties_can_be_set():
    from kvikio import cufile_driver

    before = cufile_driver.get("poll_mode")
    with cufile_driver.set({"poll_mode": True, "poll_thresh_size": 8}):
        equal((cufile_driver.get("poll_mode"), cufile_driver.get("poll_thresh_size")), (True, 8))
    equal(cufile_driver.get("poll_mode"), before)
    for name, value in (("max_device_cache_size", 65536), ("max_pinned_memory_size", 1048576)):
        with cufile_driver.set(name, value):
            equal(cufile_driver.get(name), value, name)


def raw_calls_move_device_memory():
    length = 2 * MIB + 4096
    data = pattern(length)
    for kind in KINDS:
        with folder() as here, getattr(gpu, kind)(length) as address:
            path = os.path.join(here, "file")
            gpu.put(address, data)
            with kvikio.CuFile(path, "w+") as file:
                array = Array(address, length)
                counted.expect(lambda: equal(file.raw_write(array), length), written=length)
                equal(read_file(path) == data, True, f"the file's bytes, {kind}")
                gpu.put(address, bytes(length))
                counted.expect(lambda: equal(file.raw_read(array), length), read=length)
                equal(gpu.get(address, length) == data, True, f"bytes, {kind}")
                # A part, to another place.
                equal(file.raw_read(array, size=5000, file_offset=4096, dev_offset=123), 5000)
                equal(gpu.get(address + 123, 5000) == data[4096:9096], True, f"bytes of a part, {kind}")


def futures_move_device_memory():
    length = 9 * MIB + 77
    data = pattern(length)
    for kind in KINDS:
        with folder() as here, getattr(gpu, kind)(length) as address:
            path = os.path.join(here, "file")
            gpu.put(address, data)
            array = Array(address, length)
            # Every piece through cuFile, also small ones.
            with kvikio.defaults.set({"gds_threshold": 0, "task_size": MIB}):
                with kvikio.CuFile(path, "w") as file:
                    counted.expect(lambda: equal(file.pwrite(array).get(), length), written=length)
                equal(read_file(path) == data, True, f"the file's bytes, {kind}")
                gpu.put(address, bytes(length))
                with kvikio.CuFile(path, "r") as file:
                    counted.expect(lambda: equal(file.pread(array).get(), length), read=length)
                    equal(gpu.get(address, length) == data, True, f"bytes, {kind}")
                    futures = [file.pread(array, MIB, index * MIB) for index in range(9)]
                    equal([future.get() for future in futures], [MIB] * 9, "many at once into one place")


def host_memory_works_without_cufile():
    import numpy

    length = 3 * MIB + 5
    data = numpy.frombuffer(pattern(length), dtype=numpy.uint8)
    with folder() as here:
        path = os.path.join(here, "file")

        def work():
            with kvikio.CuFile(path, "w") as file:
                equal(file.write(data), length)
            got = numpy.zeros(length, dtype=numpy.uint8)
            with kvikio.CuFile(path, "r") as file:
                equal(file.read(got), length)
            equal(bool((got == data).all()), True, "bytes")

        counted.expect(work)


def memory_is_registered():
    with folder() as here, gpu.device(4 * MIB) as address:
        path = os.path.join(here, "file")
        write_file(path, pattern(4 * MIB))
        array = Array(address, 4 * MIB)
        kvikio.memory_register(array)
        with kvikio.CuFile(path, "r") as file:
            counted.expect(lambda: equal(file.raw_read(array), 4 * MIB), read=4 * MIB)
        equal(gpu.get(address, 4 * MIB) == pattern(4 * MIB), True, "bytes")
        kvikio.memory_deregister(array)


def streams_move_device_memory():
    length = MIB + 3
    data = pattern(length)
    with gpu.stream() as own:
        for flags in (None, 0, 15):
            if flags is not None:
                kvikio.stream_register(own, flags)
            for kind in KINDS:
                with folder() as here, getattr(gpu, kind)(length) as address:
                    path = os.path.join(here, "file")
                    gpu.put(address, data)
                    array = Array(address, length)
                    with kvikio.CuFile(path, "w+") as file:
                        equal(file.raw_write_async(array, own).check_bytes_done(), length, f"written, {kind}")
                        equal(read_file(path) == data, True, f"the file's bytes, {kind}")
                        gpu.put(address, bytes(length))
                        futures = [file.raw_read_async(array, own) for _ in range(8)]
                        equal([future.check_bytes_done() for future in futures], [length] * 8, f"read, {kind}")
                        equal(gpu.get(address, length) == data, True, f"bytes, {kind}")
            if flags is not None:
                kvikio.stream_deregister(own)


def reading_what_is_open_for_writing_is_refused():
    with folder() as here, gpu.device(MIB) as address:
        array = Array(address, MIB)
        with kvikio.CuFile(os.path.join(here, "file"), "w") as file:
            try:
                got = file.raw_read(array)
            except RuntimeError as error:
                # The two texts that KvikIO's own tests expect.
                text = str(error)
                known = "unsupported file open flags" in text or "Operation not permitted" in text
                equal(known, True, f"text {text!r}")
            else:
                raise AssertionError(f"{got} instead of an error")


def cupy_arrays_and_pools():
    if gpu.is_software:
        raise NotRun("CuPy needs a GPU")
    try:
        import cupy
    except ImportError as error:
        raise NotRun(f"no CuPy ({error})") from error
    asynchronous = cupy.cuda.MemoryAsyncPool()
    pools = {"CuPy's pool": cupy.cuda.MemoryPool().malloc, "stream-ordered pool": asynchronous.malloc}
    pools["managed"] = cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc

    def load(file, target):
        equal(file.raw_read(target), target.nbytes)

    for name, malloc in pools.items():
        with cupy.cuda.using_allocator(malloc), folder() as here:
            path = os.path.join(here, "file")
            wanted = cupy.arange(MIB + 11, dtype=cupy.int32)
            with kvikio.CuFile(path, "w") as file:
                equal(file.write(wanted), wanted.nbytes, name)
            got = cupy.zeros_like(wanted)
            cupy.cuda.get_current_stream().synchronize()
            with kvikio.CuFile(path, "r") as file:
                counted.expect(lambda file=file, got=got: load(file, got), read=got.nbytes)
            equal(bool((got == wanted).all()), True, f"bytes, {name}")
            stream = cupy.cuda.Stream(non_blocking=True)
            with stream, kvikio.CuFile(path, "r") as file:
                got.fill(0)
                done = file.raw_read_async(got, stream.ptr)
                equal(bool((got == wanted).all()), True, f"bytes in the stream's order, {name}")
                equal(done.check_bytes_done(), got.nbytes, name)
            del wanted, got


CHECKS = [
    cufile_is_in_use,
    driver_properties_can_be_set,
    raw_calls_move_device_memory,
    futures_move_device_memory,
    host_memory_works_without_cufile,
    memory_is_registered,
    streams_move_device_memory,
    reading_what_is_open_for_writing_is_refused,
    cupy_arrays_and_pools,
]

if __name__ == "__main__":
    checks.main(CHECKS, start)
