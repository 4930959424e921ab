"""ReKV: complete frames, those with the largest dot product of mean query and mean key, and all text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.builder import Operands
from compiler.policies.base import Policy, Selection, TableSizes
from compiler.retrieval_attention import RetrievalAttention, Scored, Selected, SelectionInputs
from golden.clustering import ClusterRule
from golden.decoder_layer import LayerPolicy
from golden.selection import TOP_K
from hw.config import Config
from util import checks


@dataclass(frozen=True)
class RekvPolicy(Policy):
    """ReKV with chunks of one frame.

    A frame is a cluster, and all text is cluster 0, which is always attended to. A session begins with text. The mean
    keys are the means of the keys of a frame before RoPE. The score of a frame is the sum over all queries of a step,
    before RoPE, of their dot products with its mean key, rounded to BF16. It orders the frames as the mean query does.

    frames  frames that a step attends to

    Source: ReKV (arXiv 2503.00540), `golden.baselines.rekv`.
    """

    name: ClassVar[str] = "rekv"
    frames: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.integer("frames", self.frames, 1)

    def clustering(self, config: Config) -> ClusterRule:
        """A token joins the cluster of its frame, or that of the text."""
        return ClusterRule(hamming_threshold=1, window_tokens=0, max_candidates=config.max_candidates)

    def selection(self) -> Selection:
        """The text and the frames."""
        return Selection(TOP_K, self.frames + 1, signed=True)

    def table(self, config: Config) -> LayerPolicy:
        """Clusters are frames."""
        return LayerPolicy(hashes=False, by_frames=True)

    def score(self, attention: RetrievalAttention, p: Operands, inputs: SelectionInputs) -> Scored:
        """Sum the scores of all queries."""
        return attention.frame_row(p, inputs)

    def select(self, attention: RetrievalAttention, p: Operands, inputs: SelectionInputs, scored: Scored) -> Selected:
        """Select by the sum of the scores."""
        return attention.select_frames(p, inputs, scored)

    def sizes(self, config: Config, tokens: int, step: int) -> TableSizes:
        """All clusters are candidates of the HCU, and a row of scores fits the vector memory."""
        sizes = super().sizes(config, tokens, step)
        clusters = min(sizes.clusters, config.max_candidates, config.vpe_rows * config.vpe_lanes)
        return TableSizes(tokens, clusters, sizes.pages, sizes.offloaded_pages)
