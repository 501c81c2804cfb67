"""``s3://`` wherever a path is taken, by moto's server and by the one of the tests. Bytes get there and back by plain HTTP requests."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import forebay
import forebay.data
from forebay import _locations
from forebay.data import _files

ROOT = Path(__file__).resolve().parents[2]


class Server:
    """A server with one bucket."""

    def __init__(self, endpoint: str, headers: dict[str, str]) -> None:
        self.endpoint = endpoint
        # By default a body would be that of a form, which moto takes apart for minutes.
        self.headers = {"Content-Type": "application/octet-stream"} | headers

    def ask(self, method: str, target: str, data: bytes | None = None) -> bytes:
        request = urllib.request.Request(f"{self.endpoint}/bucket{target}", data, self.headers, method=method)
        with urllib.request.urlopen(request, timeout=20) as reply:
            return bytes(reply.read())

    def put(self, key: str, data: bytes) -> str:
        """Stores an object; its URL."""
        self.ask("PUT", f"/{quote(os.fsencode(key))}", data)
        return f"s3://bucket/{quote(key)}"

    def put_folder(self, prefix: str, folder: Path) -> None:
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())

    def get(self, key: str) -> bytes:
        return self.ask("GET", f"/{quote(key)}")

    def uploads(self) -> bool:
        """Whether an upload is under way."""
        return b"<UploadId>" in self.ask("GET", "?uploads")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _moto() -> tuple[dict[str, str], subprocess.Popen[bytes]]:
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask_cors") is None:
        pytest.skip("moto's server is not installed (.ci/s3-servers.txt)")
    port = _free_port()
    line = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    keys = {"AWS_ACCESS_KEY_ID": "AKIAFOREBAY", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
    return keys | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_CONFIG_FILE": "/dev/null"}, process


def _fake() -> tuple[dict[str, str], subprocess.Popen[bytes]]:
    program = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug/examples/serve"
    if not program.exists():
        pytest.skip("the server of the tests is not built: cargo build -p fake-s3 --example serve")
    process = subprocess.Popen([program, "bucket/"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    variables: dict[str, str] = {}
    while "AWS_EC2_METADATA_DISABLED" not in variables:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert line, "the server of the tests did not start"
        name, _, value = line.strip().partition("=")
        variables[name] = value
    return variables, process


@pytest.fixture(scope="module", params=["moto", "fake-s3"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server, which the variables of this process name."""
    variables, process = _moto() if request.param == "moto" else _fake()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        # moto wants a name, and compares no signature; the other one compares those that it gets.
        name = "AWS4-HMAC-SHA256 Credential=AKIAFOREBAY/20261127/us-east-1/s3/aws4_request"
        is_moto = request.param == "moto"
        found = Server(variables["AWS_ENDPOINT_URL"], {"Authorization": name} if is_moto else {})
        for _ in range(300):
            try:
                found.ask("PUT", "")
                break
            except urllib.error.HTTPError:
                break  # The bucket is there.
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        yield found
    process.kill()
    process.wait()


