"""Builds forebay's Python package (PEP 517 and 660): maturin's wheel with the drop-in library in it.

Two artefacts of one workspace go into the wheel: the native module ``forebay._forebay``, which maturin builds, and
``forebay/lib/libcufile.so.0``, which is built here first. Wheels hold no links, so the library has its SONAME as its
name. The source distribution is written here too, because maturin's would leave out the crates that the module does
not depend on.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import maturin

ROOT = Path(__file__).resolve().parents[2]
#: Where the library lies while a wheel is made; git ignores the folder.
LIBRARY = ROOT / "python" / "forebay" / "lib" / "libcufile.so.0"
#: Files of the source distribution: enough to build and to test.
SDIST_FILES = ("Cargo.toml", "Cargo.lock", "rust-toolchain.toml", "pyproject.toml", "LICENSE", "README.md")
SDIST_FOLDERS = ("crates", "python", "tests/python")
SDIST_WITHOUT = {"__pycache__", "target", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
SDIST_WITHOUT_SUFFIXES = (".so", ".so.0", ".pyc", ".snap.new")

Settings = Mapping[str, Any] | None


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Builds the wheel with the module, the library and the command; returns its file name."""
    with _toolchain():
        _build_library()
        return str(maturin.build_wheel(wheel_directory, config_settings, metadata_directory))


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Builds a wheel that points at ``python/``, and puts the native files there (git ignores them)."""
    with _toolchain():
        _build_library()
        return str(maturin.build_editable(wheel_directory, config_settings, metadata_directory))


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """Writes the ``.dist-info`` folder; returns its name."""
    with _toolchain():
        return str(maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings))


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Nothing beyond ``pyproject.toml``; a machine that cannot build hears so before anything is fetched."""
    with _toolchain():
        return []


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """As for a wheel."""
    return get_requires_for_build_wheel(config_settings)


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    """Nothing beyond ``pyproject.toml``."""
    return []


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Writes the source distribution (the same bytes for the same files); returns its file name."""
    with _toolchain(), tempfile.TemporaryDirectory() as scratch:
        info = Path(scratch, maturin.prepare_metadata_for_build_wheel(scratch, config_settings))
        metadata = (info / "METADATA").read_bytes()
    found = re.search(rb"^Version: (.+)$", metadata, re.MULTILINE)
    if found is None:
        _fail("the metadata has no version")
    base = f"forebay-{found[1].decode().strip()}"
    target = Path(sdist_directory, f"{base}.tar.gz")
    with (
        target.open("wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        _add(archive, f"{base}/PKG-INFO", metadata, 0o644)
        for path in _sdist_paths():
            mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            _add(archive, f"{base}/{path.relative_to(ROOT).as_posix()}", path.read_bytes(), mode)
    return target.name


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    # A date that zip-based tools can express.
    entry.mtime = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))
    archive.addfile(entry, io.BytesIO(data))


def _sdist_paths() -> list[Path]:
    paths = [ROOT / name for name in SDIST_FILES if (ROOT / name).is_file()]
    for folder in SDIST_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            wanted = not SDIST_WITHOUT.intersection(path.relative_to(ROOT).parts) and not path.name.startswith(".")
            if wanted and path.is_file() and not path.name.endswith(SDIST_WITHOUT_SUFFIXES):
                paths.append(path)
    return paths


def _build_library() -> None:
    """Builds the drop-in library and puts it, without its symbols, where maturin takes it into the wheel."""
    command = [
        "cargo",
        "build",
        "--profile",
        _profile(),
        "-p",
        "forebay-cufile",
        "--message-format=json-render-diagnostics",
    ]
    if _is_locked():
        command.append("--locked")
    print(f"Running `{' '.join(command)}`", flush=True)
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
    built = _artifact(done.stdout)
    LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    new = LIBRARY.with_name(f".new.{os.getpid()}")
    try:
        if strip := shutil.which("strip"):
            subprocess.run([strip, "--strip-all", "-o", str(new), str(built)], check=True)
        else:
            shutil.copyfile(built, new)
        new.chmod(0o755)
        # Programs may have the old one loaded: it is replaced, not written over.
        new.replace(LIBRARY)
    finally:
        new.unlink(missing_ok=True)


def _profile() -> str:
    """Cargo's profile for the library: the one that maturin was given for the module, or `release`."""
    arguments = maturin.get_maturin_pep517_args()
    return arguments[arguments.index("--profile") + 1] if "--profile" in arguments else "release"


