"""One lane of the vector engine: add or compare, multiply, function, accumulate."""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.divide import Divide
from hw.arith.elementary import Exp, Reciprocal, Rsqrt, Silu
from hw.arith.floats import FloatAdd, FloatMultiply
from hw.arith.formats import FP32, canonical_nan, is_nan, is_zero, to_bf16, view, zero
from hw.lxe.microcode import Function, Pre, Times

STAGES = 6  # from the cycle in which operands are read to the cycle in which results are written

# what is the same in every lane, by stage
SHARED = data.StructLayout(
    {
        # 1, operands and `pre`
        "same_a": 32,
        "same_b": 32,
        "a_stream": 1,
        "a_memory": 1,
        "a_kept": 1,
        "keep": 1,
        "b_memory": 1,
        "pre": Pre,
        # 2, `times`
        "times": Times,
        "c": 32,
        # 3, `function`, held while it divides
        "hold": 1,
        "divide": 1,
        "divisor": 32,
        "function": Function,
        # 4, second half of SiLU
        "silu": 1,
        # 5, `post`
        "accumulate": 1,
        "load": 1,
        "subtract": 1,
        "maximum": 1,
        "fold": 1,
        # 6, result
        "from_total": 1,
        "round": 1,
    }
)
LANE = {
    "shared": In(SHARED),
    **dict.fromkeys(("stream", "memory_a", "memory_b", "other"), In(32)),
    "use": In(1),
    **dict.fromkeys(("y", "total"), Out(32)),
}


def compare(m: Module, name: str, a: Value, b: Value) -> tuple[Value, Value]:
    """The larger of two FP32 numbers (NaN if one is NaN, subnormals zero, -0 < +0), and whether a > b."""
    x, y = view(FP32, a), view(FP32, b)
    below, larger, greater = Signal(name=f"{name}_below"), Signal(32, name=f"{name}_larger"), Signal(name=name)
    unordered = is_nan(x) | is_nan(y)
    zeros = is_zero(x) & is_zero(y)
    m.d.comb += [
        below.eq(Mux(x.sign ^ y.sign, x.sign, (Value.cast(a)[:31] < Value.cast(b)[:31]) ^ x.sign)),
        greater.eq(~below & (Value.cast(a) != Value.cast(b)) & ~zeros & ~unordered),
    ]
    chosen = view(FP32, Mux(below, b, a))
    with m.If(unordered):
        m.d.comb += larger.eq(canonical_nan(FP32))
    with m.Elif(is_zero(chosen)):
        m.d.comb += larger.eq(zero(FP32, chosen.sign))
    with m.Else():
        m.d.comb += larger.eq(chosen)
    return larger, greater


