"""docs/benchmarks.md says what its records say."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_has_the_figures_of_its_records(tmp_path: Path) -> None:
    day = sorted((ROOT / "docs/benchmarks").glob("*.tar.xz"))[-1]
    with tarfile.open(day) as archive:
        archive.extractall(tmp_path, filter="data")
    folders = sorted(path.parent for path in tmp_path.glob("*/*/machine.json"))
    command = [sys.executable, ROOT / "bench/page.py", *folders, "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert len((ROOT / "docs/benchmarks.md").read_text().splitlines()) <= 200
