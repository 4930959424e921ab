"""Compiled kernels of ReSV on a processor: Hamming search, mean keys, scores, selection of clusters, lists of tokens.

The results equal those of `golden.clustering`, `golden.mean_keys`, `golden.scores`, `golden.exp` and `golden.wicsum` in
every bit. The kernels are single-threaded, allocate their results only, and need no PyTorch.

LLVM compiles the long loops to vector instructions. It needs three things. Each array is read from index 0 on: any
other start could be negative, which Python allows. Arithmetic has 32 bits: numba widens integers to 64 bits, so the
functions `_..._code` emit LLVM instructions. The loop has no table and no early exit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from golden.exp import FARTHEST, FRACTION_BITS
from util.compiled import compiled, inlined

INDEX_BITS = 26  # of a cluster's index, below the six bits of its distance
FAR = 63  # distance larger than that of any two hash codes, as in `golden.clustering`
NO_CLUSTER = np.uint32(0xFFFFFFFF)  # word of a cluster that takes no tokens: distance FAR
SEARCH_CLUSTERS = 64  # the search reads a multiple of this number of clusters
SMALLEST_NORMAL = np.float32(2.0**-126)
BF16_DROPPED = 45  # fraction bits of float64 that BF16 does not have
# An element of n significant bits is a multiple of 2**(1 - n) times its power of two, thus of more than 2**-n times
# itself: products of 8-bit numbers, at most 2**53 multiples in a sum, one bit as margin.
EXACT_SPREAD = 2.0 ** (53 - 8 - 8 - 1)
ONE = 127 << 7  # BF16 code of 1.0, the exponential of the highest score
# 256 * 2**(-f / 256) for f = 0 to 255, in ascending powers of f. The error is below 0.0005, and every exact value is at
# least 0.004 away from a number where rounding to an integer changes.
POWER_OF_TWO = (255.99951, -0.69305038, 9.3530893e-4, -8.1220838e-7, 4.0794298e-10)


def _distance_code(typing_context: Any, code: Any, other: Any) -> Any:
    """Hamming distance of two 32-bit codes; compiled to the population count of the processor."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(builder.xor(*arguments))

    return types.uint32(types.uint32, types.uint32), generate


def _nearer_code(typing_context: Any, word: Any, code: Any, other: Any, index: Any) -> Any:
    """Smaller one of `word` and the word of (distance of two codes, index)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, code, other, index = arguments
        distance = builder.ctpop(builder.xor(code, other))
        new = builder.or_(builder.shl(distance, word.type(INDEX_BITS)), index)
        return builder.select(builder.icmp_unsigned("<", new, word), new, word)

    return types.uint32(types.uint32, types.uint32, types.uint32, types.uint32), generate


def _larger_code(typing_context: Any, value: Any, other: Any) -> Any:
    """Larger one of two float32 numbers; not defined for NaN, and for zeros of both signs either one."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        flags = ("nnan", "nsz")
        larger = builder.fcmp_ordered(">", *arguments, flags=flags)
        return builder.select(larger, *arguments, flags=flags)

    return types.float32(types.float32, types.float32), generate


