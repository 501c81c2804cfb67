"""Programs of the cluster: gateways, HAProxy; and the table of what was lost."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import boto3
import botocore.config

KEYS = {"AWS_ACCESS_KEY_ID": "forebay", "AWS_SECRET_ACCESS_KEY": "of-a-test", "AWS_REGION": "us-east-1"}
BUCKET = "bucket"


def wait_until(holds: Callable[[], bool], what: str, seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.02)


def client(url: str, attempts: int = 1, connections: int = 16) -> Any:
    """A client of the SDK; with one attempt, each loss is seen."""
    config = botocore.config.Config(
        retries={"total_max_attempts": attempts},
        s3={"addressing_style": "path"},
        max_pool_connections=connections,
        connect_timeout=5,
        read_timeout=60,
    )
    return boto3.session.Session().client(
        "s3",
        endpoint_url=url,
        config=config,
        region_name=KEYS["AWS_REGION"],
        aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
    )


def bucket(url: str) -> None:
    client(url, 5).create_bucket(Bucket=BUCKET)


def answers(url: str) -> bool:
    try:
        return bool(urlopen(url, timeout=2).status == 200)
    except (URLError, OSError):
        return False


class Gateway:
    """`forebay serve s3` on one mount."""

    def __init__(self, program: str, host: str, served: Path, work: Path) -> None:
        self.command = [program, "serve", "s3", str(served), "--listen", f"{address(host)}:9001"]
        self.host, self.url, self.log = host, f"http://{host}:9001", work / f"{host}.log"
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, env=os.environ | KEYS, stdout=log, stderr=log)
        wait_until(lambda: answers(f"{self.url}/healthz"), f"{self.host} answers")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def end(self) -> None:
        self.kill()


def address(host: str) -> str:
    import socket

    return socket.gethostbyname(host)


class Balancer:
    """HAProxy with the example's file; a socket of its own says which gateways it holds for alive."""

    def __init__(self, file: Path, work: Path) -> None:
        self.url, self.log = "http://balancer:9000", work / "haproxy.log"
        self.socket = work / "haproxy.sock"
        more = work / "haproxy-socket.cfg"
        more.write_text(f"global\n    stats socket {self.socket}\n")
        command = ["haproxy", "-db", "-f", str(file), "-f", str(more)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def alive(self) -> int:
        import socket

        with socket.socket(socket.AF_UNIX) as one:
            try:
                one.connect(str(self.socket))
                one.sendall(b"show stat\n")
                text = b"".join(iter(lambda: one.recv(65536), b"")).decode()
            except OSError:
                return 0
        lines = [line.split(",") for line in text.splitlines() if line]
        status = lines[0].index("status")
        return sum(line[0] == "gateways" and line[1] in "ab" and line[status] == "UP" for line in lines)

    def wait(self, gateways: int) -> None:
        wait_until(lambda: self.alive() == gateways, f"HAProxy finds {gateways} gateways")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Table:
    """What was asked, what was lost of it, and what may be."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[int, int, int, list[str]]] = {}

    def row(self, what: str, asked: int, lost: int, allowed: int, which: list[str]) -> None:
        while what in self.rows:
            what += " "
        self.rows[what] = (asked, lost, allowed, which)

    def add(self, what: str, asked: int, lost: int, allowed: int, which: list[str]) -> None:
        """Counts together with the row of this name."""
        before = self.rows.get(what, (0, 0, 0, []))
        self.rows[what] = (before[0] + asked, before[1] + lost, before[2] + allowed, before[3] + which)

    def holds(self) -> bool:
        return bool(self.rows) and all(asked > 0 and lost <= allowed for asked, lost, allowed, _ in self.rows.values())

    def text(self, filesystem: str) -> str:
        width = max((len(what) for what in self.rows), default=0)
        lines = [f"{f'two gateways over {filesystem}':{width}}  {'asked':>7}  {'lost':>5}  {'at most':>7}"]
        for what, (asked, lost, allowed, which) in self.rows.items():
            lines.append(f"{what:{width}}  {asked:7}  {lost:5}  {allowed:7}")
            lines += [f"      {one}" for one in which[:5]]
        return "\n".join(lines)
