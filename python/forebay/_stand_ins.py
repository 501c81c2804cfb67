"""Replacements of safetensors' functions, and of the functions that pass a process's state to its children."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from . import frameworks, lazy
from ._locations import MemoryFile
from ._paths import path_text
from .errors import Error, InvalidInputError, NotFoundError, UnsupportedError
from .frameworks import CPU, Device
from .lazy import TensorSlice
from .loading import Source
from .safetensors import load_with, save_file

if TYPE_CHECKING:
    from .frameworks import Framework
    from .torch._weights_reads import Reads

__all__ = ["MAKERS", "Maker"]

#: Makes a function's replacement of the function.
Maker = Callable[[Any], Any]
T = TypeVar("T")

_log = logging.getLogger("forebay")
#: Errors that are safetensors' too.
_twins: dict[tuple[type[Error], tuple[type[Exception], ...]], type[Error]] = {}
#: Messages about functions that go to safetensors: each once.
_said: set[tuple[object, ...]] = set()


def _why_not(framework: str, device: object) -> str | None:
    """Why forebay cannot have this framework and device; ``None`` if it can."""
    try:
        frameworks.get(framework).parse_device(device)
    except (InvalidInputError, UnsupportedError) as error:
        return str(error)
    return None


def _hand_over(function: str, reason: str, **how: object) -> None:
    """Says that a call goes to safetensors: a warning the first time, lines for debugging from then on."""
    key = (function, *map(str, how.values()))
    level = logging.DEBUG if key in _said else logging.WARNING
    _said.add(key)
    facts = ", ".join(f"{name}={value}" for name, value in how.items())
    _log.log(level, "%s goes to safetensors, not to forebay: %s (%s)", function, reason, facts)


def _twin(kind: type[Error], theirs: tuple[type[Exception], ...]) -> type[Error]:
    """The same error that is safetensors' own too; its pickles are made of what it is made of."""
    made = _twins.get((kind, theirs))
    if made is not None:
        return made

    def reduce(error: Error) -> tuple[object, ...]:
        return _again, (kind, theirs, error.message, error.hints, getattr(error, "errno", None), error.context)

    bases: tuple[type, ...] = (kind,)
    for base in theirs:
        if not issubclass(kind, base):
            bases += (base,)
    members = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__reduce__": reduce}
    twin = _twins[kind, theirs] = type(kind.__name__, bases, members)
    return twin


def _again(
    kind: type[Error], theirs: tuple[type[Exception], ...], message: str, hints: list[str], errno: int | None,
    context: dict[str, object],
) -> Error:  # fmt: skip
    return _twin(kind, theirs)(message, hints=hints, errno=errno, **context)


def _refusal(error: Error, their_error: Exception | None) -> Error:
    """Our error as safetensors' own, in its words where it refuses the same; ours are a note then."""
    from safetensors import SafetensorError

    kinds: list[type[Exception]] = [SafetensorError]
    if their_error is not None and type(their_error) is not SafetensorError:
        kinds.insert(0, type(their_error))
    number = getattr(error, "errno", None)
    kind = _twin(type(error), tuple(kinds))
    if their_error is None:
        return kind(error.message, hints=error.hints, errno=number, **error.context)
    refusal = kind(str(their_error), hints=error.hints, errno=number)
    refusal.add_note(f"forebay: {error}")
    return refusal


#: Errors that are raised as safetensors' own: those about arguments. safetensors has none for the rest.
_ABOUT_INPUT = (InvalidInputError, UnsupportedError, NotFoundError)


def _do(function: str, ours: Callable[[], T], theirs: Callable[[], T] | None, is_same: bool = True) -> T:
    """Does it our way. What we refuse safetensors is asked for, which refuses it or does it.

    Args:
        function: its name, for the log.
        ours: how forebay does it.
        theirs: how safetensors does; ``None`` where nothing of it is left to be asked.
        is_same: whether what safetensors gives may be returned: it reads the same file.
    """
    try:
        return ours()
    except Error as error:
        their_error = None
        if theirs is not None and isinstance(error, _ABOUT_INPUT):
            try:
                result = theirs()
            except Error:
                # Their function calls another one that forebay stands in for, which has said it.
                raise
            except Exception as refused:
                their_error = refused
            else:
                if is_same:
                    _hand_over(function, str(error))
                    return result
        _log.info("%s refuses: %s", function, error)
        raise _refusal(error, their_error) from error.__cause__


def _check_backend(backend: object) -> None:
    """How safetensors is to read has no meaning here; what it would refuse is refused as it does, before anything is read."""
    if backend is not None:
        # It looks at this before the path, and no file has an empty one.
        with suppress(FileNotFoundError):
            _plain_open()("", framework="np", backend=backend)


def _is_taken(index: Any, shape: tuple[int, ...]) -> bool:
    """Whether safetensors takes such an index: ours takes lists, arrays and slices that end behind the end as well."""
    parts = index if isinstance(index, tuple) else (index,)
    if not all(part is None or part is ... or type(part) in (int, slice) for part in parts):
        return False
    sizes = zip(parts, shape, strict=False)
    return not any(type(part) is slice and type(part.stop) is int and part.stop > size for part, size in sizes)


