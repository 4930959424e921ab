"""Errors of the golden decoder layer. tests/hw/core compares its results with the RTL of the core, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest

from golden import bf16, rope
from golden.bf16 import FP32
from golden.decoder_layer import DecoderLayer, LayerShape, angles, pad_heads, pair_order

SHAPE = LayerShape(hidden=8, ffn=16, q_heads=4, kv_heads=2, head_dim=8, hash_bits=16, inputs=4)


def test_mismatched_sizes_raise():
    with pytest.raises(ValueError, match="q_heads must be a multiple of kv_heads = 3, got 4"):
        replace(SHAPE, kv_heads=3)
    with pytest.raises(ValueError, match="head_dim must be a multiple of 8, got 12"):
        pair_order(12, SHAPE.inputs)
    weights = {name: np.zeros(size, np.uint16) for name, size in SHAPE.weights().items()}
    norms = (np.zeros(8, np.uint16),) * 2
    DecoderLayer(SHAPE, weights, norms, table=None)
    with pytest.raises(ValueError, match=r"weights\['gate'\] must have shape \(16, 8\), got \(8, 16\)"):
        DecoderLayer(SHAPE, {**weights, "gate": weights["gate"].T}, norms, table=None)


def test_head_padding():
    """The halves of a head keep their order; padding is zero and is not rotated."""
    matrix = np.arange(1, 25).reshape(12, 2)
    padded = pad_heads(matrix, 2, 8, 0)
    expected = [1, 3, 5, 0, 7, 9, 11, 0, 13, 15, 17, 0, 19, 21, 23, 0]
    assert padded[:, 0].tolist() == expected and padded[:, 1].tolist() == [n + (n > 0) for n in expected]
    np.testing.assert_array_equal(pad_heads(matrix.T, 2, 8, 1), padded.T)
    np.testing.assert_array_equal(pad_heads(matrix, 3, 4, 0), matrix)
    cos, sin = (bf16.decode(code, FP32) for code in angles(np.array([3]), 8, 1e4, 6))
    np.testing.assert_allclose(cos[0], [*np.cos(3 * rope.frequencies(6, 1e4)), 1], rtol=1e-6)
    np.testing.assert_allclose(sin[0], [*np.sin(3 * rope.frequencies(6, 1e4)), 0], rtol=1e-6)
    for heads, head_dim in ((5, 8), (2, 4), (4, 8)):
        with pytest.raises(ValueError, match=f"axis must have {heads} heads of an even size up to {head_dim}, got 12"):
            pad_heads(matrix, heads, head_dim, 0)
    with pytest.raises(ValueError, match="head_elements must be even, got 5"):
        replace(SHAPE, head_elements=5)
