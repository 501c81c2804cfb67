"""forebay.torch: nested states, saves in the background, and storages for torch.distributed.checkpoint."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.distributed.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata  # noqa: E402
from torch.distributed.checkpoint.planner import LoadPlan  # noqa: E402
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list  # noqa: E402

import forebay  # noqa: E402
import forebay.torch as ft  # noqa: E402
from forebay import _forebay, errors  # noqa: E402
from forebay.torch import _container, _crc, _reader  # noqa: E402


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    # torch.distributed.checkpoint warns when it is used by a single process.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch")
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def bytes_of(tensor: Any) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def state_of_everything() -> dict[str, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "fp8": torch.arange(4.0).to(torch.float8_e4m3fn),
        "e8m0": torch.ones(4).to(torch.float8_e8m0fnu),
        "bf16": torch.ones(3, dtype=torch.bfloat16),
        "c128": torch.tensor([1 + 2j], dtype=torch.complex128),
        "flags": torch.tensor([True, False]),
        "scalar": torch.tensor(3),
        "none": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "turned": torch.arange(6.0).reshape(2, 3).t(),
        "conj": torch.tensor([1j]).conj(),
        "plain": [1, (2.5, None, True), {3: "x", (1, "a"): float("inf")}, b"\0\xff", {1, 2}, 1j, 1 << 80, "ü\n"],
        "torch": [torch.Size([1, 2]), torch.float16, torch.device("cpu")],
        "empty": {},
    }


def assert_same(found: Any, want: Any) -> None:
    assert type(found) is type(want)
    if isinstance(want, torch.Tensor):
        assert found.dtype == want.dtype and found.shape == want.shape
        assert bytes_of(found) == bytes_of(want.resolve_conj())
    elif isinstance(want, dict):
        assert list(found) == list(want)
        for key in want:
            assert_same(found[key], want[key])
    elif isinstance(want, (list, tuple)):
        assert len(found) == len(want)
        for left, right in zip(found, want, strict=True):
            assert_same(left, right)
    else:
        assert found == want


# One file.


def test_nested_state_comes_back(tmp_path: Path) -> None:
    state = state_of_everything()
    ft.save(state, tmp_path / "s")
    loaded = ft.load(tmp_path / "s", device="cpu", verify=True)
    assert_same(loaded, state)
    assert loaded["model"]._metadata == state["model"]._metadata
    ft.save(torch.ones(2), tmp_path / "one")
    assert ft.load(tmp_path / "one", "cpu").tolist() == [1, 1]
    ft.save([], tmp_path / "none")
    assert ft.load(tmp_path / "none", "cpu") == []


def test_safetensors_reads_the_tensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    state = state_of_everything()
    ft.save(state, tmp_path / "s")
    found = safetensors.load_file(tmp_path / "s")
    assert bytes_of(found["model.0.weight"]) == bytes_of(state["model"]["0.weight"])
    assert found["bf16"].dtype == torch.bfloat16 and found["turned"].tolist() == state["turned"].tolist()
    assert found["optimizer.state.0.exp_avg"].shape == (3, 4)


def test_shared_bytes_are_kept_once_and_shared_again(tmp_path: Path) -> None:
    base = torch.arange(100_000.0)
    tied = torch.ones(50, 50)
    state = {
        "base": base, "window": base[10:20], "turned": base.reshape(1000, 100).t(),
        "bytes": base.view(torch.uint8)[:40],
        "tied": tied, "again": tied, "alias": tied.detach(),
        "left": torch.zeros(100)[:60],
    }  # fmt: skip
    over = torch.arange(100.0)
    state |= {"front": over[:60], "back": over[40:], "repeated": torch.ones(1).expand(1000, 1000)}
    ft.save(state, tmp_path / "s")
    size = (tmp_path / "s").stat().st_size
    assert size < 400_000 + 10_000 + 400 + 240 + 20_000
    loaded = ft.load(tmp_path / "s", device="cpu", verify=True)
    assert_same(loaded, state)
    assert loaded["tied"] is loaded["again"] and loaded["alias"] is not loaded["tied"]
    loaded["base"][11] = -1
    assert loaded["window"][1] == -1 and loaded["turned"][11, 0] == -1
    loaded["front"][50] = -2
    assert loaded["back"][10] == -2
    loaded["alias"][0, 0] = 7
    assert loaded["tied"][0, 0] == 7
    assert loaded["left"].untyped_storage().nbytes() == 240


def test_names_that_meet_are_kept_apart(tmp_path: Path) -> None:
    state = {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}, "": torch.full((1,), 2.0), "__metadata__": torch.ones(2)}
    ft.save(state, tmp_path / "s")
    assert_same(ft.load(tmp_path / "s", "cpu"), state)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (object(), "tensors, numbers"),
        (defaultdict(int), "dict(value)"),
        (torch.nn.Linear(1, 1), "state_dict()"),
        (torch.eye(2).to_sparse(), "to_dense"),
        (torch.ones(1, device="meta"), "to_empty"),
        ({object(): 1}, "tensors, numbers"),
    ],
)
def test_what_cannot_be_saved_is_refused_with_its_place(value: Any, hint: str, tmp_path: Path) -> None:
    with pytest.raises(errors.UnsupportedError, match="outer.0") as caught:
        ft.save({"outer": [value]}, tmp_path / "s")
    assert hint in caught.value.hints[0]
    assert not list(tmp_path.iterdir())


def test_a_state_that_contains_itself_is_refused(tmp_path: Path) -> None:
    state: dict[str, Any] = {}
    state["again"] = state
    with pytest.raises(errors.InvalidInputError, match="contains itself"):
        ft.save(state, tmp_path / "s")


def test_damage_is_found_and_named(tmp_path: Path) -> None:
    path = tmp_path / "s"
    ft.save({"good": torch.zeros(8), "bad": torch.full((64,), 3.0)}, path)
    raw = bytearray(path.read_bytes())
    raw[raw.rindex(b"\0\0\x40\x40")] ^= 1
    path.write_bytes(raw)
    ft.load(path, "cpu")
    with pytest.raises(errors.IntegrityError, match="tensor=bad"):
        ft.load(path, "cpu", verify=True)


def test_other_files_and_lies_are_refused(tmp_path: Path) -> None:
    import forebay

    path = tmp_path / "s"
    forebay.save_file({"a": torch.ones(1)}, path)
    with pytest.raises(errors.InvalidInputError, match=r"not written by forebay\.torch\.save"):
        ft.load(path, "cpu")
    view = {"blob": "a", "dtype": "float32", "at": 0, "shape": [2], "stride": [1]}
    for told in (
        "no json", "[]", "{}",
        {"version": 1, "tree": {"tensor": 0}, "views": [view]},
        {"version": 1, "tree": {"tensor": 0}, "views": [view | {"shape": [1], "at": 4}]},
        {"version": 1, "tree": {"tensor": 0}, "views": [view | {"shape": [1], "at": -4}]},
        {"version": 1, "tree": {"tensor": 0}, "views": [view | {"shape": [1], "dtype": "load"}]},
        {"version": 1, "tree": {"tensor": 5}, "views": [view]},
        {"version": 1, "tree": {"call": "os.system"}, "views": []},
        {"version": 1, "tree": {"dict": 3}, "views": []},
        {"version": 2, "tree": {}, "views": []},
    ):  # fmt: skip
        text = told if isinstance(told, str) else json.dumps(told)
        forebay.save_file({"a": torch.ones(1)}, path, metadata={"forebay.tree": text})
        with pytest.raises((errors.IntegrityError, errors.UnsupportedError)):
            ft.load(path, "cpu")


def test_files_of_torch_save_are_named(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(3)}, tmp_path / "d.pt")
    with pytest.raises(errors.InvalidInputError, match="torch.save wrote this") as caught:
        ft.load(tmp_path / "d.pt")
    found = eval(caught.value.hints[0], {"forebay": forebay})
    assert torch.equal(found["w"].cpu(), torch.ones(3))


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s"
    ft.save({"a": torch.zeros(2)}, path)

    def fail(*_: object) -> Any:
        raise errors.IOFailedError("no more")

    monkeypatch.setattr(_container, "checksums", fail)
    with pytest.raises(errors.IOFailedError):
        ft.save({"a": torch.ones(2)}, path)
    task = ft.save_async({"a": torch.ones(2)}, path)
    assert isinstance(task.exception(10), errors.IOFailedError)
    with pytest.raises(errors.IOFailedError):
        task.result()
    monkeypatch.undo()
    assert ft.load(path, "cpu")["a"].tolist() == [0, 0]
    assert [found.name for found in tmp_path.iterdir()] == ["s"]


# In the background.


@pytest.mark.parametrize("snapshot", [None, "device", "host"])
def test_tensors_may_change_once_staged(snapshot: Any, tmp_path: Path) -> None:
    state = {"a": torch.ones(1 << 20), "b": [torch.zeros(10).t()], "step": 3}
    task = ft.save_async(state, tmp_path / "s", snapshot=snapshot)
    task.wait_staged(30)
    assert task.staged
    state["a"].fill_(9)
    state["b"][0].fill_(9)
    assert task.result(30) is None and task.done() and task.exception() is None
    loaded = ft.load(tmp_path / "s", "cpu", verify=True)
    assert loaded["a"].eq(1).all() and loaded["b"][0].eq(0).all() and loaded["step"] == 3


class Slow:
    """Holds commits back until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        made = _container.write

        class Held:
            def __init__(self, pending: Any) -> None:
                self.pending = pending

            def commit(held, durable: bool) -> None:  # noqa: N805
                self.go.wait(30)
                held.pending.commit(durable)

            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: object) -> None:
                self.pending.abort()

        def write(*args: Any, **words: Any) -> Any:
            pending, ranges = made(*args, **words)
            return Held(pending), ranges

        monkeypatch.setattr(_container, "write", write)


