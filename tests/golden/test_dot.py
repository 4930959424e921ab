"""Fused dot product compared with its definition in Python integers, and with exact rationals and the error bound."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import bf16
from golden.bf16 import FP32
from golden.dot import dot, matmul, to_bf16
from tests.golden import reference
from tests.golden.dot_cases import adversarial

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=200)


def check_bound(a, b, y, width):
    terms = [reference.fraction(x) * reference.fraction(z) for x, z in zip(a, b, strict=True)]
    exact, largest, result = sum(terms), max(map(abs, terms)), reference.fraction(y, 23)
    bound = (len(terms) - 1) * Fraction(4, 1 << width) * largest + abs(result) / (1 << 24) + Fraction(1, 1 << 126)
    assert abs(result - exact) <= bound


@pytest.mark.parametrize("width", [16, 20, 24, 30])
@pytest.mark.parametrize("n", [1, 2, 5, 16, 64])
def test_adversarial_cases(rng, n, width):
    for name, (a, b) in adversarial(rng, n, 12).items():
        y = dot(a, b, width)
        for row in range(len(a)):
            assert int(y[row]) == reference.fused_dot(a[row], b[row], width), name
            finite = all(np.all(v[row] & 0x7F80 != 0x7F80) for v in (a, b))
            if finite and int(y[row]) & 0x7F800000 != 0x7F800000:
                check_bound(a[row], b[row], y[row], width)


@SETTINGS
@given(
    st.integers(16, 30),
    st.lists(st.tuples(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF)), min_size=1, max_size=8),
)
def test_random_vectors_match_exact_sum(width, pairs):
    a, b = np.array(pairs, np.uint16).T
    assert int(dot(a, b, width)) == reference.fused_dot(a, b, width)


def test_single_product_is_exact(rng):
    a, b = (rng.integers(0, 1 << 16, 50_000, dtype=np.uint16) for _ in range(2))
    wide = [bf16.convert(v, bf16.BF16, FP32) for v in (a, b)]
    product = bf16.multiply(*wide, FP32)
    product = np.where(product == 0x80000000, 0, product)
    np.testing.assert_array_equal(np.where(product == 0, 0, dot(a[:, None], b[:, None])), product)


def test_order_does_not_matter(rng):
    a, b = adversarial(rng, 64, 20)["wide"]
    order = rng.permutation(64)
    np.testing.assert_array_equal(dot(a, b), dot(a[:, order], b[:, order]))


def test_matmul_against_float64(rng):
    x, w = (bf16.encode(rng.standard_normal(shape)) for shape in ((5, 300), (7, 300)))
    y = bf16.decode(matmul(x, w, 64), FP32)
    exact = bf16.decode(x) @ bf16.decode(w).T
    size = np.abs(bf16.decode(x)) @ np.abs(bf16.decode(w)).T
    assert np.all(np.abs(y - exact) <= 2.0**-20 * size)
    tile = dot(x[:, None, :64], w[None, :, :64])
    for k in range(64, 300, 64):
        part = [np.pad(v[:, k : k + 64], ((0, 0), (0, max(0, k + 64 - 300)))) for v in (x, w)]
        tile = bf16.encode(bf16.decode(tile, FP32) + bf16.decode(dot(part[0][:, None], part[1][None]), FP32), FP32)
    np.testing.assert_array_equal(matmul(x, w, 64), tile)
    rounded = bf16.decode(to_bf16(matmul(x, w, 64)))
    assert np.all(np.abs(rounded - y) <= 2.0**-8 * np.abs(y))


def test_bad_arguments():
    one = np.zeros(1, np.uint16)
    with pytest.raises(ValueError, match="align_bits must be between 16 and 30, got 15"):
        dot(one, one, 15)
    with pytest.raises(ValueError, match="last axis"):
        dot(np.zeros(0, np.uint16), np.zeros(0, np.uint16))
    with pytest.raises(TypeError, match="a must hold BF16"):
        dot(np.zeros(1), one)
    with pytest.raises(ValueError, match="must have shapes"):
        matmul(np.zeros((1, 2), np.uint16), np.zeros((1, 3), np.uint16), 4)


def test_matmul_without_rows_is_refused():
    some, none = np.zeros((3, 8), np.uint16), np.zeros((0, 8), np.uint16)
    for x, weights, name in ((none, some, "x"), (some, none, "weights"), (none, none, "x")):
        with pytest.raises(ValueError, match=f"{name} must have at least one row, got none"):
            matmul(x, weights, 4)


def test_operands_that_do_not_broadcast_are_named():
    with pytest.raises(ValueError, match=r"a and b must have shapes that broadcast, got \(3, 8\) and \(7,\)"):
        dot(np.zeros((3, 8), np.uint16), np.zeros(7, np.uint16))
