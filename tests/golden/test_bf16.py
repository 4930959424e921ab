"""BF16 and FP32 operations compared with integer arithmetic, exact rationals and ml_dtypes."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import bf16
from golden.bf16 import BF16, FP32
from tests.golden import reference

SPECIAL = np.array(
    [0x0000, 0x8000, 0x0001, 0x807F, 0x0080, 0x8080, 0x3F80, 0xBF80, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0xFFA5],
    np.uint16,
)
FRACTIONS = np.arange(128)
ALL_FRACTIONS = [axis.ravel() for axis in np.meshgrid(FRACTIONS, FRACTIONS, indexing="ij")]


def code(sign, exponent, fraction):
    return (sign << 15 | exponent << 7 | fraction).astype(np.uint16)


def ieee(value):
    """BF16 codes of float64 values that need no rounding subtlety: the special cases."""
    with np.errstate(over="ignore"):
        return np.asarray(value, np.float64).astype(ml_dtypes.bfloat16).view(np.uint16)


def finite(rng, n, width=16):
    values = rng.integers(0, 1 << width, n, dtype=np.uint32)
    fraction_bits = width - 9
    values = np.where(values >> fraction_bits & 0xFF == 0xFF, values ^ 1 << fraction_bits, values)
    return values.astype(np.uint16 if width == 16 else np.uint32)


# exponent fields whose sum lies around underflow (128), the middle and overflow (381), and both zero classes
EXPONENTS = (
    [(0, 127), (1, 1), (1, 125), (1, 126), (1, 127), (1, 128), (2, 127), (64, 64), (127, 127), (200, 100)],
    [(127, 254), (254, 126), (254, 127), (254, 128), (190, 191), (254, 254), (0, 254), (0, 0)],
)


@pytest.mark.parametrize("pair", [pair for row in EXPONENTS for pair in row])
@pytest.mark.parametrize("sign", [(0, 0), (0, 1), (1, 1)])
def test_multiply_every_significand_pair(pair, sign):
    a, b = code(sign[0], pair[0], ALL_FRACTIONS[0]), code(sign[1], pair[1], ALL_FRACTIONS[1])
    np.testing.assert_array_equal(bf16.multiply(a, b), reference.multiply(a, b))
    np.testing.assert_array_equal(bf16.multiply(b, a), reference.multiply(a, b))


@pytest.mark.parametrize("top", [0, 1, 2, 8, 9, 127, 253, 254])
@pytest.mark.parametrize("opposite", [0, 1])
def test_add_every_significand_pair(top, opposite):
    for distance in [*range(13), 40, 253]:
        if distance > top:
            continue
        a, b = code(0, top, ALL_FRACTIONS[0]), code(opposite, top - distance, ALL_FRACTIONS[1])
        expected = reference.add(a, b)
        np.testing.assert_array_equal(bf16.add(a, b), expected)
        np.testing.assert_array_equal(bf16.add(b, a), expected)
        np.testing.assert_array_equal(bf16.subtract(a, b ^ np.uint16(0x8000)), expected)


def test_special_values():
    a, b = np.meshgrid(SPECIAL, SPECIAL)
    flushed = [np.where(x & 0x7F80, x, x & 0x8000).astype(np.uint16).view(ml_dtypes.bfloat16) for x in (a, b)]
    with np.errstate(invalid="ignore"):
        x, y = (v.astype(np.float64) for v in flushed)
        for ours, exact in ((bf16.add(a, b), x + y), (bf16.multiply(a, b), x * y), (bf16.subtract(a, b), x - y)):
            expected = np.where(np.isnan(exact), 0x7FC0, ieee(exact))
            expected = np.where(expected & 0x7F80, expected, expected & 0x8000)
            np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("width", [16, 32])
def test_random_pairs(rng, width):
    fmt = BF16 if width == 16 else FP32
    compare_random(rng, fmt, 400_000)


@pytest.mark.heavy
def test_hundred_million_pairs(rng):
    for _ in range(100):
        compare_random(rng, BF16, 1_000_000)


def compare_random(rng, fmt, n):
    a, b = finite(rng, n, fmt.width), finite(rng, n, fmt.width)
    near = (rng.integers(-26, 27, n) + (a >> fmt.fraction_bits & 0xFF).astype(np.int64)).clip(0, 254)
    b = np.where(np.arange(n) % 2, b, b & ~fmt.dtype(0xFF << fmt.fraction_bits) | near << fmt.fraction_bits)
    b = b.astype(fmt.dtype)  # every second pair has exponents close enough to interact
    np.testing.assert_array_equal(bf16.multiply(a, b, fmt), reference.multiply(a, b, fmt.fraction_bits))
    np.testing.assert_array_equal(bf16.add(a, b, fmt), reference.add(a, b, fmt.fraction_bits))


def test_conversion_of_every_bf16_value():
    every = np.arange(1 << 16, dtype=np.uint16)
    wide = bf16.convert(every, BF16, FP32)
    with np.errstate(invalid="ignore"):  # signalling NaN
        expected = every.view(ml_dtypes.bfloat16).astype(np.float32)
    expected = np.where(every & 0x7F80, expected, np.copysign(np.float32(0), expected))
    np.testing.assert_array_equal(wide, np.where(np.isnan(expected), 0x7FC00000, expected.view(np.uint32)))
    back = np.where((every & 0x7FFF) > 0x7F80, 0x7FC0, np.where(every & 0x7F80, every, every & 0x8000))
    np.testing.assert_array_equal(bf16.convert(wide, FP32, BF16), back)


def test_conversion_to_bf16_rounds_to_nearest_even(rng):
    """Below 2**-126, numbers that round to it with an unlimited exponent become 2**-126, all others zero."""
    upper = np.append(finite(rng, 20_000), [0x7E, 0x7F, 0x807E, 0x807F]).astype(np.uint32) << 16
    for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xBFFF, 0xC000, 0xFFFF):
        values = (upper | low).view(np.float32)
        tiny = np.where(np.abs(values) >= 2.0**-126 * (1 - 2.0**-9), np.float32(2.0**-126), np.float32(0))
        expected = np.where(upper & 0x7F800000, values, np.copysign(tiny, values))
        np.testing.assert_array_equal(
            bf16.encode(values), expected.astype(ml_dtypes.bfloat16).view(np.uint16), err_msg=hex(low)
        )


@settings(derandomize=True, database=None, deadline=None, max_examples=300)
@given(st.floats(allow_nan=False, allow_infinity=False, width=64))
def test_encode_is_nearest(value):
    ours = int(bf16.encode(value))
    if ours & 0x7FFF == 0:
        assert abs(value) < 2.0**-126
    elif ours & 0x7FFF == 0x7F80:
        assert abs(value) >= (2 - 2.0**-8) * 2.0**127
    else:
        step = reference.fraction(ours & 0x7F80) / 128
        error = abs(reference.fraction(ours) - type(step)(value))
        assert error < step / 2 or (error == step / 2 and ours & 1 == 0)


def test_wrong_dtypes_raise():
    with pytest.raises(TypeError, match="must hold BF16 bit patterns"):
        bf16.add(np.zeros(2), np.zeros(2, np.uint16))


def test_divide_is_rounded_once(rng):
    """Against rationals, quotients close to middles of two BF16 numbers among them."""
    divisor = rng.integers(1, 1 << 16, 400)
    middle = (2 * rng.integers(128, 256, 400) + 1) * divisor  # times 2**k: a tie
    near = np.concatenate([middle + d for d in (-1, 0, 1)]).astype(np.float64)
    a = np.concatenate([near, rng.standard_normal(400)]).astype(np.float32)
    b = np.concatenate([divisor, divisor, divisor, rng.standard_normal(400)]).astype(np.float32)
    got = bf16.decode(bf16.divide(a.view(np.uint32), b.view(np.uint32)))
    for x, y, q in zip(a, b, got, strict=True):
        exact = Fraction(float(x)) / Fraction(float(y))
        significand = Fraction(q) / Fraction(2) ** (int(np.floor(np.log2(abs(q)))) - 7)
        error = abs(exact - Fraction(q)) / abs(Fraction(q) / significand)
        assert error < Fraction(1, 2) or (error == Fraction(1, 2) and significand % 2 == 0) or abs(significand) == 128


def test_divide_specials():
    zero, one, infinity, nan = 0, 0x3F800000, 0x7F800000, 0x7FC00000
    a = np.array([zero, zero, one, one, infinity, infinity, one, nan], np.uint32)
    b = np.array([zero, one, zero, infinity, infinity, one, zero | 1 << 31, one], np.uint32)
    expected = [0x7FC0, 0, 0x7F80, 0, 0x7FC0, 0x7F80, 0xFF80, 0x7FC0]
    np.testing.assert_array_equal(bf16.divide(a, b), expected)
