"""`forebay.monai.GDSDataset`: beside MONAI's own data sets, after kills, with files that are damaged, and by MONAI's own tests.

`MONAI_CHECKOUT=/path/to/MONAI pytest tests/python/test_monai.py` runs MONAI's test file for it out of a checkout of MONAI.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed: MONAI's data sets are not tested")
pytest.importorskip("monai", reason="monai is not installed: forebay.monai is not tested")

import data_files as files  # noqa: E402
from monai.data import MetaTensor, PersistentDataset, json_hashing  # noqa: E402
from monai.transforms import Compose, Flip, Identity, RandFlipd, Transform  # noqa: E402

import forebay  # noqa: E402
from forebay.monai import GDSDataset  # noqa: E402

DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]


class Counted(Transform):
    """Makes an item of a number and counts how often."""

    calls = 0

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self.make = make

    def __call__(self, number: Any) -> Any:
        Counted.calls += 1
        return self.make(number)


def dataset(folder: Path, make: Callable[[Any], Any], items: int = 3, **words: Any) -> Any:
    Counted.calls = 0
    return GDSDataset(list(range(items)), Counted(make), folder, "cpu", **words)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, MetaTensor):
        plain = same(one.as_tensor(), other.as_tensor())
        return plain and same(dict(one.meta), dict(other.meta)) and one.applied_operations == other.applied_operations
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)
    return bool(one == other)


def volume(number: int) -> Any:
    meta = {"filename_or_obj": f"{number}.nii", "affine": torch.eye(4) * number, "spacing": numpy.arange(3)}
    return MetaTensor(torch.full((1, 4, 5, 6), float(number)), meta=meta)


ITEMS: dict[str, Callable[[int], Any]] = {
    "array": lambda number: numpy.full((2, 3), number, "int16"),
    "tensor": lambda number: torch.full((2, 3), number),
    "metatensor": volume,
    "dict": lambda number: {
        "image": volume(number),
        "label": numpy.arange(number),
        "name": f"case{number}",
        "age": 3.5,
    },
    "list of dicts": lambda number: [{"image": volume(number), "part": part} for part in range(4)],
    "nested": lambda number: {"a": {"b": [torch.arange(number), (1, "x", None)]}, "flags": [True, False]},
    "nothing": lambda number: {"empty": torch.empty(0, 3), "none": None},
    "turned": lambda number: torch.arange(6).reshape(2, 3).t(),
    "grad": lambda number: torch.ones(3, requires_grad=True),
}


@pytest.mark.parametrize("kind", ITEMS)
def test_all_epochs_are_alike(tmp_path: Path, kind: str) -> None:
    make = ITEMS[kind]
    data = dataset(tmp_path, make)
    first = [data[number] for number in range(3)]
    assert Counted.calls == 3
    second = [data[number] for number in range(3)]
    third = [dataset(tmp_path, make)[number] for number in range(3)]
    assert Counted.calls == 0
    assert same(first, second) and same(first, third)
    expected = make(2)
    if isinstance(expected, (torch.Tensor, numpy.ndarray)):
        assert numpy.array_equal(numpy.asarray(first[2].detach()), torch.as_tensor(expected).detach().numpy())
    assert all(name.suffix == ".forebay" for name in tmp_path.iterdir()) and len(list(tmp_path.iterdir())) == 3


# They were written past the page cache, and so each epoch read them from the disk.
def test_items_stay_in_the_page_cache(tmp_path: Path) -> None:
    data = dataset(tmp_path, lambda number: torch.full((1 << 20,), number), items=2)
    items = [data[0], data[1]]
    for path in tmp_path.iterdir():
        assert files.resident(path) == 1
        os.posix_fadvise(fd := os.open(path, os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    assert same(items, [data[0], data[1]])
    for path in tmp_path.iterdir():
        assert files.resident(path) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(tmp_path: Path, dtype: str) -> None:
    array = (numpy.arange(24).reshape(2, 3, 4) % 2).astype(dtype)
    for make in (lambda _: array, lambda _: torch.from_numpy(array)):
        first = dataset(tmp_path / str(make), make)[0]
        second = dataset(tmp_path / str(make), make)[0]
        for found in (first, second):
            assert found.dtype == torch.from_numpy(array).dtype and numpy.array_equal(found.numpy(), array)
    swapped = numpy.arange(6, dtype=">f8")
    assert dataset(tmp_path / "swapped", lambda _: swapped)[0].tolist() == swapped.tolist()


def test_meta_is_not_shared_between_epochs(tmp_path: Path) -> None:
    data = dataset(tmp_path, ITEMS["dict"])
    for _ in range(3):
        item = data[1]
        assert item["image"].meta["filename_or_obj"] == "1.nii"
        item["image"].meta["filename_or_obj"] = "changed"
        item["image"].zero_()
        item["more"] = 1
    assert float(data[1]["image"].sum()) == 120.0


def test_items_are_what_monais_persistent_dataset_gives(tmp_path: Path) -> None:
    """Random transforms run on cached items, so with equal seeds both give the same batches."""
    items = [{"image": torch.rand(1, 8, 8), "label": torch.rand(1, 8, 8)} for _ in range(4)]
    flips = Compose([RandFlipd(["image", "label"], prob=0.5, spatial_axis=axis) for axis in (0, 1)])
    ours = GDSDataset(items, flips, tmp_path / "a", "cpu")
    theirs = PersistentDataset(items, flips, tmp_path / "b")
    for _ in range(3):
        for number in range(4):
            flips.set_random_state(number)
            one = ours[number]
            flips.set_random_state(number)
            other = theirs[number]
            assert all(torch.equal(torch.as_tensor(one[key]), torch.as_tensor(other[key])) for key in other)


def test_track_meta_and_no_cache(tmp_path: Path) -> None:
    data = dataset(tmp_path, volume, track_meta=False)
    assert type(data[0]) is type(data[0]) is torch.Tensor
    uncached = GDSDataset([1], Counted(volume), None, "cpu")
    assert same(uncached[0], uncached[0]) and isinstance(uncached[0], MetaTensor)


def test_hash_of_transforms_and_set_data(tmp_path: Path) -> None:
    image = numpy.arange(24.0).reshape(2, 3, 4)
    one = GDSDataset([image], Identity(), tmp_path, "cpu", hash_transform=json_hashing)[0]
    data = GDSDataset([image], Flip(1), tmp_path, "cpu", hash_transform=json_hashing)
    assert not torch.equal(torch.as_tensor(one), torch.as_tensor(data[0]))
    data.set_data([image + 1])
    assert list(tmp_path.iterdir()) == []
    assert float(data[0].max()) == 24.0


def test_what_cannot_be_kept_is_said_once(tmp_path: Path) -> None:
    data = dataset(tmp_path, lambda number: {"image": torch.ones(2), "odd": Path("x")})
    with pytest.warns(UserWarning, match="cannot be kept"):
        assert data[0]["odd"] == Path("x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert data[1]["odd"] == Path("x")
    assert list(tmp_path.iterdir()) == []


def test_objects_are_kept_when_they_are_asked_for(tmp_path: Path) -> None:
    data = dataset(tmp_path, lambda number: {"image": torch.ones(2), "odd": Path("x")}, weights_only=False)
    assert same(data[0], data[0]) and Counted.calls == 1


# ---- damage ----------------------------------------------------------------------------------------------------------


def test_damaged_files_are_computed_again(tmp_path: Path) -> None:
    data = dataset(tmp_path, ITEMS["dict"], items=1)
    good = data[0]
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    damaged = [whole[:size] for size in (0, 10, 32, 1000, 4096, len(whole) - 1)] + [whole + b"x"]
    for place in (0, 8, 12, 16, 24, 33, 500):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        damaged.append(bytes(flipped))
    for number, found in enumerate(damaged):
        path.write_bytes(found)
        with pytest.warns(UserWarning, match="computed again"):
            assert same(data[0], good)
        assert Counted.calls == number + 2
        assert len(path.read_bytes()) == len(whole)


def test_checksums_are_compared_when_asked_for(tmp_path: Path) -> None:
    dataset(tmp_path, volume, items=1)[0]
    (path,) = tmp_path.iterdir()
    flipped = bytearray(path.read_bytes())
    flipped[4096 * ((len(flipped) - 1) // 4096)] ^= 1
    path.write_bytes(flipped)
    with pytest.warns(UserWarning, match="computed again"):
        assert float(dataset(tmp_path, volume, items=1, verify=True)[0].sum()) == 0.0
    assert float(dataset(tmp_path, volume, items=1, verify=True)[0].sum()) == 0.0 and Counted.calls == 0


#: A process of its own leaves out what MONAI imports where it is there: four fifths of its start.
PLAIN_MONAI = """
import sys
sys.modules.update(dict.fromkeys(("h5py", "scipy", "torchvision", "transformers")))
"""


def test_killed_during_a_write(tmp_path: Path, start_python: Callable[..., subprocess.Popen[str]]) -> None:
    code = """
