"""The programs in bench that a machine with a GPU is lent for run here from end to end, small and on the host."""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: the programs in bench measure it")
pytest.importorskip("numpy", reason="numpy is not installed: the programs in bench write files with it")

#: Each starts several processes that import torch.
pytestmark = pytest.mark.timeout(300)
BENCH = Path(__file__).resolve().parents[2] / "bench"


def run(program: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / program), *map(str, words)]
    # Threads of torch's that spin for each other take many times as long on a machine that does other things, too.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=290, env=environment)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_training_data_measures_and_goes_on(tmp_path: Path) -> None:
    words = ("--bytes", 33554432, "--seconds", 0.2, "--repeats", 1, "--device", "cpu", "--subjects", "forebay,kvikio")
    first = run("training_data.py", tmp_path, *words, "--rows", "tokens")
    assert first.returncode == 0, first.stderr
    assert [line["subject"] for line in lines(tmp_path / "training.jsonl")] == ["forebay", "kvikio"]
    both = run("training_data.py", tmp_path, *words, "--rows", "tokens,written,read-before,cold,billion")
    assert both.returncode == 0, both.stderr
    found = lines(tmp_path / "training.jsonl")
    # Rows measured before were not measured again.
    assert [line["row"] for line in found].count("tokens") == 2 and "tokens | forebay" not in both.stderr
    assert "| tokens | " in both.stdout and "| billion | open_ms" in both.stdout, both.stdout
    why = "it reads to a GPU" if importlib.util.find_spec("kvikio") else "not installed: kvikio"
    assert f"tokens: kvikio: {why}" in both.stdout
    assert [path.name for path in tmp_path.iterdir() if path.stat().st_size > 1 << 20] == []


def test_training_data_tells_what_outlives_its_limit(tmp_path: Path) -> None:
    words = ("--rows", "billion", "--subjects", "forebay", "--repeats", 1, "--device", "cpu")
    done = run("training_data.py", tmp_path, *words, "--limit", 0.01)
    assert done.returncode == 0 and "billion: forebay: not done after 0 s" in done.stdout, done.stdout + done.stderr


#: The third has all that the first two have.
WEIGHTS = [
    pytest.param((), 1, marks=pytest.mark.long),
    pytest.param(("--tp", 2), 2, marks=pytest.mark.long),
    (("--tp", 2, "--moe"), 2),
    (("--gguf",), 1),
]


@pytest.mark.parametrize(("words", "ranks"), WEIGHTS)
def test_weights_measures(tmp_path: Path, words: tuple[object, ...], ranks: int) -> None:
    peers = "forebay,gguf" if "--gguf" in words else "forebay,safetensors,instanttensor"
    small = ("--bytes", 4e6, "--repeats", 1, "--device", "cpu", "--folder", tmp_path / "model", "--peers", peers)
    done = run("weights.py", *words, *small, "--results", tmp_path / "weights.jsonl")
    assert done.returncode == 0, done.stdout + done.stderr
    told = {(line["subject"], line["when"]): line for line in lines(tmp_path / "weights.jsonl")}
    first = told["forebay", "first"]
    assert first["ranks"] == ranks and ("forebay", "again") in told
    if "--gguf" not in words:
        assert ("safetensors", "first") in told and first["rank_part"] < (1.01 if ranks == 1 else 0.56)
        assert "instanttensor" in done.stderr


SMALL_DICE = ("--cases", 2, "--size", 32, "--crop", 16, "--epochs", 1, "--device", "cpu")


@pytest.mark.parametrize("seeds", [(1,), pytest.param((0, 1), marks=pytest.mark.long)])
def test_time_to_dice_measures_and_goes_on(tmp_path: Path, seeds: tuple[int, ...]) -> None:
    pytest.importorskip("monai", reason="monai is not installed: time to Dice is not tested")
    words = (tmp_path, *SMALL_DICE, "--seeds", ",".join(map(str, seeds)), "--plot", tmp_path / "dice.svg")
    done = run("time_to_dice.py", *words)
    assert done.returncode == 0, done.stderr
    told = {(line["arm"], line["regime"], line["seed"]): line for line in lines(tmp_path / "dice.jsonl")}
    assert len(told) == 6 * len(seeds) and all(("skipped" in line) == (name[0] == "gds") for name, line in told.items())
    for regime in ("cached", "cold"):
        assert told["persistent", regime, 1]["crc"] == told["forebay", regime, 1]["crc"]
    assert done.stdout.count("inputs equal") == 2 * len(seeds)
    again = run("time_to_dice.py", *words)
    assert len(lines(tmp_path / "dice.jsonl")) == 6 * len(seeds) and "| cold | forebay |" in again.stdout
    plot = (tmp_path / "dice.svg").read_text()
    assert plot.count("<polyline") == 4 * len(seeds) and ">cached<" in plot and ">cold<" in plot