def _artifact(messages: str) -> Path:
    """The shared object that cargo says it has built."""
    for line in messages.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("reason") == "compiler-artifact" and message["target"]["name"] == "cufile":
            for name in message["filenames"]:
                if name.endswith(".so"):
                    return Path(name)
    _fail("cargo named no shared object for forebay-cufile")


def _is_locked() -> bool:
    """Releases and CI build from Cargo.lock as it is; a developer's build may add a dependency."""
    return (ROOT / "PKG-INFO").exists() or bool(os.environ.get("CI"))


@contextlib.contextmanager
def _toolchain() -> Iterator[None]:
    """The environment that cargo and maturin run in, with a Rust that is new enough; refuses what cannot work."""
    _check_platform()
    before = dict(os.environ)
    try:
        home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
        os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), str(home / "bin")])
        _check_rust()
        arguments = maturin.get_maturin_pep517_args()
        if _is_locked() and not {"--locked", "--frozen"}.intersection(arguments):
            os.environ["MATURIN_PEP517_ARGS"] = " ".join([os.environ.get("MATURIN_PEP517_ARGS", ""), "--locked"])
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _check_platform() -> None:
    # The package's own words; importing it would need the module that is to be built.
    problem = runpy.run_path(str(ROOT / "python" / "forebay" / "_platform.py"))["unsupported"]()
    if problem is not None:
        _fail(problem, "use a machine, a container, a virtual machine or WSL 2 with 64-bit Linux")
    # The builds without the GIL have no stable interface: one wheel each, from the first that the bindings know.
    if sysconfig.get_config_var("Py_GIL_DISABLED") and sys.version_info < (3, 14):
        _fail("forebay needs a free-threaded Python of 3.14 or newer: this is 3.13", "use python3.14t, or python3.13")


def _check_rust() -> None:
    """As `.ci/cargo` does: the pinned toolchain, else an installed `stable` that is new enough."""
    minimum = _minimum_rust()
    if shutil.which("cargo") is None:
        _fail(
            f"cargo is missing: building forebay needs Rust {minimum} or newer",
            "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal",
            "or install a wheel, which needs no compiler",
        )
    if shutil.which("cc") is None:
        _fail("no C linker (cc)", "apt-get install -y build-essential")
    version = _rust_version()
    if version is None and "RUSTUP_TOOLCHAIN" not in os.environ:
        # Only rustup's proxies fail here: the pinned toolchain is neither installed nor to be had.
        os.environ["RUSTUP_TOOLCHAIN"] = "stable"
        version = _rust_version()
    if version is None:
        _fail("cargo is here but no toolchain works", f"rustup toolchain install {minimum} --profile minimal")
    if _numbers(version) < _numbers(minimum):
        _fail(
            f"Rust {version} is too old: building forebay needs {minimum} or newer",
            f"rustup toolchain install {minimum} --profile minimal",
        )


def _minimum_rust() -> str:
    found = re.search(r'^rust-version *= *"([0-9.]+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    return found[1] if found else "0"


def _rust_version() -> str | None:
    try:
        done = subprocess.run(["rustc", "--version"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    words = done.stdout.split()
    return words[1] if len(words) > 1 else None


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


def _fail(message: str, *hints: str) -> NoReturn:
    """Says so without a traceback, which installers would print in full."""
    print(f"error: {message}", file=sys.stderr)
    for hint in hints:
        print(f"hint: {hint}", file=sys.stderr)
    sys.exit(1)
