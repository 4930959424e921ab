"""What the WTU is given and what it answers: modes, counters, sizes, payload layouts."""

import enum as python_enum
from dataclasses import dataclass

from amaranth import unsigned
from amaranth.lib import data, enum

KEY_BITS = 16
FRACTION_BITS = 24  # of a score, relative to the largest of its row (`golden.wicsum.fixed_point`)
TARGET_BITS = 32
RATIO_BITS = 16  # a ratio is in units of 2**-16


class Op(enum.Enum, shape=unsigned(1)):
    """What the words of a packet are."""

    KEYS = 0  # one row: the key of every cluster
    COUNTS = 1  # tokens of every cluster, for all rows that follow


class SelectionMode(enum.Enum, shape=unsigned(2)):
    """What a cluster adds to the sum, and when the selection stops."""

    RATIO = 0  # score x tokens; the sum exceeds `cfg_selection_target` / 65536 of the row's (V-Rex, Equations 1 to 3)
    BUDGET = 1  # tokens; the sum reaches `cfg_selection_target` (Mosaic, retrieval under a token budget)
    COUNT = 2  # 1; `cfg_selection_target` clusters, those of lowest number among equal keys (top-k)


class KeyOrder(enum.Enum, shape=unsigned(2)):
    """How a word becomes a key; larger keys are selected first."""

    PLAIN = 0  # the word itself: a BF16 number that is not negative
    SIGNED = 1  # a BF16 number of either sign
    REVERSED = 2  # the complement: the smallest word first


class Stat(python_enum.StrEnum):
    """Counters, 32 bits each, cleared by `stat_clear`."""

    ROWS = "rows"  # rows selected
    CLUSTERS = "clusters"  # clusters in them
    PASSES = "passes"  # buckets examined
    SELECTED = "selected"  # clusters selected, row by row
    READS = "reads"  # beats that the selector read
    BUSY = "busy"  # cycles with a row in the selector, without those below
    BLOCKED = "blocked"  # cycles in which a result waited for `o_row` or the row before to leave on `o`, `o_index`
    STARVED = "starved"  # cycles without a row


@dataclass(frozen=True)
class WtuSizes:
    """WtuSizes of one WTU, and the layouts that follow.

    lanes : clusters handled per cycle ; clusters : longest row ; buckets : of one level
    count_bits, cluster_bits : width of a token count and of a cluster number
    """

    lanes: int
    max_row_clusters: int
    buckets: int
    count_bits: int
    cluster_bits: int

    def __post_init__(self) -> None:
        for name, least in (("lanes", 1), ("max_row_clusters", 2 * self.lanes), ("buckets", 2)):
            value = getattr(self, name)
            if value < least or value & (value - 1):
                raise ValueError(f"{name} must be a power of two, at least {least}, got {value}")
        if self.buckets > 256:
            raise ValueError(f"buckets must be at most 256, got {self.buckets}")
        if not 1 <= self.count_bits <= KEY_BITS:
            raise ValueError(f"count_bits must be 1 to {KEY_BITS}, got {self.count_bits}")
        if self.max_row_clusters >= 1 << self.cluster_bits:
            raise ValueError(
                f"max_row_clusters must be below 2**cluster_bits = {1 << self.cluster_bits}, "
                f"got {self.max_row_clusters}"
            )

    @property
    def beats(self) -> int:
        """Beats of the longest row."""
        return self.max_row_clusters // self.lanes

    @property
    def bucket_bits(self) -> int:
        return self.buckets.bit_length() - 1

    @property
    def levels(self) -> int:
        """Levels that always single out one key."""
        return -(-KEY_BITS // self.bucket_bits)

    @property
    def weight_bits(self) -> int:
        """Width of score x tokens."""
        return FRACTION_BITS + 1 + self.count_bits

    @property
    def sum_bits(self) -> int:
        """Width of a sum over the longest row."""
        return self.weight_bits + self.max_row_clusters.bit_length() - 1

    @property
    def beat(self) -> data.StructLayout:
        """One beat of a packet.

        words : one per lane ; used : lanes in use, from lane 0; fewer than all only in the last beat
        join : (last beat of a row) this row's selection is not reported but added to that of the next row
        """
        return data.StructLayout(
            {
                "op": Op,
                "words": data.ArrayLayout(KEY_BITS, self.lanes),
                "used": range(self.lanes + 1),
                "join": 1,
                "last": 1,
            }
        )

    @property
    def row(self) -> data.StructLayout:
        """A row that has been loaded: where it is, and its smallest and largest key."""
        return data.StructLayout({**self._place, "low": KEY_BITS, "high": KEY_BITS})

    @property
    def choice(self) -> data.StructLayout:
        """What has been selected of a row: keys not below `cutoff`; where `limited`, `room` of those equal to it."""
        return data.StructLayout(
            {
                **self._place,
                "cutoff": KEY_BITS,
                "passes": self.passes,
                "limited": 1,
                "room": range(self.max_row_clusters + 1),
            }
        )

    @property
    def result(self) -> data.StructLayout:
        """One beat for each row: lower bound of the last bucket taken, buckets examined."""
        return data.StructLayout({"cutoff": KEY_BITS, "passes": self.passes})

    @property
    def bitmap(self) -> data.StructLayout:
        """Lane k of `mask` is cluster `first` + k."""
        return data.StructLayout({"mask": self.lanes, "first": self.cluster_bits, "last": 1})

    @property
    def index(self) -> data.StructLayout:
        """A selected cluster; the beat with `last` has none: there `cluster` is how many came before it."""
        return data.StructLayout({"cluster": self.cluster_bits, "last": 1})

    @property
    def passes(self) -> range:
        return range(self.buckets * self.levels + 1)

    @property
    def _place(self) -> dict[str, object]:
        """start : beat in the ring ; beats, tail : beats of the row, clusters in the last one"""
        return {
            "start": range(self.beats),
            "beats": range(self.beats + 1),
            "tail": range(self.lanes + 1),
            "join": 1,
        }
