"""ReSV: hash-bit clusters and cumulative-sum thresholds (V-Rex, arXiv 2512.12284)."""

from dataclasses import replace
from math import ceil

import numpy as np

from golden.resv import ResvConfig, ResvLayer
from sw_model.policies.base import Matmul, ModelShape, Policy, Selection, Step, Work

# GPU kernels per token, because clustering is sequential. A framework has no population count: exclusive or, bit count
# by table (3), age and distance masks (2), minimum, its test on the host, count, running mean (3), three appends
CLUSTERING_KERNELS = 15
SCORE_BYTES = 4 * 4  # of a score: written, read and weighted by the softmax, read by the WTU, each time FP32


class ReSV(Policy):
    """Retrieval of clusters of hash codes until their weights reach a share of the row's sum.

    `select` scores every layer with the layer's own queries; `account` schedules the fetch as `config.prefetch` says.

    config              clustering and selection (`golden.resv.ResvConfig`)
    tokens_per_cluster  mean cluster size for `account` until `append` clusters tokens (V-Rex, Section VI-B)
    passes              buckets that the WTU examines in a row, by stage, until `select` measures them (golden model on
                        synthetic streams)

    Raises ValueError for a configuration that scores keys before they are appended.
    """

    name = "resv"
    blocking = frozenset({"gpu"})

    def __init__(
        self,
        model: ModelShape,
        config: ResvConfig | None = None,
        tokens_per_cluster: float = 32.0,
        passes: dict[str, float] | None = None,
    ) -> None:
        super().__init__(model)
        self.config = config or ResvConfig()
        if not self.config.score_includes_current:
            raise ValueError("config.score_includes_current must be True: keys are appended before they are scored")
        self.index = [ResvLayer(self.config, model.kv_heads, model.head_dim, layer) for layer in range(model.layers)]
        self._tokens_per_cluster = tokens_per_cluster
        self._passes = passes or {"frame": 12.7, "text": 8.5}
        self._measured_passes: dict[str, list[float]] = {"frame": [], "text": []}

    def append(self, layer: int, keys: np.ndarray, values: np.ndarray) -> None:
        super().append(layer, keys, values)
        self.index[layer].append(keys)

    def select(self, layer: int, queries: np.ndarray, stage: str) -> Selection:
        self.queries(layer, queries, stage)
        past = self.past(layer)
        selected = self.index[layer].select(queries, past)
        self.note(layer, stage, selected.tokens)
        if selected.wtu:
            self._measured_passes[stage].append(float(np.mean([rows.passes.mean() for rows in selected.wtu])))
        tokens, allowed = self.index[layer].attended(selected, past)
        return Selection(tuple(tokens), None if allowed is None else tuple(allowed))

    def expected_ratio(self, step: Step) -> float:
        return 0.327 if step.stage == "frame" else 0.025

    def account(self, step: Step) -> Work:
        m, t = step.model, step.new_tokens
        clusters = ceil(step.past_tokens / self.tokens_per_cluster)
        window = step.past_tokens
        if self.config.window_tokens:
            window = min(window, self.config.window_tokens)
        rows = t * m.q_heads
        attended = self.ratio(step) * step.past_tokens
        passes = self._measured_passes[step.stage]
        page = min(self.tokens_per_cluster, self.config.paging.slots)
        return replace(
            self.work(step, attended, extents=m.kv_heads * attended / page),
            matmuls=(
                Matmul(t, m.key_dim, self.config.hash_bits, step.batch),
                Matmul(t * m.group, m.head_dim, clusters, m.kv_heads * step.batch),
            ),
            vector_ops=(rows * clusters + 2 * t * m.key_dim) * step.batch,
            exponential_rows=rows * step.batch,
            hamming_pairs=t * window / self.tokens_per_cluster * step.batch,
            threshold_rows=rows * step.batch,
            threshold_entries=clusters,
            threshold_passes=float(np.mean(passes)) if passes else self._passes[step.stage],
            predict_read_bytes=clusters * (2 * m.key_dim + 12) * step.batch,  # mean key, hash, count, birth
            scratch_bytes=clusters * SCORE_BYTES * rows * step.batch,
            selects=attended / self.tokens_per_cluster,
            clusters=clusters,
            gpu_kernels=20 + CLUSTERING_KERNELS * t,
            schedule=self.config.prefetch,
        )

    @property
    def tokens_per_cluster(self) -> float:
        """Mean tokens of a cluster: measured if there are clusters, else the value of the constructor."""
        tables = [table for layer in self.index for table in layer.tables if len(table)]
        return float(np.mean([table.tokens / len(table) for table in tables])) if tables else self._tokens_per_cluster
