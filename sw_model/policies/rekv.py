"""ReKV (arXiv 2503.00540): retrieval of complete frames by the dot product of mean query and mean key."""

from dataclasses import replace
from math import ceil
from typing import Self

import numpy as np

from golden import baselines
from golden.growable_array import GrowableArray
from golden.rope import THETA_LLAMA3
from sw_model.policies.base import BF16_BYTES, Matmul, ModelShape, Policy, Selection, Step, Work

FRAMES = 64  # retrieved frames, as published


class ReKV(Policy):
    """Retrieval of complete frames. A frame is a step of stage `frame`; text before the step is always attended to.

    Scores use keys and queries before the rotary embedding (`Policy.unrotated`).

    frames            retrieved frames
    chunk             frames with one common score
    tokens_per_frame  tokens of one frame; only `account` uses it
    theta             base of the rotary embedding in the keys
    """

    name = "rekv"
    offloads_all = blocking = frozenset({"gpu"})
    undoes_rope = True

    def __init__(
        self,
        model: ModelShape,
        frames: int = FRAMES,
        chunk: int = 1,
        tokens_per_frame: int = 10,
        theta: float = THETA_LLAMA3,
    ) -> None:
        super().__init__(model)
        self.frames, self.chunk, self.tokens_per_frame, self.theta = frames, chunk, tokens_per_frame, theta
        width = model.q_heads * model.head_dim
        self._blocks = [GrowableArray((width,), np.float64) for _ in range(model.layers)]
        self._done = [0] * model.layers  # chunks of each layer whose frame vector exists

    @classmethod
    def for_stream(
        cls,
        model: ModelShape,
        *,
        tokens_per_frame: int = 10,
        theta: float = THETA_LLAMA3,
        budget_frames: int | None = None,
    ) -> Self:
        return cls(model, budget_frames or FRAMES, tokens_per_frame=tokens_per_frame, theta=theta)

    def select(self, layer: int, queries: np.ndarray, stage: str) -> Selection:
        q = self.queries(layer, queries, stage)
        chunks, past = self.chunks(layer), self.past(layer)
        for chunk in chunks[self._done[layer] :]:
            if chunk.stage == "frame":
                keys = self.unrotated(self.keys(layer)[chunk.start : chunk.stop], chunk.start, self.theta)
                self._blocks[layer].extend(baselines.rekv_blocks(keys, np.array([len(keys)]), self.model.group))
        self._done[layer] = len(chunks)
        flat = self.unrotated(q.reshape(len(q), self.model.q_heads, -1), past, self.theta)
        ranges = [chunk for chunk in chunks if chunk.stage == "frame"]
        selected = np.zeros(past, bool)
        for frame in baselines.rekv(flat, self._blocks[layer].array, self.frames, self.chunk):
            selected[ranges[frame].start : ranges[frame].stop] = True
        self.note(layer, stage, (np.flatnonzero(selected),))
        for chunk in chunks:
            if chunk.stage == "text":
                selected[chunk.start : chunk.stop] = True
        return Selection((np.flatnonzero(selected),) * self.model.kv_heads)

    def expected_ratio(self, step: Step) -> float:
        return 0.584 if step.stage == "frame" else 0.312

    def account(self, step: Step) -> Work:
        m, batch = step.model, step.batch
        blocks, width = ceil(step.past_tokens / self.tokens_per_frame), m.q_heads * m.head_dim
        attended = self.ratio(step) * step.past_tokens
        return replace(
            self.work(step, attended, extents=m.kv_heads * attended / self.tokens_per_frame),
            matmuls=(Matmul(1, width, blocks, batch),),
            vector_ops=step.new_tokens * (width + m.key_dim) * batch,  # means of queries and keys
            threshold_rows=batch,
            threshold_entries=blocks,
            threshold_passes=15.6,
            selects=attended / self.tokens_per_frame,
            clusters=blocks,
            page_slots=self.tokens_per_frame if step.machine == "vrex" else 0,  # a page of the cores has a frame
            predict_read_bytes=blocks * width * BF16_BYTES * batch,
            gpu_kernels=12,
            schedule="same_layer",
        )
