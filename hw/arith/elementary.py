"""Elementary functions of BF16: exponential, reciprocal, reciprocal square root, SiLU."""

import math
from collections.abc import Sequence

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.adders import carry_save
from hw.arith.formats import (
    BF16,
    FP32,
    canonical_nan,
    infinity,
    is_infinite,
    is_nan,
    is_zero,
    round_and_pack,
    significand,
    view,
    zero,
)

UNARY = {"x": In(BF16.size), "y": Out(BF16.size)}


def lookup(address: Value, words: Sequence[int], width: int) -> Value:
    """`words[address]` as logic, for 2**len(address) words."""
    if len(words) == 1:
        return Const(words[0], width)
    half = len(words) // 2
    low, high = lookup(address[:-1], words[:half], width), lookup(address[:-1], words[half:], width)
    return low if words[:half] == words[half:] else Mux(address[-1], high, low)


def multiply(m: Module, name: str, a: Value, b: Value) -> Value:
    """Unsigned a * b with a carry-save tree. Zero bits of a constant b need no logic."""
    width = len(a) + len(b)
    set_bits = [k for k in range(len(b)) if not isinstance(b, Const) or b.value >> k & 1]
    columns = [Cat(a[i - k] & b[k] for k in set_bits if 0 <= i - k < len(a)) for i in range(width)]
    first, second = carry_save(m, columns)
    product = Signal(width, name=name)
    m.d.comb += product.eq((Cat(*first) + Cat(*second))[:width])
    return product


def unit_fraction(value: float) -> int:
    """Table entry of a number in [0.5, 1], rounded to 8 significant bits: its 7-bit fraction; bit 7 is 1 below 1.0."""
    scaled = round(256 * value)
    return 0 if scaled == 256 else 128 | (scaled - 128)


