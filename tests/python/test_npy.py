"""`.npy` and `.npz` files, to and from host and GPU memory, beside numpy's own."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import errors

numpy = pytest.importorskip("numpy", reason="these tests hold forebay's files against numpy's")

PLAIN = ["bool", "uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32", "uint64", "int64"]
PLAIN += ["float64", "complex64"]


def example(dtype: str = "float32", shape: tuple[int, ...] = (5, 6, 7)) -> Any:
    numbers = numpy.arange(numpy.prod(shape, dtype=int)).reshape(shape)
    return (numbers % 2).astype(dtype) if dtype == "bool" else numbers.astype(dtype)


def host(array: Any) -> Any:
    """Any array as numpy's."""
    return array.numpy() if isinstance(array, forebay.Array) else numpy.asarray(array)


def on(device: str, array: Any) -> Any:
    """A copy as forebay's own array."""
    made = forebay.empty(array.shape, array.dtype.name, device)
    made.fill_from(numpy.ascontiguousarray(array))
    return made


@pytest.mark.parametrize("dtype", PLAIN)
def test_reads_what_numpy_saves(tmp_path: Path, device: str, dtype: str) -> None:
    array = example(dtype)
    numpy.save(tmp_path / "a.npy", array)
    found = forebay.read_npy(tmp_path / "a.npy", device, "native")
    assert found.device == device
    assert host(found).dtype == array.dtype
    assert numpy.array_equal(host(found), array)


@pytest.mark.parametrize("dtype", PLAIN)
def test_numpy_loads_what_is_written(tmp_path: Path, device: str, dtype: str) -> None:
    array = example(dtype)
    forebay.write_npy(tmp_path / "a.npy", on(device, array))
    found = numpy.load(tmp_path / "a.npy")
    assert found.dtype == array.dtype
    assert numpy.array_equal(found, array)


@pytest.mark.parametrize("dtype", [">f8", "<U5", "|S3", "<M8[s]", "<c32", ">i2"])
def test_types_that_only_numpy_has_go_both_ways(tmp_path: Path, dtype: str) -> None:
    array = numpy.arange(12).reshape(3, 4).astype(dtype)
    numpy.save(tmp_path / "a.npy", array)
    assert numpy.array_equal(forebay.read_npy(tmp_path / "a.npy"), array)
    assert numpy.array_equal(forebay.read_npy(tmp_path / "a.npy", index=(slice(1, 3), 2)), array[1:3, 2])
    forebay.write_npy(tmp_path / "b.npy", array)
    assert (tmp_path / "b.npy").read_bytes()[-array.nbytes :] == array.tobytes()
    assert numpy.load(tmp_path / "b.npy").dtype == array.dtype
    with pytest.raises(errors.UnsupportedError, match="no dtype for"):
        forebay.read_npy(tmp_path / "a.npy", "cpu", "native")


