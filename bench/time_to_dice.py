#!/usr/bin/env python3
"""Time to Dice: 3-D segmentation with MONAI, the items out of three caches. Equal seeds, so each arm sees the same batches: Dice
for each epoch must be equal, only the seconds differ.

    bench/time_to_dice.py FOLDER [--quick] [--arms persistent,gds,forebay] [--cases 64] [--size 160] [--crop 128] [--epochs 20]
                          [--seeds 0,1,2] [--regimes cached,cold] [--device cuda:0] [--out FILE.jsonl] [--until SECONDS]

Arms: persistent (monai.data.PersistentDataset), gds (monai.data.GDSDataset; needs kvikio, cupy and a GPU), forebay
(forebay.monai.GDSDataset). Cases are synthetic (monai.data.synthetic). Each arm is a process: they are imported, fill their caches
and run their first kernels beside each other (cupy compiles some for a minute), then take turns, one at a time: for each regime
and seed a new model, order and data set. A step that is not measured goes before each run. Cold: the arm's cache is dropped from
the page cache before each epoch. The sum of all inputs' CRC-32C is compared between arms in epochs of their own, before the clock
runs (--check 1 epoch).

Each run is a line of --out (FOLDER/dice.jsonl) with all its epochs, and is not taken again by a command of the same words. A run
that fails, or outlives --limit, is a line that says why; --prepare is the limit of what comes before. The table ends with
seconds an epoch and to Dice 0.75, whether Dice and inputs were equal, and the published figures: 28 049 s with PersistentDataset,
18 159 s with GDSDataset (300 epochs, another machine). --plot FILE.svg draws Dice over seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib.util
import json
import multiprocessing
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from dice_figures import plot, table
from measure import drop
from runs import Cannot, OutOfTime, Results, default_device, last_line

ARMS = ("persistent", "gds", "forebay")
NEEDS = {
    "persistent": ("monai", "torch"),
    "gds": ("monai", "torch", "kvikio", "cupy"),
    "forebay": ("monai", "torch", "forebay"),
}
KEYS = ["image", "label"]


# ---- a process that runs one arm -------------------------------------------------------------------------------------


def case_paths(folder: Path, size: int, number: int) -> dict[str, str]:
    return {key: str(folder / f"{key}-{size}-{number}.npy") for key in KEYS}


def make_case(folder: str, size: int, number: int) -> None:
    """Image and label of a case as .npy files."""
    import numpy
    from monai.data.synthetic import create_test_image_3d

    paths = case_paths(Path(folder), size, number)
    if os.path.exists(paths["label"]):
        return
    state = numpy.random.RandomState(number)
    radius = {"rad_max": size // 5, "rad_min": size // 16, "noise_max": 0.5, "num_seg_classes": 1}
    image, label = create_test_image_3d(size, size, size, channel_dim=0, random_state=state, **radius)
    numpy.save(paths["image"], image.astype("float32"))
    # Written last, and under another name until it is whole: it says that both are there.
    new = Path(folder) / f"new-{number}.npy"
    numpy.save(new, label.astype("uint8"))
    os.replace(new, paths["label"])


def make_cases(job: dict[str, Any]) -> None:
    # Imported once, by the parent of all that make cases.
    import monai.data.synthetic  # noqa: F401

    several = max(1, min(16, len(os.sched_getaffinity(0)), job["cases"]))
    with multiprocessing.get_context("fork").Pool(several) as pool:
        pool.starmap(make_case, [(job["folder"], job["size"], number) for number in range(job["cases"])])


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


class Arm:
    """One arm's data set, in this process."""

    def __init__(self, words: dict[str, Any]) -> None:
        self.name, self.device, self.words = words["arm"], words["device"], words
        folder = Path(words["folder"])
        self.cache = folder / f"cache-{self.name}-{words['size']}-{words['cases']}"
        self.items = [case_paths(folder, words["size"], number) for number in range(words["cases"])]

    def data(self, seed: int) -> tuple[Any, Any]:
        """A new data set, and its transforms."""
        from monai.transforms import Compose, EnsureTyped, LoadImaged, RandFlipd, RandSpatialCropd, ScaleIntensityd

        fixed = [
            LoadImaged(KEYS, reader="NumpyReader", image_only=True, ensure_channel_first=False),
            ScaleIntensityd("image"),
            EnsureTyped(KEYS),
        ]
        random = [
            RandSpatialCropd(KEYS, [self.words["crop"]] * 3, random_size=False),
            *[RandFlipd(KEYS, prob=0.5, spatial_axis=axis) for axis in range(3)],
        ]
        # Kept on the host, so it is brought to the device behind the first random one; the others do so themselves.
        if self.name == "persistent":
            random.insert(1, EnsureTyped(KEYS, device=self.device))
        transform = Compose([*fixed, *random]).set_random_state(seed)
        return dataset(self.name, self.items, transform, self.cache, self.device), transform

    def fill(self) -> dict[str, Any]:
        """Fills the cache, and has all that a batch needs compiled."""
        begun = time.perf_counter()
        data, _ = self.data(0)
        for number in range(len(data)):
            data._cachecheck(data.data[number])
        # Out of the cache.
        data[0]
        return {"filled": time.perf_counter() - begun}

    def train(self, seed: int, regime: str) -> dict[str, Any]:
        """All epochs of one seed."""
        import torch
        from monai.data import ThreadDataLoader
        from monai.losses import DiceCELoss
        from monai.networks.nets import UNet
        from monai.utils import set_determinism

        words, device = self.words, self.device
        data, transform = self.data(seed)
        order = torch.Generator()
        loader = ThreadDataLoader(data, num_workers=0, batch_size=2, shuffle=True, generator=order)

        def batches() -> Any:
            count = 0
            with reading_threads() as failed:
                for batch in loader:
                    count += 1
                    yield tuple(torch.as_tensor(batch[key]).to(device) for key in KEYS)
            # MONAI's loader ends with the thread that reads, without a word.
            if failed:
                raise failed[0]
            if count != len(loader):
                raise RuntimeError(f"its loader gave {count} batches of {len(loader)}")

        def begin() -> None:
            set_determinism(seed)
            order.manual_seed(seed)
            transform.set_random_state(seed)
            if regime == "cold":
                drop_folder(self.cache)

        def step(image: Any, label: Any) -> tuple[Any, Any]:
            with torch.autocast(device.partition(":")[0], dtype=torch.bfloat16):
                found = model(image)
            error = loss(found.float(), label.float())
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
            return found, error

        crc = 0
        for _ in range(words["check"]):
            begin()
            for pair in batches():
                for one in pair:
                    crc = zlib.crc32(one.cpu().numpy().tobytes(), crc)
        model: Any
        epochs: list[dict[str, Any]] = []
        # The first time for the kernels' sake.
        for is_measured in (False, True):
            begin()
            model = UNet(3, 1, 2, (16, 32, 64, 128), (2, 2, 2), num_res_units=2).to(device)
            optimizer, loss = torch.optim.Adam(model.parameters(), 1e-3), DiceCELoss(to_onehot_y=True, softmax=True)
            if not is_measured:
                shape = (2, 1, *[words["crop"]] * 3)
                step(torch.zeros(shape, device=device), torch.zeros(shape, dtype=torch.uint8, device=device))
        for number in range(words["epochs"]):
            if number and regime == "cold":
                drop_folder(self.cache)
            begun, waited, hits, both, losses = time.perf_counter(), 0.0, 0.0, 0.0, 0.0
            asked = time.perf_counter()
            for image, label in batches():
                waited += time.perf_counter() - asked
                found, error = step(image, label)
                inside = found.argmax(1, keepdim=True)
                hits += float((inside * label).sum())
                both += float(inside.sum() + label.sum())
                losses += float(error)
                asked = time.perf_counter()
            dice, seconds = 2 * hits / max(1.0, both), time.perf_counter() - begun
            # A loss that is no number is reported: its Dice is 0 from then on.
            epochs.append({"seconds": seconds, "waited": waited, "dice": dice, "loss": str(losses)})
        return {"epochs": epochs, "crc": crc}


