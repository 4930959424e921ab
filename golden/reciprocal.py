"""1 / x in BF16, correctly rounded for every input.

The fraction of the result depends on the 7 fraction bits of x alone: hardware needs a table of 128 entries.
"""

import numpy as np

from golden import bf16


def reciprocal(code: np.ndarray) -> np.ndarray:
    """BF16 codes, uint16, of 1 / x for BF16 codes x, any shape.

    Zeros and subnormals give infinity of their sign, infinities zero of theirs; a result below 2**-126 is zero.
    """
    with np.errstate(divide="ignore"):
        return bf16.encode(1 / bf16.decode(bf16.codes("code", code)))
