"""4-bit keys and values after Oaken (arXiv 2503.18599): thresholds from offline profiling, scales per token online.

Four thresholds divide the values into three groups: outer (largest magnitudes), inner (smallest magnitudes) and middle.
The middle group, nearly all values, becomes 4 bits of a dense array. Its two halves are first shifted towards zero by
the inner thresholds, so that no code covers the gap. Values of the other groups have a sign and 4 bits: the 4 bits are
stored in the dense array, and 8 bits of a sparse list hold index, group and sign.

Published: the three groups, offline thresholds and online scales, the shift, and the fused dense and sparse layout.
Assumed: the shares of the groups (4 % outer, half at each end, and 6 % inner), symmetric inner thresholds, 8-bit list
entries, 16-bit scales, and rounding of the middle group to the nearest of its 16 reconstruction points.
"""

from dataclasses import dataclass

import numpy as np

from util import checks

BITS = 4
LEVELS = 1 << BITS
SPARSE_BITS = 8  # six of index, one of group, one of sign
SCALE_BITS = 4 * 16  # middle: low and step; outer and inner: step


@dataclass(frozen=True)
class Thresholds:
    """Limits of the groups. Outer: below `outer_low` or above `outer_high`; inner: from `inner_low` to `inner_high`."""

    outer_low: float
    inner_low: float
    inner_high: float
    outer_high: float

    def __post_init__(self) -> None:
        edges = [self.outer_low, self.inner_low, self.inner_high, self.outer_high]
        if not np.isfinite(edges).all() or edges != sorted(edges) or not self.inner_low <= 0 <= self.inner_high:
            raise ValueError(f"thresholds must be finite, ascend and hold zero in the middle pair, got {edges}")


@dataclass(frozen=True)
class Quantised:
    """Result of `quantise`: reconstructed `values` (float64), size in bits, numbers of outer and inner values."""

    values: np.ndarray
    bits: int
    outliers: int


def profile(samples: np.ndarray, outer: float = 0.04, inner: float = 0.06) -> Thresholds:
    """Thresholds for which the groups hold a share of `outer` and `inner` of the samples."""
    x = checks.reals("samples", samples).ravel()
    if not x.size:
        raise ValueError("samples must hold at least one value, got none")
    checks.real("outer", outer, 0, 1)
    checks.real("inner", inner, 0, 1)
    near = float(np.quantile(np.abs(x), inner))
    low, high = (float(q) for q in np.quantile(x, [outer / 2, 1 - outer / 2]))
    return Thresholds(min(low, -near), -near, near, max(high, near))


def quantise(x: np.ndarray, thresholds: Thresholds) -> Quantised:
    """Quantise the vectors (T, dim) of T tokens; each token has its own scales."""
    rows = checks.reals("x", x, None, None)
    t = thresholds
    inner = (rows >= t.inner_low) & (rows <= t.inner_high)
    outer = (rows < t.outer_low) | (rows > t.outer_high)
    middle = ~inner & ~outer
    out = np.where(inner, _signed(rows, inner), 0.0)

    shift = np.where(rows < 0, t.outer_low, t.outer_high)
    out = np.where(outer, shift + _signed(rows - shift, outer), out)

    gap = np.where(rows < 0, t.inner_low, t.inner_high)
    low = np.where(middle, rows - gap, np.inf).min(axis=1, keepdims=True, initial=np.inf)
    high = np.where(middle, rows - gap, -np.inf).max(axis=1, keepdims=True, initial=-np.inf)
    low, high = np.where(low > high, 0.0, low), np.where(low > high, 0.0, high)
    points = low + (high - low) * np.arange(LEVELS) / (LEVELS - 1)
    points += np.where(points < 0, t.inner_low, t.inner_high)
    nearest = np.abs(rows[:, :, None] - points[:, None, :]).argmin(axis=2)
    out = np.where(middle, np.take_along_axis(points, nearest, axis=1), out)

    outliers = int((~middle).sum())
    return Quantised(out, rows.size * BITS + outliers * SPARSE_BITS + len(rows) * SCALE_BITS, outliers)


def _signed(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Values after rounding to sign and 4 bits of magnitude; the largest magnitude under the mask sets the step."""
    step = np.where(mask, np.abs(x), 0.0).max(axis=1, keepdims=True, initial=0.0) / (LEVELS - 1)
    return np.sign(x) * np.rint(np.abs(x) / np.where(step > 0, step, 1.0)) * step