def test_time_to_dice_tells_why_an_arm_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its last words; or where it was when its time was over."""
    monkeypatch.syspath_prepend(str(BENCH))
    import time_to_dice

    hangs = """
import faulthandler, sys, time
def asleep(): time.sleep(60)
faulthandler.dump_traceback_later(0.1)
asleep()
"""
    dies = "import sys; print('the last words', file=sys.stderr)"
    for code, why in ((hangs, "not done after 2 s; it was in asleep (<string>:3)"), (dies, "the last words")):
        asked = time_to_dice.Asked("-c", code)
        # Not waited for again.
        for limit in (2.0, 1000.0):
            with pytest.raises(time_to_dice.Cannot) as told:
                asked.ask(limit, seed=0, regime="cached")
            assert str(told.value) == why


def test_time_to_dice_tells_that_a_reading_thread_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MONAI's loader ends its epoch with it, without an error."""
    pytest.importorskip("monai", reason="monai is not installed: time to Dice is not tested")
    monkeypatch.syspath_prepend(str(BENCH))
    import time_to_dice
    import torch

    class Broken(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 6

        def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
            if number == 5:
                raise OSError("the disk is gone")
            return {key: torch.zeros(1, 16, 16, 16) for key in ("image", "label")}

    monkeypatch.setattr(time_to_dice, "dataset", lambda *_: Broken())
    words = {"arm": "persistent", "device": "cpu", "folder": str(tmp_path), "size": 16, "crop": 16, "cases": 6}
    for check, epochs in ((1, 0), (0, 1)):
        with pytest.raises(OSError, match="the disk is gone"):
            time_to_dice.Arm({**words, "check": check, "epochs": epochs}).train(0, "cached")


def test_ecosystem_tells_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import ecosystem

    done = run("ecosystem.py", "run", tmp_path, "--cases", "dali")
    assert done.returncode == 0 and "| dali | skipped | not installed: nvidia.dali" in done.stdout, done.stdout
    assert [line["result"] for line in lines(tmp_path / "ecosystem.jsonl")] == ["skipped"]
    rows = [line for line in run("ecosystem.py", "wheels").stdout.splitlines() if line.startswith("| ")]
    # One of them is the head.
    assert len(rows) == 1 + sum(map(len, ecosystem.WHEELS.values()))


def test_ecosystem_reads_receipts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import ecosystem

    guide = (BENCH.parent / "docs/guides/drop-in.md").read_text()
    receipt = ecosystem.receipt_of("output\n" + guide[guide.index("receipt of process") :].partition("```")[0])
    assert receipt["reads"] == 65
    assert ecosystem.engine_of(receipt["lines"]).startswith("staged: 64.0 MiB in 65 requests")
    assert ecosystem.receipt_of("no process used forebay's libcufile")["reads"] == 0


def test_ecosystem_empties_code_for_other_gpus(tmp_path: Path) -> None:
    def entry(arch: int, size: int) -> bytes:
        return struct.pack("<HHIQ12xI32x", 2, 1, 64, size, arch) + b"c" * size

    entries = entry(80, 96) + entry(90, 160) + entry(120, 64)
    library = b"x" * 24 + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries + b"end"
    (tmp_path / "lib.so").write_bytes(library)
    done = run("ecosystem.py", "prune", tmp_path / "lib.so", tmp_path / "out.so")
    assert done.returncode == 0, done.stderr
    found = (tmp_path / "out.so").read_bytes()
    assert len(found) == len(library) and found.count(b"c") == 160 and found[:40] == library[:40]
    assert run("ecosystem.py", "prune", tmp_path / "lib.so", tmp_path / "out.so", "--arch", 75).returncode == 1
    # One that lies about its size is left alone.
    (tmp_path / "lib.so").write_bytes(library[:40] + struct.pack("<HHIQ", 2, 1, 64, 1 << 60) + library[56:])
    assert run("ecosystem.py", "prune", tmp_path / "lib.so", tmp_path / "out.so").returncode == 1


def test_strided_pieces_are_measured_beside_rows(tmp_path: Path) -> None:
    words = ("--layers", 2, "--hidden", 256, "--ffn", 640, "--loads", 2, "--device", "cpu")
    done = run("strided.py", tmp_path / "model", *words)
    assert done.returncode == 0, done.stderr
    found = [(line.split()[1], int(line.split()[2])) for line in done.stdout.splitlines()]
    # Of each layer two matrices are cut by columns: 256 rows each.
    assert found == [("contiguous", 14)] * 2 + [("strided", 14)] * 2 + [("rows", 10 + 2 * 2 * 256)] * 2