import torch
from monai.transforms import Transform
from forebay.monai import GDSDataset
class Large(Transform):
    def __call__(self, number):
        print(number, flush=True)
        return torch.full((1 << 25,), float(number))
data = GDSDataset(list(range(1000)), Large(), sys.argv[1], "cpu")
for number in range(1000):
    data[number]
"""
    for wait in (0.02, 0.1):
        child = start_python(PLAIN_MONAI + code, str(tmp_path))
        assert child.stdout is not None
        child.stdout.readline()
        child.stdout.readline()
        time.sleep(wait)
        child.send_signal(signal.SIGKILL)
        child.wait()
        for path in tmp_path.iterdir():
            assert path.stat().st_size > (1 << 27), path
    data = dataset(tmp_path, lambda number: torch.full((1 << 25,), float(number)), items=5, verify=True)
    for number in range(5):
        assert float(data[number][-1]) == number


def test_a_full_disk_is_said_and_training_goes_on(
    tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = run_python(
        PLAIN_MONAI
        + """
import resource, warnings, torch
from monai.transforms import Identity
from forebay.monai import GDSDataset
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    data = GDSDataset([torch.ones(1 << 18), torch.ones(1 << 18)], Identity(), sys.argv[1], "cpu")
    print(float(data[0].sum()), float(data[1].sum()), sum("cannot be written" in str(one.message) for one in told))
