"""Finds or builds the guests' kernels, and makes the small initramfs that each boots with."""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import LAB, ROOT, SkipError, apt, cache, cpio

#: Kernels of Debian: name in scenarios -> meta package.
DEBIAN = {"debian": "linux-image-6.12-amd64", "debian-6.1": "linux-image-amd64"}
#: The one with P2PDMA, which Debian's have not.
P2P = "p2p"
NAMES = (*DEBIAN, P2P)
#: What a signed module ends with; before it stand twelve bytes, the last four of them the signature's length.
SIGNED = b"~Module signature appended~\n"


@dataclass(frozen=True)
class Kernel:
    """What QEMU boots."""

    image: Path
    initrd: Path


def find(name: str, build: bool) -> Kernel:
    """The kernel of this name, fetched or built if it is not in the cache."""
    apt.need({"depmod": "kmod"})
    if name == P2P:
        image = find_p2p() or (build_p2p() if build else None)
        if image is None:
            raise SkipError("no kernel with P2PDMA (FOREBAY_LAB_KERNEL names one; lab/run --build-kernel makes one)")
        return Kernel(image, initramfs(name, image, None))
    folder = fetch_debian(name)
    image = next(folder.glob("boot/vmlinuz-*"))
    return Kernel(image, initramfs(name, image, next(folder.glob("lib/modules/*"))))


def find_p2p() -> Path | None:
    """A kernel that somebody built before: named, beside the checkout, or in the cache."""
    named = os.environ.get("FOREBAY_LAB_KERNEL")
    if named:
        if not Path(named).is_file():
            raise SkipError(f"FOREBAY_LAB_KERNEL names no file: {named}")
        return Path(named).resolve()
    found = [*sorted((ROOT.parent / "shared" / "lab").glob("bzImage-*")), cache() / "bzImage-p2p"]
    return next((path.resolve() for path in found if path.is_file()), None)


def build_p2p() -> Path:
    """Builds it from Debian's source with lab/kernel.config: about half an hour on two cores."""
    apt.need({"flex": "flex", "bison": "bison", "bc": "bc", "make": "make", "cc": "build-essential"})
    if os.geteuid() == 0:
        apt.run(["apt-get", "-qq", "install", "-y", "libelf-dev", "libssl-dev"])
    print("building the kernel with P2PDMA: about half an hour on two cores, once", flush=True)
    folder = cache() / "build"
    shutil.rmtree(folder, ignore_errors=True)
    archive = next(apt.fetch("linux-source-6.12", folder).glob("usr/src/linux-source-*.tar.xz"))
    source = folder / "linux"
    source.mkdir()
    apt.run(["tar", "-xf", str(archive), "-C", str(source), "--strip-components=1"])
    config = f"KCONFIG_ALLCONFIG={LAB / 'kernel.config'}"
    apt.run(["make", "-s", "-C", str(source), config, "allnoconfig"])
    if lost := lost_options((LAB / "kernel.config").read_text(), (source / ".config").read_text()):
        raise SkipError(f"this kernel's source does not take {', '.join(lost)} of lab/kernel.config")
    with open(folder / "build.log", "w") as log:
        command = ["nice", "make", "-s", "-C", str(source), f"-j{os.cpu_count() or 1}", "bzImage"]
        if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log).returncode != 0:
            raise SkipError(f"the kernel does not build (see {folder / 'build.log'})")
    kept = cache() / "bzImage-p2p"
    shutil.copyfile(source / "arch/x86/boot/bzImage", kept)
    shutil.rmtree(folder)
    return kept


def lost_options(wanted: str, config: str) -> list[str]:
    """Options that were asked for, and are not so in the configuration that came of it."""
    got = set(config.splitlines())
    options = [line for line in wanted.splitlines() if line.startswith("CONFIG_")]
    return [line for line in options if line not in got and not (line.endswith("=n") and is_off(line[:-2], got))]


def is_off(option: str, config: set[str]) -> bool:
    """Whether an option is not set, or not known at all."""
    return not any(line.startswith(f"{option}=") for line in config)


