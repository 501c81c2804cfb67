"""CRC-32C of two pieces from those of each: what lets a large file be checked through a small buffer."""

from __future__ import annotations

from typing import Final

# A remainder is a polynomial over GF(2) whose constant term is the highest bit.
_POLYNOMIAL: Final = 0x82F63B78
_ONE: Final = 1 << 31
_X8: Final = 1 << 23


def combine(first: int, second: int, second_bytes: int) -> int:
    """The checksum of A followed by B, from the checksum of A, that of B, and how many bytes B has."""
    return _multiply(first, _power(second_bytes)) ^ second


def _power(count: int) -> int:
    """x to the power of 8 × ``count``."""
    result, base = _ONE, _X8
    while count:
        if count & 1:
            result = _multiply(result, base)
        base = _multiply(base, base)
        count >>= 1
    return result


def _multiply(left: int, right: int) -> int:
    product = 0
    for place in range(31, -1, -1):
        if left >> place & 1:
            product ^= right
        right = right >> 1 ^ (_POLYNOMIAL if right & 1 else 0)
    return product
