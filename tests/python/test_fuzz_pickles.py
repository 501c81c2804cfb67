"""A few thousand inputs of the fuzzer of pickles, and that it sees what it is there for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FUZZER = Path(__file__).with_name("fuzz_pickles.py")

JUDGES = """
import os, sys
sys.path.insert(0, sys.argv[1])
import fuzz_pickles as fuzz

def bad(data, records, path):
    {bad}

sys.addaudithook(fuzz._hook)
fuzz.warm_up()
fuzz.SECONDS = 0.2
fuzz.judge(fuzz.HONEST)
try:
    fuzz.judge(fuzz.HONEST, bad)
except fuzz.Broken as error:
    print(error)
"""


def test_a_few_thousand_inputs(tmp_path: Path) -> None:
    command = [sys.executable, str(FUZZER), "--count", "2500", "--seconds", "40"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ("raise KeyError(5)", "KeyError escaped"),
        ("import this_is_not_there", "escaped"),
        ("import smtplib", "it did: import"),
        ("os.system('true')", "it did: os.system"),
        ("eval('1 + 1')", "it did: compile"),
        ("open('/dev/null')", "it did: open"),
        ("return bytearray(8 << 20) * 2", "of memory"),
        ("sum(range(1_000_000))", "bytes took"),
        ("return [{'a': (object(),)}]", "a value of type <class 'object'>"),
    ],
)
def test_broken_rules_are_seen(
    tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]], bad: str, told: str
) -> None:
    done = run_python(JUDGES.format(bad=bad), str(FUZZER.parent))
    assert told in done.stdout, done.stderr
