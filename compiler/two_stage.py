"""Two-stage selection of clusters by the queries of a step (Mosaic): memory layout, vector programs and commands.

The host writes a row for each cluster before a step: the representative of its partition and its centroid, unit vectors
in BF16, and its token count. Its golden model is `golden.two_stage`.
"""

# mypy: disable-error-code="arg-type"
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler import vector_programs as programs
from compiler.builder import CommandRef, Operands
from compiler.memory import Region
from compiler.vector_code import VectorCode
from golden.bf16 import BF16_ONE
from golden.two_stage import FAR, FENCE, SHARPNESS, text_row
from hw.config import Config
from hw.core.isa import LIST_SETS, Destination, LengthSource


@dataclass(frozen=True)
class ClusterTables:
    """Word addresses of what the host writes for the clusters of a layer.

    representatives, centroids : a row of KV words for each cluster ; counts : 16-bit token counts
    labels : hash codes of the tokens of a step, one row of bits for each
    """

    representatives: int
    centroids: int
    counts: int
    labels: int

    @classmethod
    def allocate(cls, region: Region, config: Config, tokens: int) -> "ClusterTables":
        """Tables for all clusters that the HCU can hold, and for steps of `tokens` tokens."""
        n, clusters = config.dpe_inputs, cluster_blocks(config) * config.dpe_inputs
        row = config.kv_heads * config.head_dim // n
        return cls(
            region.allocate(clusters * row),
            region.allocate(clusters * row),
            region.allocate(clusters // n),
            region.allocate(tokens * -(-config.hash_bits // n)),
        )


NO_CLUSTERS = ClusterTables(0, 0, 0, 0)  # of a layer whose clusters the host does not choose


def cluster_blocks(config: Config) -> int:
    """Words of a row with an element for each cluster."""
    return -(-min(config.max_candidates, config.max_clusters, config.vpe_rows * config.vpe_lanes) // config.dpe_inputs)


class TwoStage:
    """Buffers and commands of the two stages.

    Attributes
    ----------
    partitions : partitions that pass the first stage of the next program; 0: there is no video yet
    images : constants in memory by word address
    """

    def __init__(self, config: Config, region: Region, rows: int, score_words: int):
        n, self.blocks = config.dpe_inputs, cluster_blocks(config)
        self.partitions = 0
        allocate, clusters = region.allocate, self.blocks * n
        # scores of all query rows with the representatives, for each KV head
        self.scores = [allocate(rows * score_words) for _ in range(config.kv_heads)]
        self.total, self.far, self.fence = (allocate(2 * self.blocks) for _ in range(3))
        self.marks = allocate(self.blocks)
        self.keys = [allocate(2 * self.blocks) for _ in range(LIST_SETS)]  # SELECT can read one while one is written
        text = np.zeros(clusters, "<u2")
        text[0] = BF16_ONE
        self.images = {
            self.far: text_row(clusters, FAR).astype("<u4").tobytes(),
            self.fence: text_row(clusters, FENCE).astype("<u4").tobytes(),
            **{keys + self.blocks: text.tobytes() for keys in self.keys},
        }

    def add_programs(self, vectors: VectorCode, lanes: int) -> None:
        """Add the vector programs."""
        varying = {
            "first row": programs.first_row(1, lanes),
            "add row": programs.add_row(1, lanes),
            "sum of rows": programs.sum_of_rows(1, lanes),
            "wide sum of rows": programs.sum_of_rows(1, lanes, wide=True),
            "marks": programs.marks(1, lanes, SHARPNESS),
            "remove": programs.add_multiple(1, lanes, -FAR),
            "unmarked": programs.difference_from(1, lanes, -FAR),
        }
        vectors.add(varying, varying=True)

    def rank(
        self,
        p: Operands,
        vectors: VectorCode,
        rows: int,
        stride: int,
        cluster_scores: Sequence[int],
        scored: Sequence[CommandRef],
        *,
        length: LengthSource,
        keys: int,
    ) -> list[CommandRef]:
        """The row of keys, at word `keys`, from the scores of both stages, on core 0.

        `rows` : query rows of a KV head ; `stride` : words from one row of scores to the next
        `cluster_scores` : word address of the scores with the centroids, for each KV head ; `scored` : commands before
        `length` : source of the number of clusters
        """
        row = {"length": length}
        load = {"a_wide": 1, "destination": Destination.NONE, **row}

        def add(scores: Sequence[int], skip: int) -> None:
            for head, word in enumerate(scores):
                own = range(skip if head == 0 else 0, rows)
                vectors.command(p, "add row", scored, repeat=own, a=word, a_stride=stride, **load)

        vectors.command(p, "first row", scored, repeat=1, a=self.scores[0], **load)
        add(self.scores, 1)
        total = {"a_wide": 1, "out": self.total, "out_wide": 1, **row}
        last = vectors.command(p, "wide sum of rows", scored, repeat=1, a=self.far, **total)
        for _ in range(self.partitions):
            last = vectors.command(p, "marks", last, repeat=1, a=self.total, a_wide=1, a_again=1, out=self.marks, **row)
            last = vectors.command(p, "remove", last, repeat=1, a=self.marks, b=self.total, b_wide=1, b_used=1,
                                   out=self.total, out_wide=1, **row)  # fmt: skip
        vectors.command(p, "unmarked", last, repeat=1, a=self.total, **load)
        add(cluster_scores, 0)
        return vectors.command(p, "sum of rows", scored, repeat=1, a=self.fence, a_wide=1, out=keys, **row)
