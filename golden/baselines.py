"""Decision rules of the systems that retrieval policies are compared with, each as its public code has them.

Every function takes real tensors and returns what is kept, retrieved or recomputed, ascending; the lowest index wins
ties. FlexGen (arXiv 2303.06865) keeps everything and needs no rule.
"""

import numpy as np

from golden.scores import query_rows
from util import checks


def largest(scores: np.ndarray, k: int) -> np.ndarray:
    """Indices of the k largest along the last axis, best first, the lowest index on ties."""
    return np.argsort(-scores, axis=-1, kind="stable")[..., :k]


def infinigen_columns(queries: np.ndarray, ratio: float = 0.3) -> np.ndarray:
    """InfiniGen (arXiv 2406.19707): the columns of every query head that the partial scores use.

    queries  (T, Hq, d) of the prompt. Returns int64 (Hq, int(d * ratio)): those with the largest sum of |q|.
    """
    q = checks.reals("queries", queries, None, None, None)
    n_columns = int(q.shape[2] * checks.real("ratio", ratio, 0, 1))
    return np.sort(largest(np.abs(q).sum(axis=0), n_columns), axis=1)


def infinigen(
    queries: np.ndarray, keys: np.ndarray, columns: np.ndarray, alpha: float = 4.0, budget: int | None = None
) -> list[np.ndarray]:
    """InfiniGen: past tokens per query head, from partial scores that are not divided by sqrt(d).

    All heads take equally many: the mean over the heads of the number of scores above their maximum - `alpha`,
    truncated, at most `budget`. With several query tokens (its variant for the prefill) that mean is over all
    rows, and a head takes what any of its tokens ranks among the first.

    queries  (T, Hq, d), speculated from the layer below
    keys     (N, Hkv, d)
    columns  (Hq, c), from `infinigen_columns`
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
    """ReKV (arXiv 2503.00540): one vector per frame, the mean of its keys before RoPE: float64 (F, Hkv * group * d).

    keys   (N, Hkv, d) before RoPE, frame after frame
    sizes  int (F,), tokens of each frame
    group  query heads of a KV head: each key head is repeated for all of them
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
    """ReKV: the `k` best frames by the dot product of the mean query with each frame's vector.

    queries  (T, Hq, d) of the question, before RoPE
    blocks   (F, Hq * d) from `rekv_blocks`
    chunk    so many frames in a row are scored by their mean and taken together (k // chunk chunks)
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
    """Quest (arXiv 2406.10774): tokens of the pages whose bound on the score is highest, per query head.

    The bound of a page is the sum over the dimensions of max(q * smallest key, q * largest key). A head takes
    max(3, budget // page) pages.

    query  (Hq, d), one token (Quest serves generation); keys (N, Hkv, d)
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
    """RetroInfer (arXiv 2505.02922): clusters per KV head, by softmax over the centroids summed over the group.

    queries  (T, Hq, d); centroids (C, Hkv, d)
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
    """CacheBlend (arXiv 2405.16444): the tokens that are computed again.

    Those whose value at the checking layer differs most, in squared distance, from the cached one:
    int((n - suffix) * ratio) of them, and the last `suffix` tokens, which are new.

    values, cached  (n, ...) equal shapes
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
    """VLCache (arXiv 2512.12977): of every frame the first floor(ratio * n) tokens are computed again."""
    lengths = checks.integers("sizes", sizes, None, low=0)
    second_counts = np.floor(checks.real("ratio", ratio, 0, 1) * lengths).astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    return np.concatenate([np.arange(s, s + n) for s, n in zip(starts, second_counts, strict=True)] or [lengths])