class _Slice(TensorSlice):
    """A tensor to be indexed as safetensors indexes it.

    Args:
        part: forebay's own.
        theirs: gives safetensors' one, of what the path names by now.
    """

    __slots__ = ("_theirs",)

    def __init__(self, part: TensorSlice, theirs: Callable[[], Any]) -> None:
        super().__init__(part._reader, part._entry)
        self._theirs = theirs

    def __getitem__(self, index: Any) -> Any:
        if not _is_taken(index, self._entry[2]):
            # Raises as safetensors does, unless the file is gone, or safetensors takes it by now.
            with suppress(OSError):
                self._theirs()[index]
        ours = functools.partial(super().__getitem__, index)
        return _do("safe_open.get_slice", ours, lambda: self._theirs()[index], is_same=False)


#: Packages that place each tensor themselves, by `.to(device)` or `copy_`: they get tensors that are read where they are placed.
_PLACERS = ("transformers", "diffusers", "accelerate")


def _places_tensors(module: str) -> bool:
    """Whether a module places tensors itself."""
    # This one asks for the address of what it has just read.
    return module.partition(".")[0] in _PLACERS and module != "accelerate.utils.offload"


def _safe_open(original: Any) -> Any:
    class safe_open(lazy.safe_open):  # noqa: N801 (the name is safetensors')
        __doc__ = lazy.safe_open.__doc__

        def __new__(cls, filename: Any, framework: str, device: object = "cpu", *, backend: object = None) -> Any:
            reason = _why_not(framework, device)
            if reason is not None:
                _hand_over("safe_open", reason, framework=framework, device=device)
                return original(filename, framework, device, **_backend_option(backend))
            return super().__new__(cls)

        def __init__(self, filename: Any, framework: str, device: object = "cpu", *, backend: object = None) -> None:
            _check_backend(backend)
            self._theirs = functools.partial(original, filename, framework, **_backend_option(backend))
            _do("safe_open", lambda: super(safe_open, self).__init__(filename, framework, device), self._theirs, False)
            self._reads: Reads | None = None
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if self._framework.name == "torch" and self._device == CPU and _places_tensors(caller):
                self._reads = _reads()

        def _choose(self, framework: str, device: object) -> tuple[Framework, Device]:
            chosen, place = super()._choose(framework, device)
            return _uncommitted() if chosen.name == "jax" and place == CPU else (chosen, place)

        def _weight(self, reads: Reads, name: str) -> Any:
            """A tensor that is read where it is used."""
            from .torch._weights import weight_of

            return weight_of(self._open_source(), self._entry(name), reads)

        def get_tensor(self, name: str) -> Any:
            read = super().get_tensor if self._reads is None else functools.partial(self._weight, self._reads)
            ours = functools.partial(read, name)
            return _do("safe_open.get_tensor", ours, lambda: self._theirs().get_tensor(name), is_same=False)

        def get_tensors(self, names: Iterable[str] | None = None) -> dict[str, Any]:
            return _do("safe_open.get_tensors", functools.partial(super().get_tensors, names), None)

        def get_slice(self, name: str) -> Any:
            def theirs() -> Any:
                return self._theirs().get_slice(name)

            if self._reads is not None:
                return _do(
                    "safe_open.get_slice", functools.partial(self._weight, self._reads, name), theirs, is_same=False
                )
            ours = functools.partial(super().get_slice, name)
            return _Slice(_do("safe_open.get_slice", ours, theirs, is_same=False), theirs)

        def _open_source(self) -> Source:
            return _do("safe_open", super()._open_source, None)

    safe_open.__module__ = "safetensors"
    safe_open.__qualname__ = "safe_open"
    return safe_open


@functools.cache
def _reads() -> Reads:
    """The account of what such packages have read in this process."""
    from .torch._weights_reads import Reads

    return Reads()


def _load_file(framework: str, original: Callable[..., Any]) -> Callable[..., Any]:
    name = f"{framework}.load_file"

    @functools.wraps(original)
    def load_file(
        filename: str | os.PathLike[str], device: object = "cpu", *, backend: object = None
    ) -> dict[str, Any]:
        def theirs() -> dict[str, Any]:
            given = (filename, device) if framework == "torch" else (filename,)
            return dict(original(*given, **_backend_option(backend)))

        reason = _why_not(framework, device)
        if reason is not None:
            _hand_over(name, reason, device=device)
            return theirs()
        _check_backend(backend)
        chosen = frameworks.get(framework)
        place = chosen.parse_device(device)
        return _do(name, lambda: load_with(path_text(filename), chosen, place), theirs)

    return load_file


