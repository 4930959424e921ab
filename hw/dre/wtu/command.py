"""Commands, results, counters, sizes and payload layouts of the WTU."""

import enum as python_enum
from dataclasses import dataclass

from amaranth import unsigned
from amaranth.lib import data, enum

KEY_BITS = 16
FRACTION_BITS = 24  # fraction bits of a score, relative to the largest score of its row (`golden.wicsum.fixed_point`)
TARGET_BITS = 32
RATIO_BITS = 16  # a ratio is a number of 1/65536
LIST_ROWS = 3  # rows that fill the pair memory, whose selections fit the list memory


class SelectionMode(enum.Enum, shape=unsigned(2)):
    """Weight of a cluster and condition that ends the selection."""

    RATIO = (
        0  # weight score x tokens; ends when the sum exceeds `cfg_selection_target` / 65536 of the row's sum (V-Rex)
    )
    BUDGET = 1  # weight tokens; ends when the sum reaches `cfg_selection_target` tokens
    COUNT = 2  # weight 1; ends after `cfg_selection_target` clusters, lowest numbers first among equal keys (top-k)


class KeyOrder(enum.Enum, shape=unsigned(2)):
    """Conversion of an input word to an unsigned key. Larger keys are selected first."""

    PLAIN = 0  # the word itself: a BF16 number that is not negative
    SIGNED = 1  # a BF16 number of either sign
    REVERSED = 2  # the complement of the word: the smallest word is selected first


class Stat(python_enum.StrEnum):
    """Counters of 32 bits, cleared by `stat_clear`."""

    ROWS = "rows"  # rows selected
    CLUSTERS = "clusters"  # clusters in these rows
    PASSES = "passes"  # buckets examined
    SELECTED = "selected"  # clusters selected, counted row by row
    READS = "reads"  # beats that the selector read
    BUSY = "busy"  # cycles with a row in the selector, without the blocked and the waiting ones
    BLOCKED = "blocked"  # cycles in which a finished row waited for `o_row` or for the reporter
    WAITING = "waiting"  # cycles in which the selector waited for a beat of a long row
    STARVED = "starved"  # cycles without a row in the selector


