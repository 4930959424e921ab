"""What is proved of the WTU's selection; the specification's docstring is the property."""

from collections.abc import Sequence

from amaranth import Cat, ClockDomain, ClockSignal, Const, DomainRenamer, Module, Mux, Signal, Value
from amaranth.hdl import Assert
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.common.tree import reduce_tree
from hw.dre.wtu.command import FRACTION_BITS, KEY_BITS, RATIO_BITS, TARGET_BITS, KeyOrder, Op, SelectionMode, WtuSizes
from hw.dre.wtu.wtu import WTU, WtuDesign

TARGET = 8  # bits of the number to reach
RATIO = 19661  # 0.3 in 1/65536
CYCLES = {WtuDesign.HISTOGRAM: 80, WtuDesign.SWEEP: 100}  # until the smallest unit has reported


def largest(a: Value, b: Value) -> Value:
    """The larger one."""
    return Mux(a > b, a, b)


def bit_length(number: Value) -> Value:
    """Bits up to the highest one that is set."""
    found: Value = Const(0)
    for k in range(len(number)):
        found = Mux(number[k], k + 1, found)
    return found


def lowest_one(bits: Value) -> Value:
    """Number of the lowest bit that is set."""
    found: Value = Const(0)
    for k in reversed(range(len(bits))):
        found = Mux(bits[k], k, found)
    return found


class Selection:
    """What is to be selected of a row, as combinational logic.

    The sum of all clusters whose key is not smaller is taken for every cluster; the largest key at which it passes the
    limit is where sorting would stop. From it the levels follow by arithmetic on their bounds, without any bucket's
    sum. COUNT is the rank among the keys, the lower number first.

    selected : bit mask of clusters ; cutoff, passes : as the unit's ; whole : the sum does not pass the limit
    """

    def __init__(
        self,
        m: Module,
        sizes: WtuSizes,
        mode: SelectionMode,
        *,
        keys: Sequence[Value],
        tokens: Sequence[Value],
        length: Value,
        target: Value,
        refine: Value,
    ):
        places = range(sizes.max_row_clusters)
        used = [j < length for j in places]
        top: Value = reduce_tree(largest, [Mux(used[j], keys[j], 0) for j in places])
        none = (1 << KEY_BITS) - 1
        bottom: Value = reduce_tree(lambda a, b: Mux(a < b, a, b), [Mux(used[j], keys[j], none) for j in places])

        weights = [Signal(sizes.weight_bits, name=f"weight{j}") for j in places]
        for j, key in enumerate(keys):
            fraction, exponent = key[: KEY_BITS - 9], key[KEY_BITS - 9 :]
            score = (Cat(fraction, 1) << FRACTION_BITS - 7) >> (top[KEY_BITS - 9 :] - exponent)[:9]
            each = {
                SelectionMode.RATIO: Mux(exponent != 0, score * tokens[j], 0),
                SelectionMode.BUDGET: tokens[j],
                SelectionMode.COUNT: Const(1),
            }
            m.d.comb += weights[j].eq(Mux(used[j], each[mode], 0))
        total, limit = Signal(sizes.sum_bits), Signal(max(sizes.sum_bits, TARGET_BITS))
        self.whole = Signal()
        m.d.comb += [
            total.eq(sum(weights, Const(0))),
            limit.eq((total * target) >> RATIO_BITS if mode is SelectionMode.RATIO else target - 1),
            self.whole.eq(total <= limit),
        ]
        sums = [sum((Mux(keys[i] >= keys[j], weights[i], 0) for i in places), Const(0)) for j in places]
        crossing = Signal(KEY_BITS)
        m.d.comb += crossing.eq(reduce_tree(largest, [Mux(used[j] & (sums[j] > limit), keys[j], 0) for j in places]))

        active: Value = ~self.whole
        passes: Value = Const(0)
        for level in range(sizes.levels):
            span, shift = Signal(KEY_BITS, name=f"span{level}"), Signal(range(KEY_BITS), name=f"shift{level}")
            bucket, now = Signal(sizes.bucket_bits, name=f"bucket{level}"), Signal(name=f"active{level}")
            high, low = Signal(KEY_BITS, name=f"high{level}"), Signal(KEY_BITS, name=f"low{level}")
            bits, edge = bit_length(span), high - (1 << shift) + 1
            m.d.comb += [
                now.eq(active),
                span.eq(top - bottom),
                shift.eq(Mux(bits > sizes.bucket_bits, bits - sizes.bucket_bits, 0)),
                bucket.eq((top - crossing) >> shift),
                high.eq(Mux(now, top - (bucket << shift), top)),
                low.eq(Mux(now & (edge > bottom), edge, bottom)),
            ]
            passes = passes + Mux(now, bucket + 1, 0)
            deeper = Const(1) if mode is SelectionMode.COUNT else level < refine
            bottom, top, active = low, high, now & (shift != 0) & deeper
        self.cutoff, self.passes, self.selected = Signal(KEY_BITS), Signal(sizes.passes), Signal(sizes.max_row_clusters)
        m.d.comb += [self.cutoff.eq(Mux(length == 0, 0, bottom)), self.passes.eq(passes)]
        for j in places:
            ahead = [used[i] & ((keys[i] > keys[j]) | ((keys[i] == keys[j]) & (i < j))) for i in places]
            chosen = sum(ahead, Const(0)) < target if mode is SelectionMode.COUNT else keys[j] >= bottom
            m.d.comb += self.selected[j].eq(used[j] & chosen)


