"""Readers and writers of memory: jobs of consecutive words in, bursts out, words as streams."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi.ports import (
    COUNT_BITS,
    FAULT,
    JOB,
    WORD_BITS,
    Cause,
    Response,
    check_burst,
    read_port,
    request_layout,
    write_port,
)


def words_read(word: int) -> data.StructLayout:
    """What a reader gives."""
    return data.StructLayout({"data": word, "last": 1})


def words_written(word: int) -> data.StructLayout:
    """What a writer takes."""
    return data.StructLayout({"data": word, "strobe": word // 8})


class BurstSplitter(wiring.Component):
    """Cuts jobs into bursts; a job that leaves the region is dropped and reported, one without words vanishes.

    Timing: a burst per cycle, the first one cycle after its job, no gap between jobs.

    Members
    -------
    i : stream of jobs ; o : stream of bursts, `last` on the last one of a job that has it
    limit : words of the region ; halt : nothing is offered any more
    fault : two cycles after the job
    """

    def __init__(self, *, burst: int):
        self.burst = burst
        self.out = data.StructLayout({"request": request_layout(burst), "final": 1, "report": 1})
        super().__init__(
            {
                "i": In(stream.Signature(JOB)),
                "o": Out(stream.Signature(self.out)),
                "limit": In(WORD_BITS + 1),
                "halt": In(1),
                "fault": Out(FAULT),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        rest, active, take = Signal(JOB), Signal(), Signal(range(self.burst + 1))
        room, final, beyond = Signal(range(self.burst + 1)), Signal(), Signal()
        offset_bits = self.burst.bit_length() - 1
        m.d.comb += [
            room.eq(self.burst - rest.address[:offset_bits] if offset_bits else 1),
            final.eq(rest.count <= room),
            take.eq(Mux(final, rest.count, room)),
            self.o.valid.eq(active & ~beyond & ~self.halt),
            self.o.payload.request.address.eq(rest.address),
            self.o.payload.request.length.eq((take - 1)[: len(self.o.payload.request.length)]),
            self.o.payload.final.eq(final),
            self.o.payload.report.eq(final & rest.last),
            self.i.ready.eq(~active | beyond | (self.o.ready & self.o.valid & final)),
            beyond.eq(rest.address + rest.count > self.limit),  # the end stays where it is as bursts go
        ]
        m.d.sync += self.fault.eq(0)
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += [
                rest.address.eq((rest.address + take)[:WORD_BITS]),
                rest.count.eq((rest.count - take)[:COUNT_BITS]),
            ]
        with m.If(self.i.ready):
            m.d.sync += [rest.eq(self.i.payload), active.eq(self.i.valid & (self.i.payload.count != 0))]
        with m.If(active & beyond):
            m.d.sync += [self.fault.cause.eq(Cause.REGION), self.fault.address.eq(rest.address)]
        return m


def _error(response: Value) -> Value:
    """The cause that a response stands for."""
    wrong = Mux(Value.cast(response) == Response.DECERR, Cause.DECERR, Cause.NONE)
    return Mux(Value.cast(response) == Response.SLVERR, Cause.SLVERR, wrong)


def _check_sizes(word: int, burst: int, depth: int, bursts: int) -> None:
    check_burst(burst, word)
    if depth < burst:
        raise ValueError(f"depth = {depth}: must be at least burst = {burst}")
    if bursts < 1:
        raise ValueError(f"bursts = {bursts}: must be at least 1")


class ReadEngine(wiring.Component):
    """Reads jobs, in order.

    A burst is asked for only when the FIFO has room for all of it, so an answer never waits.

    Timing: a word per cycle when the memory's latency is below `depth` cycles; asks one cycle after the job.

    Parameters
    ----------
    word : bits of a word ; burst : words of the longest burst ; depth : words on their way or waiting
    bursts : bursts in flight

    Members
    -------
    i : stream of jobs ; o : stream of {data, last}, `last` with the last word of every job
    port : to the master ; limit : words of the region ; halt : ask for nothing more
    idle : nothing is in flight ; fault : cause and first word of the burst or job, in one cycle
    """

    def __init__(self, *, word: int, burst: int = 16, depth: int = 64, bursts: int = 16):
        _check_sizes(word, burst, depth, bursts)
        self.word, self.burst, self.depth, self.bursts = word, burst, depth, bursts
        self.beat = words_read(word)
        super().__init__(
            {
                "i": In(stream.Signature(JOB)),
                "o": Out(stream.Signature(self.beat)),
                "port": Out(read_port(word, burst)),
                "limit": In(WORD_BITS + 1),
                "halt": In(1),
                "idle": Out(1),
                "fault": Out(FAULT),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.cutter = cutter = BurstSplitter(burst=self.burst)
        wiring.connect(m, wiring.flipped(self.i), cutter.i)
        note = data.StructLayout({"address": WORD_BITS, "final": 1})
        m.submodules.flying = flying = SyncFIFOBuffered(width=note.size, depth=self.bursts)
        m.submodules.words = words = SyncFIFOBuffered(width=self.beat.size, depth=self.depth)
        used, taken = Signal(range(self.depth + 1)), Signal(range(self.burst + 1))
        count, asked, popped = Signal(range(self.burst + 1)), Signal(), Signal()
        burst, request, answer = cutter.o.payload, self.port.request, self.port.answer
        written, oldest, kept = Signal(note), data.View(note, flying.r_data), Signal(self.beat)
        m.d.comb += [
            cutter.limit.eq(self.limit),
            cutter.halt.eq(self.halt),
            count.eq(burst.request.length + 1),
            request.valid.eq(cutter.o.valid & flying.w_rdy & (used + count <= self.depth)),
            request.payload.eq(burst.request),
            asked.eq(request.valid & request.ready),
            cutter.o.ready.eq(asked),
            taken.eq(Mux(asked, count, 0)),
            written.address.eq(burst.request.address),
            written.final.eq(burst.final),
            flying.w_data.eq(written),
            flying.w_en.eq(asked),
            flying.r_en.eq(answer.valid & answer.payload.last),
            kept.data.eq(answer.payload.data),
            kept.last.eq(answer.payload.last & oldest.final),
            words.w_data.eq(kept),
            words.w_en.eq(answer.valid),
            Value.cast(self.o.payload).eq(words.r_data),
            self.o.valid.eq(words.r_rdy),
            popped.eq(self.o.valid & self.o.ready),
            words.r_en.eq(popped),
            self.idle.eq((flying.level == 0) & ~flying.r_rdy),
            self.fault.eq(cutter.fault),
        ]
        m.d.sync += used.eq((used + taken - popped)[: len(used)])
        with m.If(answer.valid & (_error(answer.payload.response) != Cause.NONE)):
            m.d.comb += [
                self.fault.cause.eq(_error(answer.payload.response)),
                self.fault.address.eq(oldest.address),
            ]
        return m


class WriteEngine(wiring.Component):
    """Writes jobs, in order.

    A burst is asked for only when all its words have come, so the bus never waits for them.

    Timing: a word per cycle. `done` is high for a cycle when everything of a job with `last`, and before it, has been
    acknowledged.

    Parameters
    ----------
    word, burst, bursts : as the reader's ; depth : words that wait

    Members
    -------
    i : stream of jobs ; i_data : stream of {data, strobe}
    port, limit, halt, idle, fault : as the reader's ; done : a job with `last` is complete
    """

    def __init__(self, *, word: int, burst: int = 16, depth: int = 32, bursts: int = 16):
        _check_sizes(word, burst, depth, bursts)
        self.word, self.burst, self.depth, self.bursts = word, burst, depth, bursts
        self.beat = words_written(word)
        super().__init__(
            {
                "i": In(stream.Signature(JOB)),
                "i_data": In(stream.Signature(self.beat)),
                "port": Out(write_port(word, burst)),
                "limit": In(WORD_BITS + 1),
                "halt": In(1),
                "idle": Out(1),
                "done": Out(1),
                "fault": Out(FAULT),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.cutter = cutter = BurstSplitter(burst=self.burst)
        wiring.connect(m, wiring.flipped(self.i), cutter.i)
        note = data.StructLayout({"address": WORD_BITS, "report": 1})
        m.submodules.flying = flying = SyncFIFOBuffered(width=note.size, depth=self.bursts)
        m.submodules.words = words = SyncFIFOBuffered(width=self.beat.size, depth=self.depth)
        m.submodules.lengths = lengths = SyncFIFOBuffered(width=len(cutter.o.payload.request.length), depth=self.bursts)
        stored, taken = Signal(range(self.depth + 1)), Signal(range(self.burst + 1))  # words not promised yet
        count, asked, come, sent = Signal(range(self.burst + 1)), Signal(), Signal(), Signal()
        place = Signal(range(self.burst))
        burst, request, answer = cutter.o.payload, self.port.request, self.port.answer
        written, oldest, word = Signal(note), data.View(note, flying.r_data), data.View(self.beat, words.r_data)
        m.d.comb += [
            cutter.limit.eq(self.limit),
            cutter.halt.eq(self.halt),
            count.eq(burst.request.length + 1),
            request.valid.eq(cutter.o.valid & flying.w_rdy & lengths.w_rdy & (stored >= count)),
            request.payload.eq(burst.request),
            asked.eq(request.valid & request.ready),
            cutter.o.ready.eq(asked),
            taken.eq(Mux(asked, count, 0)),
            written.address.eq(burst.request.address),
            written.report.eq(burst.report),
            flying.w_data.eq(written),
            flying.w_en.eq(asked),
            flying.r_en.eq(answer.valid),
            lengths.w_data.eq(burst.request.length),
            lengths.w_en.eq(asked),
            words.w_data.eq(self.i_data.payload),
            words.w_en.eq(self.i_data.valid),
            self.i_data.ready.eq(words.w_rdy),
            come.eq(self.i_data.valid & self.i_data.ready),
            self.port.data.valid.eq(words.r_rdy & lengths.r_rdy),
            self.port.data.payload.data.eq(word.data),
            self.port.data.payload.strobe.eq(word.strobe),
            self.port.data.payload.last.eq(place == lengths.r_data),
            sent.eq(self.port.data.valid & self.port.data.ready),
            words.r_en.eq(sent),
            lengths.r_en.eq(sent & self.port.data.payload.last),
            self.idle.eq((flying.level == 0) & ~flying.r_rdy & (lengths.level == 0) & ~lengths.r_rdy),
            self.done.eq(answer.valid & oldest.report & (_error(answer.payload) == Cause.NONE)),
            self.fault.eq(cutter.fault),
        ]
        m.d.sync += stored.eq((stored + come - taken)[: len(stored)])
        with m.If(sent):
            m.d.sync += place.eq(Mux(self.port.data.payload.last, 0, place + 1))
        with m.If(answer.valid & (_error(answer.payload) != Cause.NONE)):
            m.d.comb += [self.fault.cause.eq(_error(answer.payload)), self.fault.address.eq(oldest.address)]
        return m
