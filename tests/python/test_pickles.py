"""Files of ``torch.save``: what comes out is what went in, and nothing in them is ever run."""

from __future__ import annotations

import argparse
import contextlib
import enum
import io
import os
import pickle
import struct
import sys
import zipfile
import zlib
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import forebay  # noqa: E402
from forebay import errors, pickles  # noqa: E402


def checkpoint(path: Path, data_pkl: bytes, storages: dict[str, bytes] | None = None, **records: bytes) -> Path:
    """An archive as torch.save makes them, around any pickle."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", data_pkl)
        archive.writestr("archive/byteorder", records.pop("byteorder", b"little"))
        for key, data in (storages or {}).items():
            archive.writestr(f"archive/data/{key}", data)
        for name, data in records.items():
            archive.writestr(f"archive/{name.replace('__', '/')}", data)
        archive.writestr("archive/version", b"3\n")
    return path


def tensor_pickle(
    *, key: str = "0", numel: int = 4, offset: int = 0, size: tuple[int, ...] = (4,), stride: tuple[int, ...] = (1,)
) -> bytes:
    """The pickle of one float32 tensor, with whatever it claims."""

    class Storage:
        pass

    class Tensor:
        def __reduce__(self) -> Any:
            rebuild = torch._utils._rebuild_tensor_v2
            return rebuild, (Storage(), offset, size, stride, False, OrderedDict())

    class Pickler(pickle._Pickler):  # type: ignore[misc,name-defined]
        def persistent_id(self, value: Any) -> Any:
            return ("storage", torch.FloatStorage, key, "cpu", numel) if isinstance(value, Storage) else None

    room = io.BytesIO()
    Pickler(room, 2).dump({"w": Tensor()})
    return room.getvalue()


def bytes_of(tensor: Any) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def test_everything_that_state_dicts_hold_comes_back(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    base = torch.arange(100.0).reshape(10, 10)
    state = {
        "model": model.state_dict(),
        "turned": base.t(),
        "window": base[2:4, 3:],
        "parameter": torch.nn.Parameter(torch.ones(3), requires_grad=False),
        "grad": torch.ones(2, requires_grad=True),
        "fp8": torch.arange(4.0).to(torch.float8_e4m3fn),
        "bf16": torch.ones(3, dtype=torch.bfloat16),
        "u16": torch.ones(3, dtype=torch.uint16),
        "c64": torch.tensor([1j]),
        "none": torch.zeros(0, 3),
        "scalar": torch.tensor(3),
        "repeated": torch.zeros(1).expand(5),
        "plain": [1, (2.5, None, True, -7, 1 << 80), {"b": b"xy", 3: {1, 2}}, "text", 1j],
        "torch": [torch.Size([1, 2]), torch.float16, torch.device("cuda:1")],
    }
    path = tmp_path / "x.pt"
    torch.save(state, path)
    loaded = pickles.load(path, verify=True)
    assert list(loaded) == list(state)
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            assert loaded[name].dtype == value.dtype and loaded[name].stride() == value.stride()
            assert loaded[name].requires_grad == value.requires_grad and type(loaded[name]) is type(value)
            assert bytes_of(loaded[name]) == bytes_of(value)
    assert loaded["plain"] == state["plain"] and loaded["torch"] == state["torch"]
    assert type(loaded["model"]) is OrderedDict and loaded["model"]._metadata == state["model"]._metadata
    # Views share what they shared.
    assert loaded["turned"].untyped_storage().data_ptr() == loaded["window"].untyped_storage().data_ptr()
    loaded["turned"][3, 2] = 77
    assert loaded["window"][0, 0] == 77
    torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).load_state_dict(loaded["model"])


@pytest.mark.parametrize("protocol", [1, 4, 5])
def test_protocols_that_torch_does_not_read_without_code(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"a": torch.ones(3)}, path, pickle_protocol=protocol)
    with pytest.raises(errors.UnsupportedError, match=f"protocol=({protocol}|0 or 1)") as caught:
        pickles.load(path)
    assert "torch.save(torch.load(path, weights_only=False), path)" in caught.value.hints[0]
    torch.save(torch.load(path, weights_only=False), path)
    assert pickles.load(path)["a"].tolist() == [1, 1, 1]


def test_a_tensor_that_is_there_twice_is_one(tmp_path: Path) -> None:
    tensor, nest = torch.ones(3), {"c": torch.zeros(2)}
    torch.save({"a": tensor, "b": [tensor, nest], "n": nest}, tmp_path / "x.pt")
    loaded = pickles.load(tmp_path / "x.pt")
    assert loaded["a"] is loaded["b"][0] and loaded["n"] is loaded["b"][1]


def test_files_larger_than_memory_are_described(tmp_path: Path) -> None:
    """The kernel refuses to map such a file as torch does: privately, for writing."""
    size, path = 1 << 42, tmp_path / "x.pt"
    small = {"archive/data.pkl": tensor_pickle(numel=size >> 2, size=(size >> 2,)), "archive/byteorder": b"little"}
    plan = forebay._forebay.plan_zip([*((name, len(data)) for name, data in small.items()), ("archive/data/0", size)])
    sums = [*map(zlib.crc32, small.values()), 0]
    with open(path, "wb") as file:
        for index, (header, data, _) in enumerate(plan.places):
            os.pwrite(file.fileno(), plan.header(index, sums[index]), header)
            os.pwrite(file.fileno(), [*small.values(), b""][index], data)
        os.pwrite(file.fileno(), plan.directory(sums), plan.directory_offset)
    assert pickles.load(path, "meta")["w"].shape == (size >> 2,)


def test_loaded_tensors_own_their_storage(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(10), "b": torch.ones(20)}, tmp_path / "x.pt")
    loaded = pickles.load(tmp_path / "x.pt")
    assert loaded["a"].untyped_storage().nbytes() == 40
    loaded["a"].resize_(1000)
    torch.save(loaded, tmp_path / "y.pt")
    assert torch.equal(pickles.load(tmp_path / "y.pt")["b"].cpu(), torch.ones(20))


def test_names_dtype_and_places(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3), "b": torch.arange(3), "n": {"c": torch.ones(2)}}, tmp_path / "x.pt")
    loaded = pickles.load(tmp_path / "x.pt", {"n.": "cpu", "": "cpu"}, names=["a", "n"], dtype="bfloat16")
    assert list(loaded) == ["a", "n"]
    assert loaded["a"].dtype == loaded["n"]["c"].dtype == torch.bfloat16
    assert pickles.load(tmp_path / "x.pt", dtype=torch.float16)["b"].dtype == torch.int64
    assert list(pickles.load(tmp_path / "x.pt", names=lambda name: name > "a")) == ["b", "n"]
    cast = pickles.load(tmp_path / "x.pt", dtype=lambda name: torch.float64 if name == "n.c" else None)
    assert cast["n"]["c"].dtype == torch.float64 and cast["a"].dtype == torch.float32
    with pytest.raises(errors.InvalidInputError, match="tensor=z"):
        pickles.load(tmp_path / "x.pt", names=["z"])
    with pytest.raises(errors.InvalidInputError, match="no device"):
        pickles.load(tmp_path / "x.pt", {"n.": "cpu"})
    seen: list[tuple[int, int]] = []
    pickles.load(tmp_path / "x.pt", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (12 + 24 + 8, 12 + 24 + 8)


def test_the_line_of_progress_goes_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"a": torch.ones(10)}, tmp_path / "x.pt")
    monkeypatch.setattr("forebay.progress._SHOW_AFTER", 0.0)
    for load in (pickles.load, forebay.load_file):
        load(tmp_path / "x.pt", device="cpu", progress=True)
        drawn = capsys.readouterr().err
        assert "loading 100%" in drawn and drawn.endswith(" \r")


def test_damage_is_found_by_verify(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"a": torch.full((1000,), 7.0)}, path)
    raw = bytearray(path.read_bytes())
    at = raw.index(struct.pack("<f", 7.0) * 8)
    raw[at] ^= 1
    path.write_bytes(raw)
    pickles.load(path)
    with pytest.raises(errors.IntegrityError, match="has changed"):
        pickles.load(path, verify=True)


class Call:
    """Pickles as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


