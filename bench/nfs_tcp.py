#!/usr/bin/env python3
"""Reads a file of an NFS server (nfs-ganesha, on loopback) by forebay, libnfs and a bare receive, alternating: GB/s and CPU s/GB.

    bench/nfs_tcp.py --prepare              builds and gathers what a run needs in target/nfs-tcp, which can be carried elsewhere
    bench/nfs_tcp.py [--json FILE] [--gpu]  runs; prints a table of medians, and which of the bars hold

Preparing needs cargo, a C compiler, Debian's libnfs-dev and apt-get. Running needs root (namespaces), python3 and target/nfs-tcp.
Server and client have CPUs of their own: the upper and the lower half of those that the process may use, or what --server-cpus and
--client-cpus name (`0-7`). With fewer than 4 CPUs they share them, and rates mean nothing.

`forebay` is `forebay bench -P nfs://…` into host memory (`forebay, GPU`: into that of GPU 0), `client` its NFS client alone, `libnfs` its
asynchronous reads over as many contexts, each with a thread and a copy to the caller's memory, `bare` the same calls made
beforehand and received unread. All have 8 calls of 1 MiB under way on each connection.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
READY = ROOT / "target/nfs-tcp"
URL = "nfs://127.0.0.1/export/file?version=3"
#: Connections, subject, at least this ratio of rates, at most this ratio of CPU time, to that subject.
BARS = [
    (1, "forebay", 1.0, None, "libnfs"),
    (1, "forebay", 0.95, None, "bare"),
    (4, "forebay", 1.2, 0.7, "libnfs"),
    (8, "forebay", 1.2, 0.7, "libnfs"),
    (4, "forebay, GPU", 1.2, 0.7, "libnfs"),
    (8, "forebay, GPU", 1.2, 0.7, "libnfs"),
]


def prepare() -> None:
    """The programs, and the server with its libraries."""
    READY.mkdir(parents=True, exist_ok=True)
    build = [str(ROOT / ".ci/cargo"), "build", "--quiet", "--release"]
    subprocess.run([*build, "-p", "forebay-cli"], cwd=ROOT, check=True)
    subprocess.run([*build, "-p", "forebay-nfs", "--example", "nfs_read"], cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    for program in ("forebay", "examples/nfs_read"):
        shutil.copy2(target / "release" / program, READY)
    peer = ["cc", "-O2", str(ROOT / "bench/nfs_peer.c"), "-o", str(READY / "nfs_peer"), "-l:libnfs.a", "-lpthread"]
    subprocess.run(peer, check=True)
    with tempfile.TemporaryDirectory() as export:
        server = [str(ROOT / "tests/nfs/ganesha"), "true"]
        subprocess.run(server, check=True, env=environment() | {"EXPORT": export})
    shutil.rmtree(READY / "cache/forebay/ganesha/debs", ignore_errors=True)
    print(f"{READY} is ready")


def environment() -> dict[str, str]:
    return os.environ | {"XDG_CACHE_HOME": str(READY / "cache")}


def halves() -> tuple[str, str]:
    """CPUs of the client and of the server."""
    cpus = sorted(os.sched_getaffinity(0))
    middle = len(cpus) // 2
    parts = (cpus[:middle], cpus[middle:]) if len(cpus) >= 4 else (cpus, cpus)
    return tuple(",".join(map(str, part)) for part in parts)  # type: ignore[return-value]


def run(line: list[str], variables: dict[str, str]) -> str:
    done = subprocess.run(line, check=False, capture_output=True, text=True, timeout=120, env=variables)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(line)} failed\n{done.stderr[-500:]}")
    return done.stdout


def read(subject: str, connections: int, options: argparse.Namespace, scratch: Path) -> tuple[float, float]:
    """GB/s and CPU seconds per GB of one run."""
    rounds = str(options.rounds)
    if subject.startswith("forebay"):
        out = scratch / "run.json"
        line = [str(READY / "forebay"), "bench", "-P", URL, "-I", "0", "-d", "0", "-x", "0", "-i", "4M"]
        line += ["-s", str(options.size), "-w", str(connections * 4), "-T", str(options.seconds), "--json", str(out)]
        variables = os.environ | {"FOREBAY_NFS_CONNECTIONS": str(connections)}
        if not subject.endswith("GPU"):
            # Without a driver device 0 is host memory.
            variables["FOREBAY_LIBCUDA"] = "/nonexistent"
        run(line, variables)
        found = json.loads(out.read_text())["passes"][-1]
        cpu = found["cpu"]
        return found["gb_per_s"], cpu["user_s_per_gb"] + cpu["system_s_per_gb"]
    if subject == "libnfs":
        line = [str(READY / "nfs_peer"), "127.0.0.1", "/export", "file", "3", str(connections), "8", rounds]
    else:
        line = [str(READY / "nfs_read"), subject, URL, str(connections), rounds]
    found = json.loads(run(line, dict(os.environ)))
    return found["bytes"] / found["seconds"] / 1e9, found["cpu_s"] / found["bytes"] * 1e9


def inside(options: argparse.Namespace) -> None:
    """Measures, beside the server."""
    subjects = ["libnfs", "bare", "client", "forebay", *(["forebay, GPU"] if options.gpu else [])]
    values: dict[tuple[int, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(options.repeats + 1):
            for connections in options.connections:
                turn = subjects[repeat % len(subjects) :] + subjects[: repeat % len(subjects)]
                for subject in turn:
                    value = read(subject, connections, options, Path(folder))
                    # The first turn warms the server up.
                    if repeat > 0:
                        values.setdefault((connections, subject), []).append(value)
    medians = {
        key: tuple(statistics.median(column) for column in zip(*found, strict=True)) for key, found in values.items()
    }
    print("| connections | by | GB/s | least to most | CPU s/GB | rate to libnfs | CPU to libnfs | rate to bare |")
    print("|---|---|---|---|---|---|---|---|")
    for (connections, subject), (rate, cpu) in medians.items():
        peer, bare = medians[connections, "libnfs"], medians[connections, "bare"]
        rates = [value[0] for value in values[connections, subject]]
        cells = [connections, subject, f"{rate:.3g}", f"{min(rates):.3g} to {max(rates):.3g}", f"{cpu:.3f}"]
        cells += [f"{rate / peer[0]:.2f}", f"{cpu / peer[1]:.2f}", f"{rate / bare[0]:.2f}"]
        print(f"| {' | '.join(map(str, cells))} |")
    for connections, subject, least, most, other in BARS:
        if (connections, subject) in medians:
            (rate, cpu), (other_rate, other_cpu) = medians[connections, subject], medians[connections, other]
            holds = rate >= least * other_rate and (most is None or cpu <= most * other_cpu)
            words = f"at least {least} × the rate" + (f" at most {most} × the CPU time" if most else "")
            print(f"{'holds' if holds else 'does not hold'}: {connections} connections, {subject}: {words} of {other}")
    if options.json:
        rows = [
            {"connections": connections, "by": subject, "gb_per_s": rate, "cpu_s_per_gb": cpu}
            for (connections, subject), found in values.items()
            for rate, cpu in found
        ]
        cpus = {"client_cpus": options.client_cpus, "server_cpus": options.server_cpus}
        Path(options.json).write_text(json.dumps({**cpus, "values": rows}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="forebay's NFS client over TCP beside libnfs and a bare receive.")
    parser.add_argument("--prepare", action="store_true", help="build and gather what a run needs")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 4, 8], metavar="N", help="1 4 8")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each, of which the median counts (5)")
    parser.add_argument("--size", type=int, default=512 << 20, help="bytes of the file, in memory (512 MiB)")
    parser.add_argument("--rounds", type=int, default=4, help="how often a run reads it (4)")
    parser.add_argument("--seconds", type=int, default=2, help="how long a run of `forebay bench` takes (2)")
    parser.add_argument("--gpu", action="store_true", help="into the memory of GPU 0, too")
    client, server = halves()
    parser.add_argument("--client-cpus", default=client, metavar="LIST", help=f"({client})")
    parser.add_argument("--server-cpus", default=server, metavar="LIST", help=f"({server})")
    parser.add_argument("--json", metavar="FILE", help="write every value there")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.prepare:
        prepare()
        return 0
    if options.inside:
        inside(options)
        return 0
    if not (READY / "nfs_peer").exists():
        sys.exit("error: nothing is prepared\nhint: bench/nfs_tcp.py --prepare")
    if options.client_cpus == options.server_cpus:
        print(f"server and client share CPUs {client}: no rates", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as export:
        with open(Path(export) / "file", "wb") as file:
            for _ in range(options.size >> 20):
                file.write(os.urandom(1 << 20))
        line = ["taskset", "-c", options.server_cpus, str(ROOT / "tests/nfs/ganesha")]
        line += ["taskset", "-c", options.client_cpus, sys.executable, str(Path(__file__).resolve()), "--inside"]
        kept = ["--client-cpus", options.client_cpus, "--server-cpus", options.server_cpus]
        # The last ones count.
        words = [*line, *sys.argv[1:], *kept]
        return subprocess.run(words, env=environment() | {"EXPORT": export}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
