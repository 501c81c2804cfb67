"""Clients that write, read and delete through the balancer, and know which bytes they must find."""

from __future__ import annotations

import functools
import io
import os
import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from cluster_world import BUCKET, client

CLIENTS = 8
#: Each client writes keys of its own, so that it knows what is there.
KEYS_EACH = 6
LARGEST = 3 << 20
POOL = os.urandom(LARGEST + (1 << 20))
#: A request that begins so soon after a death may meet a connection that the client does not know to be closed.
MARGIN = 0.1

#: Bytes of an object, as a piece of the pool; None: no object.
Body = tuple[int, int] | None


def data(body: Body) -> bytes:
    return b"" if body is None else POOL[body[0] : body[0] + body[1]]


def was_under_way(start: float, end: float, deaths: list[float]) -> bool:
    return any(start < death + MARGIN and end > death for death in deaths)


@dataclass
class Failure:
    operation: str
    key: str
    start: float
    end: float
    error: str

    def __str__(self) -> str:
        return f"{self.operation} {self.key}, {self.end - self.start:.3f} s: {self.error}"


class Load:
    """Runs from its beginning until `finish`."""

    number = 0

    def __init__(self, url: str, attempts: int) -> None:
        Load.number += 1
        self.prefix, self.url, self.attempts = f"load-{Load.number}", url, attempts
        self.failures: list[Failure] = []
        self.wrong: list[str] = []
        self.deaths: list[float] = []
        self.done = self.compared = 0
        #: All that a key may be: more than one where a request for it failed.
        self.possible: dict[str, set[Body]] = {}
        self.lock, self.stop = threading.Lock(), threading.Event()
        self.threads = [threading.Thread(target=self.run, args=[number], daemon=True) for number in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def mark_death(self) -> None:
        """Called just before a gateway dies."""
        with self.lock:
            self.deaths.append(time.monotonic())

    def late(self) -> list[str]:
        """Requests that failed and were not under way when a gateway died."""
        found = [one for one in self.failures if not was_under_way(one.start, one.end, self.deaths)]
        return [str(failure) for failure in found]

    def finish(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def explain(self) -> list[str]:
        return [str(failure) for failure in self.failures]

    def run(self, number: int) -> None:
        # Two of them: what one writes is read through a connection that may lead to the other gateway.
        clients = [shared_client(self.url, self.attempts, which) for which in range(2)]
        dice = random.Random(number)
        keys = [f"{self.prefix}/{number}/{which}" for which in range(KEYS_EACH)]
        for key in keys:
            self.possible[key] = {None}
        while not self.stop.is_set():
            operation = dice.choices([self.put, self.get, self.delete, self.list], [40, 45, 5, 10])[0]
            key = dice.choice(keys)
            start = time.monotonic()
            error = None
            try:
                operation(dice.choice(clients), key, dice)
            except (BotoCoreError, ClientError, OSError) as found:
                error = f"{type(found).__name__}: {found}"
            end = time.monotonic()
            with self.lock:
                self.done += 1
                if error:
                    self.failures.append(Failure(operation.__name__, key, start, end, error))

    def put(self, s3: Any, key: str, dice: random.Random) -> None:
        size = int(dice.choice([0, 100, 4096, 65_537, dice.randrange(LARGEST)]))
        body = (dice.randrange(1 << 20), size)
        before = self.possible[key]
        self.possible[key] = before | {body}
        s3.put_object(Bucket=BUCKET, Key=key, Body=data(body))
        self.possible[key] = {body}

    def delete(self, s3: Any, key: str, _: random.Random) -> None:
        self.possible[key] = self.possible[key] | {None}
        s3.delete_object(Bucket=BUCKET, Key=key)
        self.possible[key] = {None}

    def get(self, s3: Any, key: str, _: random.Random) -> None:
        found = self.fetch(s3, key)
        self.compare(key, found, "GET")

    def fetch(self, s3: Any, key: str) -> bytes | None:
        """The bytes; with retries as the SDK's own download, which begins again where a body breaks off."""
        try:
            if self.attempts == 1:
                return bytes(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())
            into = io.BytesIO()
            s3.download_fileobj(BUCKET, key, into)
            return into.getvalue()
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
                return None
            raise

    def compare(self, key: str, found: bytes | None, how: str) -> None:
        may = self.possible[key]
        fits = (None in may) if found is None else any(one is not None and data(one) == found for one in may)
        with self.lock:
            self.compared += 1
            if not fits:
                size = "no object" if found is None else f"{len(found)} bytes"
                sizes = ", ".join("none" if one is None else str(one[1]) for one in may)
                self.wrong.append(f"{how} {key}: {size}, of which {sizes} may be there")

    def list(self, s3: Any, key: str, _: random.Random) -> None:
        prefix = key.rpartition("/")[0] + "/"
        found = {one["Key"] for one in s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])}
        for one in [one for one in self.possible if one.startswith(prefix)]:
            may = self.possible[one]
            with self.lock:
                self.compared += 1
                if (None not in may and one not in found) or (may == {None} and one in found):
                    self.wrong.append(f"LIST {one}: {'listed' if one in found else 'not listed'}")

    def verify(self, urls: list[str], mounts: list[Path]) -> tuple[int, list[str]]:
        """Reads all keys by each gateway, and as files: the same everywhere, and what was written."""
        before, self.wrong, self.compared = self.wrong, [], 0
        for key in list(self.possible):
            seen = [self.fetch(shared_client(url), key) for url in urls] + [file(mount, key) for mount in mounts]
            for found in seen:
                self.compare(key, found, "at the end,")
            if len(set(seen)) > 1:
                self.wrong.append(f"{key}: other bytes by another gateway or mount")
        after, self.wrong = self.wrong, before
        return self.compared, after


@functools.cache
def _client(url: str, attempts: int, _which: int) -> Any:
    return client(url, attempts)


def shared_client(url: str, attempts: int = 1, which: int = 0) -> Any:
    """To make one takes a tenth of a second; threads may share it."""
    with _making:
        return _client(url, attempts, which)


_making = threading.Lock()


def file(mount: Path, key: str) -> bytes | None:
    path = mount / BUCKET / key
    return path.read_bytes() if path.is_file() else None
