"""Golden decoder layer: errors, layers and streams that share a store.

tests/hw/core compares its results with the RTL of the core, bit for bit.
"""

from dataclasses import replace

import numpy as np
import pytest

from golden import bf16, rope
from golden.bf16 import FP32
from golden.clustering import ClusterRule
from golden.decoder_layer import DecoderLayer, LayerShape, angles, pad_heads, pair_order
from golden.kvmu import KvmuConfig, TransferKind
from golden.kvpu import Kvpu
from golden.selection import RESV
from golden.store import ContextSizes, StoreSizes, check, create_context, create_store

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


def shared_unit(contexts, max_resident_tokens):
    """A KV prediction unit whose store has `contexts` contexts, and the store."""
    sizes = StoreSizes(contexts, page_frames=200, page_tokens=4, key_bytes=32, log_entries=8)
    context_sizes = ContextSizes(max_clusters=100, max_pages=100)
    stride = context_sizes.nbytes(sizes)
    memory = np.zeros(sizes.nbytes + contexts * stride, np.uint8)
    store = create_store(memory, 0, sizes)
    for n in range(contexts):
        create_context(store, n, context_sizes, sizes.nbytes + n * stride, host_base=n << 16)
    config = KvmuConfig(2, 8, 4, staging_head_pages=200, max_resident_tokens=max_resident_tokens)
    return Kvpu(ClusterRule(hamming_threshold=5, window_tokens=0), config, memory, 0, RESV, 30000), store


def test_layers_and_streams_share_a_store(rng):
    """Two layers of three streams, interleaved at random: outputs equal those of layers with a store of their own."""
    layers, streams = 2, 3
    parameters = []
    for _ in range(layers):
        weights = {n: bf16.encode(rng.standard_normal(size) / 3) for n, size in SHAPE.weights().items()}
        norms = tuple(bf16.encode(1 + rng.standard_normal(SHAPE.hidden) / 8) for _ in range(2))
        parameters.append((weights, norms))
    unit, store = shared_unit(layers * streams, max_resident_tokens=40)
    shared, alone = {}, {}
    for layer, (weights, norms) in enumerate(parameters):
        for stream in range(streams):
            context = stream * layers + layer
            shared[stream, layer] = DecoderLayer(SHAPE, weights, norms, unit, context)
            alone[stream, layer] = DecoderLayer(SHAPE, weights, norms, shared_unit(1, 1000)[0])
    positions = [0] * streams
    for _ in range(24):
        stream, tokens = int(rng.integers(streams)), int(rng.integers(1, 4))
        x = y = bf16.encode(rng.standard_normal((tokens, SHAPE.hidden)))
        steps = range(positions[stream], positions[stream] + tokens)
        for layer in range(layers):
            first, second = shared[stream, layer].step(x, steps), alone[stream, layer].step(y, steps)
            x, y = first.output, second.output
            assert (x == y).all() and first.attended == second.attended
            check(store)
        positions[stream] += tokens
    assert sum(d.kind == TransferKind.FETCH for d in unit.kvmu.descriptors) > 20
    means = [unit.kvmu.tables.store.context(n).mean_keys for n in range(layers * streams)]
    assert all(mean.any() for mean in means)


def test_head_padding():
    """The halves of a head keep their order; padding is zero and is not rotated."""
    matrix = np.arange(1, 25).reshape(12, 2)
    padded = pad_heads(matrix, 2, 8, 0)
    expected = [1, 3, 5, 0, 7, 9, 11, 0, 13, 15, 17, 0, 19, 21, 23, 0]
    assert padded[:, 0].tolist() == expected and padded[:, 1].tolist() == [n + (n > 0) for n in expected]
    np.testing.assert_array_equal(pad_heads(matrix.T, 2, 8, 1), padded.T)
    np.testing.assert_array_equal(pad_heads(matrix, 3, 4, 0), matrix)
    cos, sin = (bf16.decode(code, FP32) for code in angles(np.array([3]), 8, rope.frequencies(6, 1e4)))
    np.testing.assert_allclose(cos[0], [*np.cos(3 * rope.frequencies(6, 1e4)), 1], rtol=1e-6)
    np.testing.assert_allclose(sin[0], [*np.sin(3 * rope.frequencies(6, 1e4)), 0], rtol=1e-6)
    for heads, head_dim in ((5, 8), (2, 4), (4, 8)):
        with pytest.raises(ValueError, match=f"axis must have {heads} heads of an even size up to {head_dim}, got 12"):
            pad_heads(matrix, heads, head_dim, 0)
    with pytest.raises(ValueError, match="head_elements must be even, got 5"):
        replace(SHAPE, head_elements=5)
