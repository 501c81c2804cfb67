"""The Python examples of the guides type-check as a user's own strict program does."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from test_guides import PYTHON, ROOT, missing

#: torch has functions without types (`backward`); it and MONAI do not say which of the names in their packages are meant for others.
STRICT = [
    "--strict",
    "--implicit-reexport",
    "--allow-redefinition",
    "--untyped-calls-exclude=torch",
    "--no-error-summary",
]


def test_guides_pass_mypy_strict(tmp_path: Path) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed: make python-test installs it")
    needed = missing(("torch", "monai"))
    if needed:
        pytest.skip(f"{', '.join(needed)} not installed: without them mypy knows nothing of what the guides use")
    pages = []
    for page, blocks in PYTHON.items():
        lines: list[str] = []
        for block in blocks:
            if block.language == "python" and not missing(block.needs):
                # At the numbers that the lines have in the page.
                lines += [""] * (block.line - len(lines)) + block.text.splitlines()
        file = tmp_path / f"{Path(page).stem.replace('-', '_')}.py"
        file.write_text("\n".join(lines) + "\n")
        pages.append(file)
    cache = ROOT / "target/python/mypy-guides"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            *STRICT,
            "--ignore-missing-imports",
            "--cache-dir",
            str(cache),
            *map(str, pages),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    wrong = [line for line in done.stdout.splitlines() if line.startswith(tuple(page.name for page in pages))]
    wrong += [line for line in done.stdout.splitlines() if str(tmp_path) in line]
    assert not wrong, "\n".join(wrong)
