"""What is in the wheel and in the source distribution, and what a machine hears that cannot build them."""

from __future__ import annotations

import configparser
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BACKEND = ROOT / "python" / "build_backend"
LIBRARY = "forebay/lib/libcufile.so.0"


@pytest.fixture(scope="module")
def wheel() -> Path:
    path = os.environ.get("FOREBAY_WHEEL")
    if not path:
        pytest.skip("FOREBAY_WHEEL names no wheel: make python-test builds one")
    return Path(path)


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def natives(names: list[str]) -> list[str]:
    return sorted(name for name in names if re.search(r"\.so(\.\d+)*$", name))


def readelf(*words: str) -> str:
    if shutil.which("readelf") is None:
        pytest.skip("readelf is missing: apt-get install -y binutils")
    return subprocess.run(["readelf", "-W", *words], capture_output=True, text=True, check=True).stdout


def test_holds_one_module_and_one_library(names: list[str]) -> None:
    free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    module = r"forebay/_forebay\.cpython-3\d+t-.*\.so" if free else r"forebay/_forebay\.abi3\.so"
    first, second = natives(names)
    assert re.fullmatch(module, first)
    assert second == LIBRARY


def test_tag_says_which_interpreters(wheel: Path) -> None:
    python, abi, system = wheel.stem.split("-")[2:5]
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert abi == f"cp{sys.version_info[0]}{sys.version_info[1]}t"
    else:
        assert (python, abi) == ("cp311", "abi3")
    assert re.fullmatch(r"(manylinux_2_\d+|linux)_(x86_64|aarch64)", system)


def test_holds_types_and_licence_and_nothing_of_the_build(names: list[str]) -> None:
    assert {"forebay/py.typed", "forebay/_forebay.pyi", "forebay/__main__.py"} <= set(names)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert all(name.startswith(("forebay/", "forebay-")) for name in names)
    assert not [name for name in names if "__pycache__" in name or "build_backend" in name or "test" in name]


def test_holds_every_module_of_the_source(names: list[str]) -> None:
    sources = {path.relative_to(ROOT / "python").as_posix() for path in (ROOT / "python/forebay").rglob("*.py")}
    assert sources <= set(names)


def test_holds_no_links(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert not [entry for entry in archive.infolist() if entry.external_attr >> 28 == 0o12]


def test_needs_no_other_package_and_installs_the_command_under_all_its_names(unpacked: Path) -> None:
    (info,) = unpacked.glob("forebay-*.dist-info")
    metadata = Parser().parsestr((info / "METADATA").read_text())
    assert metadata["Name"] == "forebay"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata.get_all("Requires-Dist", []) == []
    points = configparser.ConfigParser()
    points.read(info / "entry_points.txt")
    assert set(points["console_scripts"].values()) == {"forebay.__main__:main"}
    names = {"forebay", "gds_stats", "gdscheck", "gdscheck.py", "gdsio", "gdsio_verify"}
    assert set(points["console_scripts"]) == names
    plugs = {group: dict(points[group]) for group in points.sections() if group != "console_scripts"}
    assert plugs == {
        "vllm.general_plugins": {"forebay": "forebay.vllm:register"},
        "sglang.srt.plugins": {"forebay": "forebay.sglang:register"},
    }


def test_tells_nothing_of_the_builders_folders(unpacked: Path) -> None:
    for path in unpacked.rglob("*"):
        if path.suffix in {".py", ".pyi", ".json", ".txt"} or path.name in {"METADATA", "RECORD", "WHEEL"}:
            assert str(ROOT) not in path.read_text(), path


def test_binaries_have_no_symbols_left(unpacked: Path, names: list[str]) -> None:
    for name in natives(names):
        sections = readelf("-S", str(unpacked / name))
        assert ".debug_" not in sections, name
        assert ".symtab" not in sections, name


def test_library_keeps_its_name_and_its_probes(unpacked: Path) -> None:
    assert "[libcufile.so.0]" in readelf("-d", str(unpacked / LIBRARY))
    assert "NT_STAPSDT" in readelf("-n", str(unpacked / LIBRARY))


def test_binaries_need_no_newer_glibc_than_the_tag_says(wheel: Path, unpacked: Path, names: list[str]) -> None:
    found = re.search(r"manylinux_2_(\d+)", wheel.name)
    if found is None:
        pytest.skip("the wheel is for the machine that built it: its tag promises no glibc")
    for name in natives(names):
        needed = {int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", readelf("-V", str(unpacked / name)))}
        assert max(needed) <= int(found[1]), name


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("maturin") is None or shutil.which("maturin") is None:
        pytest.skip("maturin is missing: pip install maturin")
    folder = tmp_path_factory.mktemp("sdist")
    code = "import sys, forebay_build; print(forebay_build.build_sdist(sys.argv[1]))"
    env = os.environ | {"PYTHONPATH": str(BACKEND)}
    done = subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.split()[-1]


def test_sdist_is_what_a_build_needs_and_no_more(sdist: Path, tmp_path: Path) -> None:
    assert sdist.stat().st_size < 5_000_000
    with tarfile.open(sdist) as archive:
        members = {name.split("/", 1)[1] for name in archive.getnames()}
        archive.extractall(tmp_path, filter="data")
    assert {"PKG-INFO", "Cargo.lock", "pyproject.toml", "crates/forebay-cufile/build.rs"} <= members
    assert {path.relative_to(ROOT).as_posix() for path in ROOT.glob("crates/*/Cargo.toml")} <= members
    assert not [name for name in members if re.search(r"\.so(\.|$)|\.pyc$|(^|/)target/", name)]
    if shutil.which("cargo") is None:
        pytest.skip("cargo is not on the path: the source distribution's lock file is not compared")
    (tree,) = tmp_path.iterdir()
    words = ["cargo", "metadata", "--locked", "--offline", "--format-version", "1"]
    done = subprocess.run(words, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_sdist_of_the_same_files_is_the_same(sdist: Path, tmp_path: Path) -> None:
    code = "import sys, forebay_build; print(forebay_build.build_sdist(sys.argv[1]))"
    env = os.environ | {"PYTHONPATH": str(BACKEND)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, env=env, check=True, capture_output=True)
    assert (tmp_path / sdist.name).read_bytes() == sdist.read_bytes()


def refused(setup: str, **variables: str) -> str:
    """What the build says on a machine that the code in `setup` makes up."""
    code = f"import os, sys, types; sys.modules['maturin'] = types.ModuleType('maturin')\n{setup}\n"
    code += f"sys.path.insert(0, {str(BACKEND)!r}); import forebay_build; forebay_build.get_requires_for_build_wheel()"
    env = os.environ | variables
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def test_build_elsewhere_says_what_is_needed() -> None:
    said = refused("import pathlib, shutil, subprocess; sys.platform = 'darwin'")
    assert said.startswith("error: forebay needs Linux on x86-64 or aarch64: this is darwin on ")
    assert "hint: " in said


def test_build_without_cargo_says_what_to_type(tmp_path: Path) -> None:
    said = refused("", PATH=str(tmp_path), CARGO_HOME=str(tmp_path))
    assert said.startswith("error: cargo is missing: building forebay needs Rust 1.")
    assert "hint: curl " in said


def test_build_with_an_old_rust_says_which_is_needed(tmp_path: Path) -> None:
    for name, text in {"rustc": "echo rustc 1.70.0", "cargo": "true", "cc": "true"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    said = refused("", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert said.startswith("error: Rust 1.70.0 is too old: building forebay needs 1.")
