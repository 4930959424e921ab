"""Reciprocal, reciprocal square root and SiLU for all 65,536 inputs, compared with integers and float64."""

from fractions import Fraction

import numpy as np
import pytest

from golden import bf16
from golden.elementary import reciprocal, rsqrt, silu
from tests.golden.reference import fraction

ALL = np.arange(1 << 16).astype(np.uint16)
NAN = (ALL & 0x7FFF) > 0x7F80
EXPONENT = ALL >> 7 & 0xFF
NORMAL = (EXPONENT > 0) & (EXPONENT < 255)
SPECIAL = np.array([0x0000, 0x8000, 0x0001, 0x807F, 0x7F80, 0xFF80, 0x7F81, 0xFFC0], np.uint16)


def halfway(code):
    """Exact middles between the number of a positive code and the numbers below and above it."""
    value = fraction(code)
    below = value - Fraction(fraction(code) - fraction(code - 1)) / 2 if code > 0x80 else value * Fraction(255, 256)
    step = Fraction(2) ** (int(code >> 7) - 127 - 7)
    return below, value + step / 2


def positive():
    """Codes of a few binades, the outermost among them; the others differ by powers of two only."""
    return [int(c) for c in ALL if EXPONENT[c] in (1, 2, 127, 128, 252, 253, 254) and c < 0x8000]


def test_reciprocal_is_correctly_rounded():
    for code in positive():
        x, y = fraction(code), int(reciprocal(np.uint16(code)))
        if y == 0:
            assert 1 / x < Fraction(2) ** -126 * Fraction(511, 512)
        else:
            low, high = halfway(y)
            assert low * x <= 1 <= high * x
    np.testing.assert_array_equal(reciprocal(ALL[NORMAL] ^ np.uint16(0x8000)), reciprocal(ALL[NORMAL]) ^ 0x8000)
    lower = ALL[(EXPONENT > 0) & (EXPONENT < 252)]
    np.testing.assert_array_equal(reciprocal(lower + np.uint16(0x80)), reciprocal(lower) - 0x80)


def test_rsqrt_is_correctly_rounded():
    for code in positive():
        x = fraction(code)
        low, high = halfway(int(rsqrt(np.uint16(code))))
        assert low * low * x <= 1 <= high * high * x
    lower = ALL[(EXPONENT > 0) & (EXPONENT < 253) & (ALL < 0x8000)]
    np.testing.assert_array_equal(rsqrt(lower + np.uint16(0x100)), rsqrt(lower) - 0x80)


def test_silu_is_within_one_unit():
    x = bf16.decode(ALL[~NAN & (ALL != 0xFF80)])
    y = bf16.decode(silu(ALL[~NAN & (ALL != 0xFF80)]))
    with np.errstate(over="ignore", invalid="ignore"):
        exact = np.where(x > -700, x / (1 + np.exp(-x)), 0)
    finite, flushed = np.isfinite(x), np.abs(exact) < 2.0**-126 * (1 - 2.0**-9)
    np.testing.assert_array_equal(y[~finite], np.inf)
    np.testing.assert_array_equal(y[flushed], 0)
    normal = finite & ~flushed
    unit = np.exp2(np.maximum(np.floor(np.log2(np.abs(exact[normal]))), -126) - 7)
    off = np.abs(y[normal] - exact[normal]) / unit
    assert off.max() < 0.993
    assert (off > 0.5).mean() < 0.02  # all others are correctly rounded
    assert np.array_equal(np.signbit(y), np.signbit(x))


def test_zeros_infinities_nan():
    np.testing.assert_array_equal(reciprocal(SPECIAL), [0x7F80, 0xFF80, 0x7F80, 0xFF80, 0, 0x8000, 0x7FC0, 0x7FC0])
    np.testing.assert_array_equal(rsqrt(SPECIAL), [0x7F80, 0xFF80, 0x7F80, 0xFF80, 0, 0x7FC0, 0x7FC0, 0x7FC0])
    np.testing.assert_array_equal(silu(SPECIAL), [0, 0x8000, 0, 0x8000, 0x7F80, 0x8000, 0x7FC0, 0x7FC0])
    for function in (reciprocal, rsqrt, silu):
        np.testing.assert_array_equal(function(ALL[NAN]), bf16.BF16.nan)
    assert np.all(rsqrt(ALL[NORMAL & (ALL > 0x8000)]) == bf16.BF16.nan)


@pytest.mark.parametrize("function", [reciprocal, rsqrt, silu])
def test_non_bit_patterns_raise(function):
    with pytest.raises(TypeError, match="BF16 bit patterns"):
        function(np.zeros(3))