def fetch_debian(name: str) -> Path:
    """Debian's kernel package, unpacked in the cache."""
    folder = cache() / name
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        package = apt.newest(DEBIAN[name])
        print(f"fetching {package}", flush=True)
        apt.fetch(package, folder)
        (folder / "complete").write_text(package + "\n")
    return folder / "root"


def initramfs(name: str, image: Path, modules: Path | None) -> Path:
    """Busybox, lab/guest/init and the modules that scenarios need; made anew when any of them changes."""
    init = LAB / "guest" / "init"
    wanted = LAB / "modules.txt"
    parts = [init.read_bytes(), wanted.read_bytes(), Path(cpio.__file__).read_bytes(), Path(__file__).read_bytes()]
    key = hashlib.sha256(b"\0".join([*parts, str(image).encode(), str(image.stat().st_mtime).encode()])).hexdigest()
    kept = cache() / f"initrd-{name}-{key[:12]}.cpio"
    if not kept.exists():
        for old in cache().glob(f"initrd-{name}-*.cpio"):
            old.unlink()
        with tempfile.TemporaryDirectory() as stage:
            root = Path(stage)
            copy_busybox(root, init)
            if modules is not None:
                copy_modules(modules, root, wanted.read_text())
            cpio.pack(root, kept)
    return kept


def copy_busybox(root: Path, init: Path) -> None:
    """The two files without which nothing boots."""
    busybox = cache() / "busybox"
    if not busybox.exists():
        with tempfile.TemporaryDirectory(dir=cache()) as folder:
            shutil.copy(apt.fetch("busybox-static", Path(folder)) / "bin/busybox", busybox)
    (root / "bin").mkdir()
    shutil.copy(busybox, root / "bin/busybox")
    shutil.copy(init, root / "init")


def copy_modules(modules: Path, root: Path, wanted: str) -> None:
    """The wanted modules with all that they need, unpacked, and the order in which init loads the first of them."""
    needs, optional = dependencies(modules)
    first: list[str] = []
    chosen: list[str] = []
    for line in wanted.splitlines():
        words = line.split("#")[0].split()
        for word in words[1:]:
            into = [first, chosen] if words[0] == "boot:" else [chosen]
            # Modules that are built in, or not in this kernel, are not in the list.
            for path in reversed(needs.get(word.replace("-", "_"), [])):
                for names in into:
                    names.append(path) if path not in names else None
    target = root / "lib/modules" / modules.name
    for path in chosen:
        file = target / path.removesuffix(".xz")
        file.parent.mkdir(parents=True, exist_ok=True)
        data = (modules / path).read_bytes()
        file.write_bytes(unsigned(lzma.decompress(data) if path.endswith(".xz") else data))
    for name in optional:
        shutil.copy(modules / name, target / name)
    apt.run([apt.which("depmod") or "depmod", "-b", str(root), modules.name])
    (root / "boot-modules").write_text("".join(f"/lib/modules/{modules.name}/{p.removesuffix('.xz')}\n" for p in first))


def unsigned(module: bytes) -> bytes:
    """A module without its signature, which an emulated CPU would take long to check."""
    if not module.endswith(SIGNED):
        return module
    length = int.from_bytes(module[-len(SIGNED) - 4 : -len(SIGNED)])
    return module[: -len(SIGNED) - 12 - length]


def dependencies(modules: Path) -> tuple[dict[str, list[str]], list[str]]:
    """Module name -> its file and those it needs, in the order of modules.dep (needed ones last); lists to carry along."""
    if not (modules / "modules.dep").exists():
        apt.run([apt.which("depmod") or "depmod", "-b", str(modules.parents[2]), modules.name])
    needs = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        file, _, rest = line.partition(":")
        needs[Path(file).name.split(".")[0].replace("-", "_")] = [file, *rest.split()]
    lists = [name for name in ("modules.builtin", "modules.order") if (modules / name).exists()]
    return needs, lists
