#!/usr/bin/env python3
"""One measurement of `bench/weights.py --transformers`, a process of its own: `from_pretrained` twice, a line of JSON for each.

Timed is the call; before it, untimed: imports, and the start of CUDA and of torch's allocator. With --make it writes the model
instead. Exit codes: 0; 1 for wrong bytes; 3, with the reason, where the subject cannot run.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

from common import Skip, start_device, synchronize, worker_main  # noqa: E402
from load import read_header  # noqa: E402
from shapes import files_of, llama, write  # noqa: E402


def make(folder: Path, nbytes: int) -> None:
    """Writes a Llama of random bytes, and its configuration."""
    shapes = llama(nbytes)
    by_name = {shape.name: shape.shape for shape in shapes}
    hidden, head = by_name["model.norm.weight"][0], 128 if nbytes >= 4e9 else 32
    layers = sum(name.endswith("q_proj.weight") for name in by_name)
    first = "model.layers.0."
    write(folder, shapes)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "tie_word_embeddings": False,
        "hidden_size": hidden, "head_dim": head, "num_attention_heads": hidden // head, "num_hidden_layers": layers,
        "num_key_value_heads": by_name[first + "self_attn.k_proj.weight"][0] // head,
        "intermediate_size": by_name[first + "mlp.gate_proj.weight"][0],
        "vocab_size": by_name["lm_head.weight"][0], "max_position_embeddings": 512,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def differing(torch: Any, model: Any, folder: Path) -> list[str]:
    """Names of parameters whose bytes are not the file's; some are compared."""
    state, wrong = model.state_dict(), []
    for path in map(str, files_of(folder)):
        header, start = read_header(path)
        whole = torch.from_file(path, shared=False, size=os.stat(path).st_size, dtype=torch.uint8)
        for name in list(header)[:: max(1, len(header) // 6)]:
            begin, end = header[name]["data_offsets"]
            if not torch.equal(whole[start + begin : start + end], state[name].cpu().view(torch.uint8).view(-1)):
                wrong.append(name)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subject", choices=("forebay", "stock"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--make", type=int, metavar="BYTES")
    options = parser.parse_args()
    if options.make:
        make(options.folder, options.make)
        return
    try:
        import transformers
    except ImportError as error:
        raise Skip(f"transformers cannot be imported: {error}") from None
    torch = start_device(options.device)
    # Imports its module, for seconds.
    assert transformers.LlamaForCausalLM
    transformers.utils.logging.disable_progress_bar()
    if options.subject == "forebay":
        import forebay
        import forebay.torch

        assert forebay.torch.weights
        forebay.patch_safetensors()
    for when in ("first",) if options.once else ("first", "again"):
        before = resource.getrusage(resource.RUSAGE_SELF)
        start = time.perf_counter()
        model = transformers.AutoModelForCausalLM.from_pretrained(
            options.folder, device_map=options.device, dtype=torch.bfloat16
        )
        synchronize(torch, options.device)
        seconds = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_SELF)
        wrong = differing(torch, model, options.folder)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        record = {"subject": options.subject, "when": when, "seconds": round(seconds, 4), "cpu_s": round(cpu, 3)}
        print(json.dumps(record | {"wrong": wrong}), flush=True)
        if wrong:
            raise SystemExit(f"wrong bytes: {', '.join(wrong)}")
        del model
        gc.collect()


if __name__ == "__main__":
    worker_main(main)