def test_a_save_whose_thread_cannot_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    write = _container.write

    def kept(*args: Any, **words: Any) -> Any:
        found = write(*args, **words)
        made.append(found[0])
        return found

    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_container, "write", kept)
    monkeypatch.setattr(threading.Thread, "start", refused)
    task = ft.save_async({"a": torch.ones(2)}, tmp_path / "s")
    assert isinstance(task.exception(10), RuntimeError)
    with pytest.raises(ValueError, match="ended already"):
        made[0].commit()
    assert list(tmp_path.iterdir()) == []


def test_saves_to_one_path_appear_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    path = tmp_path / "s"
    tasks = [ft.save_async({"n": n}, path, snapshot=("host", None, "device")[n % 3]) for n in range(6)]
    (tmp_path / "link").symlink_to("s")
    tasks.append(ft.save_async({"n": 6}, tmp_path / "link"))
    assert not path.exists() and not any(task.done() for task in tasks)
    with pytest.raises(errors.OperationTimeoutError):
        tasks[0].result(0.05)
    seen: list[int] = []
    for n, task in enumerate(tasks):
        task.add_done_callback(lambda _, n=n: seen.append(n))
    threading.Timer(0.1, slow.go.set).start()
    ft.save({"n": 7}, path)  # a plain save comes after those in flight
    assert seen == list(range(7)) and all(task.done() for task in tasks)
    assert ft.load(path, "cpu") == {"n": 7}


