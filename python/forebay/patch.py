"""Puts forebay in the place of safetensors, in programs that cannot be changed.

>>> import forebay
>>> forebay.patch_safetensors()  # doctest: +SKIP
>>> model = transformers.AutoModel.from_pretrained("./model")  # doctest: +SKIP

``FOREBAY_PATCH=safetensors`` in the environment does the same in every Python process that has forebay installed. The
logger ``forebay`` has a line for each replaced function, for each call that goes to safetensors all the same, and for each
refusal.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import threading
import warnings
from importlib.abc import Loader as ImportLoader
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import Any

from ._locations import append

__all__ = ["Patch", "patch_safetensors", "patched", "unpatch_safetensors"]

#: Names what children are to be patched with, and what a process is patched with when it starts.
VARIABLE = "FOREBAY_PATCH"
#: A file to which each process that was patched adds a line: for `forebay run`.
SEEN_VARIABLE = "FOREBAY_PATCH_SEEN"
#: The only patch that there is.
NAME = "safetensors"
#: Modules that have replacements: `_stand_ins.MAKERS` has them by name. It is imported with the first of them.
_TARGETS = ("safetensors", "safetensors.torch", "safetensors.numpy", "safetensors.flax", "multiprocessing.spawn")
#: These keep the originals: they are where those come from.
_LEFT_ALONE = (__name__, "forebay._stand_ins", "safetensors._safetensors_rust")
_log = logging.getLogger("forebay")
_lock = threading.RLock()
#: (original, replacement) while they are in place.
_pairs: list[tuple[Any, Any]] = []
#: Names of the replaced functions.
_replaced: list[str] = []
#: Whether the environment's names were looked at.
_has_started = False
#: The variable's value before it was set for children.
_variable_before: str | None = None


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
    """Makes ``safetensors.safe_open`` and the ``load``, ``load_file`` and ``save_file`` of ``safetensors.torch``,
    ``.numpy`` and ``.flax`` (and with them ``load_model`` and ``save_model``) use forebay, for the whole process and the
    processes that it starts from then on.

    The order of imports does not matter: modules that have already imported these names get the new ones, and so do later imports. What forebay cannot do (other frameworks, other devices) goes to safetensors as before,
    and the logger ``forebay`` says so. Calling it twice is calling it once. Where safetensors is not installed there is
    nothing to change: a warning says so.

    Children of ``multiprocessing`` are patched whatever their start method; other Python processes by the variable
    ``FOREBAY_PATCH``, which is set for them, where forebay is installed from its wheel.

    Returns:
        A context manager that takes it back; to be ignored for a patch that stays.

    >>> with forebay.patch_safetensors():  # doctest: +SKIP
    ...     model = transformers.AutoModel.from_pretrained("./model")
    """
    if importlib.util.find_spec("safetensors") is None:
        text = "safetensors is not installed: patch_safetensors() changes nothing (pip install safetensors)"
        warnings.warn(text, stacklevel=2)
    return Patch(_patch())


def unpatch_safetensors() -> None:
    """Takes :func:`patch_safetensors` back, everywhere in this process, and for those that it starts from then on."""
    global _variable_before
    with _lock:
        if _finder not in sys.meta_path:
            return
        sys.meta_path.remove(_finder)
        _swap([(new, old) for old, new in _pairs])
        _pairs.clear()
        _replaced.clear()
        if _variable_before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = _variable_before
        _variable_before = None
    _log.info("safetensors: its own functions are back")


def patched() -> dict[str, list[str]]:
    """The patched libraries of this process.

    Returns:
        By patch (``"safetensors"`` is the only one) the functions that are forebay's now: those of modules that the
        program has imported. Empty without a patch.

    >>> with forebay.patch_safetensors():  # doctest: +SKIP
    ...     forebay.patched()
    {'safetensors': ['safetensors.safe_open']}
    """
    with _lock:
        return {NAME: sorted(_replaced)} if _finder in sys.meta_path else {}


def patch_child() -> None:
    """Patches a process that a patched one has started."""
    _patch()


def patch_at_start() -> None:
    """Run by the wheel's ``forebay-patch.pth`` in a process that starts with ``FOREBAY_PATCH``: twice in a virtual environment
    of Python 3.11.
    """
    global _has_started
    if _has_started:
        return
    _has_started = True
    names = [name for name in os.environ.get(VARIABLE, "").replace(" ", "").split(",") if name]
    unknown = [name for name in names if name != NAME]
    if unknown:
        print(
            f"forebay: {VARIABLE}={','.join(unknown)}: there is no such patch\nhint: {VARIABLE}={NAME}", file=sys.stderr
        )
    if NAME in names:
        _patch()


def _patch() -> bool:
    """Puts the patch in place; whether it was not there."""
    global _variable_before
    with _lock:
        if _finder in sys.meta_path:
            return False
        sys.meta_path.insert(0, _finder)
        _variable_before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = NAME
        for name in _TARGETS:
            module = sys.modules.get(name)
            if module is not None:
                _replace(module)
        _swap(_pairs)
        return True


def _replace(module: ModuleType) -> None:
    """Puts replacements into a module."""
    from ._stand_ins import MAKERS

    new = []
    for attribute, make in MAKERS[module.__name__].items():
        original = getattr(module, attribute, None)
        if original is None or any(original is new for _, new in _pairs):
            continue
        replacement = make(original)
        _pairs.append((original, replacement))
        setattr(module, attribute, replacement)
        new.append(f"{module.__name__}.{attribute}")
    if module.__name__.startswith(NAME) and new:
        if not _replaced:
            _tell_run()
        _replaced.extend(new)
        _log.info("%s: forebay's now", ", ".join(new))


def _tell_run() -> None:
    """Once a process: that something was replaced in it."""
    path = os.environ.get(SEEN_VARIABLE)
    if path:
        try:
            append(path, f"{os.getpid()}\n")
        except OSError as error:
            _log.warning("cannot tell `forebay run` of the patch: %s", error)


def _swap(pairs: list[tuple[Any, Any]]) -> None:
    """In every module: whatever *is* the first of a pair becomes the second."""
    by_id = {id(old): new for old, new in pairs}
    for module in list(sys.modules.values()):
        if not isinstance(module, ModuleType) or module.__name__ in _LEFT_ALONE:
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