INDICES = [
    (),
    ...,
    3,
    -1,
    slice(1, 4),
    slice(None, None, 2),
    (slice(None), 2),
    (slice(1, 5), slice(2, 3), slice(None)),
    (..., 4),
    (2, slice(None), slice(1, 6, 3)),
    (slice(None), None, 1, slice(0, 0)),
    (4, 5, 6),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_part_is_what_numpy_cuts_out(tmp_path: Path, index: Any, order: str) -> None:
    array = numpy.asarray(example(), order=order)
    numpy.save(tmp_path / "a.npy", array)
    found = forebay.read_npy(tmp_path / "a.npy", index=index)
    assert found.shape == array[index].shape
    assert numpy.array_equal(found, array[index])


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_a_part_goes_to_the_gpu(tmp_path: Path, gpu: str, index: Any) -> None:
    array = example()
    numpy.save(tmp_path / "a.npy", array)
    found = forebay.read_npy(tmp_path / "a.npy", gpu, index=index)
    assert (type(found), found.device) == (forebay.Array, gpu)
    assert numpy.array_equal(host(found), array[index])


def test_a_part_touches_only_its_bytes(tmp_path: Path) -> None:
    """The rest of the file may be anything: here it is a hole of a terabyte."""
    path = tmp_path / "a.npy"
    shape = (1 << 20, 1 << 10, 1 << 8)
    header = io.BytesIO()
    numpy.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    begin, part = len(header.getvalue()), numpy.arange(8, dtype="float32")
    row = (777_777 * shape[1] + 55) * shape[2]
    with path.open("wb") as file:
        file.write(header.getvalue())
        try:
            file.truncate(begin + 4 * shape[0] * shape[1] * shape[2])
        except OSError as error:
            pytest.skip(f"the file system has no files of a terabyte: {error}")
        file.seek(begin + 4 * (row + 16))
        file.write(part.tobytes())
    assert numpy.array_equal(forebay.read_npy(path, index=(777_777, 55, slice(16, 24))), part)
    with forebay.open_npy(path) as array:
        assert (array.shape, array.dtype, array.nbytes) == (shape, numpy.float32, 1 << 40)


@pytest.mark.parametrize("rows", [[3, 0, 3, -1], [], range(4, 1, -1)], ids=str)
def test_rows_by_number(tmp_path: Path, device: str, rows: Any) -> None:
    array = example()
    numpy.save(tmp_path / "a.npy", array)
    with forebay.open_npy(tmp_path / "a.npy", device, "native") as lazy:
        assert numpy.array_equal(host(lazy[rows]), array[list(rows)].reshape(len(rows), 6, 7))
        assert numpy.array_equal(host(lazy[numpy.array(rows, dtype="int64")]), host(lazy[rows]))
        with pytest.raises(IndexError, match="index 5 is out of bounds"):
            lazy[[1, 5]]


@pytest.mark.parametrize("order", ["C", "F"])
def test_other_indices_read_all_and_cut_in_memory(tmp_path: Path, order: str) -> None:
    array = numpy.asarray(example(), order=order)
    numpy.save(tmp_path / "a.npy", array)
    with forebay.open_npy(tmp_path / "a.npy") as lazy:
        assert numpy.array_equal(lazy[array > 100], array[array > 100])
        assert numpy.array_equal(lazy[[0, 2], [1, 3]], array[[0, 2], [1, 3]])
        assert numpy.array_equal(lazy[[2, 1]], array[[2, 1]])


def test_lazy_array_is_a_sequence(tmp_path: Path) -> None:
    array = example()
    numpy.save(tmp_path / "a.npy", array)
    with forebay.open_npy(tmp_path / "a.npy") as lazy:
        assert (len(lazy), lazy.ndim, lazy.size, lazy.device) == (5, 3, 210, "cpu")
        assert numpy.array_equal(numpy.stack(list(lazy)), array)
        assert numpy.array_equal(numpy.asarray(lazy), array)
        assert numpy.array_equal(pickle.loads(pickle.dumps(lazy))[2], array[2])
        with pytest.raises(IndexError):
            lazy[5]
        with pytest.raises(errors.InvalidInputError, match="step"):
            lazy[::-1]
    with pytest.raises(errors.InvalidInputError, match="closed"):
        lazy[0]


def test_without_dimensions_or_elements(tmp_path: Path, device: str) -> None:
    for array in (numpy.float32(3.5), numpy.zeros((0, 4), "int16"), numpy.zeros((3, 0), "int16")):
        numpy.save(tmp_path / "a.npy", array)
        found = forebay.read_npy(tmp_path / "a.npy", device, "native")
        assert found.shape == array.shape
        assert numpy.array_equal(host(found), array)
        forebay.write_npy(tmp_path / "b.npy", found)
        assert numpy.array_equal(numpy.load(tmp_path / "b.npy"), array)


def test_fortran_order_stays(tmp_path: Path) -> None:
    array = numpy.asfortranarray(example())
    forebay.write_npy(tmp_path / "a.npy", array)
    assert numpy.load(tmp_path / "a.npy").flags.f_contiguous
    found = forebay.read_npy(tmp_path / "a.npy")
    assert found.flags.f_contiguous
    assert numpy.array_equal(found, array)
    with pytest.raises(errors.UnsupportedError, match="Fortran"):
        forebay.read_npy(tmp_path / "a.npy", "cpu", "native")


def test_torch_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: its tensors are not tested")
    tensor = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    for given in (tensor, tensor.t()):
        forebay.write_npy(tmp_path / "a.npy", given)
        assert numpy.array_equal(numpy.load(tmp_path / "a.npy"), given.numpy())
        assert torch.equal(forebay.read_npy(tmp_path / "a.npy", "cpu", "torch"), given)
    with pytest.raises(errors.InvalidInputError, match="not contiguous"):
        forebay.write_npy(tmp_path / "a.npy", tensor[:, ::2])
    forebay.write_npy(tmp_path / "b.npy", tensor.to(torch.bfloat16))
    assert numpy.load(tmp_path / "b.npy").dtype == numpy.dtype("V2")
    found = forebay.read_npy(tmp_path / "b.npy", "cpu", "torch", dtype="bfloat16")
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, tensor.to(torch.bfloat16))
    with pytest.raises(errors.UnsupportedError) as caught:
        forebay.read_npy(tmp_path / "b.npy", "cpu", "torch")
    assert any("dtype=" in hint for hint in caught.value.hints)


