"""What the programs share that take each measurement in a process of its own and keep it in a file of lines."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class Cannot(Exception):
    """Why a measurement has no figure."""


class OutOfTime(Exception):
    """--until is over."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"--until {seconds:g}: the same command goes on")


def ended(command: list[str], limit: float, errors: int = subprocess.PIPE) -> tuple[int, str, str]:
    """Exit code, output and errors of a command. The processes that it started end with it.

    Raises:
        Cannot: it is not done after ``limit`` seconds.
    """
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
    try:
        out, err = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise Cannot(f"not done after {limit:.0f} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return child.returncode, out, err or ""


def last_line(text: str, otherwise: str = "ended without a word") -> str:
    """What a program says at its end, without hints."""
    lines = [line for line in text.strip().splitlines() if line.strip() and not line.startswith("hint: ")]
    return (lines or [otherwise])[-1][:300]


def default_device() -> str:
    """cuda:0 if torch sees it. Asked in another process: this one starts children."""
    probe = [sys.executable, "-c", "import torch; print('cuda:0' if torch.cuda.is_available() else 'cpu')"]
    return subprocess.run(probe, capture_output=True, text=True, check=False).stdout.strip() or "cpu"


class Results:
    """A line for each measurement, with the words of the command: one of the same words goes on behind them."""

    def __init__(self, path: Path, setup: dict[str, Any], until: float) -> None:
        self.path, self.setup, self.until = path, setup, until
        self.lines: list[dict[str, Any]] = []
        self._begun = time.monotonic()
        if path.exists():
            lines = map(json.loads, filter(str.strip, path.read_text().splitlines()))
            self.lines = [line for line in lines if line.get("setup") == setup]

    def keep(self, **line: Any) -> None:
        line = {"at": time.strftime("%FT%TZ", time.gmtime()), "setup": self.setup, **line}
        self.lines.append(line)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def check_time(self) -> None:
        """Raises OutOfTime if no further measurement may begin."""
        if self.until and time.monotonic() - self._begun > self.until:
            raise OutOfTime(self.until)
