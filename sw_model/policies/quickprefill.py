"""QuickPrefill (arXiv 2505.16175): each group of frames is pruned once, and what is kept is always attended to."""

from dataclasses import replace

import numpy as np

from golden.quickvideo import QuickVideoConfig, group_scores, kept
from sw_model.policies.base import Chunk, ModelShape, Policy, Selection, Step, Work


class QuickPrefill(Policy):
    """A group is pruned as soon as its last frame is past, so the `attention` score, which needs a question, is out."""

    name = "quickprefill"

    def __init__(self, model: ModelShape, config: QuickVideoConfig | None = None) -> None:
        super().__init__(model)
        self.config = config or QuickVideoConfig()
        if self.config.score == "attention":
            raise ValueError("config.score must be a norm of keys or values, got 'attention'")
        self._kept = [np.zeros((0, model.kv_heads), bool) for _ in range(model.layers)]  # pruned groups, and text
        self._open: list[list[np.ndarray]] = [[] for _ in range(model.layers)]  # frames of the unfinished group
        self._done = [0] * model.layers

    def select(self, layer: int, queries: np.ndarray, stage: str) -> Selection:
        self.queries(layer, queries, stage)
        past = self.past(layer)
        for chunk in self.chunks(layer)[self._done[layer] :]:
            self._take(layer, chunk)
        self._done[layer] = len(self.chunks(layer))
        tokens = tuple(np.flatnonzero(self._kept[layer][:past, h]) for h in range(self.model.kv_heads))
        self.note(layer, stage, tokens)
        return Selection(tokens)

    def expected_ratio(self, step: Step) -> float:
        return self.config.rho

    def account(self, step: Step) -> Work:
        held, group = self.ratio(step) * step.past_tokens, self.config.group_frames
        return replace(
            self.work(step, held, extents=1 if held else 0, cached=held),
            vector_ops=2 * step.new_tokens * step.model.key_dim * step.batch,  # squared norms
            threshold_rows=step.batch / group,
            threshold_entries=group * step.new_tokens,
            threshold_passes=15.6,
        )

    def _take(self, layer: int, chunk: Chunk) -> None:
        """Take a past step in; if it completes a group, prune that. Text is never pruned."""
        size = chunk.stop - chunk.start
        self._kept[layer] = np.concatenate([self._kept[layer], np.ones((size, self.model.kv_heads), bool)])
        if chunk.stage != "frame":
            return
        self._open[layer].append(np.arange(chunk.start, chunk.stop))
        if len(self._open[layer]) == self.config.group_frames:
            group = np.concatenate(self._open[layer])
            chosen = kept(
                group_scores(self.keys(layer)[group], self.values(layer)[group], self.config), self.config.rho
            )
            mask = np.zeros((len(group), self.model.kv_heads), bool)
            np.put_along_axis(
                mask, chosen if chosen.ndim == 2 else chosen[:, None] + np.zeros_like(mask[:1], int), True, 0
            )
            self._kept[layer][group] = mask
            self._open[layer] = []
