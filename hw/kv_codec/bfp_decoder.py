"""Decoder of the KV cache with 8-bit codes: integers and four exponents become a word of BF16 codes."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.formats import BF16, canonical_nan, normalise, zero
from hw.common.pipeline import CreditGate
from hw.config import Config
from hw.kv_codec.bfp import BITS, HEADER, QUARTERS, check_lanes, packed_layout

STAGES = 1  # pipeline registers before the output queue: sign, significand, shift

# A number of BF16 without its exponent: `fraction` without the hidden one; `shift`: exponent of the quarter minus that
# of the number.
ELEMENT = data.StructLayout({"fraction": BITS - 2, "shift": 3, "nonzero": 1, "sign": 1})


class BfpDecoder(wiring.Component):
    """Decodes the keys and values of the KV cache with stream interfaces: the reverse of `BfpEncoder`.

    After the output queue, the shift of each element is subtracted from the exponent of its quarter. The queue has
    therefore fewer bits than a word of BF16 codes.

    ```
    i ─> magnitude, normalise ─> |reg| ─> queue of fractions and shifts ─> exponent of each element ─> o
    ```

    Timing: `latency` cycles from `i` to `o`, one word per cycle when `o` does not stall: n words take n + `latency`
    cycles. `i.ready` depends on registers only. There is no combinational path from input to output.

    Numerics: as `golden.kv_formats.BlockFloat`, bit for bit, for codes of an encoder, which are never -128. Results are
    exact; those below the smallest normal number are zeros of their sign. Code 0 is +0. The exponent 255 gives the
    canonical NaN in all elements of its quarter.

    Parameters
    ----------
    lanes : elements of a word, a power of two, at least 4

    Members
    -------
    i : stream of encoded words: `codes`, `header` with four exponents
    o : stream of words of `lanes` BF16 codes

    Raises
    ------
    ValueError
        When `lanes` is outside its range.
    """

    latency = STAGES + 2  # cycles from a word of `i` to its word of `o`

    def __init__(self, *, lanes: int):
        check_lanes(lanes)
        self.lanes = lanes
        self.result = data.StructLayout({"elements": data.ArrayLayout(ELEMENT, lanes), "header": HEADER})
        super().__init__(
            {
                "i": In(stream.Signature(packed_layout(lanes))),
                "o": Out(stream.Signature(data.ArrayLayout(BF16.size, lanes))),
            }
        )

    @classmethod
    def from_config(cls, config: Config) -> "BfpDecoder":
        """The decoder of memory words."""
        return cls(lanes=config.dpe_inputs)

    @property
    def timing(self) -> dict[str, object]:
        """Latency and throughput. The JSON file of the generated unit contains them."""
        return {"latency": self.latency, "words_per_cycle": 1}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.gate = gate = CreditGate(self.result, stages=STAGES)
        result, done = Signal(self.result, reset_less=True), Signal()
        elements = [self._element(m, lane, self.i.payload.codes[lane]) for lane in range(self.lanes)]
        m.d.sync += done.eq(gate.take)
        with m.If(gate.take):
            m.d.sync += [Value.cast(result.elements).eq(Cat(*elements)), result.header.eq(self.i.payload.header)]

        size = self.lanes // QUARTERS
        queued = gate.o.payload
        numbers = [
            self._number(m, lane, queued.elements[lane], queued.header[lane // size]) for lane in range(self.lanes)
        ]
        m.d.comb += [
            self.i.ready.eq(gate.ready),
            gate.take.eq(self.i.valid & gate.ready),
            gate.done.eq(done),
            gate.result.eq(result),
            self.o.valid.eq(gate.o.valid),
            gate.o.ready.eq(self.o.ready),
            Value.cast(self.o.payload).eq(Cat(*numbers)),
        ]
        return m

    def _element(self, m: Module, lane: int, code: Value) -> Value:
        """A code as the fields of ELEMENT."""
        magnitude = Signal(BITS - 1, name=f"magnitude{lane}")
        m.d.comb += magnitude.eq(Mux(code[-1], -code, code)[: BITS - 1])
        normal, shift = normalise(m, f"code{lane}", magnitude)
        return Cat(normal[:-1], shift, normal[-1], code[-1])

    def _number(self, m: Module, lane: int, element: data.View, header: Value) -> Value:
        """BF16 code of an element under the exponent of its quarter."""
        field, code = Signal(signed(9), name=f"field{lane}"), Signal(BF16.size, name=f"number{lane}")
        m.d.comb += field.eq(header - element.shift)
        with m.If(header.all()):
            m.d.comb += code.eq(canonical_nan(BF16))
        with m.Elif((field <= 0) | ~element.nonzero):
            m.d.comb += code.eq(zero(BF16, element.sign))
        with m.Else():
            m.d.comb += code.eq(Cat(Const(0, 1), element.fraction, field[:8], element.sign))
        return code