def test_bfloat16_of_the_gpu(tmp_path: Path, gpu: str) -> None:
    array = forebay.empty((3, 5), "bfloat16", gpu)
    array.fill_from(bytes(range(30)))
    forebay.write_npy(tmp_path / "a.npy", array)
    found = forebay.read_npy(tmp_path / "a.npy", gpu, dtype="BF16")
    assert (found.dtype, found.tobytes()) == ("BF16", bytes(range(30)))
    with pytest.raises(errors.InvalidInputError, match="not F32"):
        forebay.read_npy(tmp_path / "a.npy", gpu, dtype="float32")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    numpy.save(tmp_path / "a.npy", example())
    before = (tmp_path / "a.npy").read_bytes()
    for bad in (example()[:, ::2], numpy.array([object()]), [1, 2, 3], numpy.zeros(2, "f4,i4")):
        with pytest.raises(errors.Error):
            forebay.write_npy(tmp_path / "a.npy", bad)
        with pytest.raises(errors.Error):
            forebay.write_npz(tmp_path / "a.npy", {"good": example(), "bad": bad})
    assert (tmp_path / "a.npy").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


def lying(shape: str = "(5,)", descr: str = "'<f4'", order: str = "False", data: bytes = b"") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


LIES = {
    "empty": b"",
    "no magic": b"hello world, this is text",
    "unknown version": b"\x93NUMPY\x09\x00" + bytes(100),
    "header beyond the end": b"\x93NUMPY\x01\x00\xff\xff{}",
    "data too short": lying(data=bytes(19)),
    "data missing": lying("(1 << 40,)"),
    "huge": lying("(1099511627776, 1099511627776)"),
    "overflow": lying("(9223372036854775807, 9223372036854775807, 4)"),
    "negative": lying("(-5,)", data=bytes(20)),
    "code": lying("__import__('os').system('true')", data=bytes(20)),
    "float shape": lying("(5.0,)", data=bytes(20)),
    "unknown type": lying(descr="'<q9'", data=bytes(99)),
    "no order": lying(order="1", data=bytes(20)),
}


@pytest.mark.parametrize("name", LIES)
def test_lying_headers_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(LIES[name])
    with pytest.raises(errors.Error) as caught:
        forebay.read_npy(path)
    assert isinstance(caught.value, (ValueError, EOFError, NotImplementedError)), caught.value
    assert str(path) in str(caught.value)


def test_python_objects_are_never_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "sprung",)

    trap = numpy.array([Trap(), Trap()], dtype=object)
    numpy.save(tmp_path / "a.npy", trap, allow_pickle=True)
    numpy.savez(tmp_path / "a.npz", good=example(), trap=trap)
    with pytest.raises(errors.UnsupportedError, match="Python objects"):
        forebay.read_npy(tmp_path / "a.npy")
    with pytest.raises(errors.UnsupportedError, match="Python objects"):
        forebay.read_npz(tmp_path / "a.npz")
    assert numpy.array_equal(forebay.read_npz(tmp_path / "a.npz", names=["good"])["good"], example())
    assert not (tmp_path / "sprung").exists()


