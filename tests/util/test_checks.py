"""Argument checks: accepted values, and errors with name, value and valid range."""

import numpy as np
import pytest

from util import checks


def test_valid_values_pass():
    assert checks.integer("n", np.int32(3), 0, 3) == 3
    assert checks.real("x", 2) == 2.0
    assert checks.one_of("mode", "b", ("a", "b")) == "b"
    assert checks.reals("x", [[1, 2]], 1, None).dtype == np.float64
    assert checks.integers("i", [], None).dtype == np.int64
    assert checks.integers("i", np.array([3], np.uint8), 1, low=0, high=3).tolist() == [3]


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: checks.integer("n", 1.0), TypeError, "n must be an integer, got 1.0"),
        (lambda: checks.integer("n", True), TypeError, "n must be an integer, got True"),
        (lambda: checks.integer("n", -1, 0), ValueError, "n must be at least 0, got -1"),
        (lambda: checks.integer("n", 9, 0, 8), ValueError, "n must be between 0 and 8, got 9"),
        (lambda: checks.real("x", "1"), TypeError, "x must be a number, got '1'"),
        (lambda: checks.real("x", float("nan")), ValueError, "x must be finite, got nan"),
        (lambda: checks.real("x", 2, high=1), ValueError, "x must be finite and at most 1, got 2.0"),
        (lambda: checks.one_of("m", "z", ("b", "a")), ValueError, "m must be one of a, b, got 'z'"),
        (lambda: checks.reals("x", "ab"), TypeError, "x must be an array of real numbers, got str"),
        (lambda: checks.reals("x", [1, 2], 3), ValueError, r"x must have shape \(3\), got \(2,\)"),
        (lambda: checks.reals("x", [[0, np.inf]]), ValueError, r"x must be finite, got inf at index \(0, 1\)"),
        (lambda: checks.integers("i", [0.5]), TypeError, "i must be an array of integers, got dtype float64"),
        (
            lambda: checks.integers("i", [0, 5], high=4),
            ValueError,
            r"i must be at most 4, got 5 at index \(1,\)",
        ),
        (
            lambda: checks.integers("i", [1], None, None),
            ValueError,
            r"i must have shape \(any, any\), got \(1,\)",
        ),
    ],
)
def test_invalid_values_raise(call, error, words):
    with pytest.raises(error, match=words):
        call()
