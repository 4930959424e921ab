"""Compiled kernels of ReSV on a processor: Hamming search, mean keys, selection of clusters, lists of tokens.

The results equal those of `golden.clustering`, `golden.mean_keys`, `golden.exp` and `golden.wicsum` in every bit. The
kernels are single-threaded, allocate their results only, and need no PyTorch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from util.compiled import compiled, inlined

INDEX_BITS = 26  # of a cluster's index, below the six bits of its distance
FAR = 63  # distance larger than that of any two hash codes, as in `golden.clustering`
SMALLEST_NORMAL = np.float32(2.0**-126)


def _distance_code(typing_context: Any, code: Any, other: Any) -> Any:
    """Hamming distance of two 32-bit codes; compiled to the population count of the processor."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(builder.xor(*arguments))

    return types.uint32(types.uint32, types.uint32), generate


def _nearer_code(typing_context: Any, word: Any, code: Any, other: Any, index: Any) -> Any:
    """Smaller one of `word` and the word of (distance of two codes, index); 32-bit operations, so that loops over it
    are vectorised."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, code, other, index = arguments
        shift = word.type(INDEX_BITS)
        new = builder.or_(builder.shl(builder.ctpop(builder.xor(code, other)), shift), builder.trunc(index, word.type))
        return builder.select(builder.icmp_unsigned("<", new, word), new, word)

    return types.uint32(types.uint32, types.uint32, types.uint32, types.int64), generate


_distance: Any = intrinsic(_distance_code)
_nearer: Any = intrinsic(_nearer_code)


@inlined
def _nearest(code, table, counts, first, size, max_tokens, any_saturated):
    """Distance and index of the nearest cluster that takes tokens; the lowest index wins ties. Distance 63: none."""
    if size - first > 1 << INDEX_BITS or any_saturated:
        best, gap = 0, FAR
        for c in range(size - first):
            new: Any = np.int64(_distance(table[first + c], code))
            if new < gap and counts[first + c] < max_tokens:
                best, gap = c, new
        return gap, best
    word = np.uint32(0xFFFFFFFF)
    for c in range(size - first):
        word = _nearer(word, table[first + c], code, c)
    return np.int64(word) >> INDEX_BITS, np.int64(word) & (1 << INDEX_BITS) - 1


@compiled
def assign(
    codes, token, first, size, table, counts, born, limit, first_match, window, max_tokens, max_candidates,
    max_clusters, cluster, opened, count, distance, overflow, compared,
):  # fmt: skip
    """Cluster tokens in order by the rules of `golden.clustering.ClusterTable`, except `majority`.

    codes                 uint32 (T,), hash codes; `token` is the number of the first one
    first, size           first cluster inside the window, and number of clusters
    table, counts, born   hash code, tokens and first token of each cluster, with room for T more clusters
    window                0: no limit; max_candidates, max_clusters: -1: no limit
    cluster ... compared  results of each token, see `golden.clustering.Assignment`

    Returns the new `first` and `size`.
    """
    any_saturated = False
    for c in range(first, size):
        any_saturated |= counts[c] >= max_tokens
    for t in range(len(codes)):
        code = codes[t]
        if window:
            while first < size and born[first] < token - window:
                first += 1
        gap, nearest = _nearest(code, table, counts, first, size, max_tokens, any_saturated)
        nearest += first
        if first_match and gap < limit:
            for c in range(first, size):
                near = np.int64(_distance(table[c], code))
                if near < limit and counts[c] < max_tokens:
                    nearest, gap = c, near
                    break
        compared[t] = size - first
        full = size - first == max_candidates or size == max_clusters
        opened[t] = gap >= limit and not full
        overflow[t] = gap >= limit and full
        if opened[t]:
            nearest, gap = size, 0
            table[size], counts[size], born[size] = code, 0, token
            size += 1
        elif gap >= FAR:  # all candidates are saturated, or there is none
            nearest, gap = size - 1, 0
        counts[nearest] = min(counts[nearest] + 1, max_tokens)
        any_saturated |= counts[nearest] == max_tokens
        cluster[t], count[t], distance[t] = nearest, counts[nearest], gap
        token += 1
    return first, size


@compiled
def pack_signs(sums):
    """Bit j of entry t is 1 if `sums[t, j]` is positive: uint32 (T,)."""
    codes = np.empty(len(sums), np.uint32)
    for t in range(len(sums)):
        code = np.int64(0)
        for j in range(sums.shape[1]):
            code |= np.int64(sums[t, j] > 0) << j
        codes[t] = code
    return codes


@compiled
def add_keys(sums, slots, keys):
    """Add each key (T, D) to row `slots[t]` of `sums`, float32 with subnormals flushed to zero, in order."""
    for t in range(len(keys)):
        row = sums[slots[t]]
        for i in range(keys.shape[1]):
            value = row[i] + keys[t, i]
            row[i] = np.copysign(np.float32(0), value) if abs(value) < SMALLEST_NORMAL else value


@inlined
def _bit_length(value):
    bits = 0
    while value >> bits:
        bits += 1
    return bits


@compiled
def select_clusters(
    scores, highest, lowest, counts, factor, exponentials, wics_ratio_q16, buckets, refine_levels, selected
):  # fmt: skip
    """Select the clusters of every row as `golden.wicsum.select` does with its default weight, domain and stop rule.

    scores          float32 (R, C), C at least 1; highest, lowest: float32 (R,), their extremes
    counts          int32 (C,), tokens of each cluster
    factor          float32, distance in steps of the exponential per unit of score
    exponentials    uint16, BF16 exponential of each number of steps; the last entry is that of all longer distances
    wics_ratio_q16  share of the weighted sum that the selection exceeds, in units of 2**-16
    selected        bool (C,): set for the clusters that any row selects; other entries keep their values

    Returns the number of buckets that the WTU examines, a sum over the rows.
    """
    clusters = scores.shape[1]
    keys, weights = np.empty(clusters, np.int32), np.empty(clusters, np.int64)
    crossing = np.empty(clusters, np.int32)  # clusters of the bucket that crosses the threshold
    sums = np.empty(buckets, np.int64)
    farthest = np.float32(len(exponentials) - 1)
    bits = _bit_length(buckets) - 1
    high: Any = np.int64(exponentials[0])  # the exponential is monotonic, and 1 at the highest score
    passes = 0
    for r in range(len(scores)):
        row, maximum = scores[r], highest[r]
        low = np.int64(exponentials[np.int32(min((maximum - lowest[r]) * factor, farthest))])
        shift = max(_bit_length(high - low) - bits, 0)
        total = 0
        sums[:] = 0
        for c in range(clusters):
            key: Any = np.int64(exponentials[np.int32(min((maximum - row[c]) * factor, farthest))])
            # fixed point relative to the largest exponent, times tokens; numbers below the smallest one count as zero
            weight = ((key & 127 | 128) << 17 >> min((high >> 7) - (key >> 7), 63)) * (key > 127) * counts[c]
            keys[c], weights[c] = key, weight
            total += weight
            sums[high - key >> shift] += weight
        stop = (total >> 16) * wics_ratio_q16 + ((total & 0xFFFF) * wics_ratio_q16 >> 16)
        bound, top, above, n = low, high, 0, clusters
        for level in range(refine_levels + 1 if total > stop else 0):
            if level:
                shift = max(_bit_length(top - bound) - bits, 0)
                sums[:] = 0
                inside = 0
                for i in range(n):
                    c = crossing[i] if level > 1 else i
                    crossing[inside] = c
                    inside += bound <= keys[c] <= top
                n = inside
                for i in range(n):
                    c = crossing[i]
                    sums[top - keys[c] >> shift] += weights[c]
            bucket = 0
            while above + sums[bucket] <= stop:
                above += sums[bucket]
                bucket += 1
            passes += bucket + 1
            top -= bucket << shift
            bound = max(bound, top - (1 << shift) + 1)
            if shift == 0:
                break
        for c in range(clusters):
            selected[c] |= keys[c] >= bound
    return passes


@compiled
def tokens_of(selected, owners, first_always, last_always):
    """Tokens whose cluster is selected, and tokens that are always attended: int64, ascending.

    selected      bool (C,)
    owners        int32 (N,), cluster of each token; -1: always attended
    first_always  number of first tokens that are always attended; `last_always` of last tokens
    """
    n = len(owners)
    tokens = np.empty(n, np.int64)
    count = 0
    for t in range(n):
        tokens[count] = t
        count += t < first_always or t >= n - last_always or owners[t] < 0 or selected[owners[t]]
    return tokens[:count].copy()