def arrays() -> dict[str, Any]:
    found = {dtype: example(dtype, (3, 5)) for dtype in PLAIN}
    return found | {"none": numpy.zeros((0, 3)), "one": numpy.float32(7), "large": example("int64", (300, 1000))}


@pytest.mark.parametrize("save", [numpy.savez, numpy.savez_compressed])
def test_reads_numpys_archives(tmp_path: Path, device: str, save: Any) -> None:
    given = arrays()
    save(tmp_path / "a.npz", **given)
    found = forebay.read_npz(tmp_path / "a.npz", device, "native")
    assert list(found) == list(given)
    for name, array in given.items():
        assert found[name].device == device
        assert numpy.array_equal(host(found[name]), array), name
    with forebay.open_npz(tmp_path / "a.npz", device) as archive:
        assert (archive.files, len(archive), "one" in archive) == (list(given), len(given), True)
        assert numpy.array_equal(host(archive["large.npy"]), given["large"])
        part = archive.open("large")
        assert numpy.array_equal(host(part[7:9, 10]), given["large"][7:9, 10])
        with pytest.raises(KeyError):
            archive["missing"]
        with pytest.raises(errors.InvalidInputError, match="no tensor of this name|no array"):
            archive.read(["missing"])
    # A part keeps the file open.
    assert numpy.array_equal(host(part[-1]), given["large"][-1])


def test_types_that_only_numpy_has_in_archives(tmp_path: Path) -> None:
    given = {"text": numpy.array(["a", "bcd"]), "order": numpy.asfortranarray(example()), "big": example(">f8")}
    numpy.savez(tmp_path / "a.npz", **given)
    found = forebay.read_npz(tmp_path / "a.npz")
    assert all(numpy.array_equal(found[name], array) for name, array in given.items())
    assert found["order"].flags.f_contiguous


def test_numpy_reads_our_archives(tmp_path: Path, device: str) -> None:
    given = arrays()
    forebay.write_npz(tmp_path / "a.npz", {name: on(device, numpy.asarray(array)) for name, array in given.items()})
    with numpy.load(tmp_path / "a.npz") as found:
        assert found.files == list(given)
        for name, array in given.items():
            assert numpy.array_equal(found[name], array), name
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        assert archive.testzip() is None
    again = forebay.read_npz(tmp_path / "a.npz", device, "native")
    assert all(numpy.array_equal(host(again[name]), array) for name, array in given.items())


def test_large_members_have_the_right_sum(tmp_path: Path, device: str) -> None:
    """More than one part of the CRC-32 is computed, and put together."""
    array = numpy.random.default_rng(3).integers(0, 256, (65 << 20) + 7, dtype="uint8")
    forebay.write_npz(tmp_path / "a.npz", {"a": on(device, array), "b": array[:9]})
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        assert archive.testzip() is None


