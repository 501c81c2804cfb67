"""CUDA memory and streams by the driver's own library, for programs that have no CUDA runtime.

It asks for few functions, so that the software GPU of forebay's tests (fake-cuda) has them all.
"""

import contextlib
import ctypes
import os

from checks import Skip

_POINTER = ctypes.c_uint64
_SIZE = ctypes.c_size_t
_MANAGED_GLOBAL = 1


class CudaError(Exception):
    """A driver call failed; `code` is its number."""

    def __init__(self, name, code):
        super().__init__(f"{name}: CUDA error {code}")
        self.code = code


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _AllocationProp(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    ]


class _AccessDesc(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


def _pieces(address, length):
    """Offsets and lengths that cross no boundary of 2 MiB: the software GPU copies within one mapping alone."""
    step, at = 2 << 20, 0
    while at < length:
        piece = min(step - (address + at) % step, length - at)
        yield at, piece
        at += piece


class Gpu:
    """GPU 0 with its primary context, current on this thread."""

    def __init__(self):
        name = os.environ.get("FOREBAY_LIBCUDA") or "libcuda.so.1"
        try:
            self.library = ctypes.CDLL(name)
        except OSError as error:
            raise Skip(f"no CUDA driver ({error})") from error
        self.is_software = any("fake" in os.path.basename(os.path.realpath(path)) for path in self._paths())
        try:
            self.call("cuInit", ctypes.c_uint(0))
        except CudaError as error:
            raise Skip(f"no GPU ({error})") from error
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        self.device_number = device
        self.context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self.make_current()

    def _paths(self):
        with open("/proc/self/maps") as maps:
            return {line.split(maxsplit=5)[5].strip() for line in maps if "cuda.so" in line}

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code:
            raise CudaError(name, code)

    def make_current(self):
        """For threads other than the one that made this."""
        self.call("cuCtxSetCurrent", self.context)

    def uuid(self):
        bytes16 = (ctypes.c_uint8 * 16)()
        self.call("cuDeviceGetUuid_v2", bytes16, self.device_number)
        return bytes(bytes16)

    # ---- memory: each gives an address and takes it back at the end of the block

    @contextlib.contextmanager
    def device(self, length):
        address = _POINTER()
        self.call("cuMemAlloc_v2", ctypes.byref(address), _SIZE(length))
        try:
            yield address.value
        finally:
            self.call("cuMemFree_v2", address)

    @contextlib.contextmanager
    def managed(self, length):
        address = _POINTER()
        self.call("cuMemAllocManaged", ctypes.byref(address), _SIZE(length), ctypes.c_uint(_MANAGED_GLOBAL))
        try:
            yield address.value
        finally:
            self.call("cuMemFree_v2", address)

    @contextlib.contextmanager
    def pool(self, length):
        address = _POINTER()
        self.call("cuMemAllocAsync", ctypes.byref(address), _SIZE(length), ctypes.c_void_p())
        self.wait()
        try:
            yield address.value
        finally:
            self.call("cuMemFreeAsync", address, ctypes.c_void_p())
            self.wait()

    @contextlib.contextmanager
    def pinned(self, length):
        address = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(address), _SIZE(length), ctypes.c_uint(0))
        try:
            yield address.value
        finally:
            self.call("cuMemFreeHost", address)

    @contextlib.contextmanager
    def host(self, length):
        memory = ctypes.create_string_buffer(length + 4096)
        address = ctypes.addressof(memory)
        yield address + -address % 4096
        del memory

    @contextlib.contextmanager
    def virtual(self, length):
        """cuMemCreate and cuMemMap, in two parts that follow each other."""
        place = _Location(1, self.device_number.value)
        prop = _AllocationProp(1, 0, place, None, (ctypes.c_uint8 * 8)())
        step = _SIZE()
        self.call("cuMemGetAllocationGranularity", ctypes.byref(step), ctypes.byref(prop), ctypes.c_int(0))
        part = (length // 2 + step.value) // step.value * step.value
        address, handles = _POINTER(), [ctypes.c_uint64(), ctypes.c_uint64()]
        self.call(
            "cuMemAddressReserve", ctypes.byref(address), _SIZE(2 * part), _SIZE(0), _POINTER(0), ctypes.c_uint64(0)
        )
        for index, handle in enumerate(handles):
            self.call("cuMemCreate", ctypes.byref(handle), _SIZE(part), ctypes.byref(prop), ctypes.c_uint64(0))
            at = _POINTER(address.value + index * part)
            self.call("cuMemMap", at, _SIZE(part), _SIZE(0), handle, ctypes.c_uint64(0))
            access = _AccessDesc(place, 3)
            self.call("cuMemSetAccess", at, _SIZE(part), ctypes.byref(access), _SIZE(1))
        try:
            yield address.value
        finally:
            for index, handle in enumerate(handles):
                self.call("cuMemUnmap", _POINTER(address.value + index * part), _SIZE(part))
                self.call("cuMemRelease", handle)
            self.call("cuMemAddressFree", address, _SIZE(2 * part))

    def put(self, address, data, is_host=False):
        if is_host:
            ctypes.memmove(address, data, len(data))
            return
        source = ctypes.create_string_buffer(data, len(data))
        for at, length in _pieces(address, len(data)):
            here = ctypes.c_void_p(ctypes.addressof(source) + at)
            self.call("cuMemcpyHtoDAsync_v2", _POINTER(address + at), here, _SIZE(length), ctypes.c_void_p())
        self.wait()

    def get(self, address, length, is_host=False):
        if is_host:
            return ctypes.string_at(address, length)
        target = ctypes.create_string_buffer(length)
        for at, piece in _pieces(address, length):
            here = ctypes.c_void_p(ctypes.addressof(target) + at)
            self.call("cuMemcpyDtoHAsync_v2", here, _POINTER(address + at), _SIZE(piece), ctypes.c_void_p())
        self.wait()
        return target.raw

    # ---- streams

    def wait(self, stream=None):
        self.call("cuStreamSynchronize", ctypes.c_void_p(stream))

    @contextlib.contextmanager
    def stream(self):
        """A stream that does not wait for the default one."""
        made = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(made), ctypes.c_uint(1))
        try:
            yield made.value
        finally:
            self.call("cuStreamDestroy_v2", made)
