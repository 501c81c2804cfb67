"""Puts forebay in the place of safetensors, in programs that cannot be changed.

>>> import forebay
>>> forebay.patch_safetensors()  # doctest: +SKIP
>>> model = transformers.AutoModel.from_pretrained("./model")  # doctest: +SKIP
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.abc import Loader as ImportLoader
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from . import frameworks, lazy
from .errors import Error, InvalidInputError, UnsupportedError
from .frameworks import CPU, Device
from .loading import Source, path_text
from .safetensors import load_with, save_file

if TYPE_CHECKING:
    from .frameworks import Framework

__all__ = ["Patch", "patch_safetensors", "unpatch_safetensors"]

#: What has a replacement, by module.
_TARGETS = {
    "safetensors": ("safe_open",),
    "safetensors.torch": ("load_file", "save_file"),
    "safetensors.numpy": ("load_file", "save_file"),
    "safetensors.flax": ("load_file", "save_file"),
}
_lock = threading.RLock()
#: (original, replacement) while they are in place.
_pairs: list[tuple[Any, Any]] = []


class Patch:
    """What :func:`patch_safetensors` returns: as a context manager it takes everything back at the end of the block."""

    def __init__(self, is_mine: bool) -> None:
        self._is_mine = is_mine

    def __enter__(self) -> Patch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An outer patch stays.
        if self._is_mine:
            unpatch_safetensors()


def patch_safetensors() -> Patch:
    """Makes ``safetensors.safe_open`` and the ``load_file`` and ``save_file`` of ``safetensors.torch``, ``.numpy`` and
    ``.flax`` (and with them ``load_model`` and ``save_model``) use forebay, for the whole process.

    The order of imports does not matter: modules that have already imported these names get the new ones, and what is
    imported later finds them. What forebay cannot do (other frameworks, other devices) goes to safetensors as before.
    Calling it twice is calling it once. Where safetensors is not installed there is nothing to change: a warning says so.

    Returns:
        A context manager that takes it back; to be ignored for a patch that stays.

    >>> with forebay.patch_safetensors():  # doctest: +SKIP
    ...     model = transformers.AutoModel.from_pretrained("./model")
    """
    if importlib.util.find_spec("safetensors") is None:
        text = "safetensors is not installed: patch_safetensors() changes nothing (pip install safetensors)"
        warnings.warn(text, stacklevel=2)
    with _lock:
        if _finder in sys.meta_path:
            return Patch(False)
        sys.meta_path.insert(0, _finder)
        for name in _TARGETS:
            module = sys.modules.get(name)
            if module is not None:
                _replace(module)
        _swap(_pairs)
        return Patch(True)


def unpatch_safetensors() -> None:
    """Takes :func:`patch_safetensors` back, everywhere."""
    with _lock:
        if _finder in sys.meta_path:
            sys.meta_path.remove(_finder)
        _swap([(new, old) for old, new in _pairs])
        _pairs.clear()


def _replace(module: ModuleType) -> None:
    """Puts replacements into a module of safetensors."""
    for attribute in _TARGETS[module.__name__]:
        original = getattr(module, attribute, None)
        if original is None or any(original is new for _, new in _pairs):
            continue
        make = _MAKERS[module.__name__, attribute]
        replacement = make(original)
        _pairs.append((original, replacement))
        setattr(module, attribute, replacement)


def _swap(pairs: list[tuple[Any, Any]]) -> None:
    """In every module: whatever *is* the first of a pair becomes the second."""
    by_id = {id(old): new for old, new in pairs}
    for module in list(sys.modules.values()):
        # The native module keeps its own: that is where the originals come from.
        if not isinstance(module, ModuleType) or module.__name__ in (__name__, "safetensors._safetensors_rust"):
            continue
        for attribute, value in list(vars(module).items()):
            new = by_id.get(id(value))
            if new is not None:
                setattr(module, attribute, new)


class _Finder(MetaPathFinder):
    """Has the modules of safetensors patched right after they were imported."""

    def __init__(self) -> None:
        self._searching = threading.local()

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in _TARGETS or getattr(self._searching, "name", None) == fullname:
            return None
        self._searching.name = fullname
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching.name = None
        if spec is not None and spec.loader is not None:
            spec.loader = _PatchingLoader(spec.loader)
        return spec


class _PatchingLoader(ImportLoader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        with _lock:
            if _finder in sys.meta_path:
                _replace(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


_finder = _Finder()


def _is_supported(framework: str, device: object) -> bool:
    """Whether forebay has this framework and device."""
    try:
        frameworks.get(framework).parse_device(device)
    except (InvalidInputError, UnsupportedError):
        return False
    return True


@contextmanager
def _safetensors_errors(*others: type[Exception]) -> Iterator[None]:
    """Errors about a file's content are also safetensors' own error (and ``others``), for programs that catch that."""
    try:
        yield
    except OSError:
        raise
    except Error as error:
        theirs = getattr(sys.modules.get("safetensors"), "SafetensorError", None)
        if theirs is None or isinstance(error, theirs):
            raise
        kind = type(type(error).__name__, (type(error), theirs, *others), {"__module__": type(error).__module__})
        raise kind(error.message, hints=error.hints, **error.context) from error.__cause__


def _safe_open(original: Any) -> Any:
    class safe_open(lazy.safe_open):  # noqa: N801 (the name is safetensors')
        __doc__ = lazy.safe_open.__doc__

        def __new__(cls, filename: Any, framework: str, device: object = "cpu", *, backend: object = None) -> Any:
            if not _is_supported(framework, device):
                return original(filename, framework, device, **_backend_option(backend))
            return super().__new__(cls)

        @_safetensors_errors()
        def __init__(self, filename: Any, framework: str, device: object = "cpu", *, backend: object = None) -> None:
            super().__init__(filename, framework, device)

        def _choose(self, framework: str, device: object) -> tuple[Framework, Device]:
            chosen, place = super()._choose(framework, device)
            return _uncommitted() if chosen.name == "jax" and place == CPU else (chosen, place)

        @_safetensors_errors()
        def _open_source(self) -> Source:
            return super()._open_source()

        @_safetensors_errors()
        def _no_entry(self, name: str) -> NoReturn:
            super()._no_entry(name)

    safe_open.__module__ = "safetensors"
    safe_open.__qualname__ = "safe_open"
    return safe_open


def _load(framework: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_file(
        filename: str | os.PathLike[str], device: object = "cpu", *, backend: object = None
    ) -> dict[str, Any]:
        if not _is_supported(framework, device):
            return dict(original(filename, device, **_backend_option(backend)))
        chosen = frameworks.get(framework)
        with _safetensors_errors():
            return load_with(path_text(filename), chosen, chosen.parse_device(device))

    return load_file


def _load_flax(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_file(filename: str | os.PathLike[str], *, backend: object = None) -> dict[str, Any]:
        try:
            chosen, place = _uncommitted()
        except (InvalidInputError, UnsupportedError):
            return dict(original(filename, **_backend_option(backend)))
        with _safetensors_errors():
            return load_with(path_text(filename), chosen, place, _as_jax_does)

    return load_file


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
        if isinstance(tensors, Mapping):
            tensors = {name: prepare(array) for name, array in tensors.items()}
        # Of what cannot be saved safetensors tells by a RuntimeError too.
        with _safetensors_errors(RuntimeError):
            save_file(tensors, filename, metadata)

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


_MAKERS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("safetensors", "safe_open"): _safe_open,
    ("safetensors.torch", "load_file"): functools.partial(_load, "torch"),
    ("safetensors.numpy", "load_file"): functools.partial(_load, "numpy"),
    ("safetensors.flax", "load_file"): _load_flax,
    ("safetensors.torch", "save_file"): _save,
    ("safetensors.numpy", "save_file"): _save_numpy,
    ("safetensors.flax", "save_file"): _save,
}
