"""CRC-32Cs of pieces, joined to the one of the whole without looking at a byte."""

import functools
from typing import Final

#: CRC-32C, reflected.
_POLYNOMIAL: Final = 0x82F63B78
_ONE: Final = 0x80000000


def joined(first: int, second: int, second_size: int) -> int:
    """Return the CRC-32C of two pieces in a row from their own ones.

    The first is moved past the second: multiplied by x to the 8 x size, modulo the polynomial.
    """
    return _times(first, _power(second_size)) ^ second


@functools.lru_cache(maxsize=64)
def _power(size: int) -> int:
    """Return x to the 8 x size, modulo the polynomial; O(log size), and all parts have one size."""
    power, base, count = _ONE, _ONE >> 8, size
    while count:
        if count & 1:
            power = _times(power, base)
        base = _times(base, base)
        count >>= 1
    return power


def _times(left: int, right: int) -> int:
    """Multiply two polynomials over GF(2), reflected as CRCs are, modulo CRC-32C's."""
    product = 0
    for shift in range(31, -1, -1):
        if left >> shift & 1:
            product ^= right
        right = right >> 1 ^ (_POLYNOMIAL if right & 1 else 0)
    return product
