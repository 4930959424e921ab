"""Slots of the current piece of a step: where the keys and values of its tokens go in the KV cache."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Array, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.ports import WORD_ADDRESS_BITS
from hw.dre.kvmu.command import Op


class StepSlots(wiring.Component):
    """Records the slot of each token of a piece.

    The first APPEND reply after the keys and values of a piece are stored starts the next piece. The first one after
    the end of a step also starts the next step.

    Timing: a reply is recorded in one cycle; `slot_word` and `slot` are combinational.

    Parameters
    ----------
    reply : layout of a reply of the KV prediction unit
    word_bytes : bytes of a memory word
    max_tokens : largest number of tokens of a piece
    slot_bits : width of the number of a slot in its block, see `hw.kv_codec.page_layout`

    Members
    -------
    reply : stream of replies
    slot_index, slot_word : token of the piece, and the first word of its block (KV head 0)
    slot : its slot in the block
    tokens : tokens of the piece that have a slot
    stored : keys and values of all tokens of the piece are in their slots
    pending : slots are assigned, keys and values are not stored yet
    step_starts : the current reply starts a step
    """

    def __init__(self, *, reply: data.StructLayout, word_bytes: int, max_tokens: int, slot_bits: int = 0):
        self.word_bytes, self.max_tokens, self.slot_bits = word_bytes, max_tokens, slot_bits
        super().__init__(
            {
                "reply": In(stream.Signature(reply, always_ready=True)),
                "slot_index": In(range(max_tokens)),
                "slot_word": Out(WORD_ADDRESS_BITS),
                **({"slot": Out(slot_bits)} if slot_bits else {}),
                "tokens": Out(range(max_tokens + 1)),
                "stored": In(1),
                "pending": Out(1),
                "step_starts": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        reply, valid = self.reply.payload, self.reply.valid
        slots = [Signal(WORD_ADDRESS_BITS, name=f"slot{n}") for n in range(self.max_tokens)]
        step_over = Signal(init=1)  # between two steps
        index, append = Mux(self.pending, self.tokens, 0), valid & (reply.op == Op.APPEND)
        word = reply.address >> (self.word_bytes.bit_length() - 1)
        m.d.comb += self.step_starts.eq(append & step_over)
        with m.If(append):
            m.d.sync += [step_over.eq(0), self.tokens.eq(index + 1), self.pending.eq(1)]
            for n, slot in enumerate(slots):
                with m.If(index == n):
                    m.d.sync += slot.eq(word)
        with m.If(self.stored):
            m.d.sync += self.pending.eq(0)
        with m.If(valid & reply.last & ((reply.op == Op.STEP) | (reply.op == Op.OPEN))):
            m.d.sync += step_over.eq(1)
        m.d.comb += self.slot_word.eq(Array(slots)[self.slot_index])
        if self.slot_bits:
            self._record_slots(m, append, index)
        return m

    def _record_slots(self, m: Module, append: Value, index: Value) -> None:
        """Slots of the tokens in their blocks."""
        slots = [Signal(self.slot_bits, name=f"block_slot{n}") for n in range(self.max_tokens)]
        for n, slot in enumerate(slots):
            with m.If(append & (index == n)):
                m.d.sync += slot.eq(self.reply.payload.slot[: self.slot_bits])
        m.d.comb += self.slot.eq(Array(slots)[self.slot_index])
