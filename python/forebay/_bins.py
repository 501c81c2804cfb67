"""Models in files that ``torch.save`` wrote: one, or several with an index (``pytorch_model.bin.index.json``)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from . import _forebay, pickles
from ._refusals import check_names, missing_name
from .errors import InvalidInputError, UnsupportedError
from .progress import Progress

if TYPE_CHECKING:
    from .frameworks import Framework
    from .shards import Shard

__all__ = ["load", "written_by_torch"]


def written_by_torch(shards: list[Shard]) -> bool:
    """Whether ``torch.save`` wrote these files.

    Raises:
        InvalidInputError: it wrote some of them, but not all.
    """
    paths = [path for path, _ in shards]
    theirs = [path for path in paths if pickles.is_zip_checkpoint(path)]
    if theirs and len(theirs) < len(paths):
        raise InvalidInputError(
            "some of the files are torch.save's and some are not",
            hints=["load them one by one"],
            path=theirs[0],
            other=next(path for path in paths if path not in theirs),
        )
    return bool(theirs)


def load(
    shards: list[Shard],
    framework: Framework,
    device: object,
    *,
    dtype: Any,
    names: pickles.Names,
    verify: bool,
    progress: bool | Callable[[int, int], object] | None,
) -> Any:
    """Loads files of ``torch.save``: one as it is, several as one dictionary.

    Raises:
        UnsupportedError: for another framework than torch.
        InvalidInputError: two files have a key of the same name, or none has one that is wanted.
    """
    if framework.name != "torch":
        raise UnsupportedError(
            "torch.save wrote this file: only torch has what may be in it",
            hints=[
                'framework="torch"',
                'or save its tensors as safetensors: forebay.save_file(tensors, "….safetensors")',
            ],
            path=shards[0][0],
        )
    if len(shards) == 1 and shards[0][1] is None:
        return pickles.load(shards[0][0], device, dtype=dtype, names=names, verify=verify, progress=progress)
    if names is not None:
        check_names(names)
    loaded: dict[str, Any] = {}
    wanted = names if names is None or callable(names) else frozenset(names)
    present: set[str] = set()
    with Progress(0, progress) as told, ExitStack() as stack:
        # All of them first: a file that is replaced while others are read stays of the same model.
        files = [stack.enter_context(_forebay.open(path)) for path, _ in shards]
        rest = sum(file.size for file in files)
        for file, shard in zip(files, shards, strict=True):
            rest -= file.size
            takes = _filter(shard, wanted, present)
            part = pickles.load_open(file, device, dtype, takes, verify, told, rest)
            _add(loaded, part, shard, wanted)
    if isinstance(wanted, frozenset):
        for name in wanted - loaded.keys():
            raise missing_name(name, present)
    return loaded


def _filter(
    shard: Shard, wanted: Callable[[str], bool] | frozenset[str] | None, present: set[str]
) -> Callable[[str], bool]:
    def takes(name: str) -> bool:
        present.add(name)
        if shard[1] is not None and name not in shard[1]:
            return False
        if wanted is None:
            return True
        return name in wanted if isinstance(wanted, frozenset) else wanted(name)

    return takes


def _add(
    loaded: dict[str, Any], part: dict[str, Any], shard: Shard, wanted: Callable[[str], bool] | frozenset[str] | None
) -> None:
    twice = loaded.keys() & part.keys()
    if twice:
        raise InvalidInputError(
            "two files have a tensor of the same name",
            hints=["load them one by one"],
            tensor=min(twice),
            second=shard[0],
        )
    if wanted is None and shard[1] is not None:
        for name in shard[1] - part.keys():
            raise missing_name(name, part, path=shard[0])
    loaded.update(part)
