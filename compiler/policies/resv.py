"""ReSV (V-Rex): clusters of similar keys, selected until they cover a ratio of the scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.policies.base import WHOLE, Policy, Selection
from golden.clustering import ClusterRule
from golden.selection import RESV
from hw.config import Config
from util import checks


@dataclass(frozen=True)
class ResvPolicy(Policy):
    """ReSV.

    ratio              share of the exponentials of a row that the selected clusters cover (Th_r-wics), 0 to 1; 1: all
    hamming_threshold  Hamming distance below which a token joins a cluster (Th_hd)

    Source: V-Rex (arXiv 2512.12284), section IV.
    """

    name: ClassVar[str] = "resv"
    ratio: float = 1.0
    hamming_threshold: int = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < checks.real("ratio", self.ratio) <= 1:
            raise ValueError(f"ratio must be above 0 and at most 1, got {self.ratio}")
        checks.integer("hamming_threshold", self.hamming_threshold, 0)

    def clustering(self, config: Config) -> ClusterRule:
        """Every cluster accepts tokens."""
        return ClusterRule(
            hamming_threshold=self.hamming_threshold, window_tokens=0, max_candidates=config.max_candidates
        )

    def selection(self) -> Selection:
        """Clusters until their sum exceeds the ratio."""
        return Selection(RESV, round(self.ratio * WHOLE))
