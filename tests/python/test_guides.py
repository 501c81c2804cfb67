"""The Python examples of the guides and of the README, run as they stand.

The blocks of a page share one namespace and run in order, in a process and a working directory of their own, twice. A block
marked as text right behind one of Python is what that one prints; ``…`` in it stands for anything. ``<!-- needs: torch -->``
names the modules without which a page (in its first line) or the next block is skipped.

A page with ``<!-- commands -->`` has blocks marked as sh, too: all of its blocks run in order in one shell, Python's each as a
process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


class Block(NamedTuple):
    """A fenced block: its language, the number of its first line, its text, and the modules it needs."""

    language: str
    line: int
    text: str
    needs: tuple[str, ...]


def needs_of(line: str) -> tuple[str, ...]:
    found = re.fullmatch(r"<!-- needs: (.+) -->", line)
    return tuple(found[1].replace(",", " ").split()) if found else ()


def blocks_of(page: Path) -> list[Block]:
    lines = page.read_text().splitlines()
    blocks: list[Block] = []
    whole = needs_of(lines[0])
    needs = whole
    number = 1 if whole else 0
    while number < len(lines):
        needs = (*whole, *needs_of(lines[number])) if needs_of(lines[number]) else needs
        fence = re.fullmatch(r"```(\w+)", lines[number])
        if fence:
            end = lines.index("```", number)
            blocks.append(Block(fence[1], number + 1, "\n".join(lines[number + 1 : end]) + "\n", needs))
            needs = whole
            number = end
        number += 1
    return blocks


def missing(needs: tuple[str, ...]) -> list[str]:
    return [name for name in dict.fromkeys(needs) if importlib.util.find_spec(name) is None]


ALL = {page.relative_to(ROOT).as_posix(): blocks_of(page) for page in PAGES}
#: Pages whose commands run, too.
SHELL = {page: blocks for page, blocks in ALL.items() if "\n<!-- commands -->\n" in (ROOT / page).read_text()}
PYTHON = {page: blocks for page, blocks in ALL.items() if any(block.language == "python" for block in blocks)}

#: Runs each block under the page's name and line numbers, which a traceback then shows; a line between the outputs.
RUNNER = """
import json, sys
page, mark, blocks = json.load(sys.stdin)
names = {"__name__": "__main__"}
for line, text in blocks:
    exec(compile("\\n" * line + text, page, "exec"), names)
    print(mark, flush=True)
"""
MARK = "-- the end of a block --"


def run(page: str, blocks: list[Block], folder: Path) -> list[str]:
    """What each block printed."""
    sent = json.dumps([str(ROOT / page), MARK, [(block.line, block.text) for block in blocks]])
    done = subprocess.run(
        [sys.executable, "-c", RUNNER], input=sent, cwd=folder, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, f"{page}:\n{done.stdout}{done.stderr}"
    return done.stdout.split(f"{MARK}\n")[:-1]


@pytest.mark.parametrize("page", sorted(PYTHON.keys() - SHELL.keys()))
def test_examples(page: str, tmp_path: Path) -> None:
    runnable = [block for block in PYTHON[page] if block.language == "python" and not missing(block.needs)]
    if not runnable:
        pytest.skip(f"{page} needs {', '.join(missing(PYTHON[page][0].needs))}, not installed")
    printed = dict(zip((block.line for block in runnable), run(page, runnable, tmp_path), strict=True))
    # Who tries a page tries it again: nothing that the first time left is in the way of the second.
    again = run(page, runnable, tmp_path)
    assert len(again) == len(printed)
    for block, after in zip(PYTHON[page], PYTHON[page][1:], strict=False):
        if after.language == "text" and block.line in printed:
            pattern = re.escape(after.text.strip()).replace("…", ".*")
            assert re.fullmatch(pattern, printed[block.line].strip()), f"{page}:{block.line}:\n{printed[block.line]}"


@pytest.mark.parametrize("page", SHELL)
def test_commands(page: str, tmp_path: Path) -> None:
    blocks = [block for block in SHELL[page] if block.language in ("sh", "python")]
    absent = missing(tuple(name for block in blocks for name in block.needs))
    if absent:
        pytest.skip(f"{page} needs {', '.join(absent)}, not installed")
    program = shutil.which(
        "forebay", path=f"{Path(sys.executable).parent}:{ROOT / 'target/debug'}:{os.environ['PATH']}"
    )
    if program is None:
        pytest.skip(f"{page} needs the command: cargo build -p forebay-cli")
    texts = [
        f"python - <<'PYTHON'\n{block.text}PYTHON\n" if block.language == "python" else block.text for block in blocks
    ]
    # What a page starts in the background ends with it.
    script = "set -euo pipefail\ntrap 'kill $(jobs -p); wait' EXIT\n" + "".join(texts)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        script = script.replace(":5000", f":{one.getsockname()[1]}").replace("-p 5000", f"-p {one.getsockname()[1]}")
    path = f"{Path(program).parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | {"PATH": path}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=110, env=environment
    )
    assert done.returncode == 0, f"{page}:\n{done.stdout}{done.stderr}"


#: Blocks that need more than their page.
PARTS = [
    (page, block)
    for page, blocks in PYTHON.items()
    for block in blocks
    if page not in SHELL and block.needs != blocks[0].needs
]


@pytest.mark.parametrize(("page", "block"), PARTS, ids=[f"{page}:{block.line}" for page, block in PARTS])
def test_no_example_is_left_out(page: str, block: Block) -> None:
    """Says which parts of a page `test_examples` could not run here."""
    if missing(block.needs):
        pytest.skip(f"{page}:{block.line} needs {', '.join(missing(block.needs))}, not installed")


def test_the_guides_have_examples() -> None:
    assert {"README.md", "docs/guides/from-safetensors.md", "docs/guides/python.md"} <= PYTHON.keys()
