"""Round trips of the commands by the S3 server of AWS_ENDPOINT_URL; boto3 reads and writes the other end.

    tests/s3/server NAME "$S3_PYTHON" tests/s3/trips.py FOREBAY
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import boto3
import botocore.config

FOREBAY, SERVER = sys.argv[1], os.environ["S3_SERVER"]
BUCKET = "bucket"
# rclone's server gives the checksum of the whole with a range, which boto3 takes for that of the range.
_CONFIG = botocore.config.Config(
    s3={"addressing_style": "path"}, request_checksum_calculation="when_required", response_checksum_validation="when_required"
)
client: Any = boto3.client("s3", config=_CONFIG)
#: More than a part of an upload, no multiple of anything.
LARGE = 40_000_007
#: Keys that are easy to get wrong. A store over a file system has none with `//`.
KEYS = ["plain", "a b/c+d", "100%/ü", "deep/er/than/that", "q?=&#[x]"]


def forebay(*words: str, code: int = 0) -> str:
    done = subprocess.run([FOREBAY, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, f"forebay {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def url(key: str) -> str:
    return f"s3://{BUCKET}/{key.replace('%', '%25').replace('?', '%3F')}"


def stored(key: str) -> bytes:
    return bytes(client.get_object(Bucket=BUCKET, Key=key)["Body"].read())


def keys(prefix: str = "") -> set[str]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    return {one["Key"] for page in pages for one in page.get("Contents", [])}


def uploads() -> list[Any]:
    return list(client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []))


def copies(folder: Path) -> None:
    """`cp` in both directions, of objects of one request and of several."""
    for key, size in [(key, 1000 + number) for number, key in enumerate(KEYS)] + [("large", LARGE), ("empty", 0)]:
        data, here, back = os.urandom(size), folder / "here", folder / "back"
        here.write_bytes(data)
        forebay("cp", str(here), url(key), "--verify")
        assert stored(key) == data, f"{key}: other bytes were stored"
        forebay("cp", url(key), str(back), "--verify")
        assert back.read_bytes() == data, f"{key}: other bytes came back"
    assert not uploads(), "an upload was left"
    print(f"{SERVER}: {len(KEYS) + 2} objects, compared")


def benches() -> None:
    """`bench` reads what is there, by several threads, and `verify` compares what it wrote."""
    forebay("bench", "-P", url("large"), "-I", "0", "-x", "0", "-i", "1M", "-w", "4")
    found = forebay("bench", "-P", url("large"), "-I", "2", "-x", "0", "-i", "64K", "-w", "2", "-T", "1")
    assert "Throughput" in found, found
    print(f"{SERVER}: bench, compared")


def lists() -> None:
    """`s3 ls` names what boto3 lists, and `s3 rm` removes it."""
    found = forebay("s3", "ls", f"s3://{BUCKET}/", "--recursive")
    for key in keys():
        assert key in found or url(key).rpartition("/")[2] in found, f"{key} is not listed:\n{found}"
    forebay("s3", "rm", url("plain"))
    assert "plain" not in keys()
    forebay("cp", url("plain"), "/dev/null", code=1)
    print(f"{SERVER}: ls and rm, compared")


def syncs(folder: Path) -> None:
    """`s3 sync` both ways; a second run moves nothing."""
    tree = folder / "tree"
    for number in range(60):
        path = tree / f"{number % 7}/{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(number * 100))
    if SERVER == "rclone":
        # It answers 200 and does not show the object where two requests make one folder.
        for number in range(7):
            client.put_object(Bucket=BUCKET, Key=f"tree/{number}/{number}", Body=(tree / f"{number}/{number}").read_bytes())
    forebay("s3", "sync", str(tree), f"s3://{BUCKET}/tree")
    names = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    assert keys("tree/") == {f"tree/{name}" for name in names}
    for name in names:
        assert stored(f"tree/{name}") == (tree / name).read_bytes(), name
    before = {key: client.head_object(Bucket=BUCKET, Key=key)["LastModified"] for key in keys("tree/")}
    again = forebay("s3", "sync", str(tree), f"s3://{BUCKET}/tree")
    assert before == {key: client.head_object(Bucket=BUCKET, Key=key)["LastModified"] for key in keys("tree/")}, again
    forebay("s3", "sync", f"s3://{BUCKET}/tree", str(folder / "back of it"))
    for name in names:
        assert (folder / "back of it" / name).read_bytes() == (tree / name).read_bytes(), name
    print(f"{SERVER}: sync of {len(names)} files both ways, compared")


def signs() -> None:
    """A signed URL is read by a program without keys."""
    from urllib.request import urlopen

    signed = forebay("s3", "presign", url("a b/c+d")).strip().splitlines()[-1]
    assert urlopen(signed, timeout=20).read() == stored("a b/c+d")
    print(f"{SERVER}: a signed URL, compared")


def probes(folder: Path) -> None:
    """`s3 probe` says what the server can do."""
    out = folder / "probe.json"
    print(forebay("s3", "probe", url("large"), "--json", str(out)))
    json.loads(out.read_text())


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copies(folder)
        benches()
        lists()
        syncs(folder)
        signs()
        probes(folder)


if __name__ == "__main__":
    main()
