"""Result writer of the VECTOR unit: beats of the engine to memory, hash codes to the HCU."""

# mypy: disable-error-code="assignment,arg-type"

from dataclasses import dataclass

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi.engines import write_word_layout
from hw.axi.ports import JOB, WORD_ADDRESS_BITS
from hw.core.isa import Destination
from hw.core.lengths import LENGTH_BITS
from hw.core.retrieval.mean_updates import MEAN_UPDATE, MeanOp
from hw.core.retrieval.retrieval_unit import HASH_CODE
from hw.core.vector.command import VECTOR_COMMAND, hold_command, row_length

MAX_UNACKNOWLEDGED = 4  # commands whose results are sent and not yet acknowledged by memory


@dataclass(frozen=True)
class _Progress:
    """Progress within the current command: signals that the methods of `ResultWriter` share.

    Attributes
    ----------
    command, busy : the current command
    row, beat : repetition and beat of the current result
    row_beats : beats with results of the current row, computed from the length of the command
    destination : a `Destination`
    last_row : the current row is the last one
    all_rows_sent : all rows of the command are sent
    row_done : a row of variable length ends in this cycle; rows of hash codes have one beat and do not set it
    """

    command: data.View
    busy: Signal
    row: Signal
    beat: Signal
    row_beats: Value
    destination: Value
    last_row: Signal
    all_rows_sent: Signal
    row_done: Signal