class Built:
    pass


def _touch(name: str) -> Call:
    return Call(exec, f"open({name!r}, 'w')")


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (lambda mark: Call(__import__("os").system, f"touch {mark}"), "posix.system"),
        (_touch, "exec"),
        (lambda mark: {"a": [({"deep": _touch(mark)},)]}, "exec"),
        (lambda mark: Call(getattr, "x", "upper"), "getattr"),
        (lambda mark: Call(OrderedDict, [("a", _touch(mark))]), "exec"),
        (lambda mark: Call(torch.load, mark), "load"),
        (lambda mark: Call(torch.hub.load_state_dict_from_url, "x"), "torch.hub.load_state_dict_from_url"),
        (lambda mark: Built(), "Built"),
        (lambda mark: Call(__import__, "os"), "__import__"),
    ],
)
def test_code_is_refused_by_name_and_not_run(value: Any, name: str, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    path = checkpoint(tmp_path / "x.pt", pickle.dumps({"w": value(str(mark))}, 2))
    with pytest.raises(errors.InvalidInputError, match=rf"more than tensors and plain data: .*\b{name}\b") as caught:
        pickles.load(path)
    assert caught.value.hints
    assert not mark.exists()


#: What PyTorch says of these differs between its versions.
DAMAGED = "pickle is damaged"
REFUSED = "more than tensors and plain data"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (b"\x80\x02cos\nsystem\n(S'x'\ntR.", REFUSED),
        (b"\x80\x02ctorch\nos.system\n.", REFUSED),
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2.__globals__\n.", REFUSED),
        (b"\x80\x02\x82\x01.", REFUSED),  # an extension registry's code
        (b"\x80\x02ios\nsystem\n.", REFUSED),  # INST
        (b"\x80\x02(cos\nsystem\no.", REFUSED),  # OBJ
        (b"\x80\x02c__import__('os').system\n('id')\n.", REFUSED),
        (b"\x80\x02cx`` must be imported ``os;os.system('id')``\ny\n.", REFUSED),
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}b.", REFUSED),  # BUILD on a function
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nN}X\x0c\x00\x00\x00__defaults__)s\x86b.", REFUSED),
        (b"\x80\x02ccollections\nOrderedDict\n)R}X\x05\x00\x00\x00itemsNsb.", "state of its own"),
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.", DAMAGED),
        (b"\x80\x02]q\x00h\x01.", DAMAGED),
        (b"\x80\x02" + b"(" * 5000 + b".", DAMAGED),
        (b"\x80\x02Nr\xff\xff\xff\xff.", None),  # a memo entry far away costs nothing
        (b"\x80\x02\x8b\xff\xff\xff\x7f.", REFUSED),
        (b"\x80\x02X\xff\xff\xff\xff.", DAMAGED),
        (b"\x80\x02N", DAMAGED),
        (b"", DAMAGED),
        (b"\x80\x02}]Ns.", DAMAGED),
        (b"\x80\x02}]\x85Ns.", DAMAGED),
        (b"\x80\x02X\x01\x00\x00\x00\xffN.", DAMAGED),
        (b"\x80\x02K\x01Q.", DAMAGED),
        (b"\x80\x02(X\x07\x00\x00\x00storageNNNNtQ.", DAMAGED),
        (b"\x80\x02ctorch\nSize\nX\x01\x00\x00\x00a\x85R.", DAMAGED),
        (b"\x80\x02ctorch\ndevice\nX\x05\x00\x00\x00a b:c\x85R.", DAMAGED),
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R.", DAMAGED),
    ],
)
def test_tricks(code: bytes, message: str | None, tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "x.pt", code)
    if message is None:
        assert pickles.load(path) is None
        return
    with pytest.raises((errors.IntegrityError, errors.InvalidInputError), match=message) as caught:
        pickles.load(path)
    # What the file says is no line to type.
    assert not any("('id')" in hint for hint in caught.value.hints)


