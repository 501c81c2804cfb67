"""Scenarios: one shell file each, with a header that says what it runs on."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from . import LAB, checks, kernels, payload

FOLDER = LAB / "scenarios"


class HeaderError(Exception):
    """A header that cannot be read."""


@dataclass
class Scenario:
    """What a header says; docs/reference/lab.md describes the keys."""

    name: str
    proves: str = ""
    kernel: str = "debian"
    memory: str = "1G"
    cpus: int = 2
    guests: int = 1
    cpu: str = "max"
    timeout: int = 120
    quick: bool = False
    append: str = ""
    drives: dict[str, str] = field(default_factory=dict)
    qemu: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    check: str = ""


def find() -> list[Scenario]:
    """All scenarios, by name."""
    return [read(file) for file in sorted(FOLDER.glob("*.sh"))]


def read(file: Path) -> Scenario:
    """Reads the header: `# key: value` lines up to the first line that is no comment."""
    scenario = Scenario(file.stem)
    key = ""
    for line in file.read_text().splitlines():
        if not line.startswith("#"):
            break
        match = re.match(r"# ([a-z]+): +(.*)", line)
        if match:
            key = match[1]
            put(scenario, key, match[2].strip())
        elif key == "proves" and re.match(r"#  +\S", line):
            scenario.proves += " " + line[1:].strip()
    if not scenario.proves:
        raise HeaderError(f"{file.name}: the header has no `proves`")
    return scenario


def put(scenario: Scenario, key: str, value: str) -> None:
    """One line of a header."""
    where = f"{scenario.name}.sh"
    match key:
        case "proves" | "memory" | "cpu":
            setattr(scenario, key, value)
        case "kernel":
            scenario.kernel = known(where, value, kernels.NAMES)
        case "timeout" | "cpus" | "guests":
            setattr(scenario, key, int(value))
        case "quick":
            scenario.quick = known(where, value, ("yes", "no")) == "yes"
        case "append":
            scenario.append = f"{scenario.append} {value}".strip()
        case "drives":
            scenario.drives |= dict(word.split("=", 1) for word in value.split())
        case "qemu":
            scenario.qemu += shlex.split(value)
        case "topology":
            scenario.qemu += topology(where, value)
        case "needs":
            scenario.needs += [known(where, word, payload.NAMES) for word in value.split()]
        case "trace":
            scenario.trace += value.split()
        case "check":
            scenario.check = known(where, value, tuple(checks.CHECKS))
        case _:
            raise HeaderError(f"{where}: unknown key `{key}`")


def known(where: str, value: str, words: tuple[str, ...]) -> str:
    """The value, if it is one of the words."""
    if value not in words:
        raise HeaderError(f"{where}: `{value}` is none of {', '.join(words)}")
    return value


def topology(where: str, name: str) -> list[str]:
    """QEMU's arguments in lab/topologies/NAME; lines that begin with # are comments."""
    file = LAB / "topologies" / name
    if not file.is_file():
        raise HeaderError(f"{where}: no topology `{name}`")
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    return shlex.split(" ".join(lines))
