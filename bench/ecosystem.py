#!/usr/bin/env python3
"""Shows that programs of others read through forebay's libcufile, as they are: cuCIM, DALI's numpy reader, cuDF's Parquet reader.

    bench/ecosystem.py run FOLDER [--forebay PATH] [--cases cucim,dali,cudf] [--parquet FILE] [--out FILE.jsonl]
    bench/ecosystem.py wheels                     # what to carry to a machine that reaches no registry, and how
    bench/ecosystem.py prune LIBRARY OUT [--arch 90]

`run` writes a file for each program, has the program read it in a process of its own under `forebay run --receipt`, compares the
bytes, and takes from the receipt how many came through forebay. A program that is not installed, that fails, reads wrong bytes or
passes the library by is a row that says so. --parquet names a file that pyarrow wrote elsewhere (one int64 column, 0, 1, 2, …).

`prune` empties the code for other GPUs in a library, so that its wheel can be carried: the entries stay where they are, their bytes are
zero, and `zstd -10` makes nothing of them.

Exit code: 0 if every case that is installed passed, else 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from runs import Cannot, ended, last_line

#: Wheel, MB as it is, MB pruned for one GPU and packed (None: small enough as it is), by case.
WHEELS: dict[str, list[tuple[str, float, float | None]]] = {
    "cucim": [("cucim-cu13", 18.1, None)],
    "dali": [
        ("nvidia-dali-cuda130", 198.7, 81.5),
        ("optree", 0.5, None),
        ("astunparse", 0.01, None),
        ("gast", 0.02, None),
    ],
    "cudf": [
        ("libcudf-cu13", 301.0, 50.7),
        ("pylibcudf-cu13", 8.2, None),
        ("nvidia-libnvcomp-cu13==5.3.0.16", 28.5, None),
        ("librmm-cu13", 4.8, None),
        ("rmm-cu13", 1.0, None),
        ("libkvikio-cu13", 3.2, None),
        ("rapids-logger", 0.2, None),
    ],
}
NEEDS = {
    "cucim": ("cucim", "cupy", "numpy"),
    "dali": ("nvidia.dali", "numpy"),
    "cudf": ("pylibcudf", "rmm", "cupy", "numpy"),
}
VALUES = 8 << 20
MAGIC = 0xBA55ED50


# ---- the programs, each in a process of its own ------------------------------------------------------------------------


def read_by_cucim(path: str) -> None:
    import cucim.clara.filesystem
    import cupy
    import numpy

    size = os.path.getsize(path)
    out = cupy.empty(size, "uint8")
    file = cucim.clara.filesystem.open(path, "r")
    assert file.pread(out, size, 0) == size, "a short read"
    file.close()
    assert numpy.array_equal(out.get().view("int64"), numpy.arange(size // 8)), "wrong bytes"


def read_by_dali(path: str) -> None:
    import numpy
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=1, num_threads=2, device_id=0)
    def pipeline() -> Any:
        return fn.readers.numpy(device="gpu", files=[path])

    made = pipeline()
    made.build()
    found = made.run()[0].as_cpu().as_array()[0]
    assert numpy.array_equal(found, numpy.arange(VALUES)), "wrong bytes"


def read_by_cudf(path: str) -> None:
    import cupy
    import pylibcudf

    source = pylibcudf.io.SourceInfo([path])
    options = pylibcudf.io.parquet.ParquetReaderOptions.builder(source).build()
    column = pylibcudf.io.parquet.read_parquet(options).tbl.columns()[0]
    values = cupy.asarray(column.data()).view("int64")
    assert bool((values == cupy.arange(column.size())).all()), "wrong bytes"


CASES: dict[str, Callable[[str], None]] = {"cucim": read_by_cucim, "dali": read_by_dali, "cudf": read_by_cudf}


# ---- around them -------------------------------------------------------------------------------------------------------


def is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def make_file(case: str, folder: Path, parquet: Path | None) -> Path:
    import numpy

    if case == "cudf" and parquet is not None:
        return parquet
    path = folder / {"cucim": "cucim.bin", "dali": "dali.npy", "cudf": "cudf.parquet"}[case]
    if path.exists():
        return path
    values = numpy.arange(VALUES)
    if case == "cudf":
        if not is_installed("pyarrow"):
            raise Cannot(
                "pyarrow is not installed to write its file: --parquet FILE names one that was written elsewhere"
            )
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"x": values}), path, compression="none", use_dictionary=False)
    elif case == "dali":
        numpy.save(path, values)
    else:
        values.tofile(path)
    return path


def receipt_of(text: str) -> dict[str, Any]:
    """What the receipt at the end of `forebay run` says: its lines, and the bytes that engines of forebay read."""
    begin = text.find("receipt of process")
    if begin < 0:
        return {"lines": [], "reads": 0}
    lines = [line.rstrip() for line in text[begin:].splitlines() if line.strip()]
    reads = [int(found[1]) for line in lines if (found := re.match(r"\s+reads\s+(\d+):", line))]
    return {"lines": lines[:20], "reads": sum(reads)}


def forebay_command(given: str | None) -> str:
    found = given or shutil.which("forebay")
    if found is None:
        raise Cannot("the command forebay is not there: --forebay target/release/forebay, or pip install forebay")
    return found


def run_case(case: str, options: argparse.Namespace) -> dict[str, Any]:
    missing = [package for package in NEEDS[case] if not is_installed(package)]
    if missing:
        return {"result": "skipped", "why": f"not installed: {', '.join(missing)} (bench/ecosystem.py wheels)"}
    path = make_file(case, options.folder, options.parquet)
    command = [
        forebay_command(options.forebay),
        "run",
        "--receipt",
        "--",
        sys.executable,
        __file__,
        "case",
        case,
        str(path),
    ]
    code, text, _ = ended(command, options.limit, subprocess.STDOUT)
    receipt = receipt_of(text)
    if code:
        before = text[: text.find("receipt of process")] if receipt["lines"] else text
        return {"result": "failed", "why": last_line(before), "receipt": receipt["lines"]}
    if not receipt["reads"]:
        return {
            "result": "passed by",
            "why": "right bytes, and none through forebay's libcufile",
            "output": text[-1000:],
        }
    return {"result": "passed", "bytes": path.stat().st_size, "reads": receipt["reads"], "receipt": receipt["lines"]}


def run(options: argparse.Namespace) -> int:
    options.folder.mkdir(parents=True, exist_ok=True)
    out = options.out or options.folder / "ecosystem.jsonl"
    rows = []
    for case in options.cases:
        try:
            found = run_case(case, options)
        except Cannot as error:
            found = {"result": "failed", "why": str(error)}
        except Exception as error:
            found = {"result": "failed", "why": f"{type(error).__name__}: {error}"}
        rows.append((case, found))
        with out.open("a") as file:
            file.write(json.dumps({"at": time.strftime("%FT%TZ", time.gmtime()), "case": case, **found}) + "\n")
    print("| program | result | through forebay |\n|---|---|---|")
    for case, found in rows:
        told = found.get("why") or f"{found['reads']} reads, {found['bytes'] / 1e6:.0f} MB; " + engine_of(
            found["receipt"]
        )
        print(f"| {case} | {found['result']} | {told} |")
    return int(any(found["result"] in ("failed", "passed by") for _, found in rows))


def engine_of(lines: list[str]) -> str:
    return "; ".join(" ".join(line.split()[1:]) for line in lines if line.strip().startswith("engine"))


# ---- wheels ------------------------------------------------------------------------------------------------------------


def containers(data: bytearray) -> list[tuple[int, int]]:
    """Where containers of GPU code begin and end."""
    found, place = [], data.find(struct.pack("<I", MAGIC))
    while place >= 0:
        _, _, header, size = struct.unpack_from("<IHHQ", data, place) if place + 16 <= len(data) else (0, 0, 0, 0)
        end = place + header + size
        if header == 16 and end <= len(data):
            found.append((place + header, end))
        place = data.find(struct.pack("<I", MAGIC), place + 4)
    return found


def emptied(data: bytearray, arch: int) -> tuple[int, int]:
    """Zeroes the code for other GPUs than ``sm_ARCH``; how many bytes are kept and emptied."""
    kept = gone = 0
    for begin, end in containers(data):
        place = begin
        while place + 32 <= end:
            header, size = struct.unpack_from("<IQ", data, place + 4)
            stop = place + header + size
            if header < 32 or stop > end:
                break
            if struct.unpack_from("<I", data, place + 28)[0] == arch:
                kept += size
            else:
                gone += size
                data[place + header : stop] = bytes(size)
            place = stop
    return kept, gone


def prune(options: argparse.Namespace) -> int:
    data = bytearray(options.library.read_bytes())
    kept, gone = emptied(data, options.arch)
    if not kept:
        print(f"error: {options.library} has no code for sm_{options.arch}: it would be of no use", file=sys.stderr)
        return 1
    options.result.write_bytes(data)
    print(
        f"{len(data) / 1e6:.1f} MB, of it GPU code {kept / 1e6:.1f} kept and {gone / 1e6:.1f} emptied: zstd -10 {options.result}"
    )
    return 0


def wheels(_: argparse.Namespace) -> int:
    print(
        "pip download --no-deps --only-binary=:all: --platform manylinux_2_28_x86_64 -d WHEELS PACKAGE; numpy and cupy are there\n"
    )
    print("| case | wheel | MB | pruned and packed, MB |\n|---|---|---|---|")
    for case, packages in WHEELS.items():
        for name, size, pruned in packages:
            print(f"| {case} | {name} | {size:g} | {'–' if pruned is None else f'{pruned:g}'} |")
    print(
        "\nTo prune: unzip the wheel; bench/ecosystem.py prune LIBRARY LIBRARY.new for its largest .so; zstd -10 it; carry it and\n"
        "the rest; zstd -d there, and put the folder on PYTHONPATH (LD_LIBRARY_PATH for its lib64). With headers and the modules of\n"
        "other Pythons removed, strip -s of all libraries, and tar and xz -6, the case dali is 53.6 MB and cudf, without KvikIO, 54.6:\n"
        "pruned so they are imported on a machine without a GPU. cuDF's KvikIO needs to be set\n"
        "to use cuFile: forebay run sets KVIKIO_COMPAT_MODE=OFF. If a loader refuses emptied code, carry the whole library."
    )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run")
    one.set_defaults(call=run)
    one.add_argument("folder", type=Path)
    one.add_argument("--forebay")
    one.add_argument("--cases", type=lambda text: text.split(","), default=list(CASES))
    one.add_argument("--parquet", type=Path)
    one.add_argument("--limit", type=float, default=180.0)
    one.add_argument("--out", type=Path)
    one = commands.add_parser("wheels")
    one.set_defaults(call=wheels)
    one = commands.add_parser("prune")
    one.set_defaults(call=prune)
    one.add_argument("library", type=Path)
    one.add_argument("result", type=Path)
    one.add_argument("--arch", type=int, default=90)
    one = commands.add_parser("case")
    one.set_defaults(call=lambda options: CASES[options.name](options.path) or 0)
    one.add_argument("name", choices=list(CASES))
    one.add_argument("path")
    options = parser.parse_args()
    if unknown := {*getattr(options, "cases", [])} - {*CASES}:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    return int(options.call(options))


if __name__ == "__main__":
    sys.exit(main())
