"""InfiniGen: past tokens with the largest partial scores of queries that are speculated in the layer before."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from compiler.builder import Operands
from compiler.policies.base import Policy, Selection, TableSizes
from compiler.retrieval_attention import RetrievalAttention, Scored, Selected, SelectionInputs
from golden.clustering import ClusterRule
from golden.decoder_layer import LayerPolicy, PartialScores
from golden.selection import TOP_K
from hw.config import Config


@dataclass(frozen=True)
class InfiniGenPolicy(Policy):
    """InfiniGen, which selects when it generates text. Steps of frames and of several tokens attend to all past tokens.

    A token is a cluster, and its mean key is its key. The normalised hidden states of a layer and the query projection
    of the next layer give the speculated queries of the next layer. They select by some of their columns, each row of a
    query head and a token the same number of past tokens. A KV head attends to the tokens that any of its rows selects.
    The first layer attends to all past tokens.

    budget        past tokens that each row selects, at least `dpe_inputs`
    column_share  share of the columns of a query head that the partial scores use, above 0 and at most 1

    Source: InfiniGen (arXiv 2406.19707), `golden.baselines.infinigen` with a constant number of tokens.
    """

    name: ClassVar[str] = "infinigen"
    prefill: ClassVar[bool] = False  # steps that are not generation select, too
    budget: int = 400
    column_share: float = 0.3
    prefetch: str = field(default="next_layer", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.partial  # checks its values
        if self.prefetch != "next_layer":
            raise ValueError(f"prefetch must be next_layer for policy {self.name}, got {self.prefetch!r}")

    @property
    def partial(self) -> PartialScores:
        """Use of the partial scores."""
        return PartialScores(self.column_share, self.budget, self.prefill)

    def clustering(self, config: Config) -> ClusterRule:
        """No distance is below the threshold 0, so every token opens a cluster."""
        return ClusterRule(hamming_threshold=0, window_tokens=1, max_candidates=config.max_candidates)

    def selection(self) -> Selection:
        """Tokens of a row."""
        return Selection(TOP_K, self.budget, signed=True)

    def table(self, config: Config) -> LayerPolicy:
        """Clusters are tokens."""
        if self.budget < config.dpe_inputs:
            raise ValueError(f"budget must be at least dpe_inputs = {config.dpe_inputs}, got {self.budget}")
        return LayerPolicy(hashes=False, partial=self.partial)

    def score(self, attention: RetrievalAttention, p: Operands, inputs: SelectionInputs) -> Scored:
        """Partial scores; none, if all past tokens are selected."""
        return attention.cluster_rows(p, inputs) if inputs.speculated else ()

    def select(self, attention: RetrievalAttention, p: Operands, inputs: SelectionInputs, scored: Scored) -> Selected:
        """Select by partial scores, or all past tokens."""
        return attention.select_tokens(p, inputs, scored)

    def sizes(self, config: Config, tokens: int, step: int) -> TableSizes:
        """A cluster and a page for each token."""
        most = min(config.max_clusters, config.max_row_clusters, config.max_pages)
        if tokens > most:
            raise ValueError(f"tokens must be at most {most} for policy {self.name} on this core, got {tokens}")
        return TableSizes(tokens, tokens, tokens, tokens)


@dataclass(frozen=True)
class InfiniGenPPolicy(InfiniGenPolicy):
    """InfiniGen that selects in all steps, the variant with which V-Rex (arXiv 2512.12284) compares itself."""

    name: ClassVar[str] = "infinigenp"
    prefill: ClassVar[bool] = True
