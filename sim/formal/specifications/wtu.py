"""Specification of the selection of the WTU; the docstring of `WtuSpec` is the property."""

from collections.abc import Sequence

from amaranth import Cat, ClockDomain, ClockSignal, Const, DomainRenamer, Module, Mux, Signal, Value
from amaranth.hdl import Assert
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.common.tree import reduce_tree
from hw.dre.wtu.command import FRACTION_BITS, KEY_BITS, RATIO_BITS, TARGET_BITS, KeyOrder, SelectionMode, WtuSizes
from hw.dre.wtu.wtu import WTU, WtuDesign

TARGET = 8  # bits of the selection target
RATIO = 19661  # 0.3 in 1/65536
CYCLES = {WtuDesign.HISTOGRAM: 80, WtuDesign.SWEEP: 100}  # cycles until the unit of `small` has reported a row


def largest(a: Value, b: Value) -> Value:
    """The larger of two values."""
    return Mux(a > b, a, b)


def bit_length(number: Value) -> Value:
    """Number of bits up to the highest set bit."""
    length: Value = Const(0)
    for k in range(len(number)):
        length = Mux(number[k], k + 1, length)
    return length


def lowest_set_bit(bits: Value) -> Value:
    """Index of the lowest set bit."""
    index: Value = Const(0)
    for k in reversed(range(len(bits))):
        index = Mux(bits[k], k, index)
    return index


