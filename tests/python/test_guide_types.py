"""The Python examples of the guides type-check as a user's own strict program does: with mypy and with pyright."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_guides import PYTHON, ROOT, missing

#: torch has functions without types (`backward`); it and MONAI do not say which of the names in their packages are meant for others.
MYPY = [
    "--strict",
    "--implicit-reexport",
    "--allow-redefinition",
    "--untyped-calls-exclude=torch",
    "--no-error-summary",
    "--ignore-missing-imports",
    "--cache-dir",
    str(ROOT / "target/python/mypy-guides"),
]
#: Of the same names; and TensorFlow's decorators do not say what a class has.
NOT_SAID = re.compile(r'is not exported from module "(torch|monai)\b|for class "type\[RaggedTensor\]"')


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Each page as a program, its lines at the numbers that they have in the page."""
    needed = missing(("torch", "monai"))
    if needed:
        pytest.skip(
            f"{', '.join(needed)} not installed: without them a type checker cannot resolve the guides' imports"
        )
    folder = tmp_path_factory.mktemp("guides")
    files = []
    for page, blocks in PYTHON.items():
        lines: list[str] = []
        for block in blocks:
            if block.language == "python" and not missing(block.needs):
                lines += [""] * (block.line - len(lines)) + block.text.splitlines()
        # A page may have the name of a module: `lightning`.
        file = folder / f"guide_{Path(page).stem.replace('-', '_')}.py"
        file.write_text("\n".join(lines) + "\n")
        files.append(file)
    return files


def output_of(checker: str, arguments: list[str], folder: Path) -> str:
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed: make python-test installs it")
    command = [sys.executable, "-m", checker, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.stdout or done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_guides_pass_mypy_strict(pages: list[Path]) -> None:
    told = output_of("mypy", [*MYPY, *map(str, pages)], pages[0].parent).splitlines()
    wrong = [line for line in told if line.startswith(tuple(page.name for page in pages))]
    wrong += [line for line in told if str(pages[0].parent) in line]
    assert not wrong, "\n".join(wrong)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_guides_pass_pyright(pages: list[Path]) -> None:
    folder = pages[0].parent
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    told = json.loads(output_of("pyright", ["--outputjson", "--pythonpath", sys.executable], folder))
    assert told["summary"]["filesAnalyzed"] == len(pages), told["summary"]
    wrong = [
        f"{Path(each['file']).name}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in told["generalDiagnostics"]
        if not NOT_SAID.search(each["message"])
    ]
    assert not wrong, "\n".join(wrong)
