"""Addition and multiplication of BF16 or FP32 numbers, rounded once."""

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
from hw.common.pipeline import RegisterStages


def binary_ports(layout: data.StructLayout) -> dict[str, wiring.Member]:
    """Ports of `FloatAdd` and `FloatMultiply`."""
    return {"a": In(layout.size), "b": In(layout.size), "y": Out(layout.size)}


class FloatAdd(wiring.Component):
    """y = a + b, rounded to nearest even. A subtraction is an addition with the opposite sign of b.

    order by magnitude, align | add | normalise, round | result

    Timing: `latency` cycles, one result per cycle, no stalls. A register is possible at each bar above; `registers`
    selects the positions. Without registers the unit is combinational.

    Numerics: subnormal operands and results (after rounding) are zeros of their sign. Infinities, NaN and signed zeros
    are as in IEEE 754; each NaN is the canonical one.

    Parameters
    ----------
    layout : format of operands and result, `BF16` or `FP32`
    registers : names from `POSITIONS` of the positions that have a register

    Members
    -------
    a, b : codes of the operands
    y : code of the sum

    Raises
    ------
    ValueError
        For an unknown register position.
    """

    POSITIONS = ("aligned", "sum", "result")

    def __init__(self, layout: data.StructLayout, *, registers: Iterable[str] = ()):
        self.layout, self.registers = layout, RegisterStages(self.POSITIONS, registers)
        super().__init__(binary_ports(layout))

    @property
    def latency(self) -> int:
        """Cycles from operands to result: the number of registers."""
        return self.registers.latency

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

        # the smaller operand is shifted right by the distance of the exponents; two extra bits, lower bits are sticky
        value: Value = Cat(Const(0, 2), significand(small) & (~is_zero(small)).replicate(precision))
        difference, opposite, distance, sticky = Signal(9), Signal(9), Signal(8), Signal()
        m.d.comb += [
            difference.eq(a.exponent - b.exponent),  # both, in parallel with the comparison of magnitudes
            opposite.eq(b.exponent - a.exponent),
            distance.eq(Mux(difference[-1], opposite, difference)),
        ]
        steps = (len(value) - 1).bit_length()
        far, dropped = distance[steps:].any(), []
        for k in range(steps):
            dropped.append(distance[k] & value[: 1 << k].any())
            shifted = Signal(len(value), name=f"shifted{1 << k}")
            m.d.comb += shifted.eq(Mux(distance[k], value[1 << k :], value))
            value = shifted
        m.d.comb += sticky.eq(Cat(*dropped, far & ~is_zero(small)).any())
        addend = Signal(precision + 3)
        m.d.comb += addend.eq(Cat(sticky, value & (~far).replicate(len(value))))

        invalid = is_nan(a) | is_nan(b) | (is_infinite(a) & is_infinite(b) & (a.sign ^ b.sign))
        flags = Cat(invalid, is_infinite(large), is_zero(large), a.sign & b.sign, large.sign)
        flags = self.registers.at(m, "aligned", "flags", flags)
        subtract = self.registers.at(m, "aligned", "subtract", a.sign ^ b.sign)
        exponent = self.registers.at(m, "aligned", "exponent", large.exponent)
        top = self.registers.at(m, "aligned", "top", significand(large))
        addend = self.registers.at(m, "aligned", "addend", addend)

        # a difference is never negative: |large| >= |small|
        total = Signal(precision + 4)
        m.d.comb += total.eq(Cat(Const(0, 3), top) + (addend ^ subtract.replicate(len(addend))) + subtract)
        total = Cat(total[: precision + 3], total[precision + 3] & ~subtract)
        total, flags = self.registers.at(m, "sum", "total", total), self.registers.at(m, "sum", "flags_sum", flags)
        exponent = self.registers.at(m, "sum", "exponent_sum", exponent)

        normal, shift = normalise(m, "normal", total)
        field = Signal(10)
        m.d.comb += field.eq(exponent + 1 - shift)
        nan, infinite, both_zero, negative_zero, sign = flags
        code = round_and_pack(m, self.layout, sign, field, normal)
        result = Signal(self.layout.size)
        with m.If(nan):
            m.d.comb += result.eq(canonical_nan(self.layout))
        with m.Elif(infinite):
            m.d.comb += result.eq(infinity(self.layout, sign))
        with m.Elif(both_zero | ~normal[-1]):  # two zeros, or a difference of equal magnitudes
            m.d.comb += result.eq(zero(self.layout, negative_zero))
        with m.Else():
            m.d.comb += result.eq(code)
        m.d.comb += self.y.eq(self.registers.at(m, "result", "y_result", result))
        return m


class FloatMultiply(wiring.Component):
    """y = a * b, rounded to nearest even.

    multiply, add exponents | round | result

    Timing, Numerics, Parameters, Raises: as `FloatAdd`.

    Members
    -------
    a, b : codes of the operands
    y : code of the product
    """

    POSITIONS = ("product", "result")

    def __init__(self, layout: data.StructLayout, *, registers: Iterable[str] = ()):
        self.layout, self.registers = layout, RegisterStages(self.POSITIONS, registers)
        super().__init__(binary_ports(layout))

    @property
    def latency(self) -> int:
        """Cycles from operands to result: the number of registers."""
        return self.registers.latency

    def elaborate(self, platform: object) -> Module:
        m = Module()
        a, b = view(self.layout, self.a), view(self.layout, self.b)
        product = Signal(2 * fraction_bits(self.layout) + 2)
        exponent = Signal(10)
        m.d.comb += [product.eq(significand(a) * significand(b)), exponent.eq(a.exponent + b.exponent - BIAS)]

        zero_product, infinite = is_zero(a) | is_zero(b), is_infinite(a) | is_infinite(b)
        flags = Cat(is_nan(a) | is_nan(b) | (zero_product & infinite), infinite, zero_product, a.sign ^ b.sign)
        flags = self.registers.at(m, "product", "flags", flags)
        product = self.registers.at(m, "product", "product_register", product)
        exponent = self.registers.at(m, "product", "exponent_register", exponent)

        # the product of two numbers in [1, 2) is in [1, 4)
        field, normal = Signal(10), Signal(len(product))
        m.d.comb += [
            field.eq(exponent + product[-1]),
            normal.eq(Mux(product[-1], product, Cat(Const(0, 1), product[:-1]))),
        ]
        nan, infinite, zero_product, sign = flags
        code = round_and_pack(m, self.layout, sign, field, normal)
        result = Signal(self.layout.size)
        with m.If(nan):
            m.d.comb += result.eq(canonical_nan(self.layout))
        with m.Elif(infinite):
            m.d.comb += result.eq(infinity(self.layout, sign))
        with m.Elif(zero_product):
            m.d.comb += result.eq(zero(self.layout, sign))
        with m.Else():
            m.d.comb += result.eq(code)
        m.d.comb += self.y.eq(self.registers.at(m, "result", "y_result", result))
        return m
