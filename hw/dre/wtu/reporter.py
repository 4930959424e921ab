"""The WTU's results: the selection as a bitmap, rows joined on request, and as a list of cluster numbers."""

from collections.abc import Sequence

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.adders import count_ones
from hw.common.fork import fork
from hw.common.memory import Ram
from hw.common.pipeline import CreditGate
from hw.dre.wtu.command import KEY_BITS, WtuSizes


class Reporter(wiring.Component):
    """Reads a row again and compares its keys with the cutoff.

    Of a row with `join` only the bitmap is kept; the next row is ORed to it, and the first row without `join` reports
    the union of all. Where the choice is `limited`, the first `room` keys equal to the cutoff are taken.

    Timing: a beat per cycle, apart from cycles in which the selector reads the same memory; the list takes a cycle
    for each cluster or for each beat without one, and one for its end.

    Members
    -------
    i : stream of `WtuSizes.choice`, taken when all of it is read
    read_en, read_at, read_taken, keys : as `Store.report_*`
    o : stream of `WtuSizes.bitmap` ; o_index : stream of `WtuSizes.index`
    selected : clusters that this cycle selects
    """

    latency = None

    def __init__(self, sizes: WtuSizes):
        self.sizes = sizes
        super().__init__(
            {
                "i": In(stream.Signature(sizes.choice)),
                "read_en": Out(1),
                "read_at": Out(range(sizes.beats)),
                "read_taken": In(1),
                "keys": In(data.ArrayLayout(KEY_BITS, sizes.lanes)),
                "o": Out(stream.Signature(sizes.bitmap)),
                "o_index": Out(stream.Signature(sizes.index)),
                "selected": Out(range(sizes.lanes + 1)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sizes, row = self.sizes, self.i.payload
        m.submodules.gate = gate = CreditGate(sizes.bitmap, stages=1)
        m.submodules.union = union = Ram(depth=sizes.beats, width=1, words=sizes.lanes)
        m.submodules.list = indices = IndexList(sizes)

        # a beat is read, and compared one cycle later
        beat, last, all_read = Signal(range(sizes.beats)), Signal(), Signal()
        shown, shown_beat, shown_last = Signal(), Signal.like(beat), Signal()
        m.d.comb += [
            last.eq(beat + 1 == row.beats),
            self.read_at.eq((row.start + beat)[: len(self.read_at)]),
            self.read_en.eq(self.i.valid & ~all_read & (row.join | gate.ready)),
            self.i.ready.eq(shown & shown_last),
        ]
        m.d.sync += [shown.eq(self.read_taken), shown_last.eq(last)]
        with m.If(self.read_taken):
            m.d.sync += [shown_beat.eq(beat), beat.eq(Mux(last, 0, beat + 1)), all_read.eq(last)]
        with m.If(self.i.ready):
            m.d.sync += all_read.eq(0)

        room, left = Signal.like(row.room), Signal.like(row.room)
        equal, chosen = Signal(sizes.lanes), Signal(sizes.lanes)
        ranks = _prefix_counts([equal[w] for w in range(sizes.lanes)])
        for w, key in enumerate(self.keys):
            used = ~shown_last | (w < row.tail)
            m.d.comb += [
                equal[w].eq(row.limited & used & (key == row.cutoff)),
                chosen[w].eq(used & Mux(equal[w], ranks[w] <= room, key >= row.cutoff)),
            ]
        m.d.comb += room.eq(Mux(shown_beat == 0, row.room, left))
        m.d.sync += self.selected.eq(Mux(shown, count_ones(m, chosen), 0))
        with m.If(shown):
            m.d.sync += left.eq(Mux(ranks[-1] < room, room - ranks[-1], 0))

        fresh = Signal(init=1)  # what the union holds has been reported
        joined = Signal(sizes.lanes)
        m.d.comb += [
            joined.eq(chosen | Mux(fresh, 0, Value.cast(union.r_data))),
            union.r_addr.eq(beat),
            union.r_en.eq(self.read_taken),
            union.w_addr.eq(shown_beat),
            union.w_mask.eq(shown.replicate(sizes.lanes)),
            Value.cast(union.w_data).eq(joined),
            gate.take.eq(self.read_taken & ~row.join),
            gate.done.eq(shown & ~row.join),
            gate.result.mask.eq(joined),
            gate.result.first.eq(shown_beat * sizes.lanes),
            gate.result.last.eq(shown_last),
        ]
        with m.If(self.i.ready):
            m.d.sync += fresh.eq(~row.join)

        fork(m, "bitmap", gate.o, [self.o, indices.i])
        m.d.comb += [self.o.payload.eq(gate.o.payload), indices.i.payload.eq(gate.o.payload)]
        wiring.connect(m, indices.o, wiring.flipped(self.o_index))
        return m


class IndexList(wiring.Component):
    """Turns bitmaps into lists of cluster numbers in ascending order, each closed by a beat with `last`.

    Timing: combinational from `i` to `o`; max(1, ones) cycles for a beat, and one for the end of a list.

    Members
    -------
    i : stream of `WtuSizes.bitmap` ; o : stream of `WtuSizes.index`
    """

    latency = 0

    def __init__(self, sizes: WtuSizes):
        self.sizes = sizes
        super().__init__({"i": In(stream.Signature(sizes.bitmap)), "o": Out(stream.Signature(sizes.index))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        beat = self.i.payload
        sent, rest, one = (Signal(self.sizes.lanes, name=name) for name in ("sent", "rest", "one"))
        count, some, more = Signal(range(self.sizes.max_row_clusters + 1)), Signal(), Signal()
        lane_bits = (self.sizes.lanes - 1).bit_length()
        lane = [Cat(*(one[w] for w in range(self.sizes.lanes) if w >> k & 1)).any() for k in range(lane_bits)]
        m.d.comb += [
            rest.eq(beat.mask & ~sent),
            one.eq(rest & -rest),
            some.eq(rest.any()),
            more.eq((rest ^ one).any()),
            self.o.valid.eq(self.i.valid & (some | beat.last)),
            self.o.payload.cluster.eq(Mux(some, beat.first | Cat(*lane), count)),
            self.o.payload.last.eq(~some),
            self.i.ready.eq(Mux(beat.last, ~some & self.o.ready, ~more & (~some | self.o.ready))),
        ]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += sent.eq(0)
            with m.If(beat.last):
                m.d.sync += count.eq(0)
            with m.Elif(some):
                m.d.sync += count.eq(count + 1)
        with m.Elif(self.o.valid & self.o.ready):
            m.d.sync += [sent.eq(sent | one), count.eq(count + 1)]
        return m


def _prefix_counts(bits: Sequence[Value]) -> list[Value]:
    """For every position the number of ones up to and with it (Sklansky's parallel prefix)."""
    if len(bits) == 1:
        return list(bits)
    half = len(bits) // 2
    low, high = _prefix_counts(bits[:half]), _prefix_counts(bits[half:])
    return low + [low[-1] + count for count in high]
