#!/usr/bin/env python3
"""Loads S3 servers over directories of one file system, alternating: GB/s, operations a second, CPU time of the server.

    bench/gateway.py --prepare            builds forebay and the load generator (target/gateway)
    bench/gateway.py [--json FILE]        runs; prints a table of medians, and which of the bars hold
    bench/gateway.py --rows get1,put      some of the rows
    bench/gateway.py --dir DIR            where the servers' files lie (/dev/shm)

forebay, versitygw and rclone are started by tests/s3/server, all before the first row; `bare` answers each GET with one file, by
sendfile or by pread and send, and writes the body of each PUT to a file, without a checksum. bench/gateway_load.c asks, the same for all: heads are signed before, and its time is not the server's.
All share the same two CPUs, or those of --cpus. Objects are warm. forebay serves with --no-sync, as the others do without asking;
`put, synced` and `put4k, synced` are forebay as users start it. A first turn of each does not count.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import hmac
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path
from typing import Any, NamedTuple

from objects import number

ROOT = Path(__file__).resolve().parents[1]
READY = ROOT / "target/gateway"
KEY, SECRET = "forebay", "of-a-test"
LARGE, PUT, SMALL, RANGE = 512 << 20, 64 << 20, 4096, 8 << 20
SMALL_KEYS = 1000
LIST_DIRS, LIST_NAMES = 1000, 1000
LIMIT_S = 150
#: What one process starts, the inner after the outer; the last two for the row of TLS alone.
SERVERS = ("versitygw", "rclone", "forebay", "forebay, synced", "versitygw, TLS", "forebay, TLS")
BARE = ("bare sendfile", "bare send")
BARE_PUT = "bare put"


class Row(NamedTuple):
    """What is asked, by how many connections, of whom; `unit` is what a rate counts."""

    work: str
    connections: int
    subjects: tuple[str, ...]
    unit: str = "GB"


PEERS = ("forebay", "versitygw", "rclone")
ROWS = {
    "get1": Row("get", 1, (*PEERS, *BARE)),
    "get16": Row("ranges", 16, (*PEERS, *BARE)),
    "tls1": Row("tls", 1, ("forebay, TLS", "versitygw, TLS")),
    "put": Row("put", 1, (*PEERS, "forebay, synced", BARE_PUT)),
    "get4k": Row("get4k", 64, ("forebay", "versitygw"), "operations"),
    "put4k": Row("put4k", 64, ("forebay", "versitygw", "forebay, synced"), "operations"),
    "list": Row("list", 1, ("forebay", "versitygw"), "operations"),
    "list/": Row("list/", 1, ("forebay", "versitygw"), "operations"),
    "idle": Row("idle", 16, ("forebay",), "operations"),
}


class Bar(NamedTuple):
    """The least ratio of rates and the largest of CPU time beside others; the most CPU µs an operation."""

    row: str
    others: tuple[str, ...]
    ours: str = "forebay"
    rate: float | None = None
    cpu: float | None = None
    most_us: float | None = None


BARS = [
    *(Bar(row, ("versitygw", "rclone"), rate=1.0, cpu=1.0) for row in ("get1", "get16")),
    *(Bar(row, BARE, cpu=1.15) for row in ("get1", "get16")),
    Bar("tls1", ("versitygw, TLS",), "forebay, TLS", rate=1.0),
    Bar("put", ("versitygw",), rate=3.0, cpu=0.4),
    Bar("get4k", ("versitygw",), rate=2.0, most_us=140),
    Bar("put4k", ("versitygw",), rate=2.0, most_us=280),
    *(Bar(row, ("versitygw",), rate=5.0) for row in ("list", "list/")),
]


def prepare() -> None:
    READY.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [str(ROOT / ".ci/cargo"), "build", "--quiet", "--release", "-p", "forebay-cli"], cwd=ROOT, check=True
    )
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "release"
    shutil.copy2(target / "forebay", READY)
    build_load()
    for name in ("versitygw", "rclone"):
        subprocess.run([str(ROOT / "tests/s3/server"), name, "true"], check=True)
    print(f"{READY} is ready")


def build_load() -> None:
    line = ["cc", "-O2", str(ROOT / "bench/gateway_load.c"), "-o", str(READY / "gateway_load"), "-lpthread"]
    subprocess.run(line, check=True)


# ---- requests --------------------------------------------------------------------------------------------------------


def head(port: int, method: str, target: str, extra: dict[str, str] | None = None, length: int | None = None) -> bytes:
    """The signed head of a request; the body is not signed."""
    path, _, query = target.partition("?")
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    fields = {"host": f"127.0.0.1:{port}", "x-amz-content-sha256": "UNSIGNED-PAYLOAD", "x-amz-date": stamp} | (
        extra or {}
    )
    names = ";".join(sorted(fields))
    lines = "".join(f"{name}:{fields[name]}\n" for name in sorted(fields))
    asked = f"{method}\n{path}\n{query}\n{lines}\n{names}\nUNSIGNED-PAYLOAD"
    scope = f"{stamp[:8]}/us-east-1/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(asked.encode()).hexdigest()}"
    key = f"AWS4{SECRET}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    signed = f"AWS4-HMAC-SHA256 Credential={KEY}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    if length is not None:
        fields["content-length"] = str(length)
    sent = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {target} HTTP/1.1\r\n{sent}authorization: {signed}\r\n\r\n".encode()


def heads(work: str, port: int, options: argparse.Namespace) -> list[bytes]:
    if work == "tls":
        return []
    if work == "get":
        return [head(port, "GET", "/bucket/object")] * 2
    if work == "ranges":
        starts = range(0, LARGE, RANGE)
        return [head(port, "GET", "/bucket/object", {"range": f"bytes={at}-{at + RANGE - 1}"}) for at in starts]
    if work == "put":
        sums = {"x-amz-checksum-crc64nvme": options.sums["put"]}
        return [head(port, "PUT", f"/bucket/put{at % 2}", sums, PUT) for at in range(8)]
    keys = [f"/bucket/small/{at % SMALL_KEYS:04}" for at in range(options.operations)]
    if work == "get4k":
        return [head(port, "GET", key) for key in keys]
    if work == "put4k":
        sums = {"x-amz-checksum-crc64nvme": options.sums["small"]}
        return [head(port, "PUT", key, sums, SMALL) for key in keys]
    delimiter = "delimiter=%2F&" if work == "list/" else ""
    return [head(port, "GET", f"/many?{delimiter}list-type=2")] * 5


def load(work: str, port: int, connections: int, asked: list[bytes], options: argparse.Namespace) -> dict[str, float]:
    bodies = {"put": "put", "put4k": "small", "upload": "object"}
    body = str(options.folder / bodies[work]) if work in bodies else "-"
    # Threads that read in turns cost least; a large body has one to itself.
    threads = min(connections, 2) if work.endswith("4k") else connections
    line = [str(READY / "gateway_load"), "ask", str(port), str(connections), str(threads), body]
    ended = subprocess.run(line, input=b"".join(asked), capture_output=True, timeout=LIMIT_S, check=False)
    if ended.returncode:
        raise RuntimeError(ended.stderr.decode(errors="replace").strip()[-300:])
    return json.loads(ended.stdout)


# ---- servers ---------------------------------------------------------------------------------------------------------


class Server(NamedTuple):
    port: int
    pid: int
    data: str


def cpu_of(pid: int) -> float:
    """CPU seconds of a process, by the kernel's clock of it."""
    return time.clock_gettime(~pid << 3 | 2)


