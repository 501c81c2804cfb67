#!/usr/bin/env python3
"""Runs a command the way a default container runs it.

    bench/deny_io_uring.py [--user UID] [--memlock BYTES] COMMAND [ARGUMENT ...]

io_uring_setup, io_uring_enter and io_uring_register return EPERM, as they do under the default seccomp
profile of Docker and containerd. --user drops root (user, group and supplementary groups); --memlock sets
RLIMIT_MEMLOCK. Exit code: the command's; 125 if the restrictions cannot be set up.
"""

import argparse
import ctypes
import errno
import os
import platform
import resource
import struct
import sys

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
SECCOMP_RET_ALLOW = 0x7FFF0000
SECCOMP_RET_ERRNO = 0x00050000
SECCOMP_RET_KILL_PROCESS = 0x80000000

BPF_LD_W_ABS = 0x20
BPF_JEQ_K = 0x15
BPF_RET_K = 0x06

# io_uring_setup, io_uring_enter and io_uring_register have the same numbers on every architecture.
IO_URING_CALLS = (425, 426, 427)
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def io_uring_filter(machine):
    """The classic BPF program: other architectures are killed, io_uring's calls fail, the rest is allowed."""

    def instruction(code, if_true, if_false, value):
        return struct.pack("HBBI", code, if_true, if_false, value)

    program = [
        instruction(BPF_LD_W_ABS, 0, 0, 4),  # seccomp_data.arch
        instruction(BPF_JEQ_K, 1, 0, AUDIT_ARCH[machine]),
        instruction(BPF_RET_K, 0, 0, SECCOMP_RET_KILL_PROCESS),
        instruction(BPF_LD_W_ABS, 0, 0, 0),  # seccomp_data.nr
    ]
    for position, call in enumerate(IO_URING_CALLS):
        to_errno = len(IO_URING_CALLS) - position  # over the calls left and the ALLOW
        program.append(instruction(BPF_JEQ_K, to_errno, 0, call))
    program.append(instruction(BPF_RET_K, 0, 0, SECCOMP_RET_ALLOW))
    program.append(instruction(BPF_RET_K, 0, 0, SECCOMP_RET_ERRNO | errno.EPERM))
    return program


class SockFprog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def prctl(*arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    words += [ctypes.c_ulong(0)] * (5 - len(words))
    if libc.prctl(*words) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def deny_io_uring():
    program = io_uring_filter(platform.machine())
    code = ctypes.create_string_buffer(b"".join(program))
    fprog = SockFprog(len(program), ctypes.cast(code, ctypes.c_void_p))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(fprog))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--user", type=int, help="numeric user and group id to run as (needs root)")
    parser.add_argument("--memlock", type=int, help="RLIMIT_MEMLOCK in bytes, soft and hard")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error("no command given")
    try:
        if options.memlock is not None:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (options.memlock, options.memlock))
        if options.user is not None:
            os.setgroups([])
            os.setresgid(options.user, options.user, options.user)
            os.setresuid(options.user, options.user, options.user)
            os.environ["HOME"] = "/tmp"
        deny_io_uring()
    except (OSError, KeyError, ValueError) as error:
        print(f"error: cannot set up the restrictions: {error}", file=sys.stderr)
        if options.user is not None and os.geteuid() != 0:
            print("hint: --user needs root", file=sys.stderr)
        sys.exit(125)
    try:
        os.execvp(options.command[0], options.command)
    except OSError as error:
        print(f"error: cannot run {options.command[0]}: {error}", file=sys.stderr)
        sys.exit(127 if error.errno == errno.ENOENT else 126)


if __name__ == "__main__":
    main()
