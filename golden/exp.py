"""Exponential of attention scores, exp((S - max) / sqrt(d)), as the vector engine computes it in BF16.

The exponent is converted to base 2 with 8 fraction bits and truncated; a table of 256 entries gives the significand.
The result is monotonic in S and exactly 1 at the maximum. Its relative error is at most 0.67 %: half a unit in the last
place (2**-8) from the table and one step of the exponent, 2**(1/256), from truncation.
"""

from functools import cache

import numpy as np

from golden import bf16
from golden.bf16 import BF16, FP32
from util import checks

FRACTION_BITS = 8  # of the base-2 exponent
FARTHEST = 127 << FRACTION_BITS  # smallest distance in steps whose result is 0


def scale(head_dim: int) -> np.ndarray:
    """FP32 bit pattern of log2(e) * 256 / sqrt(head_dim), the constant of one head dimension."""
    checks.integer("head_dim", head_dim, 1)
    return bf16.encode(np.log2(np.e) * (1 << FRACTION_BITS) / np.sqrt(head_dim), FP32)


@cache
def table() -> tuple[np.ndarray, np.ndarray]:
    """Fraction field and exponent borrow of 2**(-f / 256) for f = 0 to 255, int64 each."""
    value = np.exp2(-np.arange(1 << FRACTION_BITS) / (1 << FRACTION_BITS))
    borrow = (value < 1).astype(np.int64)
    significand = np.rint(128 * value * (1 + borrow)).astype(np.int64)
    full = significand == 256
    return np.where(full, 0, significand - 128), borrow - full


def exp(score: np.ndarray, maximum: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Exponential of FP32 scores relative to the maximum of their row.

    Parameters
    ----------
    score, maximum, factor : FP32 bit patterns, uint32, broadcast against each other; `factor` is `scale(head_dim)`

    Returns
    -------
    np.ndarray
        BF16 bit patterns, uint16. Scores at or above the maximum give 1, scores far below it give 0, NaN gives NaN.
    """
    return power(bf16.multiply(bf16.subtract(maximum, score, FP32), factor, FP32))


def power(distance: np.ndarray) -> np.ndarray:
    """BF16 bit patterns of 2 ** (-floor(x) / 256) for FP32 bit patterns x. Negative x count as 0; NaN gives NaN."""
    value = bf16.decode(distance, FP32)
    steps = np.floor(np.clip(np.nan_to_num(value, nan=0.0), 0, 1 << 16)).astype(np.int64)
    fraction, borrow = (column[steps & 0xFF] for column in table())
    exponent = bf16.BIAS - (steps >> FRACTION_BITS) - borrow
    code = np.where(exponent <= 0, 0, exponent << 7 | fraction)
    return np.where(np.isnan(value), BF16.nan, code).astype(np.uint16)


def exp_rows(scores: np.ndarray, head_dim: int) -> np.ndarray:
    """BF16 bit patterns of exp((S - max) / sqrt(head_dim)); each row (last axis) has its own maximum.

    `scores` is float32 (..., C), finite, C at least 1; the result is uint16 (..., C).
    """
    rows = np.asarray(scores)
    if rows.dtype != np.float32:
        raise checks.ArgumentTypeError(f"scores must be float32, got dtype {rows.dtype}")
    if rows.ndim == 0 or rows.shape[-1] == 0:
        raise ValueError(f"scores must have a last axis of at least 1, got shape {rows.shape}")
    if not np.isfinite(rows).all():
        raise ValueError("scores must be finite, got a NaN or an infinity")
    factor = bf16.decode(scale(head_dim), FP32).astype(np.float32)
    # the FP32 of NumPy differs only for subnormals, which are less than one step
    with np.errstate(over="ignore"):
        distance = (rows.max(axis=-1, keepdims=True) - rows) * factor
    return _by_step()[np.minimum(distance, FARTHEST).astype(np.int32)]


@cache
def _by_step() -> np.ndarray:
    """uint16: result for 0 to FARTHEST whole steps."""
    steps = bf16.encode(np.arange(FARTHEST + 1), FP32)
    return exp(np.zeros_like(steps), steps, bf16.encode(np.ones(1), FP32))
