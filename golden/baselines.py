"""Selection rules of the systems that V-Rex is compared with, as their public code implements them.

Every function takes arrays of real numbers and returns the indices that the system keeps, retrieves or recomputes, in
ascending order. The lowest index wins ties. FlexGen (arXiv 2303.06865) keeps all tokens and has no rule.
"""

import numpy as np

from golden.scores import query_rows
from util import checks


def largest(scores: np.ndarray, k: int) -> np.ndarray:
    """Indices of the k largest values along the last axis, largest first; the lowest index first on ties."""
    return np.argsort(-scores, axis=-1, kind="stable")[..., :k]


def infinigen_columns(queries: np.ndarray, ratio: float = 0.3) -> np.ndarray:
    """InfiniGen (arXiv 2406.19707): columns of each query head that the partial scores use.

    queries  (T, Hq, d), queries of the prompt
    ratio    share of the d columns

    Returns int64 (Hq, int(d * ratio)): the columns with the largest sum of |q| over the prompt.
    """
    q = checks.reals("queries", queries, None, None, None)
    n_columns = int(q.shape[2] * checks.real("ratio", ratio, 0, 1))
    return np.sort(largest(np.abs(q).sum(axis=0), n_columns), axis=1)


def infinigen(
    queries: np.ndarray, keys: np.ndarray, columns: np.ndarray, alpha: float = 4.0, budget: int | None = None
) -> list[np.ndarray]:
    """InfiniGen: past tokens that each query head retrieves, from partial scores without the factor 1 / sqrt(d).

    All heads retrieve the same number of tokens: the mean over the heads of the number of scores above (maximum -
    `alpha`), truncated, at most `budget`. With several query tokens (its variant for prefill) the mean is over all
    rows, and a head retrieves the union of what its rows rank first.

    queries  (T, Hq, d), speculated from the layer below
    keys     (N, Hkv, d)
    columns  (Hq, c), from `infinigen_columns`

    Returns one int64 array for each query head.
    """
    q = checks.reals("queries", queries, None, None, None)
    k = checks.reals("keys", keys, None, None, q.shape[2])
    heads = q.shape[1]
    if not k.shape[1] or heads % k.shape[1]:
        raise ValueError(f"queries must have a multiple of {k.shape[1]} heads, got {heads}")
    picked = checks.integers("columns", columns, heads, None, low=0, high=q.shape[2] - 1)
    if not len(k):
        return [np.zeros(0, np.int64)] * heads
    kv_head_of = np.arange(heads) // (heads // k.shape[1])
    score = np.stack([q[:, a, picked[a]] @ k[:, kv_head_of[a], picked[a]].T for a in range(heads)])  # (Hq, T, N)
    above = score > score.max(axis=2, keepdims=True) - checks.real("alpha", alpha, 0)
    count = int(above.sum(axis=2).mean())
    if budget is not None:
        count = min(count, checks.integer("budget", budget, 0))
    return [np.unique(rows) for rows in largest(score, count)]


def rekv_blocks(keys: np.ndarray, sizes: np.ndarray, group: int) -> np.ndarray:
    """ReKV (arXiv 2503.00540): vector of each frame, the mean of its keys before RoPE; float64 (F, Hkv * group * d).

    keys   (N, Hkv, d) before RoPE, in frame order
    sizes  int (F,), tokens of each frame
    group  query heads that share one KV head; each key head is repeated for all of them
    """
    k = checks.reals("keys", keys, None, None, None)
    lengths = checks.integers("sizes", sizes, None, low=1)
    if lengths.sum() != len(k):
        raise ValueError(f"sizes must sum to the {len(k)} keys, got {lengths.sum()}")
    starts = np.cumsum(lengths) - lengths
    means = np.add.reduceat(k, starts, axis=0) / lengths[:, None, None] if len(k) else k
    width = k.shape[1] * checks.integer("group", group, 1) * k.shape[2]
    return np.repeat(means, group, axis=1).reshape(len(lengths), width)


