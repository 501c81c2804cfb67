"""Rows that run `forebay bench`, cufile_bench and fio: no Python in the timed part."""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from report import from_fio

from rows import pages
from rows.common import (
    BENCH,
    Bench,
    Failed,
    Figure,
    Measured,
    Skip,
    Subject,
    figure,
    first_later,
    json_lines,
    run,
    shares,
    way_of_receipt,
    with_receipt,
)

GIB = 1 << 30
SPIN = ["--bare", "--objective", "latency"]
OFF = {"FOREBAY_RESIDENT": "off"}


# --- programs ----------------------------------------------------------------------------------------------------


def way_of_bench(part: dict[str, Any]) -> str:
    ways = {key: None for one in part["engines"] for key in one if key not in ("engine", "bytes", "resident")}
    names = {way: "" if way == "mapped" else f" {way}" for way in ways}
    return shares({one["engine"] + names[way]: one.get(way, 0) for one in part["engines"] for way in ways})


def forebay_bench(
    bench: Bench, build: Path, arguments: list[Any], small: bool = False, environment: dict[str, str] | None = None,
    before: list[str] | None = None,
) -> Measured:  # fmt: skip
    """The passes of `forebay bench`: the first one, and the median of the later ones."""
    report = bench.folder / "bench.json"
    command = [*(before or []), bench.program(build, "forebay"), "bench", "-d", "0", "--json", report, *arguments]
    try:
        run(command, environment, bench.limit)
        found = json.loads(report.read_text())
    finally:
        report.unlink(missing_ok=True)
    for part in found["passes"]:
        part.pop("over_time", None)
        part.pop("jobs", None)
    return first_later([figure("", part, way_of_bench(part), small) for part in found["passes"]]), found


def cufile_bench(
    bench: Bench, build: Path | None, arguments: list[Any], small: bool = False,
    environment: dict[str, str] | None = None,
    receipt: bool = True,
) -> Measured:  # fmt: skip
    """The passes of cufile_bench on the drop-in of a build, or on NVIDIA's libcufile."""
    program = bench.program(bench.build, "cufile_bench")
    if build:
        command = [program, "--lib", bench.program(build, "libcufile.so"), *arguments]
        command = with_receipt(bench, build, command) if receipt else command
    else:
        library = nvidia_library(bench)
        environment = nvidia_environment(bench, library)
        command = [program, "--lib", library, *arguments]
    out, err = run(command, environment, bench.limit)
    report = json_lines(out)[-1]
    way = way_of_receipt(err)
    figures = [figure("", part, way, small) for part in report.get("passes") or []]
    return first_later(figures) if figures else [], report


def nvidia_library(bench: Bench) -> Path:
    if bench.nvidia:
        return Path(bench.nvidia).resolve()
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or [] if spec else []:
        for path in sorted(Path(folder).glob("**/libcufile.so.0")):
            return path
    raise Skip("no libcufile of NVIDIA: name it by --nvidia, or install nvidia-cufile")


def nvidia_environment(bench: Bench, library: Path) -> dict[str, str]:
    out, _ = run([BENCH / "nvidia-libcufile.sh", library.parent, bench.folder])
    words = [line.removeprefix("export ") for line in out.splitlines() if line.startswith("export ")]
    return dict(word.split("=", 1) for word in words)


def fio(bench: Bench, path: Path, arguments: list[Any], small: bool = True) -> Measured:
    """fio by O_DIRECT: random reads of 4 KiB, unless the arguments say otherwise."""
    program = shutil.which(bench.fio)
    if not program:
        raise Skip(f"no fio at {bench.fio} (bench/build-fio.sh makes one)")
    kind = ["--rw=randread", "--bs=4k", "--norandommap", "--randrepeat=0"] if small else []
    command = [program, "--name=peer", f"--filename={path}", "--thread", "--output-format=json",
               "--time_based", f"--runtime={math.ceil(bench.secs)}", "--direct=1", *kind, *arguments]  # fmt: skip
    if "--rw=write" not in arguments:
        command.append("--readonly")
    out, _ = run(command, limit=bench.limit)
    report = json.loads(out[out.index("{") :])
    found = from_fio(report)
    if "error" in found:
        raise Failed(found["error"])
    return [figure("first", found | {"latency_us": {"p99": found["p99_us"]}}, "fio", small)], report


