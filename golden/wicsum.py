"""WiCSum: selection of clusters by a weighted cumulative sum (V-Rex, Section IV-C, Eq. 1 to 3), as the WTU does it.

A row holds one score and one token count for each cluster. Clusters are selected in descending order of score until the
sum of `score * count` exceeds a ratio of the total. `exact` computes this in float64, `prefix` in the integers of the
hardware. `select` models the hardware, which never sorts: it divides the range of the keys into buckets, adds whole
buckets from the top, and divides the bucket that crosses the threshold again, `refine_levels` times. All values of
`select` are integers, so that the RTL matches bit for bit and the order of evaluation does not matter.
"""

from dataclasses import dataclass

import numpy as np

from util import checks

FRACTION_BITS = 24
MAX_COUNT = 65535
MAX_FINITE_CODE = 0x7F7F
INDEX_BITS = 20  # of a cluster's index in its row


@dataclass(frozen=True)
class WtuConfig:
    """Parameters of the WTU.

    buckets           buckets of one level, a power of two
    refine_levels     number of times that the bucket which crosses the threshold is divided again
    bucket_domain     `code`: buckets divide the key as an integer (logarithmic for BF16 scores); `linear`: its value
    max_row_clusters  longest row, in clusters
    weight            addend of a cluster: `score_x_tc` (score x tokens, Eq. 1), `score`, `tc` or `one`
    stop_rule         the selection ends when the sum `ratio`: exceeds a ratio of the total (Th_r-wics); `budget`:
                      reaches a number; `count`: reaches a number, with the lowest indices only of the last key value
    """

    buckets: int = 16
    refine_levels: int = 1
    bucket_domain: str = "code"
    max_row_clusters: int = 32768
    weight: str = "score_x_tc"
    stop_rule: str = "ratio"

    def __post_init__(self) -> None:
        checks.integer("buckets", self.buckets, 2, 4096)
        if self.buckets & (self.buckets - 1):
            raise ValueError(f"buckets must be a power of two, got {self.buckets}")
        checks.integer("refine_levels", self.refine_levels, 0, 32)
        checks.integer("max_row_clusters", self.max_row_clusters, 1, 1 << INDEX_BITS)
        checks.one_of("bucket_domain", self.bucket_domain, ("code", "linear"))
        checks.one_of("weight", self.weight, ("score_x_tc", "score", "tc", "one"))
        checks.one_of("stop_rule", self.stop_rule, ("ratio", "budget", "count"))
        if self.bucket_domain == "linear" and not self.weight.startswith("score"):
            raise ValueError(f"weight must be score_x_tc or score when bucket_domain is linear, got {self.weight!r}")


@dataclass(frozen=True)
class RowSelections:
    """Result of the WTU for R rows of C clusters.

    cutoff    uint16 (R,), lower bound of the last selected bucket (0 for an empty row)
    acc       int64 (R,), sum over the selected clusters
    passes    int32 (R,), buckets examined; 0 if the whole row is selected because its sum never exceeds stop_sum
    levels    int32 (R,), number of divisions into buckets; 0 likewise
    selected  bool (R, C)
    total     int64 (R,), sum over the row
    stop_sum  int64 (R,), the selection ends when `acc > stop_sum`
    """

    cutoff: np.ndarray
    acc: np.ndarray
    passes: np.ndarray
    levels: np.ndarray
    selected: np.ndarray
    total: np.ndarray
    stop_sum: np.ndarray


