"""Records of files: one at a time, in batches, for torch's DataLoader, in other processes."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay
import forebay.data as data
from forebay import errors

numpy = pytest.importorskip("numpy", reason="these tests compare with numpy's arrays")

ROWS = 300


def host(array: Any) -> Any:
    return array.numpy() if isinstance(array, forebay.Array) else numpy.asarray(array)


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """Three files of 100 records of 3 × 4 numbers, and the numbers."""
    array = numpy.random.default_rng(1).integers(-9999, 9999, (ROWS, 3, 4), dtype="int16")
    for number in range(3):
        array[100 * number : 100 * number + 100].tofile(tmp_path / f"{number}.bin")
        numpy.save(tmp_path / f"{number}.npy", array[100 * number : 100 * number + 100])
    return array


def paths(folder: Path, kind: str) -> list[Path]:
    return [folder / f"{number}.{kind}" for number in range(3)]


@pytest.mark.parametrize("kind", ["bin", "npy"])
def test_records_of_many_files_are_one_data_set(tmp_path: Path, table: Any, device: str, kind: str) -> None:
    words: dict[str, Any] = {"framework": "native", "device": device}
    files = paths(tmp_path, kind)
    records = data.raw(files, "int16", (3, 4), **words) if kind == "bin" else data.npy(files, **words)
    assert len(records) == ROWS
    assert numpy.array_equal(host(records[123]), table[123])
    assert numpy.array_equal(host(records[-1]), table[-1])
    rows = [299, 0, 100, 99, 99, -300, 201]
    for given in (rows, tuple(rows), numpy.array(rows), numpy.array(rows, "int64").tobytes()):
        assert numpy.array_equal(host(records[given]), table[rows])
    assert numpy.array_equal(host(records[95:205:7]), table[95:205:7])
    assert host(records[[]]).shape == (0, 3, 4)
    for wrong in (300, [5, 300], [-301], numpy.array([0, 1 << 62])):
        with pytest.raises(IndexError, match="out of bounds"):
            records[wrong]


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_batches_of_each_framework(tmp_path: Path, table: Any, framework: str) -> None:
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    records = data.raw(paths(tmp_path, "bin"), "int16", (3, 4), framework=framework, device="cpu")
    batch = records[[7, 250]]
    assert type(batch).__module__.split(".")[0] in (framework, "jaxlib")
    assert numpy.array_equal(numpy.asarray(batch), table[[7, 250]])
    assert numpy.array_equal(numpy.stack([numpy.asarray(record) for record in records]), table)


def test_header_stride_and_count(tmp_path: Path) -> None:
    tokens = numpy.arange(1000, dtype="uint16")
    (tmp_path / "a").write_bytes(b"head" + tokens.tobytes() + b"x")
    with pytest.raises(errors.InvalidInputError, match="whole record"):
        data.raw(tmp_path / "a", "uint16", 9, header=4, framework="numpy")
    windows = data.raw(tmp_path / "a", "uint16", 9, header=4, stride=16, framework="numpy")
    assert len(windows) == (2000 - 18 + 1) // 16 + 1
    assert numpy.array_equal(windows[[1, 123]], [tokens[8:17], tokens[984:993]])
    assert len(data.raw(tmp_path / "a", "uint16", 9, header=4, count=3, framework="numpy")) == 3
    with pytest.raises(errors.InvalidInputError, match="beyond the end"):
        data.raw(tmp_path / "a", "uint16", 9, header=4, count=112, framework="numpy")


def test_files_as_records(tmp_path: Path, table: Any) -> None:
    volumes = data.npy(paths(tmp_path, "npy"), each="file", framework="numpy")
    assert (len(volumes), volumes.shape) == (3, (100, 3, 4))
    assert numpy.array_equal(volumes[[2, 0]], [table[200:], table[:100]])


def test_npy_files_that_cannot_be_rows(tmp_path: Path) -> None:
    cases = {
        "Fortran": numpy.asfortranarray(numpy.zeros((3, 4))),
        "elements of": numpy.array(["a"]),
        "without dimensions": numpy.float32(1),
    }
    for words, array in cases.items():
        numpy.save(tmp_path / "a.npy", array)
        with pytest.raises(errors.Error, match=words):
            data.npy(tmp_path / "a.npy", framework="numpy")
    numpy.save(tmp_path / "a.npy", numpy.array([{}, None], dtype=object), allow_pickle=True)
    with pytest.raises(errors.UnsupportedError):
        data.npy(tmp_path / "a.npy", framework="numpy")
    numpy.save(tmp_path / "a.npy", numpy.zeros((2, 3), "f4"))
    numpy.save(tmp_path / "b.npy", numpy.zeros((2, 4), "f4"))
    with pytest.raises(errors.InvalidInputError, match="different records"):
        data.npy([tmp_path / "a.npy", tmp_path / "b.npy"], framework="numpy")


def test_ranges_of_any_length(tmp_path: Path, device: str) -> None:
    texts = [b"abcd", b"", b"efghijkl", b"mn", b"opqr"]
    (tmp_path / "a").write_bytes(b"".join(texts[:3]))
    (tmp_path / "b").write_bytes(b"".join(texts[3:]))
    found = data.ranges(
        [tmp_path / "a", tmp_path / "b"],
        offsets=[0, 4, 4, 0, 2],
        lengths=[len(text) for text in texts],
        file=[0, 0, 0, 1, 1],
        framework="native",
        device=device,
    )
    batch = found[[4, 1, 2, 0, 3, 2]]
    assert host(batch.values).tobytes() == b"opqrefghijklabcdmnefghijkl"
    assert host(batch.offsets).tolist() == [0, 4, 4, 12, 16, 18, 26]
    assert host(found[1]).shape == (0,)
    assert host(found[3]).tobytes() == b"mn"
    assert host(found[[1, 1]].values).shape == (0,)


def test_files_of_any_lengths_as_records(tmp_path: Path, device: str) -> None:
    texts = {"a": b"abcd", "b": b"", "c": b"efghijkl"}
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text)
    found = data.ranges([tmp_path / name for name in texts], framework="native", device=device)
    batch = found[[2, 1, 0]]
    assert len(found) == 3 and host(batch.values).tobytes() == b"efghijklabcd"
    assert host(batch.offsets).tolist() == [0, 8, 8, 12]
    with pytest.raises(errors.InvalidInputError, match="a record is no whole number of elements"):
        data.ranges([tmp_path / "a"], dtype="int64", framework="native", device=device)


def test_columns_side_by_side(tmp_path: Path, table: Any) -> None:
    labels = numpy.arange(ROWS) % 10
    both = data.zipped(image=data.npy(paths(tmp_path, "npy"), framework="numpy"), label=labels)
    batch = both[[5, 250]]
    assert list(batch) == ["image", "label"]
    assert numpy.array_equal(batch["image"], table[[5, 250]])
    assert batch["label"].tolist() == [5, 0]
    assert both[7]["label"] == 7
    assert both["image"] is both.columns["image"]
    with pytest.raises(errors.InvalidInputError, match="different numbers"):
        data.zipped(image=data.npy(paths(tmp_path, "npy"), framework="numpy"), label=labels[:-1])
    for beyond in (range(1 << 62), range(1 << 70)):
        with pytest.raises(errors.InvalidInputError, match="different numbers"):
            data.zipped(image=both["image"], label=beyond)


def test_another_device_and_framework(tmp_path: Path, table: Any, gpu: str) -> None:
    records = data.raw(paths(tmp_path, "bin"), "int16", (3, 4), framework="numpy")
    moved = records.to(gpu, "native")
    assert (str(moved.device), str(records.device)) == (gpu, "cpu")
    assert numpy.array_equal(host(moved[[3, 299]]), table[[3, 299]])


def test_records_go_to_other_processes(tmp_path: Path, table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    records = data.zipped(x=data.raw(["0.bin", "1.bin", "2.bin"], "int16", (3, 4), framework="numpy"))
    records[0]
    sent = pickle.dumps(records)
    monkeypatch.chdir("/")
    again = pickle.loads(sent)
    assert numpy.array_equal(again[[299, 1]]["x"], table[[299, 1]])
    assert again.fingerprint == records.fingerprint


def _read_in_child(records: Any, expected: Any, code: Any) -> None:
    code.value = 1 + int(numpy.array_equal(records[[299, 1]], expected))


def test_a_forked_child_reads(tmp_path: Path, table: Any) -> None:
    """Host memory works after a fork; the child opens the files anew."""
    records = data.raw(paths(tmp_path, "bin"), "int16", (3, 4), framework="numpy")
    records[[5, 6]]
    context = multiprocessing.get_context("fork")
    code = context.Value("i", 0)
    child = context.Process(target=_read_in_child, args=(records, table[[299, 1]], code))
    child.start()
    child.join(30)
    assert (child.exitcode, code.value) == (0, 2)


def test_a_forked_child_says_why_a_gpu_is_not_there(
    tmp_path: Path, table: Any, gpu: str, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = run_python(
        """
