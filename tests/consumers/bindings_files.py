"""Opening, files, memory, reads and writes by `cuda.bindings.cufile`."""

import ctypes
import errno
import os
import threading

from bindings_common import (
    HOST,
    KINDS,
    MIB,
    PAGE,
    Handle,
    close_all,
    cufile,
    gpu,
    memory,
    read,
    read_file,
    refused,
    register,
    users,
    write,
    write_file,
)
from checks import NotRun, equal, folder, opened, pattern


# ---- opening, version, properties ----------------------------------------------------------------------------------


def version_is_what_was_said():
    equal(cufile.get_version(), 1190 if os.environ.get("FOREBAY_CUFILE_VERSION") == "1.19" else 1150)


def uses_are_counted():
    close_all()
    equal(users(), 0)
    cufile.use_count()
    refused(5001, cufile.driver_close)
    cufile.driver_open()
    cufile.driver_open()
    equal(users(), 2)
    cufile.driver_close()
    equal(users(), 1)
    cufile.driver_close()
    equal(users(), 0)
    refused(5001, cufile.driver_close)


def the_first_registration_opens():
    close_all()
    with memory("device", PAGE) as address:
        cufile.buf_register(address, PAGE, 0)
        equal(users(), 1, "uses after an implicit opening")
        cufile.driver_open()
        equal(users(), 2, "uses after an explicit one")
        close_all()
        refused(5006, cufile.buf_deregister, address)
        # Closing has forgotten the registration.
        cufile.driver_open()
        cufile.buf_register(address, PAGE, 0)
        cufile.buf_deregister(address)


def closing_ends_handles():
    close_all()
    with folder() as here, memory("host", PAGE) as address:
        path = os.path.join(here, "file")
        write_file(path, b"x" * PAGE)
        with opened(path) as descriptor:
            handle = register(descriptor)
            close_all()
            refused(5027, cufile.read, handle, address, PAGE, 0, 0)
            # The descriptor is the caller's, and can be registered anew.
            equal(os.pread(descriptor, 1, 0), b"x")
            handle = register(descriptor)
            equal(read(handle, address, PAGE, 0, 0), PAGE)
            cufile.handle_deregister(handle)


def properties_tell_what_was_set():
    words = (ctypes.c_uint32 * 16)()
    for is_open in (False, True):
        close_all()
        if is_open:
            cufile.driver_open()
        cufile.driver_set_poll_mode(True, 8)
        cufile.driver_set_max_direct_io_size(2048)
        cufile.driver_set_max_cache_size(65536)
        cufile.driver_set_max_pinned_mem_size(1048576)
        cufile.driver_get_properties(ctypes.addressof(words))
        equal((words[0], words[1]), (0, 0), "version of nvidia-fs")
        equal(words[2] | words[3] << 32, 8, "poll threshold")
        equal(words[4] | words[5] << 32, 2048, "max direct I/O size")
        equal(words[6], 0, "supported file systems of nvidia-fs")
        equal(words[7], 0b11, "poll mode and compat mode")
        equal(words[8] & 0b1111, 0b1111, "features")
        equal(words[9], 65536, "cache size")
        equal(words[11], 1048576, "pinned memory")
        equal((words[12], words[13]), (128, 5), "batch size and timeout")
        equal((words[14], words[15]), (0, 0), "words behind the structure")
        cufile.driver_set_poll_mode(False, 4)
        cufile.driver_get_properties(ctypes.addressof(words))
        equal(words[7], 0b10, "compat mode alone")
    refused(5022, cufile.driver_get_properties, 0)
    close_all()


# ---- files ----------------------------------------------------------------------------------------------------------