class Exp(wiring.Component):
    """y = 2 ** (-floor(x) / 256) in BF16 for x in FP32: the exponential of scaled attention scores.

    Timing: combinational.

    Numerics: monotone. y is 1 for x < 1, also for negative x; 0 when the result is below 2**-126; NaN for NaN. A table
    of 256 entries gives the significand that is nearest to the power of two.

    Members
    -------
    x : FP32 code
    y : BF16 code
    """

    def __init__(self) -> None:
        super().__init__({"x": In(FP32.size), "y": Out(BF16.size)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        x = view(FP32, self.x)
        # lowest 15 bits of floor(x); larger values give 0
        steps = Signal(15)
        m.d.comb += steps.eq(Cat(x.fraction[9:], Const(1, 1)) >> (141 - x.exponent)[:4])
        word = Signal(8)
        words = [unit_fraction(2.0 ** (-f / 256)) for f in range(256)]
        exponent = Signal(8)
        m.d.comb += [
            word.eq(lookup(steps[:8], words, 8)),
            exponent.eq(127 - steps[8:] - word[7]),
            self.y.eq(Cat(word[:7], exponent, Const(0, 1))),
        ]
        with m.If(is_nan(x)):
            m.d.comb += self.y.eq(canonical_nan(BF16))
        with m.Elif(x.sign | (x.exponent < 127)):
            m.d.comb += self.y.eq(Cat(Const(0, 7), Const(127, 8), Const(0, 1)))
        with m.Elif((x.exponent > 141) | (exponent == 0) | exponent[7]):  # 127 - 127 - 1 wraps
            m.d.comb += self.y.eq(0)
        return m


class Reciprocal(wiring.Component):
    """y = 1 / x in BF16, correctly rounded, from a table of 128 entries.

    Timing: combinational.

    Numerics: zeros and subnormals give the infinity of their sign. Infinities and results below 2**-126 give zero. NaN
    gives NaN.

    Members
    -------
    x, y : BF16 codes
    """

    def __init__(self) -> None:
        super().__init__(UNARY)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        x = view(BF16, self.x)
        word, exponent = Signal(8), Signal(8)
        m.d.comb += [
            word.eq(lookup(x.fraction, [unit_fraction(128 / (128 + f)) for f in range(128)], 8)),
            exponent.eq(254 - x.exponent - word[7]),
            self.y.eq(Cat(word[:7], exponent, x.sign)),
        ]
        with m.If(is_nan(x)):
            m.d.comb += self.y.eq(canonical_nan(BF16))
        with m.Elif(is_zero(x)):
            m.d.comb += self.y.eq(infinity(BF16, x.sign))
        with m.Elif(is_infinite(x) | (x.exponent == 254) | (exponent == 0)):
            m.d.comb += self.y.eq(zero(BF16, x.sign))
        return m


class Rsqrt(wiring.Component):
    """y = 1 / sqrt(x) in BF16, correctly rounded, from a table of 256 entries.

    Timing: combinational.

    Numerics: zeros and subnormals give the infinity of their sign, +infinity gives +0. NaN and other negative numbers
    give NaN.

    Members
    -------
    x, y : BF16 codes
    """

    def __init__(self) -> None:
        super().__init__(UNARY)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        x = view(BF16, self.x)
        exponent_odd = ~x.exponent[0]  # of the exponent without its bias
        words = [unit_fraction(1 / math.sqrt((1 + odd) * (1 + f / 128))) for odd in (0, 1) for f in range(128)]
        word, exponent = Signal(8), Signal(8)
        m.d.comb += [
            word.eq(lookup(Cat(x.fraction, exponent_odd), words, 8)),
            exponent.eq(190 + exponent_odd - x.exponent[1:] - word[7]),
            self.y.eq(Cat(word[:7], exponent, Const(0, 1))),
        ]
        with m.If(is_zero(x)):
            m.d.comb += self.y.eq(infinity(BF16, x.sign))
        with m.Elif(is_nan(x) | x.sign):
            m.d.comb += self.y.eq(canonical_nan(BF16))
        with m.Elif(is_infinite(x)):
            m.d.comb += self.y.eq(0)
        return m


class Silu(wiring.Component):
    """y = x / (1 + exp(-x)) in BF16, with an error below one unit in the last place.

    SiLU(x) = x * 2**-v with v = w(t) for positive x, v = w(t) + t log2(e) for negative x, t = |x| and w(t) = log2(1 +
    exp(-t)). The first stage computes v. The second stage computes 2**-fraction(v), multiplies and rounds.

    Timing: one cycle; one result per cycle.

    Numerics: y is x / 2 for |x| below 2**-8, x for x from 8 on, and -0 for x up to -128. Between these limits, w is
    approximated by 64 straight lines on [0, 8) and by 0 above. v has 9 fraction bits and the power has 10. Results
    below 2**-126 are zeros of the sign of x. NaN gives NaN.

    Members
    -------
    x : BF16 code
    y : BF16 code, one cycle later
    """

    latency = 1

    def __init__(self) -> None:
        super().__init__(UNARY)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        x = view(BF16, self.x)
        v = self._exponent(m, x)
        x_d, v_d = Signal(BF16), Signal(18)
        m.d.sync += [x_d.eq(x), v_d.eq(v)]
        self._result(m, x_d, v_d)
        return m

    def _exponent(self, m: Module, x: data.View) -> Signal:
        """First stage: v with 9 fraction bits."""
        value = significand(x)

        # w: a line has 32 steps of 2**-8
        position = Signal(11)
        m.d.comb += position.eq(Cat(Const(0, 3), value) >> (129 - x.exponent)[:4])
        starts, falls = _lines()
        start, fall, line = Signal(10), Signal(6), Signal(10)
        middle = Cat(Const(1, 1), position[:5])
        m.d.comb += [
            start.eq(lookup(position[5:], starts, 10)),
            fall.eq(lookup(position[5:], falls, 6)),
            line.eq(start - ((multiply(m, "fallen", fall, middle) + 32) >> 6)),
        ]

        # t * log2(e), rounded half up to 9 fraction bits
        log2e = Const(23637, 15)  # log2(e) * 2**14
        scaled, linear = Signal(18), Signal(17)
        product = multiply(m, "exponent_product", value, log2e)
        m.d.comb += [
            scaled.eq(product[5:] >> (133 - x.exponent)[:4]),
            linear.eq((scaled + 1) >> 1),
        ]
        v = Signal(18)
        m.d.comb += v.eq(Mux(x.exponent < 130, line, 0) + (linear & x.sign.replicate(17)))
        return v

    def _result(self, m: Module, x: data.View, v: Signal) -> None:
        """Second stage: y = x * 2**-v, and the special cases."""
        power = Signal(11)
        m.d.comb += power.eq(lookup(v[:9], [round(2 ** (10 - f / 512)) for f in range(512)], 11))
        scaled = multiply(m, "product", power, significand(x))[:18]
        normal, exponent = Signal(18), Signal(10)
        m.d.comb += [
            normal.eq(Mux(scaled[-1], scaled, Cat(Const(0, 1), scaled[:-1]))),
            exponent.eq(x.exponent - v[9:] - ~scaled[-1]),
        ]
        code = round_and_pack(m, BF16, x.sign, exponent, normal)
        with m.If(is_nan(x)):
            m.d.comb += self.y.eq(canonical_nan(BF16))
        with m.Elif(x.exponent < 119):
            halved = Cat(x.fraction, (x.exponent - 1)[:8], x.sign)
            m.d.comb += self.y.eq(Mux(x.exponent > 1, halved, zero(BF16, x.sign)))
        with m.Elif(~x.sign & (x.exponent >= 130)):
            m.d.comb += self.y.eq(x)
        with m.Elif(x.exponent >= 134):
            m.d.comb += self.y.eq(zero(BF16, x.sign))
        with m.Else():
            m.d.comb += self.y.eq(code)


def _lines() -> tuple[list[int], list[int]]:
    """The 64 straight lines that approximate w on [0, 8): value at the start and decrease to the end, in 2**-9."""

    def w(t: float) -> float:
        """log2(1 + exp(-t))."""
        return math.log2(1 + math.exp(-t))

    starts, falls = [], []
    for k in range(64):
        first, middle, last = w(k / 8), w((k + 0.5) / 8), w((k + 1) / 8)
        starts.append(round(512 * (first - ((first + last) / 2 - middle) / 2)))
        falls.append(round(512 * (first - last)))
    return starts, falls
