"""Division of FP32 numbers to a BF16 quotient, one quotient bit per cycle."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.arith.formats import (
    BF16,
    BIAS,
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


class Divide(wiring.Component):
    """y = a / b, rounded once to BF16: a restoring divider with one subtractor.

    Timing: `y` is the quotient `latency` cycles after `start`. `a` and `b` must be constant until then. The next
    division can start in the cycle of the result.

    Numerics: rounded to nearest even, from ten quotient bits and a sticky bit of the remainder. Subnormals are zero;
    0 / 0 and infinity / infinity are NaN.

    Members
    -------
    start : first cycle of a division
    a, b : FP32 codes
    y : BF16 code
    """

    latency = 10

    def __init__(self) -> None:
        super().__init__({"start": In(1), "a": In(FP32.size), "b": In(FP32.size), "y": Out(BF16.size)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        a, b = view(FP32, self.a), view(FP32, self.b)

        # the remainder is below twice the divisor
        remainder, quotient = Signal(25, reset_less=True), Signal(self.latency, reset_less=True)
        current, difference = Signal(25), Signal(26)
        no_borrow = ~difference[-1]
        m.d.comb += [
            current.eq(Mux(self.start, significand(a), remainder)),
            difference.eq(current - significand(b)),
        ]
        m.d.sync += [
            remainder.eq(Mux(no_borrow, difference[:24], current[:24]) << 1),
            quotient.eq(Cat(no_borrow, quotient[:-1])),
        ]

        large = quotient[-1]  # the quotient of the significands is in [1, 2); else in (1/2, 1)
        exponent, magnitude = Signal(10), Signal(self.latency + 1)
        sticky = remainder.any()
        m.d.comb += [
            exponent.eq(a.exponent - b.exponent + BIAS - ~large),
            magnitude.eq(Mux(large, Cat(sticky, quotient), Cat(sticky, quotient) << 1)),
        ]
        sign = a.sign ^ b.sign
        code = round_and_pack(m, BF16, sign, exponent, magnitude)
        invalid = (is_zero(a) & is_zero(b)) | (is_infinite(a) & is_infinite(b))
        with m.If(is_nan(a) | is_nan(b) | invalid):
            m.d.comb += self.y.eq(canonical_nan(BF16))
        with m.Elif(is_infinite(a) | is_zero(b)):
            m.d.comb += self.y.eq(infinity(BF16, sign))
        with m.Elif(is_zero(a) | is_infinite(b)):
            m.d.comb += self.y.eq(zero(BF16, sign))
        with m.Else():
            m.d.comb += self.y.eq(code)
        return m
