"""1 / sqrt(x) in BF16, correctly rounded for every input.

The fraction of the result depends on the 7 fraction bits of x and the parity of its exponent: hardware needs a table of
256 entries. A result is never subnormal and, except of a zero, never infinite.
"""

import numpy as np

from golden import bf16


def rsqrt(code: np.ndarray) -> np.ndarray:
    """BF16 codes, uint16, of 1 / sqrt(x) for BF16 codes x, any shape.

    As IEEE 754's rSqrt: zeros (and subnormals) give infinity of their sign, +infinity gives +0, anything negative NaN.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return bf16.encode(1 / np.sqrt(bf16.decode(bf16.codes("code", code))))
