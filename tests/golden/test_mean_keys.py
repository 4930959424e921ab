"""Mean keys compared with exact rationals, within the rounding of the format, and with a scalar float32 chain."""

from fractions import Fraction

import numpy as np
import pytest
from ml_dtypes import bfloat16

from golden.mean_keys import MeanKeys


def nearest_even_bf16(value: Fraction) -> float:
    """The BF16 value nearest to `value`, by search over neighbours of a plain cast."""
    guess = np.array(float(value), np.float32).astype(bfloat16).view(np.uint16)
    options = [int(guess) + step for step in (-1, 0, 1)]
    floats = {
        o: Fraction(float(np.uint16(o).view(bfloat16))) for o in options if 0 <= o < 0x7F80 or 0x8000 <= o < 0xFF80
    }
    return float(floats[min(floats, key=lambda o: (abs(floats[o] - value), o & 1))])


def test_mean_matches_scalar_chain(rng):
    steps, dimension = 12, 7
    keep = MeanKeys(dimension)
    means, counts = {}, {}
    for _ in range(steps):
        keys = rng.standard_normal((10, dimension)).astype(bfloat16)
        target = np.minimum(rng.integers(0, 6, 10), max(counts, default=-1) + 1 + np.arange(10) * 0)
        order = {}
        for key, cluster in zip(keys, target, strict=True):
            order.setdefault(int(cluster), []).append(key)
        for cluster, members in order.items():
            before = counts.get(cluster, 0)
            after = before + len(members)
            mean = []
            for i in range(dimension):
                acc = np.float32(means[cluster][i]) * np.float32(before) if before else np.float32(0)
                for member in members:
                    acc = np.float32(acc + np.float32(member[i]))
                mean.append(nearest_even_bf16(Fraction(float(acc)) / after))
            means[cluster], counts[cluster] = mean, after
        keep.update(keys, target, np.array([counts[c] for c in sorted(counts)]))
    assert keep.means.astype(float).tolist() == [means[c] for c in sorted(means)]


def test_fp32_sum_is_more_accurate(rng):
    keys = rng.standard_normal((400, 16)).astype(bfloat16)
    exact = keys.astype(np.float64).mean(axis=0)
    error = {}
    for store in ("bf16", "fp32_sum"):
        keep = MeanKeys(16, store)
        for n in range(0, 400, 10):
            keep.update(keys[n : n + 10], np.zeros(10, int), np.array([n + 10]))
        error[store] = np.abs(keep.means[0].astype(float) - exact).max()
    assert error["fp32_sum"] <= 2.0**-8 * np.abs(exact).max()  # half a unit in the last place of the rounded mean
    assert error["fp32_sum"] < error["bf16"]


def test_rejects():
    keep = MeanKeys(4)
    with pytest.raises(ValueError, match="keys must have shape"):
        keep.update(np.zeros((2, 3)), np.zeros(2, int), np.array([2]))
    with pytest.raises(ValueError, match="clusters must be"):
        keep.update(np.zeros((2, 4)), np.array([0, 5]), np.array([2]))
    with pytest.raises(ValueError, match="mean_store"):
        MeanKeys(4, "fp16")


def test_fewer_clusters_raise(rng):
    keep = MeanKeys(4)
    keep.update(rng.standard_normal((3, 4)).astype(bfloat16), [0, 1, 2], [1, 1, 1])
    with pytest.raises(ValueError, match="counts must have at least 3 clusters, got 2"):
        keep.update(rng.standard_normal((1, 4)).astype(bfloat16), [0], [2, 1])
