"""What newcomers give where something else is wanted: it works, or the error says what to give."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

import forebay
from forebay.errors import InvalidInputError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.safetensors"
    forebay.save_file({"w": numpy.arange(16, dtype="float32")}, path)
    return path


def told(call: Callable[[], object]) -> tuple[str, str]:
    """The error of a call and its hint."""
    with pytest.raises(InvalidInputError) as caught:
        call()
    return caught.value.message, " ".join(caught.value.hints)


LOADERS: dict[str, Callable[[Any], object]] = {
    "load_file": lambda given: forebay.load_file(given, framework="numpy"),
    "safe_open": lambda given: forebay.safe_open(given, "numpy"),
    "open": forebay.open,
    "map": forebay.map,
    "read_npy": lambda given: forebay.read_npy(given, framework="numpy"),
    "save_file": lambda given: forebay.save_file({}, given),
}


@pytest.mark.parametrize("name", LOADERS)
def test_open_files_and_contents_are_no_paths(name: str, model: Path) -> None:
    load = LOADERS[name]
    with open(model, "rb") as file:
        assert told(lambda: load(file)) == ("an open file where a path is needed", f"give its path: {str(model)!r}")
    with forebay.open(model) as ours:
        assert told(lambda: load(ours)) == ("an open file where a path is needed", f"give its path: {str(model)!r}")
    stream = io.BytesIO(model.read_bytes())
    assert told(lambda: load(stream))[0] == "a stream in memory where a path is needed"
    for contents in (model.read_bytes(), bytearray(b"x"), memoryview(b"x")):
        message, hint = told(lambda contents=contents: load(contents))  # type: ignore[misc]
        assert message == "these bytes are no path" and "give the path of their file" in hint
    assert told(lambda: load(None))[0] == "paths are strings or path objects"


def test_paths_of_bytes_are_paths(model: Path) -> None:
    path = os.fsencode(model)
    assert forebay.load_file(path, framework="numpy")["w"][3] == 3
    with forebay.open(path) as file, forebay.map(path) as mapped:
        assert file.size == mapped.size == model.stat().st_size


def npz(path: Path) -> None:
    with open(path, "wb") as file:
        numpy.savez(file, a=numpy.arange(3))


def npy(path: Path) -> None:
    with open(path, "wb") as file:
        numpy.save(file, numpy.arange(3))


OTHERS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "gzip": (lambda path: path.write_bytes(gzip.compress(b"x")), "this is a gzip file, not safetensors", "gunzip -k"),
    "text": (
        lambda path: path.write_text("weights\nof a módel\n" * 40),
        "this is a text, not safetensors",
        "head -c 200 ",
    ),
    "index": (lambda path: path.write_text('{"weight_map": {}}'), "this is a text, not safetensors", "index.json"),
    "lfs": (
        lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
        "this is a pointer of Git LFS, not the file, not safetensors",
        "git lfs pull",
    ),
    "npy": (npy, "this is a .npy file, not safetensors", "forebay.read_npy(path)"),
    "npz": (npz, "this is a .npz file, not safetensors", "forebay.read_npz(path)"),
    "empty": (lambda path: path.write_bytes(b""), "the file is empty", "write it again"),
    "binary": (lambda path: path.write_bytes(bytes(range(256))), "the header is longer than safetensors allows", ""),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_files_are_named(kind: str, tmp_path: Path) -> None:
    write, wanted, hint = OTHERS[kind]
    path = tmp_path / "m.safetensors"
    write(path)
    for load in (LOADERS["load_file"], LOADERS["safe_open"]):
        message, found = told(lambda load=load: load(path))  # type: ignore[misc]
        assert message == wanted and hint in found


@pytest.mark.parametrize("kind", ["text", "npy", "npz", "empty"])
def test_other_files_than_tar_are_named(kind: str, tmp_path: Path) -> None:
    write, wanted, hint = OTHERS[kind]
    path = tmp_path / "m.tar"
    write(path)
    message, found = told(lambda: forebay.data.tar(path))
    assert message == wanted.replace("not safetensors", "not a tar archive") and hint in found


def test_ranges_without_a_half(model: Path) -> None:
    hint = "ranges(paths, offsets=…, lengths=…), in bytes"
    for given, left_out in (("offsets", "lengths"), ("lengths", "offsets"), ("file", "offsets and lengths")):
        message, found = told(lambda given=given: forebay.data.ranges(model, **{given: [0]}))  # type: ignore[misc]
        assert (message, found) == (f"ranges() without {left_out}", hint)


def test_the_file_without_a_tensor_is_named(model: Path) -> None:
    with pytest.raises(InvalidInputError, match=f"path={model}"):
        forebay.load_file(model, names=["zzz"], framework="numpy")


def test_names_that_are_no_list(model: Path) -> None:
    forebay.write_npz(model.with_suffix(".npz"), {"w": numpy.arange(3)})
    loads: list[Callable[[Any], object]] = [
        lambda names: forebay.load_file(model, names=names, framework="numpy"),
        lambda names: forebay.load_file([model], names=names, framework="numpy"),
        lambda names: forebay.safe_open(model, "numpy").get_tensors(names),
        lambda names: forebay.read_npz(model.with_suffix(".npz"), names=names),
    ]
    for load in loads:
        assert told(lambda load=load: load("w")) == ("names is a list of names, not a name", "names=['w']")  # type: ignore[misc]
        assert told(lambda load=load: load(3)) == (  # type: ignore[misc]
            "names cannot be 3",
            "names=[NAME, …], or a function of a name",
        )
        # A name that is like none of the file's.
        assert told(lambda load=load: load(["zzz"])) == ("the file has no tensor of this name", "there is 'w'")  # type: ignore[misc]
    with pytest.raises(InvalidInputError, match=f"path={model}"):
        forebay.safe_open(model, "numpy").get_tensor("x")


def test_headers_that_are_cut_or_of_other_files_have_a_hint(tmp_path: Path) -> None:
    npy(tmp_path / "a.npy")
    whole = (tmp_path / "a.npy").read_bytes()
    again = "copy or write it again"
    for content, of_npy, of_npz in (
        (b"", "fetch it again", "fetch it again"),
        (whole[:50], again, "forebay.read_npy(path)"),
        (b"weights", "head -c 200", "head -c 200"),
        (b"\0weights", again, again),
    ):
        (tmp_path / "b").write_bytes(content)
        for name, wanted in (("read_npy", of_npy), ("read_npz", of_npz)):
            load = getattr(forebay, name)
            message, hint = told(lambda load=load: load(tmp_path / "b", framework="numpy"))  # type: ignore[misc]
            assert message and wanted in hint


def test_a_folder_that_is_a_file(model: Path) -> None:
    message, hint = told(lambda: forebay.save_file({}, model / "x"))
    assert message.startswith("cannot open the folder") and hint.endswith(f"ls -l {model}")
    with pytest.raises(forebay.NotFoundError) as caught:
        forebay.load_file(model.parent / "..", framework="numpy")
    assert caught.value.hints


def test_what_is_saved_is_named_in_the_hint(model: Path) -> None:
    for wrong in (None, [numpy.ones(2)], numpy.ones(2)):
        assert "save_file({" in told(lambda wrong=wrong: forebay.save_file(wrong, model))[1]  # type: ignore[misc]
        assert "write_npz(path, {" in told(lambda wrong=wrong: forebay.write_npz(model, wrong))[1]  # type: ignore[misc]


def test_offsets_and_pieces_in_words(model: Path) -> None:
    room = numpy.zeros(4, "uint8")
    with forebay.open(model) as file:
        for offset in ("x", 1.5, None):
            with pytest.raises(TypeError, match="an offset is a whole number of bytes, not "):
                file.read_into(room, offset)
        for pieces in (3, None, [room], [(room, "x")]):
            assert told(lambda pieces=pieces: file.read_many(pieces))[0] == "a piece is not (array, offset)"  # type: ignore[misc]


def test_checkpoints_are_named_by_paths(model: Path) -> None:
    torch = pytest.importorskip("torch")
    import forebay.pickles
    import forebay.torch as saves

    calls: list[Callable[[Any], object]] = [
        lambda given: saves.save({"a": torch.ones(1)}, given),
        lambda given: saves.save_async({"a": torch.ones(1)}, given),
        saves.load,
        saves.CheckpointReader,
        saves.CheckpointWriter,
        forebay.pickles.load,
    ]
    for call in calls:
        assert told(lambda call=call: call(3)) == ("paths are strings or path objects", "give a path")  # type: ignore[misc]
    with pytest.raises(forebay.NotFoundError, match="no manifest") as caught:
        saves.CheckpointReader(model).metadata()
    assert "forebay.torch.load reads files" in caught.value.hints[0]


def test_dtypes_have_many_names() -> None:
    for dtype in ("f4", "<f4", "F32", "float32", numpy.float32, numpy.dtype("float32")):
        assert forebay.empty(3, dtype, device="cpu").dtype == "F32"
    assert forebay.empty(3, float, device="cpu").dtype == "F64"
    assert forebay.empty(3, "u1", device="cpu").dtype == forebay.empty(3, device="cpu").dtype == "U8"
    for unknown in ("f5", "V1x", object, 7):
        assert told(lambda unknown=unknown: forebay.empty(3, unknown, device="cpu"))[0].startswith("unknown dtype: ")  # type: ignore[misc]


def test_dtypes_of_torch() -> None:
    torch = pytest.importorskip("torch")
    assert forebay.empty(3, torch.bfloat16, device="cpu").dtype == "BF16"


def test_dtypes_of_jax() -> None:
    jax = pytest.importorskip("jax")
    assert forebay.empty(3, jax.numpy.int32, device="cpu").dtype == "I32"


def test_devices_in_capitals(model: Path, gpu: str) -> None:
    assert forebay.empty(3, device="CPU").device == "cpu"
    assert forebay.empty(3, device=gpu.upper()).device == gpu
    assert list(forebay.load_file(model, device="CPU", framework="numpy")) == ["w"]
    assert told(lambda: forebay.empty(3, device="TPU"))[0] == 'unknown device: "TPU"'


def test_offsets_below_zero_are_refused_in_words(model: Path) -> None:
    with forebay.map(model) as mapped:
        assert told(lambda: mapped.gather([-4], 64))[0] == "an offset that no file has: -4"
        assert told(lambda: mapped.gather((0, 1 << 70), 64))[0].startswith("an offset that no file has: 1180")
        assert told(lambda: mapped.gather([0], -64))[0] == "a length that no piece has: -64"


def test_a_file_is_read_as_bytes(model: Path) -> None:
    whole = model.read_bytes()
    with forebay.open(model) as file:
        assert file.read() == file.read(-1) == whole
        assert file.read(8) == whole[:8] and file.read(8, 4) == whole[4:12] and file.read(offset=5) == whole[5:]
        assert file.read(100, len(whole) - 3) == whole[-3:] and file.read(1, 1 << 40) == file.read(0) == b""
        assert told(lambda: file.read(1, -1))[0] == "an offset that no file has: -1"
    with pytest.raises(ValueError, match="closed"):
        file.read()


def alone(code: str, **variables: str) -> str:
    """What a fresh interpreter says."""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_patching_without_safetensors_says_so() -> None:
    code = "import sys; sys.modules['safetensors'] = None; import forebay; forebay.patch_safetensors()"
    assert "safetensors is not installed: patch_safetensors() changes nothing" in alone(code)
    pytest.importorskip("safetensors")
    assert alone("import forebay; forebay.patch_safetensors()") == ""


def test_unknown_variables_are_a_warning_once() -> None:
    code = "import forebay\nfor _ in range(3): forebay.device_count()"
    said = alone(code, FOREBAY_STRCT="staged")
    wanted = "UserWarning: FOREBAY_STRCT is no variable of forebay and does nothing; the nearest is FOREBAY_STRICT"
    assert said.count(wanted) == 1, said
    assert alone(code) == ""
