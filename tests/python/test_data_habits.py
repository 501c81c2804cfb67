"""What programs do with sources and loaders out of habit: numbers of numpy's, masks, threads, forks, pickles, labels in lists."""

from __future__ import annotations

import array
import collections
import contextlib
import os
import pickle
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay.data as data
from forebay import errors, frameworks
from forebay.data import _files

numpy = pytest.importorskip("numpy", reason="these tests compare with numpy's arrays")

import data_files as files  # noqa: E402 (it needs numpy)

ROWS = 1000


@pytest.fixture
def numbers(tmp_path: Path) -> data.Records:
    """Record n is the number n, four times."""
    numpy.repeat(numpy.arange(ROWS, dtype="int32"), 4).tofile(tmp_path / "a.bin")
    return data.raw(tmp_path / "a.bin", "int32", 4, framework="numpy")


def taken(batches: Any) -> list[int]:
    return [int(row) for batch in batches for row in numpy.asarray(batch).reshape(-1, 4)[:, 0]]


# ---- row numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_row_numbers_of_any_width(numbers: data.Records, dtype: str) -> None:
    assert numbers[numpy.array([7, 0, 99], dtype)][:, 0].tolist() == [7, 0, 99]
    torch = pytest.importorskip("torch", reason="torch is not installed: its row numbers are not tested")
    wide = torch.tensor([[7, 1], [0, 1], [99, 1]]).to(getattr(torch, dtype))
    for given in (wide[:, 0], wide[:, 0].contiguous()):
        assert numbers[given][:, 0].tolist() == [7, 0, 99]


@pytest.mark.parametrize("dtype", ["i2", "u2", "i4", "u4", "i8", "u8"])
@pytest.mark.parametrize("order", "<>")
def test_row_numbers_of_any_byte_order_and_layout(numbers: data.Records, dtype: str, order: str) -> None:
    rows = numpy.array([7, 0, 99, -1 if dtype[0] == "i" else 3, 500], order + dtype)
    expected = [7, 0, 99, ROWS - 1 if dtype[0] == "i" else 3, 500]
    wide = numpy.zeros((5, 2), rows.dtype)
    wide[:, 0] = rows
    odd = numpy.frombuffer(b"x" + rows.tobytes(), "uint8")[1:].view(rows.dtype)
    sealed = rows.copy()
    sealed.flags.writeable = False
    held = data.zipped(label=range(ROWS), x=numbers)["label"]
    for given in (rows, wide[:, 0], rows[::-1][::-1], odd, sealed):
        assert numbers[given][:, 0].tolist() == expected
        assert numbers.select(given)[:][:, 0].tolist() == expected
        assert list(held[given]) == expected
        assert [numbers[number][0] for number in given] == expected
    past = numpy.array([ROWS], order + dtype)
    for take in (numbers.__getitem__, numbers.select, held.__getitem__):
        with pytest.raises(IndexError):
            take(past)


def test_ranges_of_row_numbers_take_no_list(numbers: data.Records) -> None:
    assert numbers[range(9, 2, -3)][:, 0].tolist() == [9, 6, 3] and len(numbers[range(0)]) == 0
    for wrong in (range(1 << 62), range(ROWS, ROWS - 2, -1), range(1 << 70), range(1 << 64, 1 << 65)):
        with pytest.raises(IndexError):
            numbers[wrong]
        with pytest.raises(IndexError):
            numbers.select(wrong)


def test_large_unsigned_numbers_do_not_count_from_the_end(numbers: data.Records) -> None:
    with pytest.raises(IndexError, match="record 18446744073709551615 is out of bounds"):
        numbers[numpy.array([2**64 - 1], "uint64")]
    with pytest.raises(IndexError, match=f"record {1 << 70} is out of bounds"):
        numbers[[0, 1 << 70]]
    with pytest.raises(IndexError):
        numbers[[-(2**63)]]


