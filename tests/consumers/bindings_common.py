"""What the checks of `cuda_bindings.py` share: the module, the GPU, registered files."""

import ctypes
import os

import checks
from checks import NotRun, equal
from gpu import Gpu

PAGE = 4096
MIB = 1 << 20
KINDS = ["device", "managed", "pool", "virtual", "pinned", "host"]
HOST = {"pinned", "host"}


class Recorder:
    """The module, remembering which functions were called."""

    def __init__(self):
        self._module = None
        self.called = set()

    def load(self):
        self._module = checks.need("cuda.bindings.cufile", ": pip install cuda-bindings")

    def __getattr__(self, name):
        if name not in dir(self._module) and is_of_cuda_12():
            raise NotRun(f"the bindings of CUDA 12 have no {name}")
        found = getattr(self._module, name)
        if is_function(name, found):
            self.called.add(name)
        return found

    def functions(self):
        return {name for name in dir(self._module) if is_function(name, getattr(self._module, name))}


def is_of_cuda_12():
    import cuda.bindings

    return int(cuda.bindings.__version__.split(".")[0]) < 13


def is_function(name, value):
    return name[0].islower() and callable(value) and not isinstance(value, type)


class Late:
    """Replaces the object that is made when the script starts."""

    _it = None

    def set(self, it):
        self._it = it

    def __getattr__(self, name):
        return getattr(self._it, name)


cufile, gpu, library = Recorder(), Late(), Late()


def start():
    checks.need("numpy", ", which cuda.bindings.cufile needs")
    cufile.load()
    gpu.set(Gpu())
    cufile.get_version()
    checks.check_that_it_is_ours()
    path = checks.mapped_library()[0]
    library.set(ctypes.CDLL(path))
    library.cuFileUseCount.restype = ctypes.c_long
    import cuda.bindings

    print(f"version {cuda.bindings.__version__}")
    print(f"{path}, {'software GPU' if gpu.is_software else 'GPU'}")


def users():
    return library.cuFileUseCount()


def close_all():
    while users():
        cufile.driver_close()


def refused(code, call, *arguments):
    """The call raises with this code; the bindings raise ValueError for one that they do not know, such as an errno."""
    try:
        got = call(*arguments)
    except cufile.cuFileError as error:
        equal(error.status, code, "code")
    except ValueError as error:
        if f"{code} is not a valid OpError" not in str(error):
            raise
    else:
        raise AssertionError(f"{got!r} instead of the refusal {code}")


def read(*arguments):
    """Bytes read. Bindings before 13.1 do not tell: there the call is made again, without them."""
    return results(cufile.read(*arguments), library.cuFileRead, arguments)


def write(*arguments):
    return results(cufile.write(*arguments), library.cuFileWrite, arguments)


def results(told, function, arguments):
    if told is not None:
        return told
    function.restype = ctypes.c_ssize_t
    kinds = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, ctypes.c_int64)
    return function(*[kind(argument) for kind, argument in zip(kinds, arguments)])


class Handle:
    """A registered file; open flags as given."""

    def __init__(self, path, flags=os.O_RDWR):
        self.descriptor = os.open(path, flags | os.O_CREAT, 0o600)
        try:
            self.number = register(self.descriptor)
        except BaseException:
            os.close(self.descriptor)
            raise

    def __enter__(self):
        return self.number

    def __exit__(self, *_):
        cufile.handle_deregister(self.number)
        os.close(self.descriptor)


def register(descriptor, kind=None):
    description = cufile.Descr()
    description.type = cufile.FileHandleType.OPAQUE_FD if kind is None else kind
    description.handle.fd = descriptor
    description.fs_ops = 0
    return cufile.handle_register(description.ptr)


def write_file(path, data):
    with open(path, "wb") as file:
        file.write(data)


def read_file(path):
    with open(path, "rb") as file:
        return file.read()


def memory(kind, length):
    return getattr(gpu, kind)(length)
