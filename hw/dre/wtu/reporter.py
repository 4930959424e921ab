"""Outputs of the WTU: the selection of a row as a bitmap and as a list of cluster numbers."""

from collections.abc import Sequence

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.arith.adders import count_ones
from hw.common.fork import fork
from hw.common.memory import SinglePortRam
from hw.common.pipeline import CreditGate
from hw.dre.wtu.command import WtuSizes


class Reporter(wiring.Component):
    """Reads a row again, compares its keys with the cutoff, and reports the selected clusters.

    The bitmap of a row with `join` is stored in the union memory, that of a long row in the pair memory, and ORed with
    the bitmap of the next row. The first row without `join` reports the union of all these rows. If the choice is
    `limited`, only the first `tie_count` clusters with a key equal to the cutoff are selected.

    The beats of a bitmap wait in the list memory until their clusters have left on `o_index`. So the next rows are
    selected and reported while the receiver still works on the clusters of this one.

    Timing
    ------
    One beat per cycle, except in cycles in which the selector reads the same memory, no beat of a long row arrives, or
    the list memory is full. The list takes one cycle per selected cluster, at least one per beat, and one for its end.

    Parameters
    ----------
    sizes : sizes of the WTU

    Members
    -------
    i : stream of `WtuSizes.choice`, accepted when all beats of the row are read
    read, read_at, read_beat, read_accepted, keys : reads of the row, see `Store.report_*`
    union, union_write, union_clear, union_mask : union of long rows, see `Store`
    o : stream of `WtuSizes.bitmap` ; o_index : stream of `WtuSizes.index`
    selected : number of clusters selected in the previous cycle
    """

    latency = None

    def __init__(self, sizes: WtuSizes):
        self.sizes = sizes
        super().__init__(
            {
                "i": In(stream.Signature(sizes.choice)),
                "read": Out(1),
                "read_at": Out(range(sizes.pair_beats)),
                "read_beat": Out(range(sizes.beats)),
                "read_accepted": In(1),
                "keys": In(sizes.keys),
                "union": In(sizes.lanes),
                "union_write": Out(1),
                "union_clear": Out(1),
                "union_mask": Out(sizes.lanes),
                "o": Out(stream.Signature(sizes.bitmap)),
                "o_index": Out(stream.Signature(sizes.index)),
                "selected": Out(range(sizes.lanes + 1)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sizes, row = self.sizes, self.i.payload
        m.submodules.gate = gate = CreditGate(sizes.bitmap, stages=1)
        m.submodules.list = indices = IndexList(sizes)
        m.submodules.waiting = waiting = SyncFIFOBuffered(width=sizes.mask.size, depth=sizes.list_beats)

        beat = self.read_beat
        last = Signal()  # it is the last beat of the row
        all_read = Signal()
        shown = Signal()  # the keys of a beat are valid
        shown_beat = Signal(range(sizes.beats))
        shown_last = Signal()
        m.d.comb += [
            last.eq(beat + 1 == row.beats),
            self.read_at.eq((row.start + beat)[: len(self.read_at)]),
            self.read.eq(self.i.valid & ~all_read & (row.join | gate.ready)),
            self.i.ready.eq(shown & shown_last),
        ]
        m.d.sync += [shown.eq(self.read_accepted), shown_last.eq(last)]
        with m.If(self.read_accepted):
            m.d.sync += [shown_beat.eq(beat), beat.eq(Mux(last, 0, beat + 1)), all_read.eq(last)]
        with m.If(self.i.ready):
            m.d.sync += all_read.eq(0)

        chosen = self._compare(m, shown, shown_beat, shown_last)
        union_empty = Signal(init=1)  # the contents of the union memory have been reported
        with m.If(self.i.ready):
            m.d.sync += union_empty.eq(~row.join)
        joined, union = Signal(sizes.lanes), Signal(sizes.lanes)
        m.d.comb += [
            joined.eq(chosen | Mux(union_empty, 0, Mux(row.long, self.union, union))),
            self.union_write.eq(shown & row.long & row.join),
            self.union_clear.eq(union_empty),
            self.union_mask.eq(joined),
            gate.take.eq(self.read_accepted & ~row.join),
            gate.done.eq(shown & ~row.join),
            gate.result.mask.eq(joined),
            gate.result.first.eq(shown_beat * sizes.lanes),
            gate.result.last.eq(shown_last),
        ]

        # even and odd beats are in two memories: a beat is written while the next one is read
        banks = [SinglePortRam(depth=sizes.pair_beats // 2, width=sizes.lanes) for _ in range(2)]
        m.submodules.even, m.submodules.odd = banks
        m.d.comb += union.eq(Mux(shown_beat[0], banks[1].r_data[0], banks[0].r_data[0]))
        for n, bank in enumerate(banks):
            m.d.comb += [
                bank.r_addr.eq(beat[1:][: len(bank.r_addr)]),
                bank.r_en.eq(self.read_accepted & ~row.long & ~union_empty & (beat[0] == n)),
                bank.w_addr.eq(shown_beat[1:][: len(bank.w_addr)]),
                bank.w_mask.eq(shown & ~row.long & row.join & (shown_beat[0] == n)),
                bank.w_data[0].eq(joined),
            ]

        fork(m, "bitmap", gate.o, [self.o, waiting.w_stream])
        m.d.comb += [
            self.o.payload.eq(gate.o.payload),
            waiting.w_data.eq(Cat(gate.o.payload.mask, gate.o.payload.last)),
            indices.i.valid.eq(waiting.r_rdy),
            Value.cast(indices.i.payload).eq(waiting.r_data),
            waiting.r_en.eq(indices.i.ready),
        ]
        wiring.connect(m, indices.o, wiring.flipped(self.o_index))
        return m

    def _compare(self, m: Module, shown: Signal, shown_beat: Signal, shown_last: Signal) -> Signal:
        """Lanes of the shown beat that are selected, with the tie rule of `limited`."""
        row, lanes = self.i.payload, self.sizes.lanes
        tie_count = Signal.like(row.tie_count)  # equal keys that are still selected, before this beat
        next_tie_count = Signal.like(row.tie_count)  # after this beat
        equal = Signal(lanes)
        chosen = Signal(lanes)
        ranks = _prefix_counts([equal[w] for w in range(lanes)])
        for w in range(lanes):
            key = self.keys[w]
            used = ~shown_last | (w < row.tail)
            m.d.comb += [
                equal[w].eq(row.limited & used & (key == row.cutoff)),
                chosen[w].eq(used & Mux(equal[w], ranks[w] <= tie_count, key >= row.cutoff)),
            ]
        m.d.comb += tie_count.eq(Mux(shown_beat == 0, row.tie_count, next_tie_count))
        m.d.sync += self.selected.eq(Mux(shown, count_ones(m, chosen), 0))
        with m.If(shown):
            m.d.sync += next_tie_count.eq(Mux(ranks[-1] < tie_count, tie_count - ranks[-1], 0))
        return chosen


class IndexList(wiring.Component):
    """Converts bitmaps to lists of cluster numbers in ascending order; a beat with `last` ends each list.

    The beats of a bitmap arrive in order, the first one with cluster 0.

    Timing: combinational from `i` to `o`; max(1, number of ones) cycles per beat and one for the end of the list.

    Parameters
    ----------
    sizes : sizes of the WTU

    Members
    -------
    i : stream of `WtuSizes.mask` ; o : stream of `WtuSizes.index`
    """

    latency = 0

    def __init__(self, sizes: WtuSizes):
        self.sizes = sizes
        super().__init__({"i": In(stream.Signature(sizes.mask)), "o": Out(stream.Signature(sizes.index))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        lanes, beat = self.sizes.lanes, self.i.payload
        sent_bits = Signal(lanes)  # bits of this beat that have left
        remaining = Signal(lanes)
        lowest = Signal(lanes)  # lowest remaining bit, one-hot
        count = Signal(range(self.sizes.max_row_clusters + 1))  # clusters of this list
        first = Signal(range(self.sizes.max_row_clusters))  # cluster of lane 0
        any_left = Signal()
        more = Signal()
        lane_bits = (lanes - 1).bit_length()
        lane = [Cat(*(lowest[w] for w in range(lanes) if w >> k & 1)).any() for k in range(lane_bits)]
        m.d.comb += [
            remaining.eq(beat.mask & ~sent_bits),
            lowest.eq(remaining & -remaining),
            any_left.eq(remaining.any()),
            more.eq((remaining ^ lowest).any()),
            self.o.valid.eq(self.i.valid & (any_left | beat.last)),
            self.o.payload.cluster.eq(Mux(any_left, first | Cat(*lane), count)),
            self.o.payload.last.eq(~any_left),
            self.i.ready.eq(Mux(beat.last, ~any_left & self.o.ready, ~more & (~any_left | self.o.ready))),
        ]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [sent_bits.eq(0), first.eq((first + lanes)[: len(first)])]
            with m.If(beat.last):
                m.d.sync += [count.eq(0), first.eq(0)]
            with m.Elif(any_left):
                m.d.sync += count.eq(count + 1)
        with m.Elif(self.o.valid & self.o.ready):
            m.d.sync += [sent_bits.eq(sent_bits | lowest), count.eq(count + 1)]
        return m


def _prefix_counts(bits: Sequence[Value]) -> list[Value]:
    """Number of ones up to and including each position (parallel prefix of Sklansky)."""
    if len(bits) == 1:
        return list(bits)
    half = len(bits) // 2
    low, high = _prefix_counts(bits[:half]), _prefix_counts(bits[half:])
    return low + [low[-1] + count for count in high]
