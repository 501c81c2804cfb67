#!/usr/bin/env python3
"""NIXL's Python package: its backends GDS (batches) and GDS_MT (threads), files beside GPU and host memory.

    forebay run -- python3 nixl_use.py

Needs nixl-cu13 and numpy.
"""

import os
from importlib.metadata import version

import checks
import programs
from checks import equal, folder, opened, pattern
from gpu import Gpu

MIB = 1 << 20
gpu = api = None


def start():
    global gpu, api
    checks.need("numpy", ", which NIXL needs")
    libraries = programs.folder_of("nixl_cu13", "..", ".nixl_cu13.mesonpy.libs")
    programs.load_cuda_runtime()
    os.environ.setdefault("NIXL_PLUGIN_DIR", os.path.join(libraries, "plugins"))
    checks.need("nixl_cu13", ": pip install nixl-cu13")
    import nixl_cu13._api as api

    gpu = Gpu()
    print(f"version {version('nixl-cu13')}")


def _agent(backend, **parameters):
    agent = api.nixl_agent(f"consumer-{backend}", api.nixl_agent_config(backends=[]))
    agent.create_backend(backend, parameters)
    return agent


def _move(agent, backend, direction, memory, file):
    """One transfer to its end."""
    name = agent.name
    request = agent.initialize_xfer(direction, memory, file, name, backends=[backend])
    state = agent.transfer(request)
    while state == "PROC":
        state = agent.check_xfer_state(request)
    equal(state, "DONE", f"state of a {direction}")
    agent.release_xfer_handle(request)


def _there_and_back(backend, segment, kind, sizes):
    """Writes pieces of memory behind each other into a file, compares it by plain reads, reads them into other memory."""
    agent = _agent(backend)
    total = sum(sizes)
    data, is_host = pattern(total, seed=total), segment == "DRAM"
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    with folder() as here, kind(total) as source, kind(total) as target:
        path = os.path.join(here, "file")
        gpu.put(source, data, is_host)
        gpu.put(target, bytes(total), is_host)
        with opened(path, os.O_RDWR | os.O_CREAT) as descriptor:
            memory = agent.register_memory([(at, total, 0, "") for at in (source, target)], segment, backends=[backend])
            file = agent.register_memory([(0, total, descriptor, "")], "FILE", backends=[backend])
            places = agent.get_xfer_descs(
                [(at, size, descriptor) for at, size in zip(starts, sizes, strict=True)], "FILE"
            )
            for direction, base in (("WRITE", source), ("READ", target)):
                pieces = [(base + at, size, 0) for at, size in zip(starts, sizes, strict=True)]
                _move(agent, backend, direction, agent.get_xfer_descs(pieces, segment), places)
                if direction == "WRITE":
                    with open(path, "rb") as plain:
                        equal(plain.read() == data, True, "the file has the written bytes")
            equal(gpu.get(target, total, is_host) == data, True, "memory has the bytes read")
            agent.deregister_memory(memory, backends=[backend])
            agent.deregister_memory(file, backends=[backend])


def batches_of_device_memory():
    _there_and_back("GDS", "VRAM", gpu.device, [MIB] * 16)


def batches_of_pieces_of_all_sizes():
    _there_and_back("GDS", "VRAM", gpu.device, [1, 511, 4096, 4097, 65537, MIB - 1, 3 * MIB + 5])


def batches_of_host_memory():
    _there_and_back("GDS", "DRAM", gpu.host, [MIB] * 8)


def threads_with_device_memory():
    _there_and_back("GDS_MT", "VRAM", gpu.device, [MIB] * 16)


def threads_with_pieces_of_all_sizes():
    _there_and_back("GDS_MT", "VRAM", gpu.device, [1, 511, 4096, 4097, 65537, MIB - 1, 3 * MIB + 5])


def threads_with_host_memory():
    _there_and_back("GDS_MT", "DRAM", gpu.host, [MIB] * 8)


CHECKS = [
    batches_of_device_memory,
    batches_of_pieces_of_all_sizes,
    batches_of_host_memory,
    threads_with_device_memory,
    threads_with_pieces_of_all_sizes,
    threads_with_host_memory,
]

if __name__ == "__main__":
    checks.main(CHECKS, start)