def _depth(node: Any) -> int:
    depth = 0
    while node:
        (node,) = node
        depth += 1
    return depth


@pytest.mark.parametrize(
    ("code", "is_right"),
    [
        (b"]q\x00h\x00a", lambda found: found[0] is found),
        (b"}q\x00K\x01h\x00s", lambda found: found[1] is found),
        (b"]" * 1000 + b"a" * 999, lambda found: _depth(found) == 999),
        (b"ctorch._utils\n_rebuild_tensor_v2\n", lambda found: found is torch._utils._rebuild_tensor_v2),
        (b"})\x85Ns", lambda found: found == {((),): None}),
        (b"cbuiltins\nset\n]()\x85e\x85R", lambda found: found == {((),)}),
        (
            b"ccollections\nOrderedDict\n)R}X\x09\x00\x00\x00_metadata" + b"]" * 900 + b"a" * 899 + b"sb",
            lambda found: _depth(found._metadata) == 899,
        ),
    ],
)
def test_odd_nests_are_as_torch_reads_them(code: bytes, is_right: Callable[[Any], bool], tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "x.pt", b"\x80\x02" + code + b".")
    assert is_right(torch.load(path, weights_only=True))
    assert is_right(pickles.load(path))


def test_nests_that_are_deeper_than_where_they_were_first_seen(tmp_path: Path) -> None:
    code = b"]q\x00"
    for level in range(12):
        # [150 lists around the one before, that one]: the last is looked at first.
        code = b"]" * 150 + code + b"a" * 150 + b"h%ca" % level + b"q%c" % (level + 1)
    path = checkpoint(tmp_path / "x.pt", b"\x80\x02" + code + b".")
    assert len(pickles.load(path)) == 2


