"""Fused BF16 dot product: exact products, one alignment, one carry-save tree, one rounding."""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.adders import Row, carry_save, ripple_add
from hw.arith.formats import BF16, FP32, canonical_nan, infinity, normalise, round_and_pack, zero
from hw.common.parts import place
from hw.common.pipeline import CreditGate, Cuts, delay
from hw.common.tree import popcount, reduce_tree
from hw.config import Config

CUTS = ("operands", "products", "sums", "total", "result")  # where a register can stand, in order
DEPTHS = {
    1: ("result",),
    2: ("products", "result"),
    3: ("products", "sums", "result"),
    4: ("operands", "products", "sums", "result"),
    5: CUTS,
}


def dot_parts(align_bits: int) -> dict[str, wiring.Component]:
    """The modules that a `DotCore` instantiates."""
    return {"dot_multiply": Multiply(), f"dot_align{align_bits}": Align(align_bits)}


def check_sizes(inputs: int, align_bits: int) -> None:
    """Raise `ValueError` unless a tree of these sizes can be built."""
    if inputs < 1 or inputs & (inputs - 1):
        raise ValueError(f"inputs = {inputs}: must be a power of two")
    if not 16 <= align_bits <= 30:
        raise ValueError(f"align_bits = {align_bits}: must be 16 to 30")


MULTIPLY = {
    "a": In(BF16.size),
    "b": In(BF16.size),
    "product": Out(16),
    "key": Out(9),
    **{name: Out(1) for name in ("sign", "zero", "invalid", "plus", "minus")},
}


def align_ports(width: int) -> dict[str, wiring.Member]:
    """Ports of `Align`."""
    return {"product": In(16), "key": In(9), "sign": In(1), "zero": In(1), "top": In(9), "row": Out(width)}


class Multiply(wiring.Component):
    """One lane before the alignment: exact product, exponent key and special cases. Combinational.

    Members
    -------
    a, b : BF16 codes
    product : (128 + fa) * (128 + fb), whatever the exponents ; key : Ea + Eb, 0 when the product is zero
    sign, zero : of the product
    invalid : the result is NaN ; plus, minus : an infinity of that sign
    """

    def __init__(self) -> None:
        super().__init__(MULTIPLY)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        a, b = data.View(BF16, self.a), data.View(BF16, self.b)
        zero_a, zero_b, special_a, special_b = (Signal(name=n) for n in ("zero_a", "zero_b", "special_a", "special_b"))
        # rows of partial products; the hidden ones are plain wires
        hidden = Cat(a.fraction, Const(1, 1))
        rows = [Row(hidden & b.fraction[k].replicate(8), k) for k in range(7)] + [Row(hidden, 7)]
        first, second = carry_save(m, rows, 16)
        m.d.comb += [
            zero_a.eq(~a.exponent.any()),
            zero_b.eq(~b.exponent.any()),
            special_a.eq(a.exponent.all()),
            special_b.eq(b.exponent.all()),
            self.product.eq(ripple_add(m, first, second)[:16]),
            self.zero.eq(zero_a | zero_b),
            self.key.eq(Mux(self.zero, 0, a.exponent + b.exponent)),
            self.sign.eq(a.sign ^ b.sign),
            self.invalid.eq(
                (special_a & (a.fraction.any() | zero_b)) | (special_b & (b.fraction.any() | zero_a)),
            ),
            self.plus.eq((special_a | special_b) & ~self.sign),
            self.minus.eq((special_a | special_b) & self.sign),
        ]
        return m


class Align(wiring.Component):
    """One lane after it: the product at the top of `width` bits, shifted right, complemented if negative.

    Short distances come first: the value is still narrow there. A distance of 32 or more and a zero product clear it.

    Members
    -------
    product, key, sign, zero : from `Multiply` ; top : the largest key of all lanes ; row : addend of the lane
    """

    def __init__(self, width: int):
        self.width = width
        super().__init__(align_ports(width))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        distance, far = Signal(9), Signal()
        m.d.comb += [
            distance.eq(ripple_add(m, self.top, ~self.key, 1)[:9]),
            far.eq(self.zero | distance[5:].any()),
        ]
        value: Value = Cat(Const(0, 7), self.product)  # and the 7 bits that shifts by 1, 2 and 4 reach
        for k in range(5):
            if k == 3:
                value = Cat(Const(0, self.width - 23), value) if self.width > 23 else value[23 - self.width :]
            shifted = Signal(len(value), name=f"shifted{1 << k}")
            m.d.comb += shifted.eq(Mux(distance[k], value[1 << k :], value))
            value = shifted
        m.d.comb += self.row.eq((value & (~far).replicate(self.width)) ^ self.sign.replicate(self.width))
        return m


