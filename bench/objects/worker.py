#!/usr/bin/env python3
"""One measurement of a Python client by `bench/objects.py`, in a process of its own; the endpoint and the keys are in AWS_* variables.

    bench/objects/worker.py SUBJECT WORK --connections N --folder FOLDER

Prints a line of JSON: bytes (or objects), seconds and CPU seconds of the work. The client exists before, and has asked for one byte.
Exit codes: 0; 1 if it failed; 3, with the reason, where the subject is not installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

BUCKET = "bucket"
PART = 8 << 20
#: What a subject prepares, and then does.
Work = Callable[[], Any]


def secured() -> str | None:
    """The file with the server's certificate, where it speaks TLS."""
    return os.environ.get("AWS_CA_BUNDLE") if os.environ["AWS_ENDPOINT_URL"].startswith("https") else None


# ---- boto3 -----------------------------------------------------------------------------------------------------------


def boto(connections: int) -> Any:
    import boto3
    import botocore.config

    config = botocore.config.Config(
        s3={"addressing_style": "path"}, max_pool_connections=connections, retries={"mode": "standard"}
    )
    client = boto3.client("s3", config=config)
    client.get_object(Bucket=BUCKET, Key="object", Range="bytes=0-0")["Body"].read()
    return client


class Nowhere:
    """A file that forgets what is written to it."""

    def __init__(self) -> None:
        self.at = self.bytes = 0

    def seek(self, at: int, _: int = 0) -> None:
        self.at = at

    def tell(self) -> int:
        return self.at

    def seekable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:
        self.at += len(data)
        self.bytes += len(data)
        return len(data)


def boto3_get(options: argparse.Namespace) -> Work:
    client = boto(options.connections)
    if options.connections == 1:

        def one() -> int:
            body, into, count = (
                client.get_object(Bucket=BUCKET, Key="object")["Body"],
                memoryview(bytearray(1 << 20)),
                0,
            )
            while got := body.readinto(into):
                count += got
            return count

        return one
    from boto3.s3.transfer import TransferConfig

    how = TransferConfig(
        multipart_chunksize=PART, max_concurrency=options.connections, preferred_transfer_client="classic"
    )

    def many() -> int:
        nowhere = Nowhere()
        client.download_fileobj(BUCKET, "object", nowhere, Config=how)
        return nowhere.bytes

    return many


def boto3_put(options: argparse.Namespace) -> Work:
    from boto3.s3.transfer import TransferConfig

    client = boto(16)
    how = TransferConfig(
        multipart_chunksize=PART, max_concurrency=options.connections, preferred_transfer_client="classic"
    )
    path = options.folder / "object"

    def put() -> int:
        client.upload_file(str(path), BUCKET, "put/boto3", ExtraArgs={"ChecksumAlgorithm": "CRC64NVME"}, Config=how)
        return path.stat().st_size

    return put


# ---- obstore ---------------------------------------------------------------------------------------------------------


def store() -> Any:
    from obstore.store import S3Store

    environment = os.environ
    options: dict[str, Any] = {"allow_http": True}
    if secured():
        options = {"allow_invalid_certificates": True}
    found = S3Store(
        BUCKET, endpoint=environment["AWS_ENDPOINT_URL"], access_key_id=environment["AWS_ACCESS_KEY_ID"],
        secret_access_key=environment["AWS_SECRET_ACCESS_KEY"], region=environment["AWS_REGION"],
        virtual_hosted_style_request=False, client_options=options,
    )  # fmt: skip
    import obstore

    obstore.get_range(found, "object", start=0, length=1)
    return found


def obstore_get(options: argparse.Namespace) -> Work:
    import obstore

    found = store()
    if options.connections == 1:
        return lambda: sum(len(chunk) for chunk in obstore.get(found, "object").stream(min_chunk_size=1 << 20))
    size = obstore.head(found, "object")["size"]

    async def ranges() -> int:
        async def worker() -> int:
            count = 0
            for start in starts:
                length = min(PART, size - start)
                count += len(await obstore.get_range_async(found, "object", start=start, length=length))
            return count

        starts = iter(range(0, size, PART))
        return sum(await asyncio.gather(*(worker() for _ in range(options.connections))))

    return lambda: asyncio.run(ranges())


