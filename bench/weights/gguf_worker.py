#!/usr/bin/env python3
"""One measurement of `bench/weights.py --gguf`, a process of its own: all tensors of a .gguf file to the device, twice, a line of JSON
for each.

With --make it writes the file instead: quantised blocks (Q4_K) of random bytes. Exit codes: 0; 1 for wrong bytes; 3, with the
reason, where the subject cannot run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

from common import Skip, start_device, synchronize, worker_main  # noqa: E402

#: Elements and bytes of a block of Q4_K, its number; the size of a tensor.
_ELEMENTS, _BYTES, _KIND = 256, 144, 12
_TENSOR_BYTES = 66 << 20
#: A name that `bench/weights.py` finds.
_NAME = "model-00001-of-00001.gguf"


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def make(folder: Path, nbytes: int) -> None:
    """Writes a file of about this many bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    size = min(_TENSOR_BYTES, max(_BYTES * 32, nbytes // 4))
    rows = size // (_BYTES * 16)
    each = rows * _BYTES * 16
    step = -(-each // 32) * 32
    count = max(2, nbytes // each)
    head = b"GGUF" + struct.pack("<IQQ", 3, count, 0)
    for at in range(count):
        head += text(f"blk.{at}.weight") + struct.pack("<IQQIQ", 2, _ELEMENTS * 16, rows, _KIND, at * step)
    noise = os.urandom(step + 4096)
    with open(folder / _NAME, "wb") as file:
        file.write(head + bytes(-len(head) % 32))
        for at in range(count):
            file.write(memoryview(noise)[at % 4096 : at % 4096 + step])
        file.flush()
        os.fsync(file.fileno())


#: Brings all tensors of a file to a device.
Load = Callable[[str, str], dict[str, Any]]


def forebay() -> Load:
    import torch

    from forebay.torch import weights

    def load(path: str, device: str) -> dict[str, Any]:
        checkpoint = weights(path)
        made = {name: torch.empty_like(tensor, device=device) for name, tensor in checkpoint.items()}
        with checkpoint.collect():
            for name, tensor in made.items():
                tensor.copy_(checkpoint[name])
        return made

    return load


def gguf() -> Load:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise Skip(f"gguf cannot be imported: {error}") from None
    import torch

    def load(path: str, device: str) -> dict[str, Any]:
        return {one.name: torch.from_numpy(one.data).to(device, copy=True) for one in GGUFReader(path).tensors}

    return load


#: Each imports its library and returns its load: imports are not measured.
SUBJECTS = {"forebay": forebay, "gguf": gguf}


def differing(torch: Any, path: str, made: dict[str, Any]) -> list[str]:
    """Names of tensors whose bytes are not the file's; some are compared."""
    from forebay.torch import weights

    whole = torch.from_file(path, shared=False, size=os.stat(path).st_size, dtype=torch.uint8)
    wrong = []
    for name, tensor in list(weights(path).items())[:: max(1, len(made) // 6)]:
        wanted = whole[tensor.offset : tensor.offset + tensor.nbytes]
        if not torch.equal(wanted, made[name].cpu().reshape(-1)):
            wrong.append(name)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subject", choices=sorted(SUBJECTS))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--make", type=int, metavar="BYTES")
    options = parser.parse_args()
    if options.make:
        make(options.folder, options.make)
        return
    torch, path = start_device(options.device), str(options.folder / _NAME)
    load = SUBJECTS[options.subject]()
    for when in ("first",) if options.once else ("first", "again"):
        before = resource.getrusage(resource.RUSAGE_SELF)
        start = time.perf_counter()
        made = load(path, options.device)
        synchronize(torch, options.device)
        seconds = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        wrong = differing(torch, path, made)
        record = {"subject": options.subject, "when": when, "seconds": round(seconds, 4), "cpu_s": round(cpu, 3)}
        print(json.dumps(record | {"wrong": wrong}), flush=True)
        if wrong:
            raise SystemExit(f"wrong bytes: {', '.join(wrong)}")
        del made


if __name__ == "__main__":
    worker_main(main)
