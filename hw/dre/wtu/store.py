"""Pair memory of the WTU: a ring buffer of rows, and the passes of rows that do not fit it."""

import operator
from collections.abc import Callable, Sequence

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from hw.common.tree import reduce_tree
from hw.dre.wtu.beat_memory import BeatMemory
from hw.dre.wtu.command import KEY_BITS, KeyOrder, WtuSizes

ALL_ONES = (1 << KEY_BITS) - 1


class Store(wiring.Component):
    """Holds `pairs` pairs of key and token count in rows of any length, and finds the extreme keys of each row.

    One row loads while another one is selected and a third one is reported. The keys and the token counts are in two
    memories, because the reporter reads only keys. The selector and the reporter can both read a beat in each cycle if
    one beat is even and the other one odd.

    A long row is not stored. It arrives once to find its extremes (load), and once more for every read of the
    selector and of the reporter (pass). A read of a long row takes the next beat of the pass. The pair memory is free
    during the passes of a long row, because all earlier rows have been reported when the reporter reads it. The keys
    then are the union of joined long rows: bit s of key w of beat b is cluster (s * `pair_beats` + b) * lanes + w.
    Consecutive beats of a long row are therefore in different banks.

    Timing
    ------
    One beat per cycle enters, except while the selector or the reporter reads its bank. The pairs of a read are valid
    one cycle later, for one cycle. A read is accepted when `read_accepted` or `report_accepted`: a read of a stored row
    by the selector always, by the reporter when the selector does not read a beat of the same parity; a read of a long
    row when its next beat is valid. A row appears on `o` two cycles after its last beat. A beat on `o_again` follows
    the first beat of every packet of a long row.

    Parameters
    ----------
    sizes : sizes of the WTU

    Members
    -------
    i : stream of `WtuSizes.beat` ; o : stream of `WtuSizes.row` ; o_again : stream of `WtuSizes.again`
    order : conversion of words to keys
    read, read_long, read_at, read_accepted, read_pairs : reads of the selector, of a stored row or of a long row
    report, report_long, report_at, report_accepted, report_keys : reads of the reporter; each read frees its beat
    report_beat : number of the beat that the reporter reads in its row
    union : union of the lanes of the beat that the reporter has read; for long rows
    union_write, union_clear, union_mask : write these lanes of the union; the clusters after them are cleared
    overlong : a beat beyond the longest row was dropped
    """

    latency = None

    def __init__(self, sizes: WtuSizes):
        self.sizes = sizes
        super().__init__(
            {
                "i": In(stream.Signature(sizes.beat)),
                "o": Out(stream.Signature(sizes.row)),
                "o_again": Out(stream.Signature(sizes.again)),
                "order": In(KeyOrder),
                "read": In(1),
                "read_long": In(1),
                "read_at": In(range(sizes.pair_beats)),
                "read_accepted": Out(1),
                "read_pairs": Out(sizes.pair),
                "report": In(1),
                "report_long": In(1),
                "report_at": In(range(sizes.pair_beats)),
                "report_beat": In(range(sizes.beats)),
                "report_accepted": Out(1),
                "report_keys": Out(sizes.keys),
                "union": Out(sizes.lanes),
                "union_write": In(1),
                "union_clear": In(1),
                "union_mask": In(sizes.lanes),
                "overlong": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sizes, beat = self.sizes, self.i.payload
        m.submodules.rows = rows = SyncFIFO(width=sizes.row.size, depth=2)
        position = Signal(range(sizes.pair_beats))  # of the next beat in the ring
        occupied = Signal(range(sizes.pair_beats + 1))  # beats in the ring
        beats = Signal(range(sizes.beats + 1))  # beats of the packet that arrives
        stored = Signal()  # a beat of a row that loads was accepted in the previous cycle
        opens = Signal()  # it was the first beat of its row
        ends = Signal()  # it was the last beat of its row
        accept = Signal()
        is_long = Signal()  # the beat belongs to a long row
        full = Signal()
        write, writable = Signal(), Signal()
        passing, pass_ready = self._stream_passes(m, beats, accept, is_long, full)
        row_fits = rows.level + (stored & ends) < rows.depth
        beat_fits = Mux(is_long, pass_ready, (occupied != sizes.pair_beats) & writable) | full
        m.d.comb += [
            full.eq(beats == Mux(is_long, sizes.beats, sizes.pair_beats)),
            self.i.ready.eq(Mux(passing, full | (pass_ready & self._reads_long), row_fits & beat_fits)),
            accept.eq(self.i.valid & self.i.ready),
            write.eq(accept & ~full & ~is_long),
            self.overlong.eq(accept & full),
        ]
        frees = self.report_accepted & ~self.report_long
        m.d.sync += [
            stored.eq(accept & ~passing),
            position.eq((position + write)[: len(position)]),
            occupied.eq((occupied + write - frees)[: len(occupied)]),
        ]
        with m.If(accept):
            m.d.sync += [beats.eq(Mux(beat.last, 0, beats + ~full)), opens.eq(beats == 0), ends.eq(beat.last)]

        pairs = Signal(sizes.pair)
        for w in range(sizes.lanes):
            m.d.comb += [pairs[w].key.eq(_key(beat.words[w], self.order)), pairs[w].count.eq(beat.counts[w])]
        beat_row = self._measure_beat(
            m, [pairs[w].key for w in range(sizes.lanes)], accept, position, beats, full, is_long
        )
        row = self._merge(m, beat_row, stored, opens)
        m.d.comb += [
            rows.w_data.eq(row),
            rows.w_en.eq(stored & ends),
            Value.cast(self.o.payload).eq(rows.r_data),
            self.o.valid.eq(rows.r_rdy),
            rows.r_en.eq(self.o.ready),
        ]
        passed = Signal(sizes.pair)  # the beat of a long row that was read
        with m.If(accept & passing):
            m.d.sync += passed.eq(pairs)
        self._connect_memories(m, pairs, passed, position, write, writable)
        return m

    @property
    def _reads_long(self) -> Value:
        """The selector or the reporter reads a long row."""
        return (self.read & self.read_long) | (self.report & self.report_long)

    def _stream_passes(
        self, m: Module, beats: Signal, accept: Signal, is_long: Signal, full: Signal
    ) -> tuple[Signal, Signal]:
        """Passes of a long row: between its load and the end of its report, each packet is one pass.

        Returns two signals: the packets are passes; the beat is not the first of its packet, or `o_again` is free.
        """
        beat = self.i.payload
        passing, pass_ready, offered, reports = Signal(), Signal(), Signal(), Signal()
        long_packet, report_packet = Signal(), Signal()  # in this packet, after its first beat
        first = beats == 0
        m.d.comb += [
            is_long.eq(passing | Mux(first, beat.long, long_packet)),
            reports.eq(Mux(first, self.report & self.report_long, report_packet)),
            pass_ready.eq(~first | ~self.o_again.valid),
            offered.eq(self.i.valid & passing & pass_ready & ~full),
            self.read_accepted.eq(self.read & (~self.read_long | offered)),
        ]
        with m.If(self.o_again.ready):
            m.d.sync += self.o_again.valid.eq(0)
        with m.If(accept):
            m.d.sync += [long_packet.eq(is_long), report_packet.eq(reports)]
            with m.If(first & is_long):
                m.d.sync += [self.o_again.valid.eq(1), self.o_again.payload.again.eq(~passing | ~reports)]
            with m.If(beat.last & is_long):
                m.d.sync += passing.eq(~(passing & reports))
        conflict = self.read & ~self.read_long & (self.read_at[0] == self.report_at[0])
        m.d.comb += self.report_accepted.eq(self.report & Mux(self.report_long, offered, ~conflict))
        return passing, pass_ready

    def _measure_beat(
        self,
        m: Module,
        keys: Sequence[Value],
        accept: Signal,
        position: Signal,
        beats: Signal,
        full: Signal,
        is_long: Signal,
    ) -> data.View:
        """The row description after the accepted beat, with the extremes of this beat alone, one cycle later."""
        beat, lanes = self.i.payload, self.sizes.lanes
        beat_row = Signal(self.sizes.row)
        used, lowest, highest = Signal(lanes), list[Value](), list[Value]()
        m.d.comb += [used[w].eq(~full & (~beat.last | (w < beat.used))) for w in range(lanes)]
        for w in range(0, lanes, 2):  # two lanes share a comparison; the second one is used only if the first one is
            first, low, high = keys[w], keys[w], keys[w]
            if w + 1 < lanes:
                second, smaller = keys[w + 1], Signal(name=f"smaller{w}")
                m.d.comb += smaller.eq(second < first)
                low = Mux(used[w + 1] & smaller, second, first)
                high = Mux(used[w + 1] & ~smaller, second, first)
            lowest.append(Mux(used[w], low, ALL_ONES))
            highest.append(Mux(used[w], high, 0))
        empty = Signal()
        m.d.comb += empty.eq((beats == 0) & beat.last & (beat.used == 0))
        row_low, row_high = _extreme(m, "low", lowest, operator.lt), _extreme(m, "high", highest, operator.gt)
        with m.If(accept):
            m.d.sync += [
                beat_row.start.eq(position),
                beat_row.beats.eq(beats + ~full),
                beat_row.tail.eq(Mux(full, lanes, beat.used)),
                beat_row.join.eq(beat.join),
                beat_row.long.eq(is_long),
                beat_row.low.eq(Mux(empty, 0, row_low)),
                beat_row.high.eq(row_high),
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

    def _connect_memories(
        self, m: Module, pairs: data.View, passed: data.View, position: Signal, write: Signal, writable: Signal
    ) -> None:
        """The memories of the keys and of the token counts; the union of long rows in the keys."""
        sizes = self.sizes
        depth, lanes = sizes.pair_beats, sizes.lanes
        m.submodules.keys = keys = BeatMemory(depth=depth, width=KEY_BITS, lanes=lanes, readers=2)
        m.submodules.counts = counts = BeatMemory(depth=depth, width=sizes.count_bits, lanes=lanes, readers=1)
        report_row = Mux(self.report_long, self.report_beat[: len(position)], self.report_at)
        stored = self.read & ~self.read_long
        m.d.comb += [
            keys.r_at[0].eq(self.read_at),
            keys.r_at[1].eq(report_row),
            keys.read.eq(Cat(stored, self.report_accepted)),
            counts.r_at[0].eq(self.read_at),
            counts.read.eq(stored),
            keys.update.eq(self.union_write),
            writable.eq(keys.w_ready & counts.w_ready),
        ]
        for w in range(sizes.lanes):
            m.d.comb += [keys.w_data[w].eq(pairs[w].key), counts.w_data[w].eq(pairs[w].count)]
            m.d.comb += [
                self.read_pairs[w].key.eq(Mux(self.read_long, passed[w].key, keys.r_data[0][w])),
                self.read_pairs[w].count.eq(Mux(self.read_long, passed[w].count, counts.r_data[0][w])),
                self.report_keys[w].eq(Mux(self.report_long, passed[w].key, keys.r_data[1][w])),
            ]
        for beats in (keys, counts):
            m.d.comb += [beats.write.eq(write), beats.w_at.eq(position)]
        slot = Signal(range(sizes.union_slots))  # bit of the union in each key, for the beat that was read
        m.d.sync += slot.eq(self.report_beat[len(position) :])
        self._update_union(m, keys, slot)

    def _update_union(self, m: Module, keys: BeatMemory, slot: Signal) -> None:
        """Show the lanes of the union in one slot of the keys that were read; replace them in these keys."""
        bit, kept = Signal(self.sizes.union_slots), Signal(self.sizes.union_slots)
        m.d.comb += [bit.eq(1 << slot), kept.eq((bit - 1) | (~self.union_clear).replicate(len(bit)))]
        for w in range(self.sizes.lanes):
            word = Value.cast(keys.r_data[1][w])
            m.d.comb += [
                self.union[w].eq((word & bit).any()),
                keys.u_data[w].eq((word & kept) | Mux(self.union_mask[w], bit, 0)),
            ]


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
