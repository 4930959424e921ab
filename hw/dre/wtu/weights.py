"""Weight of each cluster of a beat: score x tokens, tokens, or one."""

from amaranth import Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.adders import Addend, add_all
from hw.dre.wtu.command import FRACTION_BITS, KEY_BITS, SelectionMode, WtuSizes

MANTISSA_BITS = 8  # of a BF16 number, with the hidden bit
EXACT = FRACTION_BITS + 1 - MANTISSA_BITS  # largest exponent difference at which a score keeps all its bits


class Weights(wiring.Component):
    """Multiplies the scores of a beat by their token counts in fixed point.

    Timing: latency 1 cycle, throughput one beat per cycle.

    Numerics: a score is `(128 + fraction) << 17 >> (largest exponent - exponent)`, truncated; a subnormal score is
    zero. A score has at most 8 significant bits. The unit drops the bits that truncation removes, multiplies the
    remaining bits, and shifts the product.

    Parameters
    ----------
    sizes : sizes of the WTU

    Members
    -------
    load : `pairs` are valid; the weights stay until the cycle after the next `load`
    pairs, use : key and token count, and enable of each lane; the weight of a disabled lane is 0
    high : largest key of the row
    mode : see `SelectionMode`
    weights : weight of each lane
    """

    latency = 1

    def __init__(self, sizes: WtuSizes):
        self.sizes = sizes
        super().__init__(
            {
                "load": In(1),
                "pairs": In(sizes.pair),
                "use": In(sizes.lanes),
                "high": In(KEY_BITS),
                "mode": In(SelectionMode),
                "weights": Out(data.ArrayLayout(sizes.weight_bits, sizes.lanes)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        scored = Signal()
        m.d.comb += scored.eq(self.mode == SelectionMode.RATIO)
        for w in range(self.sizes.lanes):
            self._lane(m, w, scored)
        return m

    def _lane(self, m: Module, w: int, scored: Value) -> None:
        """Product of the truncated score and the token count of lane `w`, shifted in the next cycle."""
        key, largest = self.pairs[w].key, self.high[MANTISSA_BITS - 1 : -1]
        exponent = key[MANTISSA_BITS - 1 : -1]
        cut = Signal(signed(len(exponent) + 2), name=f"cut{w}")  # bits to drop; if negative, bits to shift up
        score = Signal(MANTISSA_BITS, name=f"score{w}")
        factor = Signal(MANTISSA_BITS, name=f"factor{w}")
        tokens = Signal(self.sizes.count_bits, name=f"tokens{w}")
        product = Signal(MANTISSA_BITS + self.sizes.count_bits, name=f"product{w}")
        shift = Signal(range(EXACT + 1), name=f"shift{w}")
        nonzero = Signal(name=f"nonzero{w}")
        truncated = cut >= 0
        m.d.comb += [
            cut.eq(largest - EXACT - exponent),
            score.eq(key[: MANTISSA_BITS - 1] | 1 << MANTISSA_BITS - 1),
            factor.eq(Mux(scored, Mux(truncated, Mux(cut < MANTISSA_BITS, score >> cut[:3], 0), score), 1)),
            tokens.eq(Mux(self.mode == SelectionMode.COUNT, 1, self.pairs[w].count)),
            self.weights[w].eq(product << shift),
            nonzero.eq(self.use[w] & ~(scored & (exponent == 0))),
        ]
        rows = [Signal(len(tokens), name=f"row{w}_{k}") for k in range(MANTISSA_BITS)]
        m.d.comb += [row.eq(Mux(factor[k] & nonzero, tokens, 0)) for k, row in enumerate(rows)]
        total = add_all(m, [Addend(row, k) for k, row in enumerate(rows)], len(product))
        with m.If(self.load):
            m.d.sync += [product.eq(total), shift.eq(Mux(scored & ~truncated, -cut, 0))]
