#!/usr/bin/env python3
"""Loads models with serving engines' own loaders and with forebay's, and compares all tensors. Run by `tests/serving/check` in the environment
that `tests/serving/install` makes.

    check.py FOLDER        the models are written there
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

#: The largest part of a model that a rank may read, by the number of ranks.
MOST = {2: 0.52, 1: 1.001}


def ranks_of(script: str, count: int, words: list[str]) -> list[dict[str, Any]]:
    """Runs a script on several ranks; what they print, by model."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    shared = {**os.environ, "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, str(HERE / script), *words]
    started = [
        subprocess.Popen(
            command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(count)
    ]
    records = []
    for process in started:
        output, _ = process.communicate(timeout=1800)
        records += [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        if process.returncode:
            raise SystemExit(f"failed: {script} on {count} rank(s) ended with {process.returncode}: {output[-2000:]}")
    return records


def check_vllm(folder: Path) -> int:
    from models import CONFIGS, make

    for kind in CONFIGS:
        make(kind, folder)
    count = 0
    for ranks, most in MOST.items():
        for record in ranks_of("vllm_rank.py", ranks, [str(folder)]):
            print(json.dumps(record), flush=True)
            assert not record["differing"], record
            assert record["part"] <= most, record
            assert record["whole"] == 0, f"tensors were read whole: {record}"
            count += 1
    return count


def check_sglang(folder: Path) -> int:
    from models import make

    command = [sys.executable, str(HERE / "sglang_iterator.py"), str(make("dense", folder))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    print(f"SGLang: {done.stdout.strip()}", flush=True)
    if done.returncode == 3:
        return 0
    assert done.returncode == 0, done.stdout + done.stderr
    return 1


def check_diffusers(folder: Path) -> int:
    import torch
    from diffusers import UNet2DModel

    import forebay

    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2, "norm_num_groups": 8}
    model = UNet2DModel(sample_size=8, block_out_channels=(32, 32), layers_per_block=1, **blocks)
    model.save_pretrained(folder / "unet", max_shard_size="100KB")
    for dtype in (torch.float32, torch.float16):
        theirs = UNet2DModel.from_pretrained(folder / "unet", torch_dtype=dtype).state_dict()
        with forebay.patch_safetensors():
            mine = UNet2DModel.from_pretrained(folder / "unet", torch_dtype=dtype).state_dict()
        differing = [name for name in theirs if not torch.equal(mine[name], theirs[name])]
        print(f"diffusers, {dtype}: {len(theirs)} tensors, differing: {differing}", flush=True)
        assert mine.keys() == theirs.keys() and not differing
    return 2


def main() -> None:
    folder = Path(sys.argv[1])
    count = sum(check(folder) for check in (check_sglang, check_diffusers, check_vllm))
    print(f"{count} passed, 0 failed")


if __name__ == "__main__":
    main()
