"""Fuzzes the machine that reads the pickles of ``torch.save`` (``forebay._unpickle``), and with torch whole files too.

    python tests/python/fuzz_pickles.py --seconds 600
    python tests/python/fuzz_pickles.py --seed 7 --only 1234     # one input again

Whatever the input: a value of plain types and notes, or one of forebay's errors; nothing is imported, compiled, started
or opened meanwhile; memory and time stay within a few hundred times its size. Input ``i`` of a seed is always the same.
What breaks a rule is written to ``fuzz-SEED-I.pkl``, and the program ends with 1.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import io
import itertools
import pickle
import pickletools
import random
import struct
import sys
import tempfile
import time
import tracemalloc
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import forebay
from forebay import _unpickle, errors

#: A pickle, and the storages beside it with their sizes.
Input = tuple[bytes, Mapping[str, int]]
RECORDS = {"0": 16, "1": 64, "2": 0}
ROOM, ROOM_PER_BYTE = 1 << 20, 600
SECONDS, SECONDS_PER_BYTE = 2.0, 50e-6
#: One input of so many is loaded as a whole file.
WHOLE_EVERY = 8

# ---- what is watched --------------------------------------------------------------------------------------------------

_FORBIDDEN = ("import", "exec", "compile", "open", "pickle.", "marshal.", "os.", "subprocess.", "ctypes.", "socket.")
_watching = False
_seen: list[str] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event.startswith(_FORBIDDEN):
        _seen.append(f"{event} {arguments[:2]!r}"[:200])


class Broken(Exception):
    """A rule is broken; the message says which."""


@contextlib.contextmanager
def watch(size: int, allowed: tuple[str, ...] = ()) -> Iterator[None]:
    """Checks one input's run: its errors, its audit events, its memory and its time."""
    global _watching
    _seen.clear()
    # Never stopped: several versions of Python crash if another thread allocates just then.
    tracemalloc.start()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    begun = time.process_time()
    _watching = True
    try:
        yield
    except errors.Error:
        pass
    except BaseException as error:
        _watching = False
        raise Broken(f"{type(error).__name__} escaped: {error!s:.200}") from error
    finally:
        _watching = False
        spent = time.process_time() - begun
        peak = tracemalloc.get_traced_memory()[1] - before
    if strange := [event for event in _seen if not any(part in event for part in allowed)]:
        raise Broken(f"it did: {strange[0]}")
    if peak > ROOM + ROOM_PER_BYTE * size:
        raise Broken(f"{size} bytes took {peak} bytes of memory")
    if spent > SECONDS + SECONDS_PER_BYTE * size:
        raise Broken(f"{size} bytes took {spent:.1f} s")


_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_NOTES = (_unpickle.Dtype, _unpickle.Device, _unpickle.Size, _unpickle.TensorRef, _unpickle.StorageRef, _unpickle._Name)


def check_value(value: Any, kinds: tuple[type, ...]) -> None:
    """Plain data and ``kinds`` alone, however nested."""
    todo, seen = [value], set()
    while todo:
        node = todo.pop()
        if type(node) in _PLAIN or type(node) in kinds or id(node) in seen:
            continue
        seen.add(id(node))
        if type(node) in (list, tuple, set):
            todo.extend(node)
        elif type(node) in (dict, OrderedDict):
            todo.extend(node.keys())
            todo.extend(node.values())
            todo.append(getattr(node, "_metadata", None))
        else:
            raise Broken(f"a value of type {type(node)!r}")


def judge(given: Input, parse: Callable[..., Any] = _unpickle.parse) -> None:
    """Lets the machine read an input. Raises :class:`Broken`."""
    data, records = given
    value = None
    with watch(len(data)):
        value = parse(data, records, "fuzz.pt")
    check_value(value, _NOTES)


# ---- whole files ------------------------------------------------------------------------------------------------------


