"""Hybrid cache: attention to sink and recent blocks; a state-space branch represents all other tokens."""

from dataclasses import replace

import numpy as np

from golden.hybrid import BlockPool, BlockTable, HybridConfig
from sw_model.policies.base import BF16_BYTES, Matmul, ModelShape, Policy, Selection, Step, Work

POOL_BLOCKS = 4096  # of one layer; enough for long steps
FP32_BYTES = 4
# the state-space branch: states of a channel, taps of its convolution, inputs of the branch for each of its ranks
STATES, TAPS, RANK_SHARE = 16, 4, 16
# element operations of a state for a token: its exponential in twelve steps, decay, input, sum over the states
SCAN_OPS = 18
# bytes of device memory that the vector work of an element reads and writes: convolution 2 + 2, terms of a step 4 + 2
# and 12, scan 12 + 4 and the two BF16 factors of each state, gate 4 + 4 and 2
VECTOR_BYTES = 48 + 2 * BF16_BYTES * STATES


class Hybrid(Policy):
    """`select` returns the tokens that block eviction keeps. The state-space branch is not modelled in `select`.

    config     block size, sink and recent blocks
    ssm_inner  width of the state-space branch, for `account`; None: the branch is not counted (the paper gives no
               width)
    """

    name = "hybrid"

    def __init__(self, model: ModelShape, config: HybridConfig | None = None, ssm_inner: int | None = None) -> None:
        super().__init__(model)
        self.config, self.ssm_inner = config or HybridConfig(), ssm_inner
        self._tables = [BlockTable(BlockPool(POOL_BLOCKS), self.config) for _ in range(model.layers)]

    def append(self, layer: int, keys: np.ndarray, values: np.ndarray) -> None:
        super().append(layer, keys, values)
        self._tables[layer].append(len(keys))

    def select(self, layer: int, queries: np.ndarray, stage: str) -> Selection:
        self.queries(layer, queries, stage)
        cached = np.array([token for block in self._tables[layer].tokens for token in block], np.int64)
        tokens = (cached[cached < self.past(layer)],) * self.model.kv_heads
        self.note(layer, stage, tokens)
        return Selection(tokens)

    def account(self, step: Step) -> Work:
        c, m = self.config, step.model
        cached = min(step.past_tokens, max(c.max_tokens, (c.sink_blocks + c.recent_blocks) * c.block))
        work = self.work(step, cached, extents=1 if cached else 0, cached=cached)
        if self.ssm_inner is None:
            return work
        width, inner, new = m.q_heads * m.head_dim, self.ssm_inner, step.new_tokens
        rank = -(-width // RANK_SHARE)
        sizes = ((width, 2 * inner), (inner, rank + 2 * STATES), (rank, inner), (inner, width))
        state_bytes = 2 * inner * (FP32_BYTES * STATES + BF16_BYTES * (TAPS - 1))  # read and written
        return replace(
            work,
            matmuls=tuple(Matmul(new * step.batch, inputs, outputs, weights=True) for inputs, outputs in sizes),
            vector_ops=new * inner * STATES * SCAN_OPS * step.batch,
            predict_read_bytes=state_bytes * step.batch,
            scratch_bytes=new * inner * VECTOR_BYTES * step.batch,
        )
