"""What each client of S3 does with the gateway of AWS_ENDPOINT_URL: the same steps for all, compared with the files that are served.

gateway_clients.py [CLIENT …]      called by tests/gateway/clients
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from clients_commands import Aws, Forebay, Rclone, S5cmd
from clients_libraries import Arrow, Boto3, Client, Obstore, S3fs

BUCKET = Path(os.environ["S3_DATA"]) / "bucket"
CLIENTS: dict[str, type[Client]] = {one.name: one for one in (Boto3, Aws, S5cmd, Rclone, Obstore, S3fs, Arrow, Forebay)}
#: More than a part of each client's uploads, no multiple of anything.
LARGE = 20_000_003
KEYS = {"plain": 1000, "empty": 0, "a b/c+d": 1, "100%/ü": 70_000, "deep/er/than/that": 4096, "large": LARGE}


class Steps:
    """What is asked of each, in this order: a later one needs what an earlier one wrote."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client, self.folder = client, folder
        self.bodies = {f"{client.name}/{key}": os.urandom(size) for key, size in KEYS.items()}

    def write(self) -> None:
        for key, body in self.bodies.items():
            (self.folder / "here").write_bytes(body)
            self.client.put(self.folder / "here", key)
            assert served(key) == body, f"{key}: other bytes are served"

    def read(self) -> None:
        for key, body in self.bodies.items():
            back = self.folder / "back"
            back.unlink(missing_ok=True)
            self.client.get(key, back)
            assert back.read_bytes() == body, f"{key}: other bytes came"

    def read_range(self) -> None:
        key = f"{self.client.name}/large"
        for start, length in ((0, 1), (12_345, 70_001), (LARGE - 10, 10)):
            found = self.client.read_range(key, start, length)
            assert found == self.bodies[key][start : start + length], f"{start}+{length}: other bytes came"

    def list(self) -> None:
        found = self.client.list(self.client.name)
        assert found == set(self.bodies), f"listed: {sorted(found ^ set(self.bodies))} too much or missing"

    def copy(self) -> None:
        for key in ("a b/c+d", "100%/ü", "large"):
            here, there = f"{self.client.name}/{key}", f"{self.client.name}/copies/{key}"
            self.client.copy(here, there)
            assert served(there) == self.bodies[here], f"{key}: other bytes after a copy"
            self.bodies[there] = self.bodies[here]

    def sync(self) -> None:
        tree, prefix = self.folder / "tree", f"{self.client.name}/tree"
        for number in range(30):
            path = tree / f"{number % 4}/f {number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(number * 1000))
        self.client.sync_up(tree, prefix)
        assert files(BUCKET / prefix) == files(tree), "the tree is not the same there"
        before = times(BUCKET / prefix)
        time.sleep(0.01)
        self.client.sync_up(tree, prefix)
        assert not self.client.skips_equal or times(BUCKET / prefix) == before, "equal files were sent again"
        self.client.sync_down(prefix, self.folder / "tree back")
        assert files(self.folder / "tree back") == files(tree), "the tree is not the same here"
        self.bodies |= {f"{prefix}/{name}": body for name, body in files(tree).items()}

    def delete(self) -> None:
        one = f"{self.client.name}/plain"
        self.client.delete(one)
        assert not (BUCKET / one).exists(), "a deleted object is there"
        del self.bodies[one]
        self.list()
        self.client.delete_all(self.client.name)
        assert not files(BUCKET / self.client.name), "objects stay after all were deleted"
        assert self.client.list(self.client.name) == set(), "keys stay after all were deleted"

    def leave_nothing(self) -> None:
        left = Boto3().uploads()
        assert not left, f"unfinished uploads stay: {left}"


def served(key: str) -> bytes:
    return (BUCKET / key).read_bytes()


def files(tree: Path) -> dict[str, bytes]:
    return {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


def times(tree: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in tree.rglob("*") if path.is_file()}


def run(name: str) -> int:
    """All steps of a client; the number of failures."""
    failures, began = [], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        steps = Steps(CLIENTS[name](), Path(folder))
        each: list[Callable[[], None]] = [
            steps.write,
            steps.read,
            *([steps.read_range] if steps.client.has_ranges else []),
            steps.list,
            steps.copy,
            steps.sync,
            steps.delete,
            steps.leave_nothing,
        ]
        for step in each:
            try:
                step()
            except Exception as error:
                failures.append(step.__name__)
                text = str(error) if isinstance(error, AssertionError) else traceback.format_exc(limit=-3)
                print(f"{name}: {step.__name__}: {text[-3000:]}")
    says = "all compared" if not failures else f"FAILED: {', '.join(failures)}"
    print(f"{name} {steps.client.version()}: {len(each)} steps in {time.monotonic() - began:.1f} s, {says}", flush=True)
    return len(failures)


if __name__ == "__main__":
    sys.exit(1 if sum([run(name) for name in sys.argv[1:] or CLIENTS]) else 0)
