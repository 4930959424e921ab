"""InfiniGen (arXiv 2406.19707): partial scores of all tokens select the tokens to fetch.

`InfiniGen` retrieves during text generation and attends to all tokens during the prefill. `InfiniGenP`, the variant
that V-Rex compares with, retrieves in both stages. `select` computes the partial scores from the layer's own queries;
the published method uses those of the layer below, which adds an error.
"""

from dataclasses import replace

import numpy as np

from golden import baselines
from sw_model.policies.base import BF16_BYTES, Matmul, ModelShape, Policy, Selection, Step, Work


class InfiniGen(Policy):
    """Retrieval of the tokens whose partial score is near the maximum, per query head.

    alpha    largest distance of a selected score from the row's maximum
    columns  share of the head dimension that the partial scores use, 0 to 1
    budget   largest number of tokens per query head; None: no limit
    """

    name = "infinigen"
    offloads_all = blocking = frozenset({"gpu"})
    retrieves: tuple[str, ...] = ("text",)

    def __init__(self, model: ModelShape, alpha: float = 4.0, columns: float = 0.3, budget: int | None = None) -> None:
        super().__init__(model)
        self.alpha, self.columns, self.budget = alpha, columns, budget
        self._columns: dict[int, np.ndarray] = {}

    def select(self, layer: int, queries: np.ndarray, stage: str) -> Selection:
        q = self.queries(layer, queries, stage)
        m, past = self.model, self.past(layer)
        flat = q.reshape(len(q), m.q_heads, m.head_dim)
        if layer not in self._columns:  # selected once, on the first queries
            self._columns[layer] = baselines.infinigen_columns(flat, self.columns)
        if stage not in self.retrieves:
            all_tokens = (np.arange(past),) * m.kv_heads
            self.note(layer, stage, all_tokens)
            return Selection(all_tokens)
        heads = baselines.infinigen(flat, self.keys(layer)[:past], self._columns[layer], self.alpha, self.budget)
        tokens, allowed = [], []
        for h in range(m.kv_heads):
            group = heads[h * m.group : (h + 1) * m.group]
            tokens.append(np.unique(np.concatenate(group)))
            per_head = np.stack([np.isin(tokens[-1], head_tokens) for head_tokens in group])
            allowed.append(np.tile(per_head, (len(q), 1)))
        self.note(layer, stage, tokens)
        return Selection(tuple(tokens), tuple(allowed))

    def expected_ratio(self, step: Step) -> float:
        return 0.508 if step.stage == "frame" else 0.068

    def account(self, step: Step) -> Work:
        m, n = step.model, step.past_tokens
        if step.stage not in self.retrieves:
            return self.work(step, n, extents=1 if n else 0)
        attended = self.ratio(step) * n
        partial_dim = int(m.head_dim * self.columns)
        rows = step.new_tokens * m.q_heads
        partial_key_bytes = n * m.kv_heads * partial_dim * BF16_BYTES * step.batch
        return replace(
            self.work(step, attended, extents=m.kv_heads * attended),
            matmuls=(
                Matmul(step.new_tokens, m.hidden, m.q_heads * partial_dim, step.batch),
                Matmul(step.new_tokens * m.group, partial_dim, n, m.kv_heads * step.batch),
            ),
            vector_ops=2 * rows * n * step.batch,  # maximum and comparison
            threshold_rows=rows * step.batch,
            threshold_entries=n,
            threshold_passes=15.6,
            predict_read_bytes=partial_key_bytes + m.hidden * m.q_heads * partial_dim * BF16_BYTES,
            gpu_kernels=15,
            schedule="next_layer",
        )


class InfiniGenP(InfiniGen):
    """InfiniGen with retrieval in both stages."""

    name = "infinigenp"
    retrieves = ("frame", "text")
