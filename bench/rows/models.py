"""Rows in Python: loads of safetensors files, KvikIO, and the start of forebay there."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from rows import pages
from rows.common import (
    BENCH,
    PYTHON,
    Bench,
    Measured,
    Subject,
    figure,
    json_lines,
    run,
    shares,
    together,
    way_of_receipt,
    with_receipt,
)
from rows.programs import GIB, cufile_bench, nvidia, of_builds, plain, warm_file

LARGE, SMALL = 11_200_000_000, 500_000_000
#: The first is the fastest: it loads in every turn, the others once.
LOADERS = ("instanttensor-mmap", "safetensors", "fastsafetensors", "instanttensor", "runai")


def python_path(build: Path) -> dict[str, str]:
    """A build's Python package, if its folder has one; otherwise the interpreter's own."""
    folder = build / "python"
    if not (folder / "forebay").exists():
        return {}
    return {"PYTHONPATH": os.pathsep.join([str(folder.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])])}


def make_model(bench: Bench, kind: str, size: int) -> Path:
    scale = (bench.size or size) / size
    folder = bench.folder / f"{kind}.{scale:.4g}"
    path = folder / f"{kind}.safetensors"
    if not path.exists():
        folder.mkdir(exist_ok=True)
        run([sys.executable, PYTHON / "make_models.py", folder, "--only", kind, "--scale", scale], limit=300)
    return path


def load(bench: Bench, peer: str, build: Path | None, path: Path, passes: int) -> Measured:
    """Loads of a fresh process, and all of them together. The way is that of one more read of 64 MiB after the last."""
    command = [sys.executable, PYTHON / "load.py", "--peer", peer, "--file", path, "--passes", passes]
    out, _ = run([*command, "--warm", "--device", bench.device], python_path(build) if build else None, bench.limit)
    report = json_lines(out)
    ways = [f"{part['engine']}: {shares(part['moved'])}" for part in report if "engine" in part]
    figures = [figure(f"load {part['pass']}", part, "".join(ways)) for part in report]
    return [*figures, *([together(figures, f"loads 1 to {passes}")] if passes > 1 else [])], report


def loaders(bench: Bench, path: Path, passes: int, peers: tuple[str, ...]) -> list[Subject]:
    ours = [Subject(name, partial(load, bench, "forebay", build, path, passes)) for name, build in bench.builds.items()]
    theirs = [
        Subject(peer, partial(load, bench, peer, None, path, passes), once=peer != peers[0])
        for peer in peers if bench.wants(peer)
    ]  # fmt: skip
    return ours + theirs


def loads(bench: Bench) -> None:
    """each load ≥ 1.0 × the best peer's; the three together ≥ 1.1 × at ≤ 0.8 of its CPU"""
    source = make_model(bench, "large", LARGE)
    for state in pages.STATES:
        if bench.cases and not any(word in state for word in bench.cases):
            continue
        path = pages.place(bench, source, state)
        try:
            prepare = partial(pages.ready, bench, source, path, state, is_anew=True)
            bench.alternate("loads", state, loaders(bench, path, 3, LOADERS), prepare)
        finally:
            if path != source:
                path.unlink(missing_ok=True)


def tensors(bench: Bench) -> None:
    """first load ≥ 3 × safetensors"""
    path = make_model(bench, "small", SMALL)
    prepare = partial(pages.ready, bench, path, path, "cat")
    bench.alternate("tensors", "5 000 small tensors", loaders(bench, path, 2, ("safetensors",)), prepare)


def kvikio_passes(bench: Bench, build: Path | None, path: Path, threads: int, passes: int = 4) -> Measured:
    """Passes of a fresh process, on the drop-in of a build or in KvikIO's POSIX mode."""
    command: list[Any] = [sys.executable, BENCH / "kvikio_read.py", path, "--threads", threads, "--task-size", "4M"]
    command += ["--repeat", passes, "--first", "--compat", "OFF" if build else "ON"]
    if build:
        command = with_receipt(bench, build, command)
    out, err = run(command, limit=bench.limit)
    report = json_lines(out)[-1]
    gb = report["bytes"] / 1e9
    figures = []
    for i, part in enumerate(report["samples"]):
        rates = {"gb_per_s": gb / part["wall_s"], "user_s_per_gb": part["user_s"] / gb}
        rates["system_s_per_gb"] = part["system_s"] / gb
        figures.append(figure(f"pass {i + 1}", rates, way_of_receipt(err)))
    if passes == LOOP:
        return [*(figures[number - 1] for number in SHOWN), together(figures, f"passes 1 to {LOOP}")], report
    return [*figures, together(figures[:3], "passes 1 to 3")], report


