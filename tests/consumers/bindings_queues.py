"""Batches and streams by `cuda.bindings.cufile`."""

import ctypes
import errno
import os

from bindings_common import (
    HOST,
    KINDS,
    MIB,
    PAGE,
    Handle,
    cufile,
    gpu,
    memory,
    read_file,
    refused,
    write_file,
)
from checks import equal, folder, pattern


# ---- batches --------------------------------------------------------------------------------------------------------


def entries(handle, opcode, places, cookie=0):
    """`places`: (address, buffer offset, file offset, size) of each entry."""
    params = cufile.IOParams(len(places))
    for index, (address, buffer_offset, file_offset, size) in enumerate(places):
        entry = params[index] if len(places) > 1 else params
        entry.mode = cufile.BatchMode.BATCH
        entry.fh = handle
        entry.opcode = opcode
        entry.cookie = cookie + index
        entry.u.batch.dev_ptr_base = address
        entry.u.batch.dev_ptr_offset = buffer_offset
        entry.u.batch.file_offset = file_offset
        entry.u.batch.size_ = size
    return params


def events_of(batch, least, room, timeout=0):
    """Takes events: (cookie, status, ret) of each."""
    events = cufile.IOEvents(room)
    count = ctypes.c_uint(room)
    cufile.batch_io_get_status(batch, least, ctypes.addressof(count), events.ptr, timeout)
    all_events = [events] if room == 1 else [events[index] for index in range(room)]
    return [(int(event.cookie), int(event.status), int(event.ret)) for event in all_events[: count.value]]


def batches_write_and_read():
    size, count = 64 * 1024, 8
    complete = int(cufile.Status.COMPLETE)
    for kind in KINDS:
        is_host = kind in HOST
        with folder() as here, memory(kind, size * count) as address:
            data = pattern(size * count)
            path = os.path.join(here, "file")
            gpu.put(address, data, is_host)
            places = [(address, index * size, index * size, size) for index in range(count)]
            with Handle(path, os.O_RDWR | os.O_DIRECT) as handle:
                batch = cufile.batch_io_set_up(count)
                cufile.batch_io_submit(batch, count, entries(handle, cufile.Opcode.WRITE, places).ptr, 0)
                # As programs pass it that take the timeout for a number of milliseconds: four bytes.
                timeout = ctypes.c_int(5000)
                got = events_of(batch, count, count, ctypes.addressof(timeout))
                equal(sorted(got), [(index, complete, size) for index in range(count)], f"writes, {kind}")
                equal(read_file(path) == data, True, f"the file's bytes, {kind}")
                gpu.put(address, bytes(size * count), is_host)
                # The same batch again, its events one by one, for ever.
                cufile.batch_io_submit(batch, count, entries(handle, cufile.Opcode.READ, places, 100).ptr, 0)
                got = [event for _ in range(count) for event in events_of(batch, 1, 1)]
                equal(sorted(got), [(100 + index, complete, size) for index in range(count)], f"reads, {kind}")
                equal(gpu.get(address, size * count, is_host) == data, True, f"bytes, {kind}")
                equal(events_of(batch, 0, count), [], "events after the last")
                cufile.batch_io_destroy(batch)
                cufile.batch_io_destroy(batch)


def each_entry_of_a_batch_has_its_own_result():
    failed, complete = int(cufile.Status.FAILED), int(cufile.Status.COMPLETE)
    with folder() as here, memory("device", 4 * PAGE) as address:
        path = os.path.join(here, "file")
        write_file(path, pattern(5000))
        with Handle(path) as handle:
            batch = cufile.batch_io_set_up(3)
            places = [(address, index * PAGE, offset, PAGE) for index, offset in enumerate((0, PAGE, 1 << 30))]
            params = entries(handle, cufile.Opcode.READ, places)
            cufile.batch_io_submit(batch, 3, params.ptr, 0)
            equal(sorted(events_of(batch, 3, 3)), [(0, complete, PAGE), (1, complete, 904), (2, complete, 0)])
            # An opcode that does not exist fails alone.
            ctypes.c_int.from_address(params.ptr + 64 + 48).value = 77
            cufile.batch_io_submit(batch, 3, params.ptr, 0)
            got = sorted(events_of(batch, 3, 3))
            equal([event[:2] for event in got], [(0, complete), (1, failed), (2, complete)])
            equal(got[1][2] & (2**64 - 1), 2**64 - errno.EINVAL, "result of the failed entry")
            cufile.batch_io_destroy(batch)


def batches_refuse_what_they_cannot_do():
    with folder() as here, memory("device", 4 * PAGE) as address:
        path = os.path.join(here, "file")
        write_file(path, pattern(4 * PAGE))
        with Handle(path) as handle:
            refused(5022, cufile.batch_io_set_up, 0)
            refused(5022, cufile.batch_io_set_up, 129)
            batch = cufile.batch_io_set_up(2)
            places = [(address, 0, 0, PAGE)] * 3
            params = entries(handle, cufile.Opcode.READ, places)
            refused(5040, cufile.batch_io_submit, batch, 3, params.ptr, 0)
            refused(5040, cufile.batch_io_submit, batch, 0, params.ptr, 0)
            refused(5040, cufile.batch_io_submit, batch, 1, 0, 0)
            refused(5040, cufile.batch_io_submit, 0x77, 1, params.ptr, 0)
            events, count = cufile.IOEvents(2), ctypes.c_uint(1)
            number = ctypes.addressof(count)
            refused(5022, cufile.batch_io_get_status, batch, 2, number, events.ptr, 0)
            refused(5041, cufile.batch_io_get_status, 0x77, 0, number, events.ptr, 0)
            refused(5042, cufile.batch_io_cancel, 0x77)
            # A bad entry refuses the whole submission, and the batch goes on.
            bad = entries(handle + 8, cufile.Opcode.READ, places[:2])
            refused(5040, cufile.batch_io_submit, batch, 2, bad.ptr, 0)
            cufile.batch_io_submit(batch, 2, params.ptr, 0)
            equal(len(events_of(batch, 2, 2)), 2)
            cufile.batch_io_destroy(batch)
            refused(5041, cufile.batch_io_get_status, batch, 0, number, events.ptr, 0)