@dataclass(frozen=True)
class WtuSizes:
    """Sizes of one WTU and the widths and payload layouts that follow from them.

    Parameters
    ----------
    lanes : clusters processed per cycle, a power of two
    pairs : pairs of key and token count in the pair memory, a power of two, at least 2 * `lanes`
    max_row_clusters : longest row, a power of two, at least `pairs`
    buckets : buckets per level, a power of two, 2 to 256
    count_bits : width of a token count, 1 to 16
    cluster_bits : width of a cluster number

    Raises
    ------
    ValueError
        If a size is outside its range.
    """

    lanes: int
    pairs: int
    max_row_clusters: int
    buckets: int
    count_bits: int
    cluster_bits: int

    def __post_init__(self) -> None:
        for name, minimum in (
            ("lanes", 1),
            ("pairs", 2 * self.lanes),
            ("max_row_clusters", self.pairs),
            ("buckets", 2),
        ):
            value = getattr(self, name)
            if value < minimum or value & (value - 1):
                raise ValueError(f"{name} must be a power of two, at least {minimum}, got {value}")
        if self.buckets > 256:
            raise ValueError(f"buckets must be at most 256, got {self.buckets}")
        if not 1 <= self.count_bits <= KEY_BITS:
            raise ValueError(f"count_bits must be 1 to {KEY_BITS}, got {self.count_bits}")
        if self.max_row_clusters > self.pairs * self.union_slots:
            limit = self.pairs * self.union_slots
            raise ValueError(
                f"max_row_clusters must be at most {limit} for {self.pairs} pairs, got {self.max_row_clusters}"
            )
        limit = 1 << self.cluster_bits
        if self.max_row_clusters >= limit:
            raise ValueError(f"max_row_clusters must be below 2**cluster_bits = {limit}, got {self.max_row_clusters}")

    @property
    def beats(self) -> int:
        """Beats of the longest row."""
        return self.max_row_clusters // self.lanes

    @property
    def pair_beats(self) -> int:
        """Beats of the pair memory, which are the beats of the longest row that is not a long row."""
        return self.pairs // self.lanes

    @property
    def list_beats(self) -> int:
        """Beats of selections that wait in the list memory until their clusters have left."""
        return min(self.beats, LIST_ROWS * self.pair_beats)

    @property
    def union_slots(self) -> int:
        """Bits of the union of long rows that one key of the pair memory holds."""
        return KEY_BITS

    @property
    def bucket_bits(self) -> int:
        """Width of a bucket number."""
        return self.buckets.bit_length() - 1

    @property
    def levels(self) -> int:
        """Levels after which a bucket always holds a single key."""
        return -(-KEY_BITS // self.bucket_bits)

    @property
    def weight_bits(self) -> int:
        """Width of score x tokens."""
        return FRACTION_BITS + 1 + self.count_bits

    @property
    def sum_bits(self) -> int:
        """Width of the sum of all weights of the longest row."""
        return self.weight_bits + self.max_row_clusters.bit_length() - 1

    @property
    def passes(self) -> range:
        """Range of the number of buckets examined in one row."""
        return range(self.buckets * self.levels + 1)

    @property
    def beat(self) -> data.StructLayout:
        """One input beat.

        words, counts : word and token count of each lane
        used : lanes in use, counted from lane 0; less than `lanes` only in the last beat of a packet
        join : in the last beat of a row: report the selection of this row together with that of the next row
        long : in the first beat of a row: the row has more clusters than the pair memory
        """
        return data.StructLayout(
            {
                "words": data.ArrayLayout(KEY_BITS, self.lanes),
                "counts": data.ArrayLayout(self.count_bits, self.lanes),
                "used": range(self.lanes + 1),
                "join": 1,
                "long": 1,
                "last": 1,
            }
        )

    @property
    def again(self) -> data.StructLayout:
        """One beat per packet of a long row: whether the next packet is the same row (1) or the next row (0)."""
        return data.StructLayout({"again": 1})

    @property
    def pair(self) -> data.ArrayLayout:
        """Key and token count of each lane, one row of the pair memory."""
        return data.ArrayLayout(data.StructLayout({"key": KEY_BITS, "count": self.count_bits}), self.lanes)

    @property
    def keys(self) -> data.ArrayLayout:
        """Key of each lane."""
        return data.ArrayLayout(KEY_BITS, self.lanes)

    @property
    def row(self) -> data.StructLayout:
        """A loaded row: its address, its smallest key `low` and its largest key `high`."""
        return data.StructLayout({**self._row_address, "low": KEY_BITS, "high": KEY_BITS})

    @property
    def choice(self) -> data.StructLayout:
        """The selection of a row as a bound.

        cutoff : clusters with a key of at least `cutoff` are selected
        passes : buckets examined
        limited : of the clusters whose key equals `cutoff`, only the first `tie_count` are selected
        """
        return data.StructLayout(
            {
                **self._row_address,
                "cutoff": KEY_BITS,
                "passes": self.passes,
                "limited": 1,
                "tie_count": range(self.max_row_clusters + 1),
            }
        )

    @property
    def result(self) -> data.StructLayout:
        """One beat per row: lower bound `cutoff` of the last selected bucket, number of buckets examined."""
        return data.StructLayout({"cutoff": KEY_BITS, "passes": self.passes})

    @property
    def bitmap(self) -> data.StructLayout:
        """`lanes` bits of a selection; bit k of `mask` is cluster `first` + k."""
        return data.StructLayout({"mask": self.lanes, "first": self.cluster_bits, "last": 1})

    @property
    def mask(self) -> data.StructLayout:
        """A beat of a bitmap whose number follows from the order of the beats."""
        return data.StructLayout({"mask": self.lanes, "last": 1})

    @property
    def index(self) -> data.StructLayout:
        """A selected cluster. The beat with `last` holds the number of selected clusters instead."""
        return data.StructLayout({"cluster": self.cluster_bits, "last": 1})

    @property
    def _row_address(self) -> dict[str, object]:
        """First beat of a row in the pair memory, number of beats, clusters in the last beat, flags of the row."""
        return {
            "start": range(self.pair_beats),
            "beats": range(self.beats + 1),
            "tail": range(self.lanes + 1),
            "join": 1,
            "long": 1,
        }