def kvikio(bench: Bench) -> None:
    """each pass ≥ 1.0 ×; CPU ≤ 0.7 × at 16 threads, ≤ 1.0 × at 1 and 8; passes 1 to 3 together ≥ 1.15 × at 16"""
    path, prepare = warm_file(bench, 4 * GIB)
    for threads in (1, 8, 16):
        subjects = of_builds(bench, kvikio_passes, path, threads)
        if bench.wants("posix"):
            subjects.append(Subject("posix", partial(kvikio_passes, bench, None, path, threads)))
        bench.alternate("kvikio", f"4M tasks, {threads} threads", subjects, prepare)


#: Passes of a long loop, and those of them that tables show.
LOOP, SHOWN = 24, (1, 2, 3, 4, 5, 6, 12, 24)
STAGED = {"FOREBAY_PIN_BUDGET": "0"}


def repeated(bench: Bench, build: Path, path: Path, way: str, environment: dict[str, str] | None = None) -> Measured:
    """The passes of a loop in a fresh process, and all of them together."""
    command = [sys.executable, PYTHON / "repeat.py", "--way", way, "--file", path, "--passes", LOOP]
    out, _ = run([*command, "--device", bench.device], python_path(build) | (environment or {}), bench.limit)
    report = json_lines(out)
    figures = [figure(f"pass {part['pass']}", part) for part in report]
    return [*(figures[number - 1] for number in SHOWN), together(figures, f"passes 1 to {LOOP}")], report


def repeats(bench: Bench) -> None:
    """beside the same staged: each pass ≥ 0.9, all together ≤ 1.05 × its time from the fourth on; in place by the sixth where pages
    register at 30 GB/s"""
    path = make_model(bench, "large", LARGE)
    for way in ("load", "read_into"):
        subjects = of_builds(bench, repeated, path, way)
        for name, build in bench.builds.items():
            subjects.append(Subject(f"{name} staged", partial(repeated, bench, build, path, way, STAGED)))
        bench.alternate("repeats", way, subjects, partial(pages.ready, bench, path, path, "cat"))
    path, prepare = warm_file(bench, 4 * GIB)
    for threads in (1, 8, 16):
        subjects = of_builds(bench, kvikio_passes, path, threads, LOOP)
        if bench.wants("posix"):
            subjects.append(Subject("posix", partial(kvikio_passes, bench, None, path, threads, LOOP)))
        bench.alternate("repeats", f"KvikIO, 4M tasks, {threads} threads", subjects, prepare)


START = """
import json, sys, time
try:
    import torch, forebay
except ImportError as error:
    sys.exit(f"error: {error}")
if not torch.cuda.is_available():
    print("error: there is no CUDA device that PyTorch can use", file=sys.stderr)
    sys.exit(3)
array = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
start = time.perf_counter()
receipt = forebay.open(sys.argv[1]).read_into(array)
torch.cuda.synchronize()
print(json.dumps({"ms": (time.perf_counter() - start) * 1e3, "moved": dict(receipt.moved)}))
"""


def start_in_python(bench: Bench, build: Path, path: Path) -> Measured:
    out, _ = run([sys.executable, "-c", START, path], python_path(build), bench.limit)
    (report,) = json_lines(out)
    return [plain("all", "ms", report["ms"], shares(report["moved"]))], report


def start_by_cufile(bench: Bench, build: Path | None, path: Path) -> Measured:
    _, report = cufile_bench(bench, build, ["--file", path, "--api", "open", "--io", "1M", "--warm"], receipt=False)
    steps = {
        "driver open": "driver_open",
        "file registered": "handle_register",
        "first 1 MiB": "first_io",
        "all": "sum",
    }
    return [plain(name, "ms", report["setup_ms"][key]) for name, key in steps.items()], report


def start(bench: Bench) -> None:
    """Session and first 1 MiB read after a context: ≤ 3 ms"""
    path, prepare = warm_file(bench, 64 << 20)
    subjects = [*of_builds(bench, start_by_cufile, path), *nvidia(bench, start_by_cufile, path)]
    bench.alternate("start", "cuFileDriverOpen to the first 1 MiB", subjects, prepare)
    bench.alternate("start", "Python, open and the first 1 MiB", of_builds(bench, start_in_python, path), prepare)
