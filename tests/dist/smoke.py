"""The installed package on a machine without a GPU or a compiler: writes and reads a model, then the command.

Where numpy is installed, its arrays too.
"""

import importlib.util
import json
import os
import struct
import tempfile

import forebay
import forebay.__main__


def try_numpy(folder: str, model: str) -> None:
    import numpy

    arrays = forebay.load_file(model, device="cpu", framework="numpy")
    assert (arrays["w"] == numpy.arange(6, dtype="f4").reshape(2, 3)).all(), arrays
    large = {"large": numpy.arange(1 << 20, dtype="f8"), "halves": numpy.ones((3, 5), "f2")}
    path = os.path.join(folder, "arrays.safetensors")
    forebay.save_file(large, path)
    for name, array in forebay.load_file(path, device="cpu", framework="numpy").items():
        assert array.dtype == large[name].dtype and (array == large[name]).all(), name
    path = os.path.join(folder, "array.npy")
    forebay.write_npy(path, large["large"])
    assert (numpy.load(path) == large["large"]).all()


def main() -> None:
    has_numpy = importlib.util.find_spec("numpy") is not None
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.safetensors")
        data = struct.pack("<6f", *range(6))
        head = json.dumps({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, len(data)]}}).encode()
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(head)) + head + data)
        tensors = forebay.load_file(path, device="cpu", framework="native")
        assert tensors["w"].shape == (2, 3), tensors["w"].shape
        assert tensors["w"].tobytes() == data

        copy = os.path.join(folder, "copy.safetensors")
        forebay.save_file(tensors, copy, metadata={"made": "by a smoke test"})
        with forebay.open(copy) as file:
            memory = forebay.empty(file.size, device="cpu")
            file.read_into(memory)
        with open(copy, "rb") as file:
            assert memory.tobytes() == file.read()
        if has_numpy:
            try_numpy(folder, copy)

        assert forebay.__main__.main(["forebay", "--version"]) == 0
        # 4 MiB in pieces of 128 KiB, as gdsio's users type it.
        line = ["gdsio", "-f", os.path.join(folder, "data"), "-d", "0", "-w", "1", "-s", "4M", "-i", "128K", "-x", "0", "-I", "1"]
        assert forebay.__main__.main(line) == 0
    print(f"forebay {forebay.__version__}: smoke test passed, {'with' if has_numpy else 'without'} numpy")


if __name__ == "__main__":
    main()
