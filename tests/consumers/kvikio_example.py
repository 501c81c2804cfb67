#!/usr/bin/env python3
"""KvikIO's C++ example (cpp/examples/basic_io.cpp), which compares what it reads itself.

    forebay run -- python3 kvikio_example.py

Needs the program BASIC_IO_EXAMPLE, which KvikIO's own build makes, and the library it was built with (libkvikio-cu13).
It writes /tmp/test-file.
"""

import programs
from checks import main

SAYS = "(?s)Compatibility mode: disabled.*Batch canceling of all 4 operations.*by-value.*File async read: 4096"
program = None


def start():
    global program
    path = programs.need("BASIC_IO_EXAMPLE", "KvikIO's own build makes")
    folders = [programs.folder_of(name, "lib64") for name in ("libkvikio", "rapids_logger")]
    program = programs.Program(path, *folders)
    print(f"version {programs.version_of('BASIC_IO_EXAMPLE')}")


def files_batches_and_streams():
    """Its device memory is smaller than what KvikIO gives to cuFile, unless told: the batch alone goes there."""
    program.repeat(times=10, seconds=15, says=SAYS)


def all_device_memory_by_cufile():
    program.repeat(times=10, seconds=15, says=SAYS, KVIKIO_GDS_THRESHOLD="0")


if __name__ == "__main__":
    main([files_batches_and_streams, all_device_memory_by_cufile], start)