def memory(pid: int, name: str) -> float:
    """A line of its status, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def start_bare(options: argparse.Namespace) -> dict[str, Server]:
    found = {}
    for name in (*BARE, BARE_PUT):
        port = free_port()
        line = [str(READY / "gateway_load"), "bare", str(port), str(options.folder / "object"), name.split()[1]]
        child = subprocess.Popen(line)
        found[name] = Server(port, child.pid, "")
    time.sleep(0.2)
    return found


def fill(servers: dict[str, Server], rows: dict[str, Row], options: argparse.Namespace) -> None:
    """The objects, through each server; the many keys as files."""
    works = {row.work for row in rows.values()}
    for name, server in servers.items():
        if name.endswith("TLS"):
            shutil.copyfile(options.folder / "object", Path(server.data) / "bucket/object")
            continue
        if works & {"get", "ranges", "idle"}:
            load("upload", server.port, 1, [head(server.port, "PUT", "/bucket/object", None, LARGE)], options)
        if works & {"get4k", "put4k", "idle"}:
            keys = [f"/bucket/small/{at:04}" for at in range(SMALL_KEYS)]
            load("put4k", server.port, 4, [head(server.port, "PUT", key, None, SMALL) for key in keys], options)
    for name in ("forebay", "versitygw"):
        if name in servers and works & {"list", "list/"}:
            for folder in range(LIST_DIRS):
                path = Path(servers[name].data) / f"many/{folder:04}"
                path.mkdir(parents=True)
                for at in range(LIST_NAMES):
                    os.close(os.open(path / f"{at:04}", os.O_CREAT | os.O_WRONLY, 0o644))


# ---- measurements ----------------------------------------------------------------------------------------------------


def measure(row: Row, server: Server, options: argparse.Namespace) -> dict[str, float]:
    if row.work == "idle":
        return measure_idle(row, server, options)
    asked = heads(row.work, server.port, options)
    before = cpu_of(server.pid)
    found = by_curl(server.port) if row.work == "tls" else load(row.work, server.port, row.connections, asked, options)
    found["server_cpu_s"] = cpu_of(server.pid) - before
    moved = found["sent"] if row.work == "put" else found["received"]
    found["units"] = found["count"] if row.unit == "operations" else moved / 1e9
    if row.work.startswith("list"):
        found["peak_mib"] = memory(server.pid, "VmHWM")
    return found


def by_curl(port: int) -> dict[str, float]:
    """The object by TLS: the load generator speaks none."""
    lines = head(port, "GET", "/bucket/object").decode().split("\r\n")[1:-2]
    line = [
        "curl",
        "--silent",
        "--fail",
        "--insecure",
        "--http1.1",
        "--output",
        "/dev/null",
        "--write-out",
        "%{size_download}",
    ]
    line += [word for one in lines for word in ("--header", one)]
    began = time.perf_counter()
    ended = subprocess.run(
        [*line, f"https://127.0.0.1:{port}/bucket/object"], capture_output=True, timeout=LIMIT_S, check=False
    )
    seconds = time.perf_counter() - began
    if ended.returncode or int(ended.stdout) != LARGE:
        raise RuntimeError(f"curl: {ended.returncode}: {ended.stdout.decode()}")
    return {"count": 1, "received": LARGE, "sent": 0, "seconds": seconds, "p99": seconds}


def measure_idle(row: Row, server: Server, options: argparse.Namespace) -> dict[str, float]:
    """p99 of small reads alone, then beside idle connections and slow readers; memory of an idle one."""
    asked = heads("get4k", server.port, options)
    alone = load("get4k", server.port, row.connections, asked, options)
    held = []
    for idle, slow in ((options.idle, 0), (0, 200)):
        resident = memory(server.pid, "VmRSS")
        line = [str(READY / "gateway_load"), "hold", str(server.port), str(idle), str(slow)]
        child = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        held.append(child)
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(asked[0] + head(server.port, "GET", "/bucket/object"))
        child.stdin.close()
        if child.stdout.readline() != b"ready\n":
            raise RuntimeError("connections cannot be held: ulimit -n 30000")
        time.sleep(1)
        if idle:
            each_kib = (memory(server.pid, "VmRSS") - resident) * 1024 / idle
    before = cpu_of(server.pid)
    found = load("get4k", server.port, row.connections, asked, options)
    found |= {
        "server_cpu_s": cpu_of(server.pid) - before,
        "units": found["count"],
        "idle_kib": each_kib,
        "alone_p99": alone["p99"],
    }
    for child in held:
        if child.poll() is not None:
            raise RuntimeError("held connections were cut off")
        child.send_signal(signal.SIGTERM)
        child.wait()
    return found


def run_rows(rows: dict[str, Row], servers: dict[str, Server], options: argparse.Namespace) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    out: set[tuple[str, str]] = set()
    for name, row in rows.items():
        subjects = tuple(subject for subject in row.subjects if subject in servers)
        for repeat in range(options.repeats + 1):
            first = repeat % len(subjects)
            for subject in subjects[first:] + subjects[:first]:
                if (name, subject) in out:
                    continue
                try:
                    found = measure(row, servers[subject], options)
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    out.add((name, subject))
                    print(f"{name}, {subject}: left out: {error}", file=sys.stderr, flush=True)
                    continue
                if repeat > 0:
                    records.append({"row": name, "subject": subject} | found)
    return records


# ---- the table -------------------------------------------------------------------------------------------------------


def middle(records: list[dict[str, Any]], name: str, subject: str) -> dict[str, float] | None:
    mine = [record for record in records if (record["row"], record["subject"]) == (name, subject)]
    if not mine:
        return None
    rates = [record["units"] / record["seconds"] for record in mine]
    found = {"rate": statistics.median(rates), "least": min(rates), "most": max(rates)}
    found["cpu"] = statistics.median(record["server_cpu_s"] / record["units"] for record in mine)
    for one in ("p99", "alone_p99", "idle_kib", "peak_mib"):
        if one in mine[0]:
            found[one] = statistics.median(record[one] for record in mine)
    return found


def show(rows: dict[str, Row], records: list[dict[str, Any]]) -> None:
    print("| work | by | rate | least to most | server's CPU | p99, ms |")
    print("|---|---|---|---|---|---|")
    for name, row in rows.items():
        for subject in row.subjects:
            found = middle(records, name, subject)
            if found is None:
                continue
            scale, unit, every = (1e6, "/s", "µs") if row.unit == "operations" else (1, " GB/s", "s/GB")
            bounds = f"{number(found['least'])} to {number(found['most'])}"
            cells = [name, subject, number(found["rate"]) + unit, bounds, f"{number(found['cpu'] * scale)} {every}"]
            print(f"| {' | '.join([*cells, number(found['p99'] * 1e3)])} |")
    print("\n| asked | reached | |\n|---|---|---|")
    for asked, reached, holds in [*bars(records), *own_bars(records)]:
        print(f"| {asked} | {reached} | {'holds' if holds else '**missed**'} |")


def bars(records: list[dict[str, Any]]) -> list[tuple[str, str, bool]]:
    lines = []
    for bar in BARS:
        ours = middle(records, bar.row, bar.ours)
        peers = {other: found for other in bar.others if (found := middle(records, bar.row, other))}
        if ours is None or not peers:
            continue
        fastest = max(peers, key=lambda other: peers[other]["rate"])
        thrifty = min(peers, key=lambda other: peers[other]["cpu"])
        rate, cpu, us = ours["rate"] / peers[fastest]["rate"], ours["cpu"] / peers[thrifty]["cpu"], ours["cpu"] * 1e6
        if bar.rate:
            lines.append((f"{bar.row}: ≥ {bar.rate} × the rate of {fastest}", f"{rate:.2f}", rate >= bar.rate))
        if bar.cpu:
            lines.append((f"{bar.row}: ≤ {bar.cpu} × the CPU of {thrifty}", f"{cpu:.2f}", cpu <= bar.cpu))
        if bar.most_us:
            lines.append((f"{bar.row}: ≤ {bar.most_us} µs of CPU", f"{us:.0f}", us <= bar.most_us))
    return lines


def own_bars(records: list[dict[str, Any]]) -> list[tuple[str, str, bool]]:
    lines = []
    for name in ("list", "list/"):
        if listed := middle(records, name, "forebay"):
            lines.append((f"{name}: ≤ 20 MiB of memory", f"{listed['peak_mib']:.1f}", listed["peak_mib"] <= 20))
    if idle := middle(records, "idle", "forebay"):
        ratio = idle["p99"] / idle["alone_p99"]
        lines.append(("others' p99 beside idle and slow ones ≤ 1.5 ×", f"{ratio:.2f}", ratio <= 1.5))
        lines.append(("an idle connection ≤ 16 KiB", f"{idle['idle_kib']:.1f}", idle["idle_kib"] <= 16))
    return lines


# ---- all of it -------------------------------------------------------------------------------------------------------


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="forebay's S3 server beside others.")
    parser.add_argument("--prepare", action="store_true", help="build what a run needs")
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(ROWS), help=f"({','.join(ROWS)})")
    parser.add_argument("--only", type=lambda text: text.split(","), help="some of the subjects, without ', …'")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each, of which the median counts (5)")
    parser.add_argument("--operations", type=int, default=10_000, help="small ones in a measurement (10000)")
    parser.add_argument("--idle", type=int, default=10_000, help="idle connections (10000)")
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"), help="where files lie (/dev/shm)")
    parser.add_argument(
        "--cpus", default=",".join(map(str, sorted(os.sched_getaffinity(0))[:2])), help="(the first two)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement there")
    options = parser.parse_args()
    if unknown := set(options.rows) - ROWS.keys():
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    return options


def inside(servers: dict[str, Server], options: argparse.Namespace) -> int:
    rows = {name: ROWS[name] for name in options.rows}
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        options.folder = Path(folder)
        for name, size in (("object", LARGE), ("put", PUT), ("small", SMALL)):
            (options.folder / name).write_bytes(os.urandom(size))
        crc = [str(READY / "gateway_load"), "crc"]
        options.sums = {
            name: subprocess.check_output([*crc, str(options.folder / name)], text=True).strip()
            for name in ("put", "small")
        }
        fill(servers, rows, options)
        bare = start_bare(options)
        try:
            records = run_rows(rows, servers | bare, options)
        finally:
            for one in bare.values():
                os.kill(one.pid, signal.SIGTERM)
    show(rows, records)
    if options.json:
        options.json.write_text(json.dumps(records, indent=1) + "\n")
    return 0


def main() -> int:
    options = parse()
    if options.prepare:
        prepare()
        return 0
    if not (READY / "gateway_load").exists():
        sys.exit("error: nothing is prepared\nhint: bench/gateway.py --prepare")
    # Each server runs this again, beside those that run already.
    known = json.loads(os.environ.get("GATEWAY_SERVERS", "{}"))
    if "GATEWAY_NEXT" in os.environ:
        port = urllib.parse.urlsplit(os.environ["AWS_ENDPOINT_URL"]).port
        known[os.environ["GATEWAY_NEXT"]] = [port, int(os.environ["S3_SERVER_PID"]), os.environ["S3_DATA"]]
    asked = {subject for name in options.rows for subject in ROWS[name].subjects}
    wanted = [name for name in SERVERS if name in asked and (not options.only or name.split(",")[0] in options.only)]
    if left := [name for name in wanted if name not in known]:
        variables = os.environ | {
            "GATEWAY_SERVERS": json.dumps(known),
            "GATEWAY_NEXT": left[0],
            "TMPDIR": str(options.dir),
        }
        variables |= {"S3_TLS": "1" if left[0].endswith("TLS") else ""}
        variables |= {
            "FOREBAY": os.environ.get("FOREBAY", str(READY / "forebay")),
            "S3_NO_SYNC": "1" if "synced" not in left[0] else "",
        }
        line = [
            "taskset",
            "-c",
            options.cpus,
            str(ROOT / "tests/s3/server"),
            left[0].split(",")[0],
            sys.executable,
            *sys.argv,
        ]
        return subprocess.run(line, env=variables, check=False).returncode
    return inside({name: Server(*known[name]) for name in wanted}, options)


if __name__ == "__main__":
    sys.exit(main())
