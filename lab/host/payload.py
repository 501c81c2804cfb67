"""Files carried into guests: forebay as built here."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

from . import LAB, ROOT, SkipError, target

#: What a scenario may need, and what to type where it is missing.
NAMES = (
    "forebay",
    "fake-cuda",
    "fake-cufile",
    "wheel",
    "contract",
    "nfs-contract",
    "nosync",
    "deny-io-uring",
    "verbs-loop",
    "nfs-loop",
    "hipobj-loop",
    "vgwrdma",
    "verbs-symbols",
)
HINTS = {
    "forebay": "make release",
    "fake-cuda": "cargo build --release -p fake-cuda",
    "fake-cufile": "cargo build --release -p fake-cufile",
    "wheel": "make python",
    "contract": "make lab",
    "nfs-contract": "make lab",
    "verbs-loop": "make lab",
    "nfs-loop": "make lab",
    "hipobj-loop": "make lab",
    "vgwrdma": "tests/s3/vgwrdma",
    "verbs-symbols": "apt-get install build-essential",
    "nosync": "apt-get install build-essential",
    "deny-io-uring": "git checkout bench",
}


def find(name: str) -> Path:
    """Where the piece lies; FOREBAY_LAB_<NAME> names another."""
    variable = f"FOREBAY_LAB_{name.upper().replace('-', '_')}"
    named = os.environ.get(variable)
    candidates = [Path(named)] if named else places(name)
    found = [path for path in candidates if path.is_file()]
    if not found:
        missing = f"{variable} names no file: {named}" if named else f"not built: {name} (type: {HINTS[name]})"
        raise SkipError(missing)
    return max(found, key=lambda path: path.stat().st_mtime)


def places(name: str) -> list[Path]:
    """Where builds put it."""
    match name:
        case "forebay":
            return [target() / "release/forebay"]
        case "fake-cuda" | "fake-cufile":
            library = f"lib{name.replace('-', '_')}.so"
            return [target() / profile / library for profile in ("release", "debug")]
        case "contract" | "nfs-contract":
            return [target() / "lab" / name]
        case "verbs-loop":
            return [target() / "release/examples/verbs_loop"]
        case "nfs-loop":
            return [target() / "release/examples/nfs_loop"]
        case "hipobj-loop":
            return [target() / "release/examples/hipobj_loop"]
        case "vgwrdma":
            return [Path.home() / ".cache/forebay/vgwrdma-v1.8.0/vgwrdma"]
        case "nosync":
            return [compiled(LAB / "guest/nosync.c")]
        case "verbs-symbols":
            return [compiled(LAB / "guest/verbs-symbols.c")]
        case "deny-io-uring":
            return [ROOT / "bench/deny_io_uring.py"]
        case _:
            return list((ROOT / "dist").glob("forebay-*-abi3-*.whl"))


def compiled(source: Path) -> Path:
    """A small library of the lab's own, compiled where it is older than its source."""
    library = target() / "lab" / f"{source.stem}.so"
    if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source)], check=False)
    return library


def carry(needs: list[str], folder: Path) -> None:
    """Puts the pieces into a folder that the scenarios of a run share."""
    for name in needs:
        source = find(name)
        into = folder / name
        if into.exists():
            continue
        part = folder / f".{name}.{os.getpid()}"
        if name == "wheel":
            with zipfile.ZipFile(source) as wheel:
                wheel.extractall(part)
        else:
            shutil.copy(source, part)
            # Debug information is most of a file, and guests are slow readers.
            subprocess.run(["strip", "--strip-debug", str(part)], stderr=subprocess.DEVNULL, check=False)
        os.replace(part, into)


def give(needs: list[str], carried: Path, folder: Path) -> None:
    """Makes a guest's /payload: links to the pieces that its scenario needs. What others need changes what forebay finds."""
    folder.mkdir(parents=True)
    for name in needs:
        piece = carried / name
        if piece.is_dir():
            shutil.copytree(piece, folder / name, copy_function=os.link)
        else:
            os.link(piece, folder / name)