@contextlib.contextmanager
def reading_threads() -> Any:
    """What threads fail with meanwhile."""
    failed: list[BaseException] = []
    before = threading.excepthook
    threading.excepthook = lambda told: failed.append(told.exc_value or RuntimeError(told.exc_type.__name__))
    try:
        yield failed
    finally:
        threading.excepthook = before


def serve(words: dict[str, Any]) -> None:
    """Does jobs, one for each line of standard input, and answers with a line each."""
    # What libraries print is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if words["arm"] == "gds":
        # Its reads go through NVIDIA's library, not by KvikIO's own POSIX calls. Asked when KvikIO is loaded, as it is by MONAI.
        os.environ.setdefault("KVIKIO_COMPAT_MODE", "OFF")
        os.environ.setdefault("CUFILE_ALLOW_COMPAT_MODE", "true")
    import monai.data
    import monai.losses
    import monai.networks.nets  # noqa: F401

    arm = Arm(words)
    for line in sys.stdin:
        job = json.loads(line)
        # Its stack is printed shortly before its time is over.
        faulthandler.dump_traceback_later(max(0.1, job["limit"] - 1.0), file=sys.stderr)
        try:
            answer = arm.train(job["seed"], job["regime"]) if "seed" in job else arm.fill()
        except (Exception, SystemExit) as error:
            told = str(error).strip().splitlines() or [""]
            answer = {"skipped": f"{type(error).__name__}: {told[0]}"[:300]}
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(answer), file=answers, flush=True)


