"""Reads the pickle inside a PyTorch checkpoint as data: nothing in it is ever imported or called.

A pickle is a program for a small stack machine. This is such a machine with the instructions that ``torch.save``
writes and no others. A name in the pickle (``torch._utils._rebuild_tensor_v2``) is looked up in a table of this
module; what it builds are plain containers and the notes :class:`TensorRef`, :class:`Dtype`, :class:`Device` and
:class:`Size`, which :mod:`forebay.pickles` turns into tensors. No framework is needed to read one.
"""

from __future__ import annotations

import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from . import errors

#: A longer pickle is refused: its tensors lie outside it, so honest ones have a few hundred bytes for each tensor.
PICKLE_LIMIT: Final = 256 << 20
_MARK_LIMIT: Final = 1000
_INT_BYTES_LIMIT: Final = 1024
_RANK_LIMIT: Final = 64
#: What references to earlier values may make the machine copy and look at, for each byte of the pickle. Honest ones
#: refer to a value where they mean it, and do not build others from it.
_COPIES_PER_BYTE: Final = 4
_COPIES: Final = 1 << 16

#: More keys that are tuples are refused in a file.
_TUPLE_KEYS: Final = 1000
_KEY_TYPES: Final = (str, int, float, bool, bytes)

#: Bytes of one element, by the name of PyTorch's dtype.
ITEM_BYTES: Final[dict[str, int]] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "bool": 1,
    "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "complex32": 4, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
}  # fmt: skip

_STORAGES: Final[dict[str, str]] = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128", "UntypedStorage": "uint8",
}  # fmt: skip

_DEVICE = re.compile(r"[a-z]{1,16}(:[0-9]{1,4})?")


