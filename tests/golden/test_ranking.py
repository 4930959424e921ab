"""Ranking of scores: exact scores compared with Python's sort, equal scores with rounding errors, several rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import ranking

SETTINGS = settings(derandomize=True, database=None, deadline=None)
NOISE = 1e-15


@SETTINGS
@given(
    scores=st.lists(st.integers(-3, 3), max_size=30),
    noise=st.lists(st.integers(-4, 4), min_size=30, max_size=30),
    k=st.integers(0, 31),
)
def test_lowest_index_wins_ties_with_and_without_rounding_errors(scores, noise, k):
    expected = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    exact = np.array(scores, float)
    assert ranking.order(exact).tolist() == expected
    rounded = exact + NOISE * np.array(noise[: len(scores)])
    assert ranking.order(rounded, scale=3.0).tolist() == expected
    assert ranking.largest(rounded, k, scale=3.0).tolist() == expected[:k]


def test_scores_that_differ_by_more_than_the_tolerance_stay_apart():
    step = 2 * ranking.TIE
    assert ranking.order(1 + step * np.array([0, 1, 2])).tolist() == [2, 1, 0]
    assert ranking.order(1 + step / 4 * np.array([0, 1, 2])).tolist() == [0, 1, 2]


def test_scale_belongs_to_each_score():
    scores = np.array([1e-14, 2e-14, 1.0])
    assert ranking.order(scores).tolist() == [2, 1, 0], "relative to the scores themselves"
    assert ranking.order(scores, scale=1.0).tolist() == [2, 0, 1]
    assert ranking.order(scores, scale=np.array([1e-14, 2e-14, 1.0])).tolist() == [2, 1, 0]


def test_rows_are_independent(rng):
    scores = rng.integers(0, 4, (3, 5, 7)) + NOISE * rng.integers(-4, 5, (3, 5, 7))
    got = ranking.order(scores, scale=4.0)
    for row in np.ndindex(3, 5):
        assert got[row].tolist() == ranking.order(scores[row], scale=4.0).tolist()


def test_no_scores_have_an_empty_order():
    assert ranking.order(np.zeros((2, 0))).shape == (2, 0)


def test_bad_scores_are_named():
    with pytest.raises(ValueError, match="scores must be finite, got nan at index"):
        ranking.order(np.array([1, np.nan]))
    with pytest.raises(ValueError, match="k must be at least 0, got -1"):
        ranking.largest(np.ones(3), -1)