class DotCore(wiring.Component):
    """The arithmetic of one MAC tree as a pipeline that never stalls: y = sum of a[i] * b[i].

    operands | multiply, add exponents, largest exponent | align, carry-save tree | add | normalise, round | result

    Every product is exact. It is shifted right by its distance to the largest exponent and cut off after `align_bits`
    bits, as sign and magnitude; a negative one is then complemented, and the number of negatives is one more row of the
    carry-save tree. Nothing before the final adder propagates a carry across rows.

    Timing: `latency` cycles, one result per cycle, no stall; registers stand at the bars named by `cuts`.

    Numerics: `|y - exact| <= (N - 1) 2**(2 - W) max|a_i b_i| + 2**-24 |y| + 2**-126` with N = `inputs` and W =
    `align_bits`; the sum does not depend on any order. Subnormals are zero, a zero sum is +0; NaN, infinity times zero
    and infinities of both signs give the canonical NaN.

    Parameters
    ----------
    inputs : products N, a power of two from 1
    align_bits : alignment width W, 16 to 30
    cuts : register positions, of `CUTS`

    Members
    -------
    a, b : BF16 codes ; y : FP32 code, `latency` cycles later
    """

    def __init__(self, *, inputs: int, align_bits: int = 24, cuts: tuple[str, ...] = DEPTHS[4]):
        check_sizes(inputs, align_bits)
        self.inputs, self.align_bits, self.cuts = inputs, align_bits, Cuts(CUTS, cuts)
        vector = data.ArrayLayout(BF16.size, inputs)
        super().__init__({"a": In(vector), "b": In(vector), "y": Out(FP32.size)})

    @property
    def latency(self) -> int:
        """Cycles from operands to result."""
        return self.cuts.latency

    @property
    def parts(self) -> dict[str, wiring.Component]:
        """Modules that this one instantiates."""
        return dot_parts(self.align_bits)

    @property
    def sum_bits(self) -> int:
        """Bits of the integer sum with its sign."""
        return self.align_bits + (self.inputs - 1).bit_length() + 1

    def elaborate(self, platform: object) -> Module:
        m = Module()

        def cut(position: str, name: str, value: Value) -> Signal:
            return self.cuts.at(m, position, name, value)

        def node(name: str, value: Value) -> Signal:
            held = Signal(len(Value.cast(value)), name=name)
            m.d.comb += held.eq(value)
            return held

        def words(value: Value, width: int) -> list[Value]:
            return [value[i * width : (i + 1) * width] for i in range(self.inputs)]

        # products, keys, specials, the largest key
        a, b = cut("operands", "a_held", Value.cast(self.a)), cut("operands", "b_held", Value.cast(self.b))
        lanes = [
            place(m, "dot_multiply", f"multiply{i}", MULTIPLY, a=x, b=y)
            for i, (x, y) in enumerate(zip(words(a, BF16.size), words(b, BF16.size), strict=True))
        ]
        gathered = {name: Cat(lane[name] for lane in lanes) for name in lanes[0]}
        invalid, plus, minus = (gathered[name].any() for name in ("invalid", "plus", "minus"))
        merges = iter(range(self.inputs))

        def larger(x: Value, y: Value) -> Value:
            return node(f"larger{next(merges)}", Mux(x < y, y, x))

        top = cut("products", "top", reduce_tree(larger, [lane["key"] for lane in lanes]))
        negatives = cut("products", "negatives", popcount(node("signs", gathered["sign"])))
        flags = cut("products", "flags", Cat(invalid | (plus & minus), plus, minus))

        # align and add: magnitudes, complemented when negative, plus one per negative, minus its 2**W
        held = {
            name: words(cut("products", f"{name}_held", gathered[name]), len(lanes[0][name]))
            for name in ("product", "key", "sign", "zero")
        }
        rows = [
            Row(
                place(
                    m,
                    f"dot_align{self.align_bits}",
                    f"align{i}",
                    align_ports(self.align_bits),
                    top=top,
                    **{name: columns[i] for name, columns in held.items()},
                )["row"]
            )
            for i in range(self.inputs)
        ]
        lift = node("lift", (-negatives)[: self.sum_bits - self.align_bits])
        low = Cat(negatives, Const(0, self.align_bits))[: self.align_bits]
        rows.append(Row(node("count_row", Cat(low, lift))))
        first, second = carry_save(m, rows, self.sum_bits)
        first, second = cut("sums", "first", first), cut("sums", "second", second)
        top, flags = cut("sums", "top_sums", top), cut("sums", "flags_sums", flags)

        # one carry-propagate addition; magnitude and sign
        total = node("sum", (first + second)[: self.sum_bits])
        negative = total[-1]
        size = node("size", ((total ^ negative.replicate(self.sum_bits)) + negative)[: self.sum_bits - 1])
        negative, size = cut("total", "negative", negative), cut("total", "magnitude", size)
        top, flags = cut("total", "top_total", top), cut("total", "flags_total", flags)

        # normalise, round, specials
        normal, shift = normalise(m, "norm", size)
        exponent = Signal(11)
        m.d.comb += exponent.eq(top + (len(size) - 126 - self.align_bits) - shift)
        code = round_and_pack(m, FP32, negative, exponent, normal)
        result = Signal(FP32.size)
        with m.If(flags[0]):
            m.d.comb += result.eq(canonical_nan(FP32))
        with m.Elif(flags[1] | flags[2]):
            m.d.comb += result.eq(infinity(FP32, flags[2]))
        with m.Elif(~normal[-1]):
            m.d.comb += result.eq(zero(FP32, Const(0, 1)))
        with m.Else():
            m.d.comb += result.eq(code)
        m.d.comb += self.y.eq(cut("result", "y_held", result))
        return m