def test_what_is_no_list_of_row_numbers_is_refused(numbers: data.Records) -> None:
    for rows, words in (
        (numpy.ones(ROWS, bool), "cannot be bool"),
        ([True, False], "cannot be bool"),
        ([1, True], "cannot be bool"),
        ("x", "no column 'x'"),
        (None, "cannot be NoneType"),
        (1.5, "cannot be float"),
        (["7"], "cannot be str"),
        ([0, None], "cannot be NoneType"),
        (numpy.array([1.0]), "cannot be float64"),
        (numpy.zeros((2, 2), "int64"), "2 dimensions"),
        (True, "cannot be bool"),
        (numpy.array(True), "cannot be bool"),
        (numpy.array(1.5), "cannot be float64"),
        (b"\1\2", "cannot be bytes"),
        (numpy.ma.array([1, 2], mask=[True, False]), "masked"),
    ):
        with pytest.raises(errors.InvalidInputError, match=words) as caught:
            numbers[rows]
        assert caught.value.hints
    with pytest.raises(TypeError, match="no packed 64-bit integers"):
        numbers.read_async(b"\1\2")
    jagged = data.Jagged(numpy.arange(5), numpy.array([0, 2, 5]))
    for one in (True, numpy.array(True), b"", [True, False], numpy.ma.array([1])):
        with pytest.raises(TypeError, match="record numbers cannot be"):
            jagged[one]
    assert numbers[numpy.array(3)][0] == 3 and jagged[numpy.int8(1)].tolist() == [2, 3, 4]
    held = data.zipped(label=range(ROWS), x=numbers)
    some = numbers.select(range(10))
    for wrong in (numbers, numbers.select, some, some.select, held, held["label"]):
        take = wrong if callable(wrong) else wrong.__getitem__
        for rows in ([1.5], 1.5, None, ["a"]):
            with pytest.raises(TypeError, match="record numbers cannot be") as failed:
                take(rows)
            assert isinstance(failed.value, errors.InvalidInputError) and failed.value.hints
        with pytest.raises(IndexError, match=f"record {1 << 70} is out of bounds"):
            take([0, 1 << 70])


def test_labels_in_any_sequence(numbers: data.Records) -> None:
    """forebay's own arrays have none for them: they stay what they are."""
    labels = [row % 7 for row in range(ROWS)]
    for held in (range(ROWS), collections.UserList(labels), array.array("q", labels), collections.deque(labels)):
        both = data.zipped(x=numbers.to("cpu", "native"), label=held)
        assert both[[8, -1]]["label"] == [held[8], held[-1]]
        assert data.zipped(x=numbers, label=held)[[8]]["label"].dtype == numpy.int64
    assert data.zipped(x=numbers, label=list(numpy.arange(ROWS)))[[8]]["label"].tolist() == [8]
    ragged = [numpy.arange(row) for row in range(ROWS)]
    assert data.zipped(x=numbers, label=ragged)[[2]]["label"][0].tolist() == [0, 1]
    torch = pytest.importorskip("torch", reason="torch is not installed: its labels are not tested")
    for turned in (numpy.arange(ROWS)[::-1], numpy.arange(ROWS)[::-1].astype(">i4")):
        batch = data.zipped(x=numbers.to("cpu", "torch"), label=turned)[[0, 9]]
        assert torch.equal(batch["label"], torch.tensor([ROWS - 1, ROWS - 10]))


def test_a_part_has_columns_and_the_framework_of_the_process(numbers: data.Records) -> None:
    part = data.zipped(x=numbers, label=range(ROWS)).select(range(8, 16))
    assert part["label"][[0, 1]].tolist() == [8, 9] and len(part["x"]) == 8
    for some in (part, part.select([1, 0]), numbers.select([3, 1])):
        again = pickle.loads(pickle.dumps(some))
        assert again.framework is frameworks.get("numpy") and again.fingerprint == some.fingerprint


# ---- what a source is made of ----------------------------------------------------------------------------------------


def test_numpys_numbers_are_numbers(tmp_path: Path, numbers: data.Records) -> None:
    path, number = tmp_path / "a.bin", numpy.int64
    assert data.raw(path, "int32", number(4), framework="numpy").shape == (4,)
    assert data.raw(path, "int32", (number(2), 2), stride=number(16), header=number(0), framework="numpy").shape == (
        2,
        2,
    )
    for shape in (numpy.array([2, 2]), numpy.array([4]), numpy.array(4)):
        assert numpy.prod(data.raw(path, "int32", shape, framework="numpy").shape) == 4
    assert len(list(data.Loader(numbers, number(100), seed=number(3), prefetch=number(1)))) == 10