def formats() -> Any:
    """What reads and writes each format by NFS."""
    path = ROOT / "tests/nfs/formats.py"
    spec = importlib.util.spec_from_file_location("formats", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A file of each format."""
    pytest.importorskip("numpy", reason="these formats are read as numpy's arrays")
    formats().write(tmp_path)
    # Keys are Unicode.
    (tmp_path / "classes" / os.fsdecode(b"one/caf\xe9.bin")).unlink()
    return tmp_path


def test_each_format_is_read(server: Server, folder: Path) -> None:
    nfs = formats()
    server.put_folder("formats", folder)
    for what, (name, open_it) in nfs.FORMATS.items():
        there = open_it(f"s3://bucket/formats/{quote(name, safe='/{}*[]')}")
        assert nfs.same(open_it(str(folder / name))(), there()), what


def test_each_format_is_saved(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("numpy", reason="these formats are saved from numpy's arrays")
    nfs = formats()
    for name, (save, load) in nfs.SAVERS.items():
        path, url = tmp_path / name, f"s3://bucket/saved/{quote(name)}"
        save(str(path))
        for _ in range(2):
            save(url)
            assert server.get(f"saved/{name}") == path.read_bytes(), name
        assert nfs.same(load(url), load(str(path))), name
    assert not server.uploads()


def test_a_replaced_object_ends_its_reads(server: Server, folder: Path) -> None:
    nfs = formats()
    server.put_folder("replaced", folder)
    for what, (name, open_it) in nfs.FORMATS.items():
        if what in nfs.OPENED_LATER:
            continue
        before = open_it(str(folder / name))()
        read = open_it(f"s3://bucket/replaced/{quote(name, safe='/{}*[]')}")
        path = folder / nfs.REPLACED.get(what, name)
        server.put(f"replaced/{path.relative_to(folder)}", bytes(byte ^ 1 for byte in path.read_bytes()))
        try:
            found = read()
        except forebay.BusyError:
            pass
        else:
            # First bytes of an object came when it was opened.
            assert nfs.same(found, before), what
        server.put(f"replaced/{path.relative_to(folder)}", path.read_bytes())


@pytest.mark.parametrize("count", [5, 40])
def test_a_data_set_knows_the_states_of_its_objects(server: Server, count: int, tmp_path: Path) -> None:
    """Many of a folder by a listing, few by a HEAD each: the states are the same."""
    urls = [server.put(f"states {count}/ä {number:02}", bytes(range(number))) for number in range(count)]
    (tmp_path / "local").write_bytes(b"local")
    files = _files.FileSet([*urls, str(tmp_path / "local"), urls[3]])
    assert [files.size(number) for number in range(count + 2)] == [*range(count), 5, 3]
    assert files.states[:count] == [_files.FileSet([url]).states[0] for url in urls]
    files.check()
    server.put(f"states {count}/ä 04", b"else")
    with pytest.raises(forebay.errors.BusyError, match="changed since"):
        files.check()
    server.put(f"states {count}/ä 04", bytes(range(4)))
    files.check()
    server.ask("DELETE", f"/states%20{count}/%C3%A4%2004")
    with pytest.raises(forebay.errors.NotFoundError) as caught:
        files.check()
    assert "ä%2004" in str(caught.value)
    with pytest.raises(forebay.errors.NotFoundError):
        _files.FileSet(urls)


def test_a_save_that_fails_leaves_nothing(server: Server) -> None:
    url = server.put("kept", b"old")
    with forebay._forebay.Pending(url) as pending:
        pending.file.write_from(bytearray(20 << 20))
    assert server.get("kept") == b"old" and not server.uploads()


def test_a_large_file_is_saved_in_parts_and_loaded(server: Server, device: str) -> None:
    np = pytest.importorskip("numpy", reason="these tensors are numpy's arrays")
    tensors = {f"t{number}": np.arange(3_000_001, dtype="f4") + number for number in range(4)}
    url = "s3://bucket/large.safetensors"
    forebay.save_file(tensors, url)
    found = forebay.load_file(url, framework="numpy")
    assert all(np.array_equal(found[name], tensor) for name, tensor in tensors.items())
    stored = server.get("large.safetensors")
    array = forebay.empty(len(stored), device=device)
    with forebay.open(url) as file:
        assert file.size == len(stored) > 48_000_000
        receipt = file.read_into(array)
    assert receipt.bytes == len(stored) and "S3 over TCP" in str(receipt)
    assert array.tobytes() == stored


def test_weights_are_read_where_they_are_used(server: Server, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import forebay.torch

    tensor = torch.arange(4096.0).view(64, 64)
    forebay.save_file({"weight": tensor}, tmp_path / "model.safetensors")
    url = server.put("weights/model.safetensors", (tmp_path / "model.safetensors").read_bytes())
    for where in (url, "s3://bucket/weights", "s3://bucket/weights/"):
        weights, into = forebay.torch.weights(where), torch.zeros(64, 32)
        with weights.collect():
            into.copy_(weights["weight"][:, 32:])
        assert torch.equal(into, tensor[:, 32:]), where


def test_checkpoints_are_written_to_buckets(server: Server) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import torch.distributed.checkpoint as dcp

    import forebay.torch

    where = "s3://bucket/checkpoints/a%20step"
    for number in range(2):
        state = {"w": torch.arange(300_000.0) + number, "step": number}
        dcp.save(state, storage_writer=forebay.torch.CheckpointWriter(where), no_dist=True)
        found = {"w": torch.zeros(300_000), "step": -1}
        dcp.load(found, storage_reader=forebay.torch.CheckpointReader(where), no_dist=True)
        assert torch.equal(found["w"], state["w"]) and found["step"] == number
    # Files of the save before are gone.
    assert len(_locations.names(where)) == 2
    assert not server.uploads()


def test_what_is_not_there_is_said(server: Server) -> None:
    with pytest.raises(forebay.NotFoundError):
        forebay.load_file("s3://bucket/nothing.safetensors")
    assert not _locations.exists("s3://bucket/nothing")
    server.put("a folder/one", b"1")
    assert _locations.is_folder("s3://bucket/a%20folder") and _locations.names("s3://bucket/a%20folder") == ["one"]
