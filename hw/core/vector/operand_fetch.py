"""Operand fetch of the VECTOR unit: input rows from memory as beats of FP32 codes."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi.engines import read_word_layout
from hw.axi.ports import JOB, WORD_ADDRESS_BITS
from hw.core.lengths import LENGTH_BITS
from hw.core.retrieval.mean_updates import MEAN_UPDATE, MeanOp
from hw.core.vector.command import VECTOR_COMMAND, hold_command, row_length

MAX_OPEN_JOBS = 8  # read jobs whose words have not all arrived


class OperandFetch(wiring.Component):
    """Requests the input of each command and converts its words to beats of the vector engine.

    VECTOR: row `a`, with `a_again` twice, and with `b_used` row `b` of every repetition, BF16 (one word per beat) or
    FP32 (two words per beat). MEANS: the old mean of a cluster, then the new keys.

    Timing: one read job per cycle; one word per cycle, BF16 words pass through in the same cycle.

    Parameters
    ----------
    beat : layout of a beat of the engine
    width : lanes of the engine = BF16 elements of a memory word
    key_words : words of the key of one token, all KV heads

    Members
    -------
    command : stream of VECTOR_COMMAND
    update : stream of MEAN_UPDATE
    mean_keys_base : word address of the mean keys
    job, words : read engine
    o : stream of beats
    """

    def __init__(self, *, beat: data.Layout, width: int, key_words: int):
        self.width, self.key_words = width, key_words
        self.word = 16 * width
        super().__init__(
            {
                "command": In(stream.Signature(VECTOR_COMMAND)),
                "update": In(stream.Signature(MEAN_UPDATE)),
                "mean_keys_base": In(WORD_ADDRESS_BITS),
                "job": Out(stream.Signature(JOB)),
                "words": In(stream.Signature(read_word_layout(self.word))),
                "o": Out(stream.Signature(beat)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        command, busy, start = hold_command(m, self.command)
        # for every open job, whether its words are FP32
        m.submodules.formats = formats = SyncFIFOBuffered(width=1, depth=MAX_OPEN_JOBS)
        request, wide = Signal(), Signal()
        m.d.comb += [
            formats.w_data.eq(wide),
            self.job.valid.eq(request & formats.w_rdy),
            formats.w_en.eq(self.job.valid & self.job.ready),
        ]
        self._request_rows(m, command, busy, start, request, wide)
        with m.If(command.is_means):
            self._request_keys(m, command, busy, request, formats)
        self._unpack(m, formats)
        return m

    def _request_rows(
        self, m: Module, command: data.View, busy: Signal, start: Signal, request: Signal, wide: Signal
    ) -> None:
        """Read jobs of VECTOR: for every repetition row `a`, once or twice, then row `b`."""
        job, payload = self.job, self.command.payload
        repetition, again, is_b, row_done = Signal(16), Signal(), Signal(), Signal()
        a_address, b_address = Signal(WORD_ADDRESS_BITS), Signal(WORD_ADDRESS_BITS)
        row_beats, _ = row_length(m, command, start, row_done, self.width)
        beats, fixed_beats = Signal(LENGTH_BITS), Mux(is_b, command.b_beats, command.a_beats)
        read_again, sent, next_row = ~is_b & command.a_again & ~again, Signal(), Signal()
        with m.If(~command.is_means):
            m.d.comb += [
                beats.eq(Mux(fixed_beats == 0, row_beats, fixed_beats)),
                request.eq(busy & (repetition != command.repeat)),
                wide.eq(Mux(is_b, command.b_wide, command.a_wide)),
                job.payload.address.eq(Mux(is_b, b_address, a_address)),
                job.payload.count.eq(Mux(wide, beats << 1, beats)),
                sent.eq(job.valid & job.ready),
            ]
        m.d.comb += [next_row.eq(sent & ~read_again), row_done.eq(next_row & (is_b | ~command.b_used))]
        with m.If(start):
            m.d.sync += [repetition.eq(0), again.eq(0), is_b.eq(0), a_address.eq(payload.a), b_address.eq(payload.b)]
        with m.If(sent):
            m.d.sync += again.eq(read_again)
        with m.If(next_row):
            m.d.sync += is_b.eq(~row_done)
        with m.If(next_row & ~is_b):
            m.d.sync += a_address.eq((a_address + command.a_stride)[:WORD_ADDRESS_BITS])
        with m.If(next_row & is_b):
            m.d.sync += b_address.eq((b_address + command.b_stride)[:WORD_ADDRESS_BITS])
        with m.If(row_done):
            m.d.sync += repetition.eq(repetition + 1)
        with m.If(busy & ~command.is_means & (repetition == command.repeat)):
            m.d.sync += busy.eq(0)

    def _request_keys(
        self, m: Module, command: data.View, busy: Signal, request: Signal, formats: SyncFIFOBuffered
    ) -> None:
        """Read jobs of MEANS: the old mean of a cluster unless it is new, and each new key."""
        job, update = self.job, self.update.payload
        is_load = update.op == MeanOp.LOAD
        reads = Mux(is_load, ~update.opened, update.op == MeanOp.ADD)
        mean = self.mean_keys_base + update.cluster * self.key_words
        key = command.keys + update.token * command.key_stride
        m.d.comb += [
            request.eq(busy & self.update.valid & reads),
            job.payload.address.eq(Mux(is_load, mean, key)[:WORD_ADDRESS_BITS]),
            job.payload.count.eq(self.key_words),
            self.update.ready.eq(busy & (~reads | (job.ready & formats.w_rdy))),
        ]
        with m.If(self.update.valid & self.update.ready & (update.op == MeanOp.STORE) & update.last):
            m.d.sync += busy.eq(0)

    def _unpack(self, m: Module, formats: SyncFIFOBuffered) -> None:
        """Beats from words: BF16 elements become FP32 codes, two words with FP32 codes are joined."""
        words, wide = self.words, formats.r_data
        lower_word, second, complete = Signal(self.word), Signal(), Signal()
        widened = Cat(Cat(Const(0, 16), words.payload.data.word_select(k, 16)) for k in range(self.width))
        m.d.comb += [
            complete.eq(formats.r_rdy & words.valid & (~wide | second)),
            self.o.valid.eq(complete),
            self.o.payload.as_value().eq(Mux(wide, Cat(lower_word, words.payload.data), widened)),
            words.ready.eq(formats.r_rdy & ((wide & ~second) | self.o.ready)),
            formats.r_en.eq(words.valid & words.ready & words.payload.last),
        ]
        with m.If(words.valid & words.ready & wide):
            m.d.sync += [lower_word.eq(words.payload.data), second.eq(~second)]