def batches_are_cancelled_and_time_out():
    final = {int(cufile.Status.COMPLETE), int(cufile.Status.CANCELED)}
    with folder() as here, memory("device", 2 * MIB) as address:
        path = os.path.join(here, "file")
        write_file(path, pattern(2 * MIB))
        with Handle(path) as handle:
            batch = cufile.batch_io_set_up(2)
            places = [(address, 0, 0, MIB), (address, MIB, MIB, MIB)]
            cufile.batch_io_submit(batch, 2, entries(handle, cufile.Opcode.READ, places).ptr, 0)
            cufile.batch_io_cancel(batch)
            got = events_of(batch, 0, 2)
            equal({event[1] for event in got} <= final, True, f"states after a cancel {got}")
            cufile.batch_io_destroy(batch)
            cufile.batch_io_cancel(0)
            # A timespec of nothing, and odd ones, are no error; a wait for events that cannot come ends.
            batch = cufile.batch_io_set_up(2)
            for words in ((0, 0), (-1, 0), (0, -5), (0, 2_000_000_000)):
                timeout = (ctypes.c_int64 * 2)(*words)
                equal(events_of(batch, 0, 2, ctypes.addressof(timeout)), [])
            cufile.batch_io_destroy(batch)


# ---- streams --------------------------------------------------------------------------------------------------------


class Place:
    """The four numbers of an operation on a stream, at addresses that stay."""

    def __init__(self, size, file_offset, buffer_offset):
        self.words = (ctypes.c_int64 * 4)(size, file_offset, buffer_offset, -77)

    def pointers(self):
        start = ctypes.addressof(self.words)
        return tuple(start + 8 * index for index in range(4))

    def done(self):
        return self.words[3]


def streams_are_registered():
    cufile.driver_open()
    with gpu.stream() as stream:
        for flags in (0, 0xF):
            cufile.stream_register(stream, flags)
            refused(5022, cufile.stream_register, stream, flags)
            cufile.stream_deregister(stream)
        refused(5022, cufile.stream_register, stream, 0x10)
        refused(5022, cufile.stream_deregister, stream)
    cufile.driver_close()


def streams_write_and_read():
    length = 3 * MIB + 5
    data = pattern(length)
    for kind in KINDS:
        is_host = kind in HOST
        with folder() as here, gpu.stream() as own, memory(kind, length + 64) as address:
            path = os.path.join(here, "file")
            with Handle(path) as handle:
                # Registered with all promises, registered with none, not registered, the default stream.
                for flags, stream in ((0xF, own), (0, own), (None, own), (None, 0)):
                    what = f"{kind} memory, flags {flags}, {'own' if stream else 'default'} stream"
                    if flags is not None:
                        cufile.stream_register(stream, flags)
                    gpu.put(address, data, is_host)
                    writing, reading = Place(length, 9, 0), Place(length, 9, 64)
                    cufile.write_async(handle, address, *writing.pointers(), stream)
                    cufile.read_async(handle, address, *reading.pointers(), stream)
                    gpu.wait(stream)
                    equal((writing.done(), reading.done()), (length, length), what)
                    equal(read_file(path)[9:] == data, True, f"the file's bytes: {what}")
                    equal(gpu.get(address + 64, length, is_host) == data, True, f"bytes: {what}")
                    if flags is not None:
                        cufile.stream_deregister(stream)


def streams_keep_their_order():
    count, size = 200, 8192
    with folder() as here, gpu.stream() as stream, memory("device", size) as address:
        path = os.path.join(here, "file")
        write_file(path, pattern(count * size))
        with Handle(path, os.O_RDWR | os.O_DIRECT) as source, Handle(path + "2") as target:
            places = []
            # One buffer for all: each write must come after its read and before the next one.
            for index in range(count):
                reading, writing = Place(size, index * size, 0), Place(size, index * size, 0)
                cufile.read_async(source, address, *reading.pointers(), stream)
                cufile.write_async(target, address, *writing.pointers(), stream)
                places += [reading, writing]
            gpu.wait(stream)
            equal({place.done() for place in places}, {size}, "results")
        equal(read_file(path + "2") == pattern(count * size), True, "the copy's bytes")


def streams_tell_short_reads_and_mistakes():
    with folder() as here, gpu.stream() as stream, memory("device", MIB) as address:
        path = os.path.join(here, "file")
        write_file(path, pattern(1000))
        with Handle(path) as handle:
            short, beyond = Place(MIB, 0, 0), Place(PAGE, 5000, 0)
            cufile.read_async(handle, address, *short.pointers(), stream)
            cufile.read_async(handle, address, *beyond.pointers(), stream)
            gpu.wait(stream)
            equal((short.done(), beyond.done()), (1000, 0))
            bad = Place(PAGE, -4096, 0)
            try:
                cufile.read_async(handle, address, *bad.pointers(), stream)
            except cufile.cuFileError:
                pass
            else:
                gpu.wait(stream)
                equal(bad.done() < 0, True, f"result of a negative offset {bad.done()}")
        refused(5027, cufile.read_async, handle, address, *Place(PAGE, 0, 0).pointers(), stream)
        with Handle(path, os.O_WRONLY) as handle:
            refused(5019, cufile.read_async, handle, address, *Place(PAGE, 0, 0).pointers(), stream)
