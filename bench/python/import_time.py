#!/usr/bin/env python3
"""How long `import forebay` takes, and that it imports no framework.

    bench/python/import_time.py [--repeats 15] [--results FILE]

Fresh processes take turns: one imports nothing, one numpy, one numpy and then forebay. `beyond numpy` is what
the import of forebay took in a process that had numpy already, by its own clock; the whole processes stand beside.

Exit codes: 0; 1 if forebay imported a framework; 3 if forebay or numpy is missing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from common import Results, number, table

HEAVY = ["torch", "jax", "cupy", "safetensors", "numba", "transformers"]
PROGRAM = """
import json, sys, time
took, new = {}, {}
for name in sys.argv[1:]:
    before, start = set(sys.modules), time.perf_counter()
    try:
        __import__(name)
    except ImportError as error:
        sys.exit(f"cannot import {name}: {error}")
    took[name], new[name] = time.perf_counter() - start, sorted(set(sys.modules) - before)
print(json.dumps({"took": took, "new": new}))
"""


def run(names: list[str]) -> tuple[float, dict[str, Any]]:
    """Seconds of the whole process, and what it measured itself."""
    start = time.perf_counter()
    out = subprocess.run([sys.executable, "-c", PROGRAM, *names], capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if out.returncode:
        print(f"skipped: {out.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        raise SystemExit(3)
    return seconds, json.loads(out.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--results")
    options = parser.parse_args()
    kinds: dict[str, list[str]] = {"nothing": [], "numpy": ["numpy"], "numpy, forebay": ["numpy", "forebay"]}
    kinds["forebay alone"] = ["forebay"]
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    own: list[float] = []
    heavy: set[str] = set()
    for names in kinds.values():
        run(names)  # Compiles modules that are not compiled yet, and warms the page cache.
    for _ in range(options.repeats):
        for kind, names in kinds.items():
            took, found = run(names)
            seconds[kind].append(took)
            if kind == "numpy, forebay":
                own.append(found["took"]["forebay"])
            heavy |= {name for name in found["new"].get("forebay", []) if name in HEAVY}
    medians = {kind: statistics.median(values) for kind, values in seconds.items()}
    results = Results(options.results)
    record = {"work": "import", "beyond_numpy_ms": round(statistics.median(own) * 1e3, 2), "frameworks": sorted(heavy)}
    record |= {"process_ms": {kind: round(value * 1e3, 1) for kind, value in medians.items()}}
    results.add(record | {"repeats": options.repeats})
    rows = [[kind, number(value * 1e3)] for kind, value in medians.items()]
    table(f"import, medians of {options.repeats} fresh processes", ["process imports", "ms, whole process"], rows)
    print(f"import forebay beyond numpy: {number(statistics.median(own) * 1e3)} ms; frameworks imported: "
          f"{', '.join(sorted(heavy)) or 'none'}")  # fmt: skip
    if heavy:
        sys.exit(1)


if __name__ == "__main__":
    main()