@dataclass(frozen=True, slots=True)
class Dtype:
    """A ``torch.dtype``, by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Device:
    """A ``torch.device``, as text."""

    text: str


@dataclass(frozen=True, slots=True)
class Size:
    """A ``torch.Size``."""

    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StorageRef:
    """A storage: the record that holds its bytes, and the type of its elements."""

    key: str
    dtype: str
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class TensorRef:
    """A tensor: a view of a storage. ``offset`` and ``stride`` count elements."""

    storage: StorageRef
    dtype: str
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool
    parameter: bool = False


@dataclass(frozen=True, slots=True)
class _Name:
    """A name that the pickle asked for and that the tables below know."""

    module: str
    name: str


def parse(data: bytes, records: Mapping[str, int], path: str) -> Any:
    """Reads a pickle written by ``torch.save``.

    Args:
        data: the pickle.
        records: the key of each storage in the archive and its size in bytes.
        path: the file's name, for messages.

    Raises:
        InvalidInputError: the pickle asks for something that is not tensors and plain data; the message names it.
        IntegrityError: it is damaged, or lies about its storages.
    """
    machine = _Machine(data, records, path)
    try:
        return machine.run()
    except (IndexError, struct.error, UnicodeError, OverflowError, TypeError, KeyError) as reason:
        raise errors.IntegrityError("the checkpoint's pickle is damaged", path=path, at=machine.at) from reason


def refuse_name(module: str, name: str, path: str) -> NoReturn:
    """Refuses a name of the pickle, telling which."""
    raise errors.InvalidInputError(
        "the checkpoint asks to run code: only tensors and plain data are loaded",
        hints=[
            "if you trust whoever made the file: found = torch.load(path, weights_only=False)",
            'then save its tensors: forebay.save_file(found, "model.safetensors"), or found["state_dict"] if it has that',
        ],
        name=f"{module}.{name}"[:200],
        path=path,
    )


def refuse_tuple_keys(path: str) -> NoReturn:
    """Refuses a pickle with more keys that are tuples than can be told apart quickly whatever they are."""
    raise errors.InvalidInputError(
        "the checkpoint has too many keys that are tuples",
        hints=[
            "if you trust whoever made the file: found = torch.load(path, weights_only=True)",
            "or save it again with texts as keys",
        ],
        limit=_TUPLE_KEYS,
        path=path,
    )


class _Machine:
    def __init__(self, data: bytes, records: Mapping[str, int], path: str) -> None:
        self.data = data
        self.records = records
        self.path = path
        self.at = 0
        self.copies = _COPIES + _COPIES_PER_BYTE * len(data)
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[tuple[str, str], StorageRef] = {}
        self.tuple_keys = 0

    def run(self) -> Any:
        data, steps = self.data, _STEPS
        while True:
            code = data[self.at]
            self.at += 1
            if code == 0x2E:  # STOP
                break
            step = steps.get(code)
            if step is None:
                self.damaged(f"instruction {code:#04x} is none that torch.save writes")
            step(self)
        if len(self.stack) != 1 or self.marks:
            self.damaged("the pickle does not end with one value")
        return self.stack[0]

    def damaged(self, what: str) -> NoReturn:
        raise errors.IntegrityError(f"the checkpoint's pickle is damaged: {what}", path=self.path, at=self.at)

    def spend(self, count: int) -> None:
        """Counts elements of a value that are copied or compared, as often as the pickle refers to it."""
        self.copies -= count
        if self.copies < 0:
            self.damaged("it makes far more than it holds")

    def take(self, count: int) -> bytes:
        end = self.at + count
        if count < 0 or end > len(self.data):
            self.damaged("it ends early")
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def number(self, form: struct.Struct) -> Any:
        return form.unpack(self.take(form.size))[0]

    def line(self) -> str:
        end = self.data.find(b"\n", self.at, self.at + 1024)
        if end < 0:
            self.damaged("a name has no end")
        text = self.data[self.at : end].decode("ascii")
        self.at = end + 1
        return text

    def mark(self) -> None:
        if len(self.marks) >= _MARK_LIMIT:
            self.damaged("it is nested too deep")
        self.marks.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.marks.pop()
        return items

    def find(self, module: object, name: object) -> _Name | Dtype:
        if type(module) is not str or type(name) is not str:
            self.damaged("a name is not text")
        if module == "torch" and name in ITEM_BYTES:
            return Dtype(name)
        storage = module in ("torch", "torch.storage") and name in _STORAGES
        if not storage and (module, name) not in _BUILDERS:
            refuse_name(module, name, self.path)
        return _Name(module, name)

    def reduce(self) -> None:
        arguments = self.stack.pop()
        function = self.stack.pop()
        if type(arguments) is not tuple or type(function) is not _Name:
            self.damaged("a call without a known name")
        builder = _BUILDERS.get((function.module, function.name))
        if builder is None:
            self.damaged(f"{function.module}.{function.name} cannot be called")
        self.stack.append(builder(self, *arguments))

    def build(self) -> None:
        # The one state that torch.save writes for allowed things: the `_metadata` of a module's state dict.
        state = self.stack.pop()
        target = self.stack[-1]
        if type(target) is not OrderedDict or type(state) is not dict or set(state) - {"_metadata"}:
            refuse_name(type(target).__module__, f"{type(target).__qualname__} with a state of its own", self.path)
        if "_metadata" in state:
            target._metadata = state["_metadata"]  # type: ignore[attr-defined]

    def append(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            self.damaged("items for something that is no list")
        target.extend(items)

    def add(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not set:
            self.damaged("members for something that is no set")
        target.update(self.plain_key(item) for item in items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) not in (dict, OrderedDict) or len(items) % 2:
            self.damaged("entries for something that is no dictionary")
        for at in range(0, len(items), 2):
            target[self.plain_key(items[at])] = items[at + 1]

    def plain_key(self, key: object) -> object:
        if type(key) is str:
            self.spend(1)
            return key
        inner: tuple[Any, ...] = (key,)
        if type(key) is tuple:
            inner = key
            self.tuple_keys += 1
            # They can be chosen so that all have the same hash, and each is compared with all before it.
            if self.tuple_keys > _TUPLE_KEYS:
                refuse_tuple_keys(self.path)
        self.spend(1 + len(inner))
        for part in inner:
            if part is not None and type(part) not in _KEY_TYPES:
                self.damaged("a key that is neither text nor a number")
            # Larger ones can be chosen so that a dictionary takes them all for the same at first.
            if type(part) is int and part.bit_length() > 64:
                self.damaged("a key that is a huge number")
        return key

    def storage(self) -> None:
        """A persistent id: ("storage", type, key, place, elements)."""
        told = self.stack.pop()
        if type(told) is not tuple or len(told) != 5 or told[0] != "storage":
            self.damaged("a persistent id that is no storage")
        _, kind, key, place, elements = told
        if type(kind) is not _Name or kind.name not in _STORAGES or kind.module not in ("torch", "torch.storage"):
            self.damaged("a storage without a known type")
        if type(key) is not str or type(place) is not str or type(elements) is not int or elements < 0:
            self.damaged("a storage whose description is not text and numbers")
        dtype = _STORAGES[kind.name]
        nbytes = elements * ITEM_BYTES[dtype]
        found = self.records.get(key)
        if found is None:
            raise errors.IntegrityError("the checkpoint names a storage that it does not hold", key=key, path=self.path)
        if nbytes != found:
            raise errors.IntegrityError(
                "the checkpoint lies about the size of a storage", key=key, told=nbytes, found=found, path=self.path
            )
        self.stack.append(self.storages.setdefault((key, dtype), StorageRef(key, dtype, nbytes)))


def _numbers(machine: _Machine, value: object) -> tuple[int, ...]:
    """A shape or strides: a short tuple of numbers that are not negative."""
    if type(value) is Size:
        value = value.sizes
    if type(value) is not tuple or len(value) > _RANK_LIMIT:
        machine.damaged("a shape that is no short tuple")
    if not all(type(part) is int and 0 <= part < 1 << 62 for part in value):
        machine.damaged("a shape or stride that is no size")
    return value


def _tensor(
    machine: _Machine, storage: object, offset: object, size: object, stride: object, grad: object, dtype: str | None
) -> TensorRef:
    if type(storage) is not StorageRef:
        machine.damaged("a tensor without a storage")
    sizes, strides = _numbers(machine, size), _numbers(machine, stride)
    (start,) = _numbers(machine, (offset,))
    if len(sizes) != len(strides) or type(grad) is not bool:
        machine.damaged("a tensor whose shape and strides differ in rank")
    dtype = dtype or storage.dtype
    last = 0 if 0 in sizes else 1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    end = (start + last) * ITEM_BYTES[dtype]
    if end > storage.nbytes:
        raise errors.IntegrityError(
            "a tensor reaches beyond its storage", key=storage.key, end=end, size=storage.nbytes, path=machine.path
        )
    return TensorRef(storage, dtype, start, sizes, strides, grad)


def _empty(machine: _Machine, value: object, what: str) -> None:
    if value is not None and (not isinstance(value, (dict, tuple)) or value):
        raise errors.UnsupportedError(f"the checkpoint holds a tensor with {what}", path=machine.path)


def _rebuild_tensor(machine: _Machine, storage: Any, offset: Any, size: Any, stride: Any) -> TensorRef:
    return _tensor(machine, storage, offset, size, stride, False, None)


def _rebuild_tensor_v2(
    machine: _Machine, storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any, extra: Any = None
) -> TensorRef:
    _empty(machine, hooks, "backward hooks")
    _empty(machine, extra, "a conjugate or negative view")
    return _tensor(machine, storage, offset, size, stride, grad, None)


def _rebuild_tensor_v3(
    machine: _Machine, storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any, dtype: Any,
    extra: Any = None,
) -> TensorRef:  # fmt: skip
    _empty(machine, hooks, "backward hooks")
    _empty(machine, extra, "a conjugate or negative view")
    if type(dtype) is not Dtype:
        machine.damaged("a tensor without a type")
    return _tensor(machine, storage, offset, size, stride, grad, dtype.name)


def _rebuild_parameter(machine: _Machine, tensor: Any, grad: Any, hooks: Any) -> TensorRef:
    _empty(machine, hooks, "backward hooks")
    if type(tensor) is not TensorRef or type(grad) is not bool:
        machine.damaged("a parameter without a tensor")
    return TensorRef(tensor.storage, tensor.dtype, tensor.offset, tensor.size, tensor.stride, grad, True)


def _ordered(machine: _Machine, pairs: Any = ()) -> OrderedDict[Any, Any]:
    made: OrderedDict[Any, Any] = OrderedDict()
    if type(pairs) not in (list, tuple):
        machine.damaged("an ordered dictionary without entries")
    for pair in pairs:
        if type(pair) not in (list, tuple) or len(pair) != 2:
            machine.damaged("an ordered dictionary without entries")
        made[machine.plain_key(pair[0])] = pair[1]
    return made


def _size(machine: _Machine, sizes: Any) -> Size:
    return Size(_numbers(machine, sizes))


def _device(machine: _Machine, kind: Any, index: Any = None) -> Device:
    text = kind if index is None else f"{kind}:{index}"
    if type(text) is not str or not _DEVICE.fullmatch(text):
        machine.damaged("a device that is none")
    return Device(text)


def _set(machine: _Machine, members: Any = ()) -> set[Any]:
    if type(members) not in (list, tuple):
        machine.damaged("a set without members")
    return {machine.plain_key(member) for member in members}


def _complex(machine: _Machine, real: Any, imaginary: Any) -> complex:
    if type(real) is not float or type(imaginary) is not float:
        machine.damaged("a complex number without its parts")
    return complex(real, imaginary)


def _encode(machine: _Machine, text: Any, coding: Any) -> bytes:
    # How protocol 2 writes bytes.
    if type(text) is not str or coding != "latin1":
        machine.damaged("bytes in an unknown coding")
    machine.spend(len(text))
    return text.encode("latin1")


def _bytes(machine: _Machine) -> bytes:
    return b""


_BUILDERS: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor_v2,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_tensor_v3,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("collections", "OrderedDict"): _ordered,
    ("torch", "Size"): _size,
    ("torch", "device"): _device,
    ("__builtin__", "set"): _set,
    ("builtins", "set"): _set,
    ("__builtin__", "complex"): _complex,
    ("builtins", "complex"): _complex,
    ("__builtin__", "bytes"): _bytes,
    ("_codecs", "encode"): _encode,
}

_U1, _U2, _U4, _U8 = struct.Struct("<B"), struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<Q")
_I4, _F8 = struct.Struct("<i"), struct.Struct(">d")


def _proto(machine: _Machine) -> None:
    if not 2 <= machine.number(_U1) <= 5:
        machine.damaged("a protocol that torch.save does not write")


def _tuple(machine: _Machine) -> None:
    items = machine.since_mark()
    machine.stack.append(tuple(items))


def _tuple_of(count: int) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        if len(machine.stack) < count:
            machine.damaged("a tuple of what is not there")
        machine.stack[-count:] = [tuple(machine.stack[-count:])]

    return step


def _push(make: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        machine.stack.append(make(machine))

    return step


def _text(form: struct.Struct) -> Callable[[_Machine], None]:
    return _push(lambda machine: machine.take(machine.number(form)).decode("utf-8", "surrogatepass"))


def _raw(form: struct.Struct) -> Callable[[_Machine], None]:
    return _push(lambda machine: machine.take(machine.number(form)))


def _long(form: struct.Struct) -> Callable[[_Machine], None]:
    def make(machine: _Machine) -> int:
        count = machine.number(form)
        if count > _INT_BYTES_LIMIT:
            machine.damaged("a number too large")
        return int.from_bytes(machine.take(count), "little", signed=True)

    return _push(make)


def _put(form: struct.Struct) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        machine.memo[machine.number(form)] = machine.stack[-1]

    return step


def _memoize(machine: _Machine) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _appends(machine: _Machine) -> None:
    items = machine.since_mark()
    machine.append(items)


def _append_one(machine: _Machine) -> None:
    item = machine.stack.pop()
    machine.append([item])


def _add_items(machine: _Machine) -> None:
    items = machine.since_mark()
    machine.add(items)


def _set_items(machine: _Machine) -> None:
    items = machine.since_mark()
    machine.set_items(items)


def _set_one(machine: _Machine) -> None:
    value = machine.stack.pop()
    key = machine.stack.pop()
    machine.set_items([key, value])


def _global(machine: _Machine) -> None:
    module = machine.line()
    machine.stack.append(machine.find(module, machine.line()))


def _stack_global(machine: _Machine) -> None:
    name = machine.stack.pop()
    machine.stack.append(machine.find(machine.stack.pop(), name))


def _frame(machine: _Machine) -> None:
    machine.take(8)


_STEPS: Final[dict[int, Callable[[_Machine], None]]] = {
    0x80: _proto, 0x95: _frame, ord("("): _Machine.mark,
    ord("}"): _push(lambda _: {}), ord("]"): _push(lambda _: []), ord(")"): _push(lambda _: ()),
    0x8F: _push(lambda _: set()),
    ord("N"): _push(lambda _: None), 0x88: _push(lambda _: True), 0x89: _push(lambda _: False),
    ord("K"): _push(lambda m: m.number(_U1)), ord("M"): _push(lambda m: m.number(_U2)),
    ord("J"): _push(lambda m: m.number(_I4)), ord("G"): _push(lambda m: m.number(_F8)),
    0x8A: _long(_U1), 0x8B: _long(_U4),
    0x8C: _text(_U1), ord("X"): _text(_U4), 0x8D: _text(_U8),
    ord("C"): _raw(_U1), ord("B"): _raw(_U4), 0x8E: _raw(_U8),
    ord("t"): _tuple, 0x85: _tuple_of(1), 0x86: _tuple_of(2), 0x87: _tuple_of(3),
    ord("a"): _append_one, ord("e"): _appends, ord("s"): _set_one, ord("u"): _set_items, 0x90: _add_items,
    ord("q"): _put(_U1), ord("r"): _put(_U4), 0x94: _memoize,
    ord("h"): _push(lambda m: m.memo[m.number(_U1)]), ord("j"): _push(lambda m: m.memo[m.number(_U4)]),
    ord("c"): _global, 0x93: _stack_global,
    ord("R"): _Machine.reduce, ord("b"): _Machine.build, ord("Q"): _Machine.storage,
}  # fmt: skip
