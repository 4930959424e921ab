"""Mosaic (arXiv 2604.10060): clusters inside visual partitions, retrieved in two stages up to a token budget."""

from dataclasses import replace
from typing import Self

import numpy as np

from golden.mosaic import MosaicCache as Cache
from golden.mosaic import MosaicConfig, query_vector
from golden.rope import THETA_LLAMA3
from golden.selection import MOSAIC
from sw_model.policies.base import BF16_BYTES, Matmul, ModelShape, Policy, Selection, Step, Work

FRAMES_PER_PARTITION = 64  # mean scene length, for `account`
TOKENS_PER_CLUSTER = 32
FP32_BYTES = 4


class Mosaic(Policy):
    """Clusters of frames inside visual partitions. A frame is a step of stage `frame`; text is always attended to.

    The keys do not contain the visual embedding of a frame, so the mean key of the first layer before the rotary
    embedding (`Policy.unrotated`) takes its place.

    config            budget, partitions and clusters
    tokens_per_frame  tokens of every frame
    max_resident_tokens   tokens that device memory holds; None: no limit
    theta             base of the rotary embedding in the keys

    `select` and `append` raise ValueError for a frame of another length.
    """

    name = "mosaic"
    undoes_rope = whole_steps = True

    def __init__(
        self,
        model: ModelShape,
        config: MosaicConfig | None = None,
        tokens_per_frame: int = 10,
        max_resident_tokens: int | None = None,
        theta: float = THETA_LLAMA3,
    ) -> None:
        super().__init__(model)
        self.config, self.tokens_per_frame, self.theta = config or MosaicConfig(), tokens_per_frame, theta
        self.cache = Cache(
            model.layers, model.kv_heads, model.head_dim, tokens_per_frame, self.config, max_resident_tokens
        )
        self._starts: list[int] = []  # first token of each frame in the cache
        self._done = 0

    @classmethod
    def for_stream(
        cls,
        model: ModelShape,
        *,
        tokens_per_frame: int = 10,
        theta: float = THETA_LLAMA3,
        budget_frames: int | None = None,
    ) -> Self:
        config = MosaicConfig() if budget_frames is None else MosaicConfig(budget_frames=budget_frames)
        return cls(model, config, tokens_per_frame=tokens_per_frame, theta=theta)

    def append(self, layer: int, keys: np.ndarray, values: np.ndarray) -> None:
        if layer == 0:
            self._absorb()
        super().append(layer, keys, values)

    def select(self, layer: int, queries: np.ndarray, stage: str) -> Selection:
        q = self.queries(layer, queries, stage)
        past = self.past(layer)
        selected = np.zeros(past, bool)
        pseudo_keys = pseudo_values = None
        if self.cache.frames:
            vector = query_vector(q.reshape(len(q), self.model.q_heads, -1), self.model.kv_heads)
            frame, offset = np.divmod(self.cache.retrieve(layer, vector).tokens, self.tokens_per_frame)
            selected[np.array(self._starts)[frame] + offset] = True
            pseudo_keys, pseudo_values = self.cache.representatives(layer)
        self.note(layer, stage, (np.flatnonzero(selected),))
        for chunk in self.chunks(layer):
            if chunk.stage == "text":
                selected[chunk.start : chunk.stop] = True
        tokens = (np.flatnonzero(selected),) * self.model.kv_heads
        return Selection(tokens, pseudo_keys=pseudo_keys, pseudo_values=pseudo_values)

    def expected_ratio(self, step: Step) -> float:
        return min(1.0, self.config.budget_frames * self.tokens_per_frame / max(1, step.past_tokens))

    def account(self, step: Step) -> Work:
        if step.machine == "vrex":
            return self._account_on_cores(step)
        m, batch = step.model, step.batch
        clusters = step.past_tokens / TOKENS_PER_CLUSTER
        partitions = step.past_tokens / (FRAMES_PER_PARTITION * self.tokens_per_frame)
        ranked = clusters * min(1.0, self.config.top_visual / max(1.0, partitions))
        retrieved = self.ratio(step) * step.past_tokens
        work = self.work(step, retrieved, extents=m.kv_heads * retrieved / TOKENS_PER_CLUSTER)
        representatives = clusters * m.kv_bytes * batch  # always in device memory
        return replace(
            work,
            attended_tokens=retrieved + clusters,
            attend_read_bytes=work.attend_read_bytes + representatives,
            matmuls=(
                Matmul(1, m.key_dim, partitions + ranked, batch),
                Matmul(step.new_tokens, m.key_dim, clusters / max(1.0, partitions), batch),  # nearest cluster
            ),
            vector_ops=(step.new_tokens * m.key_dim * 4 + partitions + ranked) * batch,
            threshold_rows=2 * batch,
            threshold_entries=max(partitions, ranked),
            threshold_passes=15.6,
            predict_read_bytes=(partitions + ranked) * m.key_dim * BF16_BYTES * batch,
            gpu_kernels=20,
            schedule="next_layer",
        )

    def _account_on_cores(self, step: Step) -> Work:
        """The cost of the programs of `compiler.policies.MosaicPolicy`, without the store of the tokens.

        All queries score the tables of all clusters; one core adds the scores. All KV heads select the same clusters.
        Representatives are not attended to. The host assigns the new tokens to clusters.
        """
        m, batch = step.model, step.batch
        clusters, retrieved = step.past_tokens / TOKENS_PER_CLUSTER, self.ratio(step) * step.past_tokens
        tables = 2 * clusters  # representatives of the partitions, centroids
        scores_bytes = FP32_BYTES * step.new_tokens * m.q_heads * tables * batch  # written by all, read by one core
        return replace(
            self.work(step, retrieved, extents=retrieved / TOKENS_PER_CLUSTER),
            matmuls=(Matmul(step.new_tokens * m.group, m.head_dim, tables, m.kv_heads * batch),),
            vector_ops=step.new_tokens * m.q_heads * tables * batch,
            threshold_rows=2 * m.kv_heads * batch,  # clusters, text
            threshold_entries=clusters,
            threshold_passes=15.6,
            threshold_levels=MOSAIC.refine_levels + 1,
            predict_read_bytes=BF16_BYTES * tables * m.key_dim * batch,
            scratch_bytes=2 * scores_bytes,
            lone_read_bytes=scores_bytes,
            selects=retrieved / TOKENS_PER_CLUSTER,
            clusters=clusters,
            common_selection=True,
            gpu_kernels=20,
            schedule="next_layer",
        )

    def _absorb(self) -> None:
        """Append the frames that are complete in every layer to the cache."""
        chunks = self._chunks[0]
        for i in range(self._done, len(chunks)):
            start, stop, stage = chunks[i]
            if stage == "frame":
                if stop - start != self.tokens_per_frame:
                    raise ValueError(
                        f"frames must have tokens_per_frame = {self.tokens_per_frame} tokens, got {stop - start}"
                    )
                keys = np.stack([self.keys(layer)[start:stop] for layer in range(self.model.layers)])
                values = np.stack([self.values(layer)[start:stop] for layer in range(self.model.layers)])
                unrotated = self.unrotated(keys[0], start, self.theta)
                self.cache.append(unrotated.mean(axis=0).ravel(), keys, values)
                self._starts.append(start)
        self._done = len(chunks)