# ---- the process that asks them --------------------------------------------------------------------------------------


class Asked:
    """A process that serves. It ends with this one, or when it outlives a limit."""

    def __init__(self, *command: str) -> None:
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process)
        self.why = ""
        self._child = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, start_new_session=True,
        )  # fmt: skip

    def ask(self, limit: float, **job: Any) -> dict[str, Any]:
        """The answer to a job.

        Raises:
            Cannot: it fails, ends or is not done after ``limit`` seconds. One that ended is not asked again.
        """
        assert self._child.stdin is not None and self._child.stdout is not None
        if self.why:
            raise Cannot(self.why)
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.write(json.dumps({**job, "limit": limit}) + "\n")
            self._child.stdin.flush()
        ready, _, _ = select.select([self._child.stdout], [], [], limit)
        line = self._child.stdout.readline() if ready else ""
        if not line:
            self.end()
            self.errors.seek(0)
            told = self.errors.read()
            self.why = last_line(told) if ready else f"not done after {limit:.0f} s; it was in {innermost(told)}"
            raise Cannot(self.why)
        answer = dict(json.loads(line))
        if "skipped" in answer:
            raise Cannot(answer["skipped"])
        return answer

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()


def innermost(told: str) -> str:
    """Where each thread is, in what faulthandler wrote."""
    found = re.findall(r'first\):\n  File "[^"]*?([^/"]+)", line (\d+) in (\S+)', told)
    return ", ".join(f"{name} ({file}:{line})" for file, line, name in found)[:250] or "its imports"


def why_not(arm: str, device: str) -> str | None:
    missing = [name for name in NEEDS[arm] if importlib.util.find_spec(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return "it reads to a GPU" if arm == "gds" and device == "cpu" else None


def made_cases(words: dict[str, Any], limit: float) -> None:
    begun = Asked(__file__, "--cases-of", json.dumps(words))
    try:
        begun.ask(limit)
    except Cannot as error:
        sys.exit(f"error: cannot make the cases: {error}")
    finally:
        begun.end()


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
    names = dict.fromkeys(arm for arm, _, _ in todo)
    reasons = {arm: why for arm in names if (why := why_not(arm, options.device)) is not None}
    arms = {arm: Asked(__file__, "--arm", json.dumps({**words, "arm": arm})) for arm in names if arm not in reasons}

    def filled(arm: str) -> None:
        try:
            answer = arms[arm].ask(options.prepare)
            print(f"{arm}: cache filled in {answer['filled']:.1f} s", file=sys.stderr, flush=True)
        except Cannot as error:
            reasons[arm] = f"cannot fill its cache: {error}"

    try:
        if arms:
            made_cases(words, options.prepare)
            with ThreadPoolExecutor(len(arms)) as pool:
                list(pool.map(filled, arms))
        take_turns(todo, results, reasons, lambda arm, **about: arms[arm].ask(options.limit, **about))
    except OutOfTime as late:
        print(late, file=sys.stderr)
    finally:
        for asked in arms.values():
            asked.end()
    return results.lines


def take_turns(
    todo: list[tuple[str, str, int]], results: Results, reasons: dict[str, str], ask: Callable[..., dict[str, Any]]
) -> None:
    for arm, regime, seed in todo:
        results.check_time()
        about = {"arm": arm, "regime": regime, "seed": seed}
        try:
            if arm in reasons:
                raise Cannot(reasons[arm])
            results.keep(**about, **ask(arm, seed=seed, regime=regime))
        except Cannot as error:
            results.keep(**about, skipped=str(error))
        told = results.lines[-1].get("skipped", "done")
        print(f"{regime} | seed {seed} | {arm} | {told}", file=sys.stderr, flush=True)


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
    parser.add_argument("--limit", type=float, default=900.0, help="seconds of a run (default 900)")
    parser.add_argument(
        "--prepare", type=float, default=600.0, help="seconds for imports, cases and caches (default 600)"
    )
    parser.add_argument("--until", type=float, default=0.0, help="seconds after which no further run begins")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--arm", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--cases-of", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm:
        serve(options.arm)
        return 0
    if options.cases_of:
        make_cases(options.cases_of)
        print("{}", flush=True)
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
