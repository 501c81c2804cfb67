"""Reads an epoch of a cached MONAI data set and prints it as JSON: NAME FOLDER DEVICE cold|warm N.

NAME: monai-persistent (PersistentDataset), monai-gds (MONAI's GDSDataset), monai-forebay (forebay.monai.GDSDataset). The cache is
filled in a new folder in FOLDER, which is removed; the N-th epoch over it counts. Timed: from the first item until all tensors are
in the memory of the device. Exit code 3: what it needs is not here.
"""

import importlib
import importlib.util
import json
import os
import resource
import sys
import tempfile
import time

name, folder, device, cache, count = sys.argv[1:6]
#: Image (float32) and label (uint8) of a case are cubes with this edge.
EDGE = 160
CASES = 8
NEEDS = {
    "monai-persistent": ("torch", "monai"),
    "monai-gds": ("torch", "monai", "kvikio", "cupy"),
    "monai-forebay": ("torch", "monai", "forebay"),
}

for needed in NEEDS[name]:
    # Looked for first, since torch takes seconds to import.
    if importlib.util.find_spec(needed) is None:
        print(f"{needed} is not installed", file=sys.stderr)
        sys.exit(3)
if name == "monai-gds" and device == "cpu":
    print("MONAI's GDSDataset reads to GPUs only", file=sys.stderr)
    sys.exit(3)
try:
    for needed in NEEDS[name]:
        importlib.import_module(needed)
    import torch
    from monai.data import GDSDataset, PersistentDataset
    from monai.transforms import Transform
except (ImportError, OSError) as error:
    print(f"{name} cannot be imported: {error}", file=sys.stderr)
    sys.exit(3)


class Make(Transform):
    """Makes a case of its number."""

    def __call__(self, number):
        cells = EDGE**3
        image = torch.arange(cells, dtype=torch.float32).reshape(1, EDGE, EDGE, EDGE) + number
        return {"image": image, "label": torch.full((1, EDGE, EDGE, EDGE), number, dtype=torch.uint8)}


def data_set(kept):
    items = list(range(CASES))
    if name == "monai-persistent":
        return PersistentDataset(items, Make(), kept)
    if name == "monai-gds":
        return GDSDataset(items, Make(), kept, device=int(device.rpartition(":")[2]))
    from forebay.monai import GDSDataset as Ours

    return Ours(items, Make(), kept, device)


def drop(kept):
    if "forebay" in sys.modules:
        # Pages that the GPU reads in place stay in memory.
        sys.modules["forebay"].trim()
    for entry in os.scandir(kept):
        with open(entry.path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def epoch(data):
    """All cases on the device; their bytes."""
    total = 0
    for number in range(len(data)):
        for value in data[number].values():
            tensor = torch.as_tensor(value).to(device)
            total += tensor.numel() * tensor.element_size()
    if device != "cpu":
        torch.cuda.synchronize()
    return total


with tempfile.TemporaryDirectory(prefix="forebay-report.monai-", dir=folder) as kept:
    data = data_set(kept)
    # Fills the cache, and has all compiled that an epoch needs.
    epoch(data)
    for _ in range(int(count)):
        if cache == "cold":
            drop(kept)
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        total = epoch(data)
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
assert total == CASES * EDGE**3 * 5, f"{total} bytes of an epoch"
print(
    json.dumps(
        {
            "seconds": seconds,
            "bytes": total,
            "user_s": after.ru_utime - before.ru_utime,
            "system_s": after.ru_stime - before.ru_stime,
            "engine": name,
            "cache": cache,
        }
    )
)