def test_wrong_sizes_are_told(tmp_path: Path, numbers: data.Records) -> None:
    path = tmp_path / "a.bin"
    calls: list[Callable[[], object]] = [
        lambda: data.raw(path, "int32", 4.0, framework="numpy"),
        lambda: data.raw(path, "int32", (4.5,), framework="numpy"),
        lambda: data.raw(path, "int32", "4", framework="numpy"),
        lambda: data.raw(path, "int32", (0, 3), framework="numpy"),
        lambda: data.raw(path, "int32", 4, stride=0, framework="numpy"),
        lambda: data.raw(path, "int32", 4, stride=1.5, framework="numpy"),
        lambda: data.raw(path, "int32", 4, count=-1, framework="numpy"),
        lambda: data.raw(path, "int32", 4, header=-1, framework="numpy"),
        lambda: data.Loader(numbers, True),
        lambda: data.Loader(numbers, 8.0),  # type: ignore[arg-type]
        lambda: data.Loader(numbers, 8, order="block", block=0),
        lambda: data.Loader(numbers, 8, transform=3),  # type: ignore[arg-type]
        lambda: data.raw(path, None, 4, framework="numpy"),
        lambda: data.zipped(x=numbers, label=None),
        lambda: data.zipped(x=numbers, label=(row for row in range(ROWS))),
        lambda: data.ranges(path, [[0], [1, 2]], [4], framework="numpy"),
        lambda: data.ranges([path, path], [0], [4], file=[7], framework="numpy"),
        data.ranges(path, [0], [4], framework="numpy")[:].nested,
        lambda: data.ranges(path, [0], [4], framework="numpy")[:].record("a"),  # type: ignore[arg-type]
        lambda: data.pack(None, tmp_path / "p"),  # type: ignore[arg-type]
        lambda: data.pack(3, tmp_path / "p"),  # type: ignore[arg-type]
        lambda: data.pack([{}], tmp_path / "p"),
        lambda: data.pack([{"a": 1}, {"b": 1}], tmp_path / "p"),
        lambda: data.pack([{"a": 1}], tmp_path / "p", jagged=3),  # type: ignore[arg-type]
        lambda: data.pack([{"a": 1}], tmp_path / "p", jagged=["a"]),
        lambda: data.pack([{"a": 1}], tmp_path / "p", jagged=["b"]),
        lambda: data.packed(path),
        lambda: data.tar(path),
    ]
    for call in calls:
        with pytest.raises(errors.InvalidInputError) as caught:
            call()
        assert caught.value.hints


def test_folders_and_pipes_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(errors.IsDirectoryError, match="directory"):
        data.raw(tmp_path, "uint8", 4, framework="numpy")
    with pytest.raises(errors.InvalidInputError, match="no regular file"):
        data.raw(tmp_path / "pipe", "uint8", 4, framework="numpy")
    with pytest.raises(errors.InvalidInputError, match="no files"):
        data.raw([], "uint8", 4, framework="numpy")
    with pytest.raises(errors.InvalidInputError, match="not a path"):
        data.raw("a\0b", "uint8", 4, framework="numpy")


