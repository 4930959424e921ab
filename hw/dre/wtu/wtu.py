"""WTU: weighted cumulative-sum threshold unit (V-Rex, section V-B, Fig. 12)."""

import enum as python_enum

from amaranth import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.common.counters import count
from hw.common.fork import fork
from hw.config import Config
from hw.dre.wtu.command import KEY_BITS, TARGET_BITS, KeyOrder, SelectionMode, Stat, WtuSizes
from hw.dre.wtu.histogram import HistogramSelector
from hw.dre.wtu.reporter import Reporter
from hw.dre.wtu.selector import Selector
from hw.dre.wtu.store import Store
from hw.dre.wtu.sweep import SweepSelector


class WtuDesign(python_enum.StrEnum):
    """Microarchitecture of the selector. The results of both are equal, bit for bit."""

    SWEEP = "sweep"  # one read of the row per bucket, as in V-Rex, Fig. 12
    HISTOGRAM = "histogram"  # one read of the row per level, for all buckets of the level


SELECTORS: dict[WtuDesign, type[Selector]] = {
    WtuDesign.SWEEP: SweepSelector,
    WtuDesign.HISTOGRAM: HistogramSelector,
}


class WTU(wiring.Component):
    """Selects the clusters with the largest keys of each score row until their weighted sum passes a threshold.

    A row is a packet of words and token counts, one of each per cluster. `cfg_selection_mode` sets the weight of a
    cluster and the condition that ends the selection. The unit does not sort. It divides the range of the row's keys
    into `buckets` buckets of equal width (a power of two, counted from the largest key down) and adds the buckets from
    the top until the sum passes the threshold. It divides the bucket that passes the threshold again,
    `cfg_refine_levels` times or until the bucket is a single key, and selects this bucket and all buckets above it. If
    the sum of the row does not pass the threshold, all clusters are selected. COUNT always divides down to a single
    key; of the clusters with this key it selects those with the lowest numbers.

    A row without clusters is one beat with `used` = 0. Words beyond the longest row are dropped and set `stat_fault`.

    A long row (`long`) does not fit the pair memory. The unit does not store it but reads it again from `i`: it asks
    for the same packet on `o_again` as often as it needs it, and for the next row after that. Each packet of a long
    row has one beat on `o_again`, which leaves when the packet begins.

    Rows with `join` are reported together with the next row: the first row without `join` reports the union of their
    selections, for example of all queries of one KV head. Joined rows have equal lengths. Each row gives a beat on
    `o_row`. Each row without `join` gives a bitmap on `o` and the same selection as a list of numbers on `o_index`.

    Timing
    ------
    A row loads at one beat per cycle while the previous row is selected and the row before that is reported, as long
    as their beats fit into the pair memory. `cycles` gives the cycles of a row in the selector, exact while no output
    stalls. `long_row_cycles` gives the cycles of a long row from its first beat to the first beat of the next row.
    `latency` is None: it depends on the data. The list takes one cycle per selected cluster. Beats whose clusters have
    not left are buffered, up to `list_beats` of `WtuSizes`; rows wait when this memory is full. `i.ready` depends on
    `i.payload.long`; there is no combinational path from one stream to another.

    Numerics: integers only, equal to `golden.wicsum.select` bit for bit. The result does not depend on the order of
    evaluation.

    Parameters
    ----------
    lanes, pairs, max_row_clusters, buckets, count_bits, cluster_bits : see `WtuSizes`
    design : see `WtuDesign` ; counters : False: the counters `Stat` are always zero

    Members
    -------
    i : stream of `WtuSizes.beat` ; o_again : stream of `WtuSizes.again`
    o_row : stream of `WtuSizes.result` ; o : stream of `WtuSizes.bitmap` ; o_index : stream of `WtuSizes.index`
    cfg_selection_mode, cfg_key_order : see `SelectionMode`, `KeyOrder`
    cfg_selection_target : RATIO: ratio in 1/65536, at most 65536; BUDGET, COUNT: tokens or clusters, at least 1
    cfg_refine_levels : number of times that the bucket which passes the threshold is divided again
    stat_* : see `Stat` ; stat_fault : sticky; words were dropped

    The `cfg_*` ports may change only while no row is in the unit.

    Raises
    ------
    ValueError
        If a size is outside its range, see `WtuSizes`, or `design` is not a `WtuDesign`.

    Source: V-Rex (arXiv 2512.12284), section V-B, Fig. 12.
    """

    latency = None

    def __init__(
        self,
        *,
        lanes: int,
        pairs: int,
        max_row_clusters: int,
        buckets: int = 16,
        count_bits: int = 16,
        cluster_bits: int = 16,
        design: WtuDesign = WtuDesign.HISTOGRAM,
        counters: bool = True,
    ):
        self.sizes = sizes = WtuSizes(lanes, pairs, max_row_clusters, buckets, count_bits, cluster_bits)
        if design not in SELECTORS:
            raise ValueError(f"design must be one of {', '.join(SELECTORS)}, got {design!r}")
        self.design, self.counters = WtuDesign(design), counters
        super().__init__(
            {
                "i": In(stream.Signature(sizes.beat)),
                "o_again": Out(stream.Signature(sizes.again)),
                "o_row": Out(stream.Signature(sizes.result)),
                "o": Out(stream.Signature(sizes.bitmap)),
                "o_index": Out(stream.Signature(sizes.index)),
                "cfg_selection_mode": In(SelectionMode),
                "cfg_key_order": In(KeyOrder),
                "cfg_selection_target": In(TARGET_BITS),
                "cfg_refine_levels": In(range(sizes.levels)),
                "stat_clear": In(1),
                "stat_fault": Out(1),
                **{f"stat_{name}": Out(32) for name in Stat},
            }
        )

    @classmethod
    def from_config(cls, config: Config, design: WtuDesign = WtuDesign.HISTOGRAM) -> "WTU":
        """The WTU of one core."""
        return cls(
            lanes=config.wtu_lanes,
            pairs=config.wtu_pairs,
            max_row_clusters=config.max_row_clusters,
            buckets=config.wtu_buckets,
            count_bits=config.count_bits,
            cluster_bits=config.cluster_bits,
            design=design,
            counters=bool(config.dre_counters),
        )

    @property
    def timing(self) -> dict[str, object]:
        """Latency and cycle formula, as written into the JSON of the generated unit."""
        return {"latency": self.latency, "cycles_per_row": SELECTORS[self.design].formula, "lanes": self.sizes.lanes}

    @property
    def memory_bits(self) -> dict[str, int]:
        """Size of each memory in bits."""
        sizes = self.sizes
        return {
            "pairs": sizes.pairs * (KEY_BITS + sizes.count_bits),
            "union": sizes.pairs,
            "list": sizes.list_beats * sizes.mask.size,
            **SELECTORS[self.design].memory_bits(sizes),
        }

    def cycles(self, clusters: int, passes: int, levels: int) -> int:
        """Cycles in the selector of a row of `clusters` when `passes` buckets in `levels` levels are examined.

        `passes` and `levels` are 0 for a row whose clusters are all selected. A row of more than `pairs` clusters is
        a long row.
        """
        is_long = clusters > self.sizes.pairs
        return SELECTORS[self.design].cycles(self.sizes, self._beats(clusters), passes, levels, is_long)

    def long_row_cycles(self, clusters: int, passes: int, levels: int) -> int:
        """Cycles from the first beat of a long row to the first beat of the next row, while no stream stalls.

        The row loads, is selected, and is read once more by the reporter.
        """
        beats = self._beats(clusters)
        return 2 * beats + SELECTORS[self.design].cycles(self.sizes, beats, passes, levels, True) + 1

    def packets(self, passes: int, levels: int) -> int:
        """Packets of a long row: its load, the reads of the selector and the read of the reporter."""
        return SELECTORS[self.design].reads(passes, levels) + 2

    def _beats(self, clusters: int) -> int:
        """Beats of a row of `clusters`."""
        return max(1, -(-clusters // self.sizes.lanes))

    @property
    def reset_cycles(self) -> int:
        """Cycles after a reset until the selector accepts a row."""
        return SELECTORS[self.design].reset_cycles(self.sizes)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sizes = self.sizes
        m.submodules.store = store = Store(sizes)
        m.submodules.selector = selector = SELECTORS[self.design](sizes)
        m.submodules.reporter = reporter = Reporter(sizes)

        wiring.connect(m, wiring.flipped(self.i), store.i)
        wiring.connect(m, store.o_again, wiring.flipped(self.o_again))
        wiring.connect(m, store.o, selector.i)
        m.d.comb += [
            store.order.eq(self.cfg_key_order),
            store.read.eq(selector.read),
            store.read_long.eq(selector.i.payload.long),
            store.read_at.eq(selector.read_at),
            selector.read_accepted.eq(store.read_accepted),
            selector.pairs.eq(store.read_pairs),
            selector.mode.eq(self.cfg_selection_mode),
            selector.refine.eq(self.cfg_refine_levels),
            selector.target.eq(self.cfg_selection_target),
            store.report.eq(reporter.read),
            store.report_long.eq(reporter.i.payload.long),
            store.report_at.eq(reporter.read_at),
            store.report_beat.eq(reporter.read_beat),
            reporter.read_accepted.eq(store.report_accepted),
            reporter.keys.eq(store.report_keys),
            reporter.union.eq(store.union),
            store.union_write.eq(reporter.union_write),
            store.union_clear.eq(reporter.union_clear),
            store.union_mask.eq(reporter.union_mask),
        ]
        choice = selector.o.payload
        fork(m, "choice", selector.o, [reporter.i, self.o_row])
        m.d.comb += [
            reporter.i.payload.eq(choice),
            self.o_row.payload.cutoff.eq(choice.cutoff),
            self.o_row.payload.passes.eq(choice.passes),
        ]
        wiring.connect(m, reporter.o, wiring.flipped(self.o))
        wiring.connect(m, reporter.o_index, wiring.flipped(self.o_index))

        self._count_events(m, store, selector, reporter)
        with m.If(store.overlong):
            m.d.sync += self.stat_fault.eq(1)
        with m.If(self.stat_clear):
            m.d.sync += self.stat_fault.eq(0)
        return m

    def _count_events(self, m: Module, store: Store, selector: Selector, reporter: Reporter) -> None:
        """Drive the counters `stat_*`."""
        sizes, choice = self.sizes, selector.o.payload
        row_done = Signal()
        waiting = selector.read & ~store.read_accepted
        m.d.comb += row_done.eq(selector.o.valid & selector.o.ready)
        last_beat = (choice.beats - 1)[: len(choice.beats)]
        clusters = (last_beat * sizes.lanes + choice.tail)[: sizes.max_row_clusters.bit_length()]
        events = {
            Stat.ROWS: row_done,
            Stat.CLUSTERS: Mux(row_done, clusters, 0),
            Stat.PASSES: Mux(row_done, choice.passes, 0),
            Stat.SELECTED: reporter.selected,
            Stat.READS: store.read_accepted,
            Stat.BUSY: selector.busy & ~selector.blocked & ~waiting,
            Stat.BLOCKED: selector.blocked,
            Stat.WAITING: waiting,
            Stat.STARVED: ~selector.busy,
        }
        count(m, self, events, enable=self.counters)
