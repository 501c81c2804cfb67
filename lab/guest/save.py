"""Saves the bytes of a file as one tensor: save.py BYTES PATH. What it writes depends on the bytes alone."""

import os
import sys

sys.path.insert(0, "/tmp/wheel")
import forebay


def main() -> None:
    source, path = sys.argv[1:]
    array = forebay.empty(os.path.getsize(source))
    with forebay.open(source) as file:
        file.read_into(array)
    forebay.save_file({"tensor": array}, path)


main()
