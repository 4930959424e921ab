"""Decoder of the KV cache: codes of a few bits and a header become a word of BF16 codes."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.dot import node
from hw.arith.formats import BF16, canonical_nan, normalise, round_and_pack
from hw.common.pipeline import CreditGate
from hw.config import Config
from hw.kv_codec.affine import FIXED_BITS, HEADER, Steps, check_sizes, choose, packed_layout

STAGES = 2  # pipeline registers before the output queue: division of the span | levels


class KvDecoder(wiring.Component):
    """Decodes the keys and values of the KV cache with stream interfaces: the reverse of `KvEncoder`.

    The 2**`bits` levels of a word are computed once, as BF16 codes. An element selects one of them after the output
    queue, which therefore holds levels and codes and not the wide word.

    Timing: `latency` cycles from `i` to `o`, one word per cycle when `o` does not stall: n words take n + `latency`
    cycles. `i.ready` depends on registers only. There is no combinational path from input to output.

    Numerics: as `golden.kv_formats.Affine`, bit for bit, for headers of an encoder. A level is an integer that is
    rounded to BF16, to nearest even. Results below the smallest normal number are zero. The exponent 255 gives the
    canonical NaN in all elements.

    Parameters
    ----------
    lanes : elements of a word, a power of two
    bits : bits of a code, 2 to 4

    Members
    -------
    i : stream of encoded words: `codes`, `header` with `exponent`, `low` and `high`
    o : stream of words of `lanes` BF16 codes

    Raises
    ------
    ValueError
        When a parameter is outside its range.
    """

    latency = STAGES + 2  # cycles from a word of `i` to its word of `o`

    def __init__(self, *, lanes: int, bits: int = 4):
        check_sizes(lanes, bits)
        self.lanes, self.bits = lanes, bits
        self.steps = Steps(bits)
        levels = data.ArrayLayout(BF16.size, 1 << bits)
        self.result = data.StructLayout({"codes": data.ArrayLayout(bits, lanes), "levels": levels})
        super().__init__(
            {
                "i": In(stream.Signature(packed_layout(lanes, bits))),
                "o": Out(stream.Signature(data.ArrayLayout(BF16.size, lanes))),
            }
        )

    @classmethod
    def from_config(cls, config: Config) -> "KvDecoder":
        """The decoder of memory words."""
        return cls(lanes=config.dpe_inputs)

    @property
    def timing(self) -> dict[str, object]:
        """Latency and throughput. The JSON file of the generated unit contains them."""
        return {"latency": self.latency, "words_per_cycle": 1}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.gate = gate = CreditGate(self.result, stages=STAGES)

        # division of the span
        header, span = self.i.payload.header, Signal(FIXED_BITS)
        m.d.comb += span.eq((header.high - header.low)[:FIXED_BITS])
        quotient, remainder = self.steps.division.of(m, "span", span)
        quotient_d, remainder_d = Signal.like(quotient, reset_less=True), Signal.like(remainder, reset_less=True)
        header_d = Signal(HEADER, reset_less=True)
        codes_d = Signal(len(Value.cast(self.i.payload.codes)), reset_less=True)
        valid = Signal()
        m.d.sync += valid.eq(gate.take)
        with m.If(gate.take):
            m.d.sync += [
                quotient_d.eq(quotient),
                remainder_d.eq(remainder),
                header_d.eq(header),
                codes_d.eq(Value.cast(self.i.payload.codes)),
            ]

        # levels
        levels = [self._level(m, k, header_d, quotient_d, remainder_d) for k in range(1 << self.bits)]
        result, done = Signal(self.result, reset_less=True), Signal()
        m.d.sync += done.eq(valid)
        with m.If(valid):
            m.d.sync += [Value.cast(result.levels).eq(Cat(*levels)), Value.cast(result.codes).eq(codes_d)]

        m.d.comb += [
            self.i.ready.eq(gate.ready),
            gate.take.eq(self.i.valid & gate.ready),
            gate.done.eq(done),
            gate.result.eq(result),
            self.o.valid.eq(gate.o.valid),
            gate.o.ready.eq(self.o.ready),
            Value.cast(self.o.payload).eq(self._select(m, gate.o.payload)),
        ]
        return m

    def _level(self, m: Module, k: int, header: data.View, quotient: Value, remainder: Value) -> Value:
        """Level k as a BF16 code."""
        fixed = Signal(FIXED_BITS, name=f"fixed{k}")
        offset = self.steps.multiple(quotient, remainder, 2 * k, self.steps.steps)
        m.d.comb += fixed.eq(header.high if k == self.steps.steps else (header.low + offset)[:FIXED_BITS])
        sign, magnitude = fixed[-1], Signal(FIXED_BITS - 1, name=f"magnitude{k}")
        m.d.comb += magnitude.eq(Mux(sign, -fixed, fixed)[: len(magnitude)])
        normal, shift = normalise(m, f"level{k}", magnitude)
        exponent = Signal(signed(10), name=f"exponent{k}")
        m.d.comb += exponent.eq(header.exponent - shift)
        return Mux(header.exponent.all(), canonical_nan(BF16), round_and_pack(m, BF16, sign, exponent, normal))

    def _select(self, m: Module, result: data.View) -> Value:
        """The level of each element."""
        codes = node(m, "codes", Value.cast(result.codes))
        selected = [codes[k :: self.bits] for k in reversed(range(self.bits))]  # one bit per lane, highest first
        selected = [node(m, "selected", plane) for plane in selected]
        planes = [
            choose(m, selected, [result.levels[level][k] for level in range(1 << self.bits)]) for k in range(BF16.size)
        ]
        return Cat(plane[lane] for lane in range(self.lanes) for plane in planes)