def of_builds(bench: Bench, measure: Callable[..., Measured], *arguments: Any) -> list[Subject]:
    """A subject for each build: `measure(bench, build, *arguments)`."""
    return [Subject(name, partial(measure, bench, build, *arguments)) for name, build in bench.builds.items()]


def nvidia(bench: Bench, measure: Callable[..., Measured], *arguments: Any) -> list[Subject]:
    """The same on NVIDIA's library, if that peer is asked for."""
    return [Subject("nvidia", partial(measure, bench, None, *arguments))] if bench.wants("nvidia") else []


def spinning(bench: Bench, flags: list[Any], small: bool = False) -> list[Subject]:
    """The same work as raw calls that spin."""
    work = partial(forebay_bench, bench, bench.build, [*flags, *SPIN], small)
    return [Subject("bare spin", work)] if bench.wants("bare") else []


def beside_off(bench: Bench, measure: Callable[..., Measured], *arguments: Any) -> list[Subject]:
    """The same, and each build with its resident copy kernel switched off."""
    off = [
        Subject(f"{name} off", partial(measure, bench, build, *arguments, environment=OFF))
        for name, build in bench.builds.items()
        if bench.wants("off")
    ]
    return [*of_builds(bench, measure, *arguments), *off]


def warm_file(bench: Bench, size: int) -> tuple[Path, Any]:
    """The file of the warm rows, and what checks its state before each run."""
    path = pages.make_file(bench, size)
    return path, partial(pages.ready, bench, path, path, "cat")


# --- rows --------------------------------------------------------------------------------------------------------


def cufile(bench: Bench) -> None:
    """first ≥ 1.05 × (1 MiB × 16) and ≥ 1.5 × (16 MiB × 1) of NVIDIA's at ≤ 1.0 of its CPU; later ≥ 1.5 × at ≤ 0.3"""
    path, prepare = warm_file(bench, 4 * GIB)
    for io, threads, passes in (("1M", 16, 30), ("16M", 1, 5)):
        flags = ["--file", path, "--io", io, "--threads", threads, "--warm", "--passes", passes]
        subjects = of_builds(bench, cufile_bench, flags)
        subjects += nvidia(bench, cufile_bench, flags)
        bench.alternate("cufile", f"cuFileRead {io} x {threads}", subjects, prepare)


def calls(bench: Bench) -> None:
    """the other calls of cuFile beside NVIDIA's: batches, streams, O_DIRECT; bytes of streams compared"""
    path, prepare = warm_file(bench, 2 * GIB)
    small = ["--io", "4K", "--random", "--warm", "--secs", bench.secs, "--passes", 3]
    disk = ["--direct", "--drop", "--passes", 2]
    ways: list[tuple[str, list[Any]]] = []
    for n in (1, 4):
        ways.append((f"batch 128 x 4K, {n} in flight", ["--api", "batch", *small, "--batch", 128, "--inflight", n]))
    for n in (1, 4):
        flags = ["--api", "batch", "--io", "64K", "--batch", 128, "--inflight", n, *disk]
        ways.append((f"disk batch 128 x 64K, {n} in flight", flags))
    for n in (64, 2048):
        flags = ["--api", "async", *small, "--inflight", n, "--verify", "--verify-secs", 2]
        ways.append((f"async 4K, {n} in flight", flags))
    ways.append(("disk 1M x 4", ["--io", "1M", "--threads", 4, *disk]))
    for case, flags in ways:
        arguments = ["--file", path, "--size", path.stat().st_size, *flags]
        subjects = of_builds(bench, cufile_bench, arguments, "4K" in flags)
        bench.alternate("calls", case, [*subjects, *nvidia(bench, cufile_bench, arguments, "4K" in flags)], prepare)


