"""Cuts the power at every moment that matters: powercut.py LOG COPY COW OPTIONS OLD NEW.

LOG is what dm-log-writes recorded, COPY the drive as it was before. The drive's state right after each flush (and each
write that is durable by itself) is put together on COPY; writes not flushed by then are lost, all of them or a random
half. Each state is mounted from a snapshot (on COW), which runs the file system's recovery, and /cut/file (CUT_FILE) is compared
with OLD and NEW. Prints the result; the last line is `states … old … new … MIXED … LOST …`: LOST counts states
after the mark `done` where the file is not the new one. Fails if any state is mixed or lost.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SECTOR = 512
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8
CUT = Path("/cut")
#: The file, below the drive's root.
FILE = os.environ.get("CUT_FILE", "file")


@dataclass
class Entry:
    """One write of the log: where to, and where its bytes stand in the log."""

    sector: int
    count: int
    flags: int
    at: int
    mark: str


def entries(log: int) -> Iterator[Entry]:
    """The recorded writes, in the order in which they became durable."""
    magic, version, number, size = struct.unpack("<QQQI", os.pread(log, 28, 0))
    if (magic, version, size) != (0x6A736677736872, 1, SECTOR):
        sys.exit("error: not a log of dm-log-writes with sectors of 512 bytes")
    position = SECTOR
    for _ in range(number):
        head = os.pread(log, SECTOR, position)
        sector, count, flags, length = struct.unpack_from("<QQQQ", head)
        mark = head[32 : 32 + length].decode() if flags & MARK else ""
        yield Entry(sector, count, flags, position + SECTOR, mark)
        position += SECTOR + (0 if flags & DISCARD else count * SECTOR)


def apply(log: int, drive: int, entry: Entry) -> None:
    """Does a recorded write again."""
    size = entry.count * SECTOR
    if entry.flags & DISCARD or not size:
        return
    os.pwrite(drive, os.pread(log, size, entry.at), entry.sector * SECTOR)


def run(*command: str) -> None:
    """Runs a command that must not fail."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


class Cutter:
    """Looks at states of the drive."""

    def __init__(self, copy: str, cow: str, options: str, old: bytes, new: bytes) -> None:
        self.copy, self.cow, self.options = copy, cow, options
        self.known = {old: "old", new: "new"}
        self.sectors = int(subprocess.check_output(["blockdev", "--getsz", copy]))
        self.counts = {"old": 0, "new": 0, "MIXED": 0, "LOST": 0}

    def look(self, after: str, done: bool, log: int, lost: list[Entry]) -> None:
        """Mounts this state, plus those writes of `lost` that happened to get there, and compares the file."""
        with open(self.cow, "r+b") as cow:
            cow.write(bytes(4096))  # the header of the last snapshot
        run("dmsetup", "create", "cut", "--table", f"0 {self.sectors} snapshot {self.copy} {self.cow} N 8")
        try:
            drive = os.open("/dev/mapper/cut", os.O_RDWR)
            for entry in lost:
                apply(log, drive, entry)
            os.close(drive)
            run("mount", "-o", self.options, "/dev/mapper/cut", str(CUT))
            found = self.known.get((CUT / FILE).read_bytes(), "MIXED") if (CUT / FILE).exists() else "MIXED"
            size = (CUT / FILE).stat().st_size if (CUT / FILE).exists() else "gone"
            run("umount", str(CUT))
        finally:
            run("dmsetup", "remove", "cut")
        self.counts[found] += 1
        if done and found != "new":
            self.counts["LOST"] += 1
        if found == "MIXED" or (done and found != "new"):
            print(f"  after {after}: {found} (size {size}), {len(lost)} unflushed writes got there", flush=True)


def main() -> int:
    log_path, copy, cow, options, old, new = sys.argv[1:]
    log, drive = os.open(log_path, os.O_RDONLY), os.open(copy, os.O_RDWR)
    CUT.mkdir(exist_ok=True)
    cutter = Cutter(copy, cow, options, Path(old).read_bytes(), Path(new).read_bytes())
    every = list(entries(log))
    end = next(number for number, entry in enumerate(every) if entry.mark == "end")
    chance = random.Random(1)
    done = False
    for number, entry in enumerate(every[: end + 1]):
        apply(log, drive, entry)
        done = done or entry.mark == "done"
        if not entry.flags & (FLUSH | FUA | MARK):
            continue
        os.fsync(drive)
        after = f"write {number} of {end}{' (mark ' + entry.mark + ')' if entry.mark else ''}"
        cutter.look(after, done, log, [])
        until = next((n for n in range(number + 1, end) if every[n].flags & (FLUSH | FUA | MARK)), end)
        some = [one for one in every[number + 1 : until] if chance.random() < 0.5]
        if some:
            cutter.look(after, done, log, some)
    counts = cutter.counts
    print(f"states {counts['old'] + counts['new'] + counts['MIXED']}", *(f"{n} {c}" for n, c in counts.items()))
    return 1 if counts["MIXED"] or counts["LOST"] else 0


sys.exit(main())
