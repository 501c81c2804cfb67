"""What `import forebay` does, and what it does not."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import forebay

ROOT = Path(__file__).resolve().parents[2]
GIL_BY_DEFAULT = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
Run = Callable[..., subprocess.CompletedProcess[str]]


def test_version_is_the_workspaces() -> None:
    found = re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert found is not None
    assert forebay.__version__ == found[1]


def test_version_is_the_distributions() -> None:
    try:
        version = importlib.metadata.version("forebay")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("forebay is not installed, only on the path: make python-test installs it")
    assert version == forebay.__version__


def test_imports_no_framework_and_no_numpy(run_python: Run) -> None:
    heavy = "{'numpy', 'torch', 'jax', 'cupy', 'numba', 'safetensors', 'ml_dtypes', 'transformers', 'asyncio'}"
    done = run_python(f"import sys, forebay; print(sorted({heavy} & set(sys.modules)))")
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("framework", ["numpy", "torch", "native"])
def test_a_plain_load_imports_what_it_needs(run_python: Run, tmp_path: Path, framework: str) -> None:
    """Each module costs a millisecond or so where Python may not write its cache of compiled modules."""
    if framework != "native":
        pytest.importorskip(framework, reason=f"{framework} is not installed")
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    forebay.save_file({"a": np.ones(3, "f4")}, tmp_path / "m.safetensors")
    code = """
import sys, forebay
before = set(sys.modules)
forebay.load_file(sys.argv[1], device="cpu", framework=sys.argv[2])
print(sorted(name for name in set(sys.modules) - before if name.startswith("forebay.")))
"""
    done = run_python(code, str(tmp_path / "m.safetensors"), framework)
    needed = ["_captures", "_locations", "_paths", "frameworks", "frameworks._dtypes", f"frameworks.{framework}"]
    needed += ["loading", "placement", "safetensors"]
    assert done.stdout == f"{sorted(f'forebay.{name}' for name in needed)}\n", done.stderr


def test_one_module_opens_lists_and_states_files() -> None:
    """Else what it does not know of, a URL, is refused or taken for a path."""
    text = "stat lstat fstat listdir scandir walk open fdopen pread access makedirs mkdir unlink remove rename memfd_create"
    text += " path.exists path.lexists path.isfile path.isdir path.islink path.realpath path.getsize path.getmtime"
    calls = {"open", "glob.glob", *(f"os.{name}" for name in text.split())}
    text = "is_file is_dir exists stat lstat glob rglob iterdir read_text read_bytes write_text write_bytes touch unlink mkdir"
    methods = set(text.split())
    package = ROOT / "python/forebay"
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in calls)
        # Of a pathlib.Path.
        or (isinstance(node, ast.Attribute) and node.attr in methods and ast.unparse(node.value) != "_locations")
    }
    assert found == {"_locations.py"}


def test_is_quiet(run_python: Run) -> None:
    done = run_python("import warnings; warnings.simplefilter('error'); import forebay")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_starts_no_thread(run_python: Run) -> None:
    done = run_python("import os, forebay; print(len(os.listdir('/proc/self/task')))")
    assert done.stdout == "1\n", done.stderr


def test_every_public_name_is_there() -> None:
    missing = [name for name in forebay.__all__ if not hasattr(forebay, name)]
    assert missing == []
    assert set(forebay.__all__) <= set(dir(forebay))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        forebay.no_such_name  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ("sys.platform = 'darwin'", "this is darwin on "),
        ("sys.platform = 'win32'; del os.uname", "this is win32 on another machine"),
        ("sys.maxsize = 2**31 - 1", "with a 32-bit Python"),
        ("os.uname = lambda: types.SimpleNamespace(machine='riscv64')", "this is linux on riscv64"),
    ],
)
def test_other_platforms_are_refused_in_words(run_python: Run, patch: str, words: str) -> None:
    done = run_python(f"import os, sys, types, pathlib, traceback\n{patch}\nimport forebay")
    assert done.returncode == 1
    assert "ImportError: forebay needs Linux on x86-64 or aarch64: " in done.stderr
    assert words in done.stderr
    assert "hint: use a machine" in done.stderr


def test_a_tree_without_the_native_module_says_how_to_build_it(run_python: Run, tmp_path: Path) -> None:
    package = tmp_path / "forebay"
    package.mkdir()
    for source in Path(forebay.__file__).parent.glob("*.py"):
        (package / source.name).write_bytes(source.read_bytes())
    done = run_python(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import forebay")
    assert done.returncode == 1
    assert "ImportError: forebay's native module is missing, or built for another Python" in done.stderr
    assert "hint: pip install ." in done.stderr


def test_keeps_the_gil_as_the_interpreter_has_it(run_python: Run) -> None:
    """A module that is not made for free threading would switch the GIL on."""
    asked = "getattr(sys, '_is_gil_enabled', lambda: True)()"
    done = run_python(f"import sys; before = {asked}; import forebay; print(before is {asked})", env=GIL_BY_DEFAULT)
    assert done.stdout == "True\n", done.stderr


def test_all_errors_are_the_packages_own_names() -> None:
    for name in forebay.errors.__all__:
        assert getattr(forebay, name) is getattr(forebay.errors, name)
        assert name in forebay.__all__
