"""Four times as many parts take about four times as long, not sixteen times: every reader and writer, by CPU time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import data_files as files
import numpy as np
import pytest

import forebay
from forebay import data, errors

FEW, MANY = 1500, 6000
#: Sixteen would be the square; beside that what does not grow at all.
MOST, FIXED_SECONDS = 8, 0.2


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def check(make: Callable[[int], Callable[[], object]], few_parts: int = FEW, many_parts: int = MANY) -> None:
    few, many = make(few_parts), make(many_parts)
    few()
    limit = MOST * seconds(few) + FIXED_SECONDS
    # Other processes slow single runs down; a square is too slow each time.
    taken = [seconds(many)]
    while len(taken) < 3 and taken[-1] >= limit:
        taken.append(seconds(many))
    assert min(taken) < limit


def arrays(count: int) -> dict[str, Any]:
    array = np.ones(2, "f4")
    return {f"layer.{number}.weight": array for number in range(count)}


def test_safetensors(tmp_path: Path) -> None:
    def make(count: int) -> Callable[[], object]:
        path = tmp_path / f"{count}.safetensors"

        def work() -> None:
            forebay.save_file(arrays(count), path, durable=False)
            forebay.load_file(path, framework="numpy", names=list(arrays(count)))
            with forebay.safe_open(path, "numpy") as file:
                file.get_tensors(list(arrays(count)))
            with pytest.raises(errors.InvalidInputError):
                forebay.load_file(path, framework="numpy", names=["layer.0.weights"])

        return work

    check(make)


def test_archives_of_arrays(tmp_path: Path) -> None:
    def make(count: int) -> Callable[[], object]:
        path = tmp_path / f"{count}.npz"

        def work() -> None:
            forebay.write_npz(path, arrays(count), durable=False)
            forebay.read_npz(path, names=list(arrays(count)))

        return work

    check(make, 2000, 8000)


def test_packed_columns(tmp_path: Path) -> None:
    def make(count: int) -> Callable[[], object]:
        path = tmp_path / str(count)

        def work() -> None:
            data.pack([arrays(count)], path, durable=False)
            data.packed(path, list(arrays(count)), framework="numpy")

        return work

    check(make)


def test_packed_records(tmp_path: Path) -> None:
    def make(count: int) -> Callable[[], object]:
        path = tmp_path / str(count)

        def work() -> None:
            data.pack(
                ({"a": np.ones(2, "f4"), "b": "x" * (number % 5)} for number in range(count)), path, durable=False
            )
            data.packed(path, framework="numpy")[list(range(count))]

        return work

    check(make)


def test_members_of_a_tar_file(tmp_path: Path) -> None:
    def make(count: int) -> Callable[[], object]:
        path = tmp_path / f"{count}.tar"
        files.write_tar(path, [(f"{number:06}", {"bin": b"1", "cls": b"2"}) for number in range(count)])
        return lambda: data.tar(path, framework="numpy")[list(range(count))]

    check(make)


def test_tar_files_of_a_folder(tmp_path: Path) -> None:
    def make(count: int) -> Callable[[], object]:
        folder = tmp_path / str(count)
        folder.mkdir()
        for number in range(count):
            files.write_tar(folder / f"{number}.tar", [(str(number), {"bin": b"1"})])
        return lambda: data.tar(folder, framework="numpy")[list(range(count))]

    check(make, 250, 1000)


@pytest.mark.parametrize("records", ["one", "all"])
def test_shards_of_mds(records: str, tmp_path: Path) -> None:
    def make(count: int) -> Callable[[], object]:
        folder = tmp_path / str(count)
        samples = [{"a": bytes(4), "b": b"text"} for _ in range(count)]
        shards = [samples] if records == "all" else [[sample] for sample in samples]
        files.write_mds(folder, {"a": ("int32", 4), "b": ("str", None)}, shards)
        return lambda: data.mds(folder, framework="numpy")[list(range(count))]

    check(make)


@pytest.mark.parametrize("records", ["one", "all"])
def test_chunks_of_litdata(records: str, tmp_path: Path) -> None:
    def make(count: int) -> Callable[[], object]:
        folder = tmp_path / str(count)
        samples = [[b"abc", bytes(8)]] * count
        chunks = [samples] if records == "all" else [[sample] for sample in samples]
        files.write_litdata(folder, ["a", "n"], ["bytes", "int"], chunks)
        return lambda: data.litdata(folder, framework="numpy")[list(range(count))]

    check(make)


def test_sequences_of_megatron(tmp_path: Path) -> None:
    def make(count: int) -> Callable[[], object]:
        files.write_megatron(tmp_path / str(count), [[1, 2]] * count, 4, "int32")
        return lambda: data.megatron(tmp_path / str(count), framework="numpy")[list(range(count))]

    check(make)


def test_files_of_a_folder(tmp_path: Path) -> None:
    def make(count: int) -> Callable[[], object]:
        folder = tmp_path / str(count)
        folder.mkdir()
        for number in range(count):
            (folder / f"{number}.bin").write_bytes(b"1234")

        def work() -> None:
            data.ranges(folder, framework="numpy")[list(range(count))]

        return work

    check(make)


def test_shards_of_an_index(tmp_path: Path) -> None:
    def make(count: int) -> Callable[[], object]:
        folder = tmp_path / str(count)
        folder.mkdir()
        names = {}
        for number in range(count):
            shard = f"model-{number:05}.safetensors"
            forebay.save_file({f"layer.{number}": np.ones(2, "f4")}, folder / shard, durable=False)
            names[f"layer.{number}"] = shard
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
        return lambda: forebay.load_file(folder, framework="numpy", names=list(names))

    check(make, 100, 400)


@pytest.mark.filterwarnings("ignore")
def test_files_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def make(count: int) -> Callable[[], object]:
        paths = [tmp_path / f"{count}.{kind}" for kind in ("pt", "odd", "old")]
        state: dict[str, Any] = {name: torch.from_numpy(array.copy()) for name, array in arrays(count).items()}
        torch.save(state, paths[0])
        torch.save({**state, "odd": torch.eye(2).to_sparse()}, paths[1])
        torch.save(state, paths[2], _use_new_zipfile_serialization=False)
        return lambda: [forebay.pickles.load(path, "cpu") for path in paths]

    check(make, 500, 2000)


def test_views_of_one_storage() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from forebay.torch import _layout

    def make(count: int) -> Callable[[], object]:
        base = torch.zeros(count + 1)
        # Neighbours overlap, so all are one cluster; and all names are one.
        named = [("same", base[number : number + 2]) for number in range(count)]
        alone = [("same", torch.zeros(1)) for _ in range(count)]
        return lambda: (_layout.plan(named), _layout.plan(alone))

    check(make)


def test_parts_of_a_distributed_tensor() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    metadata = pytest.importorskip("torch.distributed.checkpoint.metadata")
    planner = pytest.importorskip("torch.distributed.checkpoint.planner")
    from forebay.torch import CheckpointReader
    from forebay.torch._manifest import Place

    def make(count: int) -> Callable[[], object]:
        size = torch.Size([1])
        chunks = [metadata.ChunkStorageMetadata(torch.Size([at]), size) for at in range(count)]
        told = metadata.TensorStorageMetadata(metadata.TensorProperties(torch.float32), torch.Size([count]), chunks)
        index = [metadata.MetadataIndex("w", chunk.offsets) for chunk in chunks]
        zero = torch.Size([0])
        kind = planner.LoadItemType.TENSOR
        items = [
            planner.ReadItem(
                type=kind, dest_index=one, dest_offsets=zero, storage_index=one, storage_offsets=zero, lengths=size
            )
            for one in index
        ]

        def work() -> None:
            reader = CheckpointReader("unused")
            reader._metadata = metadata.Metadata({"w": told})
            for item in items:
                reader._box(item, Place("x", 0, 4, 0))

        return work

    check(make)
