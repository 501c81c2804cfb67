#!/usr/bin/env python3
"""NIXL's GDS test (test/unit/plugins/cuda_gds/nixl_gds_test.cpp): writes GPU or host memory to files in batches, clears
it, reads it back and compares.

    forebay run -- python3 nixl_gds_test.py

Needs the program nixl_gds_test, which NIXL's own build makes, and NIXL's libraries of the same version (nixl-cu13).
"""

import os

import programs
from checks import Skip, folder, main

# It ends with 0 also where the data is wrong.
SAYS = "Verification completed successfully"
program = None


def start():
    global program
    path = programs.need("nixl_gds_test", "NIXL's own build makes")
    libraries = programs.folder_of("nixl_cu13", "..", ".nixl_cu13.mesonpy.libs")
    if not libraries:
        raise Skip("no Python package nixl-cu13, which has the libraries that nixl_gds_test is linked with")
    program = programs.Program(path, libraries, NIXL_PLUGIN_DIR=os.path.join(libraries, "plugins"))
    print(f"version {programs.version_of('nixl_gds_test')}")


def _test(*arguments, times=1):
    with folder() as here:
        program.repeat("-P", *arguments, here, times=times, seconds=12, says=SAYS)


def files_by_path():
    """What -P leaves out: NIXL opens the files. It counts the process's descriptors before and after, too."""
    with folder() as here:
        says = f"path-mode roundtrip OK(?s:.*){SAYS}"
        program.repeat("-n", "1", "-s", "4K", here, times=20, seconds=12, says=says)


def device_memory():
    _test("-n", "32", "-s", "2M", times=10)


def device_memory_past_the_page_cache():
    _test("-D", "-n", "32", "-s", "2M")


def device_memory_again_and_again():
    _test("-n", "64", "-s", "256K", "-t", "20")


def device_memory_in_unaligned_pieces():
    _test("-n", "50", "-s", "65537")


def large_device_memory_in_requests_of_1_mib():
    _test("-n", "4", "-s", "33M", "-m", "1M", "-b", "16", "-p", "16")


def host_memory():
    _test("-d", "-n", "32", "-s", "2M")


CHECKS = [
    files_by_path,
    device_memory,
    device_memory_past_the_page_cache,
    device_memory_again_and_again,
    device_memory_in_unaligned_pieces,
    large_device_memory_in_requests_of_1_mib,
    host_memory,
]

if __name__ == "__main__":
    main(CHECKS, start)