def test_tensors_in_what_a_state_dict_keeps_beside_itself(tmp_path: Path) -> None:
    state = OrderedDict(a=torch.ones(2))
    state._metadata = {"": {"kept": torch.zeros(3)}}  # type: ignore[attr-defined]
    torch.save(state, tmp_path / "x.pt")
    loaded = pickles.load(tmp_path / "x.pt", "cpu")
    assert loaded["a"].tolist() == [1, 1] and loaded._metadata[""]["kept"].tolist() == [0, 0, 0]


def test_names_of_tensors_that_never_end(tmp_path: Path) -> None:
    state: Any = torch.ones(2)
    for _ in range(30):
        state = {"k" * 100: state}
    torch.save(state, tmp_path / "x.pt")
    found = pickles.load(tmp_path / "x.pt", {"": "cpu"})
    for _ in range(30):
        found = found["k" * 100]
    assert found.tolist() == [1, 1]


def test_shared_nests_do_not_explode(tmp_path: Path) -> None:
    bomb: Any = []
    for _ in range(100):
        bomb = [bomb, bomb]
    loaded = pickles.load(checkpoint(tmp_path / "x.pt", pickle.dumps(bomb, 2)))
    assert loaded[0] is loaded[1]


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"key": "1"}, "does not hold"),
        ({"key": "../data.pkl"}, "does not hold"),
        ({"numel": 1 << 60}, "lies about the size"),
        ({"numel": 3}, "lies about the size"),
        ({"numel": -1}, "lies about the size"),
        ({"size": (5,)}, "beyond its storage"),
        ({"offset": 1}, "beyond its storage"),
        ({"offset": -1}, DAMAGED),
        ({"size": (2, 2), "stride": (4, 1)}, "beyond its storage"),
        ({"size": (1 << 61, 1 << 61), "stride": (1, 1)}, DAMAGED),
        ({"size": (1 << 31, 1 << 31), "stride": (1 << 33, 1 << 31)}, "beyond its storage"),
        ({"size": (1 << 70,), "stride": (0,)}, DAMAGED),
        ({"size": (2, 2), "stride": (1,)}, DAMAGED),
    ],
)
def test_tensors_that_lie(claims: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "x.pt", tensor_pickle(**claims), {"0": bytes(16)})
    with pytest.raises(errors.IntegrityError, match=message):
        pickles.load(path)


def test_honest_handmade_tensor(tmp_path: Path) -> None:
    data = struct.pack("<4f", 1, 2, 3, 4)
    path = checkpoint(tmp_path / "x.pt", tensor_pickle(size=(2, 2), stride=(1, 2)), {"0": data})
    assert pickles.load(path)["w"].tolist() == [[1, 3], [2, 4]]
    assert torch.load(path, weights_only=True)["w"].tolist() == [[1, 3], [2, 4]]


def _patch_directory(path: Path, name: str, field: int, value: int) -> None:
    """Changes a 32-bit field of a record's entry in the archive's directory."""
    raw = bytearray(path.read_bytes())
    at = raw.index(b"PK\x01\x02")
    while raw[at + 46 : at + 46 + len(name)] != name.encode():
        at = raw.index(b"PK\x01\x02", at + 4)
    raw[at + field : at + field + 4] = struct.pack("<I", value)
    path.write_bytes(raw)


def test_overlapping_records_are_refused(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "x.pt", tensor_pickle(), {"0": bytes(16), "1": bytes(16)})
    with zipfile.ZipFile(path) as archive:
        first = archive.getinfo("archive/data/0").header_offset
    _patch_directory(path, "archive/data/1", 42, first)
    with pytest.raises(errors.InvalidInputError, match="overlaps the entry before it"):
        pickles.load(path)


def test_record_beyond_the_file_is_refused(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "x.pt", tensor_pickle(numel=1 << 28), {"0": bytes(16)})
    _patch_directory(path, "archive/data/0", 20, 1 << 30)
    _patch_directory(path, "archive/data/0", 24, 1 << 30)
    with pytest.raises(errors.InvalidInputError, match="ends beyond the end of the data"):
        pickles.load(path)


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"a": torch.ones(1000)}, path)
    raw = path.read_bytes()
    for size in (3, 100, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:size])
        with pytest.raises(errors.Error):
            pickles.load(path)


