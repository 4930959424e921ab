"""Undo log of the KVMU: the content that lines of the store had at the start of the step."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.engines import write_word_layout
from hw.axi.ports import JOB, WORD_ADDRESS_BITS
from hw.dre.kvmu.records import BASE_BITS, BLOCK_BITS, TABLE_BYTES, WORD_BITS, resized


def line_layout(line: int) -> data.StructLayout:
    """A line to write: number of its first block, content, and whether a tag line follows it."""
    return data.StructLayout({"address": 32, "content": line, "tagged": 1, "tag": 2 * WORD_BITS})


class LineWriter(wiring.Component):
    """Writes lines to memory, each as one job; a tagged line is followed by a line with its tag.

    Timing: a job of n words takes n + 1 cycles while no stream stalls.

    Parameters
    ----------
    word : bits of a memory word
    line : bits of a line, a multiple of `word`

    Members
    -------
    i : stream of `line_layout` ; the beat is accepted with its last word
    job, words, done : streams to a write engine, and its acknowledgement of a job
    pending : jobs that are not acknowledged
    """

    def __init__(self, *, word: int, line: int):
        self.word, self.line = word, line
        super().__init__(
            {
                "i": In(stream.Signature(line_layout(line))),
                "job": Out(stream.Signature(JOB)),
                "words": Out(stream.Signature(write_word_layout(word))),
                "done": In(1),
                "pending": Out(16),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        beat, line_words = self.i.payload, self.line // self.word
        index, issued = Signal(range(2 * line_words)), Signal()  # next word; the job is issued
        last = Signal()
        content = Cat(beat.content, resized(beat.tag, self.line))
        m.d.comb += [
            self.job.valid.eq(self.i.valid & ~issued),
            self.job.payload.address.eq(word_address(beat.address, self.word)),
            self.job.payload.count.eq(Mux(beat.tagged, 2 * line_words, line_words)),
            self.job.payload.last.eq(1),
            self.words.valid.eq(issued),
            self.words.payload.data.eq(content.word_select(index, self.word)),
            self.words.payload.strobe.eq(Const(-1, self.word // 8)),
            last.eq(index == Mux(beat.tagged, 2 * line_words - 1, line_words - 1)),
            self.i.ready.eq(issued & self.words.ready & last),
        ]
        sent = self.job.valid & self.job.ready
        acknowledged = self.done & (self.pending != 0)
        m.d.sync += self.pending.eq((self.pending + sent - acknowledged)[: len(self.pending)])
        with m.If(sent):
            m.d.sync += issued.eq(1)
        with m.If(issued & self.words.ready):
            m.d.sync += index.eq(index + 1)
            with m.If(last):
                m.d.sync += [index.eq(0), issued.eq(0)]
        return m


def word_address(block: Signal, word: int) -> Signal:
    """Address of the memory word with the first byte of a block."""
    shift = (word // BLOCK_BITS).bit_length() - 1 if word >= BLOCK_BITS else 0
    factor = max(1, BLOCK_BITS // word)
    return resized((block >> shift) * factor, WORD_ADDRESS_BITS)


class UndoLog(wiring.Component):
    """Turns lines that become dirty into entries of the undo log.

    An entry is a line with the old content and a line with its tag: number of the first block of the line, number of
    the step in progress. Entries of a step have consecutive positions from the start of the log. If the log is full,
    further lines are dropped and `full` is 1 until reset.

    Timing: combinational between `i` and `o`.

    Parameters
    ----------
    line : bits of a line

    Members
    -------
    i : stream of {address, content} ; o : stream of `line_layout`
    base, log_entries : start of the log in units of 128 bytes, number of its entries
    step : committed steps
    restart : the step is committed, the log is empty
    full : an entry was dropped; stays 1 until reset
    """

    def __init__(self, *, line: int):
        self.line = line
        super().__init__(
            {
                "i": In(stream.Signature(data.StructLayout({"address": 32, "content": line}))),
                "o": Out(stream.Signature(line_layout(line))),
                "base": In(BASE_BITS),
                "log_entries": In(32),
                "step": In(32),
                "restart": In(1),
                "full": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        used, blocks = Signal(32), self.line // BLOCK_BITS
        room = Signal()
        m.d.comb += [
            room.eq((used < self.log_entries) & ~self.full),
            self.o.valid.eq(self.i.valid & room),
            self.i.ready.eq(self.o.ready | ~room),
            self.o.payload.address.eq(
                (self.base * (TABLE_BYTES // 32) + used * (2 * blocks))[: len(self.o.payload.address)]
            ),
            self.o.payload.content.eq(self.i.payload.content),
            self.o.payload.tagged.eq(1),
            self.o.payload.tag.eq(Cat(self.i.payload.address, (self.step + 1)[:WORD_BITS])),
        ]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += used.eq(used + 1)
        with m.If(self.i.valid & ~room):
            m.d.sync += self.full.eq(1)
        with m.If(self.restart):
            m.d.sync += used.eq(0)
        return m
