"""Writes a file whose bytes differ at every offset: pattern.py FILE BYTES [SEED]."""

import hashlib
import random
import sys

BLOCK = 1 << 20


def main() -> None:
    path, size, seed = sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "0"
    # One random block, then each with its own number at the start of every 4 KiB: fast where the CPU is emulated.
    base = random.Random(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8])).randbytes(BLOCK)
    with open(path, "wb") as out:
        for start in range(0, size, BLOCK):
            block = bytearray(base)
            for page in range(0, BLOCK, 4096):
                block[page : page + 8] = (start + page).to_bytes(8, "little")
            out.write(block[: min(BLOCK, size - start)])


main()
