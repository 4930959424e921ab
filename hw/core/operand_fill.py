"""Writes the words of the load unit to the operand memory, row by row, as tiles, or transposed; or takes a number."""

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.engines import read_word_layout
from hw.axi.ports import FAULT, Cause
from hw.core.lengths import LENGTH_BITS
from hw.core.transpose import Transposer
from hw.dre.kvmu.records import BLOCK_BITS, CONTEXT_WORDS, HEADER_BLOCKS, WORD_BITS
from hw.lxe.operand_memory import OperandMemory

ROW_BITS = 16

# How the words of one command go to the operand memory.
FILL = data.StructLayout(
    {
        "target": ROW_BITS,  # first row of the operand memory
        "step": ROW_BITS,  # operand rows from one row to the next, unless `tiled`
        "rows": LENGTH_BITS,
        "beats": LENGTH_BITS,  # words of a row
        "activations": 1,  # to the activations, else to the weights
        "tiled": 1,  # the words of a row lie one tile apart
        "transposed": 1,  # through the transposer
        "counts": 1,  # the word is not written: it has the number of clusters of a context
    }
)


class OperandFill(wiring.Component):
    """Writes the words of each command to the operand memory, directly or through the transposer.

    The word of a COUNT is part of the header of a context (`hw.dre.kvmu.records`); its number of clusters is kept.

    Timing: one word in each cycle in which the memory is ready; through the transposer, a block of tokens follows its
    last word by two cycles.

    Parameters
    ----------
    memory : the operand memory
    key_words : words of the key of one token and KV head

    Members
    -------
    fill : stream of FILL; it is accepted when the last word of the command is written
    words : words of a read engine
    write : stream of writes to the operand memory
    counted : clusters of the context of the last COUNT
    complete : the last word of a command is written
    fault : SIZE: a row beyond the operand memory

    Attributes
    ----------
    count_bit : first bit of the number in the word of a COUNT

    Raises
    ------
    ValueError
        A word has more bytes than a header, so that the place of the number depends on the context.
    """

    def __init__(self, memory: OperandMemory, *, key_words: int):
        self.memory, self.key_words = memory, key_words
        self.width = memory.inputs
        self.word = 16 * self.width
        header = HEADER_BLOCKS * BLOCK_BITS
        if self.word > header:
            raise ValueError(f"inputs must be at most {header // 16}, got {self.width}")
        self.count_bit = CONTEXT_WORDS["clusters"] * WORD_BITS % self.word
        super().__init__(
            {
                "fill": In(stream.Signature(FILL)),
                "words": In(stream.Signature(read_word_layout(self.word))),
                "write": Out(stream.Signature(memory.write)),
                "counted": Out(LENGTH_BITS),
                "complete": Out(1),
                "fault": Out(FAULT),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.transposer = transposer = Transposer(width=self.width, row_words=self.key_words)
        fill, words = self.fill.payload, self.words
        beat, row, row_end, last = Signal(LENGTH_BITS), Signal(LENGTH_BITS), Signal(), Signal()
        busy, all_received = Signal(), Signal()  # a command is active; all its words have arrived
        write, written, done, word_received = self.write, Signal(), Signal(), words.valid & words.ready
        m.d.comb += [
            row_end.eq(beat + 1 == fill.beats),
            last.eq(row_end & (row + 1 == fill.rows)),
            transposer.i.payload.data.eq(words.payload.data),
            transposer.i.payload.last.eq(last),
            transposer.cfg_row_words.eq(fill.beats),
            transposer.i.valid.eq(busy & fill.transposed & ~all_received & words.valid),
            transposer.o.ready.eq(write.ready),
            words.ready.eq(
                busy & ~all_received & (fill.counts | Mux(fill.transposed, transposer.i.ready, write.ready))
            ),
            write.valid.eq(busy & ~fill.counts & Mux(fill.transposed, transposer.o.valid, words.valid & ~all_received)),
            written.eq(write.valid & write.ready),
            done.eq(Mux(fill.counts, word_received, written & Mux(fill.transposed, transposer.o.payload.last, last))),
        ]
        with m.If(word_received & fill.counts):
            m.d.sync += self.counted.eq(words.payload.data[self.count_bit : self.count_bit + LENGTH_BITS])
        with m.If(word_received):
            m.d.sync += beat.eq(Mux(row_end, 0, beat + 1))
            with m.If(row_end):
                m.d.sync += row.eq(row + 1)
        with m.If(word_received & last):
            m.d.sync += all_received.eq(1)
        self._write_rows(m, busy, written, row_end, Mux(fill.transposed, transposer.o.payload.data, words.payload.data))

        is_empty = (fill.rows == 0) | (fill.beats == 0)
        m.d.comb += [
            self.complete.eq((busy & done) | (~busy & self.fill.valid & is_empty)),
            self.fill.ready.eq(self.complete),
        ]
        with m.If(~busy):
            m.d.sync += busy.eq(self.fill.valid & ~is_empty)
            m.d.sync += [register.eq(0) for register in (row, beat, all_received)]
        with m.Elif(done):
            m.d.sync += busy.eq(0)
        return m

    def _write_rows(self, m: Module, busy: Signal, written: Signal, row_end: Signal, content: Value) -> None:
        """Row addresses of the operand memory.

        Transposed: consecutive rows. Plain: the words of a row are consecutive, `step` from one row to the next. Tiled:
        the words of a row lie one tile (`width` rows) apart; after `width` rows the next tiles follow.
        """
        fill, tile = self.fill.payload, self.width
        address, row_start = Signal(ROW_BITS), Signal(ROW_BITS)
        tile_row, next_row = Signal(range(tile)), Signal(ROW_BITS)
        capacity = Mux(fill.activations, self.memory.activation_rows, self.memory.weight_rows)
        m.d.comb += [
            self.write.payload.row.eq(address[: len(self.write.payload.row)]),
            self.write.payload.activations.eq(fill.activations),
            self.write.payload.codes.as_value().eq(content),
            next_row.eq(Mux(tile_row == tile - 1, address + 1, row_start + 1)),
        ]
        with m.If(self.write.valid & (address >= capacity)):
            m.d.comb += [self.fault.cause.eq(Cause.SIZE), self.fault.address.eq(address)]
        with m.If(written):
            with m.If(fill.transposed):
                m.d.sync += address.eq(address + 1)
            with m.Elif(~fill.tiled):
                m.d.sync += address.eq(Mux(row_end, row_start + fill.step, address + 1))
                with m.If(row_end):
                    m.d.sync += row_start.eq(row_start + fill.step)
            with m.Elif(~row_end):
                m.d.sync += address.eq(address + tile)
            with m.Else():
                m.d.sync += [tile_row.eq(tile_row + 1), address.eq(next_row), row_start.eq(next_row)]
        with m.If(~busy):
            m.d.sync += [address.eq(fill.target), row_start.eq(fill.target), tile_row.eq(0)]