def test_a_task_can_be_awaited(tmp_path: Path) -> None:
    async def save() -> None:
        await ft.save_async({"a": torch.ones(3)}, tmp_path / "s", snapshot="host")
        with pytest.raises(errors.NotFoundError):
            await ft.save_async({"a": torch.ones(3)}, tmp_path / "none" / "s")

    asyncio.run(save())
    assert (tmp_path / "s").exists()


def run(code: str, **words: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, **words)


def test_exit_waits_for_saves_and_tells_of_failures(tmp_path: Path) -> None:
    code = f"""
import torch, forebay.torch as ft
ft.save_async({{"a": torch.ones(1 << 22)}}, {str(tmp_path / "s")!r}, snapshot="host")
ft.save_async({{"a": 1}}, {str(tmp_path / "none" / "s")!r})
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert ft.load(tmp_path / "s", "cpu", verify=True)["a"].eq(1).all()
    assert f"forebay: the save of {tmp_path / 'none' / 's'} failed: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_killed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    ft.save({"a": 1}, path)
    code = f"""
import os, signal, torch, forebay.torch as ft
from forebay.torch import _container
class Dies:
    def __init__(self, pending): self.pending = pending
    def commit(self, durable): os.kill(os.getpid(), signal.SIGKILL)
made = _container.write
_container.write = lambda *a, **w: (Dies(made(*a, **w)[0]), [])
ft.save_async({{"a": torch.ones(1 << 20)}}, {str(path)!r}).result()
"""
    assert run(code).returncode == -signal.SIGKILL
    assert ft.load(path, "cpu") == {"a": 1}
    ft.save({"a": 2}, path)
    assert [found.name for found in tmp_path.iterdir()] == ["s"]


def test_a_forked_child_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    task = ft.save_async({"a": 1}, tmp_path / "s")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            task.result(5)
            os._exit(1)
        except errors.InvalidInputError:
            os._exit(0)
        finally:
            os._exit(2)
    slow.go.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    task.result(30)


# torch.distributed.checkpoint.


def shards(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("shard-"))


def example(value: float = 1.0) -> dict[str, Any]:
    model = torch.nn.Linear(300, 7)
    with torch.no_grad():
        model.weight.fill_(value)
        model.bias.fill_(value)
    return {
        "model": model.state_dict(), "step": 3, "names": ["a", "b"],
        "fp8": torch.arange(4.0).to(torch.float8_e5m2), "bf16": torch.full((5,), value, dtype=torch.bfloat16),
        "e8m0": torch.ones(4).to(torch.float8_e8m0fnu), "turned": torch.arange(6.0).reshape(2, 3).t(),
        "scalar": torch.tensor(value), "none": torch.zeros(0, 2), "tied": model.weight.detach(),
    }  # fmt: skip


def emptied(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return torch.zeros_like(state)
    if isinstance(state, dict):
        return OrderedDict((key, emptied(value)) for key, value in state.items())
    return type(state)()


def test_dcp_round_trip(tmp_path: Path) -> None:
    state = example()
    writer = ft.CheckpointWriter(tmp_path / "c")
    dcp.save(state, storage_writer=writer)
    assert (writer.written, writer.reused) == (1, 0)
    # The tied weight is there once.
    assert (tmp_path / "c" / shards(tmp_path / "c")[0]).stat().st_size < 20_000
    loaded = emptied(state)
    reader = ft.CheckpointReader(tmp_path / "c", verify=True)
    dcp.load(loaded, storage_reader=reader)
    for name, value in state.items():
        assert_same(loaded[name], value) if name != "model" else assert_same(dict(loaded[name]), dict(value))
    assert set(reader.metadata().state_dict_metadata) >= {"model.weight", "step", "fp8"}


def test_dcp_loads_in_place_and_casts(tmp_path: Path) -> None:
    dcp.save({"w": torch.arange(12.0).reshape(3, 4)}, storage_writer=ft.CheckpointWriter(tmp_path))
    room = torch.zeros(4, 3, dtype=torch.float64).t()
    dcp.load({"w": room}, storage_reader=ft.CheckpointReader(tmp_path))
    assert room.tolist() == torch.arange(12.0).reshape(3, 4).tolist()


def test_shards_are_cut_by_size_and_safetensors_reads_them(tmp_path: Path) -> None:
    state = {f"t{n}": torch.full((1000,), float(n)) for n in range(10)}
    writer = ft.CheckpointWriter(tmp_path, shard_bytes=9000)
    dcp.save(state, storage_writer=writer)
    assert writer.written == len(shards(tmp_path)) == 5
    loaded = emptied(state)
    dcp.load(loaded, storage_reader=ft.CheckpointReader(tmp_path))
    assert all(bytes_of(loaded[name]) == bytes_of(state[name]) for name in state)
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    assert safetensors.load_file(tmp_path / shards(tmp_path)[0])["t1"].eq(1).all()


def test_a_restarted_save_reuses_complete_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {f"t{n}": torch.full((1000,), float(n)) for n in range(6)}
    first = ft.CheckpointWriter(tmp_path, shard_bytes=8000)

    def dies(*_: object, **__: object) -> None:
        raise RuntimeError("killed before the end")

    monkeypatch.setattr(first, "finish", dies)
    with pytest.raises(BaseException, match="killed"):
        dcp.save(state, storage_writer=first)
    with pytest.raises(BaseException, match="no complete checkpoint"):
        dcp.load(emptied(state), storage_reader=ft.CheckpointReader(tmp_path))
    with pytest.raises(errors.NotFoundError):
        ft.CheckpointReader(tmp_path).metadata()

    # One of the three was damaged meanwhile, and one tensor has changed.
    names = shards(tmp_path)
    raw = bytearray((tmp_path / names[0]).read_bytes())
    raw[-1] ^= 1
    (tmp_path / names[0]).write_bytes(raw)
    state["t5"][7] = -1
    second = ft.CheckpointWriter(tmp_path, shard_bytes=8000)
    dcp.save(state, storage_writer=second)
    assert (second.written, second.reused) == (2, 1)
    assert len(shards(tmp_path)) == 3  # what the first attempt left is gone
    loaded = emptied(state)
    dcp.load(loaded, storage_reader=ft.CheckpointReader(tmp_path, verify=True))
    assert all(bytes_of(loaded[name]) == bytes_of(state[name]) for name in state)


@pytest.mark.parametrize("durable", [False, True])
def test_reused_shards_are_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool) -> None:
    state = {"w": torch.ones(1000)}
    dcp.save(state, storage_writer=ft.CheckpointWriter(tmp_path, durable=False))
    name = shards(tmp_path)[0]
    opened, synced = _forebay.open, []

    class Watched:
        def __init__(self, file: Any) -> None:
            self.file = file

        def sync(self) -> None:
            synced.append(self.file.path)
            self.file.sync()

        def __getattr__(self, attribute: str) -> Any:
            return getattr(self.file, attribute)

        def __enter__(self) -> Watched:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

    monkeypatch.setattr(_container._forebay, "open", lambda path: Watched(opened(path)))
    monkeypatch.setattr(
        _container._forebay, "read_safetensors", lambda file, read=_forebay.read_safetensors: read(file.file)
    )
    writer = ft.CheckpointWriter(tmp_path, durable=durable)
    dcp.save(state, storage_writer=writer)
    assert writer.reused == 1
    assert synced == ([str(tmp_path / name)] if durable else [])


def test_a_shard_that_somebody_else_removed_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dcp.save({"w": torch.ones(1000)}, storage_writer=ft.CheckpointWriter(tmp_path))
    old = tmp_path / shards(tmp_path)[0]
    writer = ft.CheckpointWriter(tmp_path)
    write_data = writer.write_data

    def and_remove(*given: Any) -> Any:
        old.unlink()
        return write_data(*given)

    monkeypatch.setattr(writer, "write_data", and_remove)
    dcp.save({"w": torch.zeros(1000)}, storage_writer=writer)
    assert len(shards(tmp_path)) == 1


def test_the_old_checkpoint_stays_until_the_new_one_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dcp.save(example(1), storage_writer=ft.CheckpointWriter(tmp_path))
    writer = ft.CheckpointWriter(tmp_path)
    finish = writer.finish
    seen: list[float] = []

    def look(*args: Any, **words: Any) -> None:
        loaded = emptied(example())
        dcp.load(loaded, storage_reader=ft.CheckpointReader(tmp_path, verify=True))
        seen.append(loaded["scalar"].item())
        finish(*args, **words)

    monkeypatch.setattr(writer, "finish", look)
    dcp.save(example(2), storage_writer=writer)
    assert seen == [1.0]
    loaded = emptied(example())
    dcp.load(loaded, storage_reader=ft.CheckpointReader(tmp_path))
    assert loaded["scalar"] == 2 and len(shards(tmp_path)) == 1


@pytest.mark.parametrize(
    "target",
    [
        lambda: torch.zeros(100, 100, dtype=torch.float16),
        lambda: torch.zeros(100, 100).t(),
        lambda: torch.zeros(100, 200)[:, ::2],
        lambda: torch.zeros(100, 200)[:, :100],
    ],
)
def test_verify_finds_damage_in_what_is_cast_or_strided(target: Any, tmp_path: Path) -> None:
    want = torch.arange(10_000.0).remainder(97).reshape(100, 100)
    dcp.save({"w": want}, storage_writer=ft.CheckpointWriter(tmp_path))
    reader, room = ft.CheckpointReader(tmp_path, verify=True), target()
    dcp.load({"w": room}, storage_reader=reader)
    assert torch.equal(room.float(), want)
    assert reader.bytes_read == 2 * 40_000
    damage_end(tmp_path)
    dcp.load({"w": target()}, storage_reader=ft.CheckpointReader(tmp_path))
    with pytest.raises(BaseException, match="has changed since it was written.*tensor=w"):
        dcp.load({"w": target()}, storage_reader=ft.CheckpointReader(tmp_path, verify=True))


def damage_end(path: Path) -> None:
    shard = path / shards(path)[0]
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 0x40
    shard.write_bytes(raw)


def test_verify_finds_damage_in_what_is_cut_otherwise(tmp_path: Path) -> None:
    """The upper half of a tensor, as another number of ranks reads it: its stored part is checked whole, once."""
    want = torch.arange(20_000.0).reshape(200, 100)
    dcp.save({"w": want}, storage_writer=ft.CheckpointWriter(tmp_path))
    rooms = [torch.zeros(50, 100), torch.zeros(50, 100)]

    def load() -> ft.CheckpointReader:
        reader = ft.CheckpointReader(tmp_path, verify=True)
        told = reader.metadata()
        parts = [ChunkStorageMetadata(torch.Size([at, 0]), torch.Size([50, 100])) for at in (0, 50)]
        items = create_read_items_for_chunk_list("w", told.state_dict_metadata["w"], parts)
        reader.set_up_storage_reader(told, True)
        planner = SimpleNamespace(
            resolve_tensor=lambda item: rooms[item.dest_index.offset[0] // 50], commit_tensor=lambda *_: None
        )
        reader.read_data(LoadPlan(items), planner)
        return reader

    assert load().bytes_read == 2 * 20_000 + 80_000
    assert torch.equal(torch.cat(rooms), want[:100])
    damage_end(tmp_path)
    with pytest.raises(errors.IntegrityError, match="tensor=w"):
        load()


def test_damaged_checkpoints_are_refused(tmp_path: Path) -> None:
    state = {"w": torch.arange(100.0), "n": 3}
    dcp.save(state, storage_writer=ft.CheckpointWriter(tmp_path))
    manifest = tmp_path / "checkpoint.json"
    good = json.loads(manifest.read_text())
    shard = tmp_path / shards(tmp_path)[0]
    place = good["tensors"]["w"]["chunks"][0]
    for change in (
        lambda m: m.update(format="x"),
        lambda m: m.update(version=3),
        lambda m: m.pop("tensors"),
        lambda m: m["tensors"]["w"]["chunks"][0].__setitem__(2, "../" + place[2]),
        lambda m: m["tensors"]["w"]["chunks"][0].__setitem__(4, 5),
        lambda m: m["tensors"]["w"].update(size=[-1]),
        lambda m: m["tensors"]["w"].update(dtype="load"),
    ):
        bad = json.loads(json.dumps(good))
        change(bad)
        manifest.write_text(json.dumps(bad))
        with pytest.raises((errors.IntegrityError, errors.UnsupportedError)):
            ft.CheckpointReader(tmp_path).metadata()
    manifest.write_text("{")
    with pytest.raises(BaseException, match="manifest is damaged"):
        dcp.load(emptied(state), storage_reader=ft.CheckpointReader(tmp_path))
    manifest.write_text(json.dumps(good))
    raw = bytearray(shard.read_bytes())
    raw[place[3]] ^= 1
    shard.write_bytes(raw)
    dcp.load(emptied(state), storage_reader=ft.CheckpointReader(tmp_path))
    with pytest.raises(BaseException, match="tensor=w"):
        dcp.load(emptied(state), storage_reader=ft.CheckpointReader(tmp_path, verify=True))
    shard.write_bytes(raw[: place[3] + 10])
    with pytest.raises(BaseException, match="ShortRead|ends|beyond"):
        dcp.load(emptied(state), storage_reader=ft.CheckpointReader(tmp_path))
    shard.unlink()
    with pytest.raises(BaseException, match="no such file|NotFound"):
        dcp.load(emptied(state), storage_reader=ft.CheckpointReader(tmp_path))


@pytest.mark.parametrize("snapshot", [None, "device", "host"])
def test_dcp_save_async(snapshot: Any, tmp_path: Path) -> None:
    state = example()
    tasks = [ft.CheckpointWriter(tmp_path).save_async(state, snapshot=snapshot)]
    tasks[0].wait_staged(30)
    state["scalar"].fill_(2)
    tasks.append(ft.CheckpointWriter(tmp_path).save_async(state, snapshot=snapshot))
    tasks[1].wait_staged(30)
    state["scalar"].fill_(3)
    for task in tasks:
        task.result(30)
    loaded = emptied(state)
    dcp.load(loaded, storage_reader=ft.CheckpointReader(tmp_path))
    assert loaded["scalar"] == 2


def test_dcp_save_async_tells_of_failures(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    task = ft.CheckpointWriter(tmp_path / "file").save_async(example())
    assert task.staged
    assert task.exception(30) is not None


@pytest.mark.parametrize("stager", ["device", None])
def test_dcp_async_save_of_torch(stager: str | None, tmp_path: Path) -> None:
    words: dict[str, Any] = {"async_stager": ft.DeviceStager()} if stager else {}
    state = example()
    done = dcp.async_save(state, storage_writer=ft.CheckpointWriter(tmp_path), **words)
    if stager:
        done.staging_completion.result(30)
        state["scalar"].fill_(9)
        done.upload_completion.result(30)
    else:
        done.result(30)
    loaded = emptied(state)
    dcp.load(loaded, storage_reader=ft.CheckpointReader(tmp_path))
    assert loaded["scalar"] == 1


RANK = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
import forebay.torch as ft
mode, folder = sys.argv[1:]
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
from torch.distributed.tensor import distribute_tensor
full = torch.arange(64 * 48, dtype=torch.float32).reshape(64, 48)
wide = torch.arange(8 * 2048, dtype=torch.bfloat16).reshape(8, 2048)
odd = torch.arange(7, dtype=torch.int64)
def state(kind, zero):
    shard = {"rows": Shard(0), "columns": Shard(1)}[kind]
    parts = {"full": distribute_tensor(full, mesh, [shard]), "wide": distribute_tensor(wide, mesh, [shard]),
             "odd": distribute_tensor(odd, mesh, [Shard(0)]), "same": distribute_tensor(odd, mesh, [Replicate()])}
    if zero:
        for part in parts.values():
            part.to_local().zero_()
    return {"m": parts, "step": 0 if zero else 5}
if mode == "save":
    writer = ft.CheckpointWriter(folder)
    dcp.save(state("rows", False), storage_writer=writer)
    task = writer.save_async(state("rows", False))
    task.result()
else:
    loaded = state(mode, True)
    reader = ft.CheckpointReader(folder)
    dcp.load(loaded, storage_reader=reader)
    dcp.load(state(mode, True), storage_reader=ft.CheckpointReader(folder, verify=True))
    for name, want in (("full", full), ("wide", wide), ("odd", odd), ("same", odd)):
        assert torch.equal(loaded["m"][name].full_tensor(), want), name
    assert loaded["step"] == 5
    whole = full.nbytes + wide.nbytes
    print("BYTES", reader.bytes_read, whole)
dist.barrier()
dist.destroy_process_group()
# gloo's threads outlive the group here and may still hold a tensor. Where one drops it while the interpreter
# ends, PyTorch aborts the process (pytorch/pytorch#179291). So the interpreter is not ended.
sys.stdout.flush()
os._exit(0)
"""