def staged(bench: Bench) -> None:
    """later ≥ 0.95 of bare at its best number of threads; first ≥ 0.9 of later"""
    path, prepare = warm_file(bench, 4 * GIB)
    size = path.stat().st_size
    whole = ["-f", path, "-w", 1, "-i", size, "-x", 0, "-I", 0, "--engine", "staged", "--repeat", 5]
    subjects = of_builds(bench, forebay_bench, whole)
    for threads in (4, 8, 12, 16):
        flags = ["-f", path, "-w", threads, "-s", size, "-i", "4M", "-x", 0, "-I", 0, "--bare", "--repeat", 5]
        if bench.wants("bare"):
            subjects.append(Subject(f"bare x {threads}", partial(forebay_bench, bench, bench.build, flags)))
    bench.alternate("staged", f"warm {size / GIB:.3g} GiB, one call", subjects, prepare)


def small(bench: Bench) -> None:
    """4 KiB × 1 / 4 / 16 / 64 ≥ 0.95 / 1.0 / 2.0 / 1.8 × at ≤ 1.1 / 1.0 / 0.6 / 0.7 CPU; 64 KiB × 16 slots ≥ 24,
    registered ≥ 36 GB/s; 1 MiB × 16 slots ≥ 1.1 ×, registered ≥ 45 GB/s; few in a batch, async"""
    path, prepare = warm_file(bench, 2 * GIB)
    for threads in (1, 4, 16, 64):
        flags = ["-f", path, "-w", threads, "-i", "4K", "-x", 0, "-I", 2, "-T", math.ceil(bench.secs), "--repeat", 2]
        subjects = beside_off(bench, forebay_bench, flags, True)
        bench.alternate("small", f"4K x {threads}, Rust", [*subjects, *spinning(bench, flags, True)], prepare)
        flags = ["--file", path, "--io", "4K", "--random", "--threads", threads, "--warm", "--secs", bench.secs]
        flags += ["--passes", 3]
        for case, more in (("cuFileRead", []), ("cuFileRead, buffers registered", ["--register-buffer"])):
            if more and threads != 16:
                continue
            work = [cufile_bench, [*flags, *more], True]
            bench.alternate(
                "small", f"4K x {threads}, {case}", [*beside_off(bench, *work), *nvidia(bench, *work)], prepare
            )
    few = ["--io", "4K", "--random", "--warm", "--secs", bench.secs, "--passes", 3]
    ways: list[tuple[str, list[Any]]] = [("async 4K x 16", ["--api", "async", "--inflight", 1, "--threads", 16])]
    for n, threads in ((4, 16), (8, 1)):
        ways.append((f"batch of {n} x 4K x {threads}", ["--api", "batch", "--batch", n, "--threads", threads]))
    for case, more in ways:
        flags = ["--file", path, *few, *more]
        subjects = [*beside_off(bench, cufile_bench, flags, True), *nvidia(bench, cufile_bench, flags, True)]
        bench.alternate("small", case, subjects, prepare)
    for io in ("64K", "1M"):
        flags = ["-f", path, "-w", 16, "-i", io, "-x", 0, "-I", 2, "-T", math.ceil(bench.secs), "--repeat", 2]
        for where, engine in (("slots", "staged"), ("registered", "mapped")):
            subjects = beside_off(bench, forebay_bench, [*flags, "--engine", engine])
            bench.alternate("small", f"{io} x 16, {where}", [*subjects, *spinning(bench, flags)], prepare)


def pinned_cpu(bench: Bench) -> None:
    """type 0 beside type 2: user CPU ≤ 0.3 × (4K), ≤ 0.6 × (64K); user + system ≤ 0.9 ×; bandwidth ≥ 1.0 ×"""
    path = pages.make_file(bench, 4 * GIB, "written")
    flags = ["-f", path, "-s", path.stat().st_size, "-T", math.ceil(bench.secs), "--cache", "bypass", "--drop-cache"]
    one_cpu = ["taskset", "-c", "0"]
    for io, workers, (word, kind) in product(("4K", "64K"), (4, 8), (("read", 2), ("write", 3))):
        subjects = []
        for (name, build), way in product(bench.builds.items(), (0, 2)):
            more = ["-w", workers, "-i", io, "-x", way, "-I", kind, "--overwrite"]
            work = partial(forebay_bench, bench, build, [*flags, *more], io == "4K", None, one_cpu)
            subjects.append(Subject(f"{name} type {way}", work))
        bench.alternate("pinned-cpu", f"{io} x {workers}, {word}", subjects, partial(pages.cold, path))


