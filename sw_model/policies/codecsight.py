"""CodecSight: a sliding window of frames with reuse of the overlap, refresh of key frames and pruning of static
patches."""

from dataclasses import replace
from typing import Self

import numpy as np

from golden.codecsight import REUSE, CodecSightConfig, processed_fraction, window_plan
from golden.rope import THETA_LLAMA3
from sw_model.policies.base import ModelShape, Policy, Selection, Step, Work


class CodecSight(Policy):
    """`select` keeps the last `window` frames; `account` spreads a window's work over the frames of its stride.

    config            window, stride and group of pictures, in frames
    pruned            share of the tokens of a computed P-frame whose patches are static (from the codec's motion
                      vectors), 0 to 1
    tokens_per_frame  tokens of one frame; only `account` uses it
    """

    name = "codecsight"

    def __init__(
        self,
        model: ModelShape,
        config: CodecSightConfig | None = None,
        pruned: float = 0.0,
        tokens_per_frame: int = 10,
    ) -> None:
        super().__init__(model)
        self.config, self.pruned, self.tokens_per_frame = config or CodecSightConfig(), pruned, tokens_per_frame

    @classmethod
    def for_stream(
        cls,
        model: ModelShape,
        *,
        tokens_per_frame: int = 10,
        theta: float = THETA_LLAMA3,
        budget_frames: int | None = None,
    ) -> Self:
        """The budget is the window; its stride is a fifth of it, as published (80 and 16)."""
        config = CodecSightConfig()
        if budget_frames is not None:
            config = CodecSightConfig(window=budget_frames, stride=max(1, budget_frames // 5))
        return cls(model, config, tokens_per_frame=tokens_per_frame)

    def select(self, layer: int, queries: np.ndarray, stage: str) -> Selection:
        self.queries(layer, queries, stage)
        frames = [chunk for chunk in self.chunks(layer) if chunk.stage == "frame"]
        window = self.config.window - (stage == "frame")  # the step's own frame is part of the window
        selected = np.ones(self.past(layer), bool)
        for chunk in frames[: max(0, len(frames) - window)]:
            selected[chunk.start : chunk.stop] = False
        tokens = (np.flatnonzero(selected),) * self.model.kv_heads
        self.note(layer, stage, tokens)
        return Selection(tokens)

    def account(self, step: Step) -> Work:
        c = self.config
        window = min(step.past_tokens, c.window * self.tokens_per_frame)
        if step.stage == "text":
            return self.work(step, window, extents=1 if window else 0, cached=window)
        plan = window_plan(1, c)
        fraction = processed_fraction(plan, c.gop, self.pruned)
        new = [frame for frame in range(c.stride) if frame % c.gop]
        encoded = 1 - len(new) / c.stride * self.pruned
        processed = step.new_tokens * float(fraction) * c.window / c.stride
        if step.machine == "gpu":  # the refreshed frames and the new ones are one pass
            work = self.work(step, window, extents=1 if window else 0, cached=window, processed=processed)
            return replace(work, vision_fraction=encoded)
        computed = [number for number, action in enumerate(plan.values()) if action != REUSE]
        passes = len(computed) / c.stride  # each frame has its own, and attends to the frames before it
        before = window * sum(computed) / len(computed) / c.window
        reused = (c.window - len(computed)) / c.window * window / c.stride  # tokens, for each new frame
        work = self.work(step, before, extents=1 if window else 0, cached=window, processed=processed / passes)
        m = step.model
        return replace(
            work,
            passes=passes,
            vision_fraction=encoded,
            # keys are rotated, values copied, once for a frame and not for a pass
            vector_ops=reused * m.key_dim * step.batch / passes,
            predict_read_bytes=2 * reused * m.kv_bytes * step.batch / passes,
        )