""",
        str(tmp_path),
    )
    assert done.stdout == "262144.0 262144.0 1\n", done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def test_several_ranks_write_one_folder(tmp_path: Path, start_python: Callable[..., subprocess.Popen[str]]) -> None:
    code = """
import torch, warnings
warnings.simplefilter("error")
from monai.transforms import Transform
from forebay.monai import GDSDataset
class Make(Transform):
    def __call__(self, number):
        return {"x": torch.full((100_000,), float(number)), "n": number}
data = GDSDataset(list(range(20)), Make(), sys.argv[1], "cpu", verify=True)
for _ in range(3):
    for number in range(20):
        item = data[number]
        assert item["n"] == number and float(item["x"].sum()) == 100_000.0 * number
"""
    ranks = [start_python(PLAIN_MONAI + code, str(tmp_path)) for _ in range(3)]
    assert [rank.wait(100) for rank in ranks] == [0, 0, 0]
    assert len(list(tmp_path.iterdir())) == 20


# ---- MONAI's caches --------------------------------------------------------------------------------------------------


def write_raw(path: Path, array: Any, meta: dict[str, Any], described: Path) -> None:
    """As MONAI 1.6 writes an array: its bytes, and a description beside them."""
    array.tofile(path)
    torch.save({**meta, "shape": array.shape, "dtype": str(array.dtype)}, described)


def test_caches_that_monais_gds_dataset_wrote(tmp_path: Path) -> None:
    data = dataset(tmp_path, lambda number: pytest.fail("it was computed"))
    names = [tmp_path / (data.hash_func(number).decode() + ".pt") for number in range(3)]
    image, label = numpy.random.rand(2, 3, 4).astype("float32"), numpy.arange(5)
    write_raw(
        Path(f"{names[0]}-image"), image, {"affine": torch.eye(4), "spatial": "RAS"}, Path(f"{names[0]}-image-meta")
    )
    write_raw(Path(f"{names[0]}-label"), label, {}, Path(f"{names[0]}-label-meta"))
    names[0].touch()
    write_raw(names[1], image, {}, Path(f"{names[1]}-meta"))
    write_raw(names[2], image, {"affine": torch.eye(4)}, Path(f"{names[2]}-meta"))
    item = data[0]
    assert type(item["image"]) is MetaTensor and item["image"].meta["spatial"] == "RAS"
    assert numpy.array_equal(item["image"].numpy(), image) and item["label"].tolist() == label.tolist()
    assert type(data[1]) is torch.Tensor and numpy.array_equal(data[1].numpy(), image)
    assert type(data[2]) is MetaTensor


def test_a_short_file_of_monais_is_no_hit(tmp_path: Path) -> None:
    """MONAI takes what a killed run left for a hit."""
    data = dataset(tmp_path, lambda number: torch.ones(2, 3), items=1)
    path = tmp_path / (data.hash_func(0).decode() + ".pt")
    write_raw(path, numpy.zeros((2, 3)), {}, Path(f"{path}-meta"))
    os.truncate(path, 40)
    with pytest.warns(UserWarning, match="MONAI's is computed again"):
        assert torch.equal(data[0], torch.ones(2, 3))
    assert torch.equal(data[0], torch.ones(2, 3)) and Counted.calls == 1


def test_items_that_are_kept_never_change(tmp_path: Path) -> None:
    """Memory is used again when the last tensor that sees it is gone."""
    data = dataset(tmp_path, lambda number: torch.full((64, 64, 64), float(number)), items=3)
    for number in range(3):
        data[number]
    kept = [data[number][1:] for number in range(3) for _ in range(4)]
    assert [int(one.unique()) for one in kept] == [0] * 4 + [1] * 4 + [2] * 4


def test_a_read_waits_for_no_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor is recorded on the consumer's stream when its bytes have arrived, and none is waited for before."""
    data = dataset(tmp_path, lambda number: {"image": torch.ones(2, 3), "none": torch.ones(0)}, items=1)
    data[0]
    told: list[str] = []

    class Told:
        def new(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
            told.append(f"new {shape} {dtype}")
            return torch.zeros(shape, dtype=torch.uint8)

        def hand_out(self, tensor: torch.Tensor) -> None:
            told.append(f"out {float(tensor.sum())}")

    monkeypatch.setattr(forebay.monai, "_memory_of", lambda process, place: Told())
    monkeypatch.setattr(forebay.frameworks, "settle", lambda *_: pytest.fail("a stream was waited for"))
    assert torch.equal(data[0]["image"], torch.ones(2, 3)) and data[0]["none"].shape == (0,)
    assert told[:3] == ["new (24,) U8", "out 6.0", "out 0.0"]


@pytest.mark.skipif(
    os.environ.get("FOREBAY_TEST_GPU") != "real" or not torch.cuda.is_available(), reason="no real GPU is asked for"
)
def test_items_read_beside_a_busy_stream(tmp_path: Path) -> None:
    data = GDSDataset(list(range(4)), Counted(lambda number: torch.full((96, 96, 96), number)), tmp_path, "cuda:0")
    for number in range(4):
        data[number]
    busy = torch.eye(4096, device="cuda:0")
    sums = []
    for turn in range(40):
        busy = busy @ busy
        item = data[turn % 4]
        assert item.device.type == "cuda"
        sums.append(item.sum())
        # Its memory is the next one's, while the sum still waits for the product.
        del item
    assert [int(one) for one in sums] == [turn % 4 * 96**3 for turn in range(40)]


def test_caches_that_monais_persistent_dataset_wrote(tmp_path: Path) -> None:
    items = [{"image": torch.rand(1, 4, 4), "name": "a"}]
    theirs = PersistentDataset(items, Identity(), tmp_path)[0]
    ours = GDSDataset(items, Counted(lambda number: pytest.fail("it was computed")), tmp_path, "cpu")[0]
    assert torch.equal(ours["image"], theirs["image"]) and ours["name"] == "a"


# ---- MONAI's own tests -----------------------------------------------------------------------------------------------


def test_monais_own_tests() -> None:
    """Its file as it is, by the program that runs it on a GPU, too."""
    checkout = os.environ.get("MONAI_CHECKOUT")
    if not checkout:
        pytest.skip(
            "MONAI's tests are neither in its wheel nor in its source archive: MONAI_CHECKOUT=/path/to/MONAI runs them"
        )
    for name in ("parameterized", "nibabel"):
        pytest.importorskip(name, reason=f"MONAI's tests need {name}, not installed")
    command = [sys.executable, str(Path(__file__).with_name("monai_own.py")), checkout, "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0 and done.stdout.endswith("as documented\n"), done.stdout + done.stderr