def _exponential_code(typing_context: Any, distance: Any) -> Any:
    """BF16 code of 2 ** (-floor(distance) / 256), as `golden.exp.power`; float32, at least 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (distance,) = arguments
        real, integer = distance.type, ir.IntType(32)
        farthest = real(float(FARTHEST))
        distance = builder.select(builder.fcmp_ordered("<", distance, farthest), distance, farthest)
        steps = builder.fptosi(distance, integer)
        fraction = builder.sitofp(builder.and_(steps, integer((1 << FRACTION_BITS) - 1)), real)
        power = real(POWER_OF_TWO[-1])
        for coefficient in POWER_OF_TWO[-2::-1]:
            power = builder.fadd(builder.fmul(power, fraction), real(coefficient))
        significand = builder.fptosi(builder.fadd(power, real(0.5)), integer)  # 129 to 256
        halvings = builder.lshr(steps, integer(FRACTION_BITS))
        code = builder.sub(builder.add(significand, integer(ONE - 256)), builder.shl(halvings, integer(7)))
        return builder.select(builder.icmp_signed("<", code, integer(128)), integer(0), code)  # subnormals are zero

    return types.int32(types.float32), generate


def _fixed_point_code(typing_context: Any, code: Any) -> Any:
    """A BF16 code from 0 to 1.0 with 24 fraction bits, as `golden.wicsum.fixed_point` in a row with a 1.0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (code,) = arguments
        number = code.type
        mantissa = builder.shl(builder.or_(builder.and_(code, number(127)), number(128)), number(17))
        shift = builder.sub(number(ONE >> 7), builder.lshr(code, number(7)))
        shift = builder.select(builder.icmp_unsigned("<", shift, number(31)), shift, number(31))
        value = builder.lshr(mantissa, shift)
        return builder.select(builder.icmp_unsigned("<", code, number(128)), number(0), value)

    return types.uint32(types.int32), generate


_distance: Any = intrinsic(_distance_code)
_nearer: Any = intrinsic(_nearer_code)
_larger: Any = intrinsic(_larger_code)
_exponential: Any = intrinsic(_exponential_code)
_fixed_point: Any = intrinsic(_fixed_point_code)


@inlined
def _nearest(code, table, indices, first, size):
    """Distance and index of the nearest cluster that takes tokens; the lowest index wins ties. Distance 63: none."""
    stop = first + (size - first + SEARCH_CLUSTERS - 1) // SEARCH_CLUSTERS * SEARCH_CLUSTERS
    codes, words = table[first:stop], indices[first:stop]
    word = NO_CLUSTER
    for c in range(len(codes)):
        word = _nearer(word, code, codes[c], words[c])
    return np.int64(word) >> INDEX_BITS, np.int64(word) & (1 << INDEX_BITS) - 1


@compiled
def assign(
    codes, token, first, size, table, counts, born, limit, first_match, window, max_tokens, max_candidates,
    max_clusters, cluster, opened, count, distance, overflow, compared,
):  # fmt: skip
    """Cluster tokens in order by the rules of `golden.clustering.ClusterTable`, except `majority`.

    codes                 uint32 (T,), hash codes; `token` is the number of the first one
    first, size           first cluster inside the window, and number of clusters
    table, counts, born   hash code, tokens and first token of each cluster, with room for T + SEARCH_CLUSTERS more
    window                0: no limit; max_candidates, max_clusters: -1: no limit
    cluster ... compared  results of each token, see `golden.clustering.Assignment`

    Returns the new `first` and `size`.
    """
    indices = np.empty(len(table), np.uint32)  # of the clusters that take tokens
    for c in range(len(table)):
        indices[c] = c if c < size and counts[c] < max_tokens else NO_CLUSTER
    for t in range(len(codes)):
        code = codes[t]
        if window:
            while first < size and born[first] < token - window:
                first += 1
        gap, nearest = _nearest(code, table, indices, first, size)
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
            table[size], counts[size], born[size], indices[size] = code, 0, token, size
            size += 1
        elif gap == FAR:  # all candidates are saturated, or there is none
            nearest, gap = size - 1, 0
        counts[nearest] = min(counts[nearest] + 1, max_tokens)
        if counts[nearest] == max_tokens:
            indices[nearest] = NO_CLUSTER
        cluster[t], count[t], distance[t] = nearest, counts[nearest], gap
        token += 1
    return first, size