def archive(given: Input) -> bytes:
    """A file as torch.save makes them, around an input."""
    data, records = given
    room = io.BytesIO()
    with zipfile.ZipFile(room, "w", zipfile.ZIP_STORED) as file:
        file.writestr("a/data.pkl", data)
        for key, size in records.items():
            file.writestr(f"a/data/{key}", bytes(size))
    return room.getvalue()


class Whole:
    """Loads inputs as files, with torch."""

    def __init__(self, folder: str) -> None:
        import torch

        from forebay import pickles

        warnings.simplefilter("ignore")  # torch's own, of dtypes that are new
        self.load = pickles.load
        self.kinds = (torch.Tensor, torch.nn.Parameter, torch.dtype, torch.device, torch.Size)
        self.path = Path(folder) / "fuzz.pt"
        # Whatever is imported late is imported now.
        for given in (HONEST, (b"\x80\x02N", {}), (b"\x80\x02cos\nsystem\n.", {})):
            with contextlib.suppress(errors.Error):
                self.path.write_bytes(archive(given))
                self.load(self.path, "cpu", verify=True, dtype="F16")

    def judge(self, dice: random.Random, given: Input) -> None:
        file = archive(given)
        if dice.random() < 0.3:
            file = flip(dice, file)
        self.path.write_bytes(file)
        words: dict[str, Any] = {"verify": dice.random() < 0.5, "dtype": "F16" if dice.random() < 0.3 else None}
        value = None
        with watch(len(file), allowed=("fuzz.pt", "ctypes.string_at")):
            value = self.load(self.path, "cpu", **words)
        check_value(value, self.kinds)


# ---- programs ---------------------------------------------------------------------------------------------------------

_NUMBERS = [0, 1, 2, 3, 4, 7, 16, 255, 256, 65535, 1 << 31, (1 << 61) - 1, 1 << 62, 1 << 64, 1 << 2000, -1, -(1 << 63)]
_TEXTS = [
    "",
    "0",
    "1",
    "cpu",
    "cuda:0",
    "cuda:9999",
    "latin1",
    "storage",
    "_metadata",
    "ü",
    "\u0100",
    "\ud800",
    "x" * 300,
]
_GLOBALS = [
    *("\n".join(pair) for pair in _unpickle._BUILDERS),
    *(f"torch\n{name}" for name in _unpickle._STORAGES),
    *(f"torch\n{name}" for name in ("float32", "bfloat16", "float4_e2m1fn_x2", "uint64", "load", "nn", "os.system")),
    "os\nsystem", "builtins\neval", "builtins\ngetattr", "fuzz_canary\nthing", "torch.storage\n_load_from_bytes", "\n",
]  # fmt: skip


