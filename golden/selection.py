"""Selection rules of ReSV, Mosaic, QuickPrefill and top-k on one selector, the WTU.

| rule | key | weight of a cluster | stops when the sum | levels |
|---|---|---|---|---|
| ReSV (V-Rex, Eq. 1 to 3) | BF16 exp score | score x token count | exceeds a ratio of the total | 2 |
| Mosaic, second stage | sortable BF16 cosine | token count | reaches the budget | all |
| QuickPrefill | complement of BF16 squared key norm | 1 | reaches k, in index order | all |
| top-k (InfiniGen, ReKV) | sortable BF16 score | 1 | reaches k, in index order | all |

With all levels, the last bucket holds one value of the 16-bit key.
"""

import numpy as np

from golden.bf16 import BF16_ONE
from golden.wicsum import MAX_FINITE_CODE, RowSelections, WtuConfig, select
from util import checks

RESV = WtuConfig()
MOSAIC = WtuConfig(refine_levels=3, weight="tc", stop_rule="budget")
QUICKPREFILL = TOP_K = WtuConfig(refine_levels=3, weight="one", stop_rule="count")


def sortable(codes: np.ndarray, name: str = "codes") -> np.ndarray:
    """BF16 bit patterns as uint16 keys whose unsigned order is the order of the numbers (-0 is just below +0)."""
    bits = checks.integers(name, codes, low=0, high=0xFFFF)
    if (bits & 0x7F80 == 0x7F80).any():
        raise ValueError(f"{name} must be finite BF16, got an infinity or a NaN")
    return np.where(bits & 0x8000, ~bits, bits | 0x8000).astype(np.uint16)


def reversed_keys(norms: np.ndarray) -> np.ndarray:
    """Non-negative BF16 bit patterns as uint16 keys, the largest for the smallest number."""
    return (0xFFFF - checks.integers("norms", norms, low=0, high=MAX_FINITE_CODE)).astype(np.uint16)


def by_ratio(codes: np.ndarray, counts: np.ndarray, wics_ratio_q16: int = 19661) -> RowSelections:
    """ReSV: clusters of non-negative BF16 scores (R, C), largest first, until their weighted sum exceeds the ratio."""
    return select(codes, counts, wics_ratio_q16, RESV)


def by_budget(cosines: np.ndarray, sizes: np.ndarray, budget: int) -> RowSelections:
    """Mosaic: clusters of BF16 cosines (R, C), largest first, until they hold `budget` tokens."""
    return select(_rows("cosines", cosines), sizes, budget, MOSAIC)


def smallest(norms: np.ndarray, k: int) -> RowSelections:
    """QuickPrefill: the `k` smallest non-negative BF16 numbers (R, C) of each row; the lowest index wins ties."""
    keys = reversed_keys(checks.integers("norms", norms, None, None))
    return select(keys, np.ones(keys.shape, np.int64), k, QUICKPREFILL)


def top_k(scores: np.ndarray, k: int) -> RowSelections:
    """The `k` largest BF16 numbers (R, C) of each row; the lowest index wins ties."""
    keys = _rows("scores", scores)
    return select(keys, np.ones(keys.shape, np.int64), k, TOP_K)


def covering_row(entries: int, count: int, step: int) -> tuple[np.ndarray, int]:
    """A row of BF16 numbers and a stride, uint16: all entries are among the `count` largest of some row of `entries`
    numbers that begins at a multiple of the stride.

    A selector that stops at a count thus selects everything by several rows. `step` : the stride is a multiple of it,
    at most `count`
    """
    stride = checks.integer("count", count, checks.integer("step", step, 1)) // step * step
    rows = -(-checks.integer("entries", entries, 1) // stride)
    row = np.zeros((2 * rows - 1) * stride, np.uint16)
    row[(rows - 1) * stride : rows * stride] = BF16_ONE
    return row, stride


def _rows(name: str, codes: np.ndarray) -> np.ndarray:
    return sortable(checks.integers(name, codes, None, None), name)
