"""Elementary functions of the vector engine in BF16: reciprocal, reciprocal square root and SiLU.

All functions map BF16 bit patterns (uint16) to BF16 bit patterns, bit for bit as hw/arith/elementary.py does.

- `reciprocal` is correctly rounded for every input. The fraction of the result depends only on the 7 fraction bits of
  x, so that hardware needs a table of 128 entries.
- `rsqrt` is correctly rounded for every input. The fraction of the result depends on the 7 fraction bits of x and on
  the parity of its exponent: a table of 256 entries. Results are never subnormal, and infinite only for zeros.
- `silu` differs from x / (1 + exp(-x)) by at most one unit in the last place (0.993 for the worst input).

SiLU: with t = |x|, SiLU(x) = x * 2**-v, where v = w(t) for positive x, v = w(t) + t log2(e) for negative x, and
w(t) = log2(1 + exp(-t)) lies between 0 and 1. One multiplication of significands is therefore enough:

    t < 2**-8           x / 2
    x >= 8              x
    x <= -128           -0
    else                w by 64 line segments of width 1/8, 0 for t >= 8; v with 9 fraction bits; 2**-fraction
                        from a table of 512 entries; times the significand of x, rounded to nearest even

All steps of SiLU are integer operations. Their widths are the smallest that keep the error within one unit.
"""

from functools import cache

import numpy as np

from golden import bf16

SMALL = 119  # exponent field of 2**-8: below it, x / 2
LARGE = 130  # of 8: from it on, x itself
ZERO = 134  # of 128: from it on, a negative x gives zero
V_BITS = 9  # fraction bits of v, w and the slopes
POWER_BITS = 10  # of 2**-fraction
SEGMENT_BITS, STEP_BITS = 3, 5  # lines per unit of t, and steps on each of them, as powers of two
LOG2E_BITS = 14
LOG2E = round(np.log2(np.e) * (1 << LOG2E_BITS))


def reciprocal(code: np.ndarray) -> np.ndarray:
    """1 / x: BF16 codes, uint16, for BF16 codes x of any shape.

    Zeros and subnormals give infinity with their sign, infinities give zero with their sign. A result below 2**-126
    in magnitude is zero.
    """
    with np.errstate(divide="ignore"):
        return bf16.encode(1 / bf16.decode(bf16.codes("code", code)))


def rsqrt(code: np.ndarray) -> np.ndarray:
    """1 / sqrt(x): BF16 codes, uint16, for BF16 codes x of any shape.

    As rSqrt of IEEE 754: zeros and subnormals give infinity with their sign, +infinity gives +0, negative numbers NaN.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return bf16.encode(1 / np.sqrt(bf16.decode(bf16.codes("code", code))))


@cache
def lines() -> tuple[np.ndarray, np.ndarray]:
    """Start value and fall of every line, int64[64] each, in units of 2**-9.

    A line follows the chord of w, lowered by half of what the chord is too high in the middle.
    """
    t = np.arange((8 << SEGMENT_BITS + 1) + 1) / (2 << SEGMENT_BITS)  # ends and middles
    w = np.log2(1 + np.exp(-t))
    first, middle, last = w[:-1:2], w[1::2], w[2::2]
    start = first - ((first + last) / 2 - middle) / 2
    unit = 1 << V_BITS
    return np.rint(start * unit).astype(np.int64), np.rint((first - last) * unit).astype(np.int64)


@cache
def powers() -> np.ndarray:
    """2**(-f / 512) for f = 0 .. 511, int64, in units of 2**-10."""
    fraction = np.arange(1 << V_BITS) / (1 << V_BITS)
    return np.rint(np.exp2(-fraction) * (1 << POWER_BITS)).astype(np.int64)


def silu(code: np.ndarray) -> np.ndarray:
    """BF16 codes, uint16, of SiLU(x) for BF16 codes x, any shape.

    NaN gives NaN, -infinity gives -0, +infinity itself; results below 2**-126 are zeros of the sign of x.
    """
    code = bf16.codes("code", code)
    negative = code >> 15 == 1
    exponent, significand = code.astype(np.int64) >> 7 & 0xFF, code.astype(np.int64) & 0x7F | 0x80

    shift = np.clip(exponent - SMALL, 0, ZERO - 1 - SMALL)
    t = significand << shift  # 15 fraction bits
    position = np.minimum(t >> (15 - SEGMENT_BITS - STEP_BITS), (8 << SEGMENT_BITS + STEP_BITS) - 1)
    start, fall = (column[position >> STEP_BITS] for column in lines())
    middle = 2 * (position & (1 << STEP_BITS) - 1) + 1  # in half steps: the middle of the step
    w = start - (fall * middle + (1 << STEP_BITS) >> STEP_BITS + 1)
    drop = 15 + LOG2E_BITS - V_BITS
    linear = significand * LOG2E + (1 << drop - shift - 1) >> drop - shift  # t * log2(e), rounded half up
    v = np.where(exponent < LARGE, w, 0) + np.where(negative, linear, 0)

    product = significand * powers()[v & (1 << V_BITS) - 1]
    scale = exponent - (bf16.BIAS + 7) - POWER_BITS - (v >> V_BITS)
    value = np.ldexp(np.where(negative, -product, product).astype(np.float64), scale)
    result = bf16.encode(value)
    result = np.where(exponent < SMALL, bf16.encode(bf16.decode(code) / 2), result)
    result = np.where(exponent >= LARGE, np.where(negative, np.where(exponent < ZERO, result, 0x8000), code), result)
    return np.where(np.isnan(bf16.decode(code)), bf16.BF16.nan, result).astype(np.uint16)