def rekv(queries: np.ndarray, blocks: np.ndarray, k: int, chunk: int = 1) -> np.ndarray:
    """ReKV: the `k` frames whose vectors have the largest dot product with the mean query; int64 ascending.

    queries  (T, Hq, d) of the question, before RoPE
    blocks   (F, Hq * d) from `rekv_blocks`
    k        frames to retrieve
    chunk    consecutive frames that are scored by their mean and retrieved together (k // chunk chunks)
    """
    q = checks.reals("queries", queries, None, None, None)
    frames = checks.reals("blocks", blocks, None, q.shape[1] * q.shape[2])
    checks.integer("chunk", chunk, 1)
    score = frames @ q.mean(axis=0).ravel()
    starts = np.arange(0, len(score), chunk)
    if not len(starts):
        return starts
    mean = np.add.reduceat(score, starts) / np.diff(np.r_[starts, len(score)])
    best = np.sort(largest(mean, max(1, checks.integer("k", k, 1) // chunk)))
    return np.concatenate([np.arange(c * chunk, min((c + 1) * chunk, len(score))) for c in best])


def quest(query: np.ndarray, keys: np.ndarray, budget: int, page: int = 16) -> list[np.ndarray]:
    """Quest (arXiv 2406.10774): tokens of the pages with the highest upper bound of the score, for each query head.

    The bound of a page is the sum over the dimensions of max(q * smallest key, q * largest key). A head retrieves
    max(3, budget // page) pages.

    query   (Hq, d), one token, because Quest is a method for generation
    keys    (N, Hkv, d)
    budget  tokens for each head
    page    tokens of a page
    """
    q = checks.reals("query", query, None, None)
    k = checks.reals("keys", keys, None, None, q.shape[1])
    checks.integer("page", page, 1)
    n_pages = max(3, checks.integer("budget", budget, 1) // page)
    starts = np.arange(0, len(k), page)
    if not len(starts):
        return [starts] * len(q)
    low, high = np.minimum.reduceat(k, starts, axis=0), np.maximum.reduceat(k, starts, axis=0)
    out = []
    for a, row in enumerate(q):
        h = a // (len(q) // k.shape[1])
        bound = np.maximum(row * low[:, h], row * high[:, h]).sum(axis=1)
        page_ids = np.sort(largest(bound, n_pages))
        out.append(np.concatenate([np.arange(s, min(s + page, len(k))) for s in starts[page_ids]]))
    return out


def retroinfer(queries: np.ndarray, centroids: np.ndarray, probes: int) -> list[np.ndarray]:
    """RetroInfer (arXiv 2505.02922): clusters for each KV head, by softmax over centroids, summed over the GQA group.

    queries    (T, Hq, d)
    centroids  (C, Hkv, d)
    probes     clusters to retrieve
    """
    c = checks.reals("centroids", centroids, None, None, None)
    q = checks.reals("queries", queries, None, None, c.shape[2])
    checks.integer("probes", probes, 1)
    out = []
    for h, rows in enumerate(query_rows(q, c.shape[1])):
        logit = rows @ c[:, h].T / np.sqrt(c.shape[2])
        weight = np.exp(logit - logit.max(axis=1, keepdims=True, initial=-np.inf))
        weight /= weight.sum(axis=1, keepdims=True)
        out.append(np.sort(largest(weight.sum(axis=0), probes)))
    return out


def cacheblend(values: np.ndarray, cached: np.ndarray, suffix: int, ratio: float = 0.16) -> np.ndarray:
    """CacheBlend (arXiv 2405.16444): tokens whose keys and values are recomputed.

    Recomputes int((n - suffix) * ratio) tokens whose value at the checking layer differs most from the cached value (in
    squared distance), and the last `suffix` tokens, which are new.

    values, cached  (n, ...), equal shapes
    """
    new = checks.reals("values", values)
    if new.ndim == 0:
        raise ValueError("values must have a row for every token, got a scalar")
    old = checks.reals("cached", cached, *new.shape)
    past = len(new) - checks.integer("suffix", suffix, 0, len(new))
    distance = ((new - old)[:past] ** 2).reshape(past, -1).sum(axis=1)
    page_ids = largest(distance, int(past * checks.real("ratio", ratio, 0, 1)))
    return np.r_[np.sort(page_ids), past : len(new)]


def vlcache(sizes: np.ndarray, ratio: float = 0.05) -> np.ndarray:
    """VLCache (arXiv 2512.12977): recomputed tokens, the first floor(ratio * n) tokens of each frame of n tokens."""
    lengths = checks.integers("sizes", sizes, None, low=0)
    second_counts = np.floor(checks.real("ratio", ratio, 0, 1) * lengths).astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    return np.concatenate([np.arange(s, s + n) for s, n in zip(starts, second_counts, strict=True)] or [lengths])