def ranks(count: int, mode: str, folder: Path, tmp_path: Path) -> list[str]:
    """Runs a program in several processes that talk through gloo."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    common = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    started = [
        subprocess.Popen(
            [sys.executable, str(program), mode, str(folder)], env=common | {"RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(count)
    ]  # fmt: skip
    outputs = []
    try:
        for process in started:
            output, error = process.communicate(timeout=150)
            assert process.returncode == 0, error[-3000:]
            outputs.append(output)
    finally:
        for process in started:
            process.kill()
    return outputs


def test_two_ranks_save_and_any_number_loads(tmp_path: Path) -> None:
    if not torch.distributed.is_gloo_available():
        pytest.skip("torch was built without gloo")
    folder = tmp_path / "c"
    ranks(2, "save", folder, tmp_path)
    assert len(shards(folder)) == 2
    for count, mode in ((1, "rows"), (2, "columns")):
        for output in ranks(count, mode, folder, tmp_path):
            read, whole = map(int, output.split("BYTES")[1].split())
            # Each rank reads its own part; short runs are read with their gaps.
            assert read < whole / count * (1.0 if count == 1 else 1.6) + 20_000


# Pieces.


def test_pieces_cover_exactly_the_part() -> None:
    stored = torch.arange(5 * 6 * 7, dtype=torch.int32).reshape(5, 6, 7)
    raw = bytes_of(stored)
    for start, lengths in (
        ((0, 0, 0), (5, 6, 7)), ((1, 0, 0), (3, 6, 7)), ((1, 2, 0), (3, 3, 7)), ((1, 2, 3), (2, 2, 2)),
        ((4, 5, 6), (1, 1, 1)), ((0, 2, 0), (1, 3, 7)),
    ):  # fmt: skip
        part = stored[tuple(slice(a, a + n) for a, n in zip(start, lengths, strict=True))]
        box = _reader.Box(100, (5, 6, 7), start, lengths, 4)
        plain = torch.zeros(lengths, dtype=torch.int32)
        turned = torch.zeros(lengths[::-1], dtype=torch.int32).permute(2, 1, 0)
        for room in (plain, turned):
            for address, size, offset in _reader.pieces(box, room):
                ctypes.memmove(address, raw[offset - 100 : offset - 100 + size], size)
            assert torch.equal(room, part)
        assert len(list(_reader.pieces(box, torch.zeros(lengths, dtype=torch.int32)))) <= lengths[0] * lengths[1]
    whole = _reader.Box(0, (5, 6, 7), (1, 0, 0), (3, 6, 7), 4)
    assert len(list(_reader.pieces(whole, torch.zeros(3, 6, 7)))) == 1


def test_checksums_of_two_pieces_combine() -> None:
    data = torch.randint(0, 256, (1000,), dtype=torch.uint8)

    def crc(part: Any) -> int:
        return _forebay.checksums([(part.data_ptr(), part.numel())])[0]

    for cut in (1, 7, 64, 999):
        assert _crc.combine(crc(data[:cut]), crc(data[cut:].clone()), 1000 - cut) == crc(data)


def test_importing_says_what_is_missing() -> None:
    code = """
