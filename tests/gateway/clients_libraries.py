"""Clients of S3 that are Python libraries, each with the few things that tests ask of it."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from pathlib import Path
from typing import Any

ENDPOINT = os.environ["AWS_ENDPOINT_URL"]


class Client:
    name = ""
    package = ""
    has_ranges = True
    #: Its `sync` sends no file that is there already.
    skips_equal = False

    def version(self) -> str:
        return importlib.metadata.version(self.package or self.name)

    def put(self, file: Path, key: str) -> None:
        raise NotImplementedError

    def get(self, key: str, file: Path) -> None:
        raise NotImplementedError

    def read_range(self, key: str, start: int, length: int) -> bytes:
        raise NotImplementedError

    def list(self, prefix: str) -> set[str]:
        """All keys below a folder."""
        raise NotImplementedError

    def copy(self, key: str, to: str) -> None:
        raise NotImplementedError

    def delete(self, key: str) -> None:
        raise NotImplementedError

    def delete_all(self, prefix: str) -> None:
        for key in self.list(prefix):
            self.delete(key)

    def sync_up(self, tree: Path, prefix: str) -> None:
        for path in tree.rglob("*"):
            if path.is_file():
                self.put(path, f"{prefix}/{path.relative_to(tree)}")

    def sync_down(self, prefix: str, tree: Path) -> None:
        for key in self.list(prefix):
            path = tree / key.removeprefix(f"{prefix}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            self.get(key, path)


class Boto3(Client):
    name = "boto3"

    def __init__(self) -> None:
        import boto3

        self.s3: Any = boto3.client("s3")

    def uploads(self) -> list[Any]:
        return list(self.s3.list_multipart_uploads(Bucket="bucket").get("Uploads", []))

    def put(self, file: Path, key: str) -> None:
        self.s3.upload_file(str(file), "bucket", key, ExtraArgs={"Metadata": {"of": "boto3"}})
        assert self.s3.head_object(Bucket="bucket", Key=key)["Metadata"] == {"of": "boto3"}

    def get(self, key: str, file: Path) -> None:
        self.s3.download_file("bucket", key, str(file))

    def read_range(self, key: str, start: int, length: int) -> bytes:
        end = start + length - 1
        return bytes(self.s3.get_object(Bucket="bucket", Key=key, Range=f"bytes={start}-{end}")["Body"].read())

    def list(self, prefix: str) -> set[str]:
        pages = self.s3.get_paginator("list_objects_v2").paginate(
            Bucket="bucket", Prefix=f"{prefix}/", PaginationConfig={"PageSize": 7}
        )
        return {one["Key"] for page in pages for one in page.get("Contents", [])}

    def copy(self, key: str, to: str) -> None:
        from boto3.s3.transfer import TransferConfig

        # The large one by parts.
        self.s3.copy({"Bucket": "bucket", "Key": key}, "bucket", to, Config=TransferConfig(multipart_threshold=8 << 20))

    def delete(self, key: str) -> None:
        self.s3.delete_object(Bucket="bucket", Key=key)

    def delete_all(self, prefix: str) -> None:
        keys = [{"Key": key} for key in self.list(prefix)]
        answer = self.s3.delete_objects(Bucket="bucket", Delete={"Objects": keys})
        assert not answer.get("Errors"), answer["Errors"]


class Obstore(Client):
    name = "obstore"

    def __init__(self) -> None:
        from obstore.store import S3Store

        self.store = S3Store("bucket", endpoint=ENDPOINT, client_options={"allow_http": True})

    def put(self, file: Path, key: str) -> None:
        import obstore

        obstore.put(self.store, key, file, chunk_size=5 << 20)

    def get(self, key: str, file: Path) -> None:
        import obstore

        with file.open("wb") as out:
            for chunk in obstore.get(self.store, key).stream():
                out.write(chunk)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        import obstore

        return bytes(obstore.get_range(self.store, key, start=start, length=length))

    def list(self, prefix: str) -> set[str]:
        import obstore

        return {one["path"] for chunk in obstore.list(self.store, prefix) for one in chunk}

    def copy(self, key: str, to: str) -> None:
        import obstore

        obstore.copy(self.store, key, to)

    def delete(self, key: str) -> None:
        import obstore

        obstore.delete(self.store, key)

    def delete_all(self, prefix: str) -> None:
        import obstore

        obstore.delete(self.store, sorted(self.list(prefix)))


class S3fs(Client):
    name = "s3fs"

    def __init__(self) -> None:
        import s3fs

        self.fs: Any = s3fs.S3FileSystem(
            endpoint_url=ENDPOINT, default_block_size=5 << 20, use_listings_cache=False, skip_instance_cache=True
        )

    def put(self, file: Path, key: str) -> None:
        self.fs.put_file(str(file), f"bucket/{key}")

    def get(self, key: str, file: Path) -> None:
        self.fs.get_file(f"bucket/{key}", str(file))

    def read_range(self, key: str, start: int, length: int) -> bytes:
        with self.fs.open(f"bucket/{key}", "rb") as opened:
            opened.seek(start)
            return bytes(opened.read(length))

    def list(self, prefix: str) -> set[str]:
        return {one.removeprefix("bucket/") for one in self.fs.find(f"bucket/{prefix}")}

    def copy(self, key: str, to: str) -> None:
        self.fs.cp_file(f"bucket/{key}", f"bucket/{to}")

    def delete(self, key: str) -> None:
        self.fs.rm_file(f"bucket/{key}")

    def delete_all(self, prefix: str) -> None:
        self.fs.rm(f"bucket/{prefix}", recursive=True)

    def sync_up(self, tree: Path, prefix: str) -> None:
        self.fs.put(f"{tree}/", f"bucket/{prefix}/", recursive=True)

    def sync_down(self, prefix: str, tree: Path) -> None:
        self.fs.get(f"bucket/{prefix}/", f"{tree}/", recursive=True)


class Arrow(Client):
    name = "pyarrow"

    def __init__(self) -> None:
        from pyarrow import fs

        scheme, _, host = ENDPOINT.partition("://")
        self.fs = fs.S3FileSystem(endpoint_override=host, scheme=scheme, region="us-east-1")

    def put(self, file: Path, key: str) -> None:
        with file.open("rb") as source, self.fs.open_output_stream(f"bucket/{key}") as out:
            shutil.copyfileobj(source, out, 1 << 20)

    def get(self, key: str, file: Path) -> None:
        with self.fs.open_input_stream(f"bucket/{key}") as source, file.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        with self.fs.open_input_file(f"bucket/{key}") as opened:
            return bytes(opened.read_at(length, start))

    def list(self, prefix: str) -> set[str]:
        from pyarrow import fs

        select = fs.FileSelector(f"bucket/{prefix}", recursive=True, allow_not_found=True)
        found = self.fs.get_file_info(select)
        return {one.path.removeprefix("bucket/") for one in found if one.type == fs.FileType.File}

    def copy(self, key: str, to: str) -> None:
        self.fs.copy_file(f"bucket/{key}", f"bucket/{to}")

    def delete(self, key: str) -> None:
        self.fs.delete_file(f"bucket/{key}")

    def delete_all(self, prefix: str) -> None:
        self.fs.delete_dir(f"bucket/{prefix}")

    def sync_up(self, tree: Path, prefix: str) -> None:
        from pyarrow import fs

        fs.copy_files(str(tree), f"bucket/{prefix}", fs.LocalFileSystem(), self.fs)

    def sync_down(self, prefix: str, tree: Path) -> None:
        from pyarrow import fs

        fs.copy_files(f"bucket/{prefix}", str(tree), self.fs, fs.LocalFileSystem())
