"""One lane of the vector engine: add or compare, multiply, function, accumulate."""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.divide import Divide
from hw.arith.elementary import Exp, Reciprocal, Rsqrt, Silu
from hw.arith.floats import FloatAdd, FloatMultiply
from hw.arith.formats import FP32, canonical_nan, is_nan, is_zero, to_bf16, view, zero
from hw.lxe.microcode import Function, Pre, Times

STAGES = 6  # pipeline stages, from the read of the operands to the write of the results
ONE, MINUS_ZERO, MINUS_INFINITY = 0x3F800000, 0x80000000, 0xFF800000  # FP32 codes

# operands and control signals that are equal for all lanes, by pipeline stage
SHARED_LAYOUT = data.StructLayout(
    {
        # 1, operands and `pre`
        "same_a": 32,
        "same_b": 32,
        "a_stream": 1,
        "a_memory": 1,
        "use_saved": 1,
        "save_operand": 1,
        "b_memory": 1,
        "pre": Pre,
        # 2, `times`
        "times": Times,
        "c": 32,
        # 3, `function`; `hold` stops the stages up to 3 during a division
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
LANE_PORTS = {
    "shared": In(SHARED_LAYOUT),
    **dict.fromkeys(("stream", "memory_a", "memory_b", "other"), In(32)),
    "use": In(1),
    **dict.fromkeys(("y", "total"), Out(32)),
}


def compare(m: Module, name: str, a: Value, b: Value) -> tuple[Value, Value]:
    """The larger of two FP32 numbers (NaN if one is NaN, subnormals are zero, -0 < +0), and whether a > b."""
    x, y = view(FP32, a), view(FP32, b)
    below, larger, greater = Signal(name=f"{name}_below"), Signal(32, name=f"{name}_larger"), Signal(name=name)
    unordered = is_nan(x) | is_nan(y)
    zeros = is_zero(x) & is_zero(y)
    m.d.comb += [
        below.eq(Mux(x.sign ^ y.sign, x.sign, (Value.cast(a)[:31] < Value.cast(b)[:31]) ^ x.sign)),
        greater.eq(~below & (Value.cast(a) != Value.cast(b)) & ~zeros & ~unordered),
    ]
    selected = view(FP32, Mux(below, b, a))
    with m.If(unordered):
        m.d.comb += larger.eq(canonical_nan(FP32))
    with m.Elif(is_zero(selected)):
        m.d.comb += larger.eq(zero(FP32, selected.sign))
    with m.Else():
        m.d.comb += larger.eq(selected)
    return larger, greater


def to_fp32(code: Value) -> Value:
    """FP32 code of a BF16 code."""
    return Cat(Const(0, 16), code)


class VpeLane(wiring.Component):
    """Arithmetic of one lane: a pipeline of six stages that the vector engine controls.

    1 operands, add or compare | 2 multiply | 3 function, first half | 4 second half | 5 accumulate | 6 round, result

    Timing: one element per cycle. A division holds the stages up to 3 for `Divide.latency` more cycles.

    Numerics: FP32, rounded to nearest even after each step. Functions give BF16 numbers.

    Members
    -------
    shared : operands and control signals that are equal for all lanes, see `SHARED_LAYOUT`
    stream, memory_a, memory_b : operands of this lane, stage 1
    use : the element takes part in a reduction, stage 5
    other : total of another lane, which a fold combines with the total of this lane, stage 5
    y : result of an element, stage 6
    total : accumulator of the lane
    """

    def __init__(self) -> None:
        super().__init__(LANE_PORTS)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        v, b = self._operands(m)
        product = self._product(m, v, b)
        element = self._function(m, product)
        total, element_d = self._accumulate(m, element)

        # stage 6
        shared = self.shared
        result = Signal(32)
        m.d.comb += [
            result.eq(Mux(shared.from_total, total, element_d)),
            self.y.eq(Mux(shared.round, to_fp32(to_bf16(m, "rounded", result)), result)),
            self.total.eq(total),
        ]
        return m

    def _operands(self, m: Module) -> tuple[Signal, Signal]:
        """Stage 1: select a and b, and compute `pre`. Returns its result and b at stage 2."""
        shared = self.shared
        saved, a, b = (Signal(32, name=name) for name in ("saved", "a", "b"))
        with m.If(shared.save_operand):
            m.d.sync += saved.eq(a)
        from_source = Mux(shared.a_stream, self.stream, Mux(shared.a_memory, self.memory_a, shared.same_a))
        m.submodules.first_adder = add = FloatAdd(FP32)
        larger, greater = compare(m, "greater", a, b)
        m.d.comb += [
            a.eq(Mux(shared.use_saved, saved, from_source)),
            b.eq(Mux(shared.b_memory, self.memory_b, shared.same_b)),
            add.a.eq(Cat(a[:-1], a[-1] ^ (shared.pre == Pre.RSUB))),
            add.b.eq(Cat(b[:-1], b[-1] ^ (shared.pre == Pre.SUB))),
        ]
        v, v_next, b_d = Signal(32, reset_less=True), Signal(32), Signal(32, reset_less=True)
        # multiplexers of two inputs: a wider one becomes a Verilog function, which simulators copy for each instance
        compared = Mux(shared.pre == Pre.MAX, larger, Mux(shared.pre == Pre.GREATER, Mux(greater, ONE, 0), a))
        sums = (shared.pre == Pre.ADD) | (shared.pre == Pre.SUB) | (shared.pre == Pre.RSUB)
        m.d.comb += v_next.eq(Mux(sums, add.y, compared))
        m.d.sync += [v.eq(v_next), b_d.eq(b)]
        return v, b_d

    def _product(self, m: Module, v: Signal, b: Signal) -> Signal:
        """Stage 2: compute `times`. Returns the product at stage 3."""
        shared = self.shared
        m.submodules.multiplier = multiply = FloatMultiply(FP32)
        m.d.comb += [
            multiply.a.eq(v),
            multiply.b.eq(Mux(shared.times == Times.B, b, Mux(shared.times == Times.C, shared.c, v))),
        ]
        product = Signal(32, reset_less=True)
        with m.If(~shared.hold):
            m.d.sync += product.eq(Mux(shared.times == Times.ONE, v, multiply.y))
        return product

    def _function(self, m: Module, product: Signal) -> Signal:
        """Stages 3 and 4: compute `function`. Returns the element at stage 5."""
        shared = self.shared
        narrow = to_bf16(m, "narrow", product)
        m.submodules.exp = exp = Exp()
        m.submodules.reciprocal = reciprocal = Reciprocal()
        m.submodules.rsqrt = rsqrt = Rsqrt()
        m.submodules.silu = silu = Silu()
        m.submodules.divider = divider = Divide()
        m.d.comb += [
            exp.x.eq(product),
            divider.a.eq(product),
            divider.b.eq(shared.divisor),
            divider.start.eq(shared.divide),
        ]
        m.d.comb += [unit.x.eq(narrow) for unit in (reciprocal, rsqrt, silu)]
        function_d, result = Signal(32, reset_less=True), product
        for function, unit in (
            (Function.EXP, exp),
            (Function.RECIPROCAL, reciprocal),
            (Function.RSQRT, rsqrt),
            (Function.DIVIDE, divider),
        ):
            result = Mux(shared.function == function, to_fp32(unit.y), result)
        element = Signal(32, reset_less=True)
        m.d.sync += [function_d.eq(result), element.eq(Mux(shared.silu, to_fp32(silu.y), function_d))]
        return element

    def _accumulate(self, m: Module, element: Signal) -> tuple[Signal, Signal]:
        """Stage 5: compute `post`; a fold adds the total of another lane. Returns total and element at stage 6."""
        shared = self.shared
        total, element_d, addend = Signal(32, reset_less=True), Signal(32, reset_less=True), Signal(32)
        m.submodules.second_adder = add = FloatAdd(FP32)
        m.d.comb += [
            addend.eq(Mux(shared.fold, self.other, element)),
            add.a.eq(total),
            add.b.eq(Cat(addend[:-1], addend[-1] ^ shared.subtract)),
        ]
        larger, _ = compare(m, "total_greater", total, addend)
        m.d.sync += element_d.eq(element)
        with m.If(shared.accumulate):
            with m.If(shared.load):
                neutral = Mux(shared.maximum, MINUS_INFINITY, MINUS_ZERO)
                m.d.sync += total.eq(Mux(self.use, element, neutral))
            with m.Elif(self.use | shared.fold):
                m.d.sync += total.eq(Mux(shared.maximum, larger, add.y))
        return total, element_d
