"""Parameters, statistics and errors by `cuda.bindings.cufile`."""

import ctypes
import os

from bindings_common import (
    PAGE,
    Handle,
    close_all,
    cufile,
    gpu,
    memory,
    refused,
)
from bindings_queues import entries, events_of
from checks import equal, folder


# ---- parameters -----------------------------------------------------------------------------------------------------

# Number, a value to set: in the order of the enumeration.
SIZES = [1, 32, 8, 4, 4, 1024, 512, 128, 2048, 16, 64, 900]
DEFAULTS = {1: 128, 2: 4, 3: 8192, 4: 4, 6: 131072, 7: 1024, 8: 33554432, 9: 128, 10: 4, 11: 5}
LEAST = [0, 1, 0, 4, 0, 64, 0, 64, 64, 1, 4, 1]


def size_parameters_come_back_as_set():
    close_all()
    cufile.driver_open()
    if not os.environ.get("CUFILE_ENV_PATH_JSON") and not os.path.exists("/etc/cufile.json"):
        for number, value in DEFAULTS.items():
            equal(cufile.get_parameter_size_t(number), value, f"default of {number}")
    for number in range(12):
        refused(5026, cufile.set_parameter_size_t, number, 64)
    close_all()
    for number, value in enumerate(SIZES):
        before = cufile.get_parameter_size_t(number)
        cufile.set_parameter_size_t(number, value)
        equal(cufile.get_parameter_size_t(number), value, f"parameter {number}, staged")
        cufile.driver_open()
        equal(cufile.get_parameter_size_t(number), value, f"parameter {number}, in force")
        close_all()
        cufile.set_parameter_size_t(number, before)
        equal(cufile.get_parameter_size_t(number), before, f"parameter {number}, set back")
        cufile.driver_open()
        close_all()
    refused(5022, cufile.get_parameter_size_t, 12)
    refused(5022, cufile.set_parameter_size_t, 12, 1)
    refused(5022, cufile.set_parameter_size_t, 5, 1)


def ranges_of_size_parameters():
    refused(5022, cufile.get_parameter_min_max_value, 0)
    for number in range(1, 12):
        least, greatest = cufile.get_parameter_min_max_value(number)
        equal(least, LEAST[number], f"least of {number}")
        equal(greatest == 0 or greatest >= least, True, f"greatest of {number}: {greatest}")
    _, greatest = cufile.get_parameter_min_max_value(cufile.SizeTConfigParameter.POLLTHRESHOLD_SIZE_KB)
    equal(greatest > 0, True, f"greatest poll threshold {greatest}")
    refused(5022, cufile.get_parameter_min_max_value, 12)


def flags_come_back_as_set():
    close_all()
    for number in range(12):
        before = cufile.get_parameter_bool(number)
        for value in (True, False):
            cufile.set_parameter_bool(number, value)
            equal(cufile.get_parameter_bool(number), value, f"parameter {number}")
        cufile.set_parameter_bool(number, before)
    cufile.driver_open()
    for number in range(12):
        refused(5026, cufile.set_parameter_bool, number, True)
    close_all()
    refused(5022, cufile.get_parameter_bool, 99)


def texts_come_back_as_set():
    close_all()
    names = cufile.StringConfigParameter
    # Without the variable there is nothing to tell about the log's path; with an empty one, the empty text.
    os.environ["CUFILE_LOGFILE_PATH"] = ""
    try:
        with folder() as here:
            values = [
                (names.LOGGING_LEVEL, "INFO"),
                (names.ENV_LOGFILE_PATH, os.path.join(here, "log")),
                (names.LOG_DIR, here),
            ]
            for name, value in values:
                cufile.get_parameter_string(name, 256)
                text = ctypes.create_string_buffer(value.encode())
                cufile.set_parameter_string(name, ctypes.addressof(text))
                # Bindings before 13.1 leave the zeros at the end.
                equal(cufile.get_parameter_string(name, 256).rstrip("\0"), value)
                refused(5022, cufile.get_parameter_string, name, len(value))
                equal(cufile.get_parameter_string(name, len(value) + 1).rstrip("\0"), value)
            level = ctypes.create_string_buffer(b"ERROR")
            cufile.set_parameter_string(names.LOGGING_LEVEL, ctypes.addressof(level))
            refused(5022, cufile.set_parameter_string, names.LOGGING_LEVEL, 0)
            refused(5022, cufile.get_parameter_string, 99, 256)
            # Set values hold for one opening; afterwards the environment's values are back.
            cufile.driver_open()
            refused(5026, cufile.set_parameter_string, names.LOGGING_LEVEL, ctypes.addressof(level))
            close_all()
    finally:
        del os.environ["CUFILE_LOGFILE_PATH"]


