#!/usr/bin/env python3
"""fio's engine for cuFile (ioengine=libcufile): its own example job, and more jobs that verify what they wrote.

    forebay run -- python3 fio_jobs.py

Needs a fio with that engine (fetch-programs.sh). fio copies from pageable memory to the GPU and calls cuFileWrite at once,
so that a write which does not wait for the copy is seen now and then as a wrong header: each job runs many times.
"""

import os

import programs
from checks import NotRun, Skip, folder, main

EXAMPLE = "libcufile-cufile.fio"
JOB = """
[global]
ioengine=libcufile
cuda_io=cufile
gpu_dev_ids=0
direct=1
thread
numjobs=8
size=8m
verify_fatal=1
filename_format=$jobname.$jobnum
group_reporting
"""
program = None


def start():
    global program
    path = programs.need("fio", "fetch-programs.sh builds")
    program = programs.Program(path)
    if "libcufile" not in program.run("--enghelp"):
        raise Skip(f"{path} has no engine libcufile: fetch-programs.sh builds one that has it")
    print(f"version {program.run('--version').strip().removeprefix('fio-')}")


def _repeat(here, job, says):
    # It leaves files about its verification where it runs.
    program.repeat(job, times=20, seconds=12, says=says, within=here, FIO_DIR=here, GPU_DEV_IDS="0")


def _verified(name, *lines):
    with folder() as here:
        job = os.path.join(here, "job.fio")
        with open(job, "w") as file:
            file.write("\n".join([JOB, f"directory={here}", f"[{name}]", *lines, ""]))
        _repeat(here, job, r"err= 0.*(?s:.*)READ:(?s:.*)WRITE:")


def the_example_job():
    """Six jobs of 16 threads at once; two of them verify by md5."""
    path = os.path.join(os.path.dirname(program.path), EXAMPLE)
    if not os.path.exists(path):
        raise NotRun(f"no {EXAMPLE} beside {program.path}")
    with folder() as here:
        _repeat(here, path, r"randverify: .* err= 0")


def blocks_of_4_kib_in_any_order():
    _verified("small", "rw=randwrite", "bs=4k", "size=1m", "verify=crc32c")


def blocks_of_64_kib_with_a_pattern():
    _verified("pattern", "rw=write", "bs=64k", "verify=pattern", "verify_pattern=%o")


def blocks_of_all_sizes():
    _verified("mixed", "rw=randwrite", "bsrange=4k-1m", "blockalign=4k", "verify=md5")


def large_blocks():
    _verified("large", "rw=write", "bs=4m", "verify=xxhash")


CHECKS = [
    the_example_job,
    blocks_of_4_kib_in_any_order,
    blocks_of_64_kib_with_a_pattern,
    blocks_of_all_sizes,
    large_blocks,
]

if __name__ == "__main__":
    main(CHECKS, start)
