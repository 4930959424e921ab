"""4-bit keys and values in the manner of Oaken (arXiv 2503.18599): thresholds offline, scales online.

Values fall into three groups by four thresholds that are profiled once: outer (the largest magnitudes), inner (the
smallest) and middle. The middle, nearly all, becomes 4 bits of a dense array, after its two halves are shifted towards
zero by the inner thresholds so that no code is spent on the gap. The outliers of both kinds keep a sign and 4 bits: the
4 bits fill their hole in the dense array and 8 bits of a sparse list hold index, group and sign. Scales are per token.

Public: the three groups, offline thresholds and online scales, the shift and the fused dense-and-sparse layout.
Assumed: the shares of the groups (4 % outer, split evenly between both ends, 6 % inner), inner thresholds that are
symmetric, 8-bit list entries, 16-bit scales, and that the middle takes the nearest of its 16 reconstruction points.
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
    """Values below `outer_low` or above `outer_high` are outer, those within `inner_low`..`inner_high` inner."""

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
    """`values` as they are read back, float64 like the input, and what they take: bits, outliers of both kinds."""

    values: np.ndarray
    bits: int
    outliers: int


def profile(samples: np.ndarray, outer: float = 0.04, inner: float = 0.06) -> Thresholds:
    """Thresholds that leave a share of `outer` and of `inner` of the samples in those groups."""
    x = checks.reals("samples", samples).ravel()
    if not x.size:
        raise ValueError("samples must hold at least one value, got none")
    checks.real("outer", outer, 0, 1)
    checks.real("inner", inner, 0, 1)
    near = float(np.quantile(np.abs(x), inner))
    low, high = (float(q) for q in np.quantile(x, [outer / 2, 1 - outer / 2]))
    return Thresholds(min(low, -near), -near, near, max(high, near))


def quantise(x: np.ndarray, thresholds: Thresholds) -> Quantised:
    """Quantise the vectors (T, dim) of T tokens, each with scales of its own."""
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
    """Sign and 4 bits of magnitude, the step from each row's largest magnitude under the mask."""
    step = np.where(mask, np.abs(x), 0.0).max(axis=1, keepdims=True, initial=0.0) / (LEVELS - 1)
    return np.sign(x) * np.rint(np.abs(x) / np.where(step > 0, step, 1.0)) * step
