"""QuickPrefill (arXiv 2505.16175): each group of frames is pruned once; all remaining tokens are attended to."""

from dataclasses import replace

import numpy as np

from golden.quickvideo import QuickVideoConfig, group_scores, top_tokens
from sw_model.policies.base import Chunk, ModelShape, Policy, Selection, Step, Work


class QuickPrefill(Policy):
    """Pruning of a group of frames when its last frame is past. Text is never pruned.

    config  group size, share of the tokens that remain, score; the score `attention` needs a question and is not valid

    Raises ValueError for the score `attention`.
    """

    name = "quickprefill"

    def __init__(self, model: ModelShape, config: QuickVideoConfig | None = None) -> None:
        super().__init__(model)
        self.config = config or QuickVideoConfig()
        if self.config.score == "attention":
            raise ValueError("config.score must be a norm of keys or values, got 'attention'")
        self._masks = [np.zeros((0, model.kv_heads), bool) for _ in range(model.layers)]  # remaining tokens
        self._open: list[list[np.ndarray]] = [[] for _ in range(model.layers)]  # frames of the incomplete group
        self._done = [0] * model.layers

    def select(self, layer: int, queries: np.ndarray, stage: str) -> Selection:
        self.queries(layer, queries, stage)
        past = self.past(layer)
        for chunk in self.chunks(layer)[self._done[layer] :]:
            self._add_chunk(layer, chunk)
        self._done[layer] = len(self.chunks(layer))
        tokens = tuple(np.flatnonzero(self._masks[layer][:past, h]) for h in range(self.model.kv_heads))
        self.note(layer, stage, tokens)
        return Selection(tokens)

    def expected_ratio(self, step: Step) -> float:
        return self.config.rho

    def account(self, step: Step) -> Work:
        cached, group = self.ratio(step) * step.past_tokens, self.config.group_frames
        return replace(
            self.work(step, cached, extents=1 if cached else 0, cached=cached),
            vector_ops=2 * step.new_tokens * step.model.key_dim * step.batch,  # squared norms
            threshold_rows=step.batch / group,
            threshold_entries=group * step.new_tokens,
            threshold_passes=15.6,
        )

    def _add_chunk(self, layer: int, chunk: Chunk) -> None:
        """Add a past step; prune the group that it completes."""
        size = chunk.stop - chunk.start
        self._masks[layer] = np.concatenate([self._masks[layer], np.ones((size, self.model.kv_heads), bool)])
        if chunk.stage != "frame":
            return
        self._open[layer].append(np.arange(chunk.start, chunk.stop))
        if len(self._open[layer]) == self.config.group_frames:
            group = np.concatenate(self._open[layer])
            remaining = top_tokens(
                group_scores(self.keys(layer)[group], self.values(layer)[group], self.config), self.config.rho
            )
            mask = np.zeros((len(group), self.model.kv_heads), bool)
            np.put_along_axis(
                mask, remaining if remaining.ndim == 2 else remaining[:, None] + np.zeros_like(mask[:1], int), True, 0
            )
            self._masks[layer][group] = mask
            self._open[layer] = []
