"""Scores of clusters: dot products of queries and mean keys, and their weights in the WiCSum (V-Rex, Section IV-C).

A row belongs to one query token and one query head; its entries are the clusters. With the transform `exp`, the only
one of the hardware, `tokens * weight` estimates the softmax mass of a cluster. The other transforms serve comparisons.
"""

import math

import numpy as np

from golden.exp import exp_rows
from util import checks

TRANSFORMS = ("exp", "raw", "shift_min", "relu")


def query_rows(queries: np.ndarray, kv_heads: int) -> np.ndarray:
    """Queries (T, Hq, d) as rows for each KV head: (Hkv, T * group, d), ordered by token, then by query head."""
    if np.ndim(queries) != 3:
        raise ValueError(f"queries must have shape (T, Hq, d), got {np.shape(queries)}")
    tokens, heads, d = queries.shape
    if not tokens:
        raise ValueError("queries must hold at least one token, got none")
    if not heads or heads % checks.integer("kv_heads", kv_heads, 1):
        raise ValueError(f"queries must have a multiple of {kv_heads} heads, got {heads}")
    group = heads // kv_heads
    rows = queries.reshape(tokens, kv_heads, group, d).transpose(1, 0, 2, 3)
    return rows.reshape(kv_heads, tokens * group, d)


def dots(rows: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Scores of rows (R, d) and mean keys (C, d): float32 (R, C), the exact sum of products, rounded.

    The matrix engine adds in another order. Models of the hardware compute the scores with `golden.dot`.
    """
    q = checks.reals("rows", rows, None, None)
    vectors = checks.reals("means", means, None, q.shape[1])
    sums = q @ vectors.T
    # the last bits of a sum depend on the library: where they decide the rounding to float32, the sum is computed again
    error = q.shape[1] * 2.0**-51 * (np.abs(q) @ np.abs(vectors).T)
    for r, c in np.argwhere((sums - error).astype(np.float32) != (sums + error).astype(np.float32)):
        sums[r, c] = math.fsum(q[r] * vectors[c])
    return sums.astype(np.float32)


def weights(scores: np.ndarray, head_dim: int, transform: str = "exp") -> np.ndarray:
    """Weight of one token of each cluster, float64 (R, C), from scores (R, C).

    `exp`: exp((S - max) / sqrt(d)); `raw`: S / sqrt(d); `shift_min`: S - min; `relu`: max(S, 0). Maximum and minimum
    are those of the row.
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
    """Weights of transform `exp` as BF16 bit patterns, bit exact: uint16 (R, C) from float32 scores (R, C)."""
    return exp_rows(scores, head_dim) if np.size(scores) else np.zeros(np.shape(scores), np.uint16)
