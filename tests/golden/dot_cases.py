"""Adversarial inputs of dot products, shared by the tests of golden and RTL."""

import numpy as np


def codes(rng, shape, low, high):
    """Random signs and fractions, exponent fields low .. high."""
    exponent = rng.integers(low, high + 1, shape)
    return (rng.integers(0, 2, shape) << 15 | exponent << 7 | rng.integers(0, 128, shape)).astype(np.uint16)


def adversarial(rng, n, rows):
    """Named pairs (a, b) of BF16 codes (rows, n) that stress one thing each."""
    cases = {
        "any bits": tuple(rng.integers(0, 1 << 16, (rows, n), dtype=np.uint16) for _ in range(2)),
        "wide": (codes(rng, (rows, n), 1, 254), codes(rng, (rows, n), 1, 254)),
        "near": (codes(rng, (rows, n), 118, 130), codes(rng, (rows, n), 118, 130)),
        "underflow": (codes(rng, (rows, n), 0, 12), codes(rng, (rows, n), 96, 124)),
        "overflow": (codes(rng, (rows, n), 250, 254), codes(rng, (rows, n), 120, 134)),
        "zeros": (codes(rng, (rows, n), 0, 0), codes(rng, (rows, n), 0, 254)),
        "ones": (np.full((rows, n), 0x3F80, np.uint16), np.full((rows, n), 0x3F80, np.uint16)),
        "largest": (np.full((rows, n), 0x3FFF, np.uint16), np.full((rows, n), 0xBFFF, np.uint16)),
    }
    # cancellation: the second half repeats the first with the other sign, but for one fraction bit in some rows
    a, b = codes(rng, (rows, n), 100, 150), codes(rng, (rows, n), 100, 150)
    half = n // 2
    a[:, half : 2 * half], b[:, half : 2 * half] = a[:, :half] ^ 0x8000, b[:, :half]
    a[::2, -1] ^= 1
    a[1::2, 2 * half :] = 0
    cases["cancellation"] = (a, b)
    # one huge product and many at every distance around the alignment width
    a, b = codes(rng, (rows, n), 127, 127), codes(rng, (rows, n), 100, 128)
    b[:, 0] = codes(rng, rows, 127 + 4, 127 + 4)
    cases["one huge"] = (a, b)
    # ties: an odd multiple of half a unit in the last place of a 24-bit result
    a, b = np.full((rows, n), 0x3F80, np.uint16), codes(rng, (rows, n), 103, 104) & 0x7F80
    a[:, 0], b[:, 0] = 0x4000, (rng.integers(0, 128, rows) | 0x3F80).astype(np.uint16)
    cases["ties"] = (a, b)
    # a carry out of the rounding: 255 * 255 + 2 ** -6 * 146 * 224 is a power of two, a little less rounds up to it, and
    # so is 2 * 255 * 255 + 2 ** -5 * 146 * 224, whose sum has a bit more than 24 from an alignment width of 24 on
    for name, products in (
        ("carry", [(255, 255, 0, 0), (146, 224, 6, 0), (128, 128, 26, 1)]),
        ("carry of two", [(255, 255, 0, 0), (255, 255, 0, 0), (146, 224, 5, 0), (128, 128, 22, 1)]),
    ):
        a, b = np.zeros((2, rows, n), np.uint16)
        scale = rng.integers(60, 190, rows)
        for k, (x, y, down, sign) in enumerate(products[:n]):
            a[:, k], b[:, k] = sign << 15 | (scale - down) << 7 | (x - 128), 127 << 7 | (y - 128)
        cases[name] = (a, b)
    # a few specials among ordinary values
    a, b = codes(rng, (rows, n), 100, 150), codes(rng, (rows, n), 100, 150)
    special = np.array([0x7F80, 0xFF80, 0x7F80, 0x7FC0, 0xFF81, 0x0000, 0x8000, 0x0055], np.uint16)
    for values in (a, b):
        for _ in range(2):
            values[np.arange(rows), rng.integers(0, n, rows)] = special[rng.integers(0, len(special), rows)]
    a[::4, :2], b[::4, :2] = [0x7F80, 0xFF80][:n], 0x3F80  # infinities of both signs
    cases["specials"] = (a, b)
    return cases
