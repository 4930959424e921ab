"""Fused dot product of BF16 vectors: the arithmetic of one MAC tree of the matrix engine.

The products are exact. Each product is shifted right to the largest exponent of the vector, truncated (not rounded)
after `align_bits` bits, and added as an integer. The sum therefore does not depend on the order of addition. The result
is rounded once, to FP32. With the result y, N products and W alignment bits, without overflow:

    |y - exact| <= (N - 1) 2**(2 - W) max|a_i b_i| + 2**-24 |y| + 2**-126

Each term except the largest loses less than one unit of 2**(1 - W) times the power of two at or below the scale of the
product. The other two terms come from rounding and from the flush of results below 2**-126.

Longer vectors are divided into tiles of N elements. Their results are added in FP32, lowest index first.
"""

import numpy as np

from golden import bf16
from golden.bf16 import BF16, FP32
from util import checks

ALIGN_BITS = (16, 30)  # valid range of the alignment width


def dot(a: np.ndarray, b: np.ndarray, align_bits: int = 24) -> np.ndarray:
    """Fused dot product over the last axis.

    Parameters
    ----------
    a, b : BF16 bit patterns, uint16 (..., N), broadcast against each other
    align_bits : bits of an aligned product W, 16 to 30

    Returns
    -------
    np.ndarray
        FP32 bit patterns, uint32 (...). A NaN, infinity times zero or infinities of both signs give NaN. Any other
        infinity gives that infinity. A zero sum gives +0. A result below the smallest normal number gives zero of its
        sign.
    """
    width = checks.integer("align_bits", align_bits, *ALIGN_BITS)
    a, b = bf16.codes("a", a), bf16.codes("b", b)
    try:
        shape = np.broadcast_shapes(a.shape, b.shape)
    except ValueError as error:
        raise ValueError(f"a and b must have shapes that broadcast, got {a.shape} and {b.shape}") from error
    if not shape or shape[-1] == 0:
        raise ValueError(f"a and b must have a last axis of at least 1, got shape {shape}")
    a, b = np.atleast_1d(a), np.atleast_1d(b)
    exponent_a, exponent_b = (x.astype(np.int32) >> 7 & 0xFF for x in (a, b))
    fraction_a, fraction_b = (x.astype(np.int32) & 0x7F for x in (a, b))
    zero_a, zero_b = exponent_a == 0, exponent_b == 0  # subnormals are zero
    negative = a >> 15 != b >> 15
    key = np.where(zero_a | zero_b, 0, exponent_a + exponent_b)
    product = np.where(zero_a, 0, 128 + fraction_a) * np.where(zero_b, 0, 128 + fraction_b)
    top = key.max(axis=-1)
    aligned = product << (width - 16) >> np.minimum(top[..., None] - key, 31)
    total = np.where(negative, -aligned, aligned).sum(axis=-1, dtype=np.int64)
    with np.errstate(over="ignore"):
        code = bf16.encode(np.ldexp(total.astype(np.float64), top - 252 - width), FP32)

    special_a, special_b = exponent_a == bf16.EXPONENT_MAX, exponent_b == bf16.EXPONENT_MAX
    if not special_a.any() and not special_b.any():
        return code
    is_nan = (special_a & (fraction_a != 0)) | (special_b & (fraction_b != 0))
    infinite = special_a | special_b
    invalid = is_nan | (special_a & zero_b) | (special_b & zero_a)
    plus, minus = (infinite & ~negative).any(axis=-1), (infinite & negative).any(axis=-1)
    code = np.where(plus, FP32.infinity, np.where(minus, FP32.infinity | 1 << 31, code))
    return np.where(invalid.any(axis=-1) | (plus & minus), FP32.nan, code).astype(np.uint32)


def matmul(x: np.ndarray, weights: np.ndarray, inputs: int, align_bits: int = 24) -> np.ndarray:
    """x @ weights.T as the matrix engine computes it: tiles of `inputs` products, FP32 sums, lowest index first.

    Parameters
    ----------
    x, weights : BF16 bit patterns, uint16 (T, K) and (M, K); zeros fill the last tile
    inputs : products of a tile, N
    align_bits : bits of an aligned product W, 16 to 30

    Returns
    -------
    np.ndarray
        FP32 bit patterns, uint32 (T, M).
    """
    checks.integer("inputs", inputs, 1)
    x, weights = bf16.codes("x", x), bf16.codes("weights", weights)
    if x.ndim != 2 or weights.ndim != 2 or x.shape[1] != weights.shape[1] or x.shape[1] == 0:
        raise ValueError(f"x and weights must have shapes (T, K) and (M, K), got {x.shape} and {weights.shape}")
    for name, rows in (("x", x), ("weights", weights)):
        if not len(rows):
            raise ValueError(f"{name} must have at least one row, got none")
    pad = (0, -x.shape[1] % inputs)
    tiles = [np.pad(v, ((0, 0), pad)).reshape(len(v), -1, inputs) for v in (x, weights)]
    total = dot(tiles[0][:, None, 0], tiles[1][None, :, 0], align_bits)
    for k in range(1, tiles[0].shape[1]):
        total = bf16.add(total, dot(tiles[0][:, None, k], tiles[1][None, :, k], align_bits), FP32)
    return total


def to_bf16(code: np.ndarray) -> np.ndarray:
    """Round FP32 sums to BF16."""
    return bf16.convert(code, FP32, BF16)