def text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def number(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K%c" % value
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a%c" % len(raw) + raw if len(raw) < 256 else b"\x8b" + struct.pack("<I", len(raw)) + raw


def named(name: str) -> bytes:
    return b"c" + name.encode() + b"\n"


def tuple_of(*parts: bytes) -> bytes:
    return b"(" + b"".join(parts) + b"t"


def storage(key: str = "0", kind: str = "FloatStorage", elements: int = 4) -> bytes:
    return tuple_of(text("storage"), named(f"torch\n{kind}"), text(key), text("cpu"), number(elements)) + b"Q"


HONEST: Input = (
    b"\x80\x02}" + text("w") + named("torch._utils\n_rebuild_tensor_v2")
    + tuple_of(storage(), number(0), tuple_of(number(4)), tuple_of(number(1)), b"\x89", b"}") + b"Rs.",
    RECORDS,
)  # fmt: skip


def tensor(dice: random.Random) -> bytes:
    key, kind, elements = dice.choice([("0", "FloatStorage", 4), ("1", "ByteStorage", 64), ("2", "LongStorage", 0)])
    if dice.random() < 0.1:
        elements = dice.choice(_NUMBERS)
    rank = dice.choice([0, 1, 1, 2, 3, 65])
    sizes = tuple_of(*(number(dice.choice([0, 1, 1, 2, 2, dice.choice(_NUMBERS)])) for _ in range(rank)))
    strides = tuple_of(*(number(dice.choice([0, 1, 1, 2, dice.choice(_NUMBERS)])) for _ in range(rank)))
    parts = [storage(key, kind, elements), number(dice.choice([0, 0, 0, 1])), sizes, strides, b"\x89", b"}"]
    name = "torch._utils\n_rebuild_tensor_v2"
    if dice.random() < 0.3:
        name = "torch._utils\n_rebuild_tensor_v3"
        parts.append(named(f"torch\n{dice.choice(list(_unpickle.ITEM_BYTES))}"))
    made = named(name) + tuple_of(*parts) + b"R"
    if dice.random() < 0.2:
        made = named("torch._utils\n_rebuild_parameter") + tuple_of(made, dice.choice([b"\x88", b"\x89"]), b"}") + b"R"
    return made


def value(dice: random.Random, depth: int = 0) -> bytes:
    """Instructions that leave one value, most of the time."""
    kind = dice.randrange(18 if depth < 4 else 9)
    inner = [value(dice, depth + 1) for _ in range(dice.choice([0, 1, 2, 3]))] if kind > 8 else []
    if kind == 0:
        return number(dice.choice(_NUMBERS))
    if kind == 1:
        return text(dice.choice(_TEXTS))
    if kind in (2, 3):
        return tensor(dice)
    if kind == 4:
        return dice.choice([b"N", b"\x88", b"\x89", b"G" + struct.pack(">d", dice.choice([0.5, 1e300, float("nan")]))])
    if kind == 5:
        return b"h%c" % dice.randrange(6)
    if kind == 6:
        return b"C%c" % 3 + b"abc"
    if kind == 7:
        return named(dice.choice(_GLOBALS))
    if kind == 8:
        return storage() if dice.random() < 0.3 else call(dice)
    put = b"q%c" % dice.randrange(6) if dice.random() < 0.4 else b""
    if kind in (9, 10):
        return b"]" + put + b"(" + b"".join(inner) + b"e"
    if kind in (11, 12, 13):
        entries = (key(dice) + part for part in inner)
        made = b"}" if kind != 13 else named("collections\nOrderedDict") + b")R"
        made += put + b"(" + b"".join(entries) + b"u"
        return made + b"}" + text("_metadata") + value(dice, depth + 1) + b"sb" if dice.random() < 0.1 else made
    if kind == 14:
        return tuple_of(*inner) + put
    if kind == 15:
        return b"\x8f" + put + b"(" + b"".join(key(dice) for _ in inner) + b"\x90"
    return named(dice.choice(_GLOBALS)) + tuple_of(*inner) + b"R" + put


def call(dice: random.Random) -> bytes:
    """One of the known names with what it takes, more or less."""
    some, count = text(dice.choice(_TEXTS)), number(dice.choice(_NUMBERS))
    half = b"G" + struct.pack(">d", 0.5)
    name, parts = dice.choice(
        [
            ("_codecs\nencode", [some, text("latin1")]),
            ("torch\ndevice", [some]),
            ("torch\ndevice", [text("cuda"), count]),
            ("torch\nSize", [tuple_of(count, count)]),
            ("builtins\nset", [tuple_of(some, count)]),
            ("builtins\ncomplex", [half, half]),
            ("__builtin__\nbytes", []),
        ]
    )
    return named(name) + tuple_of(*parts) + b"R"


def key(dice: random.Random) -> bytes:
    simple = [number(dice.choice(_NUMBERS)), text(dice.choice(_TEXTS)), b"N"]
    return dice.choice([*simple, tuple_of(*simple), value(dice, 4)])


def bomb(dice: random.Random) -> bytes:
    """What is short to write and long to make, unless somebody counts."""
    size, times = 1 << dice.randrange(4, 12), 1 << dice.randrange(4, 12)
    pairs = b"](" + b"".join(tuple_of(number(at), b"N") for at in range(size)) + b"eq\x00"
    keys = b"(" + b"K\x01" * size + b"tq\x00"
    kinds = [
        pairs + b"(" + (named("collections\nOrderedDict") + b"h\x00\x85R") * times + b"t\x86",
        pairs + b"(" + (named("collections\nOrderedDict") + b")Rh\x00]h\x00a\x86") * times + b"t\x86",
        keys + b"}(" + b"h\x00N" * times + b"u\x86",
        keys + b"(" + (named("builtins\nset") + b"h\x00\x85R") * times + b"t\x86",
        text("x" * size)
        + b"q\x00("
        + (named("_codecs\nencode") + b"h\x00" + text("latin1") + b"\x86R") * times
        + b"t\x86",
        b"}(" + b"".join(number(at * ((1 << 61) - 1)) + b"N" for at in range(size)) + b"u",
        b"]" * times + b"a" * (times - 1),
        b"Nq\x00" + b"h\x00\x85q\x00" * times,
        text("k" * size) + b"q\x00" + b"}" * (times % 190 + 1) + tensor(dice) + b"s" * 0 + nest(times % 190 + 1),
        named("collections\nOrderedDict") + b")R}" + text("_metadata") + b"]" * times + b"a" * (times - 1) + b"sb",
        b"(" + b"]q\x00" + (b"]q\x01h\x00a" + b"h\x01q\x00") * times + b"t",
    ]
    return dice.choice(kinds)


def nest(depth: int) -> bytes:
    """Dictionaries in each other, all by the same long key."""
    return b"}h\x00" * depth + b"](" + b"N" * 300 + b"e" + b"s" * depth + b"\x87"


# ---- inputs -----------------------------------------------------------------------------------------------------------

_corpus: list[Input] = []


def corpus() -> list[Input]:
    """Honest inputs: some by hand, and what torch itself writes if it is there."""
    if not _corpus:
        dice = random.Random(0)
        for _ in range(20):
            entries = b"".join(text(f"layer.{at}") + tensor(dice) for at in range(5))
            _corpus.append((b"\x80\x02}q\x00(" + entries + b"u.", RECORDS))
        if importlib.util.find_spec("torch") is not None:
            _corpus.extend(written_by_torch())
    return _corpus


def written_by_torch() -> Iterator[Input]:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    base = torch.arange(12.0).reshape(3, 4)
    plain = [1, (2.5, None, True, 1 << 80), {"b": b"xy", 3: {1, 2}, (1, "x"): 1j}, torch.Size([1]), torch.float16]
    states = [
        model.state_dict(),
        {"a": base, "t": base.t(), "p": torch.nn.Parameter(base[1]), "f8": torch.ones(3).to(torch.float8_e4m3fn)},
        {"step": 3, "plain": plain, "device": torch.device("cuda:1"), "none": torch.zeros(0, 3)},
    ]
    for state in states:
        for protocol in (2, 4, 5):
            room = io.BytesIO()
            torch.save(state, room, pickle_protocol=protocol)
            with zipfile.ZipFile(room) as file:
                sizes = {
                    info.filename.split("/")[-1]: info.file_size
                    for info in file.infolist()
                    if "/data/" in info.filename
                }
                yield file.read(next(name for name in file.namelist() if name.endswith("data.pkl"))), sizes


@functools.cache
def instructions_of(index: int) -> list[bytes]:
    """The program of an honest input."""
    return instructions(corpus()[index][0])


def instructions(data: bytes) -> list[bytes]:
    """A program cut into its instructions; what cannot be understood is the last."""
    places = []
    with contextlib.suppress(ValueError, IndexError, struct.error, pickle.UnpicklingError):
        places.extend(place for _, _, place in pickletools.genops(data) if place is not None)
    cuts = [*places, len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(cuts)]


def flip(dice: random.Random, data: bytes) -> bytes:
    """Bytes changed, inserted, or cut off."""
    changed = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 5])):
        at = dice.randrange(len(changed) + 1)
        kind = dice.randrange(6)
        if kind == 0:
            changed[at:at] = dice.randbytes(dice.choice([1, 1, 4]))
        elif kind == 1:
            del changed[at : at + dice.choice([1, 1, 4])]
        elif kind == 2 and dice.random() < 0.2:
            del changed[at:]
        elif at < len(changed):
            changed[at] = dice.choice([0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)])
    return bytes(changed)