def exact(weights: np.ndarray, counts: np.ndarray, wics_ratio: float) -> np.ndarray:
    """Eq. 1 to 3 in float64: the shortest prefix in descending weight whose sum exceeds `wics_ratio` of the total.

    weights  (R, C), any sign
    counts   (C,) or (R, C), tokens of each cluster

    Returns bool (R, C). Equal weights are ordered by index. The whole row is selected if no prefix exceeds the
    threshold.
    """
    w = checks.reals("weights", weights, None, None)
    tc = _counts(counts, w.shape)
    threshold = checks.real("wics_ratio", wics_ratio, 0, 1) * (w * tc).sum(axis=1)
    order = np.argsort(-w, axis=1, kind="stable")
    acc = np.cumsum(np.take_along_axis(w * tc, order, axis=1), axis=1)
    exceeds = acc > threshold[:, None]
    selected_prefix = np.cumsum(exceeds, axis=1) - exceeds == 0
    selected = np.zeros(w.shape, bool)
    np.put_along_axis(selected, order, selected_prefix, axis=1)
    return selected


def _counts(counts: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    if np.shape(counts) not in (shape, shape[1:]):
        raise ValueError(f"counts must have shape {shape[1:]} or {shape}, got {np.shape(counts)}")
    return np.broadcast_to(checks.integers("counts", counts, low=0, high=MAX_COUNT), shape)


def fixed_point(codes: np.ndarray) -> np.ndarray:
    """Non-negative BF16 numbers (R, C) as int64 with 24 fraction bits, relative to each row's largest exponent.

    `(128 + fraction) << 17 >> (largest exponent - exponent)`, truncated. Subnormals count as zero.
    """
    exponent = codes >> 7
    largest = exponent.max(axis=1, keepdims=True, initial=0)
    mantissa = (codes & 127 | 128) << FRACTION_BITS - 7
    return (mantissa >> largest - exponent) * (exponent > 0)  # a shift by 64 or more gives 0


def ratio_threshold(total: np.ndarray, wics_ratio_q16: int) -> np.ndarray:
    """`(total * wics_ratio_q16) >> 16`, int64, without the 70-bit product."""
    ratio = checks.integer("wics_ratio_q16", wics_ratio_q16, 0, 1 << 16)
    return (total >> 16) * ratio + ((total & 0xFFFF) * ratio >> 16)


def select(codes: np.ndarray, counts: np.ndarray, target: int, config: WtuConfig | None = None) -> RowSelections:
    """Select the clusters of every row as the WTU does.

    codes   integers (R, C), selected in descending order: finite non-negative BF16 bit patterns if the weight uses the
            score, else any 16-bit key (`golden.selection.sortable`)
    counts  integers (C,) or (R, C), 0 to 65535: tokens of each cluster
    target  stop rule `ratio`: ratio in units of 2**-16 (19661 is 0.3); `budget`, `count`: number to reach
    config  parameters; None: defaults
    """
    config = config or WtuConfig()
    keys, value, weight, threshold = _addends(codes, counts, target, config)
    total = weight.sum(axis=1)
    domain = value if config.bucket_domain == "linear" else keys
    bound, passes, levels = _sweep(domain, weight, total, threshold, config)
    selected = domain >= bound[:, None]
    # the bound of a linear bucket is not a code: use the smallest selected code instead
    cutoff = bound if domain is keys else np.where(selected, keys, 0xFFFF).min(axis=1, initial=0xFFFF)
    if config.stop_rule == "count":
        last = keys == bound[:, None]
        remaining_count = target - (selected & ~last).sum(axis=1)
        selected &= ~last | (np.cumsum(last, axis=1) <= remaining_count[:, None])
    acc = np.where(selected, weight, 0).sum(axis=1)
    return RowSelections(
        cutoff=(cutoff if keys.shape[1] else np.zeros(len(keys))).astype(np.uint16),
        acc=acc,
        passes=passes.astype(np.int32),
        levels=levels.astype(np.int32),
        selected=selected,
        total=total,
        stop_sum=threshold,
    )


def prefix(codes: np.ndarray, counts: np.ndarray, target: int, config: WtuConfig | None = None) -> np.ndarray:
    """Eq. 1 to 3 in integers: the shortest prefix in descending code whose sum exceeds the threshold of `select`.

    Equal codes are ordered by index. The whole row is selected if no prefix exceeds the threshold. Arguments are those
    of `select`, which adds whole buckets and therefore selects at least this prefix. Returns bool (R, C).
    """
    keys, _, weight, threshold = _addends(codes, counts, target, config or WtuConfig())
    order = np.argsort(-keys, axis=1, kind="stable")
    weight_before = np.cumsum(np.take_along_axis(weight, order, axis=1), axis=1) - np.take_along_axis(weight, order, 1)
    selected = np.zeros(keys.shape, bool)
    np.put_along_axis(selected, order, weight_before <= threshold[:, None], axis=1)
    return selected


def _addends(
    codes: np.ndarray, counts: np.ndarray, target: int, config: WtuConfig
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Keys, values and weights of the clusters, int64 (R, C), and the sum (R,) that a selection exceeds."""
    scored = config.weight.startswith("score")
    keys = checks.integers("codes", codes, None, None, low=0, high=MAX_FINITE_CODE if scored else 0xFFFF)
    if keys.shape[1] > config.max_row_clusters:
        raise ValueError(
            f"codes must have at most max_row_clusters = {config.max_row_clusters} columns, got {keys.shape[1]}"
        )
    tc = _counts(counts, keys.shape)
    value = fixed_point(keys) if scored else np.ones_like(keys)
    weight = value * tc if config.weight in ("score_x_tc", "tc") else value
    if config.stop_rule == "ratio":
        threshold = ratio_threshold(weight.sum(axis=1), target)
    else:
        threshold = np.full(len(keys), checks.integer("target", target, 1) - 1, np.int64)
    return keys, value, weight, threshold


def _sweep(
    keys: np.ndarray, weight: np.ndarray, total: np.ndarray, threshold: np.ndarray, config: WtuConfig
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lower bound of the last selected bucket, buckets examined and levels of every row: int64 (R,) each.

    Whole buckets are added from the top. The bucket that crosses the threshold is therefore the one that holds the key
    at which the sorted sum crosses. One sort gives this key; the levels are arithmetic on the bounds.
    """
    if not keys.shape[1]:
        none = np.zeros(len(keys), np.int64)
        return none, none, none
    low, high = keys.min(axis=1), keys.max(axis=1)
    # key and index in one word, largest key first: such words sort faster than indices by key
    rows, columns = np.arange(len(keys)), np.arange(keys.shape[1])
    words = np.sort((high[:, None] - keys << INDEX_BITS) + columns, axis=1)
    indices = (words & (1 << INDEX_BITS) - 1) + rows[:, None] * keys.shape[1]
    exceeds = np.cumsum(weight.ravel()[indices], axis=1) > threshold[:, None]
    crossing = high - (words[rows, exceeds.argmax(axis=1)] >> INDEX_BITS)

    is_full_row = total <= threshold
    active = ~is_full_row
    bits = config.buckets.bit_length() - 1
    passes, levels = np.zeros((2, len(keys)), np.int64)
    bound, top = low.copy(), high.copy()
    for _ in range(config.refine_levels + 1):
        shift = np.maximum(np.frexp((top - bound).astype(np.float64))[1] - bits, 0)  # frexp gives the bit length
        bucket = top - crossing >> shift
        passes += np.where(active, bucket + 1, 0)
        levels += active
        top = np.where(active, top - (bucket << shift), top)
        bound = np.where(active, np.maximum(bound, top - (1 << shift) + 1), bound)
        active &= shift > 0
    return bound, passes, levels


def sweep_cycles(clusters: int, passes: np.ndarray, lanes: int = 16) -> np.ndarray:
    """Cycles of a row if every bucket reads the whole row: load with min and max, sum, then one read per pass."""
    beats = -(-checks.integer("clusters", clusters, 0) // checks.integer("lanes", lanes, 1))
    return (2 + np.asarray(passes, np.int64)) * beats
