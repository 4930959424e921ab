"""Writer of the HC table: its records and token lists as words with byte strobes."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.engines import write_word_layout
from hw.axi.ports import JOB, WORD_ADDRESS_BITS

RECORD_BYTES, INDEX_BYTES, COUNT_BYTES = 16, 4, 2  # writes are a cluster record, a token index or a token count
MAX_UNACKNOWLEDGED = 63  # writes that wait for their acknowledgement


class TableWriter(wiring.Component):
    """Converts each write of the HC table to one job and its words.

    A write that is narrower than a word becomes one word with a strobe for its bytes; a wider one becomes several
    words.

    Timing: one word per cycle; the job and the words are accepted independently.

    Parameters
    ----------
    write : layout of a write: address in bytes, data, number of bytes
    word : bits of a memory word

    Members
    -------
    i : stream of writes
    job, words, write_done : write engine; memory has acknowledged a job
    acknowledged : memory has acknowledged all writes
    """

    def __init__(self, *, write: data.StructLayout, word: int):
        self.word = word
        self.words_per_record = max(1, write["data"].width // word)
        super().__init__(
            {
                "i": In(stream.Signature(write)),
                "job": Out(stream.Signature(JOB)),
                "words": Out(stream.Signature(write_word_layout(word))),
                "write_done": In(1),
                "acknowledged": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        write, word_bytes = self.i.payload, self.word // 8
        shift = word_bytes.bit_length() - 1
        index, offset = Signal(range(max(2, self.words_per_record))), write.address[:shift]
        content, strobe = Signal(self.word), Signal(word_bytes)
        several_words, last_word, word_sent = Signal(), Signal(), self.words.valid & self.words.ready
        # accepted before this cycle; accepted now or before
        job_accepted, words_accepted, job_done, words_done = Signal(), Signal(), Signal(), Signal()
        long_bytes = min(word_bytes, RECORD_BYTES)
        short_mask = Mux(write.bytes == COUNT_BYTES, (1 << COUNT_BYTES) - 1, (1 << INDEX_BYTES) - 1)
        mask = Mux(write.bytes >= long_bytes, (1 << long_bytes) - 1, short_mask)
        open_jobs = Signal(range(MAX_UNACKNOWLEDGED + 1))  # jobs that wait for their acknowledgement
        has_room = open_jobs != MAX_UNACKNOWLEDGED
        m.d.comb += [
            several_words.eq(write.bytes > word_bytes),
            last_word.eq(~several_words | (index == self.words_per_record - 1)),
            content.eq(write.data.word_select(index, min(self.word, 8 * RECORD_BYTES)) << (offset << 3)),
            strobe.eq(mask << offset),
            self.job.valid.eq(self.i.valid & ~job_accepted & has_room),
            self.job.payload.last.eq(1),
            self.acknowledged.eq((open_jobs == 0) & ~self.i.valid),
            self.job.payload.address.eq((write.address >> shift)[:WORD_ADDRESS_BITS]),
            self.job.payload.count.eq(Mux(several_words, self.words_per_record, 1)),
            self.words.valid.eq(self.i.valid & ~words_accepted),
            self.words.payload.data.eq(content),
            self.words.payload.strobe.eq(strobe),
            job_done.eq(job_accepted | (self.job.ready & has_room)),
            words_done.eq(words_accepted | (self.words.ready & last_word)),
            self.i.ready.eq(job_done & words_done),
        ]
        job_sent = self.job.valid & self.job.ready
        m.d.sync += open_jobs.eq((open_jobs + job_sent - self.write_done)[: len(open_jobs)])
        with m.If(self.i.valid):
            m.d.sync += [job_accepted.eq(job_done & ~self.i.ready), words_accepted.eq(words_done & ~self.i.ready)]
            with m.If(word_sent):
                m.d.sync += index.eq(Mux(last_word, 0, index + 1))
        return m
