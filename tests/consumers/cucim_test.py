#!/usr/bin/env python3
"""cuCIM's C++ file test (cpp/tests/test_cufile.cpp): device, managed, pinned and host memory, written and read at all
sorts of offsets with cuFile and without, and compared by the test itself.

    forebay run -- python3 cucim_test.py

Needs the program cucim_tests, which cuCIM's own build makes. It clears device memory by cudaMemset and reads into it
at once, so that a read which does not wait for the clearing is seen now and then: it runs many times.
"""

import programs
from checks import folder, main

TEST = "Verify libcufile usage"
program = None


def start():
    global program
    path = programs.need("cucim_tests", "cuCIM's own build makes")
    program = programs.Program(path)
    print(f"version {programs.version_of('cucim_tests')}")


def the_file_test():
    with folder() as here:
        arguments = [TEST, "--temp_folder", here]
        program.repeat(*arguments, times=50, seconds=50, says=r"All tests passed \(9\d\d assertions")


if __name__ == "__main__":
    main([the_file_test], start)
