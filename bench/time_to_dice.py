#!/usr/bin/env python3
"""Time to Dice: 3-D segmentation with MONAI, the items out of three caches. Equal seeds, so each arm sees the same batches: Dice
for each epoch must be equal, only the seconds differ.

    bench/time_to_dice.py FOLDER [--arms persistent,gds,forebay] [--cases 64] [--size 160] [--crop 128] [--epochs 20]
                          [--seeds 0,1,2] [--cold] [--device cuda:0] [--out FILE.jsonl]

Arms: persistent (monai.data.PersistentDataset), gds (monai.data.GDSDataset; needs kvikio, cupy and a GPU), forebay
(forebay.monai.GDSDataset). Cases are synthetic (monai.data.synthetic). Each arm and seed is a process; its cache was filled by one
before, and with --cold the page cache is dropped between epochs. Each epoch prints seconds, Dice and the sum of its inputs' CRC-32C.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from measure import drop

ARMS = ("persistent", "gds", "forebay")


def make_cases(folder: Path, count: int, size: int) -> list[dict[str, str]]:
    """Images and labels as .npy files."""
    import numpy
    from monai.data.synthetic import create_test_image_3d

    items = []
    for number in range(count):
        paths = {key: folder / f"{key}-{size}-{number}.npy" for key in ("image", "label")}
        if not paths["label"].exists():
            state = numpy.random.RandomState(number)
            radius = {"rad_max": size // 5, "rad_min": size // 16, "noise_max": 0.5, "num_seg_classes": 1}
            image, label = create_test_image_3d(size, size, size, channel_dim=0, random_state=state, **radius)
            numpy.save(paths["image"], image.astype("float32"))
            numpy.save(paths["label"], label.astype("uint8"))
        items.append({key: str(path) for key, path in paths.items()})
    return items


def dataset(arm: str, items: list[Any], transform: Any, cache: Path, device: str) -> Any:
    if arm == "persistent":
        from monai.data import PersistentDataset

        return PersistentDataset(items, transform, cache)
    if arm == "gds":
        from monai.data import GDSDataset

        return GDSDataset(items, transform, cache, device=int(device.rpartition(":")[2]))
    from forebay.monai import GDSDataset as Ours

    return Ours(items, transform, cache, device)


def train(job: dict[str, Any]) -> None:
    """Epochs of one arm and seed; a JSON line for each."""
    import torch
    from monai.data import ThreadDataLoader
    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet
    from monai.transforms import Compose, EnsureTyped, LoadImaged, RandFlipd, RandSpatialCropd, ScaleIntensityd
    from monai.utils import set_determinism

    arm, device, crop, cold = job["arm"], job["device"], [job["crop"]] * 3, job["cold"]
    set_determinism(job["seed"])
    keys = ["image", "label"]
    steps = [
        LoadImaged(keys, reader="NumpyReader", image_only=True, ensure_channel_first=False),
        ScaleIntensityd("image"),
        EnsureTyped(keys),
        EnsureTyped(keys, device=device),
        RandSpatialCropd(keys, crop, random_size=False),
        *[RandFlipd(keys, prob=0.5, spatial_axis=axis) for axis in range(3)],
    ]
    if arm != "persistent":
        # They bring the items to the device themselves.
        del steps[3]
    else:
        # Behind the cache: it is kept on the host.
        steps[3], steps[4] = steps[4], steps[3]
    cache = Path(job["folder"]) / f"cache-{arm}-{job['size']}-{job['cases']}"
    items = make_cases(Path(job["folder"]), job["cases"], job["size"])
    data = dataset(arm, items, Compose(steps).set_random_state(job["seed"]), cache, device)
    if job["fill"]:
        for number in range(len(data)):
            data._cachecheck(data.data[number])
        return
    model = UNet(3, 1, 2, (16, 32, 64, 128), (2, 2, 2), num_res_units=2).to(device)
    optimizer, loss = torch.optim.Adam(model.parameters(), 1e-3), DiceCELoss(to_onehot_y=True, softmax=True)
    order = torch.Generator().manual_seed(job["seed"])
    loader = ThreadDataLoader(data, num_workers=0, batch_size=2, shuffle=True, generator=order)
    for epoch in range(job["epochs"]):
        if cold:
            for path in cache.iterdir():
                drop(str(path))
        begun, crc, hits, both = time.perf_counter(), 0, 0.0, 0.0
        for batch in loader:
            image, label = torch.as_tensor(batch["image"]).to(device), torch.as_tensor(batch["label"]).to(device)
            if job["check"]:
                crc = zlib.crc32(image.cpu().numpy().tobytes(), crc)
            with torch.autocast(device.partition(":")[0], dtype=torch.bfloat16):
                found = model(image)
            error = loss(found.float(), label.float())
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
            inside = found.argmax(1, keepdim=True)
            hits += float((inside * label).sum())
            both += float(inside.sum() + label.sum())
        dice = 2 * hits / max(1.0, both)
        line = {"epoch": epoch, "seconds": time.perf_counter() - begun, "dice": dice, "crc": crc}
        print(json.dumps(line), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--arms", type=lambda text: text.split(","), default=list(ARMS))
    for name, default in (("cases", 64), ("size", 160), ("crop", 128), ("epochs", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seeds", type=lambda text: [int(one) for one in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--check", action="store_true", help="checksums of all inputs, which takes its own time")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        train(json.loads(options.job))
        return 0
    if options.folder is None:
        parser.error("name a folder for the files")
    options.folder.mkdir(parents=True, exist_ok=True)
    keys = ("cases", "size", "crop", "epochs", "cold", "check", "device")
    words = {**{key: getattr(options, key) for key in keys}, "folder": str(options.folder)}
    for arm in options.arms:
        missing = [name for name in ("kvikio", "cupy") if arm == "gds" and importlib.util.find_spec(name) is None]
        if missing:
            print(f"{arm:12} skipped: {' and '.join(missing)} not installed")
            continue
        fill = json.dumps({**words, "arm": arm, "seed": 0, "fill": True})
        begun = time.perf_counter()
        subprocess.run([sys.executable, __file__, "--job", fill], check=True)
        filled = time.perf_counter() - begun
        epochs: list[dict[str, Any]] = []
        for seed in options.seeds:
            job = json.dumps({**words, "arm": arm, "seed": seed, "fill": False})
            done = subprocess.run([sys.executable, __file__, "--job", job], check=True, capture_output=True, text=True)
            lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            epochs += [{"arm": arm, "seed": seed, **line} for line in lines]
            reached = next((n for n, line in enumerate(lines) if line["dice"] >= 0.75), None)
            total = sum(line["seconds"] for line in lines[: (reached or 0) + 1])
            told = f"Dice 0.75 after {total:.1f} s, epoch {reached}" if reached is not None else "Dice 0.75 not reached"
            print(f"{arm:12} seed {seed}: last Dice {lines[-1]['dice']:.4f}, {told}")
        if options.out is not None:
            with options.out.open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in epochs)
        seconds = statistics.median(line["seconds"] for line in epochs if line["epoch"])
        print(f"{arm:12} {seconds:.3f} s an epoch (median), cache filled in {filled:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