def pools_of_slabs_come_back_as_set():
    close_all()
    set_slabs, get_slabs = cufile.set_parameter_posix_pool_slab_array, cufile.get_parameter_posix_pool_slab_array
    sizes, counts = (ctypes.c_size_t * 4)(4096, 65536, 1048576, 16777216), (ctypes.c_size_t * 4)(10, 5, 3, 2)
    set_slabs(ctypes.addressof(sizes), ctypes.addressof(counts), 4)
    cufile.driver_open()
    got = (ctypes.c_size_t * 4)(), (ctypes.c_size_t * 4)()
    get_slabs(ctypes.addressof(got[0]), ctypes.addressof(got[1]), 4)
    equal((list(got[0]), list(got[1])), (list(sizes), list(counts)))
    refused(5022, get_slabs, ctypes.addressof(got[0]), ctypes.addressof(got[1]), 3)
    refused(5026, set_slabs, ctypes.addressof(sizes), ctypes.addressof(counts), 4)
    close_all()
    refused(5022, set_slabs, 0, 0, 4)


# ---- statistics -----------------------------------------------------------------------------------------------------


def statistics_have_levels():
    close_all()
    refused(5001, cufile.stats_start)
    refused(5001, cufile.stats_stop)
    refused(5001, cufile.stats_reset)
    refused(5001, cufile.get_stats_l1, cufile.StatsLevel1().ptr)
    cufile.driver_open()
    for level in (0, 1, 2, 3):
        cufile.set_stats_level(level)
        equal(cufile.get_stats_level(), level)
    for level in (-1, 4):
        refused(5022, cufile.set_stats_level, level)
    cufile.set_stats_level(1)
    refused(5022, cufile.get_stats_l2, cufile.StatsLevel2().ptr)
    refused(5022, cufile.get_stats_l3, cufile.StatsLevel3().ptr)
    refused(5022, cufile.get_stats_l1, 0)
    cufile.set_stats_level(0)
    close_all()


def number(value):
    """A field of a structure; older bindings give arrays of one."""
    return int(value.item()) if hasattr(value, "item") else int(value)


def ops(counter):
    found = cufile.OpCounter.from_data(counter)
    return number(found.ok), number(found.err)


def some_io(here):
    """Three reads and two writes of 16 KiB by a GPU, one failed read; a batch of two reads."""
    size = 16 * 1024
    with memory("device", size) as address:
        with Handle(os.path.join(here, "file")) as handle:
            cufile.buf_register(address, size, 0)
            for index in range(2):
                cufile.write(handle, address, size, index * size, 0)
            for index in range(3):
                cufile.read(handle, address, size, index % 2 * size, 0)
            refused(5022, cufile.read, handle, address, size, -1, 0)
            batch = cufile.batch_io_set_up(2)
            places = [(address, 0, 0, PAGE), (address, PAGE, PAGE, PAGE)]
            cufile.batch_io_submit(batch, 2, entries(handle, cufile.Opcode.READ, places).ptr, 0)
            equal(len(events_of(batch, 2, 2)), 2)
            cufile.batch_io_destroy(batch)
            cufile.buf_deregister(address)


