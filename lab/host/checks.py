"""Checks on the host after a guest has ended: things that only QEMU saw."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path


def dma_in_bar(work: Path) -> str | None:
    """The drive's own reads and writes went to addresses inside the BAR that the guest named in /out/bar.

    The trace has a line for each command and, after it, one for each address that the drive then transfers to or from.
    """
    named = work / "out" / "bar"
    if not named.exists():
        return "the guest named no BAR (/out/bar)"
    first, last = (int(word, 16) for word in named.read_text().split())
    inside = {"read": 0, "write": 0}
    command = None
    for line in (work / "trace").read_text(errors="replace").splitlines():
        if match := re.match(r"pci_nvme_(read|write) ", line.partition(":")[2] if line[:1].isdigit() else line):
            command = match[1]
        elif match := re.search(r"pci_nvme_map_addr addr (0x[0-9a-f]+)", line):
            if command and first <= int(match[1], 16) <= last:
                inside[command] += 1
        elif "pci_nvme_io_cmd" in line or "pci_nvme_admin_cmd" in line:
            command = None
    print(f"    DMA inside the BAR: {inside['read']} mappings by reads, {inside['write']} by writes", flush=True)
    idle = [name for name, count in inside.items() if count == 0]
    return f"no {' and no '.join(idle)} moved bytes inside the BAR" if idle else None


CHECKS: dict[str, Callable[[Path], str | None]] = {"dma-in-bar": dma_in_bar}