import sys
sys.modules["torch"] = None
import forebay
try:
    forebay.torch
except forebay.errors.UnsupportedError as error:
    print(error, error.hints)
"""
    assert "needs PyTorch" in run(code).stdout


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
@pytest.mark.parametrize("snapshot", [None, "device", "host"])
def test_gpu_tensors(snapshot: Any, tmp_path: Path) -> None:
    state = {"a": torch.ones(1 << 24, device="cuda"), "turned": torch.arange(6.0, device="cuda").reshape(2, 3).t()}
    for _ in range(50):
        state["a"].mul_(2).div_(2)  # work in flight, which the save waits for
    task = ft.save_async(state, tmp_path / "s", snapshot=snapshot)
    task.wait_staged()
    state["a"].fill_(5)
    task.result()
    loaded = ft.load(tmp_path / "s", device="cuda:0", verify=True)
    assert loaded["a"].eq(1).all() and loaded["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]

    task = ft.CheckpointWriter(tmp_path / "c").save_async(state, snapshot=snapshot)
    task.result()
    room = {"a": torch.zeros_like(state["a"]), "turned": torch.zeros(3, 2, device="cuda")}
    dcp.load(room, storage_reader=ft.CheckpointReader(tmp_path / "c", verify=True))
    assert room["a"].eq(5).all() and room["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]


class Interrupted:
    """A file whose transfers are interrupted when they are waited for the first time."""

    def __init__(self, file: Any, calls: list[str]) -> None:
        self.file = file
        self.calls = calls

    def _submit(self, *args: Any) -> Any:
        future, calls = self.file._submit(*args), self.calls

        def result() -> None:
            calls.append("result")
            signal.raise_signal(signal.SIGINT)

        def cancel() -> None:
            calls.append("cancel")

        def exception() -> Any:
            calls.append("exception")
            return future.exception()

        return SimpleNamespace(result=result, cancel=cancel, exception=exception)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *args: object) -> None:
        self.file.close()

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.file, attribute)


def test_an_interrupt_leaves_nothing_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"a": torch.ones(1000), "b": torch.ones(2000)}
    calls: list[str] = []
    blobs = [_container.Blob("a", state["a"], torch.float32)]
    with _forebay.Pending(str(tmp_path / "x")) as pending:
        target: Any = SimpleNamespace(file=Interrupted(pending.file, calls))
        with pytest.raises(KeyboardInterrupt):
            _container._write_blobs(target, blobs, [(0, 4000)], True)
    assert calls == ["result", "cancel", "exception"]

    calls.clear()
    dcp.save(state, storage_writer=ft.CheckpointWriter(tmp_path, shard_bytes=5000))
    assert len(shards(tmp_path)) == 2
    opened = _forebay.open
    reader = ft.CheckpointReader(tmp_path)
    reader.set_up_storage_reader(reader.metadata(), True)
    plan = dcp.DefaultLoadPlanner()
    plan.set_up_planner(state, reader.metadata(), True)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(_forebay, "open", lambda *args: Interrupted(opened(*args), calls))
        reader.read_data(plan.create_local_plan(), plan)
    assert calls == ["result", "cancel", "cancel", "exception", "exception"]