def cold(bench: Bench) -> None:
    """4 KiB with 16 and 64 threads ≥ 0.9 of fio psync; batches at depth 64 ≥ 0.9 of fio io_uring"""
    path = pages.make_file(bench, 4 * GIB)
    size = path.stat().st_size
    common = ["-f", path, "-s", size, "-i", "4K", "-I", 2, "-T", math.ceil(bench.secs), "--cache", "bypass"]
    depths = (8, 16, 32, 64)
    ways = [(f"4K x {n}", ["-w", n, "-x", 0], ["--ioengine=psync", f"--numjobs={n}"], []) for n in depths]
    # A batch returns when all of it is there: of two, half of the depth is unused in the mean, of eight an eighth.
    for entries, batches in ((32, 2), (8, 8)):
        case = f"4K batches, depth 64 as {batches} of {entries}"
        whole = [f"--numjobs={batches}", f"--iodepth={entries}", "--iodepth_low=1", f"--iodepth_batch_submit={entries}"]
        whole = ["--ioengine=io_uring", *whole, f"--iodepth_batch_complete_min={entries}"]
        ours = ["-x", 6, "-B", entries, "--batches", batches]
        ways.append((case, ours, ["--ioengine=io_uring", "--iodepth=64"], whole))
    for case, ours, theirs, whole in ways:
        subjects = beside_off(bench, forebay_bench, [*common, *ours], True)
        if "-w" in ours and bench.wants("type 2"):
            # Each thread's pread into pinned memory, and a copy that it sleeps for.
            plain = [*common, *ours[:2], "-x", 2]
            subjects.append(Subject("type 2", partial(forebay_bench, bench, bench.build, plain, True)))
        if "-w" in ours:
            # The same, and a copy that it spins for: what disk, link and driver leave.
            subjects += spinning(bench, [*common, *ours], True)
        if bench.wants("fio"):
            subjects.append(Subject("fio", partial(fio, bench, path, [f"--size={size}", *theirs])))
        if whole and bench.wants("fio"):
            # Its own loss by batches that end as a whole.
            subjects.append(Subject("fio, whole batches", partial(fio, bench, path, [f"--size={size}", *whole])))
        bench.alternate("cold", case, subjects, partial(pages.cold, path))


def cold_large(bench: Bench) -> None:
    """large reads ≥ 0.97 of fio io_uring by one call, ≥ 0.95 by 4 workers"""
    path = pages.make_file(bench, 4 * GIB)
    size = path.stat().st_size
    common = ["-f", path, "-x", 0, "-I", 0, "-T", math.ceil(bench.secs), "--cache", "bypass"]
    parts = ["--numjobs=4", f"--size={size // 4}", f"--offset_increment={size // 4}", "--iodepth=1"]
    ways = (
        ("one call of 1 GiB", ["-w", 1, "-s", size, "-i", "1G"], [f"--size={size}", "--iodepth=16"]),
        ("1M x 4", ["-w", 4, "-s", size, "-i", "1M"], parts),
    )
    for case, ours, theirs in ways:
        subjects = of_builds(bench, forebay_bench, [*common, *ours])
        if bench.wants("fio"):
            large = ["--rw=read", "--bs=1M", "--ioengine=io_uring", *theirs]
            subjects.append(Subject("fio", partial(fio, bench, path, large, False)))
        bench.alternate("cold-large", case, subjects, partial(pages.cold, path))


