"""The host's half of the lab: kernels, the guest image, scenarios, guests."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

#: The checkout, and the folder of the lab in it.
ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "lab"


class SkipError(Exception):
    """Something is not to be had here; the text says what, and what to type."""


def cache() -> Path:
    """Where kernels and the image are kept between runs."""
    named = os.environ.get("FOREBAY_LAB_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(named) if named else Path(base) / "forebay-lab"
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One at a time puts things into the cache, in this process and others."""
    with open(cache() / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def target() -> Path:
    """Where cargo puts what it builds; logs and work folders of the lab go below it."""
    return Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
