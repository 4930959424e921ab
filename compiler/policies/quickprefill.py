"""QuickPrefill: groups of frames attend to a pruned cache, and keep their tokens with the smallest key norms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from compiler.policies.base import TableSizes
from compiler.policies.full import FullPolicy
from golden.decoder_layer import LayerPolicy
from hw.config import Config
from util import checks


@dataclass(frozen=True)
class QuickPrefillPolicy(FullPolicy):
    """Full attention to a cache that holds all text and a share of the tokens of each group of frames.

    A group of frames is one step. All its tokens attend to the cache and to each other. Then those with the smallest
    key norms over all KV heads are stored, in their order and with their positions; the others are dropped.

    rho           share of the tokens of a group to keep; all stay if no whole token would
    group_frames  frames of a group

    Source: QuickVideo (arXiv 2505.16175), `golden.quickvideo` with score `key_norms_small` and head mode `shared`.
    """

    name: ClassVar[str] = "quickprefill"
    rho: float = 0.5
    group_frames: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.real("rho", self.rho, 0, 1)
        checks.integer("group_frames", self.group_frames, 1)

    @property
    def frames_per_step(self) -> int:
        """Frames of a group."""
        return self.group_frames

    def table(self, config: Config) -> LayerPolicy:
        """As full attention; tokens of frames are dropped."""
        return replace(super().table(config), rho=self.rho)

    def sizes(self, config: Config, tokens: int, step: int) -> TableSizes:
        """Those of full attention, because text is not pruned. The norms of a step are one row of the WTU."""
        if step > config.max_row_clusters:
            limit = f"max_row_clusters = {config.max_row_clusters}"
            raise ValueError(f"step must be at most {limit} for policy {self.name}, got {step}")
        return super().sizes(config, tokens, step)
