"""Encoder of the KV cache: a word of BF16 codes becomes codes of a few bits and a header."""

# mypy: disable-error-code="assignment,arg-type"

from collections.abc import Iterable, Sequence

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.dot import all_planes, any_plane, inverted_distances, largest, node, planes_layout, to_planes
from hw.arith.formats import BF16
from hw.common.pipeline import CreditGate, RegisterStages
from hw.config import Config
from hw.kv_codec.affine import FIXED_BITS, GUARD_BITS, Steps, check_sizes, choose, packed_layout

POSITIONS = ("distances", "fixed", "limits", "thresholds", "result")  # where a register is possible, in order


def increment(m: Module, planes: Sequence[Value], carry: Value) -> list[Value]:
    """Planes of the numbers plus the bit `carry` of their lane, modulo 2**len(planes)."""
    results = []
    for plane in planes:
        results.append(node(m, "total", plane ^ carry))
        carry = node(m, "carry", plane & carry)
    return results


class EncoderCore(wiring.Component):
    """The encoder as a pipeline that never stalls.

    exponent, distances to it | shift, round, sign | minimum, maximum | thresholds between levels | search | result

    A lane searches its code in `bits` comparisons with thresholds that all lanes share. All lanes are computed as
    planes, words with one bit per lane.

    Timing: `latency` cycles, one word per cycle, no stalls. A register is possible at each bar above; `registers`
    selects the positions. A register changes only for a word, so that its clock can be gated.

    Parameters
    ----------
    lanes : elements of a word, a power of two
    bits : bits of a code, 2 to 4
    registers : names from `POSITIONS` of the positions that have a register

    Members
    -------
    take : `x` has a word
    x : BF16 codes as planes
    done, y : encoded word, `latency` cycles later

    Raises
    ------
    ValueError
        For an invalid size or an unknown register position.
    """

    def __init__(self, *, lanes: int, bits: int = 4, registers: Iterable[str] = POSITIONS):
        check_sizes(lanes, bits)
        self.lanes, self.bits = lanes, bits
        self.registers = RegisterStages(POSITIONS, registers)
        ports = {"x": In(planes_layout(lanes)), "y": Out(packed_layout(lanes, bits))}
        super().__init__({"take": In(1), "done": Out(1), **ports})

    @property
    def latency(self) -> int:
        """Cycles from a word to its result: the number of registers."""
        return self.registers.latency

    def elaborate(self, platform: object) -> Module:
        m = Module()
        valid = {position: Signal(name=f"valid_{position}") for position in self.registers.selected}
        enable = dict(zip(valid, (self.take, *valid.values()), strict=False))
        m.d.sync += [valid[position].eq(enable[position]) for position in valid]
        m.d.comb += self.done.eq([self.take, *valid.values()][-1])

        def register(position: str, name: str, value: Value) -> Signal:
            """`value` after the register at `position`, if there is one."""
            return self.registers.at(m, position, name, value, enable.get(position))

        planes = [self.x[k] for k in range(BF16.size)]
        fraction, exponent, sign = planes[:7], planes[7:15], planes[15]

        # largest exponent field, and the distance of each lane to it
        everyone = Const((1 << self.lanes) - 1, self.lanes)  # not -1, which is signed and one bit wider in an AND
        top = largest(m, exponent, everyone)
        not_distance = inverted_distances(m, exponent, top)
        near = all_planes(not_distance[4:])
        nonzero = any_plane(exponent)  # subnormals are zero
        significand = [register("distances", f"fraction{k}", p) for k, p in enumerate(fraction)]
        significand.append(register("distances", "nonzero", nonzero & near))
        significand = [*(node(m, "bit", p & significand[-1]) for p in significand[:-1]), significand[-1]]
        not_distance = [register("distances", f"not_distance{k}", p) for k, p in enumerate(not_distance[:4])]
        sign, top = register("distances", "sign", sign), register("distances", "top", top)

        # fixed-point numbers with an offset of 2**(FIXED_BITS - 1), so that they compare as unsigned numbers
        fixed = self._to_fixed(m, significand, not_distance, sign)
        fixed = [register("fixed", f"fixed{k}", plane) for k, plane in enumerate(fixed)]
        top = register("fixed", "top_fixed", top)

        # limits of the block
        high = register("limits", "high", largest(m, fixed, everyone))
        low = register("limits", "low", ~largest(m, [~plane for plane in fixed], everyone))
        fixed = [register("limits", f"fixed_limits{k}", plane) for k, plane in enumerate(fixed)]
        top = register("limits", "top_limits", top)

        # thresholds between the levels
        thresholds = self._thresholds(m, low, high)
        thresholds = [register("thresholds", f"threshold{k}", t) for k, t in enumerate(thresholds, 1)]
        fixed = [register("thresholds", f"fixed_thresholds{k}", plane) for k, plane in enumerate(fixed)]
        low, high = register("thresholds", "low_th", low), register("thresholds", "high_th", high)
        top = register("thresholds", "top_thresholds", top)

        codes = self._search(m, fixed, thresholds)
        result, is_nan = Signal(self.y.shape()), top.all()
        flip = Const(1 << FIXED_BITS - 1, FIXED_BITS)
        m.d.comb += [
            result.header.exponent.eq(top),
            result.header.low.eq(Mux(is_nan, 0, low ^ flip)),
            result.header.high.eq(Mux(is_nan, 0, high ^ flip)),
            Value.cast(result.codes).eq(Mux(is_nan, 0, Cat(plane[k] for k in range(self.lanes) for plane in codes))),
        ]
        m.d.comb += Value.cast(self.y).eq(register("result", "y_result", Value.cast(result)))
        return m

    def _to_fixed(
        self, m: Module, significand: Sequence[Value], not_distance: Sequence[Value], sign: Value
    ) -> list[Value]:
        """Significands shifted right by their distance and rounded to nearest, ties away from zero, with their sign."""
        zeros = Const(0, self.lanes)
        value = [zeros] * (GUARD_BITS + 1) + list(significand)
        for k, keep in enumerate(not_distance):
            shifted = [*value[1 << k :], *[zeros] * (1 << k)]
            value = [node(m, f"by{1 << k}", keep & x | ~keep & y) for x, y in zip(value, shifted, strict=True)]
        # -(u + half) = ~u + (1 - half): one increment rounds and completes the two's complement
        half, upper = value[0], value[1:]
        total = increment(m, [*(node(m, "signed", plane ^ sign) for plane in upper), sign], node(m, "up", half ^ sign))
        return [*total[:-1], node(m, "offset", ~total[-1])]

    def _thresholds(self, m: Module, low: Value, high: Value) -> list[Value]:
        """Threshold k, from 1 on: the largest number that has a code below k."""
        steps, span = Steps(self.bits), Signal(FIXED_BITS)
        m.d.comb += span.eq((high - low)[:FIXED_BITS])
        quotient, remainder = steps.division.of(m, "span", span)
        results: list[Value] = []
        for k in range(1, steps.steps + 1):
            threshold = Signal(FIXED_BITS, name=f"threshold{k}_sum")
            m.d.comb += threshold.eq((low + steps.multiple(quotient, remainder, 2 * k - 1))[:FIXED_BITS])
            results.append(threshold)
        return results

    def _search(self, m: Module, fixed: Sequence[Value], thresholds: Sequence[Value]) -> list[Value]:
        """Planes of the codes, lowest first: the number of thresholds below the number of a lane."""
        level_bits: list[Value] = []  # highest bit first
        for bit in reversed(range(self.bits)):
            greater: Value = Const(0, self.lanes)
            candidates = thresholds[(1 << bit) - 1 :: 2 << bit]
            for k, x in enumerate(fixed):
                threshold = choose(m, level_bits, [candidate[k] for candidate in candidates])
                threshold = node(m, "bound", threshold.replicate(self.lanes // len(threshold)))
                greater = node(m, "greater", x & ~threshold | ~(x ^ threshold) & greater)
            level_bits.append(greater)
        return level_bits[::-1]


class KvEncoder(wiring.Component):
    """Encodes the keys and values of the KV cache with stream interfaces: a word of BF16 codes is one block.

    The word becomes a code of `bits` bits for each element and a header of 32 bits. The numbers of the word are shifted
    to its largest exponent. The header holds this exponent, the minimum and the maximum. A code is the number of the
    nearest of 2**`bits` levels from the minimum to the maximum.

    Timing: `latency` cycles from `i` to `o`, one word per cycle when `o` does not stall: n words take n + `latency`
    cycles. `i.ready` depends on registers only. There is no combinational path from input to output.

    Numerics: as `golden.kv_formats.Affine`, bit for bit. A fixed-point number has three bits more than a significand
    and is rounded to nearest, ties away from zero. The lower of two equally near levels wins. Subnormals are zero. An
    infinity or a NaN in a word gives the exponent 255, and all other bits are 0.

    Parameters
    ----------
    lanes : elements of a word, a power of two
    bits : bits of a code, 2 to 4
    registers : as `EncoderCore`

    Members
    -------
    i : stream of words of `lanes` BF16 codes
    o : stream of encoded words: `codes`, `header` with `exponent`, `low` and `high`

    Raises
    ------
    ValueError
        When a parameter is outside its range.
    """

    def __init__(self, *, lanes: int, bits: int = 4, registers: Iterable[str] = POSITIONS):
        check_sizes(lanes, bits)
        self.lanes, self.bits = lanes, bits
        self.registers = RegisterStages(POSITIONS, registers)
        super().__init__(
            {
                "i": In(stream.Signature(data.ArrayLayout(BF16.size, lanes))),
                "o": Out(stream.Signature(packed_layout(lanes, bits))),
            }
        )

    @classmethod
    def from_config(cls, config: Config) -> "KvEncoder":
        """The encoder of memory words."""
        return cls(lanes=config.dpe_inputs)

    @property
    def latency(self) -> int:
        """Cycles from a word of `i` to its word of `o`."""
        return self.registers.latency + 2

    @property
    def timing(self) -> dict[str, object]:
        """Latency and throughput. The JSON file of the generated unit contains them."""
        return {"latency": self.latency, "words_per_cycle": 1}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.core = core = EncoderCore(lanes=self.lanes, bits=self.bits, registers=self.registers.selected)
        m.submodules.gate = gate = CreditGate(self.o.payload.shape(), stages=core.latency)
        m.d.comb += [
            Value.cast(core.x).eq(to_planes(m, "x", self.i.payload)),
            core.take.eq(gate.take),
            self.i.ready.eq(gate.ready),
            gate.take.eq(self.i.valid & gate.ready),
            gate.done.eq(core.done),
            gate.result.eq(core.y),
        ]
        wiring.connect(m, gate.o, wiring.flipped(self.o))
        return m