def _load_flax(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_file(filename: str | os.PathLike[str], *, backend: object = None) -> dict[str, Any]:
        def theirs() -> dict[str, Any]:
            return dict(original(filename, **_backend_option(backend)))

        try:
            chosen, place = _uncommitted()
        except (InvalidInputError, UnsupportedError) as error:
            _hand_over("flax.load_file", str(error))
            return theirs()
        _check_backend(backend)
        return _do("flax.load_file", lambda: load_with(path_text(filename), chosen, place, _as_jax_does), theirs)

    return load_file


def _load(framework: str, original: Callable[..., Any]) -> Callable[..., Any]:
    name = f"{framework}.load"

    @functools.wraps(original)
    def load(data: bytes) -> dict[str, Any]:
        def theirs() -> dict[str, Any]:
            return dict(original(data))

        # safetensors raises its own errors for arguments that are not bytes, and for a missing framework.
        reason = _why_not(_FRAMEWORKS[framework], "cpu") if isinstance(data, bytes) else "no bytes were given"
        if reason is not None:
            _hand_over(name, reason)
            return theirs()
        chosen, cast = frameworks.get(_FRAMEWORKS[framework]), None
        place = chosen.parse_device("cpu")
        if framework == "flax":
            (chosen, place), cast = _uncommitted(), _as_jax_does
        with _as_file(data) as path:
            return _do(name, lambda: load_with(path, chosen, place, cast), theirs)

    return load


#: By which name forebay knows what a module of safetensors is for.
_FRAMEWORKS = {"torch": "torch", "numpy": "numpy", "flax": "jax"}


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A file of these bytes in memory, for as long as the block runs."""
    with MemoryFile("safetensors") as file:
        file.write(data)
        yield file.path


def _plain_open() -> Callable[..., Any]:
    """safetensors' own ``safe_open``."""
    import importlib

    plain: Callable[..., Any] = importlib.import_module("safetensors._safetensors_rust").safe_open
    return plain


def _backend_option(backend: object) -> dict[str, object]:
    """How safetensors shall read where it is asked to; older versions have no such option."""
    return {} if backend is None else {"backend": backend}


def _uncommitted() -> tuple[Framework, Device]:
    """jax as safetensors uses it: arrays on the default device, which jax may move to where they are needed.

    Raises:
        UnsupportedError: jax is not installed.
        InvalidInputError: its default device is of a kind that forebay does not know.
    """
    frameworks.get("jax")
    from .frameworks.jax import UNCOMMITTED

    return UNCOMMITTED, UNCOMMITTED.default_device()


def _as_jax_does(name: str, dtype: str) -> str:
    """Without its option for wide types jax makes narrow ones of them."""
    framework = frameworks.get("jax")
    return dtype if framework.dtype(dtype) is not None else {"I64": "I32", "U64": "U32", "F64": "F32"}.get(dtype, dtype)


def _save(original: Callable[..., Any], prepare: Callable[[Any], Any] = lambda array: array) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(tensors: Mapping[str, Any], filename: str | os.PathLike[str], metadata: Any = None) -> None:
        prepared = tensors
        if isinstance(tensors, Mapping):
            prepared = {name: prepare(array) for name, array in tensors.items()}
        _do("save_file", lambda: save_file(prepared, filename, metadata), lambda: original(tensors, filename, metadata))

    return save


def _plain_numpy(array: Any) -> Any:
    """safetensors takes any strides and byte order of numpy."""
    import numpy

    if not isinstance(array, numpy.ndarray):
        return array
    return numpy.asarray(array, array.dtype.newbyteorder("="), order="C")


def _save_numpy(original: Callable[..., Any]) -> Callable[..., Any]:
    save = _save(original, _plain_numpy)

    @functools.wraps(original)
    def save_file(tensor_dict: Any, filename: str | os.PathLike[str], metadata: Any = None) -> None:
        save(tensor_dict, filename, metadata)

    return save_file


def _preparation(original: Callable[..., Any]) -> Callable[..., Any]:
    """For ``multiprocessing.spawn``: the data that a child, a new interpreter, gets of this process."""

    @functools.wraps(original)
    def get_preparation_data(name: str) -> dict[str, Any]:
        return {**original(name), "forebay": _PatchedChild()}

    return get_preparation_data


class _PatchedChild:
    """Has a child patched while it reads what its parent tells it: before it knows its parent's ``sys.path``."""

    def __reduce__(self) -> tuple[object, ...]:
        folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        code = (
            f"import sys\nsys.path.append({folder!r})\n"
            "try:\n    from forebay import patch\nfinally:\n    sys.path.pop()\n"
            "patch.patch_child()"
        )
        return exec, (code, {})


#: Makers of replacements, by module and name.
MAKERS: dict[str, dict[str, Maker]] = {
    "safetensors": {"safe_open": _safe_open},
    "safetensors.torch": {
        "load": functools.partial(_load, "torch"),
        "load_file": functools.partial(_load_file, "torch"),
        "save_file": _save,
    },
    "safetensors.numpy": {
        "load": functools.partial(_load, "numpy"),
        "load_file": functools.partial(_load_file, "numpy"),
        "save_file": _save_numpy,
    },
    "safetensors.flax": {"load": functools.partial(_load, "flax"), "load_file": _load_flax, "save_file": _save},
    "multiprocessing.spawn": {"get_preparation_data": _preparation},
}
