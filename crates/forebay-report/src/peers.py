"""Loads a file N times by one library and prints the last load as JSON: NAME FILE DEVICE cold|warm N.

kvikio reads the bytes of any file, which is open already, into one buffer; the others load a safetensors file, which they open.
Timed: from the call until every byte or tensor is in the memory of the device and the device is synchronised. `cache` in the
JSON is what the page cache had before the last load, by mincore. Exit code 3: the library, or what it needs, is not here.
"""

import contextlib
import ctypes
import importlib.util
import json
import mmap
import os
import resource
import sys
import time

name, path, device, cache, count = sys.argv[1:6]


def need(module):
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:
        print(f"{module} cannot be imported: {error}", file=sys.stderr)
        sys.exit(3)


def library():
    """The module that it imports: looked for first, since torch takes seconds to import."""
    return {"safetensors": "safetensors", "runai": "runai_model_streamer"}.get(name, name.partition("-")[0])


def gpu_only():
    if device == "cpu":
        print(f"{name} loads to GPUs only", file=sys.stderr)
        sys.exit(3)


def loader():
    if name == "forebay":
        forebay = need("forebay")
        if torch is None and device == "cpu":
            return lambda: forebay.load_file(path, framework="numpy")
        need("torch")
        return lambda: forebay.load_file(path, device=device, framework="torch")
    if name == "kvikio":
        gpu_only()
        kvikio, cupy = need("kvikio"), need("cupy")
        cupy.cuda.Device(int(device.partition(":")[2])).use()
        buffer = cupy.empty(size, cupy.uint8)
        file = kvikio.CuFile(path, "r")
        return lambda: file.read(buffer)
    need("torch")
    if name == "safetensors":
        load_file = need("safetensors.torch").load_file
        return lambda: load_file(path, device=device)
    if name == "fastsafetensors":
        fast = need("fastsafetensors")

        def load():
            with fast.fastsafe_open([path], device=device, nogds=device == "cpu") as file:
                return {key: file.get_tensor(key) for key in file.keys()}

        return load
    if name.startswith("instanttensor"):
        gpu_only()
        if name.endswith("-mmap"):
            os.environ["INSTANTTENSOR_BACKEND"] = "MMAP"
        instant = need("instanttensor")

        def load():
            with instant.safe_open(path, framework="pt", device=device) as file:
                return dict(file.tensors())

        return load
    streamer = need("runai_model_streamer").SafetensorsStreamer

    def load():
        with streamer() as file:
            file.stream_file(path, device=device)
            if device == "cpu":
                return {key: tensor.clone() for key, tensor in file.get_tensors()}
            return dict(file.get_tensors())

    return load


def synchronize():
    if device == "cpu":
        return
    if name == "kvikio":
        sys.modules["cupy"].cuda.runtime.deviceSynchronize()
    else:
        torch.cuda.synchronize()


def set_cache():
    with open(path, "rb") as file:
        if cache == "warm":
            while file.read(16 << 20):
                pass
        else:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def page_cache():
    """What part of the file it has: warm, cold, mixed; unknown where mincore does not tell."""
    if os.stat(path).st_uid != os.geteuid() and not os.access(path, os.W_OK):
        return "unknown"
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    pages = ctypes.create_string_buffer((size + mmap.PAGESIZE - 1) // mmap.PAGESIZE)
    with open(path, "rb") as file:
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    if address in (None, ctypes.c_void_p(-1).value):
        return "unknown"
    failed = libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages)
    libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))
    if failed:
        return "unknown"
    cached = 1 - pages.raw.count(0) / len(pages)
    return "warm" if cached >= 0.99 else "cold" if cached <= 0.01 else "mixed"


def mode():
    """Whether cuFile's bytes went by POSIX calls: its compatibility mode, KvikIO's own or that of NVIDIA's library."""
    told = getattr(getattr(sys.modules.get("kvikio"), "defaults", None), "is_compat_mode_preferred", None)
    if told is not None and told():
        return ", compatibility mode"
    with open("/proc/self/maps") as maps:
        found = {line.split()[-1] for line in maps if "/libcufile.so" in line}
    if os.path.exists("/proc/driver/nvidia-fs/version"):
        return ""
    for one in found:
        version = ctypes.c_int(0)
        ctypes.CDLL(one).cuFileGetVersion(ctypes.byref(version))
        with open(one, "rb") as file:
            is_forebay = b"FOREBAY_" in file.read()
        # From 1.16 on there is another way without nvidia-fs.
        if version.value < 1160 and not is_forebay:
            return ", compatibility mode"
    return ""


if importlib.util.find_spec(library()) is None:
    print(f"{library()} is not installed", file=sys.stderr)
    sys.exit(3)
torch = None
if name != "kvikio":
    with contextlib.suppress(ImportError, OSError):
        import torch
size = os.path.getsize(path)
load = loader()
if device != "cpu":
    if name != "kvikio":
        torch.zeros(1, device=device)
    synchronize()
for _ in range(int(count)):
    set_cache()
    found = page_cache()
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    tensors = load()
    synchronize()
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    assert tensors, "nothing was loaded"
    # A number of bytes, or tensors by name.
    assert name != "kvikio" or tensors == size, f"{tensors} of {size} bytes were read"
    del tensors
print(
    json.dumps(
        {
            "seconds": seconds,
            "bytes": size,
            "user_s": after.ru_utime - before.ru_utime,
            "system_s": after.ru_stime - before.ru_stime,
            "engine": name + mode(),
            "cache": found,
        }
    )
)
