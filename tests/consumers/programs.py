"""What the scripts share that run a compiled program: finding it, what it is linked with, running it many times.

CONSUMERS_PROGRAMS is the folder with the programs; a program of the same name on PATH is taken, too.
"""

import contextlib
import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import time

from checks import Skip
from gpu import Gpu

FOLDER = os.environ.get("CONSUMERS_PROGRAMS", "")


def need(name, whose):
    """The program's path; without it or without a GPU the script is skipped."""
    path = shutil.which(name, path=os.pathsep.join(filter(None, [FOLDER, os.environ.get("PATH", "")])))
    if path is None:
        raise Skip(f"no program {name}, which {whose}, in {FOLDER or 'CONSUMERS_PROGRAMS (not set)'} or on PATH")
    Gpu()
    return os.path.abspath(path)


def folder_of(module, *below):
    """A folder of an installed package, without importing it; empty where it is not there."""
    found = importlib.util.find_spec(module)
    if found is None or not found.submodule_search_locations:
        return ""
    path = os.path.abspath(os.path.join(found.submodule_search_locations[0], *below))
    return path if os.path.isdir(path) else ""


def version_of(name):
    """What the file `versions` beside the programs says of one: lines of a name and the rest."""
    try:
        with open(os.path.join(FOLDER, "versions")) as file:
            lines = [line.strip().partition(" ") for line in file]
    except OSError:
        lines = []
    return next((rest for found, _, rest in lines if found == name), "unknown")


def _runtime_folders():
    """Where the CUDA runtime may lie: beside the programs, or in a Python package."""
    return [os.path.join(FOLDER, "lib") if FOLDER else "", folder_of("nvidia", "cu13", "lib")]


def load_cuda_runtime():
    """For modules that are linked with it and do not say where it is."""
    for folder in ("", *filter(None, _runtime_folders())):
        with contextlib.suppress(OSError):
            ctypes.CDLL(os.path.join(folder, "libcudart.so.13"), mode=ctypes.RTLD_GLOBAL)
            return
    raise Skip("no libcudart.so.13")


class Failed(AssertionError):
    """A program ended otherwise than it should."""


class Program:
    """A program with the folders of its libraries. Those of `forebay run` come first."""

    def __init__(self, path, *libraries, **variables):
        self.path = path
        given = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
        folders = [folder for folder in (*given, *libraries, *_runtime_folders()) if folder]
        self.environment = {**os.environ, **variables, "LD_LIBRARY_PATH": os.pathsep.join(folders)}

    def run(self, *arguments, says="", limit=60, within=None, **variables):
        """Runs it once, in the folder `within`. It has to end with 0, and its output to have `says`, an expression."""
        command = [self.path, *arguments]
        environment = {**self.environment, **variables}
        try:
            done = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                timeout=limit, cwd=within, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise Failed(f"no end after {limit} s: {' '.join(command)}\n{_end(error.stdout or b'')}") from None
        text = done.stdout.decode(errors="replace")
        if done.returncode:
            raise Failed(f"exit code {done.returncode}: {' '.join(command)}\n{_end(done.stdout)}")
        if not re.search(says, text):
            raise Failed(f"its output has no {says!r}: {' '.join(command)}\n{_end(done.stdout)}")
        return text

    def repeat(self, *arguments, times, seconds, **options):
        """Runs it so many times, or for so many seconds. All have to be right; says how many were."""
        bad, count, end = [], 0, time.monotonic() + seconds
        while count < times and (count == 0 or time.monotonic() < end):
            count += 1
            try:
                self.run(*arguments, **options)
            except Failed as error:
                bad.append(error)
        if bad:
            raise Failed(f"{len(bad)} of {count} runs failed; the first: {bad[0]}")
        print(f"        {count} runs")


def _end(output, length=1200):
    """What an output begins and ends with: messages come first in some, last in others."""
    text = output.decode(errors="replace").replace("\r", "\n")
    return text if len(text) <= 2 * length else f"{text[:length]}\n…\n{text[-length:]}"
