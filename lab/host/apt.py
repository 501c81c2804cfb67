"""Packages of Debian, from whatever mirror this machine's apt is set up with."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

from . import SkipError

#: The release that guests run.
SUITE = "bookworm"


def run(command: list[str], cwd: Path | None = None) -> str:
    """Runs a command and returns its output; raises with the end of what it said if it fails."""
    done = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise SkipError(f"{command[0]} failed: {last[0] if last else f'exit code {done.returncode}'}")
    return done.stdout


@functools.cache
def update() -> None:
    """Brings apt's lists up to date, once in a run. Not allowed to others than root; old lists may do."""
    if os.geteuid() == 0:
        subprocess.run(["apt-get", "-qq", "update"], stdin=subprocess.DEVNULL, capture_output=True)


def need(tools: dict[str, str]) -> None:
    """Installs the packages of missing tools (tool -> package) if root, else says what to type."""
    missing = sorted({package for tool, package in tools.items() if not which(tool)})
    if not missing:
        return
    install = f"apt-get install -y --no-install-recommends {' '.join(missing)}"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise SkipError(f"missing here: {', '.join(missing)} (type: sudo {install})")
    print(f"installing {', '.join(missing)}", flush=True)
    update()
    run(["env", "DEBIAN_FRONTEND=noninteractive", *install.replace("install", "install -qq", 1).split()])


def which(tool: str) -> str | None:
    """Like the shell's `command -v`, also where /usr/sbin is not on PATH."""
    return shutil.which(tool) or shutil.which(tool, path="/usr/sbin:/sbin")


def fetch(package: str, folder: Path) -> Path:
    """Downloads a package and unpacks it below the folder."""
    if not shutil.which("apt-get"):
        raise SkipError("no apt-get here: kernels and the guest image are made of Debian's packages")
    folder.mkdir(parents=True, exist_ok=True)
    update()
    run(["apt-get", "-qq", "download", package], cwd=folder)
    files = sorted(folder.glob(f"{package}_*.deb"))
    run(["dpkg-deb", "-x", str(files[-1]), str(folder / "root")])
    for file in files:
        file.unlink()
    return folder / "root"


def newest(meta: str) -> str:
    """The package that a meta package stands for: the newest kernel of a kind."""
    update()
    for line in run(["apt-cache", "depends", meta]).splitlines():
        if line.strip().startswith("Depends: linux-image-"):
            return line.split()[-1]
    raise SkipError(f"apt knows no {meta} (it is in Debian 12's security and backports suites)")


def sources() -> list[str]:
    """The files of apt's sources that name the guests' release."""
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    found = [
        str(file)
        for file in files
        if file.suffix in (".list", ".sources") and file.is_file() and is_debian(file.read_text())
    ]
    if not found:
        raise SkipError(f"this machine's apt has no sources of Debian {SUITE}")
    return found


def is_debian(text: str) -> bool:
    """Whether sources name the release and come from Debian itself (third parties name releases too)."""
    return SUITE in text and "debian" in text and "main" in text