def files_that_cannot_be_registered_are_refused():
    with folder() as here:
        path = os.path.join(here, "file")
        write_file(path, b"12345")
        with opened(path, os.O_RDWR | os.O_APPEND) as descriptor:
            refused(5019, register, descriptor)
        with opened(here, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            refused(5018, register, descriptor)
        ends = os.pipe()
        refused(5018, register, ends[0])
        for end in ends:
            os.close(end)
        refused(5022, register, -1)
        refused(5022, register, 999_999)
        refused(5022, cufile.handle_register, 0)
        with opened(path) as descriptor:
            refused(5008, register, descriptor, cufile.FileHandleType.OPAQUE_WIN32)
            refused(5008, register, descriptor, cufile.FileHandleType.USERSPACE_FS)
            handle = register(descriptor)
            refused(5028, register, descriptor)
            cufile.handle_deregister(handle)
            again = register(descriptor)
            cufile.handle_deregister(again)
            cufile.handle_deregister(again)


def the_descriptor_stays_the_callers():
    import fcntl

    with folder() as here:
        path = os.path.join(here, "file")
        write_file(path, b"0" * PAGE)
        for extra in (0, os.O_DIRECT):
            with opened(path, os.O_RDWR | extra) as descriptor:
                os.lseek(descriptor, 17, os.SEEK_SET)
                fcntl.lockf(descriptor, fcntl.LOCK_EX)
                before = fcntl.fcntl(descriptor, fcntl.F_GETFL)
                handle = register(descriptor)
                cufile.handle_deregister(handle)
                equal(fcntl.fcntl(descriptor, fcntl.F_GETFL), before, "flags")
                equal(os.lseek(descriptor, 0, os.SEEK_CUR), 17, "position")
                child = os.fork()
                if child == 0:
                    try:
                        fcntl.lockf(os.open(path, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except OSError:
                        os._exit(0)
                    os._exit(1)
                equal(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0, "the lock is gone")


# ---- buffers --------------------------------------------------------------------------------------------------------


def buffers_are_registered_and_checked():
    cufile.driver_open()
    for kind in KINDS:
        with memory(kind, 16 * PAGE) as address:
            if kind == "managed":
                refused(5013, cufile.buf_register, address, 16 * PAGE, 0)
                continue
            cufile.buf_register(address, 16 * PAGE, 0)
            refused(5023, cufile.buf_register, address, PAGE, 0)
            cufile.buf_register(address + PAGE, PAGE, 0)
            cufile.buf_deregister(address + PAGE)
            cufile.buf_deregister(address)
            refused(5024, cufile.buf_deregister, address)
    with memory("device", 2 * MIB) as address:
        refused(5014, cufile.buf_register, address, 1 << 40, 0)
        for flags in (1, 2, 999):
            cufile.buf_register(address, PAGE, flags)
            cufile.buf_deregister(address)
    refused(5022, cufile.buf_register, 0, PAGE, 0)
    refused(5022, cufile.buf_deregister, 0)
    cufile.driver_close()


# ---- reads and writes -----------------------------------------------------------------------------------------------


def bytes_go_both_ways_with_any_memory_and_alignment():
    cases = [
        (0, 64 * 1024, 0),
        (0, 3 * MIB + 1, 0),
        (4096, 8192, 4096),
        (1, 1, 3),
        (511, 4097, 513),
        (MIB - 1, MIB + 2, 7),
    ]
    for direct in (0, os.O_DIRECT):
        for kind in KINDS:
            with folder() as here, memory(kind, 5 * MIB) as address:
                path = os.path.join(here, "file")
                with Handle(path, os.O_RDWR | direct) as handle:
                    for seed, (file_offset, length, buffer_offset) in enumerate(cases):
                        round_trip(handle, path, kind, address, file_offset, length, buffer_offset, seed)


def round_trip(handle, path, kind, address, file_offset, length, buffer_offset, seed):
    what = f"{kind} memory, {length} bytes at {file_offset}, buffer at {buffer_offset}"
    data, is_host = pattern(length, seed), kind in HOST
    gpu.put(address + buffer_offset, data, is_host)
    equal(write(handle, address, length, file_offset, buffer_offset), length, f"written: {what}")
    equal(read_file(path)[file_offset : file_offset + length] == data, True, f"the file's bytes: {what}")
    around = b"\xa5" * (length + 2)
    gpu.put(address + buffer_offset, around, is_host)
    equal(read(handle, address, length, file_offset, buffer_offset + 1), length, f"read: {what}")
    got = gpu.get(address + buffer_offset, length + 2, is_host)
    equal(got[1:-1] == data, True, f"bytes read: {what}")
    equal((got[0], got[-1]), (0xA5, 0xA5), f"bytes beside the target: {what}")


def registered_memory_and_pointers_inside_of_it():
    with folder() as here, memory("device", MIB) as address:
        data = pattern(MIB)
        path = os.path.join(here, "file")
        write_file(path, data)
        with Handle(path, os.O_RDONLY | os.O_DIRECT) as handle:
            cufile.buf_register(address, MIB, 0)
            equal(read(handle, address, MIB, 0, 0), MIB)
            equal(gpu.get(address, MIB) == data, True, "bytes")
            equal(read(handle, address + 8192, 4096, 4096, 0), 4096)
            equal(gpu.get(address + 8192, 4096), data[4096:8192], "bytes by an inner pointer")
            refused(5017, cufile.read, handle, address, MIB, 0, 1)
            cufile.buf_deregister(address)


def memory_mapped_in_several_parts_is_one():
    if gpu.is_software:
        raise NotRun("the software GPU copies within one mapping alone")
    length = 6 * MIB
    data = pattern(length)
    with folder() as here, gpu.virtual(length) as address:
        path = os.path.join(here, "file")
        write_file(path, data)
        for direct in (0, os.O_DIRECT):
            with Handle(path, os.O_RDWR | direct) as handle:
                for at, size in ((0, length), (4 * MIB - 4096, 8192), (4 * MIB - 100, 200)):
                    gpu.put(address, bytes(length))
                    equal(read(handle, address, size, at, at), size, f"{size} bytes at {at}")
                    equal(gpu.get(address + at, size) == data[at : at + size], True, f"bytes, {size} at {at}")
                    equal(write(handle, address, size, at, at), size, f"written, {size} bytes at {at}")
        equal(read_file(path) == data, True, "the file's bytes")


def files_end():
    with folder() as here, memory("device", MIB) as address:
        path = os.path.join(here, "file")
        write_file(path, pattern(10_000))
        for direct in (0, os.O_DIRECT):
            with Handle(path, os.O_RDWR | direct) as handle:
                equal(read(handle, address, MIB, 0, 0), 10_000, "short read")
                equal(gpu.get(address, 10_000) == pattern(10_000), True, "bytes")
                equal(read(handle, address, MIB, 8192, 0), 10_000 - 8192, "tail")
                equal(read(handle, address, PAGE, 10_000, 0), 0, "at the end")
                equal(read(handle, address, PAGE, 1 << 40, 0), 0, "far beyond it")
                equal(read(handle, address, 0, 0, 0), 0, "nothing")
                equal(write(handle, address, 0, 0, 0), 0, "nothing")
        equal(os.path.getsize(path), 10_000, "size after all")


def mistakes_are_told_by_errno():
    with folder() as here, memory("device", 2 * MIB) as address:
        path = os.path.join(here, "file")
        write_file(path, b"0" * PAGE)
        with Handle(path) as handle:
            refused(errno.EINVAL, cufile.read, 0, address, PAGE, 0, 0)
            refused(errno.EINVAL, cufile.read, 0x1234, address, PAGE, 0, 0)
            refused(5022, cufile.read, handle, address, PAGE, -1, 0)
            refused(5030, cufile.read, handle, address, PAGE, 0, -1)
            refused(5022, cufile.read, handle, 0, PAGE, 0, 0)
            refused(errno.EIO, cufile.read, handle, address, 1 << 40, 0, 0)
        refused(5027, cufile.read, handle, address, PAGE, 0, 0)
        refused(5027, cufile.write, handle, address, PAGE, 0, 0)
        with Handle(path, os.O_WRONLY) as handle:
            refused(5019, cufile.read, handle, address, PAGE, 0, 0)
        with Handle(path, os.O_RDONLY) as handle:
            refused(errno.EIO, cufile.write, handle, address, PAGE, 0, 0)


def many_threads_share_a_handle():
    piece, count, threads = 128 * 1024, 16, 8
    data = pattern(piece * count)
    failures = []
    with folder() as here, memory("device", piece * count * threads) as address:
        path = os.path.join(here, "file")
        write_file(path, data)
        with Handle(path, os.O_RDONLY | os.O_DIRECT) as handle:

            def work(number):
                try:
                    gpu.make_current()
                    base = address + number * len(data)
                    for index in range(count):
                        at = (index * 7 + number) % count * piece
                        equal(read(handle, base, piece, at, at), piece, "read")
                    equal(gpu.get(base, len(data)) == data, True, "bytes")
                except Exception as error:
                    failures.append(error)

            workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
    equal(failures, [])


def vectors_if_the_bindings_have_them():
    if "readv" not in cufile.functions():
        return
    parts = [(3, 5000), (20_000, 8192), (40_000, 1)]
    total = sum(length for _, length in parts)
    data = pattern(total)
    with folder() as here, memory("device", MIB) as address:
        path = os.path.join(here, "file")
        vector, done = cufile.IOVec(3), 0
        for index, (at, length) in enumerate(parts):
            vector[index].base_, vector[index].len = address + at, length
            gpu.put(address + at, data[done : done + length])
            done += length
        with Handle(path) as handle:
            equal(cufile.writev(handle, vector, 11), total)
            equal(read_file(path)[11:] == data, True, "the file's bytes")
            gpu.put(address, bytes(50_000))
            equal(cufile.readv(handle, vector, 11), total)
            got = b"".join(gpu.get(address + at, length) for at, length in parts)
            equal(got == data, True, "bytes")
