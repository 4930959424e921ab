"""Encoder of the KV cache with 8-bit codes: a word of BF16 codes becomes integers and four exponents."""

# mypy: disable-error-code="assignment,arg-type"

from collections.abc import Sequence

from amaranth import Cat, Const, Module, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.dot import all_planes, any_plane, inverted_distances, largest, node, to_planes
from hw.arith.formats import BF16
from hw.common.pipeline import CreditGate
from hw.config import Config
from hw.kv_codec.bfp import QUARTERS, check_lanes, packed_layout
from hw.kv_codec.kv_encoder import increment

STAGES = 2  # pipeline registers before the output queue: distances | codes
SHIFTS = 3  # planes of a distance that select a shift; a larger distance gives code 0


class BfpEncoder(wiring.Component):
    """Encodes the keys and values of the KV cache with stream interfaces: a quarter of a word is one block.

    The word becomes a code of 8 bits for each element and a header of 32 bits. The header holds the largest exponent
    of each quarter. A code is the number divided by 2**(e - 133) and rounded; e is the exponent field of the quarter.

    ```
    i ─> largest exponents, distances ─> |reg| ─> shift, round, sign ─> |reg| ─> queue ─> o
    ```

    Timing: `latency` cycles from `i` to `o`, one word per cycle when `o` does not stall: n words take n + `latency`
    cycles. `i.ready` depends on registers only. There is no combinational path from input to output. A register
    changes only for a word, so that its clock can be gated.

    Numerics: as `golden.kv_formats.BlockFloat`, bit for bit. Codes are in two's complement, rounded to nearest even,
    and saturate at -127 and 127. Subnormals are zero. An infinity or a NaN gives its quarter the exponent 255 and
    codes 0.

    Parameters
    ----------
    lanes : elements of a word, a power of two, at least 4

    Members
    -------
    i : stream of words of `lanes` BF16 codes
    o : stream of encoded words: `codes`, `header` with four exponents

    Raises
    ------
    ValueError
        When `lanes` is outside its range.
    """

    latency = STAGES + 2  # cycles from a word of `i` to its word of `o`

    def __init__(self, *, lanes: int):
        check_lanes(lanes)
        self.lanes = lanes
        super().__init__(
            {
                "i": In(stream.Signature(data.ArrayLayout(BF16.size, lanes))),
                "o": Out(stream.Signature(packed_layout(lanes))),
            }
        )

    @classmethod
    def from_config(cls, config: Config) -> "BfpEncoder":
        """The encoder of memory words."""
        return cls(lanes=config.dpe_inputs)

    @property
    def timing(self) -> dict[str, object]:
        """Latency and throughput. The JSON file of the generated unit contains them."""
        return {"latency": self.latency, "words_per_cycle": 1}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.gate = gate = CreditGate(self.o.payload.shape(), stages=STAGES)
        valid, done = Signal(), Signal()
        m.d.sync += [valid.eq(gate.take), done.eq(valid)]

        def register(name: str, value: Value, enable: Signal) -> Signal:
            """`value` after a register that changes only with `enable`."""
            register = Signal(len(value), name=name, reset_less=True)
            with m.If(enable):
                m.d.sync += register.eq(value)
            return register

        x = to_planes(m, "x", self.i.payload)
        planes = [x[k * self.lanes : (k + 1) * self.lanes] for k in range(BF16.size)]
        fraction, exponent, sign = planes[:7], planes[7:15], planes[15]
        tops, not_distance, finite = self._distances(m, exponent)
        nonzero = any_plane(exponent) & finite & all_planes(not_distance[SHIFTS:])  # subnormals are zero
        significand = [register(f"fraction{k}", plane, gate.take) for k, plane in enumerate(fraction)]
        significand.append(register("nonzero", nonzero, gate.take))
        significand = [*(node(m, "bit", p & significand[-1]) for p in significand[:-1]), significand[-1]]
        not_distance = [register(f"not_distance{k}", p, gate.take) for k, p in enumerate(not_distance[:SHIFTS])]
        sign, tops = register("sign", sign, gate.take), register("tops", tops, gate.take)

        codes = self._round(m, significand, not_distance, sign)
        result = Signal(self.o.payload.shape())
        m.d.comb += [
            Value.cast(result.header).eq(tops),
            Value.cast(result.codes).eq(Cat(plane[lane] for lane in range(self.lanes) for plane in codes)),
            self.i.ready.eq(gate.ready),
            gate.take.eq(self.i.valid & gate.ready),
            gate.done.eq(done),
            Value.cast(gate.result).eq(register("result", Value.cast(result), valid)),
        ]
        wiring.connect(m, gate.o, wiring.flipped(self.o))
        return m

    def _distances(self, m: Module, exponent: Sequence[Value]) -> tuple[Value, list[Value], Value]:
        """Largest exponent of each quarter; planes of the inverted distances; lanes of quarters with finite numbers."""
        size = self.lanes // QUARTERS
        tops, distances, finite = list[Value](), list[list[Value]](), list[Value]()
        for first in range(0, self.lanes, size):
            quarter = [plane[first : first + size] for plane in exponent]
            top = node(m, "top", largest(m, quarter, Const((1 << size) - 1, size)))
            tops.append(top)
            distances.append(inverted_distances(m, quarter, top))
            finite.append((~top.all()).replicate(size))
        return (
            Cat(*tops),
            [node(m, "not_distances", Cat(*parts)) for parts in zip(*distances, strict=True)],
            Cat(*finite),
        )

    def _round(
        self, m: Module, significand: Sequence[Value], not_distance: Sequence[Value], sign: Value
    ) -> list[Value]:
        """Planes of the codes: significands shifted right by their distance and one bit, rounded, with their sign."""
        zeros = Const(0, self.lanes)
        value, sticky = list(significand), zeros
        for k, keep in enumerate(not_distance):
            lost = any_plane(value[: 1 << k])
            sticky = node(m, "sticky", sticky | ~keep & lost)
            shifted = [*value[1 << k :], *[zeros] * (1 << k)]
            value = [node(m, f"by{1 << k}", keep & x | ~keep & y) for x, y in zip(value, shifted, strict=True)]
        half, upper = value[0], value[1:]
        up = node(m, "up", half & (sticky | upper[0]) & ~all_planes(upper))  # 127 and a half saturates
        # -(u + up) = ~u + (1 - up): one increment rounds and completes the two's complement
        return increment(m, [*(node(m, "signed", plane ^ sign) for plane in upper), sign], node(m, "one", up ^ sign))
