#!/usr/bin/env python3
"""fastsafetensors, as vLLM and others load models: tensors of a file by its cuFile path.

    forebay run -- python3 fastsafetensors_use.py

Needs a GPU and PyTorch. Version 0.5 uses cuFile only where /dev/nvidia-fs0 exists: as root this script makes an empty
file of that name for its own time, and says so; otherwise it skips.
"""

import json
import os

import checks
from checks import Skip, equal, folder

GATE = "/dev/nvidia-fs0"
torch = fastsafetensors = None
made_gate = False


def start():
    global torch, fastsafetensors
    torch = checks.need("torch")
    if not torch.cuda.is_available():
        raise Skip("PyTorch sees no GPU")
    fastsafetensors = checks.need("fastsafetensors", ": pip install fastsafetensors")
    open_gate()
    print(f"version {fastsafetensors.__version__}")
    print(f"torch {torch.__version__}")


def open_gate():
    global made_gate
    if os.path.exists(GATE):
        return
    try:
        os.close(os.open(GATE, os.O_CREAT | os.O_EXCL, 0o644))
    except OSError as error:
        raise Skip(f"without {GATE} it does not use cuFile, and none can be made ({error})") from error
    made_gate = True
    print(f"note: made an empty {GATE} for the time of this script")


def close_gate():
    if made_gate:
        os.unlink(GATE)


# In the order of files as they are written: larger elements first, so that each tensor is aligned.
TENSORS = {
    "one": ((1,), "int64"),
    "embedding": ((1000, 129), "float32"),
    "large": ((2048, 2049), "float32"),
    "half": ((77, 33), "float16"),
    "brain": ((513, 511), "bfloat16"),
    "bytes": ((12345,), "uint8"),
}
NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "uint8": "U8", "int64": "I64"}


def write_file(path, seed, header_to=8):
    """A safetensors file without any library; the header is padded to a multiple of `header_to`. Gives its tensors."""
    generator = torch.Generator().manual_seed(seed)
    header, parts, tensors, end = {}, [], {}, 0
    for name, (shape, kind) in TENSORS.items():
        if kind in ("uint8", "int64"):
            tensor = torch.randint(0, 200, shape, generator=generator).to(getattr(torch, kind))
        else:
            tensor = torch.randn(shape, generator=generator).to(getattr(torch, kind))
        data = bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy())
        name = f"{name}.{seed}"
        header[name] = {"dtype": NAMES[kind], "shape": list(shape), "data_offsets": [end, end + len(data)]}
        tensors[name] = tensor
        parts.append(data)
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % header_to)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"".join(parts))
    return tensors


def load(paths, **options):
    loader = fastsafetensors.SafeTensorsFileLoader(None, "cuda:0", nogds=False, **options)
    loader.add_filenames({0: paths})
    buffers = loader.copy_files_to_device()
    found = {name: buffers.get_tensor(name).clone() for name in loader.get_keys()}
    torch.cuda.synchronize()
    buffers.close()
    loader.close()
    return found


def compare(found, wanted):
    equal(sorted(found), sorted(wanted), "names")
    for name, tensor in wanted.items():
        equal(found[name].device.type, "cuda", f"device of {name}")
        equal(torch.equal(found[name].cpu(), tensor), True, f"values of {name}")


def a_file_is_loaded():
    with folder() as here:
        for header_to in (8, 512):
            path = os.path.join(here, f"model-{header_to}.safetensors")
            wanted = write_file(path, 1, header_to)
            compare(load([path]), wanted)


def several_files_are_loaded_by_threads():
    with folder() as here:
        wanted, paths = {}, []
        for seed in range(5):
            paths.append(os.path.join(here, f"model-{seed}.safetensors"))
            wanted.update(write_file(paths[-1], seed))
        compare(load(paths, max_threads=4), wanted)


def it_went_by_this_libcufile():
    checks.check_that_it_is_ours()
    counted = checks.Counted()
    with folder() as here:
        path = os.path.join(here, "model.safetensors")
        wanted = write_file(path, 3)
        before = counted.bytes()[0]
        compare(load([path]), wanted)
        got = counted.bytes()[0] - before
        payload = sum(tensor.numel() * tensor.element_size() for tensor in wanted.values())
        equal(got >= payload, True, f"{got} bytes counted for a payload of {payload}")


CHECKS = [a_file_is_loaded, several_files_are_loaded_by_threads, it_went_by_this_libcufile]

if __name__ == "__main__":
    try:
        checks.main(CHECKS, start)
    finally:
        close_gate()