def test_archives_of_both_kinds_in_one(tmp_path: Path, device: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for number, method in enumerate([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED]):
            data = io.BytesIO()
            numpy.save(data, numpy.full((2, 3), number))
            archive.writestr(f"a{number}.npy", data.getvalue(), method)
        archive.writestr("readme.txt", "no array")
    found = forebay.read_npz(tmp_path / "a.npz", device, "native", names=["a2", "a1", "a0"])
    assert list(found) == ["a2", "a1", "a0"]
    assert all(numpy.all(host(array) == int(name[1])) for name, array in found.items())


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    numpy.savez_compressed(path, a=numpy.random.default_rng(1).random(10_000))
    good = path.read_bytes()
    for damaged in (b"", b"PK", good[:-30], good[: len(good) // 2], b"x" * 1000):
        path.write_bytes(damaged)
        with pytest.raises(errors.Error):
            forebay.read_npz(path)
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(errors.IntegrityError):
        forebay.read_npz(path)


def test_a_member_cannot_reach_beyond_itself(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", lying("(1000,)", data=bytes(20)))
        archive.writestr("b.npy", bytes(8000))
    with pytest.raises(errors.Error, match="ends before|end"):
        forebay.read_npz(tmp_path / "a.npz", names=["a"])


def test_other_compressions_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("a.npy", lying(data=bytes(20)))
    with pytest.raises(errors.UnsupportedError, match="method 12"):
        forebay.read_npz(tmp_path / "a.npz")


def test_nothing_to_open(tmp_path: Path) -> None:
    for read in (forebay.read_npy, forebay.open_npy, forebay.read_npz, forebay.open_npz):
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        forebay.write_npy(tmp_path / "missing" / "a.npy", example())


def test_names_that_end_like_files(tmp_path: Path) -> None:
    given = {"a": numpy.zeros(2), "a.npy": numpy.ones(2), "b.npy": numpy.full(2, 3.0)}
    forebay.write_npz(tmp_path / "a.npz", given)
    found = forebay.read_npz(tmp_path / "a.npz")
    assert list(found) == list(given) and all(numpy.array_equal(found[name], given[name]) for name in given)
    with forebay.open_npz(tmp_path / "a.npz") as archive:
        assert archive["a.npy"][0] == 1 and archive["b.npy"][0] == 3 and archive["a"][0] == 0
        assert archive["b.npy.npy"][0] == 3 and "b" not in archive and "b.npy" in archive
        with pytest.raises(KeyError):
            archive["b"]


def with_members(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def bytes_of_npy(array: Any) -> bytes:
    room = io.BytesIO()
    numpy.save(room, array)
    return room.getvalue()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_of_other_names_are_as_numpy_has_them(tmp_path: Path, method: int) -> None:
    one, two = numpy.arange(5), numpy.arange(6.0)
    members = {"a.npy": bytes_of_npy(one), "b": bytes_of_npy(two), "notes.txt": b"text", "dir/": b"", "none": b""}
    path = with_members(tmp_path / "a.npz", members, method)
    found = forebay.read_npz(path)
    with numpy.load(path) as told, forebay.open_npz(path) as archive:
        assert archive.files == list(found) == list(told.files)
        for name in told.files:
            for value in (found[name], archive[name]):
                assert type(value) is type(told[name]) and numpy.array_equal(value, told[name])
        assert archive["a.npy"].tolist() == one.tolist() and archive.open("b")[2:4].tolist() == [2, 3]
        with pytest.raises(errors.InvalidInputError, match="member=notes.txt") as caught:
            archive.open("notes.txt")
    assert "archive['notes.txt']" in caught.value.hints[-1]


def test_a_name_beside_the_same_with_the_ending(tmp_path: Path) -> None:
    path = with_members(tmp_path / "a.npz", {"a": b"text", "a.npy": bytes_of_npy(numpy.arange(3))})
    found = forebay.read_npz(path)
    assert found["a"] == numpy.load(path)["a"] == b"text" and found["a.npy"].tolist() == [0, 1, 2]
    path = with_members(path, {"a": b"", "a.npy": bytes_of_npy(numpy.arange(3)), "a.npy.npy": b""})
    with pytest.raises(errors.InvalidInputError, match="one name.*member=a.npy.npy"):
        forebay.open_npz(path)


def test_a_refusal_names_the_member(tmp_path: Path) -> None:
    numpy.savez(tmp_path / "a.npz", good=example(), odd=numpy.array([None, 1]), records=numpy.zeros(2, [("x", "f4")]))
    for name, what in (("odd", "Python objects"), ("records", "structures")):
        with pytest.raises(errors.UnsupportedError, match=f"{what}.*member={name}") as caught:
            forebay.read_npz(tmp_path / "a.npz", names=["good", name])
        assert f"!= {name!r}" in caught.value.hints[-1]
        with forebay.open_npz(tmp_path / "a.npz") as archive:
            assert list(archive.read([key for key in archive if key not in ("odd", "records")])) == ["good"]
            with pytest.raises(errors.UnsupportedError, match=f"member={name}"):
                archive[name]
