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
from hw.dre.wtu.histogram import Histogram
from hw.dre.wtu.reporter import Reporter
from hw.dre.wtu.selector import Selector
from hw.dre.wtu.store import Store
from hw.dre.wtu.sweep import Sweep


class WtuDesign(python_enum.StrEnum):
    """Design points: the same results, bit for bit."""

    SWEEP = "sweep"  # reads the row once for each bucket, as the paper describes
    HISTOGRAM = "histogram"  # reads the row once for all buckets of a level


SELECTORS: dict[WtuDesign, type[Selector]] = {WtuDesign.SWEEP: Sweep, WtuDesign.HISTOGRAM: Histogram}


class WTU(wiring.Component):
    """Selects of each row the clusters with the largest keys until their weighted sum passes a threshold.

    A row is a packet of keys, one per cluster. `cfg_selection_mode` says what a cluster adds to the sum and when to
    stop.
    Nothing is sorted: the range of the row's keys is divided into `buckets` buckets of equal width (a power of two,
    counted from the largest key down), which are added up from the top until the sum passes the threshold. The bucket
    that passes it is divided again, `cfg_refine_levels` times or until it is a single key, and selected with all
    above it. A
    row whose sum does not pass the threshold is selected whole. COUNT always goes down to a single key, and takes of
    the clusters with that key the lowest numbers.

    A packet of token counts holds for all rows after it; it waits until the rows before it are selected. A row
    without clusters is one beat with `used` = 0. Words beyond the longest row are dropped and set `stat_fault`.

    Rows with `join` are reported together: the first row without it gives the union of its selection and theirs (the
    queries of one group of heads). Joined rows have equal lengths. Each row gives a beat on `o_row`; each row
    without `join` gives a bitmap on `o` and the same as a list of cluster numbers on `o_index`.

    Timing
    ------
    A row loads at one beat per cycle while the one before it is selected and the one before that is reported, as long
    as their beats fit into the ring of `clusters` keys. `cycles` gives the cycles of a row in the selector,
    exact while no output stalls; `latency` is data dependent. The list takes a cycle for each cluster, so rows that are
    reported one by one may take as long as their lists. `i.ready` depends on `i.payload.op`; there is no combinational
    path from one stream to another.

    Numerics: integers only, `golden.wicsum.select` bit for bit; the result does not depend on the order of clusters.

    Parameters
    ----------
    lanes, clusters, buckets : clusters per cycle, longest row, buckets of one level; powers of two
    count_bits, cluster_bits : width of token counts and cluster numbers
    design : see `WtuDesign`

    Members
    -------
    i : stream of `WtuSizes.beat`
    o_row : stream of `WtuSizes.result` ; o : stream of `WtuSizes.bitmap` ; o_index : stream of `WtuSizes.index`
    cfg_selection_mode, cfg_key_order : see `SelectionMode`, `KeyOrder`
    cfg_selection_target : ratio in 1/65536, at most 65536 (RATIO), or the number to reach, at least 1
    cfg_refine_levels : how often the bucket that passes the threshold is divided again
    stat_* : see `Stat`; stat_fault : sticky, words were dropped

    `cfg_*` may change while no row is inside.

    Raises
    ------
    ValueError
        For sizes that cannot be built.
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
        """Latency and cycle formula, as written into the generated unit's JSON."""
        return {"latency": self.latency, "cycles_per_row": SELECTORS[self.design].formula, "lanes": self.sizes.lanes}

    @property
    def memory_bits(self) -> dict[str, int]:
        """Storage in bits, by memory."""
        sizes = self.sizes
        return {
            "keys": sizes.max_row_clusters * 16,
            "counts": sizes.max_row_clusters * sizes.count_bits,
            "union": sizes.max_row_clusters,
            **SELECTORS[self.design].memory_bits(sizes),
        }

    def cycles(self, clusters: int, passes: int, levels: int) -> int:
        """Cycles in the selector of a row of `clusters` in which `passes` buckets in `levels` levels are examined.

        Both are 0 for a row that is selected whole.
        """
        beats = max(1, -(-clusters // self.sizes.lanes))
        return SELECTORS[self.design].cycles(self.sizes, beats, passes, levels)

    @property
    def reset_cycles(self) -> int:
        """Cycles after a reset before the selector takes a row."""
        return SELECTORS[self.design].reset_cycles(self.sizes)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sizes, beat = self.sizes, self.i.payload
        m.submodules.store = store = Store(sizes)
        m.submodules.counts = counts = Ram(depth=sizes.beats, width=sizes.count_bits, words=sizes.lanes)
        m.submodules.selector = selector = SELECTORS[self.design](sizes)
        m.submodules.reporter = reporter = Reporter(sizes)

        # a packet is what its first beat says it is
        inside, counting, keys = Signal(), Signal(), Signal()
        place, full = Signal(range(sizes.beats + 1)), Signal()  # of the next counts
        take = Signal()
        m.d.comb += [
            keys.eq(Mux(inside, ~counting, beat.op == Op.KEYS)),
            Value.cast(store.i.payload).eq(Value.cast(beat)),
            store.i.valid.eq(self.i.valid & keys),
            self.i.ready.eq(Mux(keys, store.i.ready, store.vacant)),
            take.eq(self.i.valid & self.i.ready),
            full.eq(place == sizes.beats),
            counts.w_addr.eq(place[: len(counts.w_addr)]),
            counts.w_mask.eq((take & ~keys & ~full).replicate(sizes.lanes)),
            *(counts.w_data[w].eq(beat.words[w][: sizes.count_bits]) for w in range(sizes.lanes)),
        ]
        with m.If(take):
            m.d.sync += [inside.eq(~beat.last), counting.eq(~keys)]
            with m.If(~keys):
                m.d.sync += place.eq(Mux(beat.last, 0, place + ~full))

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
            reporter.read_taken.eq(store.report_taken),
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

        left, clusters = Signal(), Signal(range(sizes.max_row_clusters + 1))
        m.d.comb += [
            left.eq(selector.o.valid & selector.o.ready),
            clusters.eq((choice.beats - 1) * sizes.lanes + choice.tail),
        ]
        steps = {
            Stat.ROWS: left,
            Stat.CLUSTERS: Mux(
                left, ((choice.beats - 1) * sizes.lanes + choice.tail)[: sizes.max_row_clusters.bit_length()], 0
            ),
            Stat.PASSES: Mux(left, choice.passes, 0),
            Stat.SELECTED: reporter.selected,
            Stat.READS: selector.read_en,
            Stat.BUSY: selector.busy & ~selector.blocked,
            Stat.BLOCKED: selector.blocked,
            Stat.STARVED: ~selector.busy,
        }
        count(m, self, steps)
        with m.If(store.overlong | (take & ~keys & full)):
            m.d.sync += self.stat_fault.eq(1)
        with m.If(self.stat_clear):
            m.d.sync += self.stat_fault.eq(0)
        return m