def mutate(dice: random.Random, data: bytes) -> bytes:
    """A program with instructions left out, repeated, moved, replaced or brought in from elsewhere."""
    steps = instructions(data) or [data]
    for _ in range(dice.choice([1, 1, 2, 3, 8])):
        at, kind = dice.randrange(len(steps)), dice.randrange(8)
        span = dice.choice([1, 1, 2, 5])
        if kind == 0:
            del steps[at : at + span]
        elif kind == 1:
            steps[at:at] = steps[at : at + span] * dice.choice([1, 1, 2, 50])
        elif kind == 2:
            other = dice.randrange(len(steps))
            steps[at], steps[other] = steps[other], steps[at]
        elif kind == 3:
            other_steps = instructions_of(dice.randrange(len(corpus())))
            begin = dice.randrange(len(other_steps))
            steps[at:at] = other_steps[begin : begin + span]
        elif kind == 4:
            steps[at] = value(dice, 3)
        elif kind == 5:
            steps[at:at] = [bytes([dice.choice([*_unpickle._STEPS, *b"io\x81\x92\x82SIFL0d"])])]
        elif kind == 6:
            steps[at] = key(dice)
        else:
            steps[at] = flip(dice, steps[at])
        steps = steps or [b"."]
    return b"".join(steps)


