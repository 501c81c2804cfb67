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
    Failed,
    Measured,
    Skip,
    Subject,
    figure,
    json_lines,
    run,
    shares,
    together,
    way_of_receipt,
    with_receipt,
)

LARGE, SMALL = 11_200_000_000, 500_000_000
#: Peers that load in every turn; the others load once.
OFTEN = ("instanttensor-mmap", "safetensors")
LOADERS = (*OFTEN, "fastsafetensors", "instanttensor", "runai")


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
    """Loads of a fresh process, and all of them together."""
    command = [sys.executable, PYTHON / "load.py", "--peer", peer, "--file", path, "--passes", passes]
    out, _ = run([*command, "--warm", "--device", bench.device], python_path(build) if build else None, bench.limit)
    report = json_lines(out)
    figures = [
        figure(f"load {part['pass']}", part, shares(part.get("moved") or {})) for part in report if "gb_per_s" in part
    ]
    return [*figures, *([together(figures, f"loads 1 to {passes}")] if passes > 1 else [])], report


def loaders(bench: Bench, path: Path, passes: int, peers: tuple[str, ...]) -> list[Subject]:
    ours = [
        Subject(name, partial(load, bench, "forebay", build, path, passes), ours=True)
        for name, build in bench.builds.items()
    ]
    theirs = [
        Subject(peer, partial(load, bench, peer, None, path, passes), once=peer not in OFTEN)
        for peer in peers if bench.wants(peer)
    ]  # fmt: skip
    return ours + theirs


def loads(bench: Bench) -> None:
    """each load ≥ 1.0 × the best peer's; the three together ≥ 1.1 × at ≤ 0.8 of its CPU"""
    source = make_model(bench, "large", LARGE)
    for state in pages.STATES:
        if bench.cases and not any(word in state for word in bench.cases):
            continue
        try:
            path = pages.in_state(bench, source, state)
        except (Skip, Failed, OSError) as error:
            print(f"   loads, {state}: {error}", file=sys.stderr, flush=True)
            bench.add({"row": "loads", "case": state, "subject": "the file", "ours": False, "failed": str(error)})
            continue
        try:
            bench.alternate("loads", state, loaders(bench, path, 3, LOADERS), partial(pages.check, path, state))
        finally:
            if path != source:
                path.unlink()


def tensors(bench: Bench) -> None:
    """first load ≥ 3 × safetensors"""
    path = make_model(bench, "small", SMALL)
    pages.read_back(path)
    subjects = loaders(bench, path, 2, ("safetensors",))
    bench.alternate("tensors", "5 000 small tensors", subjects, partial(pages.check, path, "cat"))


def kvikio_passes(bench: Bench, build: Path | None, path: Path, threads: int) -> Measured:
    """Four passes of a fresh process, on the drop-in of a build or in KvikIO's POSIX mode."""
    command: list[Any] = [sys.executable, BENCH / "kvikio_read.py", path, "--threads", threads, "--task-size", "4M"]
    command += ["--repeat", 4, "--first", "--compat", "OFF" if build else "ON"]
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
    return [*figures, together(figures[:3], "passes 1 to 3")], report


def kvikio(bench: Bench) -> None:
    """each pass ≥ 1.0 ×; CPU ≤ 0.7 × at 16 threads, ≤ 1.0 × at 1 and 8; passes 1 to 3 together ≥ 1.15 × at 16"""
    path = pages.make_file(bench, bench.build, bench.size or 4 << 30)
    pages.read_back(path)
    for threads in (1, 8, 16):
        subjects = [
            Subject(name, partial(kvikio_passes, bench, build, path, threads), ours=True)
            for name, build in bench.builds.items()
        ]
        if bench.wants("posix"):
            subjects.append(Subject("posix", partial(kvikio_passes, bench, None, path, threads)))
        bench.alternate("kvikio", f"4M tasks, {threads} threads", subjects, partial(pages.check, path, "cat"))
