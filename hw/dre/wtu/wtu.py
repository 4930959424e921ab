"""WTU: weighted cumulative-sum threshold unit (V-Rex, section V-B, Fig. 12)."""

import enum as python_enum

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.common.counters import count
from hw.common.fork import fork
from hw.common.memory import Ram
from hw.config import Config
from hw.dre.wtu.command import TARGET_BITS, KeyOrder, Op, SelectionMode, Stat, WtuSizes
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

    A row is a packet of keys, one per cluster. `cfg_selection_mode` sets the weight of a cluster and the condition
    that ends the selection. The unit does not sort. It divides the range of the row's keys into `buckets` buckets of
    equal width (a power of two, counted from the largest key down) and adds the buckets from the top until the sum
    passes the threshold. It divides the bucket that passes the threshold again, `cfg_refine_levels` times or until
    the bucket is a single key, and selects this bucket and all buckets above it. If the sum of the row does not pass
    the threshold, all clusters are selected. COUNT always divides down to a single key; of the clusters with this key
    it selects those with the lowest numbers.

    A packet of token counts holds for all rows after it. It is accepted when the selector has accepted all rows
    before it. A row without clusters is one beat with `used` = 0. Words beyond the longest row are dropped and set
    `stat_fault`.

    Rows with `join` are reported together with the next row: the first row without `join` reports the union of their
    selections, for example of all queries of one KV head. Joined rows have equal lengths. Each row gives a beat on
    `o_row`. Each row without `join` gives a bitmap on `o` and the same selection as a list of numbers on `o_index`.

    Timing
    ------
    A row loads at one beat per cycle while the previous row is selected and the row before that is reported, as long
    as their beats fit into the key memory. `cycles` gives the cycles of a row in the selector, exact while no output
    stalls. `latency` is None: it depends on the data. The list takes one cycle per selected cluster, so rows that are
    reported one by one can wait for their lists. `i.ready` depends on `i.payload.op`; there is no combinational path
    from one stream to another.

    Numerics: integers only, equal to `golden.wicsum.select` bit for bit. The result does not depend on the order of
    evaluation.

    Parameters
    ----------
    lanes, max_row_clusters, buckets, count_bits, cluster_bits : see `WtuSizes`
    design : see `WtuDesign`

    Members
    -------
    i : stream of `WtuSizes.beat`
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
        max_row_clusters: int,
        buckets: int = 16,
        count_bits: int = 16,
        cluster_bits: int = 16,
        design: WtuDesign = WtuDesign.HISTOGRAM,
    ):
        self.sizes = sizes = WtuSizes(lanes, max_row_clusters, buckets, count_bits, cluster_bits)
        if design not in SELECTORS:
            raise ValueError(f"design must be one of {', '.join(SELECTORS)}, got {design!r}")
        self.design = WtuDesign(design)
        super().__init__(
            {
                "i": In(stream.Signature(sizes.beat)),
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
            max_row_clusters=config.max_row_clusters,
            buckets=config.wtu_buckets,
            count_bits=config.count_bits,
            cluster_bits=config.cluster_bits,
            design=design,
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
            "keys": sizes.max_row_clusters * 16,
            "counts": sizes.max_row_clusters * sizes.count_bits,
            "union": sizes.max_row_clusters,
            **SELECTORS[self.design].memory_bits(sizes),
        }

    def cycles(self, clusters: int, passes: int, levels: int) -> int:
        """Cycles in the selector of a row of `clusters` when `passes` buckets in `levels` levels are examined.

        `passes` and `levels` are 0 for a row whose clusters are all selected.
        """
        beats = max(1, -(-clusters // self.sizes.lanes))
        return SELECTORS[self.design].cycles(self.sizes, beats, passes, levels)

    @property
    def reset_cycles(self) -> int:
        """Cycles after a reset until the selector accepts a row."""
        return SELECTORS[self.design].reset_cycles(self.sizes)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sizes = self.sizes
        m.submodules.store = store = Store(sizes)
        m.submodules.counts = counts = Ram(depth=sizes.beats, width=sizes.count_bits, words=sizes.lanes)
        m.submodules.selector = selector = SELECTORS[self.design](sizes)
        m.submodules.reporter = reporter = Reporter(sizes)
        counts_dropped = self._accept_packets(m, store, counts)

        wiring.connect(m, store.o, selector.i)
        m.d.comb += [
            store.order.eq(self.cfg_key_order),
            store.read_en.eq(selector.read_en),
            store.read_at.eq(selector.read_at),
            store.report_en.eq(reporter.read_en),
            store.report_at.eq(reporter.read_at),
            counts.r_en.eq(selector.read_en),
            counts.r_addr.eq(selector.read_beat),
            selector.keys.eq(store.read_keys),
            selector.counts.eq(counts.r_data),
            selector.mode.eq(self.cfg_selection_mode),
            selector.refine.eq(self.cfg_refine_levels),
            selector.target.eq(self.cfg_selection_target),
            reporter.read_accepted.eq(store.report_accepted),
            reporter.keys.eq(store.report_keys),
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

        self._count_events(m, selector, reporter)
        with m.If(store.overlong | counts_dropped):
            m.d.sync += self.stat_fault.eq(1)
        with m.If(self.stat_clear):
            m.d.sync += self.stat_fault.eq(0)
        return m

    def _accept_packets(self, m: Module, store: Store, counts: Ram) -> Value:
        """Send keys to the store and token counts to their memory; the first beat of a packet gives its kind.

        Returns a signal that is high when a beat of counts beyond the longest row is dropped.
        """
        sizes, beat = self.sizes, self.i.payload
        in_packet = Signal()  # the next beat is not the first one of its packet
        counts_packet = Signal()  # the packet holds counts
        keys = Signal()  # the beat holds keys
        accept = Signal()
        count_beat = Signal(range(sizes.beats + 1))  # address of the next beat of counts
        full = Signal()
        m.d.comb += [
            keys.eq(Mux(in_packet, ~counts_packet, beat.op == Op.KEYS)),
            Value.cast(store.i.payload).eq(Value.cast(beat)),
            store.i.valid.eq(self.i.valid & keys),
            self.i.ready.eq(Mux(keys, store.i.ready, store.vacant)),
            accept.eq(self.i.valid & self.i.ready),
            full.eq(count_beat == sizes.beats),
            counts.w_addr.eq(count_beat[: len(counts.w_addr)]),
            counts.w_mask.eq((accept & ~keys & ~full).replicate(sizes.lanes)),
            *(counts.w_data[w].eq(beat.words[w][: sizes.count_bits]) for w in range(sizes.lanes)),
        ]
        with m.If(accept):
            m.d.sync += [in_packet.eq(~beat.last), counts_packet.eq(~keys)]
            with m.If(~keys):
                m.d.sync += count_beat.eq(Mux(beat.last, 0, count_beat + ~full))
        return accept & ~keys & full

    def _count_events(self, m: Module, selector: Selector, reporter: Reporter) -> None:
        """Drive the counters `stat_*`."""
        sizes, choice = self.sizes, selector.o.payload
        row_done = Signal()
        m.d.comb += row_done.eq(selector.o.valid & selector.o.ready)
        clusters = ((choice.beats - 1) * sizes.lanes + choice.tail)[: sizes.max_row_clusters.bit_length()]
        events = {
            Stat.ROWS: row_done,
            Stat.CLUSTERS: Mux(row_done, clusters, 0),
            Stat.PASSES: Mux(row_done, choice.passes, 0),
            Stat.SELECTED: reporter.selected,
            Stat.READS: selector.read_en,
            Stat.BUSY: selector.busy & ~selector.blocked,
            Stat.BLOCKED: selector.blocked,
            Stat.STARVED: ~selector.busy,
        }
        count(m, self, events)
