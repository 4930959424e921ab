"""Errors of the golden decoder layer. tests/hw/core compares its results with the RTL of the core, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest

from golden.decoder_layer import DecoderLayer, LayerShape, pair_order

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
