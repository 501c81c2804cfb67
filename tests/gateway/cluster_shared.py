"""What two gateways share: conditions, uploads, listings, and keys that one replaces while the other reads."""

from __future__ import annotations

import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from cluster_world import BUCKET, client

WRITERS = 8
PART = 5 << 20
Row = tuple[str, int, int, int, list[str]]


def status(call: Callable[[], Any]) -> tuple[int | str, Any]:
    """The answer's status and what it says."""
    try:
        done = call()
        return 200, done
    except ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"], str(error)
    except BotoCoreError as error:
        return type(error).__name__, str(error)


def read(s3: Any, key: str) -> bytes:
    return whole(s3, key)[0]


def whole(s3: Any, key: str) -> tuple[bytes, str]:
    """Its bytes and its ETag."""
    found = s3.get_object(Bucket=BUCKET, Key=key)
    return bytes(found["Body"].read()), found["ETag"]


def rounds(urls: list[str], turns: int) -> Row:
    """In each, 8 writers through both gateways put one key: first where none is, then where the ETag is that of before."""
    clients = [client(url) for url in itertools.islice(itertools.cycle(urls), WRITERS)]
    wrong, others, etag = [], Counter[int | str](), ""
    with ThreadPoolExecutor(WRITERS) as pool:
        for turn in range(turns):
            key = f"rounds/{turn // 2}"
            condition = {"IfMatch": etag} if turn % 2 else {"IfNoneMatch": "*"}
            bodies = [f"{turn} {number} ".encode() * (1 + 300 * number) for number in range(WRITERS)]
            together = threading.Barrier(WRITERS)

            def put(
                number: int, key: str = key, bodies: Any = bodies, condition: Any = condition, together: Any = together
            ) -> Any:
                together.wait()
                return status(
                    lambda: clients[number].put_object(Bucket=BUCKET, Key=key, Body=bodies[number], **condition)
                )

            answers = list(pool.map(put, range(WRITERS)))
            winners = [number for number, answer in enumerate(answers) if answer[0] == 200]
            others.update(answer[0] for answer in answers if answer[0] not in (200, 412))
            if len(winners) != 1:
                wrong.append(f"{key}, {condition}: {len(winners)} winners: {[str(answer[0]) for answer in answers]}")
                etag = clients[0].head_object(Bucket=BUCKET, Key=key)["ETag"] if winners else etag
                continue
            etag = answers[winners[0]][1]["ETag"]
            for s3 in clients[:2]:
                says, found = status(lambda s3=s3, key=key: whole(s3, key))
                if (says, found) != (200, (bodies[winners[0]], etag)):
                    wrong.append(
                        f"{key}, {condition}: {says} {found if says != 200 else 'other bytes or another ETag'}"
                    )
    if others:
        wrong.append(f"answers that are neither 200 nor 412: {dict(others)}")
    return "conditional PUTs of 8 writers: rounds without one winner", turns, len(wrong), 0, wrong


def multipart(urls: list[str], between: Callable[[], None] = lambda: None) -> list[str]:
    """Begins an upload at the first gateway, sends parts to both at once, and completes it at the second."""
    multipart.number += 1  # type: ignore[attr-defined]
    key = f"uploads/{multipart.number}"  # type: ignore[attr-defined]
    first, second = (client(url) for url in urls)
    # The fourth part is written first by one, then by the other; the last is short.
    bodies = {number: os.urandom(PART + (0 if number < 5 else 1234 - PART)) for number in range(1, 6)}
    upload = first.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
    named = {"Bucket": BUCKET, "Key": key, "UploadId": upload}
    first.upload_part(**named, PartNumber=4, Body=b"of before" * 600_000)
    between()
    senders = itertools.cycle([second] if between.__name__ == "kill" else [first, second])
    with ThreadPoolExecutor(4) as pool:
        sent = pool.map(
            lambda one: one[0].upload_part(**named, PartNumber=one[1], Body=bodies[one[1]])["ETag"],
            zip(senders, bodies, strict=False),
        )
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in zip(bodies, sent, strict=True)]
    wrong = []
    if len(second.list_parts(**named)["Parts"]) != 5:
        wrong.append(f"{key}: parts are missing in the list")
    says, told = status(lambda: second.complete_multipart_upload(**named, MultipartUpload={"Parts": parts}))
    if says != 200:
        return [*wrong, f"{key}: {says} {told}"]
    for s3 in [second] if between.__name__ == "kill" else [first, second]:
        if read(s3, key) != b"".join(bodies.values()):
            wrong.append(f"{key}: other bytes")
    if second.list_multipart_uploads(Bucket=BUCKET).get("Uploads"):
        wrong.append(f"{key}: the upload is still there")
    return wrong


