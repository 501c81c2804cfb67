#!/usr/bin/env python3
"""Loads a safetensors file with one library, in this process, and prints a JSON line per load.

    bench/python/load.py --peer NAME --file FILE [--passes 3] [--warm|--cold] [--device cuda:0] [--empty-cache]

Timed is: from the call until every tensor of the file is in the memory of the device, usable after whatever the
library opened is closed, and the device is synchronised. Before that, untimed: imports, the start of CUDA and of
PyTorch's allocator (a small tensor and a synchronisation), and the state of the page cache. The first load is the
first in the process; the later ones are `again`. Between loads the tensors are dropped; PyTorch's allocator keeps their
memory unless --empty-cache, for every peer alike. After each load a few tensors are compared with the file, untimed.

Each peer runs as its own documentation shows, with its defaults:

    forebay              forebay.load_file
    safetensors          safetensors.torch.load_file
    fastsafetensors      fastsafe_open, get_tensor for each name; its tensors share one allocation, no clone needed
    instanttensor        safe_open, its tensors() loop; its tensors are its own clones (copy=True, the default)
    instanttensor-mmap   the same with INSTANTTENSOR_BACKEND=MMAP
    instanttensor-buffered  the same with INSTANTTENSOR_BACKEND=BUFFERED
    runai                SafetensorsStreamer, stream_file and its get_tensors() loop; cloned on --device cpu only, where
                         they are views of a buffer that the streamer uses again
    torch                torch.load(weights_only=True) of the .pt file beside FILE (make_models.py --pt)

Exit codes: 0; 1 for wrong bytes or a failed load; 3, with the reason, if the peer or the device is not there.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import Skip, make_cold, make_warm, start_device, synchronize, timed, worker_main

Tensors = dict[str, Any]
Load = Callable[[str, str], Tensors]


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        raise Skip(f"{name} cannot be imported: {error}") from None


def _cuda_only(peer: str, device: str) -> None:
    if device == "cpu":
        raise Skip(f"{peer} loads to CUDA devices only")


def forebay(device: str) -> Load:
    module = _import("forebay")
    load_file = module.load_file  # Found now: its module is imported when it is first used.
    return lambda path, device: load_file(path, device=device, framework="torch")


def safetensors(device: str) -> Load:
    module = _import("safetensors.torch")
    return lambda path, device: module.load_file(path, device=device)


def fastsafetensors(device: str) -> Load:
    module = _import("fastsafetensors")

    def load(path: str, device: str) -> Tensors:
        # Its direct path needs a GPU; for the CPU its documentation says nogds.
        with module.fastsafe_open([path], device=device, nogds=device == "cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}

    return load


def instanttensor(device: str, backend: str | None = None) -> Load:
    _cuda_only("instanttensor", device)
    if backend:
        os.environ["INSTANTTENSOR_BACKEND"] = backend
    module = _import("instanttensor")

    def load(path: str, device: str) -> Tensors:
        with module.safe_open(path, framework="pt", device=device) as file:
            return dict(file.tensors())

    return load


def runai(device: str) -> Load:
    module = _import("runai_model_streamer")

    def load(path: str, device: str) -> Tensors:
        with module.SafetensorsStreamer() as streamer:
            streamer.stream_file(path, device=device)
            if device == "cpu":
                return {name: tensor.clone() for name, tensor in streamer.get_tensors()}
            return dict(streamer.get_tensors())

    return load


def torch_load(device: str) -> Load:
    import torch

    return lambda path, device: torch.load(path, map_location=device, weights_only=True)


PEERS: dict[str, Callable[[str], Load]] = {
    "forebay": forebay,
    "safetensors": safetensors,
    "fastsafetensors": fastsafetensors,
    "instanttensor": instanttensor,
    "instanttensor-mmap": lambda device: instanttensor(device, "MMAP"),
    "instanttensor-buffered": lambda device: instanttensor(device, "BUFFERED"),
    "runai": runai,
    "torch": torch_load,
}


def read_header(path: str) -> tuple[dict[str, Any], int]:
    """The tensors' entries and where the data begins: a reader of our own, so that no peer checks itself."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header, 8 + length


def differing(torch: Any, path: str, tensors: Tensors, count: int) -> list[str]:
    """Names of the tensors whose number, shape or bytes are not the file's; `count` of them are compared."""
    header, start = read_header(path)
    if set(header) != set(tensors):
        return sorted(set(header) ^ set(tensors))[:5]
    names = sorted(header, key=lambda name: header[name]["data_offsets"][0])
    step = max(1, (len(names) - 1) // max(1, count - 1))
    wrong = []
    with open(path, "rb") as file:
        for name in {*names[::step], names[-1]}:
            begin, end = header[name]["data_offsets"]
            file.seek(start + begin)
            found = tensors[name].detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()
            if list(tensors[name].shape) != header[name]["shape"] or found != file.read(end - begin):
                wrong.append(name)
    return wrong


def activated() -> int:
    """Folios that the kernel has moved to its active list so far, of the whole machine: it does so when a folio is read again after it was
    written or read, under one lock."""
    with open("/proc/vmstat") as counters:
        return next(int(line.split()[1]) for line in counters if line.startswith("pgactivate "))


def engine(torch: Any, peer: str, path: str, device: str) -> dict[str, Any]:
    """The engine that forebay elects for this file and device now, by the receipt of one more read of 64 MiB."""
    if peer != "forebay":
        return {}
    import forebay as module

    with module.open(path) as file:
        array = torch.empty(min(64 << 20, file.size), dtype=torch.uint8, device=device)
        receipt = file.read_into(array)
    return {"engine": receipt.engine, "moved": dict(receipt.moved)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=sorted(PEERS), required=True)
    parser.add_argument("--file", required=True)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--verify", type=int, default=5, metavar="TENSORS")
    parser.add_argument("--empty-cache", action="store_true")
    state = parser.add_mutually_exclusive_group()
    state.add_argument("--warm", action="store_const", const="warm", dest="state", default="warm")
    state.add_argument("--cold", action="store_const", const="cold", dest="state")
    options = parser.parse_args()

    read = options.file
    if options.peer == "torch":
        read = str(Path(options.file).with_suffix(".pt"))
        if not os.path.exists(read):
            raise Skip(f"there is no {read} (make_models.py --pt writes it)")
    torch = start_device(options.device)
    start = time.perf_counter()
    load = PEERS[options.peer](options.device)
    import_seconds = time.perf_counter() - start
    nbytes = os.stat(read).st_size

    def work() -> Tensors:
        tensors = load(read, options.device)
        synchronize(torch, options.device)
        return tensors

    for index in range(options.passes):
        (make_cold if options.state == "cold" else make_warm)(read)
        before = activated()
        tensors, record = timed(nbytes, work)
        record["folios_activated"] = activated() - before
        wrong = differing(torch, options.file, tensors, options.verify)
        facts = {"work": "load", "peer": options.peer, "file": options.file, "state": options.state}
        facts |= {"device": options.device, "pass": index + 1, "tensors": len(tensors), "wrong": wrong}
        facts |= {"when": "first" if index == 0 else "again", "empty_cache": options.empty_cache}
        if index + 1 == options.passes:  # One more read: it must not come between two loads.
            facts |= engine(torch, options.peer, read, options.device)
        print(json.dumps(facts | {"import_s": round(import_seconds, 3)} | record), flush=True)
        if wrong:
            raise SystemExit(f"error: {options.peer}: tensors differ from the file: {', '.join(wrong)}")
        del tensors
        gc.collect()
        if options.empty_cache and options.device != "cpu":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    worker_main(main)
