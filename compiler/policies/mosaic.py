"""Mosaic: clusters of frames and of similar keys; clusters of the best partitions up to a number of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.builder import Operands
from compiler.policies.base import Policy, Selection, TableSizes
from compiler.retrieval_attention import RetrievalAttention, Scored, Selected, SelectionInputs
from compiler.two_stage import cluster_blocks
from golden.clustering import ClusterRule
from golden.decoder_layer import LayerPolicy
from golden.mosaic import MosaicConfig
from golden.selection import MOSAIC
from golden.two_stage import FENCE_TOKENS
from hw.config import Config
from util import checks


@dataclass(frozen=True)
class MosaicPolicy(Policy):
    """Mosaic with semantic clusters of tokens.

    The host assigns tokens to clusters and decides splits between two programs of a step, from the keys that the core
    has computed (`compiler.mosaic_host`). All text is cluster 0, which is always attended to; a session begins with
    text. The core selects clusters (`golden.two_stage`).

    budget        video tokens at which the selection of a step ends
    top_visual    partitions that pass the first stage
    tau_visual    variance of the frames of a partition from which a frame opens another one
    tau_min, tau_max, lambda_  threshold of the variance of a cluster by its size (Eq. 5)

    Source: Mosaic (arXiv 2604.10060), `golden.mosaic`.
    """

    name: ClassVar[str] = "mosaic"
    budget: int = 12544
    top_visual: int = 4
    tau_visual: float = 0.25
    tau_min: float = 0.10
    tau_max: float = 0.30
    lambda_: float = 16.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.integer("budget", self.budget, 1, FENCE_TOKENS)
        _ = self.rule  # checks the other values

    @property
    def rule(self) -> MosaicConfig:
        """Parameters of the clusters."""
        return MosaicConfig(
            tau_min=self.tau_min, tau_max=self.tau_max, lambda_=self.lambda_, tau_visual=self.tau_visual,
            top_visual=self.top_visual,
        )  # fmt: skip

    def clustering(self, config: Config) -> ClusterRule:
        """A token joins the cluster that the host has chosen."""
        return ClusterRule(hamming_threshold=1, window_tokens=0, max_candidates=config.max_candidates)

    def selection(self) -> Selection:
        """Clusters until they hold `budget` tokens."""
        return Selection(MOSAIC, self.budget, signed=True)

    def table(self, config: Config) -> LayerPolicy:
        """Two stages; the tokens of a step are stored after it."""
        if config.kv_bits != 16:  # MOVE copies a slot of whole words
            raise ValueError(f"kv_bits must be 16 for policy {self.name}, which moves tokens, got {config.kv_bits}")
        return LayerPolicy(hashes=False, partitions=self.top_visual)

    def score(self, attention: RetrievalAttention, p: Operands, inputs: SelectionInputs) -> Scored:
        """Score partitions, then their clusters."""
        return attention.stage_rows(p, inputs)

    def select(self, attention: RetrievalAttention, p: Operands, inputs: SelectionInputs, scored: Scored) -> Selected:
        """Select in two stages."""
        return attention.select_in_two_stages(p, inputs, scored)

    def sizes(self, config: Config, tokens: int, step: int) -> TableSizes:
        """All clusters are candidates of the HCU, and a row of scores fits the vector memory."""
        sizes = super().sizes(config, tokens, step)
        clusters = min(sizes.clusters, cluster_blocks(config) * config.dpe_inputs, config.max_candidates)
        return TableSizes(tokens, clusters, sizes.pages, sizes.offloaded_pages)
