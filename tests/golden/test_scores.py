"""Scores and their transforms compared with scalar Python floats."""

import math

import ml_dtypes
import numpy as np
import pytest

from golden import scores
from golden.attention import EXP_ERROR

PLAIN = {
    "exp": lambda row, d: [math.exp((s - max(row)) / math.sqrt(d)) for s in row],
    "raw": lambda row, d: [s / math.sqrt(d) for s in row],
    "shift_min": lambda row, d: [s - min(row) for s in row],
    "relu": lambda row, d: [max(s, 0.0) for s in row],
}


@pytest.mark.parametrize("transform", scores.TRANSFORMS)
def test_transforms(transform, rng):
    rows = rng.standard_normal((7, 30)) * 20
    got = scores.weights(rows, 64, transform)
    for row, weight in zip(rows.tolist(), got, strict=True):
        assert weight == pytest.approx(PLAIN[transform](row, 64), rel=1e-12, abs=1e-300)


def test_codes_are_the_exponential_to_0_65_percent(rng):
    rows = (rng.standard_normal((20, 200)) * 60).astype(np.float32)
    code = scores.codes(rows, 128)
    value = code.view(ml_dtypes.bfloat16).astype(np.float64)
    exact = scores.weights(rows, 128, "exp")
    normal = exact > 2.0**-125
    assert (np.abs(value / exact - 1)[normal] <= EXP_ERROR).all()
    assert (code.max(axis=1) == 0x3F80).all()  # the maximum is exactly one
    for row, c in zip(rows, code, strict=True):
        assert (np.diff(c[np.argsort(row)].astype(int)) >= 0).all()


def test_query_rows_order_heads_of_group(rng):
    q = rng.standard_normal((3, 6, 4))
    rows = scores.query_rows(q, 2)
    assert rows.shape == (2, 9, 4)
    for h in range(2):
        for t in range(3):
            for a in range(3):
                assert (rows[h, t * 3 + a] == q[t, h * 3 + a]).all()
    with pytest.raises(ValueError, match="queries must have a multiple of 4 heads, got 6"):
        scores.query_rows(q, 4)


def test_dots_are_rounded_once(rng):
    q, means = (rng.integers(-128, 128, (n, 16)) / 64 for n in (5, 9))
    got = scores.dots(q, means)
    assert got.dtype == np.float32
    for r in range(5):
        for c in range(9):
            assert got[r, c] == np.float32(math.fsum(a * b for a, b in zip(q[r], means[c], strict=True)))


def test_equal_mean_keys_have_equal_scores(rng):
    """The exact score lies halfway between two float32 numbers, so a last bit of a sum would decide the rounding."""
    tiny = [2.0**-30, -(2.0**-30)]
    means = np.array([[1.0, 2.0**-24, *tiny], [1.0, *tiny, 2.0**-24], [*tiny, 2.0**-24, 1.0]])
    q = 3 * np.ones((1, 4)) / 3
    assert len(set(scores.dots(q, means)[0].tolist())) == 1
    wide = rng.standard_normal(77)
    for scale in 2.0 ** np.arange(24):
        row = np.r_[wide * scale, 1.0 + 2.0**-24, -wide * scale][None]
        means = np.concatenate([row, row[:, ::-1], np.roll(row, 20)] * 3)
        assert scores.dots(np.ones((1, 155)), means)[0].tolist() == [np.float32(1.0)] * 9


def test_no_tokens_and_wrong_axes_of_queries_are_named():
    for queries, heads, message in (
        (np.ones((0, 4, 8)), 2, "queries must hold at least one token, got none"),
        (np.ones((4, 8)), 2, r"queries must have shape \(T, Hq, d\), got \(4, 8\)"),
        (np.ones((2, 4, 8)), 0, "kv_heads must be at least 1, got 0"),
        (np.ones((2, 0, 8)), 2, "queries must have a multiple of 2 heads, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            scores.query_rows(queries, heads)


def test_empty_tables_score_nothing():
    assert scores.dots(np.ones((4, 8)), np.ones((0, 8))).shape == (4, 0)
    assert scores.codes(np.zeros((4, 0), np.float32), 8).shape == (4, 0)
    assert scores.weights(np.zeros((4, 0)), 8).shape == (4, 0)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="transform must be one of exp, raw, relu, shift_min, got 'softmax'"):
        scores.weights(np.ones((1, 1)), 8, "softmax")
    with pytest.raises(ValueError, match=r"means must have shape \(any, 4\), got \(2, 3\)"):
        scores.dots(np.ones((1, 4)), np.ones((2, 3)))
    with pytest.raises(ValueError, match="scores must be finite, got inf"):
        scores.weights(np.array([[np.inf]]), 8)
