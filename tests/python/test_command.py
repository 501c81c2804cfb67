"""The `forebay` command as the wheel installs it, and as `python -m forebay`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import forebay

PACKAGED = Path(forebay.__file__).parent / "lib" / "libcufile.so.0"
SCRIPT = Path(sys.executable).with_name("forebay")


def commands() -> list[list[str]]:
    """The ways to call it that this environment has."""
    script = [[str(SCRIPT)]] if SCRIPT.exists() else []
    return [[sys.executable, "-m", "forebay"], *script]


@pytest.fixture(params=commands(), ids=lambda words: "module" if "-m" in words else "script")
def command(request: pytest.FixtureRequest) -> list[str]:
    return list(request.param)


@pytest.fixture
def packaged() -> Path:
    if not PACKAGED.exists():
        pytest.skip("the drop-in library is not beside the package: make python-test builds both")
    return PACKAGED


def run(words: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "FOREBAY_LIBCUFILE"}
    return subprocess.run(words, capture_output=True, text=True, timeout=60, env=env | variables)


def test_version(command: list[str]) -> None:
    done = run([*command, "--version"])
    assert (done.returncode, done.stdout, done.stderr) == (0, f"forebay {forebay.__version__}\n", "")


def test_wrong_command_line_is_2(command: list[str]) -> None:
    done = run([*command, "--no-such-flag"])
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Usage: forebay" in done.stderr


def test_usage_names_the_command_and_not_a_file() -> None:
    done = run([sys.executable, "-m", "forebay", "bench", "--help"])
    assert "Usage: forebay bench" in done.stdout


def test_failure_is_1(command: list[str], tmp_path: Path) -> None:
    done = run([*command, "verify", str(tmp_path / "missing")])
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("error: ")


def test_a_report_runs_its_rows_by_the_same_command(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    words = ["report", "latency", "--quick", "--seconds", "0.05", "--size", "16M"]
    done = run([*command, *words, str(tmp_path / "data"), "-o", str(tmp_path / "out")])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("mean latency") == 8
    assert (tmp_path / "out" / "report.html").exists()


def test_serves_under_the_names_of_other_tools(tmp_path: Path) -> None:
    if not SCRIPT.exists():
        pytest.skip("the command is not installed: make python-test installs it")
    link = tmp_path / "gdscheck"
    link.symlink_to(SCRIPT)
    done = run([str(link), "--help"])
    assert done.returncode == 0
    assert "Usage: gdscheck" in done.stdout


def test_run_takes_the_packaged_library(command: list[str], packaged: Path) -> None:
    code = "import ctypes; ctypes.CDLL('libcufile.so.0'); print(open('/proc/self/maps').read())"
    done = run([*command, "run", "--", sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    assert str(packaged.resolve()) in done.stdout


def test_run_takes_another_library_that_is_named(command: list[str], packaged: Path, tmp_path: Path) -> None:
    other = tmp_path / "libcufile.so.0"
    other.write_bytes(packaged.read_bytes())
    code = "import ctypes; ctypes.CDLL('libcufile.so.0'); print(open('/proc/self/maps').read())"
    done = run([*command, "run", "--", sys.executable, "-c", code], FOREBAY_LIBCUFILE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert str(other) in done.stdout
    assert str(packaged.resolve()) not in done.stdout


def test_run_has_the_exit_code_of_its_program(command: list[str], packaged: Path) -> None:
    assert run([*command, "run", "--", "sh", "-c", "exit 7"]).returncode == 7


def test_signals_reach_programs_as_from_a_shell(command: list[str], packaged: Path) -> None:
    """Python ignores SIGPIPE and SIGXFSZ; what the command starts does not."""
    done = run([*command, "run", "--", "sh", "-c", "grep SigIgn /proc/self/status"])
    ignored = int(done.stdout.split()[1], 16)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        assert not ignored >> (number - 1) & 1, number


def interrupted(words: list[str], wait_for: str) -> int:
    """The exit code after one SIGINT, sent when the process's threads or children show that work began."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if wait_for:
                assert process.stdout.readline() == wait_for
            else:
                time.sleep(1.5)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
        finally:
            process.kill()
    return process.returncode


def test_ctrl_c_ends_a_program_that_runs(command: list[str], packaged: Path) -> None:
    words = [*command, "run", "--", "sh", "-c", "echo on; exec sleep 60"]
    assert interrupted(words, "on\n") == 128 + signal.SIGINT


def test_ctrl_c_ends_work_of_its_own(command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(1 << 20))
    words = [*command, "bench", "-f", str(file), "-d", "0", "-w", "1", "-s", "1M", "-i", "4K", "-x", "0", "-I", "0"]
    assert interrupted([*words, "-T", "50", "--engine", "noop"], "") in (130, -signal.SIGINT)
