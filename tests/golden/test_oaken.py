"""Quantisation of keys and values compared with a scalar version, and its cost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import oaken
from golden.oaken import Thresholds

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=80)


def plain_row(row, t):
    """One token, value by value: (read back, outliers)."""

    def group(x):
        if t.inner_low <= x <= t.inner_high:
            return "inner"
        return "outer" if x < t.outer_low or x > t.outer_high else "middle"

    def signed(x, largest):
        step = largest / 15
        return 0.0 if step == 0 else (1 if x > 0 else -1) * round(abs(x) / step) * step

    kinds = [group(x) for x in row]
    inner = max([abs(x) for x, g in zip(row, kinds, strict=True) if g == "inner"], default=0)
    edge = [t.outer_low if x < 0 else t.outer_high for x in row]
    outer = max([abs(x - e) for x, e, g in zip(row, edge, kinds, strict=True) if g == "outer"], default=0)
    shifted = [x - (t.inner_low if x < 0 else t.inner_high) for x, g in zip(row, kinds, strict=True) if g == "middle"]
    low, high = min(shifted, default=0), max(shifted, default=0)
    points = []
    for i in range(16):
        p = low + (high - low) * i / 15
        points.append(p + (t.inner_low if p < 0 else t.inner_high))
    out = []
    for x, e, g in zip(row, edge, kinds, strict=True):
        if g == "inner":
            out.append(signed(x, inner))
        elif g == "outer":
            out.append(e + signed(x - e, outer))
        else:
            out.append(min(points, key=lambda p: abs(p - x)))
    return out, sum(g != "middle" for g in kinds)


@SETTINGS
@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=40))
def test_matches_one_value_at_a_time(row):
    t = Thresholds(-6.0, -0.25, 0.25, 5.0)
    got = oaken.quantise(np.array([row]), t)
    values, outliers = plain_row(row, t)
    # either of two equally near points is correct, so the errors are compared
    assert np.abs(got.values[0] - row) == pytest.approx(np.abs(np.array(values) - row), abs=1e-9)
    assert got.outliers == outliers and got.bits == 4 * len(row) + 8 * outliers + 64


def test_group_shares_and_errors(rng):
    samples = rng.standard_normal((200, 1024)) * 3
    samples[:, :8] *= 6  # a few channels of large magnitude, as keys have
    t = oaken.profile(samples)
    got = oaken.quantise(samples, t)
    assert got.outliers / samples.size == pytest.approx(0.10, abs=0.005)
    assert got.bits / samples.size == pytest.approx(4 + 0.1 * 8 + 64 / 1024, abs=0.05)
    middle = (np.abs(samples) > t.inner_high) & (samples > t.outer_low) & (samples < t.outer_high)
    half_step = (t.outer_high - t.outer_low - 2 * t.inner_high) / 15 / 2
    across = half_step + t.inner_high  # the two points next to zero are apart by a step and by the gap
    assert np.abs(got.values - samples)[middle].max() <= across
    assert np.quantile(np.abs(got.values - samples)[middle], 0.8) <= half_step
    inner = np.abs(samples) <= t.inner_high
    assert np.abs(got.values - samples)[inner].max() <= t.inner_high / 15
    plain = np.abs(samples).max(axis=1, keepdims=True) / 7
    uniform = np.rint(samples / plain) * plain  # four bits without groups
    assert np.square(got.values - samples).mean() < np.square(uniform - samples).mean() / 10


def test_edge_rows():
    t = Thresholds(-1, -0.1, 0.1, 1)
    zero = oaken.quantise(np.zeros((2, 4)), t)
    assert (zero.values == 0).all() and zero.outliers == 8
    assert oaken.quantise(np.zeros((0, 4)), t).bits == 0
    one = oaken.quantise(np.array([[0.5], [-7.0]]), t)  # alone in its group a value is exact
    assert one.values.ravel() == pytest.approx([0.5, -7.0])


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="thresholds must be finite, ascend"):
        Thresholds(1, -1, 1, 2)
    with pytest.raises(ValueError, match="samples must hold at least one value"):
        oaken.profile(np.zeros(0))
    with pytest.raises(ValueError, match="x must be finite"):
        oaken.quantise(np.array([[np.inf]]), Thresholds(-1, 0, 0, 1))