class WtuSpec(wiring.Component):
    """Of every row the WTU selects what its specification says, and reports it completely and once.

    `Selection` is the specification. `cutoff`, `passes`, the bitmap and the list of numbers are all there `cycles`
    cycles after the start. Keys are the multiples of 2**`step` below 2**(`step` + `key_bits`); every token count, every
    number of levels, every target below 2**`TARGET`, but one ratio, `RATIO`. One row after the start, its packets and
    its readers do not pause; no reset comes.
    """

    def __init__(self, unit: WTU, *, mode: SelectionMode, key_bits: int, step: int = 0, cycles: int):
        self.unit, self.mode, self.key_bits, self.step, self.cycles = unit, mode, key_bits, step, cycles
        sizes = unit.sizes
        happens = ("whole", "part", "second_level") if mode is not SelectionMode.COUNT else ("whole", "part", "equal")
        super().__init__(
            {
                # taken in the first cycle
                **{f"key{j}": In(key_bits) for j in range(sizes.max_row_clusters)},
                **{f"tokens{j}": In(sizes.count_bits) for j in range(sizes.max_row_clusters)},
                "length": In(range(sizes.max_row_clusters + 1)),
                "target": In(TARGET),
                "refine": In(range(sizes.levels)),
                **{f"cover_{name}": Out(1) for name in happens},
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.unit = unit = self.unit
        sizes, places = unit.sizes, range(unit.sizes.max_row_clusters)
        time = Signal(range(self.cycles + 2))
        m.d.sync += time.eq(Mux(time > self.cycles, time, time + 1))

        def first(name: str, most: int | None = None) -> Signal:
            """What a port is in the first cycle, for all cycles."""
            port = getattr(self, name)
            before, now = Signal.like(port, name=f"{name}_before"), Signal.like(port, name=f"{name}_now")
            bounded = port if most is None else Mux(port > most, most, port)
            m.d.comb += now.eq(Mux(time == 0, bounded, before))
            m.d.sync += before.eq(now)
            return now

        keys = [Cat(Const(0, self.step), first(f"key{j}")) if self.step else first(f"key{j}") for j in places]
        keys = [Cat(key, Const(0, KEY_BITS - len(key))) for key in keys]
        tokens = [first(f"tokens{j}") for j in places]
        length, refine = first("length", sizes.max_row_clusters), first("refine", sizes.levels - 1)
        asked = first("target")
        target = Const(RATIO, TARGET_BITS) if self.mode is SelectionMode.RATIO else Mux(asked == 0, 1, asked)
        want = Selection(m, sizes, self.mode, keys=keys, tokens=tokens, length=length, target=target, refine=refine)

        # the packets
        sent, beat = Signal(range(2 * sizes.beats + 1)), unit.i.payload
        counting = sent < sizes.beats
        beats = Mux(length == 0, 1, (length + sizes.lanes - 1) // sizes.lanes)
        m.d.comb += [
            unit.cfg_selection_mode.eq(self.mode),
            unit.cfg_key_order.eq(KeyOrder.PLAIN),
            unit.cfg_selection_target.eq(target),
            unit.cfg_refine_levels.eq(refine),
            unit.i.valid.eq(sent < sizes.beats + beats),
            beat.op.eq(Mux(counting, Op.COUNTS, Op.KEYS)),
            beat.last.eq((sent == sizes.beats - 1) | (sent == sizes.beats + beats - 1)),
            beat.used.eq(Mux(~beat.last | counting, sizes.lanes, length - (beats - 1) * sizes.lanes)),
            unit.o_row.ready.eq(1),
            unit.o.ready.eq(1),
            unit.o_index.ready.eq(1),
        ]
        with m.Switch(sent):
            for n in range(sizes.beats):
                part = range(n * sizes.lanes, (n + 1) * sizes.lanes)
                with m.Case(n):
                    m.d.comb += [beat.words[w].eq(tokens[j]) for w, j in enumerate(part)]
                with m.Case(sizes.beats + n):
                    m.d.comb += [beat.words[w].eq(keys[j]) for w, j in enumerate(part)]
        with m.If(unit.i.valid & unit.i.ready):
            m.d.sync += sent.eq(sent + 1)

        # the answers, each compared when it comes
        rows, maps, listed = Signal(2), Signal(range(sizes.beats + 1)), Signal(sizes.max_row_clusters)
        mapped, ended, wrong, bad = Signal(), Signal(), Signal(), Signal(3)
        row, bitmap, index = unit.o_row.payload, unit.o.payload, unit.o_index.payload
        left = want.selected & ~listed
        bits = Cat(want.selected, Const(0, sizes.lanes)).word_select(maps, sizes.lanes)
        number = Mux(left == 0, sum(want.selected), lowest_one(left))
        good = [
            (rows == 0) & (row.cutoff == want.cutoff) & (row.passes == want.passes),
            ~mapped
            & (bitmap.mask == bits)
            & (bitmap.first == maps * sizes.lanes)
            & (bitmap.last == (maps == beats - 1)),
            ~ended & (index.last == (left == 0)) & (index.cluster == number),
        ]
        streams = (unit.o_row, unit.o, unit.o_index)
        m.d.comb += bad.eq(Cat(stream.valid & ~right for stream, right in zip(streams, good, strict=True)))
        m.d.sync += wrong.eq(wrong | bad.any())
        with m.If(unit.o_row.valid):
            m.d.sync += rows.eq(rows + 1)
        with m.If(unit.o.valid):
            m.d.sync += [maps.eq(maps + 1), mapped.eq(bitmap.last)]
        with m.If(unit.o_index.valid):
            m.d.sync += [ended.eq(index.last), listed.eq(listed | (1 << lowest_one(left))[: sizes.max_row_clusters])]
        done = Signal()
        m.d.comb += [done.eq((rows == 1) & mapped & ended), Assert((time != self.cycles) | (done & ~wrong))]
        full = done & (length == sizes.max_row_clusters)
        events = {
            "whole": full & want.whole,
            "part": full & ~want.selected.all(),
            "second_level": full & (want.passes > sizes.buckets),
            "equal": full & (keys[0] == keys[1]) & ~want.selected[1],
        }
        for name, event in events.items():
            if hasattr(self, f"cover_{name}"):
                m.d.comb += getattr(self, f"cover_{name}").eq(event)
        return _never_reset(m)


def _never_reset(m: Module) -> Module:
    """The same without a reset: registers begin as they are made."""
    outer = Module()
    outer.domains.steady = ClockDomain(reset_less=True)
    outer.d.comb += ClockSignal("steady").eq(ClockSignal())
    outer.submodules.steady = DomainRenamer("steady")(m)
    return outer


def small(design: WtuDesign, mode: SelectionMode) -> WtuSpec:
    """Rows of up to two clusters, four buckets; scores of eight exponents and four fractions."""
    unit = WTU(lanes=1, max_row_clusters=2, buckets=4, count_bits=2, cluster_bits=2, design=design)
    return WtuSpec(unit, mode=mode, key_bits=5, step=5 if mode is SelectionMode.RATIO else 0, cycles=CYCLES[design])
