"""Read and write engines: jobs of consecutive words become AXI bursts, words become streams."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi.ports import (
    COUNT_BITS,
    FAULT,
    JOB,
    WORD_ADDRESS_BITS,
    Cause,
    Response,
    check_burst,
    read_port,
    request_layout,
    write_port,
)


def read_word_layout(word: int) -> data.StructLayout:
    """Layout of a word from a read engine; `last` marks the last word of a job."""
    return data.StructLayout({"data": word, "last": 1})


def write_word_layout(word: int) -> data.StructLayout:
    """Layout of a word for a write engine, with a strobe for each byte."""
    return data.StructLayout({"data": word, "strobe": word // 8})


class BurstSplitter(wiring.Component):
    """Splits jobs into bursts that do not cross a multiple of the burst length.

    A job that leaves the region is dropped with a fault; a job of zero words is dropped.

    Timing: one burst per cycle, the first one cycle after its job; no gap between jobs. A fault is reported two cycles
    after the job.

    Parameters
    ----------
    burst : words of the longest burst

    Members
    -------
    i : stream of JOB
    o : stream of bursts: `request`; `last_of_job`, this is the last burst of its job; `reports_done`, the last burst
        of a job whose `last` is 1
    limit : words of the region
    halt : no burst is offered
    fault : REGION with the first word of the job
    """

    def __init__(self, *, burst: int):
        self.burst = burst
        self.out = data.StructLayout({"request": request_layout(burst), "last_of_job": 1, "reports_done": 1})
        super().__init__(
            {
                "i": In(stream.Signature(JOB)),
                "o": Out(stream.Signature(self.out)),
                "limit": In(WORD_ADDRESS_BITS + 1),
                "halt": In(1),
                "fault": Out(FAULT),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        job, active, burst = Signal(JOB), Signal(), self.o.payload  # `job`: the words that are in no burst yet
        room = Signal(range(self.burst + 1))  # words up to the next boundary
        words = Signal(range(self.burst + 1))  # words of the burst
        last_of_job, out_of_region = Signal(), Signal()
        offset_bits = self.burst.bit_length() - 1
        m.d.comb += [
            room.eq(self.burst - job.address[:offset_bits] if offset_bits else 1),
            last_of_job.eq(job.count <= room),
            words.eq(Mux(last_of_job, job.count, room)),
            self.o.valid.eq(active & ~out_of_region & ~self.halt),
            burst.request.address.eq(job.address),
            burst.request.length.eq((words - 1)[: len(burst.request.length)]),
            burst.last_of_job.eq(last_of_job),
            burst.reports_done.eq(last_of_job & job.last),
            self.i.ready.eq(~active | out_of_region | (self.o.ready & self.o.valid & last_of_job)),
            out_of_region.eq(job.address + job.count > self.limit),  # the sum is the same for all bursts of a job
        ]
        m.d.sync += self.fault.eq(0)
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += [
                job.address.eq((job.address + words)[:WORD_ADDRESS_BITS]),
                job.count.eq((job.count - words)[:COUNT_BITS]),
            ]
        with m.If(self.i.ready):
            m.d.sync += [job.eq(self.i.payload), active.eq(self.i.valid & (self.i.payload.count != 0))]
        with m.If(active & out_of_region):
            m.d.sync += [self.fault.cause.eq(Cause.REGION), self.fault.address.eq(job.address)]
        return m


def _cause(response: Value) -> Value:
    """Cause of a fault for an AXI response; NONE for OKAY."""
    decode_error = Mux(Value.cast(response) == Response.DECERR, Cause.DECERR, Cause.NONE)
    return Mux(Value.cast(response) == Response.SLVERR, Cause.SLVERR, decode_error)


def _check_sizes(word: int, burst: int, depth: int, bursts: int) -> None:
    check_burst(burst, word)
    if depth < burst:
        raise ValueError(f"depth must be at least burst = {burst}, got {depth}")
    if bursts < 1:
        raise ValueError(f"bursts must be at least 1, got {bursts}")


class ReadEngine(wiring.Component):
    """Reads the words of jobs from memory, in order.

    A burst is requested only when the word FIFO has space for all its words. So the engine accepts read data at any
    time, and the bus never waits for it.

    ```
    jobs ──> BurstSplitter ──> request (if the FIFO has space) ──> master
    words <── word FIFO <── read data <──────────────────────────────┘
    ```

    Timing: one word per cycle if the latency of memory is below `depth` cycles; the first request one cycle after the
    job.

    Parameters
    ----------
    word : bits of a word
    burst : words of the longest burst
    depth : words that are requested or buffered
    bursts : bursts in flight

    Members
    -------
    i : stream of JOB
    o : stream of read_word_layout
    port : to the master
    limit : words of the region
    halt : no further burst is requested
    idle : no burst is in flight
    fault : SLVERR or DECERR with the first word of the burst, or REGION with that of the job; one cycle. An error
        response has priority over REGION in the same cycle.

    Raises
    ------
    ValueError
        When a size is out of range.
    """

    def __init__(self, *, word: int, burst: int = 16, depth: int = 64, bursts: int = 16):
        _check_sizes(word, burst, depth, bursts)
        self.word, self.burst, self.depth, self.bursts = word, burst, depth, bursts
        self.beat = read_word_layout(word)
        super().__init__(
            {
                "i": In(stream.Signature(JOB)),
                "o": Out(stream.Signature(self.beat)),
                "port": Out(read_port(word, burst)),
                "limit": In(WORD_ADDRESS_BITS + 1),
                "halt": In(1),
                "idle": Out(1),
                "fault": Out(FAULT),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.splitter = splitter = BurstSplitter(burst=self.burst)
        wiring.connect(m, wiring.flipped(self.i), splitter.i)
        in_flight_burst = data.StructLayout({"address": WORD_ADDRESS_BITS, "last_of_job": 1})
        m.submodules.in_flight = in_flight = SyncFIFOBuffered(width=in_flight_burst.size, depth=self.bursts)
        m.submodules.words = words = SyncFIFOBuffered(width=self.beat.size, depth=self.depth)
        # places of the word FIFO: neither filled nor reserved by a burst in flight, reserved in this cycle
        free, newly_reserved = Signal(range(self.depth + 1), init=self.depth), Signal(range(self.burst + 1))
        requested, word_sent = Signal(), Signal()
        burst, request, response = splitter.o.payload, self.port.request, self.port.response
        newest, oldest = Signal(in_flight_burst), data.View(in_flight_burst, in_flight.r_data)
        word = Signal(self.beat)
        m.d.comb += [
            splitter.limit.eq(self.limit),
            splitter.halt.eq(self.halt),
            request.valid.eq(splitter.o.valid & in_flight.w_rdy & (burst.request.length < free)),
            request.payload.eq(burst.request),
            requested.eq(request.valid & request.ready),
            splitter.o.ready.eq(requested),
            newly_reserved.eq(Mux(requested, burst.request.length + 1, 0)),
            newest.address.eq(burst.request.address),
            newest.last_of_job.eq(burst.last_of_job),
            in_flight.w_data.eq(newest),
            in_flight.w_en.eq(requested),
            in_flight.r_en.eq(response.valid & response.payload.last),
            word.data.eq(response.payload.data),
            word.last.eq(response.payload.last & oldest.last_of_job),
            words.w_data.eq(word),
            words.w_en.eq(response.valid),
            Value.cast(self.o.payload).eq(words.r_data),
            self.o.valid.eq(words.r_rdy),
            word_sent.eq(self.o.valid & self.o.ready),
            words.r_en.eq(word_sent),
            self.idle.eq((in_flight.level == 0) & ~in_flight.r_rdy),
            self.fault.eq(splitter.fault),
        ]
        m.d.sync += free.eq((free - newly_reserved + word_sent)[: len(free)])
        with m.If(response.valid & (_cause(response.payload.resp) != Cause.NONE)):
            m.d.comb += [
                self.fault.cause.eq(_cause(response.payload.resp)),
                self.fault.address.eq(oldest.address),
            ]
        return m


class WriteEngine(wiring.Component):
    """Writes the words of jobs to memory, in order.

    A burst is requested only when all its words are in the word FIFO, so the bus never waits for them.

    ```
    jobs ──> BurstSplitter ──> request (if the FIFO has its words) ──> master
    words ──> word FIFO ──> write data ─────────────────────────────────^
    done <── oldest burst in flight <── write response <────────────────┘
    ```

    Timing: one word per cycle. `done` is high for one cycle when memory acknowledges the last burst of a job with
    `last` without an error; responses are in order, so all earlier bursts are acknowledged too.

    Parameters
    ----------
    word : bits of a word
    burst : words of the longest burst
    depth : words that are buffered
    bursts : bursts in flight

    Members
    -------
    i : stream of JOB
    i_data : stream of write_word_layout
    port : to the master
    limit : words of the region
    halt : no further burst is requested
    idle : no burst is in flight
    done : a job with `last` is complete
    fault : SLVERR or DECERR with the first word of the burst, or REGION with that of the job; one cycle. An error
        response has priority over REGION in the same cycle.

    Raises
    ------
    ValueError
        When a size is out of range.
    """

    def __init__(self, *, word: int, burst: int = 16, depth: int = 32, bursts: int = 16):
        _check_sizes(word, burst, depth, bursts)
        self.word, self.burst, self.depth, self.bursts = word, burst, depth, bursts
        self.beat = write_word_layout(word)
        super().__init__(
            {
                "i": In(stream.Signature(JOB)),
                "i_data": In(stream.Signature(self.beat)),
                "port": Out(write_port(word, burst)),
                "limit": In(WORD_ADDRESS_BITS + 1),
                "halt": In(1),
                "idle": Out(1),
                "done": Out(1),
                "fault": Out(FAULT),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.splitter = splitter = BurstSplitter(burst=self.burst)
        wiring.connect(m, wiring.flipped(self.i), splitter.i)
        burst, request = splitter.o.payload, self.port.request
        in_flight_burst = data.StructLayout({"address": WORD_ADDRESS_BITS, "reports_done": 1})
        m.submodules.in_flight = in_flight = SyncFIFOBuffered(width=in_flight_burst.size, depth=self.bursts)
        m.submodules.words = words = SyncFIFOBuffered(width=self.beat.size, depth=self.depth)
        # bursts that are requested and whose words are not sent
        m.submodules.lengths = lengths = SyncFIFOBuffered(width=len(burst.request.length), depth=self.bursts)
        # words in the FIFO that belong to no requested burst, and those that this cycle's request takes
        available, used = Signal(range(self.depth + 1)), Signal(range(self.burst + 1))
        count, requested, word_received = Signal(range(self.burst + 1)), Signal(), Signal()
        newest = Signal(in_flight_burst)
        m.d.comb += [
            splitter.limit.eq(self.limit),
            splitter.halt.eq(self.halt),
            count.eq(burst.request.length + 1),
            request.valid.eq(splitter.o.valid & in_flight.w_rdy & lengths.w_rdy & (available >= count)),
            request.payload.eq(burst.request),
            requested.eq(request.valid & request.ready),
            splitter.o.ready.eq(requested),
            used.eq(Mux(requested, count, 0)),
            newest.address.eq(burst.request.address),
            newest.reports_done.eq(burst.reports_done),
            in_flight.w_data.eq(newest),
            in_flight.w_en.eq(requested),
            lengths.w_data.eq(burst.request.length),
            lengths.w_en.eq(requested),
            words.w_data.eq(self.i_data.payload),
            words.w_en.eq(self.i_data.valid),
            self.i_data.ready.eq(words.w_rdy),
            word_received.eq(self.i_data.valid & self.i_data.ready),
            self.idle.eq((in_flight.level == 0) & ~in_flight.r_rdy & (lengths.level == 0) & ~lengths.r_rdy),
            self.fault.eq(splitter.fault),
        ]
        m.d.sync += available.eq((available + word_received - used)[: len(available)])
        self._send_words(m, words, lengths)
        self._receive_responses(m, in_flight, data.View(in_flight_burst, in_flight.r_data))
        return m

    def _send_words(self, m: Module, words: SyncFIFOBuffered, lengths: SyncFIFOBuffered) -> None:
        """Words of the requested bursts to the master."""
        word, beat_index, transfer = data.View(self.beat, words.r_data), Signal(range(self.burst)), Signal()
        beat = self.port.data.payload
        m.d.comb += [
            self.port.data.valid.eq(words.r_rdy & lengths.r_rdy),
            beat.data.eq(word.data),
            beat.strobe.eq(word.strobe),
            beat.last.eq(beat_index == lengths.r_data),
            transfer.eq(self.port.data.valid & self.port.data.ready),
            words.r_en.eq(transfer),
            lengths.r_en.eq(transfer & beat.last),
        ]
        with m.If(transfer):
            m.d.sync += beat_index.eq(Mux(beat.last, 0, beat_index + 1))

    def _receive_responses(self, m: Module, in_flight: SyncFIFOBuffered, oldest: data.View) -> None:
        """Completion or fault of the oldest burst in flight."""
        response = self.port.response
        cause = _cause(response.payload)
        m.d.comb += [
            in_flight.r_en.eq(response.valid),
            self.done.eq(response.valid & oldest.reports_done & (cause == Cause.NONE)),
        ]
        with m.If(response.valid & (cause != Cause.NONE)):
            m.d.comb += [self.fault.cause.eq(cause), self.fault.address.eq(oldest.address)]