def test_other_formats_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidInputError, match="TorchScript"):
        pickles.load(checkpoint(tmp_path / "script.pt", b"\x80\x02N.", code__x=b"", **{"constants.pkl": b"\x80\x02)."}))
    with pytest.raises(errors.IntegrityError, match="byte order.*order=middle"):
        pickles.load(checkpoint(tmp_path / "odd.pt", b"\x80\x02N.", byteorder=b"middle"))
    with zipfile.ZipFile(tmp_path / "z.pt", "w") as archive:
        archive.writestr("a/other", b"")
    with pytest.raises(errors.InvalidInputError, match="no PyTorch checkpoint"):
        pickles.load(tmp_path / "z.pt")


class Pair(NamedTuple):
    first: Any
    second: Any


class Marked:
    """Looks at the data of a tensor while it is made."""

    def __init__(self, tensor: Any) -> None:
        self.total, self.tensor = float(tensor.sum()), tensor

    def __reduce__(self) -> Any:
        return Marked, (self.tensor,)


class Doubled(torch.Tensor):
    pass


def double_in_place(tensor: Any) -> Any:
    return tensor.mul_(2)


def _with_attribute(tensor: Any) -> Any:
    tensor.mark = 1
    return tensor


def _ordered_with_state() -> Any:
    state = OrderedDict(a=torch.ones(2))
    state.note = [torch.zeros(1)]  # type: ignore[attr-defined]
    return state