def obstore_tensors(options: argparse.Namespace) -> Work:
    import obstore

    found = store()
    _, begins, ends = tensors_of(options.folder / "tensors.safetensors")
    return lambda: len(obstore.get_ranges(found, "tensors.safetensors", starts=begins, ends=ends))


# ---- awscrt ----------------------------------------------------------------------------------------------------------


def crt(connections: int) -> tuple[Any, str]:
    """A client, and the host of its requests."""
    from awscrt import auth, io, s3

    environment, ca = os.environ, secured()
    group = io.EventLoopGroup()
    bootstrap = io.ClientBootstrap(group, io.DefaultHostResolver(group))
    keys = auth.AwsCredentialsProvider.new_static(
        environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"]
    )
    region = environment["AWS_REGION"]
    signing = s3.create_default_s3_signing_config(region=region, credential_provider=keys)
    more: dict[str, Any] = {"tls_mode": s3.S3RequestTlsMode.DISABLED}
    if ca:
        context = io.TlsContextOptions()
        context.override_default_trust_store_from_path(None, ca)
        connection = io.ClientTlsContext(context).new_connection_options()
        more = {"tls_mode": s3.S3RequestTlsMode.ENABLED, "tls_connection_options": connection}
    client = s3.S3Client(
        bootstrap=bootstrap, region=region, signing_config=signing, part_size=PART, multipart_upload_threshold=PART,
        max_active_connections_override=connections, **more,
    )  # fmt: skip
    return client, urlsplit(environment["AWS_ENDPOINT_URL"]).netloc


def awscrt_get(options: argparse.Namespace) -> Work:
    from awscrt import http, s3

    client, host = crt(options.connections)

    def get() -> int:
        bytes_of = [0]

        def body(chunk: bytes, **_: Any) -> None:
            bytes_of[0] += len(chunk)

        ask = http.HttpRequest("GET", f"/{BUCKET}/object", http.HttpHeaders([("host", host)]))
        client.make_request(type=s3.S3RequestType.GET_OBJECT, request=ask, on_body=body).finished_future.result(100)
        return bytes_of[0]

    return get


def awscrt_put(options: argparse.Namespace) -> Work:
    from awscrt import http, s3

    client, host = crt(options.connections)
    path = options.folder / "object"
    size = path.stat().st_size
    sums = s3.S3ChecksumConfig(algorithm=s3.S3ChecksumAlgorithm.CRC64NVME, location=s3.S3ChecksumLocation.HEADER)

    def put() -> int:
        headers = http.HttpHeaders([("host", host), ("content-length", str(size))])
        ask = http.HttpRequest("PUT", f"/{BUCKET}/put/awscrt", headers)
        client.make_request(
            type=s3.S3RequestType.PUT_OBJECT, request=ask, send_filepath=str(path), checksum_config=sums
        ).finished_future.result(100)
        return size

    return put


# ---- forebay in Python, and GPU clients ------------------------------------------------------------------------------


def tensors_of(path: Path) -> tuple[int, list[int], list[int]]:
    """Where the tensors of a safetensors file begin and end."""
    with path.open("rb") as file:
        head = int.from_bytes(file.read(8), "little")
        found = json.loads(file.read(head))
    spans = sorted(one["data_offsets"] for name, one in found.items() if name != "__metadata__")
    return len(spans), [8 + head + begin for begin, _ in spans], [8 + head + end for _, end in spans]


def forebay_tensors(_: argparse.Namespace) -> Work:
    import forebay

    # One byte, as of the others; and the modules that a first load imports.
    with forebay.open(f"s3://{BUCKET}/object") as file:
        file.read(1, 0)
    forebay.load_file(f"s3://{BUCKET}/tensors.safetensors", framework="numpy", names=["t00000"])
    return lambda: len(forebay.load_file(f"s3://{BUCKET}/tensors.safetensors", framework="numpy"))


def forebay_gpu(options: argparse.Namespace) -> Work:
    import torch

    import forebay

    into = torch.empty(os.path.getsize(options.folder / "object"), dtype=torch.uint8, device="cuda")
    file = forebay.open(f"s3://{BUCKET}/object")

    def read() -> int:
        count = file.read_into(into).bytes
        torch.cuda.synchronize()
        return count

    return read


