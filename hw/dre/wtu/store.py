"""The WTU's rows: a ring of keys that one row enters while others are selected and reported."""

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
    """Holds `clusters` keys in rows of any length and finds the smallest and largest key of each while it loads.

    Even and odd beats lie in two memories, so that two readers that walk through rows get a beat each per cycle.

    Timing: a beat per cycle in. A read's keys are there one cycle later, for one cycle. `read` always wins;
    `report` gets its beat when `report_taken`. A row is on `o` two cycles after its last beat.

    Members
    -------
    i : stream of `WtuSizes.beat`, keys only ; o : stream of `WtuSizes.row` ; order : how words become keys
    read_en, read_at, read_keys : the selector's reads
    report_en, report_at, report_taken, report_keys : the reporter's reads; each gives its beat back
    vacant : no row is being loaded or waits on `o`
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
                "report_taken": Out(1),
                "report_keys": Out(keys),
                "vacant": Out(1),
                "overlong": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sizes, beat = self.sizes, self.i.payload
        m.submodules.rows = rows = SyncFIFO(width=sizes.row.size, depth=2)
        banks = [Ram(depth=max(1, sizes.beats // 2), width=KEY_BITS, words=sizes.lanes) for _ in range(2)]
        m.submodules.even, m.submodules.odd = banks

        # next beat of the ring; beats in it; beats of the row that is being loaded
        position, held, beats = (
            Signal(range(sizes.beats)),
            Signal(range(sizes.beats + 1)),
            Signal(range(sizes.beats + 1)),
        )
        row = Signal(sizes.row)  # the row that is being loaded, up to the beat before
        entered, found = Signal(), Signal(sizes.row)  # a beat has been taken, and what was found in it
        opens, ends = Signal(), Signal()  # it is the first, the last of its row
        take, full, keep = Signal(), Signal(), Signal()
        m.d.comb += [
            full.eq(beats == sizes.beats),
            self.i.ready.eq((rows.level + (entered & ends) < rows.depth) & ((held != sizes.beats) | full)),
            take.eq(self.i.valid & self.i.ready),
            keep.eq(take & ~full),
            self.overlong.eq(take & full),
            self.vacant.eq((beats == 0) & ~entered & (rows.level == 0)),
        ]

        keys = [Signal(KEY_BITS, name=f"key{w}") for w in range(sizes.lanes)]
        lowest, highest = [], []
        for w, key in enumerate(keys):
            used = Signal(name=f"used{w}")
            m.d.comb += [used.eq(~full & (~beat.last | (w < beat.used))), key.eq(_key(beat.words[w], self.order))]
            lowest.append(Mux(used, key, ALL_ONES))
            highest.append(Mux(used, key, 0))
        empty = Signal()
        m.d.comb += empty.eq((beats == 0) & beat.last & (beat.used == 0))
        m.d.sync += [
            entered.eq(take),
            opens.eq(beats == 0),
            ends.eq(beat.last),
            found.start.eq(position),
            found.beats.eq(beats + keep),
            found.tail.eq(Mux(full, sizes.lanes, beat.used)),
            found.join.eq(beat.join),
            found.low.eq(Mux(empty, 0, _extreme(m, "low", lowest, operator.lt))),
            found.high.eq(_extreme(m, "high", highest, operator.gt)),
        ]
        with m.If(take):
            m.d.sync += beats.eq(Mux(beat.last, 0, beats + keep))
        m.d.sync += [
            position.eq((position + keep)[: len(position)]),
            held.eq((held + keep - self.report_taken)[: len(held)]),
        ]

        # one cycle later: the row with that beat
        whole = Signal(sizes.row)
        m.d.comb += [
            whole.eq(found),
            whole.start.eq(Mux(opens, found.start, row.start)),
            whole.low.eq(Mux(~opens & (row.low < found.low), row.low, found.low)),
            whole.high.eq(Mux(~opens & (row.high > found.high), row.high, found.high)),
            rows.w_data.eq(whole),
            rows.w_en.eq(entered & ends),
            Value.cast(self.o.payload).eq(rows.r_data),
            self.o.valid.eq(rows.r_rdy),
            rows.r_en.eq(self.o.ready),
        ]
        with m.If(entered):
            m.d.sync += row.eq(whole)

        read_odd, report_odd = Signal(), Signal()
        m.d.comb += self.report_taken.eq(self.report_en & ~(self.read_en & (self.read_at[0] == self.report_at[0])))
        m.d.sync += [read_odd.eq(self.read_at[0]), report_odd.eq(self.report_at[0])]
        for odd, bank in enumerate(banks):
            reads = self.read_en & (self.read_at[0] == odd)
            m.d.comb += [
                bank.w_addr.eq(position[1:]),
                bank.w_mask.eq((keep & (position[0] == odd)).replicate(sizes.lanes)),
                Value.cast(bank.w_data).eq(Cat(*keys)),
                bank.r_en.eq(reads | (self.report_taken & (self.report_at[0] == odd))),
                bank.r_addr.eq(Mux(reads, self.read_at[1:], self.report_at[1:])),
            ]
        for port, odd in ((self.read_keys, read_odd), (self.report_keys, report_odd)):
            m.d.comb += Value.cast(port).eq(Mux(odd, Value.cast(banks[1].r_data), Value.cast(banks[0].r_data)))
        return m


def _key(word: Value, order: Value) -> Value:
    """BF16 order as unsigned order: turn a negative number's bits, set a positive one's sign."""
    signed = Mux(word[-1], ~word, word | 1 << KEY_BITS - 1)
    return Mux(order == KeyOrder.PLAIN, word, Mux(order == KeyOrder.SIGNED, signed, ~word))


def _extreme(m: Module, name: str, words: Sequence[Value], before: Callable[[Value, Value], Value]) -> Value:
    """The word that comes before all others."""

    def pick(a: Value, b: Value) -> Value:
        chosen = Signal(KEY_BITS, name=name)
        m.d.comb += chosen.eq(Mux(before(b, a), b, a))
        return chosen

    return reduce_tree(pick, words)