def check_level1(stats, size=16 * 1024):
    equal(ops(stats.read_ops), (3, 1), "reads")
    equal(ops(stats.write_ops), (2, 0), "writes")
    equal(ops(stats.hdl_register_ops), (1, 0), "handles registered")
    equal(ops(stats.hdl_deregister_ops), (1, 0), "handles deregistered")
    equal(ops(stats.buf_register_ops), (1, 0), "buffers registered")
    equal(ops(stats.buf_deregister_ops), (1, 0), "buffers deregistered")
    equal((number(stats.read_bytes), number(stats.write_bytes)), (3 * size, 2 * size), "bytes")
    equal(ops(stats.batch_setup_ops), (1, 0), "batches set up")
    equal(ops(stats.batch_submit_ops), (1, 0), "batches submitted")
    equal(ops(stats.batch_destroy_ops), (1, 0), "batches destroyed")
    equal(number(stats.batch_read_bytes), 2 * PAGE, "bytes of batches")


def is_long_layout():
    """Bindings from 13.4 on expect the longer structures of 1.19."""
    return cufile.stats_level1_dtype.itemsize != 512


def statistics_count():
    with folder() as here:
        close_all()
        cufile.driver_open()
        cufile.set_stats_level(3)
        cufile.stats_start()
        cufile.stats_reset()
        some_io(here)
        one = cufile.StatsLevel1()
        cufile.get_stats_l1(one.ptr)
        check_level1(one)
        if is_long_layout() and cufile.get_version() < 1190:
            print("        note: these bindings expect the structures of 1.19: FOREBAY_CUFILE_VERSION=1.19 compares levels 2, 3")
            two, three = (ctypes.create_string_buffer(5112) for _ in range(2))
            cufile.get_stats_l2(ctypes.addressof(two))
            cufile.get_stats_l3(ctypes.addressof(three))
        else:
            check_levels_2_and_3()
        # Stopped: nothing more is counted; started again: it goes on (where 1.15 did not).
        cufile.stats_stop()
        some_io(here)
        cufile.get_stats_l1(one.ptr)
        equal(ops(one.read_ops), (3, 1), "reads while stopped")
        cufile.stats_start()
        some_io(here)
        cufile.get_stats_l1(one.ptr)
        equal(ops(one.read_ops), (6, 2), "reads after a new start")
        cufile.stats_reset()
        cufile.get_stats_l1(one.ptr)
        equal(ops(one.read_ops), (0, 0), "reads after a reset")
        cufile.set_stats_level(0)
        close_all()


def check_levels_2_and_3():
    two, three = cufile.StatsLevel2(), cufile.StatsLevel3()
    cufile.get_stats_l2(two.ptr)
    check_level1(cufile.StatsLevel1.from_data(two.basic))
    # Classes are powers of two from 4 KiB on: 16 KiB is the third or fourth.
    sizes = two.read_size_kb_hist, two.write_size_kb_hist
    reads, writes = ([int(count) for count in hist.reshape(-1)] for hist in sizes)
    equal((len(reads), sum(writes)), (32, 2), "sizes")
    equal(reads[3] + reads[2], 3, f"reads of 16 KiB {reads}")
    cufile.get_stats_l3(three.ptr)
    check_level1(cufile.StatsLevel1.from_data(cufile.StatsLevel2.from_data(three.detailed).basic))
    equal(number(three.num_gpus) >= 1, True, "number of GPUs")
    # By its place in the structure: the bindings' versions differ in how they give arrays of structures.
    first = three.ptr + (1144 if is_long_layout() else 1032)
    word = lambda at: ctypes.c_uint64.from_address(first + at).value
    size = 16 * 1024
    equal(word(48), 3, "reads of GPU 0")
    equal((word(16), word(120)), (3 * size, 2 * size), "bytes of GPU 0")
    equal(ctypes.string_at(first, 16), gpu.uuid(), "UUID of GPU 0")


def bars_have_a_size():
    cufile.driver_open()
    if gpu.is_software:
        # There is no such PCI device: the number may be 0, but the call is no error.
        cufile.get_bar_size_in_kb(0)
    else:
        equal(cufile.get_bar_size_in_kb(0) > 0, True, "size of the BAR")
    refused(5022, cufile.get_bar_size_in_kb, 99)
    refused(5022, cufile.get_bar_size_in_kb, -1)
    cufile.driver_close()


def errors_have_texts():
    equal(cufile.op_status_error(5019), "unsupported file open flags")
    equal(cufile.op_status_error(0), "cufile success")