import os, sys, forebay.data
records = forebay.data.raw(sys.argv[1], "int16", (3, 4), framework="native", device="cuda:0")
records[[5, 6]]
child = os.fork()
if not child:
    try:
        records[[5, 6]]
    except Exception as error:
        os.write(1, f"{type(error).__name__}: {error}".encode())
    os._exit(0)
os.waitpid(child, 0)
""",
        str(tmp_path / "0.bin"),
    )
    assert done.returncode == 0, done.stderr
    assert "fork" in done.stdout and "Error" in done.stdout, done.stdout


def test_data_loader_as_it_is(tmp_path: Path, table: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: its DataLoader is not tested")
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler

    records = data.raw(paths(tmp_path, "bin"), "int16", (3, 4), framework="torch", device="cpu")
    expected = torch.from_numpy(table)
    plain = torch.cat(list(DataLoader(records, batch_size=64)))
    assert torch.equal(plain, expected)
    collated = list(DataLoader(records, batch_size=64, collate_fn=data.collate))
    assert torch.equal(torch.cat(collated), expected)
    sampler = BatchSampler(RandomSampler(records), batch_size=64, drop_last=False)
    random = torch.cat(list(DataLoader(records, batch_size=None, sampler=sampler)))
    assert torch.equal(random.sort(0).values, expected.sort(0).values)
    both = data.zipped(x=records, y=torch.arange(ROWS))
    batches = list(DataLoader(both, batch_size=100))
    assert torch.equal(torch.cat([batch["x"] for batch in batches]), expected)
    assert torch.equal(torch.cat([batch["y"] for batch in batches]), torch.arange(ROWS))


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_data_loader_with_workers(tmp_path: Path, table: Any, context: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: its DataLoader is not tested")
    from torch.utils.data import DataLoader

    records = data.raw(paths(tmp_path, "bin"), "int16", (3, 4), framework="torch", device="cpu")
    records[0]
    loader = DataLoader(records, batch_size=64, num_workers=2, multiprocessing_context=context, timeout=60)
    assert torch.equal(torch.cat(list(loader)), torch.from_numpy(table))


def test_device_memory_too_small(tmp_path: Path, gpu: str) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.truncate(1 << 42)
    records = data.raw(tmp_path / "a", "uint8", 1 << 40, framework="native", device=gpu)
    with pytest.raises(errors.DeviceOutOfMemoryError, match="no memory for a batch"):
        records[[0, 1] * 100]


def test_a_billion_samples(tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Opening, resuming at sample 7 × 10⁸, and memory, in a process of its own."""
    path = tmp_path / "a.bin"
    with path.open("wb") as file:
        try:
            file.truncate(64 * 10**9)
        except OSError as error:
            pytest.skip(f"the file system has no files of 64 GB: {error}")
    done = run_python(
        """
import pathlib, sys, time
import numpy, forebay, forebay.data as data
data.Loader, data.raw, forebay.device_count()

def memory():
    status = pathlib.Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in status if line.startswith(("RssAnon", "RssShmem"))) / 1024

before, opened, resumed = memory(), [], []
# The best of some: other processes have the machine, too.
for _ in range(7):
    started = time.perf_counter()
    records = data.raw(sys.argv[1], "uint8", 64, framework="numpy")
    loader = data.Loader(records, 256)
    opened.append(time.perf_counter() - started)
    state = {**loader.state_dict(), "position": 7 * 10**8}
    started = time.perf_counter()
    loader.load_state_dict(state)
    batch = next(iter(loader))
    resumed.append(time.perf_counter() - started)
grown = memory() - before
assert len(records) == 10**9 and batch.shape == (256, 64)
assert min(opened) <= 0.05, opened
assert min(resumed) <= 0.05, resumed
assert grown <= 64, grown
""",
        str(path),
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_names_are_found_without_importing_frameworks(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_python(
        "import sys, forebay.data as data; [getattr(data, name) for name in data.__all__];"
        "print(sorted({'torch', 'numpy', 'jax', 'cupy', 'monai'} & set(sys.modules)))"
    )
    assert done.stdout == "[]\n", done.stdout + done.stderr


@pytest.mark.parametrize("one", [{"image": [1, 2], "label": 3}, "some/path", b"bytes"], ids=["dict", "text", "bytes"])
def test_one_sample_is_not_taken_for_many(tmp_path: Path, one: Any) -> None:
    with pytest.raises(errors.InvalidInputError, match="one behind the other"):
        data.pack(one, tmp_path / "a.pack")
    assert not any(tmp_path.iterdir())


def test_a_tuple_of_values_is_no_sample(tmp_path: Path) -> None:
    """As torch's data sets give them: columns have names here."""
    with pytest.raises(errors.InvalidInputError, match="no array") as caught:
        data.pack([(numpy.zeros((2, 3)), 1)], tmp_path / "a.pack")
    assert "label" in caught.value.hints[0] and not any(tmp_path.iterdir())


def test_a_jagged_column_may_be_named_alone(tmp_path: Path) -> None:
    data.pack([{"text": numpy.zeros(length)} for length in (1, 3)], tmp_path / "a.pack", jagged="text")
    assert len(data.packed(tmp_path / "a.pack", framework="numpy", device="cpu")) == 2
