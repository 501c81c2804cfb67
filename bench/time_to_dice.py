#!/usr/bin/env python3
"""Time to Dice: 3-D segmentation with MONAI, the items out of three caches. Equal seeds, so each arm sees the same batches: Dice
for each epoch must be equal, only the seconds differ.

    bench/time_to_dice.py FOLDER [--quick] [--arms persistent,gds,forebay] [--cases 64] [--size 160] [--crop 128] [--epochs 20]
                          [--seeds 0,1,2] [--regimes cached,cold] [--device cuda:0] [--out FILE.jsonl] [--until SECONDS]

Arms: persistent (monai.data.PersistentDataset), gds (monai.data.GDSDataset; needs kvikio, cupy and a GPU), forebay
(forebay.monai.GDSDataset). Cases are synthetic (monai.data.synthetic). Each arm, seed and regime is a process; its cache was
filled by one before. Cold: the page cache is dropped between epochs. The sum of all inputs' CRC-32C is compared between arms in
epochs of their own, behind the clock (--check 1 epoch).

Each run is a line of --out (FOLDER/dice.jsonl) with all its epochs, and is not taken again by a command of the same words. A run
that fails or outlives --limit is a line that says so. The table ends with seconds an epoch and to Dice 0.75, whether Dice and inputs
were equal, and the published figures: 28 049 s with PersistentDataset, 18 159 s with GDSDataset (300 epochs, another machine).
--plot FILE.svg draws Dice over seconds.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from measure import drop
from runs import Cannot, OutOfTime, Results, default_device, ended, last_line

ARMS = ("persistent", "gds", "forebay")
LABELS = {"gds": "gds (NVIDIA's libcufile; compat mode unless nvidia-fs is there)"}
NEEDS = {
    "persistent": ("monai", "torch"),
    "gds": ("monai", "torch", "kvikio", "cupy"),
    "forebay": ("monai", "torch", "forebay"),
}
REACHED = 0.75


def case_paths(folder: Path, size: int, number: int) -> dict[str, str]:
    return {key: str(folder / f"{key}-{size}-{number}.npy") for key in ("image", "label")}


def make_cases(job: dict[str, Any]) -> dict[str, Any]:
    """Images and labels as .npy files: some of all cases."""
    import numpy
    from monai.data.synthetic import create_test_image_3d

    size = job["size"]
    for number in job["numbers"]:
        paths = case_paths(Path(job["folder"]), size, number)
        if not os.path.exists(paths["label"]):
            state = numpy.random.RandomState(number)
            radius = {"rad_max": size // 5, "rad_min": size // 16, "noise_max": 0.5, "num_seg_classes": 1}
            image, label = create_test_image_3d(size, size, size, channel_dim=0, random_state=state, **radius)
            numpy.save(paths["image"], image.astype("float32"))
            # Written last, and under another name until it is whole: it says that both are there.
            new = Path(job["folder"]) / f"new-{number}.npy"
            numpy.save(new, label.astype("uint8"))
            os.replace(new, paths["label"])
    return {}


def dataset(arm: str, items: list[Any], transform: Any, cache: Path, device: str) -> Any:
    if arm == "persistent":
        from monai.data import PersistentDataset

        return PersistentDataset(items, transform, cache)
    if arm == "gds":
        from monai.data import GDSDataset

        return GDSDataset(items, transform, cache, device=int(device.rpartition(":")[2]))
    from forebay.monai import GDSDataset as Ours

    return Ours(items, transform, cache, device)


def drop_folder(cache: Path) -> None:
    if "forebay" in sys.modules:
        # Pages that the GPU reads in place stay in memory.
        sys.modules["forebay"].trim()
    for path in cache.iterdir():
        drop(str(path))


def train(job: dict[str, Any]) -> dict[str, Any]:
    """All epochs of one arm and seed."""
    if job["arm"] == "gds":
        # Its reads go through NVIDIA's library, not by KvikIO's own POSIX calls. Asked when KvikIO is loaded, as it is by MONAI.
        os.environ.setdefault("KVIKIO_COMPAT_MODE", "OFF")
        os.environ.setdefault("CUFILE_ALLOW_COMPAT_MODE", "true")
    import torch
    from monai.data import ThreadDataLoader
    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet
    from monai.transforms import Compose, EnsureTyped, LoadImaged, RandFlipd, RandSpatialCropd, ScaleIntensityd
    from monai.utils import set_determinism

    arm, device, crop, cold = job["arm"], job["device"], [job["crop"]] * 3, job["regime"] == "cold"
    set_determinism(job["seed"])
    keys = ["image", "label"]
    fixed = [
        LoadImaged(keys, reader="NumpyReader", image_only=True, ensure_channel_first=False),
        ScaleIntensityd("image"),
        EnsureTyped(keys),
    ]
    random = [
        RandSpatialCropd(keys, crop, random_size=False),
        *[RandFlipd(keys, prob=0.5, spatial_axis=axis) for axis in range(3)],
    ]
    # Kept on the host, so it is brought to the device behind the first random one; the others do so themselves.
    steps = (
        [*fixed, random[0], EnsureTyped(keys, device=device), *random[1:]] if arm == "persistent" else [*fixed, *random]
    )
    cache = Path(job["folder"]) / f"cache-{arm}-{job['size']}-{job['cases']}"
    items = [case_paths(Path(job["folder"]), job["size"], number) for number in range(job["cases"])]
    transform = Compose(steps).set_random_state(job["seed"])
    data = dataset(arm, items, transform, cache, device)
    if job["fill"]:
        begun = time.perf_counter()
        for number in range(len(data)):
            data._cachecheck(data.data[number])
        return {"filled": time.perf_counter() - begun}
    order = torch.Generator().manual_seed(job["seed"])
    loader = ThreadDataLoader(data, num_workers=0, batch_size=2, shuffle=True, generator=order)

    def batches() -> Any:
        for batch in loader:
            yield tuple(torch.as_tensor(batch[key]).to(device) for key in keys)

    crc, found_any = 0, not job["check"]
    for _ in range(job["check"]):
        if cold:
            drop_folder(cache)
        for pair in batches():
            found_any = True
            for one in pair:
                crc = zlib.crc32(one.cpu().numpy().tobytes(), crc)
    if not found_any:
        raise SystemExit("its loader gives no batch: the thread that reads may have failed")
    set_determinism(job["seed"])
    order.manual_seed(job["seed"])
    transform.set_random_state(job["seed"])
    model = UNet(3, 1, 2, (16, 32, 64, 128), (2, 2, 2), num_res_units=2).to(device)
    optimizer, loss = torch.optim.Adam(model.parameters(), 1e-3), DiceCELoss(to_onehot_y=True, softmax=True)
    epochs = []
    for _ in range(job["epochs"]):
        if cold:
            drop_folder(cache)
        begun, waited, hits, both, losses = time.perf_counter(), 0.0, 0.0, 0.0, 0.0
        asked = time.perf_counter()
        for image, label in batches():
            waited += time.perf_counter() - asked
            with torch.autocast(device.partition(":")[0], dtype=torch.bfloat16):
                found = model(image)
            error = loss(found.float(), label.float())
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
            inside = found.argmax(1, keepdim=True)
            hits += float((inside * label).sum())
            both += float(inside.sum() + label.sum())
            losses += float(error)
            asked = time.perf_counter()
        dice, seconds = 2 * hits / max(1.0, both), time.perf_counter() - begun
        # A loss that is no number is told: its Dice is 0 from then on.
        epochs.append({"seconds": seconds, "waited": waited, "dice": dice, "loss": str(losses)})
    return {"epochs": epochs, "crc": crc}


def run(job: dict[str, Any], limit: float) -> dict[str, Any]:
    code, out, err = ended([sys.executable, __file__, "--job", json.dumps(job)], limit)
    if code:
        raise Cannot(last_line(err))
    return dict(json.loads(out.strip().splitlines()[-1]))


def why_not(arm: str, device: str) -> str | None:
    missing = [name for name in NEEDS[arm] if importlib.util.find_spec(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return "it reads to a GPU" if arm == "gds" and device == "cpu" else None


def reached(epochs: list[dict[str, float]]) -> float | None:
    """Seconds to Dice 0.75."""
    total = 0.0
    for epoch in epochs:
        total += epoch["seconds"]
        if epoch["dice"] >= REACHED:
            return total
    return None


def table(lines: list[dict[str, Any]]) -> list[str]:
    text = [
        "",
        "| regime | arm | s an epoch | of it waited | s to Dice 0.75 | last Dice (seeds) |",
        "|---|---|---|---|---|---|",
    ]
    notes = []
    for regime in dict.fromkeys(line["regime"] for line in lines):
        for arm in ARMS:
            mine = [line for line in lines if (line["regime"], line["arm"]) == (regime, arm)]
            done = [line for line in mine if "epochs" in line]
            notes += [f"{regime}, {arm}, seed {line['seed']}: {line['skipped']}" for line in mine if "skipped" in line]
            if not done:
                continue
            # The first epoch makes the context and the kernels.
            later = [epoch for line in done for epoch in line["epochs"][1:] or line["epochs"]]
            seconds, waited = (statistics.median(epoch[key] for epoch in later) for key in ("seconds", "waited"))
            times = [reached(line["epochs"]) for line in done]
            known = [one for one in times if one is not None]
            to = f"{statistics.median(known):.1f}" if len(known) == len(times) else "not reached"
            dice = ", ".join(f"{line['epochs'][-1]['dice']:.4f}" for line in done)
            text.append(f"| {regime} | {LABELS.get(arm, arm)} | {seconds:.3f} | {waited:.3f} | {to} | {dice} |")
        for seed in dict.fromkeys(line["seed"] for line in lines):
            alike = [one for one in lines if (one["regime"], one["seed"]) == (regime, seed) and "epochs" in one]
            if len(alike) > 1:
                inputs = "equal" if len({one["crc"] for one in alike}) == 1 else "DIFFERENT"
                spread = max(
                    max(dice) - min(dice)
                    for dice in zip(*([epoch["dice"] for epoch in one["epochs"]] for one in alike), strict=True)
                )
                notes.append(
                    f"{regime}, seed {seed}: inputs {inputs}, Dice of an epoch differs by {spread:.4f} at most"
                )
    return [*text, "", *notes, "published: 28 049 s (PersistentDataset), 18 159 s (GDSDataset) to Dice 0.75"]


def plot(lines: list[dict[str, Any]], path: Path) -> None:
    """Dice over seconds: a line for each run."""
    colours = {"persistent": "#888888", "gds": "#d08020", "forebay": "#2060c0"}
    done = [line for line in lines if "epochs" in line]
    longest = max((sum(epoch["seconds"] for epoch in line["epochs"]) for line in done), default=1.0)
    text = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 660 380" font-family="sans-serif" font-size="12">']
    text.append('<rect width="660" height="380" fill="white"/><path d="M50 20V340H640" fill="none" stroke="black"/>')
    for line in done:
        total, points = 0.0, []
        for epoch in line["epochs"]:
            total += epoch["seconds"]
            points.append(f"{50 + 590 * total / longest:.1f},{340 - 320 * epoch['dice']:.1f}")
        dash = ' stroke-dasharray="5 3"' if line["regime"] == "cold" else ""
        text.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colours[line["arm"]]}"{dash}/>')
    for number, arm in enumerate(ARMS):
        text.append(f'<text x="480" y="{280 + 16 * number}" fill="{colours[arm]}">{arm}</text>')
    text.append(f'<text x="480" y="330">broken: cold</text><text x="560" y="360">{longest:.0f} s</text>')
    text.append('<text x="10" y="30">Dice</text></svg>')
    path.write_text("\n".join(text) + "\n")


def prepare(words: dict[str, Any], arms: list[str], limit: float) -> None:
    """Cases, then the caches of all arms, beside each other. What fails is told by the runs."""
    several = max(1, min(8, len(os.sched_getaffinity(0)), words["cases"] // 4))
    with ThreadPoolExecutor(several) as pool:
        shares = [list(range(words["cases"]))[one::several] for one in range(several)]
        for made in [pool.submit(run, {**words, "numbers": share}, limit) for share in shares if share]:
            made.result()
        about = {"fill": True, "seed": 0, "regime": "cached"}
        for filled in [pool.submit(run, {**words, **about, "arm": arm}, limit) for arm in arms]:
            filled.exception()


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    keys = ("cases", "size", "crop", "epochs", "check", "device")
    words = {**{key: getattr(options, key) for key in keys}, "folder": str(options.folder)}
    results = Results(options.out, words, options.until)
    done = {(line["arm"], line["regime"], line["seed"]) for line in results.lines}
    todo = [
        (arm, regime, seed)
        for regime in options.regimes
        for seed in options.seeds
        for arm in options.arms
        if (arm, regime, seed) not in done
    ]
    able = {arm for arm, _, _ in todo if why_not(arm, options.device) is None}
    try:
        if able:
            prepare(words, sorted(able), options.limit)
        for arm, regime, seed in todo:
            results.check_time()
            about = {"arm": arm, "regime": regime, "seed": seed}
            try:
                why = why_not(arm, options.device)
                if why is not None:
                    raise Cannot(why)
                results.keep(**about, **run({**words, **about, "fill": False}, options.limit))
            except Cannot as error:
                results.keep(**about, skipped=str(error))
            told = results.lines[-1].get("skipped", "done")
            print(f"{regime} | seed {seed} | {arm} | {told}", file=sys.stderr, flush=True)
    except OutOfTime as late:
        print(late, file=sys.stderr)
    except Cannot as error:
        sys.exit(f"error: cannot make the cases: {error}")
    return results.lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--quick", action="store_true", help="16 cases, 6 epochs, 1 seed: some minutes on a GPU")
    parser.add_argument("--arms", type=lambda text: text.split(","), default=list(ARMS))
    plain = {"cases": 64, "size": 160, "crop": 128, "epochs": 20, "check": 1}
    for name, default in plain.items():
        parser.add_argument(f"--{name}", type=int, help=f"default {default}")
    parser.add_argument("--seeds", type=lambda text: [int(one) for one in text.split(",")])
    parser.add_argument("--regimes", type=lambda text: text.split(","), default=["cached", "cold"])
    parser.add_argument("--device", help="by default cuda:0 if torch sees it, else cpu")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds of a run")
    parser.add_argument("--until", type=float, default=0.0, help="seconds after which no further run begins")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job = json.loads(options.job)
        print(json.dumps(make_cases(job) if "numbers" in job else train(job)), flush=True)
        return 0
    if options.folder is None:
        parser.error("name a folder for the files")
    unknown = {*options.arms} - {*ARMS} | {*options.regimes} - {"cached", "cold"}
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    quick = {"cases": 16, "epochs": 6} if options.quick else {}
    for name, default in plain.items():
        if getattr(options, name) is None:
            setattr(options, name, quick.get(name, default))
    options.seeds = options.seeds or ([0] if options.quick else [0, 1, 2])
    options.device = options.device or default_device()
    options.folder.mkdir(parents=True, exist_ok=True)
    options.out = options.out or options.folder / "dice.jsonl"
    lines = measure(options)
    print("\n".join(table(lines)))
    if options.plot is not None:
        plot(lines, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
