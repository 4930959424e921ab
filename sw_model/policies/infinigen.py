"""InfiniGen (arXiv 2406.19707): partial scores select the past tokens that a step fetches.

A partial score is a score that uses a part of the columns of query and key. `InfiniGen` retrieves in the stage `text`
and attends to all tokens in the stage `frame`. `InfiniGenP`, the variant that V-Rex compares with, retrieves in both.

The published method computes the partial queries of a layer from the hidden state of the previous layer, so that the
fetch can start one layer early; `account` has this schedule. `select` uses the queries of the layer, so its scores are
more exact than those of the published method.
"""

from dataclasses import replace

import numpy as np

from golden import baselines
from golden.selection import TOP_K
from sw_model.policies.base import BF16_BYTES, Matmul, ModelShape, Policy, Selection, Step, Work

# buckets that the WTU examines per row: mean over synthetic text rows with `refine_levels` = 3, which top-k needs
THRESHOLD_PASSES = 15.6
THRESHOLD_LEVELS = TOP_K.refine_levels + 1
GPU_KERNELS = 15  # estimate of the kernels of one prediction when it is written with framework operations


class InfiniGen(Policy):
    """Retrieves the past tokens with the highest partial scores, for each query head.

    A row has the partial scores of one query head and one new token over all past tokens. In each row the same number
    of tokens is selected. This number is the mean over the rows of the scores that are less than `alpha` below the
    maximum of their row. A query head retrieves the tokens that its rows select.

    alpha          a score is counted if its distance from the maximum of the row is smaller
    column_share   share of the columns of the head dimension that the partial scores use, 0 to 1
    budget         largest number of tokens that a row selects; None: no limit
    """

    name = "infinigen"
    offloads_all = blocking = frozenset({"gpu"})
    retrieval_stages: tuple[str, ...] = ("text",)

    def __init__(
        self, model: ModelShape, alpha: float = 4.0, column_share: float = 0.3, budget: int | None = None
    ) -> None:
        super().__init__(model)
        self.alpha, self.column_share, self.budget = alpha, column_share, budget
        self._selected_columns: dict[int, np.ndarray] = {}

    def select(self, layer: int, queries: np.ndarray, stage: str) -> Selection:
        q = self.queries(layer, queries, stage)
        m, past = self.model, self.past(layer)
        head_queries = q.reshape(len(q), m.q_heads, m.head_dim)  # without the axis of the query heads of a KV head
        if layer not in self._selected_columns:  # selected once per layer, with the queries of its first step
            self._selected_columns[layer] = baselines.infinigen_columns(head_queries, self.column_share)
        if stage not in self.retrieval_stages:
            all_tokens = (np.arange(past),) * m.kv_heads
            self.note(layer, stage, all_tokens)
            return Selection(all_tokens)
        tokens_of_heads = baselines.infinigen(
            head_queries, self.keys(layer)[:past], self._selected_columns[layer], self.alpha, self.budget
        )
        tokens, masks = [], []
        for h in range(m.kv_heads):
            group = tokens_of_heads[h * m.group : (h + 1) * m.group]
            tokens.append(np.unique(np.concatenate(group)))
            per_head = np.stack([np.isin(tokens[-1], head_tokens) for head_tokens in group])
            masks.append(np.tile(per_head, (len(q), 1)))
        self.note(layer, stage, tokens)
        return Selection(tuple(tokens), tuple(masks))

    def expected_ratio(self, step: Step) -> float:
        """Share of the past as V-Rex publishes it (Table II) for InfiniGenP, which alone retrieves in both stages."""
        return 0.508 if step.stage == "frame" else 0.068

    def account(self, step: Step) -> Work:
        m, n = step.model, step.past_tokens
        if step.machine == "vrex":
            return self._account_on_cores(step)
        if step.stage not in self.retrieval_stages:
            return self.work(step, n, extents=1 if n else 0)
        retrieved = self.ratio(step) * n
        partial_dim = int(m.head_dim * self.column_share)  # as in `baselines.infinigen_columns`
        rows = step.new_tokens * m.q_heads
        partial_key_bytes = n * m.kv_heads * partial_dim * BF16_BYTES * step.batch
        return replace(
            # single tokens are not contiguous: one extent per token and KV head
            self.work(step, retrieved, extents=m.kv_heads * retrieved),
            matmuls=(
                Matmul(step.new_tokens, m.hidden, m.q_heads * partial_dim, step.batch),  # partial queries
                Matmul(step.new_tokens * m.group, partial_dim, n, m.kv_heads * step.batch),  # partial scores
            ),
            vector_ops=2 * rows * n * step.batch,  # maximum and comparison
            threshold_rows=rows * step.batch,
            threshold_entries=n,
            threshold_passes=THRESHOLD_PASSES,
            predict_read_bytes=partial_key_bytes + m.hidden * m.q_heads * partial_dim * BF16_BYTES,
            gpu_kernels=GPU_KERNELS,
            schedule="next_layer",
        )

    def _account_on_cores(self, step: Step) -> Work:
        """The cost of the programs of `compiler.policies.InfiniGenPolicy`.

        The partial queries have all columns, because the rotary embedding needs both elements of a pair, and so have
        the keys, which are those of the cache. The first layer attends to all past tokens. A token is a cluster.
        """
        m, n, t = step.model, step.past_tokens, step.new_tokens
        if step.stage not in self.retrieval_stages:
            return replace(self.work(step, n, extents=m.kv_heads * n), selects=n, clusters=n, page_slots=1)
        retrieved, width, rows = self.ratio(step) * n, m.q_heads * m.head_dim, t * m.q_heads
        return replace(
            self.work(step, retrieved, extents=m.kv_heads * retrieved),
            matmuls=(
                Matmul(t * step.batch, m.hidden, width, weights=True),  # partial queries
                Matmul(t * m.group, m.head_dim, n, m.kv_heads * step.batch),  # partial scores
            ),
            vector_ops=2 * t * width * step.batch,  # rotation, columns
            threshold_rows=rows * step.batch,
            threshold_entries=n,
            threshold_passes=THRESHOLD_PASSES,
            threshold_levels=THRESHOLD_LEVELS,
            predict_read_bytes=BF16_BYTES * n * m.key_dim * step.batch,
            scratch_bytes=BF16_BYTES * rows * n * step.batch,  # scores, which are written
            first_layer=n / retrieved if retrieved else 1.0,
            selects=retrieved,
            clusters=n,
            page_slots=1,
            gpu_kernels=GPU_KERNELS,
            schedule="next_layer",
        )


class InfiniGenP(InfiniGen):
    """InfiniGen that also retrieves in the prefill (P), which is the stage `frame`."""

    name = "infinigenp"
    retrieval_stages = ("frame", "text")
