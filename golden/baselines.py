"""Selection rules of the systems that V-Rex is compared with, as their public code implements them.

Every function takes arrays of real numbers and returns the indices that the system keeps, retrieves or recomputes, in
ascending order. The lowest index wins ties (`golden.ranking`). FlexGen (arXiv 2303.06865) keeps all tokens and has no
rule.
"""

import numpy as np

from golden.ranking import TIE, largest
from golden.scores import query_rows
from util import checks


def infinigen_columns(queries: np.ndarray, ratio: float = 0.3) -> np.ndarray:
    """InfiniGen (arXiv 2406.19707): columns of each query head that the partial scores use.

    queries  (T, Hq, d), queries of the prompt
    ratio    share of the d columns

    Returns int64 (Hq, int(d * ratio)): the columns with the largest sum of |q| over the prompt.
    """
    q = _queries(queries)
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
    q = _queries(queries)
    k = checks.reals("keys", keys, None, None, q.shape[2])
    heads = q.shape[1]
    _check_heads("queries", heads, k.shape[1])
    picked = checks.integers("columns", columns, heads, None, low=0, high=q.shape[2] - 1)
    checks.real("alpha", alpha, 0)
    if budget is not None:
        checks.integer("budget", budget, 0)
    if not len(k):
        return [np.zeros(0, np.int64)] * heads
    score, scale = np.empty((2, heads, len(q), len(k)))
    for a in range(heads):
        partial_q, partial_k = q[:, a, picked[a]], k[:, a // (heads // k.shape[1]), picked[a]]
        score[a], scale[a] = partial_q @ partial_k.T, _scale(partial_q, partial_k)
    above = score - (score.max(axis=2, keepdims=True) - alpha) > TIE * scale
    count = int(above.sum(axis=2).mean())
    if budget is not None:
        count = min(count, budget)
    return [np.unique(rows) for rows in largest(score, count, scale)]


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


def rekv(queries: np.ndarray, blocks: np.ndarray, k: int, chunk: int = 1, complete_chunks: bool = False) -> np.ndarray:
    """ReKV: the `k` frames whose vectors have the largest dot product with the mean query; int64 ascending.

    queries          (T, Hq, d) of the question, before RoPE
    blocks           (F, Hq * d) from `rekv_blocks`
    k                frames to retrieve; all frames if there are at most k
    chunk            consecutive frames that are scored by their mean; the last chunk can be shorter
    complete_chunks  False: chunks are retrieved in descending order of score until there are k frames, of the last of
                     these chunks only its first frames; True: the k // chunk best chunks (at least one), as in the
                     public code, which are fewer than k frames if chunk does not divide k or the last chunk is shorter
    """
    q = _queries(queries)
    if not q.shape[1]:
        raise ValueError("queries must have at least one head, got none")
    frames = checks.reals("blocks", blocks, None, q.shape[1] * q.shape[2])
    checks.integer("k", k, 1)
    checks.integer("chunk", chunk, 1)
    if len(frames) <= k:
        return np.arange(len(frames))
    mean_query = q.mean(axis=0).ravel()
    starts = np.arange(0, len(frames), chunk)
    sizes = np.diff(np.r_[starts, len(frames)])
    score, scale = (
        np.add.reduceat(x, starts) / sizes for x in (frames @ mean_query, _scale(mean_query[None], frames)[0])
    )
    n_chunks = max(1, k // chunk) if checks.flag("complete_chunks", complete_chunks) else len(starts)
    ranked = largest(score, n_chunks, scale)
    selected = np.concatenate([np.arange(starts[c], starts[c] + sizes[c]) for c in ranked])
    return np.sort(selected if complete_chunks else selected[:k])


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
    _check_heads("query", len(q), k.shape[1])
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
        scale = _scale(row[None], np.maximum(np.abs(low[:, h]), np.abs(high[:, h])))[0]
        page_ids = np.sort(largest(bound, n_pages, scale))
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
    row_groups = query_rows(q, c.shape[1])
    if not len(c):
        return [np.zeros(0, np.int64)] * len(row_groups)
    out = []
    for h, rows in enumerate(row_groups):
        root = np.sqrt(max(1, c.shape[2]))
        logit = rows @ c[:, h].T / root
        # sums are compared by their logarithms, whose rounding errors are those of the logits
        log_weight = logit - np.logaddexp.reduce(logit, axis=1, keepdims=True)
        log_sum = np.logaddexp.reduce(log_weight, axis=0)
        scale = 1 + _scale(rows, c[:, h]).max(axis=0) / root
        out.append(np.sort(largest(log_sum, probes, scale)))
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
    distance = ((new - old)[:past] ** 2).sum(axis=tuple(range(1, new.ndim)))
    token_ids = largest(distance, int(past * checks.real("ratio", ratio, 0, 1)))
    return np.r_[np.sort(token_ids), past : len(new)]


def vlcache(sizes: np.ndarray, ratio: float = 0.05) -> np.ndarray:
    """VLCache (arXiv 2512.12977): recomputed tokens, the first floor(ratio * n) tokens of each frame of n tokens."""
    lengths = checks.integers("sizes", sizes, None, low=0)
    second_counts = np.floor(checks.real("ratio", ratio, 0, 1) * lengths).astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    return np.concatenate([np.arange(s, s + n) for s, n in zip(starts, second_counts, strict=True)] or [lengths])


def _queries(queries: np.ndarray) -> np.ndarray:
    """Queries (T, Hq, d) with T at least 1."""
    q = checks.reals("queries", queries, None, None, None)
    if not len(q):
        raise ValueError("queries must hold at least one token, got none")
    return q


def _check_heads(name: str, heads: int, kv_heads: int) -> None:
    if not heads or not kv_heads or heads % kv_heads:
        raise ValueError(f"{name} must have a multiple of {kv_heads} heads, got {heads}")


def _scale(rows: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Bound of the dot products of rows (R, d) and vectors (N, d): products of their lengths, (R, N)."""
    return np.linalg.norm(rows, axis=-1)[:, None] * np.linalg.norm(vectors, axis=-1)
