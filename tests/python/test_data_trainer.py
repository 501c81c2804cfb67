"""A loader in training loops of others: what accelerate and transformers take apart to go on within an epoch, and torchdata's nodes."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import forebay.data as data
from forebay import errors

numpy = pytest.importorskip("numpy", reason="these tests compare with numpy's arrays")
torch = pytest.importorskip("torch", reason="torch is not installed: its loops are not tested")

ROWS = 100


@pytest.fixture
def numbers(tmp_path: Path) -> data.Records:
    """Record n is the number n."""
    numpy.arange(ROWS, dtype="float32").tofile(tmp_path / "a.bin")
    return data.zipped(x=data.raw(tmp_path / "a.bin", "float32", 1, device="cpu"), labels=torch.arange(ROWS))


def labels(batches: Any) -> list[int]:
    return [int(label) for batch in batches for label in batch["labels"]]


class Skipping:
    """What accelerate's SkipBatchSampler does."""

    def __init__(self, batch_sampler: Any, skip: int) -> None:
        self.batch_sampler, self.skip = batch_sampler, skip

    def __iter__(self) -> Any:
        return (rows for number, rows in enumerate(self.batch_sampler) if number >= self.skip)

    def __len__(self) -> int:
        return len(self.batch_sampler) - self.skip


def skip_first_batches(loader: Any, count: int) -> Any:
    """accelerate's, as it is for a loader that it does not know: it reads these attributes."""
    try:
        from accelerate import skip_first_batches
    except ImportError:
        taken = Skipping(loader.sampler or loader.batch_sampler, count)
        defaults = {"num_workers": 0, "collate_fn": None, "pin_memory": False, "timeout": 0, "prefetch_factor": 2}
        words = {word: getattr(loader, word, default) for word, default in defaults.items()}
        return torch.utils.data.DataLoader(loader.dataset, batch_sampler=taken, **words)
    return skip_first_batches(loader, count)


@pytest.mark.parametrize("words", [{}, {"transform": dict}, {"order": "block", "block": 8}], ids=str)
def test_a_loader_whose_first_batches_are_skipped(numbers: data.Records, words: dict[str, Any]) -> None:
    whole = data.Loader(numbers, 8, **words)
    epochs = [labels(whole) for _ in range(3)]
    loader = data.Loader(numbers, 8, **words)
    loader.set_epoch(1)
    rest = skip_first_batches(loader, 5)
    assert len(rest) == len(loader) - 5 and len(rest.dataset) == ROWS
    # transformers tells the sampler below which epoch it is.
    rest.batch_sampler.batch_sampler.set_epoch(1)
    running = iter(rest)
    seen = labels([next(running) for _ in range(3)])
    assert seen == epochs[1][40:64]
    assert (loader.epoch, loader.state_dict()["position"], loader.stats.batches) == (1, 64, 3)
    assert seen + labels(running) == epochs[1][40:]
    # What comes next is the next epoch, whole, also by the one that skips.
    assert labels(loader) == epochs[2]
    loader.set_epoch(0)
    assert labels(skip_first_batches(loader, 0)) == epochs[0]
    assert labels(skip_first_batches(loader, 2)) == epochs[1][16:]


def test_batches_that_are_left_out_between_are_an_error(numbers: data.Records) -> None:
    """A sampler that shares a rank's batches among ranks again."""
    loader = data.Loader(numbers, 8)
    sampler = list(loader.batch_sampler)
    with pytest.raises(errors.InvalidInputError, match="were left out") as caught:
        list(torch.utils.data.DataLoader(loader.dataset, batch_sampler=sampler[::2], collate_fn=loader.collate_fn))
    assert "accelerator.prepare" in caught.value.hints[0]


def test_the_parts_of_a_loader_are_those_of_a_data_loader(numbers: data.Records) -> None:
    loader = data.Loader(numbers, 8, rank=1, world=3, drop_last=True)
    rows = list(loader.batch_sampler)
    assert (len(rows), len(loader.batch_sampler), loader.batch_sampler.batch_size) == (4, 4, 8)
    assert [row for batch in rows for row in batch] == labels(loader)
    plain = torch.utils.data.DataLoader(loader.dataset, batch_size=50, collate_fn=loader.collate_fn)
    assert labels(plain) == list(range(ROWS)) and int(loader.dataset[3]["labels"]) == 3