class ResultWriter(wiring.Component):
    """Sends the results of each command to its destination and reports the commands that are complete, in order.

    Memory: BF16 or FP32 words; zeros fill a row from its length up to its padded length. Hash codes: lane 0 of each
    row. MEANS writes one mean key per MeanOp.STORE; its last update is always a STORE.

    A command that writes to memory is complete when memory has acknowledged its last word. A command for the HCU is
    complete when its last result is accepted. A command without output is reported as complete when it starts, because
    the unit executes its commands in order.

    Timing: one word or one hash code per cycle, and one more cycle per row for the write job.

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
    i : stream of beats
    job, words : write engine
    write_done : the write engine has completed the last job of a command
    codes : stream of HASH_CODE
    complete : a command is complete
    """

    def __init__(self, *, beat: data.Layout, width: int, key_words: int):
        self.width, self.key_words = width, key_words
        self.word = 16 * width
        super().__init__(
            {
                "command": In(stream.Signature(VECTOR_COMMAND)),
                "update": In(stream.Signature(MEAN_UPDATE)),
                "mean_keys_base": In(WORD_ADDRESS_BITS),
                "i": In(stream.Signature(beat)),
                "job": Out(stream.Signature(JOB)),
                "words": Out(stream.Signature(write_word_layout(self.word))),
                "write_done": In(1),
                "codes": Out(stream.Signature(HASH_CODE)),
                "complete": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        command, busy, start = hold_command(m, self.command)
        row, beat, row_done = Signal(16), Signal(LENGTH_BITS), Signal()
        row_beats, _ = row_length(m, command, start, row_done, self.width)
        destination = Mux(command.is_means, Destination.MEMORY, command.destination)
        last_row, all_rows_sent = Signal(), Signal()
        m.d.comb += [
            last_row.eq(Mux(command.is_means, self.update.payload.last, row + 1 == command.repeat)),
            all_rows_sent.eq(~command.is_means & (row == command.repeat)),
        ]
        with m.If(start):
            m.d.sync += [row.eq(0), beat.eq(0)]
        p = _Progress(command, busy, row, beat, row_beats, destination, last_row, all_rows_sent, row_done)
        memory_accepts, memory_row_done = self._write_memory(m, p, start)
        hcu_accepts = self._send_codes(m, p)
        m.d.comb += self.i.ready.eq(Mux(destination == Destination.CODES, hcu_accepts, memory_accepts))
        self._report(m, p, memory_row_done)
        return m

    def _write_memory(self, m: Module, p: _Progress, start: Signal) -> tuple[Value, Signal]:
        """Rows to memory. Returns: the beat is accepted; the row ends in this cycle."""
        command, beat = p.command, p.beat
        address, requested, second = Signal(WORD_ADDRESS_BITS), Signal(), Signal()  # second word of an FP32 beat
        # variable_length: `out_beats` is 0, so the length of the row is that of the command
        variable_length, has_results, is_fp32 = Signal(), Signal(), Signal()
        result_beats, total_beats = Signal(LENGTH_BITS), Signal(LENGTH_BITS)
        has_row, writes, word_sent, beat_sent, row_sent = Signal(), Signal(), Signal(), Signal(), Signal()
        mean_address = self.mean_keys_base + self.update.payload.cluster * self.key_words
        is_store = self.update.payload.op == MeanOp.STORE
        m.d.comb += [
            variable_length.eq((command.out_beats == 0) & ~command.is_means),
            result_beats.eq(
                Mux(command.is_means, self.key_words, Mux(variable_length, p.row_beats, command.out_beats))
            ),
            total_beats.eq(Mux(variable_length, command.padded_beats, result_beats)),
            has_results.eq(beat < result_beats),
            is_fp32.eq(command.out_wide & ~command.is_means),
            has_row.eq(~command.is_means | (self.update.valid & is_store)),
            writes.eq(p.busy & (p.destination == Destination.MEMORY) & ~p.all_rows_sent & has_row),
            self.job.valid.eq(writes & ~requested),
            self.job.payload.address.eq(Mux(command.is_means, mean_address, address)[:WORD_ADDRESS_BITS]),
            self.job.payload.count.eq(Mux(is_fp32, total_beats << 1, total_beats)),
            self.job.payload.last.eq(p.last_row),
            self.words.valid.eq(writes & requested & (self.i.valid | ~has_results)),
            self.words.payload.data.eq(self._word(p, variable_length, has_results, is_fp32, second)),
            self.words.payload.strobe.eq(-1),
            word_sent.eq(self.words.valid & self.words.ready),
            beat_sent.eq(word_sent & (second | ~is_fp32)),
            row_sent.eq(beat_sent & (beat + 1 == total_beats)),
            self.update.ready.eq(p.busy & command.is_means & (~is_store | row_sent)),
        ]
        with m.If(start):
            m.d.sync += [address.eq(self.command.payload.out), requested.eq(0)]
        with m.If(self.job.valid & self.job.ready):
            m.d.sync += requested.eq(1)
        with m.If(word_sent & is_fp32):
            m.d.sync += second.eq(~second)
        with m.If(beat_sent):
            m.d.sync += beat.eq(beat + 1)
        with m.If(row_sent):
            m.d.comb += p.row_done.eq(1)
            m.d.sync += [beat.eq(0), p.row.eq(p.row + 1), requested.eq(0)]
            m.d.sync += address.eq((address + command.out_stride)[:WORD_ADDRESS_BITS])
        return beat_sent & has_results, row_sent

    def _word(
        self, p: _Progress, variable_length: Signal, has_results: Signal, is_fp32: Signal, second: Signal
    ) -> Value:
        """The current word: FP32 codes of half the lanes, or the BF16 numbers of all; elements beyond the row are 0."""
        first_element = p.beat << (self.width.bit_length() - 1)
        keep = [~variable_length | (first_element + k < p.command.elements) for k in range(self.width)]
        lanes = [Mux(bit & has_results, self.i.payload[k], 0) for k, bit in enumerate(keep)]
        fp32, bf16 = Cat(*lanes), Cat(lane[16:] for lane in lanes)
        return Mux(is_fp32, Mux(second, fp32[self.word :], fp32[: self.word]), bf16)

    def _send_codes(self, m: Module, p: _Progress) -> Signal:
        """Hash codes to the HCU, one beat per row. Returns: the beat is accepted."""
        accepted = Signal()
        m.d.comb += [
            self.codes.valid.eq(p.busy & (p.destination == Destination.CODES) & ~p.all_rows_sent & self.i.valid),
            self.codes.payload.hash.eq(self.i.payload[0]),
            self.codes.payload.query.eq(p.command.flag),
            self.codes.payload.last.eq(p.last_row),
            accepted.eq(self.codes.valid & self.codes.ready),
        ]
        with m.If(accepted):
            m.d.sync += p.row.eq(p.row + 1)
        return accepted

    def _report(self, m: Module, p: _Progress, memory_row_done: Signal) -> None:
        """Completion of commands, in order; one that writes to memory waits for the acknowledgement."""
        # one bit per command whose results are sent: 1 if it waits for `write_done`
        m.submodules.pending = pending = SyncFIFOBuffered(width=1, depth=MAX_UNACKNOWLEDGED)
        means_sent, acknowledgements = Signal(), Signal(range(MAX_UNACKNOWLEDGED + 2))
        command = p.command
        with m.If(command.is_means & memory_row_done & self.update.payload.last):
            m.d.sync += means_sent.eq(1)
        no_output = p.destination == Destination.NONE
        m.d.comb += [
            pending.w_en.eq(p.busy & Mux(command.is_means, means_sent, no_output | p.all_rows_sent)),
            pending.w_data.eq((p.destination == Destination.MEMORY) & (command.is_means | (command.repeat != 0))),
            self.complete.eq(pending.r_rdy & (~pending.r_data | (acknowledgements != 0))),
            pending.r_en.eq(self.complete),
        ]
        uses_acknowledgement = self.complete & pending.r_data
        count = acknowledgements + self.write_done - uses_acknowledgement
        m.d.sync += acknowledgements.eq(count[: len(acknowledgements)])
        with m.If(pending.w_en & pending.w_rdy):
            m.d.sync += [p.busy.eq(0), means_sent.eq(0)]
