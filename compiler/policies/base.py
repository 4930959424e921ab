"""Base class of a policy: which past tokens a layer attends to, and which pages it keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from compiler.builder import Operands
from compiler.retrieval_attention import RetrievalAttention, Scored, Selected, SelectionInputs
from golden.clustering import ClusterRule
from golden.decoder_layer import RESV_POLICY, LayerPolicy
from golden.resv import PREFETCH
from golden.state_space import StateSpaceShape, StateSpaceWeights
from golden.wicsum import WtuConfig
from hw.config import Config
from util import checks

WHOLE = 1 << 16  # selection target of the stop rule `ratio` that selects all clusters
MAX_CLUSTER_TOKENS = 65535  # at which a cluster is full


@dataclass(frozen=True)
class Selection:
    """Settings of the WTU, and the stop value of `golden.wicsum.select`. `signed`: scores can be negative."""

    wtu: WtuConfig
    target: int
    signed: bool = False


@dataclass(frozen=True)
class LayerWidths:
    """Sizes of a layer that determine its branch: hidden width, query heads, elements of a head of the model."""

    hidden: int
    q_heads: int
    head: int


@dataclass(frozen=True)
class Branch:
    """State-space branch of a layer, whose output is added to the attention output.

    shape  sizes; the outputs are the padded query heads
    query  the inputs are the rotated queries in memory order; False: the normalised hidden states
    """

    shape: StateSpaceShape
    query: bool


@dataclass(frozen=True)
class TableSizes:
    """Largest numbers of one context.

    past, clusters : past tokens that a query attends to, clusters
    pages, offloaded_pages : pages if all stay in device memory, and if they can leave it. A page that leaves takes no
        more tokens, so that more pages are partly filled.
    """

    past: int
    clusters: int
    pages: int
    offloaded_pages: int


@dataclass(frozen=True)
class Policy(ABC):
    """What the machine does with the tokens of a layer. A subclass is a frozen dataclass; its fields are its options.

    The runtime asks a policy for the settings of the core (`clustering`, `selection`), for the use of the tables
    (`table`, `sizes`), for the commands that select pages (`select`), and for a state-space branch parallel to the
    attention (`branch`, `branch_weights`). The defaults cluster tokens by the hash codes of their keys, score the mean
    keys of the clusters by the queries, and have no branch.

    prefetch   `next_layer`: a layer selects for the next layer, from its clusters before the step, and the fetch
               overlaps with the rest of the layer; `same_layer`: for itself
    """

    name: ClassVar[str] = ""
    windows: ClassVar[bool] = False  # a stream is a sequence of windows (`compiler.window_session`)
    prefetch: str = field(default="same_layer", kw_only=True)

    def __post_init__(self) -> None:
        checks.one_of("prefetch", self.prefetch, PREFETCH)

    @property
    def frames_per_step(self) -> int:
        """Largest number of frames that are one step."""
        return 1

    def core(self, config: Config) -> Config:
        """The core that the policy needs: `config`, or one with other settings."""
        return config

    @abstractmethod
    def clustering(self, config: Config) -> ClusterRule:
        """Settings of the HCU."""

    @abstractmethod
    def selection(self) -> Selection:
        """Settings of the WTU."""

    def table(self, config: Config) -> LayerPolicy:
        """How a layer uses its tables."""
        return RESV_POLICY

    def sizes(self, config: Config, tokens: int, step: int) -> TableSizes:
        """Sizes of a context for `tokens` tokens in steps of at most `step`. Four tokens on average have a page."""
        pages = min(config.max_pages, max(64, tokens // 4))
        return TableSizes(tokens, min(config.max_clusters, pages), pages, pages)

    def score(self, attention: RetrievalAttention, p: Operands, inputs: SelectionInputs) -> Scored:
        """Append the commands that score the clusters of a layer by the queries of a step, as far as it is iterated."""
        return attention.cluster_rows(p, inputs)

    def select(self, attention: RetrievalAttention, p: Operands, inputs: SelectionInputs, scored: Scored) -> Selected:
        """Append the commands that select clusters of a layer, whose context is open, by their scores."""
        return attention.select(p, inputs, scored)

    def batches(self, config: Config, widths: LayerWidths) -> bool:
        """Whether one step can serve several streams: selection, pruning and branch have no buffer for a whole step."""
        table = self.table(config)
        selects = table.by_frames or table.partitions or table.partial
        return not (
            selects or table.rho != 1 or self.windows or self.frames_per_step > 1 or self.branch(config, widths)
        )

    def branch(self, config: Config, widths: LayerWidths) -> Branch | None:
        """The branch of every layer; None: there is no branch."""
        return None

    def branch_weights(self, config: Config, widths: LayerWidths, layer: int) -> StateSpaceWeights | None:
        """Parameters of the branch of a layer; None: there is no branch."""
        return None