class Lane(wiring.Component):
    """The arithmetic of one lane, a pipeline of six stages whose control comes from outside.

    1 operands, add or compare | 2 multiply | 3 function, first half | 4 second half | 5 accumulate | 6 round, result

    Timing: one element per cycle; a division holds stage 3 for `Divide.latency` cycles more.

    Members
    -------
    shared : control and operands that are the same in every lane, see `SHARED`
    stream, memory_a, memory_b : operands, stage 1
    use : the element takes part in a reduction, stage 5 ; other : total of another lane, to be combined with this one's
    y : an element's result, stage 6 ; total : the lane's accumulator
    """

    def __init__(self) -> None:
        super().__init__(LANE)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        shared = self.shared

        # stage 1
        kept, a, b = (Signal(32, name=n) for n in ("kept", "a", "b"))
        with m.If(shared.keep):
            m.d.sync += kept.eq(a)
        m.d.comb += [
            a.eq(
                Mux(
                    shared.a_kept,
                    kept,
                    Mux(shared.a_stream, self.stream, Mux(shared.a_memory, self.memory_a, shared.same_a)),
                )
            ),
            b.eq(Mux(shared.b_memory, self.memory_b, shared.same_b)),
        ]
        m.submodules.first_adder = add = FloatAdd(FP32)
        larger, greater = compare(m, "greater", a, b)
        m.d.comb += [
            add.a.eq(Cat(a[:-1], a[-1] ^ (shared.pre == Pre.RSUB))),
            add.b.eq(Cat(b[:-1], b[-1] ^ (shared.pre == Pre.SUB))),
        ]
        v, v_next, late_b = Signal(32, reset_less=True), Signal(32), Signal(32, reset_less=True)
        # selections as chains of two: a wide one becomes a Verilog function, of which simulators copy every instance
        one = Mux(greater, 0x3F800000, 0)
        compared = Mux(shared.pre == Pre.MAX, larger, Mux(shared.pre == Pre.GREATER, one, a))
        sums = (shared.pre == Pre.ADD) | (shared.pre == Pre.SUB) | (shared.pre == Pre.RSUB)
        m.d.comb += v_next.eq(Mux(sums, add.y, compared))
        m.d.sync += [v.eq(v_next), late_b.eq(b)]

        # stage 2
        m.submodules.multiplier = multiply = FloatMultiply(FP32)
        m.d.comb += [
            multiply.a.eq(v),
            multiply.b.eq(Mux(shared.times == Times.B, late_b, Mux(shared.times == Times.C, shared.c, v))),
        ]
        p = Signal(32, reset_less=True)
        with m.If(~shared.hold):
            m.d.sync += p.eq(Mux(shared.times == Times.ONE, v, multiply.y))

        # stage 3
        narrow = to_bf16(m, "narrow", p)
        m.submodules.exp, m.submodules.reciprocal, m.submodules.rsqrt = exp, reciprocal, rsqrt = (
            Exp(),
            Reciprocal(),
            Rsqrt(),
        )
        m.submodules.silu, m.submodules.divider = silu, divider = Silu(), Divide()
        m.d.comb += [
            exp.x.eq(p),
            divider.a.eq(p),
            divider.b.eq(shared.divisor),
            divider.start.eq(shared.divide),
        ]
        m.d.comb += [unit.x.eq(narrow) for unit in (reciprocal, rsqrt, silu)]
        r, result = Signal(32, reset_less=True), p
        for function, unit in (
            (Function.EXP, exp),
            (Function.RECIPROCAL, reciprocal),
            (Function.RSQRT, rsqrt),
            (Function.DIVIDE, divider),
        ):
            result = Mux(shared.function == function, Cat(Const(0, 16), unit.y), result)
        m.d.sync += r.eq(result)

        # stage 4
        element = Signal(32, reset_less=True)
        m.d.sync += element.eq(Mux(shared.silu, Cat(Const(0, 16), silu.y), r))

        # stage 5; a fold adds another lane's total
        total, late_element, addend = Signal(32, reset_less=True), Signal(32, reset_less=True), Signal(32)
        m.submodules.second_adder = add = FloatAdd(FP32)
        m.d.comb += [
            addend.eq(Mux(shared.fold, self.other, element)),
            add.a.eq(total),
            add.b.eq(Cat(addend[:-1], addend[-1] ^ shared.subtract)),
        ]
        larger, _ = compare(m, "total_greater", total, addend)
        m.d.sync += late_element.eq(element)
        with m.If(shared.accumulate):
            with m.If(shared.load):
                neutral = Mux(shared.maximum, 0xFF800000, 0x80000000)
                m.d.sync += total.eq(Mux(self.use, element, neutral))
            with m.Elif(self.use | shared.fold):
                m.d.sync += total.eq(Mux(shared.maximum, larger, add.y))

        # stage 6
        result = Signal(32)
        m.d.comb += [
            result.eq(Mux(shared.from_total, total, late_element)),
            self.y.eq(Mux(shared.round, Cat(Const(0, 16), to_bf16(m, "rounded", result)), result)),
            self.total.eq(total),
        ]
        return m