class DotTree(wiring.Component):
    """Fused dot product of two BF16 vectors behind streams: one MAC tree as a unit of its own.

    Timing: `latency` cycles from `i` to `o`, one result per cycle when nobody stalls. `i.ready` is a register; no
    combinational path from input to output.

    Numerics, parameters: see `DotCore`. `depth` is the number of pipeline registers, 1 to 5.

    Members
    -------
    i : stream of `{a, b}`, `inputs` BF16 codes each ; o : stream of FP32 codes
    """

    def __init__(self, *, inputs: int, align_bits: int = 24, depth: int = 4):
        if depth not in DEPTHS:
            raise ValueError(f"depth = {depth}: must be {min(DEPTHS)} to {max(DEPTHS)}")
        check_sizes(inputs, align_bits)
        self.inputs, self.align_bits, self.depth = inputs, align_bits, depth
        vector = data.ArrayLayout(BF16.size, inputs)
        self.operands = data.StructLayout({"a": vector, "b": vector})
        super().__init__({"i": In(stream.Signature(self.operands)), "o": Out(stream.Signature(FP32.size))})

    @classmethod
    def from_config(cls, config: Config) -> "DotTree":
        """One tree of the matrix engine."""
        return cls(inputs=config.dpe_inputs, align_bits=config.align_bits)

    @property
    def parts(self) -> dict[str, wiring.Component]:
        """Modules that this one instantiates."""
        return dot_parts(self.align_bits)

    @property
    def latency(self) -> int:
        """Cycles from a beat of `i` to its beat of `o`."""
        return self.depth + 2

    @property
    def timing(self) -> dict[str, object]:
        """Latency and throughput, as written into the generated unit's JSON."""
        return {"latency": self.latency, "results_per_cycle": 1}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.core = core = DotCore(inputs=self.inputs, align_bits=self.align_bits, cuts=DEPTHS[self.depth])
        m.submodules.gate = gate = CreditGate(FP32.size, stages=core.latency)
        m.d.comb += [
            core.a.eq(self.i.payload.a),
            core.b.eq(self.i.payload.b),
            self.i.ready.eq(gate.ready),
            gate.take.eq(self.i.valid & gate.ready),
            gate.done.eq(delay(m, "done", gate.take, core.latency)),
            gate.result.eq(core.y),
            self.o.valid.eq(gate.o.valid),
            self.o.payload.eq(gate.o.payload),
            gate.o.ready.eq(self.o.ready),
        ]
        return m
