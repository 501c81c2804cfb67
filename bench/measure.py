#!/usr/bin/env python3
"""Runs one measured command and appends one record to a results file.

    bench/measure.py --results FILE --section S --case C --subject NAME --repeat N --kind forebay|fio|kvikio
                     [--json FILE] [--limit SECONDS] [--warm FILE | --drop FILE | --remove FILE] -- COMMAND ...

The record holds the command, exit status, wall and CPU seconds of the whole process and the tool's own JSON, read
from --json or from standard output. --warm reads FILE through the page cache first; --drop writes FILE back, drops
it from the page cache and fails unless none of it is left there. A command that outlives --limit is killed.
"""

import argparse
import ctypes
import json
import mmap
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time


def resident_pages(path):
    """Pages of a file in the page cache, by mincore (needs a file that is owned or writable)."""
    size = os.stat(path).st_size
    if size == 0:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    fd = os.open(path, os.O_RDONLY)
    try:
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "mmap")
        pages = (ctypes.c_ubyte * ((size + mmap.PAGESIZE - 1) // mmap.PAGESIZE))()
        failed = libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages)
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))
        if failed:
            raise OSError(ctypes.get_errno(), "mincore")
        return len(pages) - bytes(pages).count(0)
    finally:
        os.close(fd)


def drop(path):
    for _ in range(3):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
        left = resident_pages(path)
        if left == 0:
            return
        time.sleep(0.2)
    sys.exit(f"error: {path}: {left} pages are still in the page cache")


def warm(path):
    buffer = bytearray(8 << 20)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def tool_json(kind, path, output):
    text = output
    if path:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    if kind == "kvikio":
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    start = text.find("{")  # fio prints notes before its JSON
    return json.loads(text[start:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("results", "section", "case", "subject", "kind"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--repeat", type=int, required=True)
    parser.add_argument("--json")
    parser.add_argument("--limit", type=float, default=120)
    parser.add_argument("--warm")
    parser.add_argument("--drop")
    parser.add_argument("--remove")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command

    if options.remove:
        for path in (options.remove, options.json):
            if path and os.path.exists(path):
                os.unlink(path)
    if options.warm:
        warm(options.warm)
    if options.drop:
        drop(options.drop)

    record = {
        "section": options.section,
        "case": options.case,
        "subject": options.subject,
        "repeat": options.repeat,
        "kind": options.kind,
        "command": command,
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        try:
            record["status"] = child.wait(options.limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            # A task stuck in the kernel may never die: do not wait for it for ever.
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                pass
            record["status"] = "timeout"
        record["wall_s"] = time.monotonic() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        record["user_s"] = after.ru_utime - before.ru_utime
        record["system_s"] = after.ru_stime - before.ru_stime
        out.seek(0)
        err.seek(0)
        output, errors = out.read().decode(errors="replace"), err.read().decode(errors="replace")
    if record["status"] == 0:
        try:
            record["result"] = tool_json(options.kind, options.json, output)
        except (OSError, ValueError) as error:
            record["status"] = f"no JSON: {error}"
    if record["status"] != 0:
        record["output_tail"] = (output + errors)[-2000:]
        reason = (errors or output).strip().splitlines()[-3:]
        print(f"  failed ({record['status']}): {options.subject}: {' | '.join(reason)}", file=sys.stderr)
    with open(options.results, "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    sys.exit(0 if record["status"] == 0 else 1)


if __name__ == "__main__":
    main()
