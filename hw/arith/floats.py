"""Addition and multiplication of BF16 or FP32 numbers, each rounded once."""

from collections.abc import Iterable

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.formats import (
    BIAS,
    canonical_nan,
    fraction_bits,
    infinity,
    is_infinite,
    is_nan,
    is_zero,
    normalise,
    round_and_pack,
    significand,
    view,
    zero,
)
from hw.common.pipeline import Cuts


def binary_ports(layout: data.StructLayout) -> dict[str, wiring.Member]:
    """Ports of `FloatAdd` and `FloatMultiply`."""
    return {"a": In(layout.size), "b": In(layout.size), "y": Out(layout.size)}


class FloatAdd(wiring.Component):
    """y = a + b, rounded to nearest even. For a - b flip the sign of b.

    unpack, order by magnitude, align | add | normalise, round | result

    Timing: `latency` cycles, one result per cycle, no stall, registers at the bars named by `cuts`; combinational
    without any.

    Numerics: subnormals are zero of their sign, going in and coming out (after rounding); infinities, NaN and signed
    zeros as IEEE 754, every NaN the canonical one.

    Parameters
    ----------
    layout : format of operands and result, `BF16` or `FP32`
    cuts : register positions, of `CUTS`

    Members
    -------
    a, b : codes ; y : code of the sum
    """

    CUTS = ("aligned", "sum", "result")

    def __init__(self, layout: data.StructLayout, *, cuts: Iterable[str] = ()):
        self.layout, self.cuts = layout, Cuts(self.CUTS, cuts)
        super().__init__(binary_ports(layout))

    @property
    def latency(self) -> int:
        """Cycles from operands to result."""
        return self.cuts.latency

    def elaborate(self, platform: object) -> Module:
        m = Module()
        precision = fraction_bits(self.layout) + 1
        a, b = view(self.layout, self.a), view(self.layout, self.b)

        # the operand of larger magnitude first
        swap, large, small = Signal(), Signal(self.layout), Signal(self.layout)
        m.d.comb += [
            swap.eq(self.a[:-1] < self.b[:-1]),
            large.eq(Mux(swap, self.b, self.a)),
            small.eq(Mux(swap, self.a, self.b)),
        ]

        # the smaller one moves right by the distance; what leaves the two extra bits is one sticky bit
        value: Value = Cat(Const(0, 2), significand(small) & (~is_zero(small)).replicate(precision))
        forth, back, distance, lost = Signal(9), Signal(9), Signal(8), Signal()
        m.d.comb += [
            forth.eq(a.exponent - b.exponent),  # both ways, beside the comparison of whole magnitudes
            back.eq(b.exponent - a.exponent),
            distance.eq(Mux(forth[-1], back, forth)),
        ]
        steps = (len(value) - 1).bit_length()
        far, dropped = distance[steps:].any(), []
        for k in range(steps):
            dropped.append(distance[k] & value[: 1 << k].any())
            shifted = Signal(len(value), name=f"shifted{1 << k}")
            m.d.comb += shifted.eq(Mux(distance[k], value[1 << k :], value))
            value = shifted
        m.d.comb += lost.eq(Cat(*dropped, far & ~is_zero(small)).any())
        addend = Signal(precision + 3)
        m.d.comb += addend.eq(Cat(lost, value & (~far).replicate(len(value))))

        invalid = is_nan(a) | is_nan(b) | (is_infinite(a) & is_infinite(b) & (a.sign ^ b.sign))
        flags = Cat(invalid, is_infinite(large), is_zero(large), a.sign & b.sign, large.sign)
        flags = self.cuts.at(m, "aligned", "flags", flags)
        subtract = self.cuts.at(m, "aligned", "subtract", a.sign ^ b.sign)
        exponent = self.cuts.at(m, "aligned", "exponent", large.exponent)
        top = self.cuts.at(m, "aligned", "top", significand(large))
        addend = self.cuts.at(m, "aligned", "addend", addend)

        # subtraction gives no negative number: |large| >= |small|
        total = Signal(precision + 4)
        m.d.comb += total.eq(Cat(Const(0, 3), top) + (addend ^ subtract.replicate(len(addend))) + subtract)
        total = Cat(total[: precision + 3], total[precision + 3] & ~subtract)
        total, flags = self.cuts.at(m, "sum", "total", total), self.cuts.at(m, "sum", "flags_sum", flags)
        exponent = self.cuts.at(m, "sum", "exponent_sum", exponent)

        normal, shift = normalise(m, "normal", total)
        field = Signal(10)
        m.d.comb += field.eq(exponent + 1 - shift)
        nan, infinite, nothing, minus, sign = flags
        code = round_and_pack(m, self.layout, sign, field, normal)
        result = Signal(self.layout.size)
        with m.If(nan):
            m.d.comb += result.eq(canonical_nan(self.layout))
        with m.Elif(infinite):
            m.d.comb += result.eq(infinity(self.layout, sign))
        with m.Elif(nothing | ~normal[-1]):  # two zeros, or equal magnitudes that cancel
            m.d.comb += result.eq(zero(self.layout, minus))
        with m.Else():
            m.d.comb += result.eq(code)
        m.d.comb += self.y.eq(self.cuts.at(m, "result", "held", result))
        return m


class FloatMultiply(wiring.Component):
    """y = a * b, rounded to nearest even.

    multiply, add exponents | round | result

    Timing, numerics, parameters: as `FloatAdd`.

    Members
    -------
    a, b : codes ; y : code of the product
    """

    CUTS = ("product", "result")

    def __init__(self, layout: data.StructLayout, *, cuts: Iterable[str] = ()):
        self.layout, self.cuts = layout, Cuts(self.CUTS, cuts)
        super().__init__(binary_ports(layout))

    @property
    def latency(self) -> int:
        """Cycles from operands to result."""
        return self.cuts.latency

    def elaborate(self, platform: object) -> Module:
        m = Module()
        a, b = view(self.layout, self.a), view(self.layout, self.b)
        product = Signal(2 * fraction_bits(self.layout) + 2)
        exponent = Signal(10)
        m.d.comb += [product.eq(significand(a) * significand(b)), exponent.eq(a.exponent + b.exponent - BIAS)]

        nothing, infinite = is_zero(a) | is_zero(b), is_infinite(a) | is_infinite(b)
        flags = Cat(is_nan(a) | is_nan(b) | (nothing & infinite), infinite, nothing, a.sign ^ b.sign)
        flags = self.cuts.at(m, "product", "flags", flags)
        product = self.cuts.at(m, "product", "product_held", product)
        exponent = self.cuts.at(m, "product", "exponent_held", exponent)

        # the product of two numbers in [1, 2) is in [1, 4)
        field, normal = Signal(10), Signal(len(product))
        m.d.comb += [
            field.eq(exponent + product[-1]),
            normal.eq(Mux(product[-1], product, Cat(Const(0, 1), product[:-1]))),
        ]
        nan, infinite, nothing, sign = flags
        code = round_and_pack(m, self.layout, sign, field, normal)
        result = Signal(self.layout.size)
        with m.If(nan):
            m.d.comb += result.eq(canonical_nan(self.layout))
        with m.Elif(infinite):
            m.d.comb += result.eq(infinity(self.layout, sign))
        with m.Elif(nothing):
            m.d.comb += result.eq(zero(self.layout, sign))
        with m.Else():
            m.d.comb += result.eq(code)
        m.d.comb += self.y.eq(self.cuts.at(m, "result", "held", result))
        return m