def writes(bench: Bench) -> None:
    """to the disk by O_DIRECT ≥ 0.95 of fio"""
    path = pages.make_file(bench, 4 * GIB, "written")
    size = path.stat().st_size
    flags = ["-f", path, "-w", 4, "-s", size, "-i", "1M", "-x", 0, "-I", 1, "-T", math.ceil(bench.secs), "--overwrite"]
    subjects = of_builds(bench, forebay_bench, [*flags, "--cache", "bypass"])
    if bench.wants("fio"):
        parts = ["--numjobs=4", f"--size={size // 4}", f"--offset_increment={size // 4}", "--iodepth=1"]
        large = ["--rw=write", "--bs=1M", "--ioengine=io_uring", *parts]
        subjects.append(Subject("fio", partial(fio, bench, path, large, False)))
    bench.alternate("writes", "disk, 1M x 4", subjects, partial(pages.cold, path))


def order(bench: Bench) -> None:
    """what the order behind the default streams costs: cuFileRead with it, without, and NVIDIA's, which has none"""
    path, prepare = warm_file(bench, 2 * GIB)
    ways: list[tuple[str, str, int, list[Any]]] = [(f"4K x {n}", "4K", n, ["--random"]) for n in (1, 4, 8, 16)]
    ways += [("64K x 16", "64K", 16, ["--random"]), ("1M x 16", "1M", 16, []), ("16M x 1", "16M", 1, [])]
    ways.append(("batch 128 x 4K", "4K", 1, ["--api", "batch", "--random", "--batch", 128, "--inflight", 1]))
    ways += [(f"busy, 4K x {n}", "4K", n, ["--random", "--busy"]) for n in (1, 16)]
    ways.append(("busy, 1M x 16", "1M", 16, ["--busy"]))
    for case, io, threads, more in ways:
        flags = ["--file", path, "--io", io, "--threads", threads, "--warm", "--secs", bench.secs, "--passes", 5, *more]
        subjects = [*of_builds(bench, cufile_bench, flags, io == "4K"), *nvidia(bench, cufile_bench, flags, io == "4K")]
        none = partial(cufile_bench, bench, bench.build, flags, io == "4K", {"FOREBAY_ORDER": "none"})
        subjects.append(Subject("none", none))
        bench.alternate("order", case, subjects, prepare)


def plain(name: str, unit: str, value: float, way: str = "") -> Figure:
    return {"figure": name, "unit": unit, "value": value, "user": None, "system": None, "way": way}


def step_times(
    bench: Bench, build: Path | None, arguments: list[Any], environment: dict[str, str] | None = None
) -> Measured:
    """Training steps alone and beside reads: by how much they are slower, and how much longer the device is waited for."""
    figures, report = cufile_bench(bench, build, arguments, True, environment)
    alone, beside = report["step"]["alone"], report["step"]["beside"]
    slowed = (beside["step_us"]["p50"] / alone["step_us"]["p50"] - 1) * 100
    added = beside["sync_us"]["mean"] - alone["sync_us"]["mean"]
    return [
        plain("step alone", "µs", alone["step_us"]["p50"]),
        plain("step slowed by", "%", slowed),
        plain("wait for the device, mean, more", "µs", added),
        plain("wait for the device, worst", "µs", beside["sync_us"]["max"]),
        *(dict(one, figure=f"reads, {one['figure']}") for one in figures),
        *floors(report["step"]),
    ], report


def floors(steps: dict[str, Any]) -> list[Figure]:
    """The same beside kernels that only sleep, and beside threads that only spin."""
    alone = steps["alone"]["step_us"]["p50"]
    return [
        plain(f"floor: beside {name}", "%", (found["step_us"]["p50"] / alone - 1) * 100)
        for name, found in steps.get("floor", {}).items()
    ]


def step(bench: Bench) -> None:
    """a step is slowed ≤ 3 %; the wait for the device + ≤ 200 µs mean, ≤ 2 ms worst"""
    path, prepare = warm_file(bench, 2 * GIB)
    flags = ["--file", path, "--io", "4K", "--random", "--threads", 16, "--warm", "--secs", bench.secs, "--passes", 2]
    flags.append("--step")
    floor = partial(step_times, bench, bench.build, [*flags, "--floor"])
    subjects = [*beside_off(bench, step_times, flags), *nvidia(bench, step_times, flags)]
    subjects.append(Subject("floor", floor, once=True))
    bench.alternate("step", "steps beside 4K x 16", subjects, prepare)
