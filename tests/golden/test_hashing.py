"""Hash codes compared with exact rational dot products."""

from fractions import Fraction

import numpy as np
import pytest
from ml_dtypes import bfloat16

from golden.hashing import hash_codes, hyperplanes


def exact_codes(keys, planes):
    codes = []
    for key in keys.reshape(len(keys), -1).astype(float):
        bits = 0
        for j in range(planes.shape[1]):
            dot = sum((Fraction(a) * Fraction(float(b)) for a, b in zip(key, planes[:, j], strict=True)), Fraction(0))
            bits |= (dot > 0) << j
        codes.append(bits)
    return codes


@pytest.mark.parametrize("shape,hash_bits", [((20, 8), 5), ((10, 2, 16), 32), ((3, 1), 1)])
def test_matches_exact_dot_products(rng, shape, hash_bits):
    keys = rng.standard_normal(shape).astype(bfloat16)
    planes = hyperplanes(int(np.prod(shape[1:])), hash_bits, seed=3, layer=2)
    assert hash_codes(keys, planes).tolist() == exact_codes(keys, planes)


def test_cancellation_is_decided_exactly():
    # 2^100 + 2^-20 - 2^100 vanishes in float64, but its sign is positive
    keys = np.array([[2.0**100, 2.0**-20, -(2.0**100)], [2.0**100, 0, -(2.0**100)]], bfloat16)
    planes = np.ones((3, 1), bfloat16)
    assert hash_codes(keys, planes).tolist() == [1, 0]


def test_zero_key_has_code_zero():
    assert hash_codes(np.zeros((1, 8), bfloat16), hyperplanes(8))[0] == 0


def test_planes_differ_between_layers_and_repeat():
    assert (hyperplanes(8, seed=1, layer=0) != hyperplanes(8, seed=1, layer=1)).any()
    assert (hyperplanes(8, seed=1, layer=1) == hyperplanes(8, seed=2, layer=0)).all()


def test_center_is_subtracted(rng):
    keys, center = rng.standard_normal((12, 6)), rng.standard_normal(6)
    planes = hyperplanes(6)
    expected = (((keys - center) @ planes.astype(float) > 0) * (1 << np.arange(32))).sum(1)
    assert hash_codes(keys, planes, center=center).tolist() == expected.tolist()


def test_centred_cancellation_is_decided_exactly():
    """Products of a centred key are not exact in float64, so their sum needs rational arithmetic."""
    third = 1 / 3
    keys = np.array([[third, third, 0.0], [third, third, 0.0]])
    center = np.array([0.0, 0.0, 2.0**-60])
    planes = np.array([[1.5, 1.5], [-1.5, -1.5], [-1.0, 1.0]], bfloat16)
    assert hash_codes(keys, planes, center=center).tolist() == [1, 1]
    assert hash_codes(keys, planes, center=np.zeros(3)).tolist() == [0, 0]


def test_no_tokens_and_no_elements_are_named():
    for shape in ((0, 8), (0, 2, 4)):
        with pytest.raises(ValueError, match="keys must hold at least one token, got none"):
            hash_codes(np.zeros(shape), hyperplanes(8))
    with pytest.raises(ValueError, match=r"keys must have shape \(any, 8\), got \(3, 0\)"):
        hash_codes(np.zeros((3, 0)), hyperplanes(8))


@pytest.mark.parametrize(
    "keys,planes,text",
    [
        (np.full((2, 4), np.nan), np.ones((4, 2)), "keys must be finite"),
        (np.full((2, 4), np.inf), np.ones((4, 2)), "keys must be finite"),
        (np.zeros((2, 3)), np.ones((4, 2)), "keys must have shape"),
        (np.zeros(3), np.ones((3, 2)), "keys must have shape"),
        (np.zeros((2, 4)), np.ones((4, 33)), "number of planes"),
    ],
)
def test_rejects(keys, planes, text):
    with pytest.raises(ValueError, match=text):
        hash_codes(keys, planes)