def kvikio_gpu(options: argparse.Namespace) -> Work:
    """Its back end is chosen by KVIKIO_REMOTE_IO_BACKEND; the second one has reactors in place of threads."""
    import cupy
    import kvikio
    import kvikio.defaults

    os.environ.setdefault("AWS_DEFAULT_REGION", os.environ["AWS_REGION"])
    kvikio.defaults.set({"num_threads": options.connections})
    into = cupy.empty((options.folder / "object").stat().st_size, dtype="u1")
    file = kvikio.RemoteFile.open_s3_url(f"{os.environ['AWS_ENDPOINT_URL']}/{BUCKET}/object")

    def read() -> int:
        count = int(file.read(into))
        cupy.cuda.runtime.deviceSynchronize()
        return count

    return read


def connector() -> Any:
    from s3torchconnector import S3Checkpoint, S3ClientConfig

    environment = os.environ
    return S3Checkpoint(
        region=environment["AWS_REGION"],
        endpoint=environment["AWS_ENDPOINT_URL"],
        s3client_config=S3ClientConfig(force_path_style=True),
    )


def connector_gpu(_: argparse.Namespace) -> Work:
    import torch

    torch.cuda.init()
    there = connector()

    def read() -> int:
        with there.reader(f"s3://{BUCKET}/object") as file:
            whole = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).to("cuda")
        torch.cuda.synchronize()
        return whole.nbytes

    return read


def bytes_of(tensors: Any) -> int:
    import torch

    torch.cuda.synchronize()
    return sum(tensor.nbytes for tensor in tensors)


def forebay_load(_: argparse.Namespace) -> Work:
    import torch

    import forebay

    torch.empty(1, device="cuda")
    # One byte, as the others read.
    with forebay.open(f"s3://{BUCKET}/object") as file:
        file.read(1, 0)
    return lambda: bytes_of(forebay.load_file(f"s3://{BUCKET}/model.safetensors", device="cuda:0").values())


def runai_load(options: argparse.Namespace) -> Work:
    import torch
    from runai_model_streamer import SafetensorsStreamer

    os.environ.update(RUNAI_STREAMER_CONCURRENCY=str(options.connections), RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING="0")
    torch.empty(1, device="cuda")

    def load() -> int:
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(f"s3://{BUCKET}/model.safetensors")
            return bytes_of([tensor.to("cuda", non_blocking=True) for _, tensor in streamer.get_tensors()])

    return load


def connector_load(_: argparse.Namespace) -> Work:
    import safetensors.torch
    import torch

    torch.empty(1, device="cuda")
    there = connector()

    def load() -> int:
        with there.reader(f"s3://{BUCKET}/model.safetensors") as file:
            tensors = safetensors.torch.load(file.read())
        return bytes_of([tensor.to("cuda") for tensor in tensors.values()])

    return load


SUBJECTS: dict[tuple[str, str], Callable[[argparse.Namespace], Work]] = {
    ("boto3", "get"): boto3_get, ("boto3", "put"): boto3_put,
    ("obstore", "get"): obstore_get, ("obstore", "tensors"): obstore_tensors,
    ("awscrt", "get"): awscrt_get, ("awscrt", "put"): awscrt_put,
    ("forebay", "tensors"): forebay_tensors, ("forebay", "gpu"): forebay_gpu,
    ("kvikio", "gpu"): kvikio_gpu, ("s3torchconnector", "gpu"): connector_gpu,
    ("forebay", "load"): forebay_load, ("runai", "load"): runai_load, ("s3torchconnector", "load"): connector_load,
}  # fmt: skip


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description="One measurement of a Python client.")
    parser.add_argument("subject", choices=sorted({subject for subject, _ in SUBJECTS}))
    parser.add_argument("work", choices=sorted({work for _, work in SUBJECTS}))
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--folder", type=Path, required=True, help="the files that were uploaded")
    options = parser.parse_args()
    try:
        run = SUBJECTS[options.subject, options.work](options)
    except ImportError as error:
        print(error, file=sys.stderr)
        return 3
    spent, began = cpu_seconds(), time.perf_counter()
    count = run()
    seconds, spent = time.perf_counter() - began, cpu_seconds() - spent
    print(json.dumps({"count": count, "seconds": seconds, "cpu_s": spent}), flush=True)
    # Threads of clients are not waited for.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
