"""Reads and writes numpy's files, ``.npy`` and ``.npz``, to and from arrays on any device.

>>> import forebay, numpy, tempfile
>>> path = tempfile.mkdtemp() + "/a.npy"
>>> forebay.write_npy(path, numpy.arange(12, dtype="int32").reshape(3, 4))
>>> forebay.read_npy(path, index=(slice(None), 1))  # Only the bytes of that column are read.
array([1, 5, 9], dtype=int32)

The files are numpy's own: ``numpy.load`` reads files written here, and files that ``numpy.save`` and ``numpy.savez`` wrote
is read here. Arrays of Python objects are refused, since to read them is to run code out of the file.

``framework`` says whose arrays come back, ``device`` where they lie. Without ``framework`` they are numpy's on the host
and forebay's own (:class:`~forebay.Array`) on a GPU. Without ``device`` they lie on GPU 0 where the named framework has
one, and on the host otherwise.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _forebay, frameworks
from ._kinds import NPY, other_kind
from ._npy_types import DESCR_OF, dtype_of_descr, hint_of_descr, numpy_dtype_of_descr, transposed
from ._paths import Known, Watch, open_known, path_text
from .errors import BusyError, Error, InvalidInputError, UnsupportedError
from .frameworks import CPU, Described, Device, Framework, NotContiguousError, _dtypes
from .lazy import Reader, TensorSlice
from .loading import Entry
from .slices import IndexOutOfBoundsError, select

if TYPE_CHECKING:
    from ._forebay import File
    from .npz import NpzFile

__all__ = ["NpyArray", "NpzFile", "open_npy", "open_npz", "read_npy", "read_npz", "write_npy", "write_npz"]

_Path = str | os.PathLike[str]


def read_npy(
    path: _Path, device: object = None, framework: str | None = None, index: Any = None, *, dtype: str | None = None
) -> Any:
    """Reads an array, or a part of it, from a ``.npy`` file.

    Args:
        path: of the file.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, a GPU's number or the framework's own device object.
        framework: ``"torch"``, ``"jax"``, ``"numpy"``, ``"cupy"`` or ``"native"``.
        index: the part to read, as in ``array[index]``; see :meth:`NpyArray.__getitem__`. ``None`` reads all.
        dtype: what the elements are where the file only says how wide they are: numpy has no bfloat16 and no 8-bit
            floats, and files hold them as ``V2`` and ``V1``. ``"bfloat16"`` or ``"BF16"``, for example, or any other
            type of ml_dtypes.

    Returns:
        A new array of the shape that ``array[index]`` has. Arrays stored in Fortran order come back with that order,
        but jax, which has none, turns them on its device.

    Raises:
        InvalidInputError: this is no ``.npy`` file, or it is shorter than its header says.
        UnsupportedError: it holds Python objects or structures, or the framework has no such dtype or order.
        NotFoundError, PermissionDeniedError, …: it cannot be opened.
        BusyError: it was changed in place meanwhile.
    """
    makers = _settle_on(device, framework)
    with _forebay.open(path_text(path)) as file, Watch(file):
        return NpyArray(file, 0, None, *makers, dtype)[... if index is None else index]


def open_npy(path: _Path, device: object = None, framework: str | None = None, *, dtype: str | None = None) -> NpyArray:
    """Opens a ``.npy`` file without reading its data: index what comes back to read a part. Arguments and errors as for
    :func:`read_npy`; the bytes are those of the file at that moment, also if another process writes it meanwhile. One that is
    replaced stays open; one that becomes another array in place, of other shape or dtype, is a :class:`BusyError`. A type
    that the framework lacks is an error when it is indexed.
    """
    makers = _settle_on(device, framework)
    return NpyArray(_forebay.open(path_text(path)), 0, None, *makers, dtype)


def write_npy(path: _Path, array: Any, *, durable: bool = True) -> None:
    """Writes an array to a ``.npy`` file, which appears, or replaces another, once it is whole.

    Args:
        path: of the file. Nothing is added to the name.
        array: of torch, jax, numpy, cupy or forebay, on a GPU or the host, contiguous in C or in Fortran order.
            bfloat16 and 8-bit floats are written as ``V2`` and ``V1``, as numpy does with ml_dtypes' types: give ``dtype`` to
            :func:`read_npy` to read them again.
        durable: data and name are on the disk on return.

    Raises:
        InvalidInputError: it is no array, or not contiguous.
        UnsupportedError: it holds Python objects, or elements of less than a byte.
        NoSpaceError, PermissionDeniedError, …: it cannot be written; what was there before is still there.
    """
    stored = describe(array, "array")
    with _forebay.Pending(path_text(path, True)) as pending:
        pending.file._make_room(len(stored.header) + stored.nbytes)
        pending.file.write_from(stored.header, 0)
        if stored.nbytes:
            piece = (stored.address, stored.nbytes, len(stored.header))
            pending.file._submit(True, [piece], stored.keep).result()
        pending.commit(durable)


def open_npz(path: _Path, device: object = None, framework: str | None = None) -> NpzFile:
    """Opens a ``.npz`` file: a mapping from names to arrays, each of which is read when it is looked up. Arguments and
    errors as for :func:`read_npz`.
    """
    from .npz import NpzFile

    makers = _settle_on(device, framework)
    return NpzFile(_forebay.open(path_text(path)), *makers)


def read_npz(
    path: _Path, device: object = None, framework: str | None = None, names: Sequence[str] | None = None
) -> dict[str, Any]:
    """Reads the arrays of a ``.npz`` file.

    What ``numpy.savez`` and :func:`write_npz` wrote goes straight to the device. What ``numpy.savez_compressed`` wrote
    is first decompressed by the CPU into host memory, one array after the other, and its CRC-32 compared.

    Args:
        path: of the file.
        device: as for :func:`read_npy`.
        framework: as for :func:`read_npy`.
        names: of the arrays to read, without ``.npy``; default: all.

    Returns:
        The arrays by name, in the order of the file or of ``names``. Members that are no arrays are ``bytes``, as numpy
        has them.

    Raises:
        InvalidInputError: there is no array of a name, this is no ``.npz`` file, or it lies about what is in it.
        IntegrityError: the decompressed bytes have another size or CRC-32 than the file records.
        UnsupportedError: an array of Python objects, or compressed in another way than numpy does, or encrypted.
        BusyError: the file was changed in place meanwhile.
    """
    with open_npz(path, device, framework) as file:
        return file.read(names)


def write_npz(path: _Path, arrays: Any, *, durable: bool = True) -> None:
    """Writes arrays to a ``.npz`` file, not compressed, which appears, or replaces another, once it is whole.

    The format wants a CRC-32 of each array, which the CPU computes (of what lies on a GPU, from the file that was just
    written): :func:`write_npy` and :func:`forebay.save_file` are faster.

    Args:
        path: of the file. Nothing is added to the name.
        arrays: a mapping of names to arrays as for :func:`write_npy`.
        durable: data and name are on the disk on return.

    Raises:
        InvalidInputError: something is no array or not contiguous, or a name cannot be one in a ``.npz`` file.
        NoSpaceError, PermissionDeniedError, …: it cannot be written; what was there before is still there.
    """
    from .npz import write_members

    write_members(path_text(path, True), arrays, durable)


class NpyArray:
    """An array in a file that has not been read: index it to read the part that you need.

    Made by :func:`open_npy`. It can be pickled and so sent to other processes, which open the file again by its path: a file
    that was replaced or changed since is a :class:`BusyError` there.
    """

    def __init__(
        self,
        file: File,
        offset: int,
        size: int | None,
        framework: Framework,
        device: Device,
        dtype: str | None,
        member: Archived | None = None,
    ) -> None:
        """Reads the header at ``offset`` of the file; ``size`` bytes from there on belong to the array."""
        self.path = path = file.path if member is None else member.archive.path
        self._file = file
        self._framework, self._device = framework, device
        self._dtype_asked = dtype
        self._member = member
        self._watch = _HeaderWatch(file) if member is None else member.watch
        with_name: dict[str, Any] = {"path": path} if member is None else {"path": path, "member": member.name}
        try:
            header = _forebay.read_npy_header(file, offset, size)
        except Error as error:
            raise _refusal(error, file, member) from None
        descr, self.fortran_order, shape, self._start = header
        if isinstance(self._watch, _HeaderWatch):
            self._watch.header = header
        self.shape: tuple[int, ...] = tuple(shape)
        self._named = path if member is None else f"{path}/{member.name}"
        self._stored: _Layout | UnsupportedError
        try:
            self._stored = _layout(descr, self.shape, self.fortran_order, framework, dtype, with_name)
        except UnsupportedError as error:
            # An array of a dtype that the framework lacks still has a shape.
            self._stored = error

    @property
    def _layout(self) -> _Layout:
        if isinstance(self._stored, UnsupportedError):
            raise self._stored.about()
        return self._stored

    @property
    def dtype(self) -> Any:
        """The framework's dtype of the elements; for forebay's own arrays safetensors' name of it."""
        raw = self._layout.raw
        return self._framework.dtype(self._layout.dtype) if raw is None else raw

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the whole array."""
        return self._layout.nbytes

    @property
    def device(self) -> str:
        """The device of the arrays: ``"cpu"`` or ``"cuda:0"``."""
        return str(self._device)

    def __getitem__(self, index: Any) -> Any:
        """Reads a part, as an array of its own.

        Numbers, slices with positive steps, ``...`` and ``None`` read only the bytes that they select, in one batch
        however many runs these are. So does a list or a one-dimensional array of row numbers as the only index, unless
        the array is stored in Fortran order. Anything else that the framework takes as an index reads the whole array
        first.

        Raises:
            IndexOutOfBoundsError: an :class:`IndexError`.
            InvalidInputError: a step that is not positive, or the file was closed.
            BusyError: the file holds another array by now.
        """
        self._check_open()
        if index is None:
            index = (None,)
        selection = select(index, self.shape)
        if selection is None:
            rows = None if self._turned or not self.shape else _row_numbers(index)
            return self._rows(rows) if rows is not None else self._framework.index(self[...], index)
        if not self._turned and self._layout.raw is None:
            return self._whole()[index]
        ranges = [slice(*part) for part in selection.ranges]
        if self._turned:
            ranges.reverse()
        if self._layout.raw is not None:
            ranges.append(slice(None))
        return self.finish(self._whole()[tuple(ranges)], selection.shape)

    def _whole(self) -> TensorSlice:
        return TensorSlice(self._reader(), self.entry)

    def _reader(self) -> Reader:
        return Reader(self._file, self._framework, self._device, self._watch)

    @property
    def _turned(self) -> bool:
        """Whether the file's order differs from C order."""
        return self.fortran_order and len(self.shape) > 1

    def _rows(self, rows: list[int]) -> Any:
        count = self.shape[0]
        outside = [row for row in rows if not -count <= row < count]
        if outside:
            raise IndexOutOfBoundsError(f"index {outside[0]} is out of bounds for dimension 0 with size {count}")
        stored = self._layout.shape
        row = self.nbytes // count if count else 0
        runs = [(number % count * row, row) for number in rows] if row else []
        read = self._reader().read_runs((len(rows), *stored[1:]), self.entry, runs)
        return self.finish(read, (len(rows), *self.shape[1:]))

    def finish(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Makes the bytes read, in the order of the file, an array of this shape."""
        if self._layout.raw is not None:
            array = array.view(self._layout.raw)
        if not self._turned:
            return array if tuple(array.shape) == shape else self._framework.reshape(array, shape)
        return transposed(self._framework, self._framework.reshape(array, shape[::-1]))

    @property
    def entry(self) -> Entry:
        """How the whole array lies in its file, for a batch of several."""
        return (self._named, self._layout.dtype, self._layout.shape, self._start, self.nbytes)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without dimensions has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy

        if copy is False:
            raise ValueError("an array in a file cannot be had without a copy")
        if self._device != CPU:
            raise TypeError(f"arrays go to {self._device}: open it with device='cpu' for numpy")
        return numpy.asarray(self[...], dtype=dtype)

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()

    def _check_open(self) -> None:
        if self._file.closed:
            raise InvalidInputError("the file is closed", hints=["read inside of the with block"], path=self.path)

    def __enter__(self) -> NpyArray:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_open()
        if self._member is not None:
            known, name = self._member.archive, self._member.name
        else:
            with self._watch:
                known, name = Known(self._file), None
        return _again, (known, name, str(self._device), self._framework.name, self._dtype_asked)

    def __repr__(self) -> str:
        order = ", Fortran order" if self.fortran_order else ""
        dtype = "unknown dtype" if isinstance(self._stored, UnsupportedError) else self.dtype
        return f"<forebay.npy.NpyArray: {list(self.shape)} {dtype}{order} in {self._named!r}>"


def _again(known: Known, member: str | None, device: str, framework: str, dtype: str | None) -> NpyArray:
    makers = _settle_on(device, framework)
    file = open_known(known)
    if member is None:
        return NpyArray(file, 0, None, *makers, dtype)
    from .npz import NpzFile

    return NpzFile(file, *makers).open(member, dtype=dtype)


class Archived(NamedTuple):
    """An array in an archive: which archive, what notices that it was changed, and the array's name."""

    archive: Known
    watch: Watch
    name: str


class _HeaderWatch(Watch):
    """Notices that a file became another array. Its elements may change: another program fills it."""

    __slots__ = ("header",)

    def __init__(self, file: File) -> None:
        super().__init__(file)
        self.header: Any = None

    def check(self) -> None:
        try:
            super().check()
        except BusyError:
            seen = Watch(self._file)
            try:
                header = _forebay.read_npy_header(self._file)
            except (InvalidInputError, UnsupportedError, EOFError):
                header = None
            if header != self.header:
                raise
            self._before = seen._before


class _Layout(NamedTuple):
    """How an array lies in a file, said in C order.

    Attributes:
        dtype: safetensors' name of the stored type; ``"U8"`` where only numpy knows the elements.
        shape: turned around for Fortran order; with an element's bytes as its last dimension where ``raw`` is given.
        nbytes: of the whole.
        raw: numpy's dtype of the elements that are read as bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    raw: Any


def _layout(
    descr: str,
    shape: tuple[int, ...],
    fortran_order: bool,
    framework: Framework,
    dtype: str | None,
    facts: dict[str, Any],
) -> _Layout:
    stored = shape[::-1] if fortran_order else shape
    name = dtype_of_descr(descr, dtype)
    if name is not None and framework.dtype(name) is not None:
        if fortran_order and len(shape) > 1 and framework.name == "native":
            raise UnsupportedError(
                "the array is stored in Fortran order, which forebay's own arrays do not have",
                hints=['framework="torch", "jax", "numpy" or "cupy"'],
                **facts,
            )
        return _Layout(name, stored, math.prod(shape) * _forebay.dtype_size(name) // 8, None)
    if framework.name != "numpy":
        hints = framework.dtype_hints(name) if name else hint_of_descr(descr)
        hints = hints or ['framework="numpy" and device="cpu", then convert it']
        raise UnsupportedError(f"{framework.name} has no dtype for {descr}", hints=hints, **facts)
    raw = numpy_dtype_of_descr(descr if name is None else DESCR_OF[name], facts)
    if raw.itemsize == 0:
        raise UnsupportedError("the elements have no bytes", hints=["numpy.load reads it"], **facts)
    return _Layout("U8", (*stored, raw.itemsize), math.prod(shape) * raw.itemsize, raw)


def _refusal(error: Error, file: File, member: Archived | None) -> Error:
    """The error of a header, about the file or the member that it is of."""
    if member is None:
        return (isinstance(error, InvalidInputError) and other_kind(file, NPY)) or error
    told = error.about(member=member.name)
    if not isinstance(error, UnsupportedError) and not member.name.endswith(".npy"):
        told.add_hint(f"where it is no array, archive[{member.name!r}] gives its bytes")
    return told


def _row_numbers(index: Any) -> list[int] | None:
    """The row numbers that an index of one list or one-dimensional array holds; ``None`` for any other index."""
    if not isinstance(index, (list, range)):
        if len(getattr(index, "shape", ())) != 1 or not hasattr(index, "tolist"):
            return None
        index = index.tolist()
    rows = list(index)
    return rows if all(type(row) is int for row in rows) else None


class Stored(NamedTuple):
    """An array as the bytes of a ``.npy`` file: the header, then ``nbytes`` at ``address`` on ``device``, which
    ``keep`` owns."""

    header: bytes
    address: int
    nbytes: int
    device: Device
    keep: Any


def describe(array: Any, name: str) -> Stored:
    """An array's bytes to write; the work queued for it on its framework's current stream is done.

    Raises:
        InvalidInputError: it is no array, or not contiguous; ``name`` is in the message.
        UnsupportedError: a dtype that files cannot have.
    """
    framework = frameworks.of_array(array, name)
    if framework.name == "numpy":
        return _describe_numpy(array, name)
    found, fortran_order = _describe_either(framework, array, name)
    descr = DESCR_OF.get(found.dtype)
    if descr is None:
        raise UnsupportedError(
            f".npy files cannot hold {found.dtype}, whose elements share bytes", hints=["save_file can"], tensor=name
        )
    frameworks.settle(framework, [found.device])
    header = _forebay.npy_header(descr, fortran_order, tuple(array.shape))
    return Stored(header, found.address, found.nbytes, found.device, found.keep)


def _describe_either(framework: Framework, array: Any, name: str) -> tuple[Described, bool]:
    """An array as bytes in C order or else in Fortran order, and whether it is that."""
    try:
        return framework.describe(array, name), False
    except NotContiguousError:
        if len(array.shape) < 2:
            raise
        try:
            return framework.describe(transposed(framework, array), name), True
        except NotContiguousError:
            pass
        # Of the two reasons the first is about the array as the caller knows it.
        raise


def _describe_numpy(array: Any, name: str) -> Stored:
    dtype = array.dtype
    if dtype.hasobject or dtype.names is not None or dtype.itemsize == 0:
        what = "Python objects" if dtype.hasobject else "structures" if dtype.names is not None else "nothing"
        raise UnsupportedError(
            f"an array of {what} cannot be written",
            hints=['array.astype("float64"), or an array for each field'],
            tensor=name,
            dtype=dtype,
        )
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise InvalidInputError("the array is not contiguous", hints=["numpy.ascontiguousarray(array)"], tensor=name)
    # Types of ml_dtypes have no name that numpy could read again.
    extra = _dtypes.NAMES.get(dtype.name) if dtype.isbuiltin == 2 else None
    descr = dtype.str if extra is None else DESCR_OF[extra]
    header = _forebay.npy_header(descr, not array.flags.c_contiguous, array.shape)
    return Stored(header, array.__array_interface__["data"][0], array.nbytes, CPU, array)


def _settle_on(device: object, framework: str | None) -> tuple[Framework, Device]:
    """Whose arrays are made, and where."""
    if framework is None:
        native = frameworks.get("native")
        place = CPU if device is None else native.parse_device(device)
        return (frameworks.get("numpy") if place == CPU else native), place
    chosen = frameworks.get(framework)
    return chosen, chosen.default_device() if device is None else chosen.parse_device(device)


def __getattr__(name: str) -> object:
    # Its module needs this one.
    if name == "NpzFile":
        from .npz import NpzFile

        return NpzFile
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
