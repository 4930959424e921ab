"""CodecSight: a sliding window of frames with reuse of the overlap, refresh of key frames and pruning of static
patches."""

from dataclasses import replace
from typing import Self

import numpy as np

from golden.codecsight import CodecSightConfig, processed_fraction, window_plan
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
        fraction = processed_fraction(window_plan(1, c), c.gop, self.pruned)
        new = [frame for frame in range(c.stride) if frame % c.gop]
        encoded = 1 - len(new) / c.stride * self.pruned
        processed = step.new_tokens * float(fraction) * c.window / c.stride
        work = self.work(step, window, extents=1 if window else 0, cached=window, processed=processed)
        return replace(work, vision_fraction=encoded)
