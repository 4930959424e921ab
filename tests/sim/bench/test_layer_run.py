"""Preparation of a layer run, without simulation."""

import numpy as np

from golden import bf16
from sim.bench.layer_run import LayerRun, ScatteredRegion


def test_attention_alone_follows_the_golden_layer(rng):
    """Tokens without queries, then tokens with queries: the outputs contain a context for every head."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16)
    c = bench.config
    k, v = (bf16.encode(rng.standard_normal((2, c.kv_heads, c.head_dim))) for _ in range(2))
    q = bf16.encode(rng.standard_normal((2, bench.sizes.q_heads, c.head_dim)))
    assert bench.attend(k, v) is None and not bench.outputs and len(bench.golden.keys) == 2
    trace = bench.attend(k, v, q)
    assert len(bench.golden.keys) == bench.position == 4 and bench.traces == [trace]
    heads = np.stack([output for _, output in bench.outputs])
    assert heads.shape[0] == c.kv_heads and heads.size == trace.context.size


def test_allocations_do_not_overlap(rng):
    """Allocations fill half of the region."""
    region = ScatteredRegion(130, rng=rng)
    addresses = [region.allocate(5) for _ in range(12)]
    assert (
        len({address + k for address in addresses for k in range(5)}) == 60
        and min(addresses) >= 0
        and max(addresses) <= 125
    )