@compiled
def hash_codes(vectors, normals, lengths, error, codes):
    """Hash codes of vectors (T, D): bit j is 1 if the dot product with column j of `normals` (D, B) is positive.

    lengths  float64 (B,), Euclidean length of each column
    error    bound of the error of a float64 sum, as a share of the product of the lengths
    codes    uint32 (T,), result

    Returns bool (T,): vectors with a sum whose sign is in doubt.
    """
    doubtful = np.empty(len(vectors), np.bool_)
    sums = np.empty(normals.shape[1])
    for t in range(len(vectors)):
        sums[:] = 0
        square = 0.0
        for i in range(vectors.shape[1]):
            value, normal = np.float64(vectors[t, i]), normals[i]
            square += value * value
            for j in range(len(sums)):
                sums[j] += value * normal[j]
        limit = error * np.sqrt(square)
        code, doubts = np.int64(0), 0
        for j in range(len(sums)):
            doubts += abs(sums[j]) <= limit * lengths[j]
            code |= np.int64(sums[j] > 0) << j
        codes[t], doubtful[t] = code, doubts > 0
    return doubtful


@inlined
def _flush(value):
    """float32 number; a subnormal one becomes a zero of the same sign."""
    return np.copysign(np.float32(0), value) if abs(value) < SMALLEST_NORMAL else value


@inlined
def _round_to_bf16(value):
    """float64 number, rounded to nearest even as `golden.bf16.encode` does."""
    bits = np.float64(value).view(np.int64)
    bits = bits + (1 << BF16_DROPPED - 1) - 1 + (bits >> BF16_DROPPED & 1) >> BF16_DROPPED << BF16_DROPPED
    result = np.int64(bits).view(np.float64)
    if abs(result) < SMALLEST_NORMAL:
        return np.copysign(0.0, value)
    return np.copysign(np.inf, value) if abs(result) >= 2.0**128 else result


@compiled
def update_means(means, sums, lengths, spreads, keys, clusters, counts):
    """Add the keys of a step to the mean keys of their clusters, as `golden.mean_keys.MeanKeys.update`.

    means     float64 (C, D), BF16 numbers; zeros for new clusters
    sums      float32 (C, D) for `mean_store` = `fp32_sum`; without rows for `bf16`
    lengths   float64 (C, H), Euclidean length of the mean key of each head; `spreads`: length divided by the smallest
              absolute value of an element that is not zero
    keys      float32 (T, D); `clusters` (T,): cluster of each key
    counts    int32 (C,), tokens of each cluster after the step
    """
    rows = np.full(len(counts), -1)  # row of a cluster in `step_sums`
    touched, added = np.empty(len(keys), np.int64), np.zeros(len(keys), np.int64)
    n = 0
    for cluster in clusters:
        if rows[cluster] < 0:
            rows[cluster], touched[n] = n, cluster
            n += 1
        added[rows[cluster]] += 1
    step_sums = np.empty((n, keys.shape[1]), np.float32)
    for i in range(n):
        row, mean = step_sums[i], means[touched[i]]
        old = np.float32(counts[touched[i]]) - np.float32(added[i])
        for j in range(len(row)):
            row[j] = sums[touched[i], j] if len(sums) else _flush(np.float32(mean[j]) * old)
    for t in range(len(keys)):
        row, key = step_sums[rows[clusters[t]]], keys[t]
        for j in range(len(row)):
            row[j] = _flush(row[j] + key[j])
    heads = lengths.shape[1]
    head_dim = keys.shape[1] // heads
    for i in range(n):
        cluster = touched[i]
        row, mean, total = step_sums[i], means[cluster], np.float64(np.float32(counts[cluster]))
        for j in range(len(row)):
            mean[j] = _round_to_bf16(np.float64(row[j]) / total)
        if len(sums):
            sums[cluster] = row
        for h in range(heads):
            lengths[cluster, h], spreads[cluster, h] = _length_and_spread(mean[h * head_dim : (h + 1) * head_dim])


@inlined
def _length_and_spread(vector):
    square, smallest = 0.0, np.inf
    for value in vector:
        square += value * value
        if 0 < abs(value) < smallest:
            smallest = abs(value)
    length = np.sqrt(square)
    return length, length / smallest


