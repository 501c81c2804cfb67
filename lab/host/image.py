"""The guests' root file system: a few of Debian's packages in one read-only file, made once."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from . import LAB, SkipError, apt, cache

#: What makes the image, tool -> package.
TOOLS = {"mmdebstrap": "mmdebstrap", "tar2sqfs": "squashfs-tools-ng"}
#: Nobody reads these in a guest.
WITHOUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")


def find() -> Path:
    """The image for lab/packages.txt, made if it is not in the cache."""
    packages = [word for line in (LAB / "packages.txt").read_text().splitlines() for word in line.split("#")[0].split()]
    key = hashlib.sha256(" ".join([apt.SUITE, *packages, *WITHOUT, "zstd"]).encode()).hexdigest()[:12]
    kept = cache() / f"root-{key}.squashfs"
    if kept.exists():
        return kept
    apt.need(TOOLS)
    for old in cache().glob("root-*"):
        old.unlink()
    print("making the guest image: about two minutes, once", flush=True)
    part = cache() / f"root-{key}.part"
    log = cache() / "image.log"
    command = ["nice", "mmdebstrap", "--variant=minbase", f"--include={','.join(packages)}"]
    command += [f"--dpkgopt=path-exclude={pattern}" for pattern in WITHOUT]
    command += ["--format=tar", apt.SUITE, "-", *apt.sources()]
    # zstd: what the kernels have in common, and quick to unpack where the CPU is emulated.
    pack = ["nice", "tar2sqfs", "--quiet", "--force", "--compressor", "zstd", "--block-size", "131072", str(part)]
    with open(log, "w") as out:
        tar = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=out)
        packed = subprocess.run(pack, stdin=tar.stdout, stdout=out, stderr=out)
        if tar.wait() != 0 or packed.returncode != 0:
            raise SkipError(f"the guest image cannot be made (see {log})")
    os.replace(part, kept)
    return kept
