"""What all tests share: GPU code runs on the software GPU (a driver over host memory) unless a real one is asked for.

`FOREBAY_TEST_GPU=real pytest tests/python` runs them on the machine's GPU.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def software_gpu() -> str | None:
    """The software GPU's driver, if it was built."""
    given = os.environ.get("FAKE_CUDA")
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    places = [given] if given else [target / "debug/libfake_cuda.so", target / "release/libfake_cuda.so"]
    return next((str(place) for place in places if Path(place).exists()), None)


# Before forebay is imported: the driver is found once.
if os.environ.get("FOREBAY_TEST_GPU") != "real":
    driver = software_gpu()
    if driver is not None:
        os.environ.setdefault("FOREBAY_LIBCUDA", driver)


# A shell starts what runs in the background with SIGINT ignored, and children inherit that: no test of Ctrl-C would see one.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    import forebay

    gpus = forebay.device_count()
    gpu = forebay.device_name("cuda:0") if gpus else "none"
    return f"forebay {forebay.__version__}, GPUs: {gpus} ({gpu})"


@pytest.fixture
def gpu() -> str:
    """A GPU's name: the software one, unless a real one is asked for."""
    import forebay

    if forebay.device_count() == 0:
        pytest.skip("no GPU, and the software one is not built: cargo build -p fake-cuda")
    return "cuda:0"


@pytest.fixture(params=["cpu", "cuda:0"])
def device(request: pytest.FixtureRequest) -> str:
    """Each kind of memory in turn."""
    import forebay

    if request.param != "cpu" and forebay.device_count() == 0:
        pytest.skip("no GPU, and the software one is not built: cargo build -p fake-cuda")
    return str(request.param)


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python code in a process of its own."""

    def run(code: str, *args: str, **words: object) -> subprocess.CompletedProcess[str]:
        words.setdefault("timeout", 60)
        return subprocess.run(  # type: ignore[call-overload, no-any-return]
            [sys.executable, "-c", code, *args], capture_output=True, text=True, **words
        )

    return run


@pytest.fixture
def start_python() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python code in a process of its own, whose standard output is a pipe. At the end of the test it is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *args: str) -> subprocess.Popen[str]:
        started.append(subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        with process:
            process.kill()