def test_accelerate_prepares_and_skips(numbers: data.Records) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed: its skips are not tested")
    accelerator = accelerate.Accelerator(cpu=True)
    loader = data.Loader(numbers, 8)
    assert accelerator.prepare(loader) is loader
    whole = labels(data.Loader(numbers, 8))
    assert labels(accelerator.skip_first_batches(loader, 3)) == whole[24:]


def test_transformers_trainer_goes_on_within_an_epoch(numbers: data.Records, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed: transformers' Trainer is not tested")
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed: its Trainer is not tested"
    )
    seen: list[int] = []

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            seen.extend(labels.tolist())
            return {"loss": ((self.weight * x - labels[:, None]) ** 2).mean() * 1e-6}

    class Trainer(transformers.Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> data.Loader:
            return data.Loader(numbers, 8, seed=3)

    def train(steps: int, resume: bool) -> list[int]:
        seen.clear()
        words = {"save_strategy": "steps", "save_steps": 18, "report_to": [], "disable_tqdm": True, "use_cpu": True}
        arguments = transformers.TrainingArguments(str(tmp_path / "out"), max_steps=steps, **words)
        Trainer(Model(), arguments).train(resume_from_checkpoint=resume or None)
        return list(seen)

    whole = train(32, False)
    assert sorted(whole[:ROWS]) == list(range(ROWS))
    for checkpoint in (tmp_path / "out").glob("checkpoint-*"):
        if checkpoint.name != "checkpoint-18":
            os.rename(checkpoint, tmp_path / checkpoint.name)
    assert train(32, True) == whole[ROWS + 5 * 8 :], "from the fifth batch of the second epoch on"


# ---- torchdata -------------------------------------------------------------------------------------------------------


def node_of(numbers: data.Records, **words: Any) -> Any:
    pytest.importorskip("torchdata.nodes", reason="torchdata is not installed: its nodes are not tested")
    return data.Loader(numbers, 8, **words).node()


def test_a_bare_node_ends_with_its_epoch(numbers: data.Records) -> None:
    whole = data.Loader(numbers, 8)
    epochs = [labels(whole) for _ in range(4)]
    node = node_of(numbers)
    assert [labels(node) for _ in range(3)] == epochs[:3]
    with pytest.raises(StopIteration):
        next(node)
    node.reset()
    assert labels(node) == epochs[3]
    # The state of its end is the end of a node that goes on from it.
    again = node_of(numbers)
    again.reset(node.state_dict())
    with pytest.raises(StopIteration):
        next(again)
    again = node_of(numbers)
    again.reset(node.state_dict())
    again.reset()
    whole.set_epoch(4)
    assert labels(again) == labels(whole)


@pytest.mark.parametrize("taken", [0, 5, 13])
@pytest.mark.parametrize("restart", [True, False])
def test_a_nodes_state_in_torchdatas_loader(numbers: data.Records, taken: int, restart: bool) -> None:
    nodes = pytest.importorskip("torchdata.nodes", reason="torchdata is not installed: its nodes are not tested")
    whole = data.Loader(numbers, 8)
    epochs = [labels(whole) for _ in range(2)]
    for wrap in (lambda node: node, lambda node: nodes.Prefetcher(node, 2), lambda node: nodes.Mapper(node, dict)):
        pipe = nodes.Loader(wrap(node_of(numbers)), restart_on_stop_iteration=restart)
        running = iter(pipe)
        for _ in range(taken):
            next(running)
        is_at_end = taken == 13
        if is_at_end:
            assert next(running, None) is None
        again = nodes.Loader(wrap(node_of(numbers)), restart_on_stop_iteration=restart)
        again.load_state_dict(pipe.state_dict())
        assert labels(again) == (
            [] if is_at_end and not restart else epochs[1] if is_at_end else epochs[0][8 * taken :]
        )


# ---- packages that are missing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "missing"), [("forebay.monai", "monai"), ("forebay.monai", "torch"), ("forebay.torch", "torch")]
)
def test_a_module_whose_package_is_missing_is_an_import_error(
    monkeypatch: pytest.MonkeyPatch, module: str, missing: str
) -> None:
    for name in list(sys.modules):
        if name.split(".")[0] == missing or name.startswith(module):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)  # type: ignore[arg-type]
    with pytest.raises(ImportError, match=missing.replace("torch", "[Tt]orch")) as caught:
        importlib.import_module(module)
    assert isinstance(caught.value, errors.UnsupportedError) and "pip install" in caught.value.hints[0]
