"""Every kind of member that tar files have: read, or an error that names it. Samples are what WebDataset makes of them."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay.data as data
from forebay import errors

numpy = pytest.importorskip("numpy", reason="these tests read numpy's arrays")

WORDS: dict[str, Any] = {"framework": "numpy", "device": "cpu"}
#: (name, content, fields of the header).
Entry = tuple[str, bytes, dict[str, Any]]


def entry(name: str, content: bytes = b"", **fields: Any) -> Entry:
    return name, content, fields


def write(path: Path, entries: list[Entry], format: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as archive:
        for name, content, fields in entries:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            for key, value in fields.items():
                setattr(member, key, value)
            archive.addfile(member, io.BytesIO(content))
    return path


def read(path: Any, columns: list[str] | None = None) -> list[dict[str, bytes]]:
    records = data.tar(path, columns, **WORDS)
    batch = records[:]
    return [{name: batch[name].record(row).tobytes() for name in batch} for row in range(len(records))]


def theirs(path: Path) -> list[dict[str, bytes]]:
    """What WebDataset reads."""
    web = pytest.importorskip("webdataset.tariterators", reason="webdataset is not installed", exc_type=Exception)
    with path.open("rb") as stream:
        files = web.tar_file_expander([{"url": str(path), "stream": stream}])
        samples = list(web.group_by_keys(files))
    return [{name: value for name, value in sample.items() if not name.startswith("__")} for sample in samples]


def test_samples_are_webdatasets(tmp_path: Path) -> None:
    names = ["a.jpg", "a.JSON", "b.jpg", "b.json", "v1.0/x/c.jpg", "v1.0/x/c.json", "./d.jpg", "./d.json"]
    names += ["a.jpg", "a.json", "../e.jpg", "../e.json", "/f.jpg", "/f.json", "é\nü/g.jpg", "é\nü/g.json"]
    path = write(tmp_path / "a.tar", [entry(name, name.encode()) for name in names])
    assert read(path) == theirs(path) and len(read(path)) == 8
    path = write(tmp_path / "b.tar", [entry(name, name.encode()) for name in ("a.seg.png", "a.", "b.seg.png", "b.")])
    assert read(path) == theirs(path) == [{"seg.png": b"a.seg.png", "": b"a."}, {"seg.png": b"b.seg.png", "": b"b."}]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_of_every_format(tmp_path: Path, format: int) -> None:
    folder = "/".join(["d" * 40] * (3 if format == tarfile.USTAR_FORMAT else 9))
    name = folder + "/" + "n" * (90 if format == tarfile.USTAR_FORMAT else 190)
    path = write(tmp_path / "a.tar", [entry(f"{name}.{end}", end.encode()) for end in ("jpg", "json")], format)
    assert read(path) == theirs(path) == [{"jpg": b"jpg", "json": b"json"}]


def test_sizes_beside_the_octal_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", [entry("a.jpg", b"x" * 700), entry("b.jpg", b"y")], tarfile.GNU_FORMAT)
    raw = bytearray(path.read_bytes())
    # As GNU tar writes sizes of 8 GiB and more: base 256.
    raw[124:136] = b"\x80" + (700).to_bytes(11, "big")
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    path.write_bytes(raw)
    assert read(path) == [{"jpg": b"x" * 700}, {"jpg": b"y"}]
    told = {"pax_headers": {"size": "700"}}
    write(path, [entry("a.jpg", b"x" * 700, **told), entry("b.jpg", b"y")])
    assert read(path) == [{"jpg": b"x" * 700}, {"jpg": b"y"}]


def test_links_have_the_bytes_of_what_they_lead_to(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.tar",
        [
            entry("d/a.jpg", b"first"),
            entry("d/b.jpg", type=tarfile.LNKTYPE, linkname="d/a.jpg"),
            entry("e/c.jpg", type=tarfile.SYMTYPE, linkname="../d/z.jpg"),
            entry("d/z.jpg", type=tarfile.SYMTYPE, linkname="last.jpg"),
            entry("d/last.jpg", b"last"),
        ],
    )
    assert [one["jpg"] for one in read(path)] == [b"first", b"first", b"last", b"last", b"last"]


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        (entry("b.jpg", type=tarfile.SYMTYPE, linkname="/etc/passwd"), errors.InvalidInputError, "symbolic link"),
        (entry("b.jpg", type=tarfile.SYMTYPE, linkname="b.jpg"), errors.InvalidInputError, "symbolic link"),
        (entry("b.jpg", type=tarfile.LNKTYPE, linkname="gone.jpg"), errors.InvalidInputError, "hard link"),
        (entry("b.jpg", type=tarfile.FIFOTYPE), errors.UnsupportedError, "FIFO"),
        (entry("b.jpg", type=tarfile.CHRTYPE), errors.UnsupportedError, "character device"),
        (entry("b.jpg", type=tarfile.BLKTYPE), errors.UnsupportedError, "block device"),
        (entry("b.jpg", b"x" * 9, type=b"M"), errors.UnsupportedError, "another volume"),
        (entry("b.jpg", b"x" * 9, type=b"A"), errors.UnsupportedError, "unknown kind"),
        (entry(".b.jpg", b"x"), errors.InvalidInputError, "begins with a dot"),
        (entry("d/._b.jpg", b"x"), errors.InvalidInputError, "begins with a dot"),
        (entry("README", b"x"), errors.InvalidInputError, "no dot"),
        (entry("d.d/b", b"x"), errors.InvalidInputError, "no dot"),
        (entry("a.JPG", b"x"), errors.InvalidInputError, "twice"),
    ],
    ids=lambda value: value[0] + str(value[2].get("type", "")) if isinstance(value, tuple) else None,
)
def test_members_that_cannot_be_read_are_named(tmp_path: Path, wrong: Entry, kind: Any, words: str) -> None:
    path = write(tmp_path / "a b.tar", [entry("a.jpg", b"1"), wrong, entry("c.jpg", b"3")])
    with pytest.raises(kind, match=words) as caught:
        data.tar(path, **WORDS)
    assert caught.value.context["member"] == wrong[0]
    # What the hint says helps.
    command = next(hint for hint in caught.value.hints if hint.startswith("tar --delete"))
    if wrong[2].get("type") not in (b"M", b"A") and shutil.which("tar"):
        subprocess.run(command, shell=True, check=True, env={**os.environ, "LC_ALL": "C"})
        assert read(path) == [{"jpg": b"1"}, {"jpg": b"3"}]


@pytest.mark.parametrize(
    "name",
    [
        "--checkpoint-action=exec=touch PWNED",
        "-rf",
        "a\\nb",
        "a\\",
        "a\nb",
        "a\n",
        "it's",
        '"$HOME"`id`',
        "*",
        "d",
        "\x1b[1m",
        "\udce9x",
        "-\udce9%\n",
        "é",
        "/abs",
        "../up",
        "x y",
    ],
)
def test_the_command_of_a_hint_removes_the_member_and_does_nothing_else(tmp_path: Path, name: str) -> None:
    path = write(
        tmp_path / "a\x1b b.tar", [entry("a.jpg", b"1"), entry(name, b"x"), entry("d/c.jpg", b"3")], tarfile.GNU_FORMAT
    )
    # What follows the end of the first archive stays.
    path.write_bytes(path.read_bytes() + write(tmp_path / "b.tar", [entry("e.jpg", b"5")]).read_bytes())
    with pytest.raises(errors.InvalidInputError, match="no dot") as caught:
        data.tar(path, **WORDS)
    before = set(os.listdir(tmp_path))
    subprocess.run(caught.value.hints[-1], shell=True, check=True, cwd=tmp_path)
    assert read(path) == [{"jpg": b"1"}, {"jpg": b"3"}, {"jpg": b"5"}]
    assert set(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("name", ["", "b\0c"])
def test_a_name_that_no_command_takes_is_in_none(tmp_path: Path, name: str) -> None:
    path = write(
        tmp_path / "a.tar", [entry("a.jpg", b"1"), entry("" if not name else "b", b"x", pax_headers={"path": name})]
    )
    with pytest.raises(errors.InvalidInputError, match="no dot") as caught:
        data.tar(path, **WORDS)
    assert not any("tar " in hint for hint in caught.value.hints)


def test_of_a_column_that_is_there_twice_one_stays(tmp_path: Path) -> None:
    names = [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.jpg", b"3"), ("a.cls", b"0"), ("a.jpg", b"4"), ("c.jpg", b"5")]
    path = write(tmp_path / "a.tar", [entry(*one) for one in names])
    with pytest.raises(errors.InvalidInputError, match="twice") as caught:
        data.tar(path, **WORDS)
    subprocess.run(caught.value.hints[-1], shell=True, check=True)
    assert [one["jpg"] for one in read(path, ["jpg"])] == [b"1", b"2", b"4", b"5"]
    # A device may have the name of a file.
    write(path, [entry("a.jpg", b"1"), entry("a.jpg", type=tarfile.BLKTYPE), entry("b.jpg", b"2")])
    with pytest.raises(errors.UnsupportedError, match="block device") as caught:
        data.tar(path, **WORDS)
    subprocess.run(caught.value.hints[-1], shell=True, check=True)
    assert read(path) == [{"jpg": b"1"}, {"jpg": b"2"}]


def test_hard_links_with_bytes_of_their_own_are_named(tmp_path: Path) -> None:
    """As ``pax -o linkdata`` writes them. Old programs give links a size, and no bytes."""
    path = write(
        tmp_path / "a.tar", [entry("a.jpg", b"1"), entry("b.jpg", b"1", type=tarfile.LNKTYPE, linkname="a.jpg")]
    )
    with pytest.raises(errors.UnsupportedError, match="a hard link with bytes of its own") as caught:
        data.tar(path, **WORDS)
    assert caught.value.context["member"] == "b.jpg"
    raw = path.read_bytes()
    path.write_bytes(raw[: 3 * 512] + raw[4 * 512 :])
    assert read(path) == [{"jpg": b"1"}, {"jpg": b"1"}]


def test_names_without_a_column_where_columns_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", [entry("README", b"x"), entry("a.jpg", b"1"), entry("a.cls", b"2")])
    assert read(path, ["jpg"]) == [{"jpg": b"1"}]


def test_columns_that_a_later_sample_has_are_not_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", [entry("a.jpg", b"1"), entry("b.jpg", b"2"), entry("b.txt", b"3")])
    with pytest.raises(errors.InvalidInputError, match="no member 'txt'") as caught:
        data.tar(path, **WORDS)
    assert caught.value.context["sample"] == "a"
    assert read(path, ["jpg"]) == [{"jpg": b"1"}, {"jpg": b"2"}]


def test_members_of_a_sample_that_are_no_neighbours(tmp_path: Path) -> None:
    """WebDataset makes four samples of them."""
    path = write(tmp_path / "a.tar", [entry(name, b"x") for name in ("a.jpg", "b.jpg", "a.cls", "b.cls")])
    assert len(theirs(path)) == 4
    with pytest.raises(errors.InvalidInputError, match="no member") as caught:
        data.tar(path, **WORDS)
    assert any("--sort=name" in hint for hint in caught.value.hints)


def test_what_webdataset_calls_metadata_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", [entry("__about__/x.jpg", b"x"), entry("__about__", b"y"), entry("a.jpg", b"1")])
    with pytest.warns(UserWarning, match="2 members .* __about__/x.jpg"):
        assert read(path) == theirs(path) == [{"jpg": b"1"}]


def test_sparse_members_are_refused(tmp_path: Path) -> None:
    one_zero = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.realsize": "5000",
        "GNU.sparse.name": "a.jpg",
    }
    zero_one = {"GNU.sparse.map": "0,600", "GNU.sparse.size": "5000", "GNU.sparse.numblocks": "1"}
    zero_zero = {
        "GNU.sparse.size": "5000",
        "GNU.sparse.numblocks": "1",
        "GNU.sparse.offset": "0",
        "GNU.sparse.numbytes": "600",
    }
    later = {"GNU.sparse.major": "2", "GNU.sparse.minor": "0"}
    for headers in (one_zero, zero_one, zero_zero, later, {"SCHILY.realsize": "5000"}):
        content = (b"1\n0\n600\n".ljust(512, b"\0") if headers is one_zero else b"") + b"1" * 600
        path = write(tmp_path / "a.tar", [entry("a.jpg", content, pax_headers=headers), entry("b.jpg", b"2")])
        with pytest.raises(errors.UnsupportedError, match="sparse") as caught:
            data.tar(path, **WORDS)
        assert caught.value.context["member"] == "a.jpg"


@pytest.mark.skipif(not shutil.which("tar"), reason="there is no tar")
@pytest.mark.parametrize("format", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_archives_of_gnu_tar(tmp_path: Path, format: str) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.jpg").write_bytes(b"j" * number)
        (folder / f"{number}.cls").write_bytes(b"%d" % number)
    expected = [{"cls": b"%d" % number, "jpg": b"j" * number} for number in range(3)]

    def made(name: str, *words: str) -> Path:
        command = ["tar", f"--format={format}", "--sort=name", "-C", tmp_path, "-cf", tmp_path / name, *words, "d"]
        subprocess.run(command, check=True)
        return tmp_path / name

    def jpgs(path: Path) -> list[bytes]:
        batch = data.tar(path, **WORDS)[:]["jpg"]
        return [batch.record(row).tobytes() for row in range(len(batch.offsets) - 1)]

    plain = made("a.tar")
    assert theirs(plain) == expected and jpgs(plain) == [one["jpg"] for one in expected]
    if format in ("gnu", "oldgnu"):
        # Times of access stand where ustar has the beginning of a name, and folders have their names.
        os.utime(folder / "1.jpg", (1e9, 1e9))
        assert jpgs(made("b.tar", f"--listed-incremental={tmp_path}/state")) == jpgs(plain)
    if format not in ("v7", "ustar"):
        assert jpgs(made("c.tar", "--label=LABEL")) == jpgs(plain)
    both = tmp_path / "both.tar"
    both.write_bytes(plain.read_bytes() * 2)
    assert jpgs(both) == jpgs(plain) * 2
    both.write_bytes(plain.read_bytes() + b"rubbish")
    with pytest.raises(errors.InvalidInputError, match="what follows the end"):
        data.tar(both, **WORDS)


@pytest.mark.skipif(not shutil.which("tar"), reason="there is no tar")
def test_sparse_files_of_gnu_tar(tmp_path: Path) -> None:
    with (tmp_path / "a.jpg").open("wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"x")
    for words in (["gnu"], ["posix", "--sparse-version=0.0"], ["posix", "--sparse-version=0.1"], ["posix"]):
        made = ["tar", f"--format={words[0]}", *words[1:], "-S", "-C", tmp_path, "-cf", tmp_path / "a.tar", "a.jpg"]
        subprocess.run(made, check=True)
        with pytest.raises(errors.UnsupportedError, match="sparse"):
            data.tar(tmp_path / "a.tar", **WORDS)


def test_compressed_archives_say_how_to_unpack_them(tmp_path: Path) -> None:
    for kind in ("gz", "bz2", "xz"):
        path = tmp_path / f"a.tar.{kind}"
        with tarfile.open(path, f"w:{kind}") as archive:  # type: ignore[call-overload]
            member = tarfile.TarInfo("a.jpg")
            member.size = 3
            archive.addfile(member, io.BytesIO(b"abc"))
        with pytest.raises(errors.UnsupportedError, match="compressed") as caught:
            data.tar(path, **WORDS)
        command = caught.value.hints[0]
        if shutil.which(command.split()[0]):
            subprocess.run(command, shell=True, check=True)
            assert read(tmp_path / "a.tar") == [{"jpg": b"abc"}]


def test_names_that_begin_as_compressed_files_do(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", [entry(name, b"x") for name in ("BZh91.jpg", "LZIP.jpg", "\x1f.jpg")])
    assert len(read(path)) == 3


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:600])


@pytest.mark.parametrize(
    "damage", [cut, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"x" * 2000)]
)
def test_what_is_no_archive(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = write(tmp_path / "a.tar", [entry("a.jpg", b"x" * 900)])
    damage(path)
    with pytest.raises(errors.InvalidInputError):
        data.tar(path, **WORDS)
