"""Candidates of the hash clustering unit, read from the cluster records of the opened context."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Cat, Const, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.engines import read_word_layout
from hw.axi.gearbox import Gearbox
from hw.axi.ports import COUNT_BITS as JOB_BITS
from hw.axi.ports import JOB
from hw.dre.kvmu.command import candidate_layout
from hw.dre.kvmu.records import BLOCK_BITS, CLUSTER_RECORD, CONTEXT_HEADER, cluster_block
from hw.dre.kvmu.undo_log import word_address


class CandidateLoader(wiring.Component):
    """Sends the cluster records from `first_candidate` on, read with one job past the cache.

    It works during OPEN, when the cache is empty but for lines of headers, so memory has the newest records. Records at
    the start whose first token has left the window are skipped; the new `first_candidate` is reported and goes to the
    register of the context header. The hash clustering unit gets BEGIN with the number of the next token, then every
    record as LOAD.

    Timing: one record or one memory word per cycle, whichever is larger, after the latency of memory.

    Parameters
    ----------
    word : bits of a memory word
    cluster_bits, hash_bits : widths in `candidate_layout`
    window_bits : width of the window

    Members
    -------
    start, done : the dispatcher requests the candidates of `context` and holds `start` until `done`, one cycle
    first_candidate : first candidate of the context, valid with `done`
    o : stream of `candidate_layout`
    read_job, read_words : a read engine, shared with the line cache, which has no job at this time
    cfg_window_tokens : setting of the KVMU
    """

    def __init__(self, *, word: int, cluster_bits: int, hash_bits: int, window_bits: int):
        self.word = word
        self.candidate = candidate_layout(cluster_bits=cluster_bits, hash_bits=hash_bits)
        super().__init__(
            {
                "start": In(1),
                "done": Out(1),
                "context": In(CONTEXT_HEADER),
                "first_candidate": Out(32),
                "o": Out(stream.Signature(self.candidate)),
                "read_job": Out(stream.Signature(JOB)),
                "read_words": In(stream.Signature(read_word_layout(word))),
                "cfg_window_tokens": In(window_bits),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.gearbox = gearbox = Gearbox(word=self.word, item=BLOCK_BITS)
        active = Signal()  # the words on the read port are records
        m.d.comb += [
            gearbox.i.valid.eq(self.read_words.valid & active),
            gearbox.i.payload.eq(self.read_words.payload),
            self.read_words.ready.eq(gearbox.i.ready & active),
        ]
        context, beat = self.context, self.o.payload
        record = data.View(CLUSTER_RECORD, Cat(gearbox.o.payload))
        record_valid = gearbox.o.valid
        cluster, skipped = Signal(32), Signal(range(max(2, self.word // BLOCK_BITS)))
        offset_bits = max(0, (self.word // BLOCK_BITS).bit_length() - 1)  # records of a word
        words_per_record = max(1, BLOCK_BITS // self.word)
        first_block = cluster_block(context, context.first_candidate)
        offset = first_block[:offset_bits] if offset_bits else Const(0, 1)
        records = (context.clusters - context.first_candidate)[:JOB_BITS]
        last, expired = Signal(), Signal()
        m.d.comb += [
            last.eq(cluster + 1 == context.clusters),
            expired.eq((self.cfg_window_tokens != 0) & (record.first_token + self.cfg_window_tokens < context.tokens)),
            self.read_job.payload.address.eq(word_address(first_block, self.word)),
            self.read_job.payload.count.eq(
                ((records + offset + (1 << offset_bits) - 1) >> offset_bits)[:JOB_BITS] * words_per_record
            ),
            self.read_job.payload.last.eq(1),
            beat.hash.eq(record.hash[: len(beat.hash)]),
            beat.first_token.eq(record.first_token),
            beat.count.eq(record.count[: len(beat.count)]),
            beat.cluster.eq(cluster[: len(beat.cluster)]),
            beat.tokens.eq(context.tokens),
        ]
        with m.FSM(init="IDLE") as fsm:
            with m.State("IDLE"):
                m.d.sync += [cluster.eq(context.first_candidate), skipped.eq(0)]
                m.d.sync += self.first_candidate.eq(context.first_candidate)
                m.d.comb += self.read_job.valid.eq(self.start & (context.clusters != context.first_candidate))
                with m.If(self.start & (context.clusters == context.first_candidate)):
                    m.next = "BEGIN"
                with m.Elif(self.start & self.read_job.ready):
                    m.next = "ALIGN"
            with m.State("ALIGN"):  # records before the first one in its word
                with m.If(skipped == offset):
                    m.next = "SKIP"
                with m.Else():
                    m.d.comb += gearbox.o.ready.eq(1)
                    with m.If(record_valid):
                        m.d.sync += skipped.eq(skipped + 1)
            with m.State("SKIP"), m.If(record_valid):
                with m.If(~expired):
                    m.next = "BEGIN"
                with m.Else():
                    m.d.comb += gearbox.o.ready.eq(1)
                    m.d.sync += [cluster.eq(cluster + 1), self.first_candidate.eq(cluster + 1)]
                    with m.If(last):
                        m.next = "BEGIN"
            with m.State("BEGIN"):
                none = cluster == context.clusters
                m.d.comb += [
                    self.o.valid.eq(1),
                    beat.begin.eq(1),
                    beat.last.eq(none),
                    beat.hash.eq(0),
                    beat.first_token.eq(0),
                    beat.count.eq(0),
                ]
                with m.If(self.o.ready):
                    m.next = "SEND"
                    with m.If(none):
                        m.next = "DRAIN"
            with m.State("SEND"):
                m.d.comb += [
                    self.o.valid.eq(record_valid),
                    gearbox.o.ready.eq(self.o.ready),
                    beat.last.eq(last),
                ]
                with m.If(record_valid & self.o.ready):
                    m.d.sync += cluster.eq(cluster + 1)
                    with m.If(last):
                        m.next = "DRAIN"
            with m.State("DRAIN"):  # the rest of the last word
                m.d.comb += [gearbox.flush.eq(1), self.done.eq(1)]
                m.next = "IDLE"
            m.d.comb += active.eq(~fsm.ongoing("IDLE"))
        return m