multipart.number = 0  # type: ignore[attr-defined]


def both_at_once(urls: list[str], turns: int) -> Row:
    """An upload that both gateways are asked to complete at once: the object is whole, and one at least says so."""
    clients = [client(url) for url in urls]
    wrong = []
    with ThreadPoolExecutor(2) as pool:
        for turn in range(turns):
            key, body = f"twice/{turn}", os.urandom(10_000)
            named = {"Bucket": BUCKET, "Key": key}
            named["UploadId"] = clients[turn % 2].create_multipart_upload(**named)["UploadId"]
            etag = clients[0].upload_part(**named, PartNumber=1, Body=body)["ETag"]
            parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
            answers = list(
                pool.map(
                    lambda s3, n=named, p=parts: status(lambda: s3.complete_multipart_upload(**n, MultipartUpload=p)),
                    clients,
                )
            )
            says = [answer[0] for answer in answers]
            if 200 not in says or not set(says) <= {200, 404, 409}:
                wrong.append(f"{key}: {says}")
            if any(read(s3, key) != body for s3 in clients):
                wrong.append(f"{key}: other bytes")
    return "uploads completed by both at once", turns, len(wrong), 0, wrong


def listings(urls: list[str], turns: int) -> Iterable[Row]:
    """A key written at one gateway is listed and read at the other at once; one deleted there is gone."""
    clients = [client(url) for url in urls]
    unseen, unread, undead = [], [], []
    for turn in range(turns):
        here, there = clients if turn % 2 else clients[::-1]
        key = f"seen/{turn % 5}/{turn}"
        here.put_object(Bucket=BUCKET, Key=key, Body=key.encode())
        if key not in keys(there, key.rpartition("/")[0]):
            unseen.append(key)
        answer = status(lambda there=there, key=key: read(there, key))
        if answer != (200, key.encode()):
            unread.append(f"{key}: {answer}")
        here.delete_object(Bucket=BUCKET, Key=key)
        if (
            key in keys(there, key.rpartition("/")[0])
            or status(lambda there=there, key=key: read(there, key))[0] != 404
        ):
            undead.append(key)
    yield "keys of the other gateway that a listing misses", turns, len(unseen), 0, unseen
    yield "keys of the other gateway that cannot be read at once", turns, len(unread), 0, unread
    yield "deleted keys that the other gateway still has", turns, len(undead), 0, undead


def keys(s3: Any, prefix: str) -> set[str]:
    return {one["Key"] for one in s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])}


def replaced(urls: list[str], seconds: float) -> Iterable[Row]:
    """One writer replaces a key by both gateways in turn, four readers read it: each gets one whole object, no older than known."""
    size, key = 300_000, "replaced"
    clients = [client(url) for url in urls]
    known, over = [0], threading.Event()
    asked, failed, torn, stale, written = [0], [], [], [], [0]

    def body(number: int) -> bytes:
        return number.to_bytes(8, "big") * (size // 8 + number % 1000)

    clients[0].put_object(Bucket=BUCKET, Key=key, Body=body(0))

    def readings(s3: Any) -> None:
        while not over.is_set():
            least = known[0]
            says, found = status(lambda: read(s3, key))
            asked[0] += 1
            if says != 200:
                failed.append(f"{says}: {found}")
            elif found != body(int.from_bytes(found[:8], "big")):
                torn.append(f"{len(found)} bytes of {int.from_bytes(found[:8], 'big')}")
            elif int.from_bytes(found[:8], "big") < least:
                stale.append(f"{int.from_bytes(found[:8], 'big')} though {least} was there")

    readers = [threading.Thread(target=readings, args=[clients[number % 2]]) for number in range(4)]
    for thread in readers:
        thread.start()
    refused = []
    timer = threading.Timer(seconds, over.set)
    timer.start()
    while not over.is_set():
        written[0] += 1
        says, told = status(lambda: clients[written[0] % 2].put_object(Bucket=BUCKET, Key=key, Body=body(written[0])))
        if says == 200:
            known[0] = written[0]
        else:
            refused.append(f"{says}: {told}")
    for thread in readers:
        thread.join()
    yield "PUTs that replace an object under readers: refused", written[0], len(refused), 0, refused
    yield "reads of an object that is replaced: failed", asked[0], len(failed), 0, failed
    yield "  torn or mixed", asked[0], len(torn), 0, torn
    yield "  older than what was answered before", asked[0], len(stale), 0, stale
