"""Blocks of BF16 codes for the tests of the number formats of the KV cache."""

import numpy as np

LARGEST = 0x7F7F


def blocks(rng, count, block, low=1, high=254):
    """Random finite blocks whose exponents differ by 0 to 40 from one block's largest."""
    top = rng.integers(low, high + 1, (count, 1))
    spread = rng.choice([0, 1, 3, 8, 40], (count, 1))
    field = np.maximum(top - rng.integers(0, spread + 1, (count, block)), 0)
    return (rng.integers(0, 2, (count, block)) << 15 | field << 7 | rng.integers(0, 128, (count, block))).astype(
        np.uint16
    )


def boundaries():
    """Blocks of 8: zeros, equal numbers, subnormal inputs and scales, the largest numbers of both signs."""
    rows = [
        [0] * 8, [0x8000] * 8, [0x3FA5] * 8, [0xBFA5] * 8, [0x0001] * 8, [0x807F] * 8,
        [0x0080] * 8, [0x0080, 0x8080, 0x00FF, 0x80FF, 0, 0x8000, 0x007F, 0x0100], [LARGEST] * 8,
        [LARGEST, LARGEST | 0x8000, 0x7F00, 0x7E80, 0, 1, 0x0080, 0xFF00],
        *([x << 7 | f for f in (0, 127, 64, 1, 32, 96, 16, 100)] for x in (1, 2, 3, 9, 10, 250, 253, 254)),
    ]  # fmt: skip
    return np.array(rows, np.uint16)
