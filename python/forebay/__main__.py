"""The ``forebay`` command, as installed by the wheel and as ``python -m forebay``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Runs a command line and returns its exit code (``forebay --help`` lists them).

    Args:
        argv: the command line with the name it was called by, ``sys.argv`` by default. Called by the name of one of
            NVIDIA's tools (through a link), the command takes that tool's flags.
    """
    from ._forebay import cli

    words = list(sys.argv if argv is None else argv)
    if words and Path(words[0]).name == "__main__.py":
        words[0] = "forebay"
    _show_library()
    _signals_as_in_the_binary()
    return cli(words)


def _show_library() -> None:
    """``forebay run`` looks for the drop-in beside its executable, which is the interpreter here."""
    from . import _locations

    folder = str(Path(__file__).parent / "lib")
    if not os.environ.get("FOREBAY_LIBCUFILE") and _locations.is_folder(folder):
        os.environ["FOREBAY_LIBCUFILE"] = folder


def _signals_as_in_the_binary() -> None:
    """Python's own handlers would wait for bytecode that comes when the command is over."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Python ignores it, and what we start would inherit that.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
