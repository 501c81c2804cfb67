#!/usr/bin/env python3
"""PyTorch's `torch.cuda.gds`, which is linked with libcufile.so.0 and opens it by its first use.

    forebay run -- python3 torch_gds.py

Needs a GPU and a PyTorch built with cuFile (2.7 or later).
"""

import os

import checks
from checks import NotRun, Skip, equal, folder

MIB = 1 << 20
torch = None


def start():
    global torch
    torch = checks.need("torch")
    if not torch.cuda.is_available():
        raise Skip("PyTorch sees no GPU")
    if not hasattr(torch.cuda, "gds") or not hasattr(torch._C, "_gds_register_handle"):
        raise Skip(f"this PyTorch ({torch.__version__}) is built without cuFile")
    torch.cuda.init()
    checks.check_that_it_is_ours()
    print(f"version {torch.__version__}")
    print(f"{checks.mapped_library()[0]}, {torch.cuda.get_device_name()}")


def tensor_of(length, seed=0):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(0, 256, (length,), dtype=torch.uint8, device="cuda", generator=generator)


def storages_are_saved_and_loaded():
    """Sizes and offsets of all kinds; the file's bytes are compared by plain reads."""
    sizes = [1, 511, 4096, 4097, MIB, 16 * MIB + 3]
    with folder() as here:
        path = os.path.join(here, "storages")
        for length in sizes:
            for offset in (0, 1, 4096, MIB - 1):
                what = f"{length} bytes at {offset}"
                saved, loaded = tensor_of(length, length), torch.zeros(length, dtype=torch.uint8, device="cuda")
                # PyTorch does not wait for what is under way on the GPU.
                torch.cuda.synchronize()
                file = torch.cuda.gds.GdsFile(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC)
                file.save_storage(saved.untyped_storage(), offset)
                with open(path, "rb") as plain:
                    plain.seek(offset)
                    equal(plain.read() == bytes(saved.cpu().numpy()), True, f"the file's bytes: {what}")
                file.load_storage(loaded.untyped_storage(), offset)
                equal(torch.equal(saved, loaded), True, f"bytes: {what}")
                file.deregister_handle()


def checkpoints_of_several_tensors():
    shapes = {"weight": (1023, 1025), "bias": (1025,), "scale": ()}
    with folder() as here:
        tensors = {name: torch.randn(shape, device="cuda") for name, shape in shapes.items()}
        torch.cuda.synchronize()
        file = torch.cuda.gds.GdsFile(os.path.join(here, "checkpoint"), os.O_CREAT | os.O_RDWR)
        places, end = {}, 0
        for name, tensor in tensors.items():
            places[name] = end
            file.save_storage(tensor.untyped_storage(), end)
            end += tensor.untyped_storage().nbytes()
        for name, tensor in tensors.items():
            loaded = torch.full_like(tensor, -1)
            torch.cuda.synchronize()
            file.load_storage(loaded.untyped_storage(), places[name])
            equal(torch.equal(loaded, tensor), True, name)


def buffers_are_registered():
    with folder() as here:
        saved = tensor_of(4 * MIB)
        torch.cuda.synchronize()
        storage = saved.untyped_storage()
        torch.cuda.gds.gds_register_buffer(storage)
        file = torch.cuda.gds.GdsFile(os.path.join(here, "file"), os.O_CREAT | os.O_RDWR)
        file.save_storage(storage)
        wanted = saved.clone()
        saved.zero_()
        torch.cuda.synchronize()
        file.load_storage(storage)
        equal(torch.equal(saved, wanted), True, "bytes")
        torch.cuda.gds.gds_deregister_buffer(storage)


def memory_of_expandable_segments():
    """PyTorch maps such memory in several parts that follow each other."""
    setting = getattr(torch.cuda.memory, "_set_allocator_settings", None)
    if setting is None:
        raise NotRun("this PyTorch cannot switch its allocator")
    torch.cuda.empty_cache()
    setting("expandable_segments:True")
    try:
        with folder() as here:
            saved, loaded = tensor_of(64 * MIB + 5), torch.zeros(64 * MIB + 5, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
            file = torch.cuda.gds.GdsFile(os.path.join(here, "file"), os.O_CREAT | os.O_RDWR)
            file.save_storage(saved.untyped_storage())
            file.load_storage(loaded.untyped_storage())
            equal(torch.equal(saved, loaded), True, "bytes")
            del saved, loaded
    finally:
        torch.cuda.empty_cache()
        setting("expandable_segments:False")


def a_handle_can_be_given_back_once():
    with folder() as here:
        file = torch.cuda.gds.GdsFile(os.path.join(here, "file"), os.O_CREAT | os.O_RDWR)
        file.deregister_handle()
        storage = tensor_of(4096).untyped_storage()
        for call in (lambda: file.save_storage(storage), lambda: file.load_storage(storage), file.deregister_handle):
            try:
                call()
            except (AssertionError, RuntimeError):
                continue
            raise AssertionError("a call on a file that is not registered went well")


def libcufile_counted_it():
    counted = checks.Counted()
    with folder() as here:
        saved = tensor_of(3 * MIB + 1)
        torch.cuda.synchronize()
        file = torch.cuda.gds.GdsFile(os.path.join(here, "file"), os.O_CREAT | os.O_RDWR)
        length = saved.untyped_storage().nbytes()
        counted.expect(lambda: file.save_storage(saved.untyped_storage()), written=length)
        counted.expect(lambda: file.load_storage(saved.untyped_storage()), read=length)


CHECKS = [
    storages_are_saved_and_loaded,
    checkpoints_of_several_tensors,
    buffers_are_registered,
    memory_of_expandable_segments,
    a_handle_can_be_given_back_once,
    libcufile_counted_it,
]

if __name__ == "__main__":
    checks.main(CHECKS, start)
