"""Exponential of scores compared with a scalar Python version and with float64."""

import math

import numpy as np
import pytest

from golden import bf16
from golden.bf16 import FP32
from golden.exp import exp, exp_rows, scale, table

FLOAT = np.float32


def plain(score, maximum, d):
    """The definition, one value at a time."""
    c = FLOAT(math.log2(math.e) * 256 / math.sqrt(d))
    with np.errstate(over="ignore", under="ignore"):
        u = math.floor(FLOAT(FLOAT(maximum - score) * c))
    i, f = u >> 8, u & 255
    v, e = 2.0 ** (-f / 256), 0
    if v < 1:
        v, e = 2 * v, 1
    m = round(128 * v)  # Python rounds half to even
    if m == 256:
        m, e = 128, e - 1
    exponent = 127 - i - e
    return 0 if exponent <= 0 else exponent << 7 | (m - 128)


@pytest.mark.parametrize("d", [1, 8, 64, 80, 128])
def test_equals_the_definition(rng, d):
    scores = np.concatenate([rng.standard_normal(400) * s for s in (0.01, 1, 30, 1000)]).astype(FLOAT)
    top = scores.max()
    expected = [plain(s, top, d) for s in scores]
    np.testing.assert_array_equal(exp_rows(scores, d), expected)


@pytest.mark.parametrize("d", [1, 64, 1 << 20])
def test_rows_equal_the_bit_exact_operations(rng, d):
    """Everything between the host's FP32 and the flushing one: subnormal scores and distances, overflow."""
    size = np.float32(2.0) ** rng.integers(-149, 128, (40, 60)).astype(FLOAT)
    rows = (size * rng.choice([-1, 0, 1], size.shape)).astype(FLOAT)
    rows[0] = np.nextafter(FLOAT(1), FLOAT(2)) * FLOAT(2.0**-100)
    rows[0, ::2] = FLOAT(2.0**-100)
    code, top = bf16.encode(rows, FP32), bf16.encode(rows.max(axis=1, keepdims=True), FP32)
    np.testing.assert_array_equal(exp_rows(rows, d), exp(code, top, scale(d)))


@pytest.mark.parametrize("d", [8, 64, 128])
def test_relative_error_and_monotony(d):
    distance = np.linspace(0, 80 * math.sqrt(d), 200_001).astype(FLOAT)
    code = exp_rows(-distance, d)
    assert code[0] == 0x3F80
    assert np.all(np.diff(code.astype(int)) <= 0)
    exact = np.exp(-distance.astype(np.float64) / math.sqrt(d))
    relative = np.abs(bf16.decode(code) / exact - 1)
    assert relative.max() <= (1 + 2**-8) * 2 ** (1 / 256) - 1


def test_table_has_every_step_once():
    fraction, borrow = table()
    assert fraction[0] == borrow[0] == 0
    assert np.all(np.diff((1 - borrow) * 128 + fraction) <= 0)
    for f in range(256):
        assert abs((1 + fraction[f] / 128) / 2 ** borrow[f] / 2 ** (-f / 256) - 1) <= 2**-8


def test_scores_above_maximum(rng):
    one, far = bf16.encode(np.array([1.0, 1e30]), FP32)
    nan, infinity = np.uint32(FP32.nan), np.uint32(FP32.infinity)
    factor = scale(64)
    assert exp(far, one, factor) == 0x3F80  # above the maximum
    assert exp(one, far, factor) == 0
    assert exp(one, infinity, factor) == 0
    assert exp(infinity, infinity, factor) == exp(nan, one, factor) == exp(one, nan, factor) == 0x7FC0


def test_bad_arguments():
    with pytest.raises(TypeError, match="float32"):
        exp_rows(np.zeros(3), 64)
    with pytest.raises(ValueError, match="last axis"):
        exp_rows(np.zeros((2, 0), FLOAT), 64)
    with pytest.raises(ValueError, match="finite"):
        exp_rows(np.array([np.nan], FLOAT), 64)
    with pytest.raises(ValueError, match="head_dim"):
        exp_rows(np.zeros(3, FLOAT), 0)
