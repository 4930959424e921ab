"""What a layer's run prepares before anything is simulated."""

import numpy as np

from golden import bf16
from sim.bench.layer_run import LayerRun, ScatteredRegion


def test_attention_alone_follows_the_golden_layer(rng):
    """Tokens that only enter the cache, then tokens that ask: a context for every head, in memory that is kept."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16)
    c = bench.config
    k, v = (bf16.encode(rng.standard_normal((2, c.kv_heads, c.head_dim))) for _ in range(2))
    q = bf16.encode(rng.standard_normal((2, bench.sizes.q_heads, c.head_dim)))
    assert bench.attend(k, v) is None and not bench.outputs and len(bench.golden.keys) == 2
    trace = bench.attend(k, v, q)
    assert len(bench.golden.keys) == bench.position == 4 and bench.traces == [trace]
    heads = np.stack([output for _, output in bench.outputs])
    assert heads.shape[0] == c.kv_heads and heads.size == trace.context.size


def test_places_do_not_overlap(rng):
    """Though half of the region is taken."""
    region = ScatteredRegion(130, rng=rng)
    taken = [region.allocate(5) for _ in range(12)]
    assert len({place + k for place in taken for k in range(5)}) == 60 and min(taken) >= 0 and max(taken) <= 125
