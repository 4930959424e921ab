"""WiCSum compared with its equations and a plain bucket sweep, one row and one bucket at a time."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import wicsum
from golden.wicsum import WtuConfig, select

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=150)


def plain_value(code: int, largest_exponent: int) -> int:
    exponent, mantissa = code >> 7, code & 127 | 128
    return 0 if exponent == 0 else (mantissa << 17) >> (largest_exponent - exponent)


def plain_prefix(keys, adds, threshold) -> list[int]:
    """The shortest prefix in descending key, lowest index first on ties, whose sum exceeds the threshold."""
    selected, acc = [], 0
    for j in sorted(range(len(keys)), key=lambda j: (-keys[j], j)):
        selected.append(j)
        acc += adds[j]
        if acc > threshold:
            break
    return selected


def plain_sweep(keys, adds, threshold, buckets, refine_levels):
    """(lower bound, sum, buckets examined, levels) with buckets walked one by one from the top."""
    low, high, acc, passes = min(keys), max(keys), 0, 0
    if sum(adds) <= threshold:
        return low, sum(adds), 0, 0
    for level in range(refine_levels + 1):
        width = 1 << max(0, (high - low).bit_length() - (buckets.bit_length() - 1))
        upper = high
        while True:
            lower = max(low, upper - width + 1)
            inside = sum(a for k, a in zip(keys, adds, strict=True) if lower <= k <= upper)
            passes += 1
            if acc + inside > threshold:
                break
            acc += inside
            upper = lower - 1
        if level == refine_levels or width == 1:
            return lower, acc + inside, passes, level + 1
        low, high = lower, upper
    raise AssertionError


codes_and_counts = st.integers(1, 40).flatmap(
    lambda n: st.tuples(
        st.lists(st.one_of(st.integers(0, 0x7F7F), st.integers(0x3E00, 0x3F80)), min_size=n, max_size=n),
        st.lists(st.one_of(st.integers(0, 65535), st.integers(0, 3)), min_size=n, max_size=n),
    )
)


@SETTINGS
@given(
    codes_and_counts,
    st.sampled_from([0, 1, 6554, 19661, 40000, 65535, 65536]),
    st.sampled_from([2, 4, 16, 64]),
    st.integers(0, 4),
    st.sampled_from(["code", "linear"]),
    st.sampled_from(["score_x_tc", "score"]),
)
def test_ratio_sweep_matches_reference(row, ratio, buckets, refine, domain, weight):
    codes, counts = row
    largest = max(codes) >> 7
    values = [plain_value(c, largest) for c in codes]
    adds = [v * (t if weight == "score_x_tc" else 1) for v, t in zip(values, counts, strict=True)]
    threshold = sum(adds) * ratio >> 16
    keys = codes if domain == "code" else values
    bound, acc, passes, levels = plain_sweep(keys, adds, threshold, buckets, refine)

    config = WtuConfig(buckets=buckets, refine_levels=refine, bucket_domain=domain, weight=weight)
    got = select(np.array([codes]), np.array(counts), ratio, config)
    expected = [k >= bound for k in keys]
    assert got.selected[0].tolist() == expected
    assert (int(got.acc[0]), int(got.passes[0]), int(got.levels[0])) == (acc, passes, levels)
    assert (int(got.total[0]), int(got.stop_sum[0])) == (sum(adds), threshold)
    cutoff = bound if domain == "code" else min(c for c, e in zip(codes, expected, strict=True) if e)
    assert got.cutoff[0] == cutoff and got.cutoff.dtype == np.uint16


@SETTINGS
@given(codes_and_counts, st.sampled_from([0, 6554, 19661, 60000]), st.integers(0, 3))
def test_selection_contains_equation_3_and_ends_on_it(row, ratio, refine):
    codes, counts = row
    largest = max(codes) >> 7
    values = [plain_value(c, largest) for c in codes]
    threshold = sum(v * t for v, t in zip(values, counts, strict=True)) * ratio >> 16
    adds = [v * t for v, t in zip(values, counts, strict=True)]
    prefix = plain_prefix(codes, adds, threshold)
    got = select(np.array([codes]), np.array(counts), ratio, WtuConfig(refine_levels=refine))
    assert got.selected[0][prefix].all()
    if refine == 3:
        cutoff = min(codes[j] for j in prefix)
        assert got.selected[0].tolist() == [c >= cutoff for c in codes]


@SETTINGS
@given(codes_and_counts, st.integers(0, 3), st.randoms(use_true_random=False))
def test_order_of_clusters_does_not_matter(row, refine, random):
    codes, counts = row
    order = list(range(len(codes)))
    random.shuffle(order)
    config = WtuConfig(refine_levels=refine)
    a = select(np.array([codes]), np.array(counts), 19661, config)
    b = select(np.array([[codes[j] for j in order]]), np.array([counts[j] for j in order]), 19661, config)
    assert (a.cutoff[0], a.acc[0], a.passes[0]) == (b.cutoff[0], b.acc[0], b.passes[0])
    assert (a.selected[0][order] == b.selected[0]).all()


@SETTINGS
@given(codes_and_counts, st.integers(1, 70_000))
def test_budget_reaches_its_number_with_whole_code_values(row, budget):
    codes, counts = row
    got = select(
        np.array([codes]),
        np.array(counts),
        budget,
        WtuConfig(refine_levels=3, weight="tc", stop_rule="budget"),
    )
    best = next(
        (
            c
            for c in sorted(set(codes), reverse=True)
            if sum(t for k, t in zip(codes, counts, strict=True) if k >= c) >= budget
        ),
        min(codes),
    )
    assert got.selected[0].tolist() == [c >= best for c in codes]
    assert got.acc[0] == sum(t for c, t in zip(codes, counts, strict=True) if c >= best)


@SETTINGS
@given(st.lists(st.integers(0, 40), min_size=1, max_size=60), st.integers(1, 70))
def test_count_selects_k_in_index_order(codes, k):
    counts = np.ones(len(codes), int)
    got = select(np.array([codes]), counts, k, WtuConfig(refine_levels=3, weight="one", stop_rule="count"))
    expected = sorted(sorted(range(len(codes)), key=lambda j: (-codes[j], j))[:k])
    assert np.flatnonzero(got.selected[0]).tolist() == expected
    assert got.acc[0] == min(k, len(codes))


@SETTINGS
@given(
    codes_and_counts,
    st.sampled_from([0, 1, 6554, 19661, 32768, 60000, 65536]),
    st.sampled_from(["score_x_tc", "score", "tc", "one"]),
)
def test_integer_prefix_matches_python_integers(row, ratio, weight):
    codes, counts = row
    largest = max(codes) >> 7
    value = [plain_value(c, largest) if weight.startswith("score") else 1 for c in codes]
    adds = [v * t if weight in ("score_x_tc", "tc") else v for v, t in zip(value, counts, strict=True)]
    config = WtuConfig(refine_levels=3, weight=weight)
    got = wicsum.prefix(np.array([codes]), np.array(counts), ratio, config)
    assert np.flatnonzero(got[0]).tolist() == sorted(plain_prefix(codes, adds, sum(adds) * ratio >> 16))
    assert (got <= select(np.array([codes]), np.array(counts), ratio, config).selected).all()


@SETTINGS
@given(codes_and_counts, st.integers(1, 70_000))
def test_integer_prefix_reaches_budget_and_count(row, target):
    codes, counts = row
    for weight, rule, adds in (("tc", "budget", counts), ("one", "count", [1] * len(codes))):
        config = WtuConfig(refine_levels=3, weight=weight, stop_rule=rule)
        got = wicsum.prefix(np.array([codes]), np.array(counts), target, config)
        assert np.flatnonzero(got[0]).tolist() == sorted(plain_prefix(codes, adds, target - 1))
        if rule == "count":
            assert (got == select(np.array([codes]), np.array(counts), target, config).selected).all()


def test_integer_prefix_ends_on_threshold_where_float64_does_not():
    """Ten clusters of weight one: three of them are 30 % of the total, so a fourth one exceeds it."""
    codes, counts = np.full((2, 10), 0x3F80), np.ones(10, int)
    assert wicsum.prefix(codes, counts, 19660).sum(axis=1).tolist() == [3, 3], "a ratio just below 0.3"
    assert wicsum.prefix(codes, counts, 19661).sum(axis=1).tolist() == [4, 4], "a ratio just above 0.3"
    assert wicsum.prefix(np.zeros((3, 0), int), np.zeros(0, int), 19661).shape == (3, 0)
    assert wicsum.prefix(np.zeros((1, 4), int), np.ones(4, int), 19661).all(), "a sum of zero selects all"


def test_integer_prefix_names_bad_input():
    for codes, counts, target, message in (
        ([[0x7F80]], [1], 1, "codes must be between 0 and 32639, got 32640"),
        ([[1]], [1, 2], 1, "counts must have shape"),
        ([[1]], [1], 65537, "wics_ratio_q16 must be between 0 and 65536, got 65537"),
    ):
        with pytest.raises(ValueError, match=message):
            wicsum.prefix(np.array(codes), np.array(counts), target)


def test_exact_equations_against_rational_arithmetic(rng):
    for n in (1, 2, 17, 60):
        # multiples of 1/64, so that neither computation rounds; signs and ties both occur
        weights = rng.integers(-40, 200, (20, n))
        counts = rng.integers(0, 50, n)
        got = wicsum.exact(weights / 64, counts, 0.25)
        for row, sel in zip(weights.tolist(), got, strict=True):
            scaled = [Fraction(w, 64) for w in row]
            adds = [w * int(t) for w, t in zip(scaled, counts, strict=True)]
            assert sorted(plain_prefix(scaled, adds, sum(adds) / 4)) == np.flatnonzero(sel).tolist()


def test_rows_are_independent(rng):
    codes = rng.integers(0x3000, 0x3F81, (50, 300))
    counts = rng.integers(1, 100, (50, 300))
    together = select(codes, counts, 19661)
    for r in range(50):
        alone = select(codes[r : r + 1], counts[r], 19661)
        assert (together.cutoff[r], together.acc[r], together.passes[r]) == (
            alone.cutoff[0],
            alone.acc[0],
            alone.passes[0],
        )
        assert (together.selected[r] == alone.selected[0]).all()


def test_accumulator_widths_at_the_largest_row():
    """4096 clusters of 65535 tokens at the largest code: products of 41 bits, a sum of 53, no overflow."""
    codes, counts = np.full((1, 4096), 0x7F7F), np.full(4096, 65535)
    got = select(codes, counts, 19661)
    product = (255 << 17) * 65535
    assert product.bit_length() == 41 and (product * 4096).bit_length() == 53
    assert got.total[0] == product * 4096
    assert got.stop_sum[0] == product * 4096 * 19661 >> 16
    assert got.selected.all() and got.acc[0] == got.total[0] and got.passes[0] == 1


def test_boundaries():
    empty = select(np.zeros((3, 0), int), np.zeros(0, int), 19661)
    assert empty.selected.shape == (3, 0) and empty.cutoff.tolist() == [0, 0, 0] and not empty.passes.any()
    none = select(np.zeros((0, 4), int), np.ones(4, int), 19661)
    assert none.selected.shape == (0, 4) and none.acc.shape == (0,)
    zero = select(np.array([[0, 1, 127]]), np.array([5, 5, 5]), 19661)  # zero and subnormals: the sum is zero
    assert zero.selected.all() and zero.cutoff[0] == 0 and zero.passes[0] == 0
    full = select(np.array([[100 << 7, 101 << 7]]), np.array([1, 1]), 1 << 16)  # the sum cannot exceed itself
    assert full.selected.all() and full.cutoff[0] == 100 << 7


def test_linear_buckets_fail_with_one_sink():
    """One token 8 nats above a flat rest: linear buckets select everything, code buckets select only the sink."""
    codes = np.full((1, 1000), 0x39B0)  # about exp(-8)
    codes[0, :500] = 0x3990
    codes[0, 0] = 0x3F80
    counts = np.full(1000, 4)
    counts[0] = 1
    for refine in (0, 1):
        linear = select(codes, counts, 30000, WtuConfig(bucket_domain="linear", refine_levels=refine))
        assert linear.selected.all()
    code = select(codes, counts, 30000, WtuConfig(refine_levels=1))
    value = np.select([codes == 0x3F80, codes == 0x39B0], [1.0, 3.4e-4], 2.7e-4)
    exact = wicsum.exact(value, counts, 0.4578)
    assert exact.sum() <= code.selected.sum() < 520


def test_cycles_of_the_plain_sweep():
    """40K tokens in 1250 clusters, 320 rows on 8 cores, 12.7 passes: 46 thousand cycles, 58 us at 800 MHz."""
    per_row = 14.7 * 79
    assert wicsum.sweep_cycles(1250, np.array([0, 12, 13])).tolist() == [158, 1106, 1185]
    assert round(per_row) == 1161 and round(per_row * 40 / 800) == 58


@pytest.mark.parametrize(
    ("codes", "counts", "target", "message"),
    [
        ([[0x7F80]], [1], 1, "codes must be between 0 and 32639, got 32640"),
        ([[-1]], [1], 1, "codes must be between"),
        ([[1, 2]], [1], 1, r"counts must have shape \(2,\) or \(1, 2\), got \(1,\)"),
        ([[1]], [65536], 1, "counts must be between 0 and 65535, got 65536"),
        ([[1]], [1], 65537, "wics_ratio_q16 must be between 0 and 65536, got 65537"),
        ([1], [1], 1, r"codes must have shape \(any, any\)"),
        ([[1] * 32769], [1] * 32769, 1, "max_row_clusters = 32768 columns, got 32769"),
    ],
)
def test_bad_rows_are_named(codes, counts, target, message):
    with pytest.raises(ValueError, match=message):
        select(np.array(codes), np.array(counts), target)


def test_row_limit_is_configurable():
    rows, counts, four = np.ones((1, 5), int), np.ones(5, int), WtuConfig(max_row_clusters=4)
    with pytest.raises(ValueError, match="max_row_clusters = 4 columns, got 5"):
        select(rows, counts, 1, four)
    assert select(rows[:, :4], counts[:4], 1, four).selected.any()


def test_bad_types_and_targets_are_named():
    with pytest.raises(TypeError, match="codes must be an array of integers, got dtype float64"):
        select(np.array([[0.5]]), np.array([1]), 1)
    with pytest.raises(ValueError, match="target must be at least 1, got 0"):
        select(np.array([[1]]), np.array([1]), 0, WtuConfig(weight="one", stop_rule="count"))
    with pytest.raises(ValueError, match="weights must be finite, got nan"):
        wicsum.exact(np.array([[np.nan]]), np.array([1]), 0.3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"buckets": 12}, "buckets must be a power of two, got 12"),
        ({"refine_levels": -1}, "refine_levels must be between 0 and 32, got -1"),
        ({"bucket_domain": "log"}, "bucket_domain must be one of code, linear, got 'log'"),
        ({"weight": "x"}, "weight must be one of"),
        ({"stop_rule": "x"}, "stop_rule must be one of"),
        ({"weight": "one", "bucket_domain": "linear"}, "when bucket_domain is linear, got 'one'"),
        ({"max_row_clusters": 0}, "max_row_clusters must be between 1 and"),
    ],
)
def test_bad_configurations_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        WtuConfig(**change)
