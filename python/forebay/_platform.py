"""Whether forebay can run here, in words. The build asks too, before there is a package."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

__all__ = ["require", "unsupported"]

MACHINES = ("x86_64", "aarch64")


def unsupported() -> str | None:
    """The requirement of forebay that this machine lacks, or None."""
    wide = sys.maxsize > 2**32
    machine = os.uname().machine if hasattr(os, "uname") else "another machine"
    if sys.platform == "linux" and machine in MACHINES and wide:
        return None
    bits = "" if wide else " with a 32-bit Python"
    return f"forebay needs Linux on x86-64 or aarch64: this is {sys.platform} on {machine}{bits}"


def require() -> None:
    """Raises an :class:`ImportError` that says what is missing, if something is."""
    problem, hint = unsupported(), "use a machine, a container, a virtual machine or WSL 2 with 64-bit Linux"
    folder = os.path.dirname(__file__)
    if problem is None and PathFinder.find_spec("forebay._forebay", [folder]) is None:
        problem = f"forebay's native module is missing, or built for another Python (folder={folder})"
        hint = "pip install . in forebay's source tree builds it; then start Python outside of the tree's python folder"
    if problem is not None:
        error = ImportError(problem, name="forebay._forebay")
        error.add_note(f"hint: {hint}")
        raise error
