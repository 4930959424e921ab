"""Key memory of the WTU: a ring buffer of rows."""

import operator
from collections.abc import Callable, Sequence

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from hw.common.memory import Ram
from hw.common.tree import reduce_tree
from hw.dre.wtu.command import KEY_BITS, KeyOrder, WtuSizes

ALL_ONES = (1 << KEY_BITS) - 1


class Store(wiring.Component):
    """Holds `max_row_clusters` keys in rows of any length, and finds the smallest and largest key of each row.

    One row loads while another one is selected and a third one is reported. Even and odd beats are in two memories,
    so the selector and the reporter can both read a beat in each cycle.

    Timing
    ------
    One beat per cycle enters. The keys of a read are valid one cycle later, for one cycle. A read of the selector
    (`read_en`) is always accepted; a read of the reporter (`report_en`) is accepted when `report_accepted`, that is,
    when the selector does not read the same memory. A row appears on `o` two cycles after its last beat.

    Parameters
    ----------
    sizes : sizes of the WTU

    Members
    -------
    i : stream of `WtuSizes.beat`, keys only ; o : stream of `WtuSizes.row`
    order : conversion of words to keys
    read_en, read_at, read_keys : reads of the selector
    report_en, report_at, report_accepted, report_keys : reads of the reporter; each read frees its beat
    vacant : no row loads and none waits on `o`
    overlong : a beat beyond the longest row was dropped
    """

    latency = None

    def __init__(self, sizes: WtuSizes):
        self.sizes = sizes
        keys = data.ArrayLayout(KEY_BITS, sizes.lanes)
        super().__init__(
            {
                "i": In(stream.Signature(sizes.beat)),
                "o": Out(stream.Signature(sizes.row)),
                "order": In(KeyOrder),
                "read_en": In(1),
                "read_at": In(range(sizes.beats)),
                "read_keys": Out(keys),
                "report_en": In(1),
                "report_at": In(range(sizes.beats)),
                "report_accepted": Out(1),
                "report_keys": Out(keys),
                "vacant": Out(1),
                "overlong": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sizes, beat = self.sizes, self.i.payload
        m.submodules.rows = rows = SyncFIFO(width=sizes.row.size, depth=2)
        position = Signal(range(sizes.beats))  # of the next beat in the ring
        occupied = Signal(range(sizes.beats + 1))  # beats in the ring
        beats = Signal(range(sizes.beats + 1))  # beats of the row that loads
        stored = Signal()  # a beat was accepted in the previous cycle
        opens = Signal()  # it was the first beat of its row
        ends = Signal()  # it was the last beat of its row
        accept = Signal()
        full = Signal()
        write = Signal()
        m.d.comb += [
            full.eq(beats == sizes.beats),
            self.i.ready.eq((rows.level + (stored & ends) < rows.depth) & ((occupied != sizes.beats) | full)),
            accept.eq(self.i.valid & self.i.ready),
            write.eq(accept & ~full),
            self.overlong.eq(accept & full),
            self.vacant.eq((beats == 0) & ~stored & (rows.level == 0)),
        ]
        m.d.sync += [
            stored.eq(accept),
            opens.eq(beats == 0),
            ends.eq(beat.last),
            position.eq((position + write)[: len(position)]),
            occupied.eq((occupied + write - self.report_accepted)[: len(occupied)]),
        ]
        with m.If(accept):
            m.d.sync += beats.eq(Mux(beat.last, 0, beats + write))

        keys = [Signal(KEY_BITS, name=f"key{w}") for w in range(sizes.lanes)]
        m.d.comb += [key.eq(_key(beat.words[w], self.order)) for w, key in enumerate(keys)]
        beat_row = self._measure_beat(m, keys, position, beats, full, write)
        row = self._merge(m, beat_row, stored, opens)
        m.d.comb += [
            rows.w_data.eq(row),
            rows.w_en.eq(stored & ends),
            Value.cast(self.o.payload).eq(rows.r_data),
            self.o.valid.eq(rows.r_rdy),
            rows.r_en.eq(self.o.ready),
        ]
        self._connect_memories(m, keys, position, write)
        return m

    def _measure_beat(
        self, m: Module, keys: Sequence[Signal], position: Signal, beats: Signal, full: Signal, write: Signal
    ) -> data.View:
        """The row description after the accepted beat, with the extremes of this beat alone, one cycle later."""
        beat, lanes = self.i.payload, self.sizes.lanes
        beat_row = Signal(self.sizes.row)
        lowest, highest = [], []
        for w, key in enumerate(keys):
            used = Signal(name=f"used{w}")
            m.d.comb += used.eq(~full & (~beat.last | (w < beat.used)))
            lowest.append(Mux(used, key, ALL_ONES))
            highest.append(Mux(used, key, 0))
        empty = Signal()
        m.d.comb += empty.eq((beats == 0) & beat.last & (beat.used == 0))
        m.d.sync += [
            beat_row.start.eq(position),
            beat_row.beats.eq(beats + write),
            beat_row.tail.eq(Mux(full, lanes, beat.used)),
            beat_row.join.eq(beat.join),
            beat_row.low.eq(Mux(empty, 0, _extreme(m, "low", lowest, operator.lt))),
            beat_row.high.eq(_extreme(m, "high", highest, operator.gt)),
        ]
        return beat_row

    def _merge(self, m: Module, beat_row: data.View, stored: Signal, opens: Signal) -> data.View:
        """Combine the extremes of the stored beat with those of the earlier beats of its row."""
        earlier = Signal(self.sizes.row)
        row = Signal(self.sizes.row)
        m.d.comb += [
            row.eq(beat_row),
            row.start.eq(Mux(opens, beat_row.start, earlier.start)),
            row.low.eq(Mux(~opens & (earlier.low < beat_row.low), earlier.low, beat_row.low)),
            row.high.eq(Mux(~opens & (earlier.high > beat_row.high), earlier.high, beat_row.high)),
        ]
        with m.If(stored):
            m.d.sync += earlier.eq(row)
        return row

    def _connect_memories(self, m: Module, keys: Sequence[Signal], position: Signal, write: Signal) -> None:
        """The memories of the even and of the odd beats, with one write and two read requests."""
        sizes = self.sizes
        banks = [Ram(depth=max(1, sizes.beats // 2), width=KEY_BITS, words=sizes.lanes) for _ in range(2)]
        m.submodules.even, m.submodules.odd = banks
        read_odd = Signal()
        report_odd = Signal()
        conflict = self.read_en & (self.read_at[0] == self.report_at[0])
        m.d.comb += self.report_accepted.eq(self.report_en & ~conflict)
        m.d.sync += [read_odd.eq(self.read_at[0]), report_odd.eq(self.report_at[0])]
        for odd, bank in enumerate(banks):
            reads = self.read_en & (self.read_at[0] == odd)
            m.d.comb += [
                bank.w_addr.eq(position[1:]),
                bank.w_mask.eq((write & (position[0] == odd)).replicate(sizes.lanes)),
                Value.cast(bank.w_data).eq(Cat(*keys)),
                bank.r_en.eq(reads | (self.report_accepted & (self.report_at[0] == odd))),
                bank.r_addr.eq(Mux(reads, self.read_at[1:], self.report_at[1:])),
            ]
        for port, odd in ((self.read_keys, read_odd), (self.report_keys, report_odd)):
            m.d.comb += Value.cast(port).eq(Mux(odd, Value.cast(banks[1].r_data), Value.cast(banks[0].r_data)))


def _key(word: Value, order: Value) -> Value:
    """Unsigned key of a word. For SIGNED, a negative BF16 number is inverted, and a positive one gets its top bit."""
    signed = Mux(word[-1], ~word, word | 1 << KEY_BITS - 1)
    return Mux(order == KeyOrder.PLAIN, word, Mux(order == KeyOrder.SIGNED, signed, ~word))


def _extreme(m: Module, name: str, words: Sequence[Value], is_better: Callable[[Value, Value], Value]) -> Value:
    """The word that is better than all others."""

    def pick(a: Value, b: Value) -> Value:
        better = Signal(KEY_BITS, name=name)
        m.d.comb += better.eq(Mux(is_better(b, a), b, a))
        return better

    return reduce_tree(pick, words)
