"""Every selection rule compared with a sort of the values."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import selection

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=100)
finite = st.floats(-(2.0**127), 2.0**127, width=32)


def codes(values) -> np.ndarray:
    return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)


def test_sortable_orders_every_finite_code_by_value():
    every = np.arange(0x10000, dtype=np.uint16)
    every = every[np.isfinite(every.view(ml_dtypes.bfloat16).astype(np.float32))]
    ordered = every[np.argsort(selection.sortable(every))].view(ml_dtypes.bfloat16).astype(np.float64)
    assert (np.diff(ordered) >= 0).all()
    assert selection.sortable(np.array([0x8000, 0x0000])).tolist() == [0x7FFF, 0x8000]  # -0 is ordered below +0


@SETTINGS
@given(st.lists(finite, min_size=1, max_size=80), st.integers(1, 90))
def test_top_k_is_the_sorted_prefix(values, k):
    rounded = codes(values).view(ml_dtypes.bfloat16).astype(np.float64)
    signed = [(-v, np.signbit(v), j) for j, v in enumerate(rounded)]
    expected = sorted(j for _, _, j in sorted(signed)[:k])
    assert np.flatnonzero(selection.top_k(codes(values)[None], k).selected[0]).tolist() == expected


@SETTINGS
@given(st.lists(st.floats(0, 2.0**127, width=32), min_size=1, max_size=80), st.integers(1, 90))
def test_smallest_norms_are_selected(values, k):
    values = np.abs(values)  # no -0
    rounded = codes(values).view(ml_dtypes.bfloat16).astype(np.float64)
    expected = sorted(sorted(range(len(values)), key=lambda j: (rounded[j], j))[:k])
    assert np.flatnonzero(selection.smallest(codes(values)[None], k).selected[0]).tolist() == expected


@SETTINGS
@given(
    st.lists(st.tuples(st.floats(-1, 1, width=32), st.integers(1, 400)), min_size=1, max_size=60),
    st.integers(1, 9000),
)
def test_budget_selects_best_cosines(clusters, budget):
    cosines, sizes = zip(*clusters, strict=True)
    keys = [(-v, np.signbit(v)) for v in codes(cosines).view(ml_dtypes.bfloat16).astype(np.float64)]
    got = selection.by_budget(codes(cosines)[None], np.array(sizes), budget).selected[0]
    expected, tokens = set(), 0
    for key in sorted(set(keys)):
        if tokens >= budget:
            break
        members = [j for j, other in enumerate(keys) if other == key]
        expected |= set(members)
        tokens += sum(sizes[j] for j in members)
    assert set(np.flatnonzero(got).tolist()) == expected


def test_by_ratio_is_the_default_mode(rng):
    rows = codes(np.exp(-rng.exponential(2.0, (30, 200))))
    counts = rng.integers(1, 60, 200)
    got = selection.by_ratio(rows, counts)
    weights = rows.view(ml_dtypes.bfloat16).astype(np.float64) * counts
    mass = (weights * got.selected).sum(axis=1) / weights.sum(axis=1)
    assert (mass > 0.2999).all() and got.selected.mean() < 0.5


@pytest.mark.parametrize("code", [0x7F80, 0xFF80, 0x7FC0])
def test_infinities_and_nan_raise(code):
    with pytest.raises(ValueError, match="must be finite BF16"):
        selection.top_k(np.array([[code]]), 1)
    with pytest.raises(ValueError, match="norms must be between 0 and 32639"):
        selection.smallest(np.array([[code]]), 1)


@pytest.mark.parametrize("entries, count, step", [(1, 4, 4), (64, 4, 4), (63, 7, 4), (200, 64, 16), (65, 64, 64)])
def test_covering_rows(entries, count, step):
    """The rows together select everything, and each one begins at a multiple of the stride."""
    row, stride = selection.covering_row(entries, count, step)
    starts = range(0, entries, stride)
    assert 0 < stride <= count and stride % step == 0 and starts[-1] + entries <= len(row)
    rows = np.stack([row[start : start + entries] for start in starts])
    selected = selection.top_k(rows, count).selected
    assert selected.any(axis=0).all() and (selected.sum(axis=1) == min(count, entries)).all()
    with pytest.raises(ValueError, match=rf"^count must be at least {step}, got {step - 1}$"):
        selection.covering_row(entries, step - 1, step)
