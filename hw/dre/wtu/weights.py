"""What each cluster of a beat adds to the sum: score x tokens, tokens, or one."""

from amaranth import Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.adders import Row, add_rows
from hw.dre.wtu.command import FRACTION_BITS, KEY_BITS, SelectionMode, WtuSizes

MANTISSA_BITS = 8  # of a BF16 number, with the hidden one
EXACT = FRACTION_BITS + 1 - MANTISSA_BITS  # exponents below the largest at which a score still has all its bits


class Weights(wiring.Component):
    """Multiplies scores in fixed point by token counts.

    Numerics: a score is `(128 + fraction) << 17 >> (largest exponent - exponent)`, truncated, zero when subnormal. It
    has at most 8 significant bits: those that truncation drops go first, the rest is multiplied, and the product is
    shifted into place.

    Timing: latency 1, a beat per cycle.

    Members
    -------
    keys, counts, use : of the lanes; a lane that is not used weighs nothing
    high : largest key of the row ; mode : see `SelectionMode`
    weights : one per lane
    """

    latency = 1

    def __init__(self, sizes: WtuSizes):
        self.sizes = sizes
        super().__init__(
            {
                "keys": In(data.ArrayLayout(KEY_BITS, sizes.lanes)),
                "counts": In(data.ArrayLayout(sizes.count_bits, sizes.lanes)),
                "use": In(sizes.lanes),
                "high": In(KEY_BITS),
                "mode": In(SelectionMode),
                "weights": Out(data.ArrayLayout(sizes.weight_bits, sizes.lanes)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        largest = self.high[MANTISSA_BITS - 1 : -1]
        scored = Signal()
        m.d.comb += scored.eq(self.mode == SelectionMode.RATIO)
        for w in range(self.sizes.lanes):
            key = self.keys[w]
            exponent = key[MANTISSA_BITS - 1 : -1]
            cut = Signal(signed(len(exponent) + 2), name=f"cut{w}")  # bits to drop; negative: to shift up
            score = Signal(MANTISSA_BITS, name=f"score{w}")
            factor = Signal(MANTISSA_BITS, name=f"factor{w}")
            tokens = Signal(self.sizes.count_bits, name=f"tokens{w}")
            product = Signal(MANTISSA_BITS + self.sizes.count_bits, name=f"product{w}")
            up = Signal(range(EXACT + 1), name=f"up{w}")
            far = cut >= 0
            m.d.comb += [
                cut.eq(largest - EXACT - exponent),
                score.eq(key[: MANTISSA_BITS - 1] | 1 << MANTISSA_BITS - 1),
                factor.eq(Mux(scored, Mux(far, Mux(cut < MANTISSA_BITS, score >> cut[:3], 0), score), 1)),
                tokens.eq(Mux(self.mode == SelectionMode.COUNT, 1, self.counts[w])),
                self.weights[w].eq(product << up),
            ]
            some = Signal(name=f"some{w}")
            m.d.comb += some.eq(self.use[w] & ~(scored & (exponent == 0)))
            rows = [Signal(len(tokens), name=f"row{w}_{k}") for k in range(MANTISSA_BITS)]
            m.d.comb += [row.eq(Mux(factor[k] & some, tokens, 0)) for k, row in enumerate(rows)]
            m.d.sync += [
                product.eq(add_rows(m, [Row(row, k) for k, row in enumerate(rows)], len(product))),
                up.eq(Mux(scored & ~far, -cut, 0)),
            ]
        return m
