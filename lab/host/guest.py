"""Boots one guest for one scenario, and tells how it ended."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from . import LAB, SkipError, alone, apt, checks, image, kernels, payload, target
from .scenario import Scenario

#: The guest's exit code for "what I need is not here".
SKIPPED = 77
#: Emulated CPUs now and then hang while the kernel starts, before a scenario has begun: such guests are booted again.
BOOTS = 3
BOOT_SECONDS = 90
NO_START = f"the guest did not start within {BOOT_SECONDS} s"
#: Stands for a guest's end of the socket between two guests, which is made when they boot.
CABLE = "END-OF-CABLE"
GIVEN_UP = "the run was interrupted"


@dataclass(frozen=True)
class Result:
    """How a scenario ended: `ok`, `FAILED`, `PANIC` (a guest's kernel died) or `skipped`, and why."""

    verdict: str
    why: str
    seconds: float
    console: Path | None = None


@dataclass(frozen=True)
class Settings:
    """What all scenarios of a run share."""

    #: The pieces that scenarios of this run have needed so far; each guest is given links to its own.
    carried: Path
    #: Whether a missing kernel may be built.
    build: bool
    #: Whether drives, traces and shares stay.
    keep: bool
    #: No scenario begins after this moment.
    until: float


class Guests:
    """Those that run now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self.given_up = False

    def start(self, line: list[str], fds: list[int], log: BinaryIO, work: Path) -> subprocess.Popen[bytes] | None:
        """Starts one, in a session of its own, with its work folder and descriptors; none once they were given up."""
        with self._lock:
            if self.given_up:
                return None
            process = subprocess.Popen(
                line,
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=fds,
            )
            self._running.add(process)
            return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Ends one, if it has not ended by itself."""
        with self._lock:
            self._running.discard(process)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def give_up(self) -> None:
        """Ends all; whoever waits for one cleans up after it."""
        with self._lock:
            self.given_up = True
            for process in self._running:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


GUESTS = Guests()


def run(scenario: Scenario, settings: Settings) -> Result:
    """Runs a scenario from preparing to cleaning up."""
    started = time.monotonic()
    if started > settings.until:
        return Result("skipped", "the time for this run is up", 0)
    work = target() / "lab" / scenario.name
    try:
        with alone():
            apt.need({"qemu-system-x86_64": "qemu-system-x86"})
            payload.carry(scenario.needs, settings.carried)
            kernel = kernels.find(scenario.kernel, settings.build)
            root = image.find()
    except SkipError as skip:
        return Result("skipped", str(skip), time.monotonic() - started)
    started = time.monotonic()
    lines = [command(scenario, kernel, root, work, guest) for guest in range(1, scenario.guests + 1)]
    ended: str | None = NO_START
    for _ in range(BOOTS):
        prepare(scenario, settings.carried, work)
        ended = boot(lines, scenario.timeout, work)
        # QEMU itself fails now and then while a guest boots.
        if ended is None or ended == GIVEN_UP or has_started(work):
            break
        print(f"    {scenario.name}: the guest did not start; another try", flush=True)
    verdict, why = judge(scenario, work, ended)
    seconds = time.monotonic() - started
    log = work.with_suffix(".log")
    shutil.move(joined(scenario, work), log)
    if not settings.keep:
        shutil.rmtree(work)
    return Result(verdict, why, seconds, log)


def prepare(scenario: Scenario, carried: Path, work: Path) -> None:
    """An empty work folder with what the scenario needs, and no more, and its drives as sparse files."""
    shutil.rmtree(work, ignore_errors=True)
    (work / "out").mkdir(parents=True)
    payload.give(scenario.needs, carried, work / "payload")
    for guest in range(1, scenario.guests + 1):
        (work / console_of(guest)).touch()
    for name, size in scenario.drives.items():
        with open(work / f"{name}.img", "wb") as file:
            file.truncate(int(size[:-1]) << {"M": 20, "G": 30}[size[-1]])


def console_of(guest: int) -> str:
    """What a guest says goes to this file of the work folder."""
    return "console.log" if guest == 1 else f"console-{guest}.log"


def joined(scenario: Scenario, work: Path) -> Path:
    """The first guest's console, with those of others before it."""
    first = work / console_of(1)
    others = [(work / console_of(guest)).read_bytes() for guest in range(2, scenario.guests + 1)]
    first.write_bytes(b"".join(others) + first.read_bytes())
    return first


def command(scenario: Scenario, kernel: kernels.Kernel, root: Path, work: Path, guest: int) -> list[str]:
    """QEMU's command line. There is no KVM in it: the emulated CPU runs anywhere, and p2p needs QEMU's own devices."""
    append = f"console=ttyS0 quiet panic=-1 nokaslr mitigations=off init_on_alloc=0 audit=0 {scenario.append} lab.scenario={scenario.name}"
    if guest > 1:
        append += f" lab.guest={guest}"
    # Nobody is left to end the guest where this process was killed.
    line = ["timeout", "-s", "KILL", str(scenario.timeout + 60), "nice", "qemu-system-x86_64"]
    line += ["-M", "q35,kernel-irqchip=split" if iommu(scenario) else "q35"]
    line += ["-accel", "tcg,thread=multi", "-cpu", scenario.cpu]
    line += ["-smp", str(scenario.cpus), "-m", scenario.memory, "-nodefaults", "-display", "none", "-no-reboot"]
    line += ["-serial", f"file:{work / console_of(guest)}", "-monitor", "none"]
    line += ["-kernel", str(kernel.image), "-initrd", str(kernel.initrd), "-append", append]
    line += ["-drive", f"file={root},if=none,id=root,format=raw,readonly=on", "-device", "virtio-blk-pci,drive=root"]
    shares = {"lab": (LAB, "on"), "payload": (work / "payload", "on"), "out": (work / "out", "off")}
    for tag, (path, readonly) in shares.items():
        line += [
            "-virtfs",
            f"local,path={path},mount_tag={tag},security_model=none,readonly={readonly},multidevs=remap",
        ]
    if scenario.guests > 1:
        # A cable between the two. QEMU 7.2 lets an end that it has accepted block: it stood still, and its guest with it,
        # where the other guest's card was down and took nothing.
        line += ["-device", f"virtio-net-pci,netdev=cable,romfile=,mac=52:54:00:00:00:0{guest}", "-netdev"]
        line += [f"stream,id=cable,server=off,addr.type=fd,addr.str={CABLE}"]
    for name in scenario.drives if guest == 1 else ():
        line += ["-drive", f"file={work / f'{name}.img'},if=none,id={name},format=raw,cache=unsafe"]
    for event in scenario.trace:
        line += ["-trace", event]
    if scenario.trace:
        line += ["-D", str(work / "trace")]
    return line + scenario.qemu


def iommu(scenario: Scenario) -> bool:
    """Whether the guest has an IOMMU that remaps interrupts."""
    return any("intel-iommu" in word for word in scenario.qemu)


def boot(lines: list[list[str]], timeout: int, work: Path) -> str | None:
    """Runs QEMU to its end, which is that of the first guest; the text says what went wrong if it did not end by itself."""
    running: list[subprocess.Popen[bytes]] = []
    cable = socket.socketpair()
    with open(work / "qemu.log", "wb") as log, cable[0], cable[1]:
        try:
            for line, end in zip(lines, cable, strict=False):
                fd = end.fileno()
                process = GUESTS.start([word.replace(CABLE, str(fd)) for word in line], [fd], log, work)
                if process is None:
                    return GIVEN_UP
                running.append(process)
                # The guest has its end; when it ends, the other one gets EOF.
                end.close()
            code = wait(running[0], timeout, work)
        except subprocess.TimeoutExpired:
            return f"not done after {timeout} s" if has_started(work) else NO_START
        finally:
            for process in running:
                GUESTS.end(process)
    if GUESTS.given_up:
        return GIVEN_UP
    if code != 0:
        said = (work / "qemu.log").read_text(errors="replace").strip().splitlines()
        return f"QEMU: {said[-1] if said else f'exit code {code}'}"
    return None


def wait(process: subprocess.Popen[bytes], timeout: int, work: Path) -> int:
    """Waits for the guest's end; not as long for one whose scenario does not even begin."""
    try:
        return process.wait(BOOT_SECONDS)
    except subprocess.TimeoutExpired:
        if not has_started(work):
            raise
    return process.wait(max(1, timeout - BOOT_SECONDS))


def has_started(work: Path) -> bool:
    """Whether the guest came as far as its scenario."""
    return "lab: " in (work / "console.log").read_text(errors="replace")


def judge(scenario: Scenario, work: Path, ended: str | None) -> tuple[str, str]:
    """The verdict and its reason."""
    out = work / "out"
    status = int((out / "status").read_text()) if (out / "status").exists() else None
    died = kernel_death(scenario, work)
    if died and status is None:
        return "PANIC", died
    if ended or status is None:
        return "FAILED", ended or "the guest ended before its scenario did"
    if status == SKIPPED and (out / "skipped").exists():
        return "skipped", (out / "skipped").read_text().strip()
    if status != 0:
        said = [line for line in console(work) if line.startswith(("FAILED: ", "error: "))]
        return "FAILED", said[-1].removeprefix("FAILED: ") if said else f"exit code {status}"
    wrong = checks.CHECKS[scenario.check](work) if scenario.check else None
    return ("FAILED", wrong) if wrong else ("ok", "")


def kernel_death(scenario: Scenario, work: Path) -> str | None:
    """What a guest's kernel said when it died, and where: that is the kernel's fault, whatever the scenario did."""
    for guest in range(1, scenario.guests + 1):
        lines = console(work, guest)
        panic = next((line for line in lines if "Kernel panic - not syncing: " in line), None)
        if panic:
            where = next((line.partition("RIP: ")[2] for line in lines if "RIP: " in line), "an unknown place")
            return f"guest {guest}'s kernel died: {panic.partition('not syncing: ')[2]}, at {where}"
    return None


def console(work: Path, guest: int = 1) -> list[str]:
    """What a guest said."""
    return (work / console_of(guest)).read_text(errors="replace").replace("\r", "").splitlines()
