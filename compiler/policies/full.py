"""Full attention: every query attends to all past tokens (FlexGen when pages are offloaded)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.builder import Operands
from compiler.policies.base import MAX_CLUSTER_TOKENS, WHOLE, Policy, Selection, TableSizes
from compiler.retrieval_attention import RetrievalAttention, Scored, Selected, SelectionInputs
from golden.bf16 import BF16_ONE
from golden.clustering import ClusterRule
from golden.decoder_layer import LayerPolicy
from golden.selection import RESV
from hw.config import Config

SCORED = 32  # clusters with a score, for 2 M tokens


@dataclass(frozen=True)
class FullPolicy(Policy):
    """Full attention. Tokens are neither hashed nor scored; pages are full, and hold tokens in order of arrival.

    All tokens have the hash code 0, so that they join one cluster until it is full. One row of equal scores selects all
    clusters for every KV head. Pages that do not fit the device memory are fetched in every step, as in FlexGen.
    """

    name: ClassVar[str] = "full"

    def clustering(self, config: Config) -> ClusterRule:
        """A token joins a cluster with the same code."""
        return ClusterRule(hamming_threshold=1, window_tokens=0, max_candidates=config.max_candidates)

    def selection(self) -> Selection:
        """All clusters."""
        return Selection(RESV, WHOLE)

    def table(self, config: Config) -> LayerPolicy:
        """One cluster after the other, all with the same score."""
        return LayerPolicy(hashes=False, mean_keys=False, score_row=(BF16_ONE,) * SCORED)

    def sizes(self, config: Config, tokens: int, step: int) -> TableSizes:
        """Pages of a cluster are full, except the last one and those that were offloaded before."""
        clusters = 1 + tokens // MAX_CLUSTER_TOKENS
        pages = clusters + tokens // config.page_tokens
        return TableSizes(tokens, clusters, pages, max(pages, super().sizes(config, tokens, step).pages))

    def score(self, attention: RetrievalAttention, p: Operands, inputs: SelectionInputs) -> Scored:
        """All queries share a row of scores."""
        return ()

    def select(self, attention: RetrievalAttention, p: Operands, inputs: SelectionInputs, scored: Scored) -> Selected:
        """Select by that row."""
        return attention.select_by_row(p, inputs)