@compiled
def lengths_and_spreads(rows):
    """Euclidean length of each row (R, d), and length divided by the smallest absolute value of an element that is not
    zero: float64 (R,) each."""
    lengths, spreads = np.empty(len(rows)), np.empty(len(rows))
    for r in range(len(rows)):
        lengths[r], spreads[r] = _length_and_spread(rows[r])
    return lengths, spreads


@inlined
def _bit_length(value):
    bits = 0
    while value >> bits:
        bits += 1
    return bits


@inlined
def _sum_from(keys, weights, bound):
    """Sum of the weights whose key is at least `bound`."""
    total = 0
    for c in range(len(keys)):
        total += weights[c] if keys[c] >= bound else 0
    return total


@compiled
def round_scores(sums, row_lengths, row_spreads, column_lengths, column_spreads, scores):
    """Round dot products of vectors of BF16 numbers, float64 sums (R, C), to float32 `scores`.

    Returns bool (R,): rows with a score that can differ from the exact dot product, rounded. A sum is exact if the
    product of the spreads is small enough: all partial sums are then multiples of one power of two below 2**53 times
    this power. Otherwise the error of a sum is at most a share of the product of the lengths.
    """
    doubtful = np.empty(len(sums), np.bool_)
    for r in range(len(sums)):
        row, out = sums[r], scores[r]
        length, spread = row_lengths[r], row_spreads[r]
        doubts = 0
        for c in range(len(row)):
            error = length * column_lengths[c] if spread * column_spreads[c] > EXACT_SPREAD else 0.0
            out[c] = row[c]
            doubts += np.float32(row[c] - error) != np.float32(row[c] + error)
        doubtful[r] = doubts > 0
    return doubtful


@compiled
def select_clusters(scores, counts, factor, wics_ratio_q16, buckets, refine_levels, selected):
    """Select the clusters of every row as `golden.wicsum.select` does with its default weight, domain and stop rule.

    The WTU adds the sums of its buckets one after the other. Here a binary search over the buckets finds the one that
    crosses the threshold; each step adds the weights of the row from a bound on.

    scores          float32 (R, C), C at least 1
    counts          int32 (C,), tokens of each cluster
    factor          float32, distance in steps of the exponential per unit of score
    wics_ratio_q16  share of the weighted sum that the selection exceeds, in units of 2**-16
    selected        bool (C,): set for the clusters that any row selects; other entries keep their values
    """
    clusters = scores.shape[1]
    keys, weights = np.empty(clusters, np.int32), np.empty(clusters, np.int64)
    bits = _bit_length(buckets) - 1
    for r in range(len(scores)):
        row = scores[r]
        highest = row[0]
        for c in range(clusters):
            highest = _larger(row[c], highest)
        total, low = np.int64(0), np.int32(ONE)
        for c in range(clusters):
            key = _exponential((highest - row[c]) * factor)
            weight = np.int64(_fixed_point(key)) * np.int64(counts[c])
            keys[c], weights[c] = key, weight
            total += weight
            low = key if key < low else low
        stop = (total >> 16) * wics_ratio_q16 + ((total & 0xFFFF) * wics_ratio_q16 >> 16)
        bound, top = np.int64(low), ONE
        for _ in range(refine_levels + 1 if total > stop else 0):
            shift = max(_bit_length(top - bound) - bits, 0)
            bucket, last = 0, top - bound >> shift
            while bucket < last:
                middle = bucket + last >> 1
                if _sum_from(keys, weights, np.int32(top - (middle + 1 << shift) + 1)) > stop:
                    last = middle
                else:
                    bucket = middle + 1
            top -= bucket << shift
            bound = max(bound, np.int64(top - (1 << shift) + 1))
            if shift == 0:
                break
        cutoff = np.int32(bound)
        for c in range(clusters):
            selected[c] |= keys[c] >= cutoff


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
