#!/usr/bin/env python3
"""Halves and doubles each constant of crates/forebay-engine/src/tuning.rs, and prints what that changes in five rows.

    bench/constants.py --prepare            builds a test build in target/constants, which can be carried elsewhere
    bench/constants.py [--scratch DIR] [--json FILE] [--seconds 900]     runs there, on a machine with a GPU; prints a table

The test build is a copy of the sources in which the constants are variables: `FOREBAY_CONSTANTS=files.SHARES=0.5,files.FILES=2`
multiplies them. Constants that the compiler needs (lengths of arrays) stay as they are, and are listed. Groups of constants are changed at
once, one group after the other, between runs with none changed, which give the noise. A group that moves a row beyond the noise is cut in
halves until single constants are left, or the time is over.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
READY = ROOT / "target/constants"
TUNING = "crates/forebay-engine/src/tuning.rs"
CONSTANT = re.compile(r"^    pub\(crate\) const (\w+): ([^=]+?) = [^;]+;$", re.M)
MODULE = re.compile(r"^pub\(crate\) mod (\w+) \{$(.*?)^\}$", re.M | re.S)
GIB = 1 << 30
#: A row moves if the median leaves the range of unchanged runs by this part of it.
BEYOND = 0.02

VARIABLES = r"""
/// What a variable is multiplied by.
pub(crate) trait Scaled {
    fn scale(&mut self, by: f64);
}
macro_rules! scaled { ($($type:ty)*) => { $(impl Scaled for $type {
    fn scale(&mut self, by: f64) { *self = ((*self as f64 * by) as $type).max(1 as $type); }
})* } }
scaled!(usize u64 u32 u8);
impl Scaled for f64 {
    fn scale(&mut self, by: f64) { *self *= by; }
}
impl Scaled for std::time::Duration {
    fn scale(&mut self, by: f64) { *self = self.mul_f64(by); }
}
impl<T: Scaled> Scaled for (T, T) {
    fn scale(&mut self, by: f64) { self.0.scale(by); self.1.scale(by); }
}
extern "C" fn begin() {
    let Ok(all) = std::env::var("FOREBAY_CONSTANTS") else { return };
    for one in all.split(',').filter(|one| !one.is_empty()) {
        let Some((name, by)) = one.split_once('=') else { panic!("FOREBAY_CONSTANTS: {one}") };
        // SAFETY: nothing else runs yet.
        unsafe { set(name, by.parse().expect("a factor")) }
    }
}
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
"""


def constants(text):
    """(module, name, type) of each constant: they have one line each, which a test of that file asks."""
    for module in MODULE.finditer(text):
        for found in CONSTANT.finditer(module.group(2)):
            yield module.group(1), found.group(1), " ".join(found.group(2).split())


def variables(text, fixed):
    """The module `tuning` with variables in place of constants, but for those that are fixed."""
    out = ['#[path = "tuning_constants.rs"]\n#[allow(dead_code)]\npub(crate) mod constants;\n', VARIABLES]
    setters, modules = [], {}
    for module, name, kind in constants(text):
        modules.setdefault(module, []).append((name, kind))
    for module, members in modules.items():
        out.append(
            f"#[allow(improper_ctypes, dead_code, unused_imports)]\npub(crate) mod {module} {{\nuse std::time::Duration;\n"
        )
        for name, kind in members:
            if (module, name) in fixed:
                out.append(f"pub(crate) use super::constants::{module}::{name};\n")
                continue
            symbol = f"forebay_constant_{module}_{name}"
            out.append(f'unsafe extern "C" {{ #[link_name = "{symbol}"] pub(crate) safe static {name}: {kind}; }}\n')
            out.append(
                f'#[unsafe(export_name = "{symbol}")] pub(super) static mut OWN_{name}: {kind} = super::constants::{module}::{name};\n'
            )
            setters.append(f'"{module}.{name}" => unsafe {{ (*(&raw mut {module}::OWN_{name})).scale(by) }},\n')
        out.append("}\n")
    out.append(
        "unsafe fn set(name: &str, by: f64) { match name {\n"
        + "".join(setters)
        + '_ => panic!("no constant {name}") } }\n'
    )
    return "".join(out)


def fixed_by(messages, members):
    """Constants that errors of the compiler name: as (module, name)."""
    found = set()
    for line in messages.splitlines():
        record = json.loads(line) if line.startswith("{") else {}
        message = record.get("message") or {}
        if message.get("level") != "error":
            continue
        spans = [
            *message.get("spans", []),
            *(s for child in message.get("children", []) for s in child.get("spans", [])),
        ]
        said = " ".join([message.get("message", ""), *(part["text"] for span in spans for part in span["text"])])
        words = set(re.findall(r"\w+", said))
        found |= {(module, name) for module, name, _ in members if name in words}
    return found


def prepare():
    source = READY / "source"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", source], input=archive, check=True)
    text = (source / TUNING).read_text()
    (source / TUNING).with_name("tuning_constants.rs").write_text(text)
    members = list(constants(text))
    fixed = {(module, name) for module, name, kind in members if kind.startswith("[")}
    target = {**os.environ, "CARGO_TARGET_DIR": str(READY / "target")}
    while True:
        (source / TUNING).write_text(variables(text, fixed))
        # Some constants are only needed when code is made.
        for command in (["check"], ["build", "--release"]):
            command = ["cargo", *command, "-p", "forebay-engine", "--message-format=json", "--quiet"]
            done = subprocess.run(command, cwd=source, env=target, capture_output=True, text=True)
            if done.returncode != 0:
                break
        else:
            break
        more = fixed_by(done.stdout, members) - fixed
        if not more:
            sys.exit(done.stderr[-4000:] + done.stdout[-8000:])
        fixed |= more
        print(f"{len(more)} more are needed by the compiler", flush=True)
    (READY / "constants.json").write_text(
        json.dumps(
            {
                "variables": [f"{m}.{n}" for m, n, _ in members if (m, n) not in fixed],
                "fixed": sorted(f"{m}.{n}" for m, n in fixed),
            }
        )
    )
    packages = ["-p", "forebay-cli", "-p", "forebay-libcufile", "-p", "forebay-cufile", "-p", "forebay-python"]
    for what in (packages, ["-p", "forebay-cufile", "--example", "cufile_bench"]):
        subprocess.run(["cargo", "build", "--release", *what], cwd=source, env=target, check=True)
    out = READY / "build"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(source / "python/forebay", out / "python/forebay")
    release = READY / "target/release"
    for built, name in [
        ("forebay", "forebay"),
        ("libcufile.so", "libcufile.so"),
        ("examples/cufile_bench", "cufile_bench"),
        ("lib_forebay.so", "python/forebay/_forebay.abi3.so"),
    ]:
        subprocess.run(["strip", "-o", out / name, release / built], check=True)
    print(f"{out}: {sum(file.stat().st_size for file in out.rglob('*') if file.is_file()) >> 20} MB")


LOAD = """
import time, sys, torch
from forebay import load_file
torch.empty(1, device="cuda")
start = time.perf_counter()
tensors = load_file(sys.argv[1], device="cuda:0")
torch.cuda.synchronize()
print(sum(t.numel() * t.element_size() for t in tensors.values()) / (time.perf_counter() - start) / 1e9)
"""


def bench(*arguments):
    def run(files, environment):
        out = files / "out.json"
        named = (str(files / a[1:]) if a[0] == "@" else a for a in arguments)
        command = [str(READY / "build/forebay"), "bench", "-d", "0", *named, "--json", str(out)]
        subprocess.run(command, check=True, capture_output=True, timeout=60, env=environment)
        return json.loads(out.read_text())["passes"][-1]["gb_per_s"]

    return run


def cufile(*arguments):
    def run(files, environment):
        build = READY / "build"
        command = [build / "cufile_bench", "--lib", build / "libcufile.so", "--file", files / "warm", *arguments]
        done = subprocess.run(
            [*map(str, command)], check=True, capture_output=True, text=True, timeout=60, env=environment
        )
        return json.loads(done.stdout.splitlines()[-1])["passes"][-1]["gb_per_s"]

    return run


def load(files, environment):
    command = [sys.executable, "-c", LOAD, str(files / "model.safetensors")]
    environment = {**environment, "PYTHONPATH": str(READY / "build/python")}
    return float(
        subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=60).stdout
    )


ROWS = {
    "load": load,
    "cuFile 1M x 16": cufile("--io", "1M", "--threads", "16", "--secs", "0.5", "--warm"),
    "cuFile 4K x 16": cufile("--io", "4K", "--threads", "16", "--random", "--secs", "0.5", "--warm"),
    "gather 4K": bench("-f", "@warm", "--gather", "-i", "4K", "-T", "0.5"),
    "cold 1M x 4": bench("-f", "@cold", "-w", "4", "-i", "1M", "--drop-cache", "--engine", "staged"),
}


class Effects:
    """What runs with some constants changed reach, beside unchanged runs of the same time."""

    def __init__(self, files, out, end):
        self.files, self.out, self.end = files, out, end
        self.unchanged = {row: [] for row in ROWS}

    def keep(self, **record):
        if self.out:
            with open(self.out, "a") as file:
                file.write(json.dumps(record) + "\n")

    def one(self, row, changed):
        environment = {**os.environ, "FOREBAY_CONSTANTS": changed}
        try:
            return ROWS[row](self.files, environment)
        except (subprocess.SubprocessError, OSError, LookupError, ValueError) as error:
            said = (getattr(error, "stderr", "") or "")[-500:]
            self.keep(row=row, changed=changed, failed=str(error)[:300], said=said)
            return 0.0

    def base(self, row, times):
        for _ in range(times):
            self.unchanged[row].append(self.one(row, ""))

    def moved(self, row, names, factor):
        """The ratio to the median of unchanged runs if all of three runs leave their range, else None."""
        changed = ",".join(f"{name}={factor}" for name in names)
        values, known = [], self.unchanged[row]
        low, high = min(known) * (1 - BEYOND), max(known) * (1 + BEYOND)
        for _ in range(3):
            values.append(self.one(row, changed))
            if low <= values[-1] <= high:
                break
        ratio = statistics.median(values) / statistics.median(known)
        self.keep(row=row, factor=factor, names=names, values=values, ratio=ratio)
        return ratio if len(values) == 3 and not any(low <= value <= high for value in values) else None

    def search(self, row, names, factor, found):
        if time.monotonic() > self.end:
            found.append((row, factor, names, None))
            return
        ratio = self.moved(row, names, factor)
        if ratio is None:
            return
        if len(names) == 1:
            found.append((row, factor, names, ratio))
            print(f"{row:<16} {names[0]:<34} x {factor:<4} {ratio:6.2f}", flush=True)
            return
        half = len(names) // 2
        self.search(row, names[:half], factor, found)
        self.search(row, names[half:], factor, found)
        self.base(row, 1)


def make_files(folder):
    block = os.urandom(1 << 20)
    header = {
        f"w{n}": {"dtype": "F32", "shape": [1 << 24], "data_offsets": [n << 26, (n + 1) << 26]} for n in range(48)
    }
    text = json.dumps(header).encode()
    for name, size, head in [
        ("warm", 4 * GIB, b""),
        ("cold", GIB, b""),
        ("model.safetensors", 3 * GIB, len(text).to_bytes(8, "little") + text),
    ]:
        with open(folder / name, "wb") as file:
            file.write(head)
            for _ in range(size >> 20):
                file.write(block)
            os.fsync(file.fileno())


def groups(names, count):
    """Neighbours, which are of one module and work together, go to different groups."""
    return [group for group in (names[start::count] for start in range(count)) if group]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--scratch", default=".", help="a folder on the disk to measure")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--groups", type=int, default=14)
    parser.add_argument("--first", type=int, default=0, help="the first group: those before it were measured")
    parser.add_argument("--only", help="only constants whose name contains one of these, and only single ones")
    args = parser.parse_args()
    if args.prepare:
        return prepare()
    names = json.loads((READY / "constants.json").read_text())["variables"]
    if args.only:
        names = [name for name in names if any(word in name for word in args.only.split(","))]
        args.groups = len(names)
    found = []
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        files = Path(folder).resolve()
        make_files(files)
        effects = Effects(files, args.json, time.monotonic() + args.seconds)
        for row in ROWS:
            effects.base(row, 2)
            effects.unchanged[row].clear()
            effects.base(row, 5)
            effects.keep(row=row, unchanged=effects.unchanged[row])
        for number, group in list(enumerate(groups(names, args.groups)))[args.first :]:
            if time.monotonic() > effects.end:
                print(f"the time is over: go on with --first {number}")
                break
            for factor in (0.5, 2.0):
                for row in ROWS:
                    effects.search(row, group, factor, found)
        print("\nunchanged, GB/s")
        for row, values in effects.unchanged.items():
            middle, least, most = statistics.median(values), min(values), max(values)
            print(f"{row:<16} {middle:8.3f}  {least:.3f} to {most:.3f}, {len(values)} runs")
    print("\nwhat moves a row beyond its noise; - was not looked at singly")
    for row, factor, some, ratio in found:
        print(f"{row:<16} x {factor:<4} {'-' if ratio is None else f'{ratio:.2f}':<6} {' '.join(some)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