def test_files_that_cannot_be_read_have_a_hint(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    for name, read in SOURCES.items():
        for path in (tmp_path / "missing", tmp_path / "a" / "x", ""):
            if name == "pack" and path == tmp_path / "missing":
                continue
            with pytest.raises(errors.Error, match="path=") as caught:
                read(path)
            assert caught.value.hints and not isinstance(caught.value, errors.IsDirectoryError)


SOURCES: dict[str, Callable[[Any], object]] = {
    "raw": lambda given: data.raw(given, "uint8", 1, framework="numpy"),
    "npy": lambda given: data.npy(given, framework="numpy"),
    "ranges": lambda given: data.ranges(given, framework="numpy"),
    "tar": lambda given: data.tar(given, framework="numpy"),
    "mds": lambda given: data.mds(given, framework="numpy"),
    "litdata": lambda given: data.litdata(given, framework="numpy"),
    "megatron": lambda given: data.megatron(given, framework="numpy"),
    "packed": lambda given: data.packed(given, framework="numpy"),
    "pack": lambda given: data.pack([1], given),
    "verify": data.verify,
}


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_no_path_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a line\n")
    with (tmp_path / "a").open("rb") as file:
        for given in (3, None, 1.5, True, file, bytearray(b"a")):
            with pytest.raises(errors.InvalidInputError, match="path") as caught:
                SOURCES[name](given)
            assert caught.value.hints


@pytest.mark.parametrize("name", ["mds", "litdata"])
def test_an_index_stands_for_its_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "mds":
        files.write_mds(tmp_path, {"a": ("int", 8)}, [[{"a": bytes(8)}]])
    else:
        files.write_litdata(tmp_path, ["a"], ["int"], [[[bytes(8)]]])
    monkeypatch.chdir(tmp_path)
    for given in (tmp_path, tmp_path / "index.json", "index.json"):
        assert len(SOURCES[name](given)) == 1  # type: ignore[arg-type]
    other = next(path for path in tmp_path.iterdir() if path.name != "index.json")
    for given in (other, tmp_path / "missing"):
        with pytest.raises(errors.Error, match="path=") as caught:
            SOURCES[name](given)
        assert caught.value.hints == ["give the folder that index.json and its files lie in"]


def test_a_file_of_megatrons_stands_for_both(tmp_path: Path) -> None:
    for prefix in ("m", "n.bin"):
        files.write_megatron(tmp_path / prefix, [[1, 2, 3]], 4, "int32")
        for given in (prefix, f"{prefix}.idx", f"{prefix}.bin", os.fsencode(tmp_path / prefix)):
            path = given if isinstance(given, bytes) else tmp_path / given
            assert data.megatron(path, framework="numpy")[0].tolist() == [1, 2, 3]
    with pytest.raises(FileNotFoundError) as caught:
        data.megatron(tmp_path / "missing.bin")
    assert caught.value.filename == str(tmp_path / "missing.idx")
    assert caught.value.__notes__ == ["hint: give the path of the two files without .idx and .bin"]


def test_columns_that_are_asked_for(tmp_path: Path) -> None:
    files.write_mds(tmp_path / "m", {"a": ("int", 8), "b": ("int", 8)}, [[{"a": bytes(8), "b": bytes(8)}]])
    files.write_litdata(tmp_path / "l", ["a", "b"], ["int", "int"], [[[bytes(8), bytes(8)]]])
    files.write_tar(tmp_path / "t", [("0", {"a": b"1", "b": b"2"})])
    data.pack([{"a": 1, "b": 2}], tmp_path / "p")
    for read, name in ((data.mds, "m"), (data.litdata, "l"), (data.tar, "t"), (data.packed, "p")):
        words: dict[str, Any] = {"framework": "numpy"}
        assert list(read(tmp_path / name, "b", **words)[0]) == ["b"]
        assert list(read(tmp_path / name, ("b", "a"), **words)[0]) == ["b", "a"]
        for wrong in ([], ["c"], "ab"):
            with pytest.raises(errors.InvalidInputError, match="column") as caught:
                read(tmp_path / name, wrong, **words)
            assert caught.value.hints == ["columns: a, b"]
        with pytest.raises(errors.InvalidInputError, match="no column 'c'"):
            read(tmp_path / name, **words)["c"]
        with pytest.raises(errors.InvalidInputError, match="columns cannot be 5"):
            read(tmp_path / name, 5, **words)


def test_big_endian_arrays_are_packed_as_their_values(tmp_path: Path) -> None:
    array = numpy.arange(6, dtype=">f4").reshape(2, 3)
    data.pack(array, tmp_path / "a.pack")
    assert data.packed(tmp_path / "a.pack", framework="numpy")[:].tolist() == array.tolist()


def test_a_file_that_was_replaced_before_its_first_read(tmp_path: Path, numbers: data.Records) -> None:
    """As long as the other: an index of the old one would give pieces of the new one."""
    path = tmp_path / "a.bin"
    sent = pickle.dumps(numbers)
    (tmp_path / "b.bin").write_bytes(path.read_bytes()[::-1])
    os.utime(tmp_path / "b.bin", ns=(1, 1))
    os.replace(tmp_path / "b.bin", path)
    # A worker that starts now, and this process.
    for records in (pickle.loads(sent), numbers):
        with pytest.raises(errors.BusyError, match="changed since"):
            records[[1, 2]]


def test_a_copy_that_keeps_the_time_of_change_is_another_file(
    tmp_path: Path, numbers: data.Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = data.Loader(numbers, 10)
    shutil.copy2(tmp_path / "a.bin", tmp_path / "b.bin")
    os.replace(tmp_path / "b.bin", tmp_path / "a.bin")
    with pytest.raises(errors.BusyError, match="changed since"):
        iter(loader)
    sent = pickle.dumps(loader)
    with pytest.raises(errors.BusyError, match="changed since"):
        iter(pickle.loads(sent))
    # On another machine a copy has the same bytes.
    monkeypatch.setattr(_files, "home", lambda: ("another machine", "its mounts"))
    assert len(taken(pickle.loads(sent))) == ROWS


def test_another_inode_number_is_another_file(tmp_path: Path, numbers: data.Records) -> None:
    """Also where the new file has the times of the old one: it was made within a tick of the clock. chmod changes a time alone."""
    path = str(tmp_path / "a.bin")
    for inode, changed, is_other in ((0, 1, False), (1, 0, True), (1, 1, True)):
        files = _files.FileSet([path])
        assert files._marks is not None
        files._marks = [(files._marks[0][0] + inode, files._marks[0][1] + changed)]
        with pytest.raises(errors.BusyError, match="changed since") if is_other else contextlib.nullcontext():
            files.check()


def test_labels_come_as_the_records_beside_them_do(tmp_path: Path, numbers: data.Records) -> None:
    both = data.zipped(x=numbers, label=[row % 7 for row in range(ROWS)], name=[f"n{row}" for row in range(ROWS)])
    batch = both[[8, 3]]
    assert isinstance(batch["label"], numpy.ndarray) and batch["label"].tolist() == [1, 3]
    assert batch["name"] == ["n8", "n3"]
    with pytest.raises(IndexError):
        both[[ROWS]]
    torch = pytest.importorskip("torch", reason="torch is not installed: its labels are not tested")
    words: dict[str, Any] = {"x": numbers.to("cpu", "torch")}
    for labels in ([row % 7 for row in range(ROWS)], numpy.arange(ROWS) % 7, torch.arange(ROWS) % 7):
        records = pickle.loads(pickle.dumps(data.zipped(label=labels, **words)))
        batch = next(iter(data.Loader(records, 8)))
        assert batch["label"].dtype == torch.int64 and torch.equal(batch["label"], batch["x"][:, 0] % 7)


def test_without_a_device_records_go_to_the_gpu_that_the_process_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that called torch.cuda.set_device(3)."""
    from forebay import frameworks
    from forebay.data import _records
    from forebay.placement import Device

    class Ranks:
        name = "torch"

        def default_device(self) -> Device:
            return Device("cuda", 0)

        def parse_device(self, device: object) -> Device:
            return Device("cuda", 3) if device == "cuda" else Device("cpu")

    monkeypatch.setitem(frameworks._known, "torch", Ranks())  # type: ignore[arg-type]
    assert _records.placed("torch", None)[1] == Device("cuda", 3)
    assert _records.placed("torch", "cpu")[1] == Device("cpu")


def test_parts_for_training_and_validation(numbers: data.Records) -> None:
    whole = taken(numbers)
    assert numbers.select(range(800))[[799, 0, -1]][:, 0].tolist() == [799, 0, 799]
    train, rest = numbers.select(slice(None, 800)), numbers.select(range(999, 799, -1))
    assert taken(train) + taken(rest)[::-1] == whole
    assert sorted(taken(data.Loader(train, 100))) == whole[:800]
    some = pickle.loads(pickle.dumps(numbers.select([5, 3, 3, -1])))
    assert (len(some), taken(some), some[[3, 0]][:, 0].tolist()) == (4, [5, 3, 3, 999], [999, 5])
    assert len({train.fingerprint, rest.fingerprint, some.fingerprint, numbers.fingerprint}) == 4
    with pytest.raises(errors.BusyError):
        data.Loader(numbers.select([1, 2]), 1).load_state_dict(data.Loader(numbers.select([1, 3]), 1).state_dict())
    blocks = data.Loader(train.select(range(100, 300)), 10, order="block", block=20, window=2)
    assert sorted(taken(blocks)) == whole[100:300]
    for wrong in (range(1001), range(-1, 3), [ROWS], [-ROWS - 1]):
        with pytest.raises(errors.InvalidInputError):
            numbers.select(wrong)
    for wrong in ([4], [-5], 4):
        with pytest.raises(IndexError):
            some[wrong]
    assert list(data.Loader(numbers.select([]), 4, drop_last=False)) == []


def test_torchs_subsets_are_sources(numbers: data.Records) -> None:
    utils = pytest.importorskip("torch.utils.data", reason="torch is not installed: its subsets are not tested")
    train, rest = utils.random_split(numbers, [800, 200])
    parts = [taken(data.Loader(part, 50)) for part in (train, utils.Subset(rest, range(100)))]
    subset = data.Loader(utils.Subset(numbers, range(800)), 50)  # type: ignore[arg-type]
    assert subset.records._rows == range(800)  # type: ignore[attr-defined]
    assert set(parts[0]) == set(train.indices) and set(parts[1]) == set(rest.indices[:100])
    with pytest.raises(errors.InvalidInputError, match="not a source") as caught:
        data.Loader(utils.TensorDataset(), 8)  # type: ignore[arg-type]
    assert "DataLoader" in caught.value.hints[1]
    assert "batches of 50, random order" in repr(data.Loader(numbers, 50))


# ---- loaders ---------------------------------------------------------------------------------------------------------


def test_an_iterator_that_ended_stays_at_its_end(numbers: data.Records) -> None:
    running = iter(data.Loader(numbers, 100))
    assert len(list(running)) == 10
    assert next(running, None) is None and list(running) == []


def test_threads_share_an_iterator(numbers: data.Records) -> None:
    running, seen = iter(data.Loader(numbers, 4, drop_last=False)), list[int]()
    barrier = threading.Barrier(8)

    def take() -> None:
        barrier.wait()
        for batch in running:
            seen.extend(batch[:, 0].tolist())

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(seen) == list(range(ROWS))


@pytest.mark.parametrize("order", ["random", "block"])
def test_a_forked_child_begins_a_loop_of_its_own(
    tmp_path: Path, numbers: data.Records, run_python: Callable[..., subprocess.CompletedProcess[str]], order: str
) -> None:
    done = run_python(
        """
import os, sys, forebay.data as data
words = {"block": 20, "window": 2} if sys.argv[2] == "block" else {}
loader = data.Loader(data.raw(sys.argv[1], "int32", 4, framework="numpy"), 10, order=sys.argv[2], **words)
running = iter(loader)
next(running)
child = os.fork()
if not child:
    try:
        next(running)
    except Exception as error:
        os.write(1, f"{type(error).__name__}: {error}\\n".encode())
    os.write(1, f"{sum(len(batch) for batch in loader)}\\n".encode())
    os._exit(0)
os.waitpid(child, 0)
print(10 + sum(len(batch) for batch in running))
""",
        str(tmp_path / "a.bin"),
        order,
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith("InvalidInputError: the batches belong to the process that was forked"), done.stderr
    assert lines[1:] == ["1000", "1000"], done.stdout + done.stderr


def test_a_loader_goes_to_another_process_with_its_place(numbers: data.Records) -> None:
    loader = data.Loader(numbers, 100, seed=5)
    running = iter(loader)
    next(running)
    again = pickle.loads(pickle.dumps(loader))
    assert taken(again) == taken(running)


def test_torch_batches_of_the_host_use_their_memory_again(numbers: data.Records, tmp_path: Path) -> None:
    """And only when the last view is gone."""
    torch = pytest.importorskip("torch", reason="torch is not installed: its memory is not tested")
    array = numpy.random.default_rng(0).integers(0, 1 << 14, (256, 1 << 15), dtype="int16")
    array.tofile(tmp_path / "large.bin")
    records = data.raw(tmp_path / "large.bin", "bfloat16", 1 << 15, framework="torch", device="cpu")
    loader = data.Loader(records, 8, order="sequential", prefetch=1)
    places, kept = set(), []
    for number, batch in enumerate(loader):
        assert batch.dtype == torch.bfloat16 and batch.is_contiguous() and batch.is_leaf
        places.add(batch.data_ptr())
        if number % 4 == 0:
            kept.append((number, batch[3:5]))
    assert len(places) < 16
    for number, view in kept:
        assert numpy.array_equal(view.view(torch.int16).numpy(), array[8 * number + 3 : 8 * number + 5])