def make(seed: int, index: int) -> tuple[random.Random, Input]:
    """Input ``index`` of a seed, and the dice for what is done with it."""
    dice = random.Random(f"{seed} {index}")
    data, records = dice.choice(corpus())
    kind = dice.randrange(20)
    if kind == 0:
        data, records = b"\x80\x02" + bomb(dice) + b".", RECORDS
    elif kind < 8:
        data, records = b"\x80\x02" + value(dice) + b".", RECORDS
    if kind >= 5:
        data = mutate(dice, data)
    if kind == 19:
        data = flip(dice, data)
    return dice, (data, records)


# ---- the program ------------------------------------------------------------------------------------------------------


def warm_up() -> None:
    """Runs each kind of end once: what is imported late is imported before anybody watches."""
    for data in (HONEST[0], b"\x80\x02cos\nsystem\n.", b"\x80\x02", b"\x80\x02X\x01\x00\x00\x00\xff."):
        with contextlib.suppress(errors.Error):
            _unpickle.parse(data, RECORDS, "fuzz.pt")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, help="so many inputs")
    parser.add_argument("--seconds", type=float, help="so long (default: 60, if there is no --count)")
    parser.add_argument("--only", type=int, metavar="I", help="this input alone, with its traceback")
    given = parser.parse_args(arguments)
    sys.addaudithook(_hook)
    warm_up()
    until = time.monotonic() + given.seconds if given.seconds else None
    if until is None and given.count is None:
        until = time.monotonic() + 60
    with tempfile.TemporaryDirectory() as folder:
        whole = Whole(folder) if importlib.util.find_spec("torch") is not None else None
        index, broken = given.only or 0, 0
        while (given.count is None or index < given.count) and (until is None or time.monotonic() < until):
            dice, made = make(given.seed, index)
            try:
                judge(made)
                if whole is not None and (index % WHOLE_EVERY == 0 or given.only is not None):
                    whole.judge(dice, made)
            except Broken as error:
                broken += 1
                name = f"fuzz-{given.seed}-{index}.pkl"
                Path(name).write_bytes(made[0])
                print(f"input {index} (--seed {given.seed} --only {index}, {name}): {error}", flush=True)
                if given.only is not None:
                    raise
            index += 1
            if given.only is not None:
                break
    files = "files too" if whole is not None else "without torch: no whole files"
    print(f"forebay {forebay.__version__}: {index} inputs, {files}, {broken} broke a rule")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