#: What torch.load(weights_only=True) reads beside tensors over plain storages.
ODD: dict[str, Callable[[], Any]] = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "bsc": lambda: torch.eye(4).to_sparse_bsc((2, 2)),
    "meta": lambda: torch.empty(2, device="meta"),
    "conjugate": lambda: torch.ones(2, dtype=torch.complex64).conj(),
    "negative": lambda: torch.ones(2, dtype=torch.complex64).conj().imag,
    "quantized": lambda: torch.quantize_per_tensor(torch.arange(3.0), 0.5, 1, torch.quint8),
    "quantized by channels": lambda: torch.quantize_per_channel(
        torch.ones(2, 3), torch.tensor([0.5, 2.0]), torch.tensor([0, 1]), 0, torch.qint8
    ),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)]),
    "attributes": lambda: _with_attribute(torch.ones(2)),
    "parameter with attributes": lambda: _with_attribute(torch.nn.Parameter(torch.ones(2))),
    "buffer": lambda: torch.nn.Buffer(torch.ones(2)),
    "storage": lambda: torch.arange(4.0).untyped_storage(),
    "counter": lambda: Counter("abca"),
    "counter of tensors": lambda: Counter({"a": torch.ones(2)}),
    "bytearray": lambda: bytearray(b"ab\0c"),
    "sets": lambda: {1, (2, "x"), (3, (4, 5))},
    "tensor keys": lambda: {(1, (2, "x")): torch.ones(2)},
    "ordered with a state": _ordered_with_state,
    "layout": lambda: [torch.sparse_coo, torch.per_channel_affine, torch.int4, torch.device("meta"), torch.Size([2])],
}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        if one.is_nested:
            return same(one.unbind(), other.unbind())
        if type(one) is not type(other) or (one.dtype, one.shape, one.layout) != (
            other.dtype,
            other.shape,
            other.layout,
        ):
            return False
        if vars(one).keys() != vars(other).keys() or one.requires_grad != other.requires_grad:
            return False
        return one.is_meta or repr(one) == repr(other)
    if torch.is_storage(one):
        return type(other) is type(one) and one.tolist() == other.tolist()
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one) and vars_same(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def vars_same(one: Any, other: Any) -> bool:
    return same(list(getattr(one, "__dict__", {}).values()), list(getattr(other, "__dict__", {}).values()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_old", [False, True], ids=["zip", "before 1.6"])
@pytest.mark.parametrize("kind", ODD)
def test_what_torch_reads_safely_is_read(kind: str, is_old: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    tree = {"weight": torch.arange(6.0).reshape(2, 3).t(), "odd": ODD[kind](), "n": [torch.ones(3, dtype=torch.int16)]}
    try:
        torch.save(tree, path, _use_new_zipfile_serialization=not is_old)
        told = torch.load(path, weights_only=True)
    except Exception as reason:
        pytest.skip(f"torch itself does not: {reason}")
    if is_old and kind in ("quantized by channels", "nested"):
        # torch makes these before it reads the storages that tell how: they are as they were saved all the same.
        told = tree
    assert same(pickles.load(path, "cpu"), told)
    assert same(pickles.load(path, {"weight": "cpu", "": "cpu"}, names=["odd"])["odd"], told["odd"])
    with contextlib.suppress(errors.UnsupportedError):
        assert pickles.load(path, "cpu", dtype="bfloat16")["weight"].dtype == torch.bfloat16
    # Nothing is left behind for the next load.
    torch.save({"a": torch.ones(2)}, tmp_path / "y.pt")
    assert torch.load(tmp_path / "y.pt", weights_only=True)["a"].tolist() == [1, 1]


@pytest.mark.parametrize("is_old", [False, True], ids=["zip", "before 1.6"])
def test_types_that_the_program_allowed(is_old: bool, tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    path = tmp_path / "x.pt"
    tree = {
        "pair": Pair(torch.ones(2), {"x": torch.zeros(3)}),
        "marked": Marked(torch.full((2,), 3.0)),
        "default": defaultdict(list),
        "array": numpy.arange(3.0),
        "doubled": Call(double_in_place, torch.ones(2)),
        "class": torch.ones(2).as_subclass(Doubled),
        "weight": torch.ones(3),
    }
    allowed = [Pair, Marked, defaultdict, list, double_in_place, Doubled, numpy.ndarray, numpy.dtype]
    allowed += [numpy._core.multiarray._reconstruct, type(numpy.dtype("f8"))]
    torch.save(tree, path, _use_new_zipfile_serialization=not is_old)
    with pytest.raises(errors.InvalidInputError, match=r"Pair.* not allowed") as caught:
        pickles.load(path)
    assert "torch.serialization.add_safe_globals([" in caught.value.hints[0] and "Pair" in caught.value.hints[0]
    with torch.serialization.safe_globals(allowed):
        found = pickles.load(path, "cpu", verify=not is_old)
        with pytest.raises(errors.UnsupportedError, match="cannot cast.*type=(Pair|Marked|defaultdict|ndarray)"):
            pickles.load(path, "cpu", dtype="bfloat16")
    assert type(found["pair"]) is Pair and found["pair"].second["x"].tolist() == [0, 0, 0]
    assert found["marked"].total == 6 and type(found["default"]) is defaultdict and found["array"].tolist() == [0, 1, 2]
    assert found["doubled"].tolist() == [2, 2] and type(found["class"]) is Doubled


class Mode(enum.Enum):
    FAST = "fast"
    SAFE = ("safe", 1)


@pytest.mark.parametrize("is_old", [True, False])
def test_members_of_enums_and_classes_as_values_are_read_as_torch_reads_them(tmp_path: Path, is_old: bool) -> None:
    path = tmp_path / "x.pt"
    inner = argparse.Namespace(kind=zipfile.ZipFile, mode=Mode.SAFE, weight=torch.ones(2))
    tree = {"mode": Mode.FAST, "modes": [Mode.SAFE, Mode.FAST], "kind": zipfile.ZipFile, Mode.SAFE: torch.zeros(1)}
    tree |= {"inner": inner, "type": OrderedDict, "weight": torch.ones(3)}
    torch.save(tree, path, _use_new_zipfile_serialization=not is_old)
    with torch.serialization.safe_globals([Mode, zipfile.ZipFile, argparse.Namespace]):
        found, theirs = pickles.load(path, "cpu"), torch.load(path, weights_only=True)
    assert found.keys() == theirs.keys()
    for key in ("mode", "modes", "kind", "type"):
        assert found[key] == theirs[key] == tree[key]
    assert (found["inner"].kind, found["inner"].mode) == (zipfile.ZipFile, Mode.SAFE)
    assert (found["inner"].weight.tolist(), found["weight"].tolist(), found[Mode.SAFE].tolist()) == (
        [1, 1],
        [1] * 3,
        [0],
    )
    # Nothing is lost where tensors are cast beside them.
    torch.save({"mode": Mode.FAST, "kind": zipfile.ZipFile, "weight": torch.ones(3)}, path)
    with torch.serialization.safe_globals([Mode, zipfile.ZipFile]):
        cast = pickles.load(path, "cpu", dtype="bfloat16")
    assert (cast["mode"], cast["kind"], cast["weight"].dtype) == (Mode.FAST, zipfile.ZipFile, torch.bfloat16)


def test_the_advice_for_values_of_numpy_leads_there(tmp_path: Path) -> None:
    """Each refusal names the next type to allow, until the file is read."""
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    torch.save({"a": numpy.float64(1.5), "b": torch.ones(2)}, tmp_path / "x.pt")
    scope: dict[str, Any] = {"torch": torch, "numpy": numpy}
    with torch.serialization.safe_globals([]):
        for _ in range(4):
            try:
                found = pickles.load(tmp_path / "x.pt", "cpu")
            except errors.InvalidInputError as refusal:
                exec(refusal.hints[0].partition(": ")[2].partition(", once")[0], scope)  # noqa: S102
        torch.serialization.clear_safe_globals()
    assert found["a"] == 1.5


def test_archives_that_were_packed_again(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(1000.0), "b": [torch.ones(3)]}, tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as told, zipfile.ZipFile(tmp_path / "y.pt", "w") as archive:
        for number, name in enumerate(told.namelist()):
            archive.writestr(name, told.read(name), (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED)[number % 2])
    assert same(pickles.load(tmp_path / "y.pt", "cpu", verify=True), torch.load(tmp_path / "x.pt"))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_numbers_of_a_big_endian_machine(device: str, tmp_path: Path) -> None:
    data = struct.pack(">4f", 1, 2, 3, 4)
    path = checkpoint(tmp_path / "x.pt", tensor_pickle(size=(2, 2), stride=(1, 2)), {"0": data}, byteorder=b"big")
    found = pickles.load(path, device)["w"]
    assert found.shape == (2, 2)
    if device == "cpu":
        assert found.tolist() == torch.load(path)["w"].tolist() == [[1, 3], [2, 4]]


@pytest.mark.parametrize("protocol", [2, 3])
def test_files_of_pytorch_before_1_6(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    base = torch.arange(100.0).reshape(10, 10)
    tree = {"t": base.t(), "part": base[2:4, 3:], "e": torch.zeros(0, 3), "n": 1, "h": torch.ones(3).half()}
    torch.save(tree, path, pickle_protocol=protocol, _use_new_zipfile_serialization=False)
    assert pickles.is_zip_checkpoint(path)
    found = pickles.load(path, {"t": "cpu", "": "cpu"}, dtype=lambda name: "float64" if name == "h" else None)
    assert found["h"].dtype == torch.float64 and found["t"].equal(base.t()) and found["part"].equal(base[2:4, 3:])
    assert found["t"].untyped_storage().data_ptr() == found["part"].untyped_storage().data_ptr()
    with pytest.raises(errors.UnsupportedError, match="without checksums"):
        pickles.load(path, "cpu", verify=True)
    raw = path.read_bytes()
    for size in (10, 40, 200, len(raw) - 1):
        path.write_bytes(raw[:size])
        with pytest.raises((errors.IntegrityError, errors.InvalidInputError)):
            pickles.load(path, "cpu")


def test_values_of_numpy_are_refused_by_name(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    torch.save({"a": numpy.float64(1)}, tmp_path / "n.pt")
    with pytest.raises(errors.InvalidInputError, match="numpy"):
        pickles.load(tmp_path / "n.pt")


@pytest.mark.parametrize("make", [lambda tensor: {tensor: 1}, lambda tensor: {tensor}, lambda tensor: {(tensor, 1): 1}])
def test_tensors_that_are_keys(make: Any, tmp_path: Path) -> None:
    torch.save(make(torch.ones(2)), tmp_path / "x.pt")
    (key,) = pickles.load(tmp_path / "x.pt", "cpu")
    assert (key[0] if isinstance(key, tuple) else key).tolist() == [1, 1]


def test_load_file_takes_them(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(5)}, tmp_path / "x.bin")
    assert pickles.is_zip_checkpoint(tmp_path / "x.bin")
    loaded = forebay.load_file(tmp_path / "x.bin", device="cpu", framework="torch")
    assert torch.equal(loaded["a"], torch.arange(5))


def test_safetensors_is_not_taken_for_one(tmp_path: Path) -> None:
    forebay.save_file({"a": torch.ones(2)}, tmp_path / "x.safetensors")
    for other in ("x.safetensors", "none", "", "a\0b", "org/none"):
        assert not pickles.is_zip_checkpoint(tmp_path / other if other[:1] == "x" else other)
    with pytest.raises(errors.InvalidInputError):
        pickles.is_zip_checkpoint(io.BytesIO())  # type: ignore[arg-type]


def test_random_damage_never_escapes(tmp_path: Path) -> None:
    """Whatever a byte is changed to: a value or one of our errors, and never a crash."""
    import random

    dice = random.Random(7)
    path = tmp_path / "x.pt"
    torch.save({"a": torch.ones(3), "b": [1, 2.5, {"c": torch.zeros(2, 2).t()}], "s": {1}}, path)
    with zipfile.ZipFile(path) as archive:
        good = archive.read("x/data.pkl")
        storages = {name.split("/")[-1]: archive.read(name) for name in archive.namelist() if "/data/" in name}
    for _ in range(300):
        bad = bytearray(good)
        for _ in range(dice.randint(1, 3)):
            bad[dice.randrange(len(bad))] = dice.randrange(256)
        with contextlib.suppress(errors.Error):
            pickles.load(checkpoint(path, bytes(bad), storages))


def test_nothing_is_imported_for_a_refusal(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "x.pt", b"\x80\x02cthis_must_not_be_imported\nthing\n.")
    (tmp_path / "this_must_not_be_imported.py").write_text("raise SystemExit('imported')")
    sys.path.insert(0, str(tmp_path))
    try:
        with pytest.raises(errors.InvalidInputError, match="this_must_not_be_imported.thing"):
            pickles.load(path)
    finally:
        sys.path.remove(str(tmp_path))
    assert "this_must_not_be_imported" not in sys.modules


@pytest.mark.parametrize("size", [4000, 1])
def test_a_file_rewritten_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    path = tmp_path / "x.pt"
    torch.save({"a": torch.ones(4000)}, path)
    os.utime(path, (1, 1))
    read = pickles._Builder._read

    def meddle(*args: Any) -> None:
        torch.save({"a": torch.zeros(size)}, path)
        read(*args)

    monkeypatch.setattr(pickles._Builder, "_read", meddle)
    with pytest.raises(errors.BusyError, match="changed while it was read"):
        pickles.load(path)


def test_host_memory_that_is_not_there_is_named(tmp_path: Path) -> None:
    from forebay import _refusals, frameworks
    from forebay.placement import CPU

    framework = frameworks.get("torch")
    with pytest.raises(RuntimeError) as caught:
        framework.allocator(CPU)((1 << 50,), "U8")
    told = _refusals.no_room(framework, caught.value, ("w", "U8", (1 << 50,), 0, 1 << 50), CPU, 1 << 50, 0)
    assert isinstance(told, errors.OutOfMemoryError) and "not enough memory on cpu" in str(told)
    assert told.hints and not any("cuda" in hint for hint in told.hints)


@pytest.mark.parametrize("several", [False, True])
def test_names_are_those_of_the_file(several: bool, tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(3), "x": torch.ones(3), 7: 1}, tmp_path / "x.pt")
    torch.save({"y": torch.ones(3)}, tmp_path / "y.pt")
    paths = [tmp_path / "x.pt", tmp_path / "y.pt"] if several else tmp_path / "x.pt"
    with pytest.raises(errors.InvalidInputError, match="no tensor of this name.*tensor=weights") as caught:
        forebay.load_file(paths, "cpu", names=["weights"])
    assert "'weight'" in caught.value.hints[0]
    with pytest.raises(errors.InvalidInputError, match="not a name"):
        forebay.load_file(paths, "cpu", names="weight")


def test_tensors_that_torch_cannot_make(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "x.pt", tensor_pickle(size=(1 << 61, 1 << 61), stride=(0, 0)), {"0": bytes(16)})
    with pytest.raises(errors.IntegrityError, match="numel"):
        pickles.load(path)


def test_gradients_of_whole_numbers_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(4, dtype=torch.int64)}, tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        pickled = next(archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))
    path = checkpoint(tmp_path / "y.pt", pickled.replace(b"\x89", b"\x88"), {"0": bytes(32)})
    with pytest.raises(errors.IntegrityError, match="can require gradients"):
        pickles.load(path)


def test_names_keep_the_dots_that_their_keys_begin_with(tmp_path: Path) -> None:
    tree = {".hidden": torch.ones(1), "": {"": {"..x": torch.ones(1), "y": torch.ones(1)}}}
    torch.save(tree, tmp_path / "x.pt")
    with forebay.open(tmp_path / "x.pt") as file:
        described, _ = pickles._unpickled(pickles._Archive(file, "x.pt"))
    assert sorted(name for name, _ in pickles._tensors(described, "x.pt")) == ["..x", ".hidden", "y"]
