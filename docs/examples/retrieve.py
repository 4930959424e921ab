"""Retrieval on your own keys: frame by frame, ReSV decides which of the past the attention reads.

Keys, values and queries of any model will do, as (tokens, heads, dimension); here they are noisy scenes.

    python docs/examples/retrieve.py
"""

import numpy as np

from golden.resv import Resv, ResvConfig

FRAMES, TOKENS, KV_HEADS, Q_HEADS, SIZE = 30, 10, 2, 4, 64

rng = np.random.default_rng(1)
model = Resv(ResvConfig(wics_ratio=0.3), layers=1, kv_heads=KV_HEADS, head_dim=SIZE)
for frame in range(FRAMES):
    if frame % (FRAMES // 2) == 0:  # a cut
        scene = rng.standard_normal((TOKENS, KV_HEADS, SIZE))
    keys, values = scene + 0.3 * rng.standard_normal((2, *scene.shape))
    queries = np.repeat(keys, Q_HEADS // KV_HEADS, axis=1)
    step = model.step(0, queries, keys, values)
    if frame % 5 == 4:
        past, (table,) = frame * TOKENS, model.layers[0].tables
        print(
            f"frame {frame + 1}: {past} tokens in {len(table)} clusters, {step.selected.ratio(past):.0%} of them read"
        )
