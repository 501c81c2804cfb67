"""How each peer brings a rank's part of a model into parameters that exist."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from common import Skip
from shapes import Shape


class Target(NamedTuple):
    """A parameter of a rank, and the part of the file's tensor that belongs in it."""

    shape: Shape
    parameter: Any
    start: int
    length: int

    def cut(self, tensor: Any) -> Any:
        """The rank's part of a tensor."""
        return tensor if self.shape.cut is None else tensor.narrow(self.shape.cut, self.start, self.length)

    @property
    def index(self) -> tuple[slice, ...]:
        """The same as an index."""
        if self.shape.cut is None:
            return (slice(None),) * len(self.shape.shape)
        part = slice(self.start, self.start + self.length)
        return tuple(part if at == self.shape.cut else slice(None) for at in range(len(self.shape.shape)))


#: Loads the files into the targets. Returns the bytes that it read of the files, where it knows them.
Load = Callable[[list[str], list[Target], Any], int | None]


def module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        raise Skip(f"{name} cannot be imported: {error}") from None


def forebay(group: Any, pins: bool = True) -> Load:
    weights = module("forebay.torch").weights
    opened: list[Any] = []

    def load(files: list[str], targets: list[Target], device: Any) -> int:
        if not opened:
            opened.append(weights(files))
        checkpoint = opened[0]
        before = checkpoint.stats.bytes
        with checkpoint.collect():
            for target in targets:
                target.parameter.copy_(target.cut(checkpoint[target.shape.name]))
        if pins:
            # In the background: the next load reads in place.
            checkpoint.pin()
        print(f"forebay: {checkpoint.stats}", file=sys.stderr)
        return int(checkpoint.stats.bytes - before)

    return load


def safetensors(group: Any) -> Load:
    opened = module("safetensors").safe_open

    def load(files: list[str], targets: list[Target], device: Any) -> None:
        wanted = {target.shape.name: target for target in targets}
        for path in files:
            with opened(path, framework="pt", device=str(device)) as file:
                for name in wanted.keys() & set(file.keys()):
                    wanted[name].parameter.copy_(file.get_slice(name)[wanted[name].index])

    return load


def load_file(group: Any) -> Load:
    whole = module("safetensors.torch").load_file

    def load(files: list[str], targets: list[Target], device: Any) -> None:
        wanted = {target.shape.name: target for target in targets}
        for path in files:
            for name, tensor in whole(path, device=str(device)).items():
                if name in wanted:
                    wanted[name].parameter.copy_(wanted[name].cut(tensor))

    return load


def instanttensor(group: Any, threads: int | None = None, backend: str | None = "MMAP") -> Load:
    if backend:
        os.environ["INSTANTTENSOR_BACKEND"] = backend
    opened = module("instanttensor").safe_open
    words: dict[str, Any] = {"copy": False}
    if threads is not None:
        words["concurrency"] = threads
    if group is not None:
        words["process_group"] = group

    def load(files: list[str], targets: list[Target], device: Any) -> None:
        if device.type == "cpu":
            raise Skip("instanttensor loads to CUDA devices only")
        wanted = {target.shape.name: target for target in targets}
        with opened(files, framework="pt", device=str(device), **words) as file:
            for name, tensor in file.tensors():
                if name in wanted:
                    wanted[name].parameter.copy_(wanted[name].cut(tensor))

    return load


def fastsafetensors(group: Any) -> Load:
    given = module("fastsafetensors")

    def load(files: list[str], targets: list[Target], device: Any) -> None:
        loader = given.SafeTensorsFileLoader(group or given.SingleGroup(), str(device), nogds=True)
        ranks = group.size() if group is not None else 1
        loader.add_filenames({rank: files[rank::ranks] for rank in range(ranks) if files[rank::ranks]})
        with contextlib.closing(loader), contextlib.closing(loader.copy_files_to_device()) as buffers:
            for target in targets:
                name, cut = target.shape.name, target.shape.cut
                sharded = group is not None and cut is not None
                tensor = buffers.get_sharded(name, dim=cut) if sharded else target.cut(buffers.get_tensor(name))
                target.parameter.copy_(tensor)

    return load


class Subject(NamedTuple):
    """A library, or a setting of it.

    Attributes:
        make: makes its load, with the process group where it takes one.
        has_group: whether the ranks give each other what they read.
    """

    make: Callable[[Any], Load]
    has_group: bool = False


SUBJECTS: dict[str, Subject] = {
    "forebay": Subject(forebay),
    "forebay-unpinned": Subject(lambda group: forebay(group, False)),
    "instanttensor": Subject(instanttensor),
    "instanttensor-8": Subject(lambda group: instanttensor(group, 8)),
    "instanttensor-12": Subject(lambda group: instanttensor(group, 12)),
    "instanttensor-group": Subject(instanttensor, True),
    "instanttensor-group-8": Subject(lambda group: instanttensor(group, 8), True),
    "instanttensor-group-12": Subject(lambda group: instanttensor(group, 12), True),
    "instanttensor-group-uring": Subject(lambda group: instanttensor(group, None, "URING"), True),
    "fastsafetensors": Subject(fastsafetensors),
    "fastsafetensors-group": Subject(fastsafetensors, True),
    "safetensors": Subject(safetensors),
    "load_file": Subject(load_file),
}
