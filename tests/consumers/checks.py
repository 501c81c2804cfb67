"""What these scripts share: a list of checks that ends in an exit code, and temporary files."""

import contextlib
import os
import sys
import tempfile
import traceback


class Skip(Exception):
    """This machine lacks what the script needs; the text says what."""


class NotRun(Exception):
    """A check that does not apply here; the text says why."""


class Checks:
    """Runs checks one after the other. A failed one does not keep the others from running."""

    def __init__(self):
        self.passed = 0
        self.failed = []

    def run(self, checks):
        """Runs functions; the name of each says what it checks."""
        for check in checks:
            name = check.__name__.replace("_", " ").strip()
            try:
                check()
            except NotRun as reason:
                print(f"not run {name}: {reason}", flush=True)
            except Exception:
                self.failed.append(name)
                print(f"FAILED  {name}")
                print("".join(f"        {line}\n" for line in traceback.format_exc().splitlines()), end="", flush=True)
            else:
                self.passed += 1
                print(f"ok      {name}", flush=True)

    def end(self):
        """Prints the sum and leaves with the exit code: 0 all passed, 1 not."""
        print(f"{self.passed} passed, {len(self.failed)} failed")
        sys.stdout.flush()
        sys.exit(1 if self.failed else 0)


def main(checks, before=None):
    """Runs the checks of a script. Exit codes: 0 passed, 1 failed, 77 skipped with the reason on the last line."""
    try:
        if before:
            before()
    except Skip as reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    all_checks = Checks()
    all_checks.run(checks)
    all_checks.end()


def need(module, why=""):
    """Imports a module, or skips the script."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Skip(f"no Python module {module}{why} ({error})") from error


def equal(got, wanted, what=""):
    if got != wanted:
        shown = [text if len(text) < 200 else text[:200] + "…" for text in (repr(got), repr(wanted))]
        raise AssertionError(f"{what}: {shown[0]} instead of {shown[1]}".removeprefix(": "))


def pattern(length, seed=1):
    """Bytes that repeat nowhere within 64 KiB, so that a piece at the wrong place is seen."""
    words = bytearray()
    state = (seed * 2654435761 + 12345) & 0xFFFFFFFF
    for _ in range(16411):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        words += state.to_bytes(4, "little")
    repeats = length // len(words) + 1
    return bytes(words * repeats)[:length]


@contextlib.contextmanager
def folder():
    """A temporary folder; CONSUMERS_DIR names where, else the current directory."""
    with tempfile.TemporaryDirectory(prefix="consumers-", dir=os.environ.get("CONSUMERS_DIR", ".")) as path:
        yield os.path.abspath(path)


@contextlib.contextmanager
def opened(path, flags=os.O_RDWR):
    descriptor = os.open(path, flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def mapped_library():
    """The libcufile that this process has mapped."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "libcufile.so" in line}
    return sorted(paths)


def _path_of(function):
    """The object that a function of this process lies in."""
    import ctypes

    class Info(ctypes.Structure):
        _fields_ = [("path", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("at", ctypes.c_void_p)]

    info = Info()
    address = ctypes.cast(function, ctypes.c_void_p)
    ctypes.CDLL(None).dladdr(address, ctypes.byref(info))
    return (info.path or b"").decode()


def our_library():
    """forebay's libcufile, which exports what NVIDIA's does not. A framework may have loaded another copy by its path:
    what counts is which one the names lead to."""
    import ctypes

    program = ctypes.CDLL(None)
    paths = mapped_library()
    if hasattr(program, "cuFileRead"):
        found = ctypes.CDLL(_path_of(program.cuFileRead))
    else:
        equal(len(paths), 1, f"copies of libcufile in this process {paths}")
        found = ctypes.CDLL(paths[0])
    if not hasattr(found, "forebay_session_v1"):
        raise AssertionError(f"not forebay's libcufile (loaded: {paths})")
    return found


def check_that_it_is_ours():
    """This run would prove nothing otherwise."""
    our_library()


class Counted:
    """What libcufile itself counts of this process: bytes read and written, by its statistics."""

    _WORDS = 78

    def __init__(self):
        import ctypes

        self._library = our_library()
        self._library.cuFileSetStatsLevel(ctypes.c_int(1))
        self._stats = (ctypes.c_uint64 * self._WORDS)()

    def bytes(self):
        """Bytes read and written since the process began. The library must be open."""
        code = self._library.cuFileGetStatsL1(self._stats)
        equal(code & 0xFFFFFFFF, 0, "cuFileGetStatsL1")
        return self._stats[12], self._stats[13]

    def expect(self, work, read=0, written=0):
        """Does the work and compares; `None` where nothing is expected of a number."""
        before = self.bytes()
        work()
        after = self.bytes()
        for what, index, wanted in (("read", 0, read), ("written", 1, written)):
            if wanted is not None:
                equal(after[index] - before[index], wanted, f"bytes {what} that libcufile counted")