class Selection:
    """Reference selection of a row, as combinational logic.

    For every cluster, the weights of all clusters with an equal or larger key are added. The largest key whose sum
    exceeds the limit is the key at which a sorted selection stops. The bounds of the refinement levels follow from this
    key by arithmetic, without sums of buckets. COUNT selects by the rank of the key; equal keys rank by cluster number.

    selected : bit mask of clusters ; cutoff, passes : the results of the unit ; complete : the sum of all weights does
    not exceed the limit, so all clusters are selected
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
        indices = range(sizes.max_row_clusters)
        used = [j < length for j in indices]
        top: Value = reduce_tree(largest, [Mux(used[j], keys[j], 0) for j in indices])
        none = (1 << KEY_BITS) - 1
        bottom: Value = reduce_tree(lambda a, b: Mux(a < b, a, b), [Mux(used[j], keys[j], none) for j in indices])

        weights = [Signal(sizes.weight_bits, name=f"weight{j}") for j in indices]
        for j, key in enumerate(keys):
            fraction, exponent = key[: KEY_BITS - 9], key[KEY_BITS - 9 :]
            score = (Cat(fraction, 1) << FRACTION_BITS - 7) >> (top[KEY_BITS - 9 :] - exponent)[:9]
            contribution = {
                SelectionMode.RATIO: Mux(exponent != 0, score * tokens[j], 0),
                SelectionMode.BUDGET: tokens[j],
                SelectionMode.COUNT: Const(1),
            }
            m.d.comb += weights[j].eq(Mux(used[j], contribution[mode], 0))
        total, limit = Signal(sizes.sum_bits), Signal(max(sizes.sum_bits, TARGET_BITS))
        self.complete = Signal()
        m.d.comb += [
            total.eq(sum(weights, Const(0))),
            limit.eq((total * target) >> RATIO_BITS if mode is SelectionMode.RATIO else target - 1),
            self.complete.eq(total <= limit),
        ]
        sums = [sum((Mux(keys[i] >= keys[j], weights[i], 0) for i in indices), Const(0)) for j in indices]
        crossing = Signal(KEY_BITS)
        m.d.comb += crossing.eq(reduce_tree(largest, [Mux(used[j] & (sums[j] > limit), keys[j], 0) for j in indices]))

        active: Value = ~self.complete
        passes: Value = Const(0)
        for level in range(sizes.levels):
            span, shift = Signal(KEY_BITS, name=f"span{level}"), Signal(range(KEY_BITS), name=f"shift{level}")
            bucket, refining = Signal(sizes.bucket_bits, name=f"bucket{level}"), Signal(name=f"active{level}")
            high, low = Signal(KEY_BITS, name=f"high{level}"), Signal(KEY_BITS, name=f"low{level}")
            bits, edge = bit_length(span), high - (1 << shift) + 1
            m.d.comb += [
                refining.eq(active),
                span.eq(top - bottom),
                shift.eq(Mux(bits > sizes.bucket_bits, bits - sizes.bucket_bits, 0)),
                bucket.eq((top - crossing) >> shift),
                high.eq(Mux(refining, top - (bucket << shift), top)),
                low.eq(Mux(refining & (edge > bottom), edge, bottom)),
            ]
            passes = passes + Mux(refining, bucket + 1, 0)
            deeper = Const(1) if mode is SelectionMode.COUNT else level < refine
            bottom, top, active = low, high, refining & (shift != 0) & deeper
        self.cutoff, self.passes, self.selected = Signal(KEY_BITS), Signal(sizes.passes), Signal(sizes.max_row_clusters)
        m.d.comb += [self.cutoff.eq(Mux(length == 0, 0, bottom)), self.passes.eq(passes)]
        for j in indices:
            ahead = [used[i] & ((keys[i] > keys[j]) | ((keys[i] == keys[j]) & (i < j))) for i in indices]
            is_selected = sum(ahead, Const(0)) < target if mode is SelectionMode.COUNT else keys[j] >= bottom
            m.d.comb += self.selected[j].eq(used[j] & is_selected)


class WtuSpec(wiring.Component):
    """The WTU selects the clusters of every row that `Selection` selects, and reports each result once.

    The WTU reports `cutoff`, `passes`, the bitmap and the list of cluster numbers within `cycles` cycles after the
    start. It requests a long row again as often as it needs it, and then the next row. The proof covers one row of
    either kind after the start. Keys are the multiples of 2**`step` below 2**(`step` + `key_bits`).
    Token counts, numbers of refinement levels and targets below 2**`TARGET` are arbitrary; the ratio is `RATIO`. The
    streams never pause, and no reset occurs.
    """

    def __init__(self, unit: WTU, *, mode: SelectionMode, key_bits: int, step: int = 0, cycles: int):
        self.unit, self.mode, self.key_bits, self.step, self.cycles = unit, mode, key_bits, step, cycles
        sizes = unit.sizes
        cover_names = (
            ("complete", "partial", "long", "second_level")
            if mode is not SelectionMode.COUNT
            else ("complete", "partial", "long", "equal")
        )
        super().__init__(
            {
                # sampled in the first cycle
                **{f"key{j}": In(key_bits) for j in range(sizes.max_row_clusters)},
                **{f"tokens{j}": In(sizes.count_bits) for j in range(sizes.max_row_clusters)},
                "length": In(range(sizes.max_row_clusters + 1)),
                "long": In(1),
                "target": In(TARGET),
                "refine": In(range(sizes.levels)),
                **{f"cover_{name}": Out(1) for name in cover_names},
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.unit = unit = self.unit
        sizes, indices = unit.sizes, range(unit.sizes.max_row_clusters)
        time = Signal(range(self.cycles + 2))
        m.d.sync += time.eq(Mux(time > self.cycles, time, time + 1))

        def first(name: str, limit: int | None = None) -> Signal:
            """The value of a port in the first cycle, constant in all cycles."""
            port = getattr(self, name)
            previous, value = Signal.like(port, name=f"{name}_previous"), Signal.like(port, name=f"{name}_value")
            bounded = port if limit is None else Mux(port > limit, limit, port)
            m.d.comb += value.eq(Mux(time == 0, bounded, previous))
            m.d.sync += previous.eq(value)
            return value

        keys = [Cat(Const(0, self.step), first(f"key{j}")) if self.step else first(f"key{j}") for j in indices]
        keys = [Cat(key, Const(0, KEY_BITS - len(key))) for key in keys]
        tokens = [first(f"tokens{j}") for j in indices]
        is_long = first("long")
        length, refine = first("length", sizes.max_row_clusters), first("refine", sizes.levels - 1)
        requested = first("target")
        target = Const(RATIO, TARGET_BITS) if self.mode is SelectionMode.RATIO else Mux(requested == 0, 1, requested)
        expected = Selection(m, sizes, self.mode, keys=keys, tokens=tokens, length=length, target=target, refine=refine)

        # the packets: one, and of a long row one more for each request
        sent, beat = Signal(range(sizes.beats + 1)), unit.i.payload
        packets = Signal(2, init=1)  # packets to be sent; one of them may have begun
        beats = Mux(length == 0, 1, (length + sizes.lanes - 1) // sizes.lanes)
        accept, requested_again = unit.i.valid & unit.i.ready, Signal()
        m.d.comb += [
            unit.cfg_selection_mode.eq(self.mode),
            unit.cfg_key_order.eq(KeyOrder.PLAIN),
            unit.cfg_selection_target.eq(target),
            unit.cfg_refine_levels.eq(refine),
            unit.i.valid.eq(packets != 0),
            beat.long.eq(is_long),
            beat.last.eq(sent == beats - 1),
            beat.used.eq(Mux(~beat.last, sizes.lanes, length - (beats - 1) * sizes.lanes)),
            requested_again.eq(unit.o_again.valid & unit.o_again.payload.again),
            unit.o_again.ready.eq(1),
            unit.o_row.ready.eq(1),
            unit.o.ready.eq(1),
            unit.o_index.ready.eq(1),
        ]
        with m.Switch(sent):
            for n in range(sizes.beats):
                with m.Case(n):
                    for w, j in enumerate(range(n * sizes.lanes, (n + 1) * sizes.lanes)):
                        m.d.comb += [beat.words[w].eq(keys[j]), beat.counts[w].eq(tokens[j])]
        m.d.sync += packets.eq(packets + requested_again - (accept & beat.last))
        with m.If(accept):
            m.d.sync += sent.eq(Mux(beat.last, 0, sent + 1))
        released = Signal(init=0)  # the unit has asked for the next row
        with m.If(unit.o_again.valid):
            m.d.sync += released.eq(~unit.o_again.payload.again)

        # the results, each compared when it is valid
        rows, maps, reported = Signal(2), Signal(range(sizes.beats + 1)), Signal(sizes.max_row_clusters)
        mapped, list_ended, mismatch, bad = Signal(), Signal(), Signal(), Signal(4)
        row, bitmap, index = unit.o_row.payload, unit.o.payload, unit.o_index.payload
        remaining = expected.selected & ~reported
        bits = Cat(expected.selected, Const(0, sizes.lanes)).word_select(maps, sizes.lanes)
        number = Mux(remaining == 0, sum(expected.selected), lowest_set_bit(remaining))
        good = [
            (rows == 0) & (row.cutoff == expected.cutoff) & (row.passes == expected.passes),
            ~mapped
            & (bitmap.mask == bits)
            & (bitmap.first == maps * sizes.lanes)
            & (bitmap.last == (maps == beats - 1)),
            ~list_ended & (index.last == (remaining == 0)) & (index.cluster == number),
        ]
        streams = (unit.o_row, unit.o, unit.o_index)
        wrong_request = unit.o_again.valid & (released | ~is_long)
        m.d.comb += bad.eq(
            Cat(wrong_request, *(stream.valid & ~correct for stream, correct in zip(streams, good, strict=True)))
        )
        m.d.sync += mismatch.eq(mismatch | bad.any())
        with m.If(unit.o_row.valid):
            m.d.sync += rows.eq(rows + 1)
        with m.If(unit.o.valid):
            m.d.sync += [maps.eq(maps + 1), mapped.eq(bitmap.last)]
        with m.If(unit.o_index.valid):
            m.d.sync += [
                list_ended.eq(index.last),
                reported.eq(reported | (1 << lowest_set_bit(remaining))[: sizes.max_row_clusters]),
            ]
        done = Signal()
        row_done = (rows == 1) & mapped & list_ended & (released == is_long)
        m.d.comb += [done.eq(row_done), Assert((time != self.cycles) | (done & ~mismatch))]
        full = done & (length == sizes.max_row_clusters)
        events = {
            "complete": full & expected.complete,
            "partial": full & ~expected.selected.all(),
            "second_level": full & (expected.passes > sizes.buckets),
            "long": full & is_long,
            "equal": full & (keys[0] == keys[1]) & ~expected.selected[1],
        }
        for name, event in events.items():
            if hasattr(self, f"cover_{name}"):
                m.d.comb += getattr(self, f"cover_{name}").eq(event)
        return _never_reset(m)


def _never_reset(m: Module) -> Module:
    """The same module without a reset; registers start with their initial values."""
    outer = Module()
    outer.domains.steady = ClockDomain(reset_less=True)
    outer.d.comb += ClockSignal("steady").eq(ClockSignal())
    outer.submodules.steady = DomainRenamer("steady")(m)
    return outer


def small(design: WtuDesign, mode: SelectionMode) -> WtuSpec:
    """A WTU with rows of up to two clusters and four buckets; scores have eight exponents and four fractions."""
    unit = WTU(lanes=1, pairs=2, max_row_clusters=2, buckets=4, count_bits=2, cluster_bits=2, design=design)
    return WtuSpec(unit, mode=mode, key_bits=5, step=5 if mode is SelectionMode.RATIO else 0, cycles=CYCLES[design])
