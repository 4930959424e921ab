"""Scores of clusters: the query times each cluster's representative key, and what WiCSum makes of them.

A row is one query token and one query head; its entries are the clusters. `exp`, the only transform there is in
hardware, makes `tokens * score` an estimate of the softmax mass of a cluster; the others are for comparison.
"""

import numpy as np

from golden.exp import exp_rows
from util import checks

TRANSFORMS = ("exp", "raw", "shift_min", "relu")


def query_rows(queries: np.ndarray, kv_heads: int) -> np.ndarray:
    """Queries (T, Hq, d) as rows per KV head: (Hkv, T * group, d), token by token, the head's group within."""
    tokens, heads, d = queries.shape
    if not heads or heads % kv_heads:
        raise ValueError(f"queries must have a multiple of {kv_heads} heads, got {heads}")
    return queries.reshape(tokens, kv_heads, -1, d).transpose(1, 0, 2, 3).reshape(kv_heads, -1, d)


def dots(rows: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Scores of rows (R, d) against representative keys (C, d): float32 (R, C), the exact product rounded once.

    The matrix engine sums in another order; what follows takes the scores as given.
    """
    q = checks.reals("rows", rows, None, None)
    return (q @ checks.reals("means", means, None, q.shape[1]).T).astype(np.float32)


def weights(scores: np.ndarray, head_dim: int, transform: str = "exp") -> np.ndarray:
    """What one token of each cluster weighs, float64 (R, C).

    `exp`: exp((S - max) / sqrt(d)); `raw`: S / sqrt(d); `shift_min`: S - min; `relu`: max(S, 0); max and min over
    the row.
    """
    s = checks.reals("scores", scores, None, None)
    root = np.sqrt(checks.integer("head_dim", head_dim, 1))
    checks.one_of("transform", transform, TRANSFORMS)
    if not s.shape[1]:
        return s
    if transform == "exp":
        return np.exp((s - s.max(axis=1, keepdims=True)) / root)
    if transform == "raw":
        return s / root
    return s - s.min(axis=1, keepdims=True) if transform == "shift_min" else np.maximum(s, 0)


def codes(scores: np.ndarray, head_dim: int) -> np.ndarray:
    """The same as `weights` with `exp`, in BF16 and bit-exact: uint16 (R, C) from float32 scores (R, C)."""
    return exp_rows(scores, head_dim) if np.size(scores) else np.zeros(np.shape(scores), np.uint16)
