"""Specifications of the read, write and copy engines; the docstring of each specification is the property."""

# mypy: disable-error-code="assignment,arg-type"

from collections.abc import Iterable
from typing import Any

from amaranth import Cat, Module, Mux, ResetSignal, Signal, Value
from amaranth.hdl import Assert, Assume
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.engines import ReadEngine, WriteEngine
from hw.core.dma import CopyEngine
from sim.formal.specifications.common import stability


def line(m: Module, name: str, depth: int, push: Value, value: Value, pop: Value) -> tuple[Signal, Signal]:
    """A queue of the environment: returns its oldest value and its level; asserts that it does not overflow."""
    slots = [Signal(len(value), name=f"{name}{k}") for k in range(depth)]
    number = Signal(range(depth + 1), name=f"{name}_number")
    level = number - pop
    for k, slot in enumerate(slots):
        with m.If(push & (level == k)):
            m.d.sync += slot.eq(value)
        with m.Elif(pop):
            m.d.sync += slot.eq(slots[min(k + 1, depth - 1)])
    m.d.sync += number.eq(level + push)
    m.d.comb += Assert(~push | (level < depth))
    return slots[0], number


def bursts(
    m: Module, unit: ReadEngine | WriteEngine, region: int, address: Value, count: Value, last: Value
) -> dict[str, Any]:
    """Drive jobs into `unit` and assert that its bursts cover the words of the jobs in order.

    Returns the events: a burst is requested (`burst`); it ends a job (`final`) that is reported (`report`); a job is
    `dropped`; and the `words` of the burst.
    """
    job, request = unit.i.payload, unit.port.request
    first, words = request.payload.address, Signal(range(unit.burst + 1), name="words")
    expected, remaining = Signal.like(job.address, name="expected"), Signal.like(job.count, name="remaining")
    reports = Signal(name="reports")
    burst, final, dropped = Signal(name="burst"), Signal(name="final"), Signal(name="dropped")
    good = address + count <= region
    accepted = unit.i.valid & unit.i.ready
    m.d.comb += [
        job.address.eq(address),
        job.count.eq(count),
        job.last.eq(last),
        unit.limit.eq(region),
        Assume(stability(m, "job", unit.i)[1]),
        words.eq(request.payload.length + 1),
        burst.eq(request.valid & request.ready),
        final.eq(remaining == words),
        dropped.eq(accepted & ~good),
        Assert(~burst | ((first == expected) & (words <= remaining))),
        Assert(~burst | (first % unit.burst + words <= unit.burst)),
        Assert(~accepted | (remaining == Mux(burst, words, 0))),
    ]
    with m.If(burst):
        m.d.sync += [expected.eq(expected + words), remaining.eq(remaining - words)]
    with m.If(accepted):
        m.d.sync += [expected.eq(address), remaining.eq(Mux(good, count, 0)), reports.eq(last)]
    return {"burst": burst, "final": final, "report": final & reports, "dropped": dropped, "words": words}


def ports(names: Iterable[str], region: int, cover_names: Iterable[str]) -> dict[str, wiring.Member]:
    """Members of a specification: free inputs, a job inside or outside the region, covers."""
    return {
        **{name: In(1) for name in names},
        "address": In(range(region)),
        "count": In(range(region + 1)),
        **{f"cover_{name}": Out(1) for name in cover_names},
    }


class ReaderSpec(wiring.Component):
    """Bursts cover every word of the jobs in order; every response word leaves once and in order.

    Exactly the last word of a job has `last`. The specification tracks one arbitrary response word and the number of
    words ahead of it. No burst crosses a multiple of the maximum burst length. The words in flight fit into the buffer,
    so no response is lost. A job outside the region is dropped. All streams pause at arbitrary times.
    The memory responds in order at arbitrary times, from the second cycle after the request, because a register of the
    master delays the request.
    """

    def __init__(self, unit: ReadEngine, *, region: int):
        self.unit, self.region = unit, region
        cover_names = ("second_burst", "dropped", "full")
        super().__init__(ports(("offer", "take", "answer", "data", "ready", "pick"), region, cover_names))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.unit = unit = self.unit
        response = unit.port.response
        events = bursts(m, unit, self.region, self.address, self.count, 0)
        m.d.comb += [
            unit.i.valid.eq(self.offer),
            unit.port.request.ready.eq(self.take),
            unit.o.ready.eq(self.ready),
            Assume(~ResetSignal()),
        ]

        # the memory: number of words of the oldest burst minus one, and whether the burst ends its job
        requested, arriving = Signal(), Signal(len(unit.port.request.payload.length) + 1)
        beat, final, length, ends = Signal(range(unit.burst)), Signal(), Signal(range(unit.burst)), Signal()
        m.d.sync += [requested.eq(events["burst"]), arriving.eq(Cat(events["final"], unit.port.request.payload.length))]
        oldest, in_flight = line(m, "burst", unit.bursts, requested, arriving, ends)
        m.d.comb += [
            Cat(final, length).eq(oldest),
            response.valid.eq(self.answer & (in_flight != 0)),
            response.payload.data.eq(self.data),
            response.payload.last.eq(beat == length),
            ends.eq(response.valid & response.payload.last),
        ]
        with m.If(response.valid):
            m.d.sync += beat.eq(Mux(ends, 0, beat + 1))

        # the tracked word
        sent, tracked = Signal(), Signal()
        occupancy, ahead = Signal(range(unit.depth + 2)), Signal(range(unit.depth + 2))
        data, last = Signal(), Signal()
        output = unit.o.payload
        m.d.sync += occupancy.eq(occupancy + response.valid - sent)
        m.d.comb += [
            sent.eq(unit.o.valid & unit.o.ready),
            Assert(occupancy <= unit.depth),
            Assert(~sent | (occupancy != 0)),
            Assert(~(sent & tracked & (ahead == 0)) | ((output.data == data) & (output.last == last))),
            self.cover_second_burst.eq(
                sent & tracked & (ahead == 0) & last & output.data[0] & (occupancy == unit.depth)
            ),
            self.cover_dropped.eq(events["dropped"] & (in_flight != 0)),
            self.cover_full.eq((in_flight == unit.bursts) & unit.o.valid & ~sent),
        ]
        with m.If(sent & tracked):
            m.d.sync += [ahead.eq(ahead - 1), tracked.eq(ahead != 0)]
        with m.If(response.valid & self.pick & ~tracked):
            m.d.sync += [
                tracked.eq(1),
                ahead.eq(occupancy - sent),
                data.eq(self.data),
                last.eq(final & (beat == length)),
            ]
        return m


class WriterSpec(wiring.Component):
    """Bursts cover every word of the jobs in order, with the input words unchanged; an acknowledged job is done.

    The specification tracks one arbitrary word and the number of words ahead of it. No burst crosses a multiple of the
    maximum burst length. A burst is requested only when the unit contains all its words. The last word of a burst is
    marked. `done` is 1 exactly with the acknowledgement of the last burst of a job with `last`. All streams pause at
    arbitrary times. The memory acknowledges bursts in order at arbitrary times after their last word.
    """

    def __init__(self, unit: WriteEngine, *, region: int):
        self.unit, self.region = unit, region
        cover_names = ("full", "done", "marked", "dropped")
        names = ("offer", "last", "give", "data", "strobe", "take", "accept", "answer", "pick")
        super().__init__(ports(names, region, cover_names))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.unit = unit = self.unit
        request, output = unit.port.request, unit.port.data
        events = bursts(m, unit, self.region, self.address, self.count, self.last)
        received, sent, ends, acknowledged = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            unit.i.valid.eq(self.offer),
            unit.i_data.valid.eq(self.give),
            unit.i_data.payload.data.eq(self.data),
            unit.i_data.payload.strobe.eq(self.strobe),
            request.ready.eq(self.take),
            output.ready.eq(self.accept),
            Assume(~ResetSignal()),
            Assume(stability(m, "word", unit.i_data)[1]),
            received.eq(unit.i_data.valid & unit.i_data.ready),
            sent.eq(output.valid & output.ready),
        ]

        # the memory: lengths of the bursts without all words; for unacknowledged bursts, whether to report them
        beat = Signal(range(unit.burst))
        length, number = line(m, "burst", unit.bursts, events["burst"], request.payload.length, ends)
        reported, in_flight = line(m, "in_flight", unit.bursts, events["burst"], events["report"], acknowledged)
        m.d.comb += [
            ends.eq(sent & (beat == length)),
            acknowledged.eq(self.answer & (in_flight > number)),
            unit.port.response.valid.eq(acknowledged),
            Assert(~sent | ((number != 0) & (output.payload.last == (beat == length)))),
            Assert(unit.done == (acknowledged & reported)),
        ]
        with m.If(sent):
            m.d.sync += beat.eq(Mux(ends, 0, beat + 1))

        # the tracked word
        occupancy, promised = Signal(range(unit.depth + 2)), Signal(range(unit.depth + 2))
        ahead, tracked, word = Signal(range(unit.depth + 2)), Signal(), Signal(2)
        here = sent & tracked & (ahead == 0)
        m.d.sync += [
            occupancy.eq(occupancy + received - sent),
            promised.eq(promised + Mux(events["burst"], events["words"], 0) - sent),
        ]
        m.d.comb += [
            Assert((occupancy <= unit.depth) & (promised <= occupancy)),
            Assert(~sent | (promised != 0)),
            Assert(~here | ((output.payload.data == word[0]) & (output.payload.strobe == word[1]))),
            self.cover_full.eq((occupancy == unit.depth) & (in_flight == unit.bursts)),
            self.cover_done.eq(unit.done & (in_flight == unit.bursts)),
            self.cover_marked.eq(here & output.payload.last & word.all()),
            self.cover_dropped.eq(events["dropped"] & (in_flight != 0)),
        ]
        with m.If(sent & tracked):
            m.d.sync += [ahead.eq(ahead - 1), tracked.eq(ahead != 0)]
        with m.If(received & self.pick & ~tracked):
            m.d.sync += [tracked.eq(1), ahead.eq(occupancy - sent), word.eq(Cat(self.data, self.strobe))]
        return m


class CopierSpec(wiring.Component):
    """Every copy issues one read job and one write job, moves its words unchanged, and is reported after the write.

    The specification tracks one arbitrary copy. Its words move from the side of its source to the side of its target,
    after all words of earlier copies. The copy is reported once, with its owner, after its write is done. Copies to the
    same side are reported in order. `idle` means that all copies are reported.

    All streams pause at arbitrary times. Assumptions: words arrive after their read job; a write is done after its job
    and its words, in order on each side.
    """

    def __init__(self, unit: CopyEngine):
        self.unit = unit
        sides = ("take_read", "take_write", "offered", "word", "last", "accept", "done")
        cover_names = ("crossed", "overtaken", "full", "idle_again")
        super().__init__(
            {
                **{name: In(1) for name in ("offer", "from_host", "to_host", "pick")},
                **{name: In(2) for name in ("source", "target", "bytes", *sides)},
                "owner": In(unit.owner_bits),
                **{f"cover_{name}": Out(1) for name in cover_names},
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.unit = unit = self.unit
        copy, max_count = unit.i.payload, 2 * unit.max_open + 2
        begins, waits, accepted, ends = Signal(), Signal(), Signal(), Signal()
        read_words, write_words, issued, jobs = Signal(2), Signal(2), Signal(2), Signal(2)
        m.d.sync += [waits.eq(unit.i.valid & ~unit.i.ready), issued.eq(Mux(accepted, 0, issued | jobs))]
        m.d.comb += [
            unit.i.valid.eq(self.offer),
            *(copy[name].eq(getattr(self, name)) for name in copy.shape().members),
            Assume(~ResetSignal()),
            Assume(stability(m, "copy", unit.i)[1]),
            begins.eq(unit.i.valid & ~waits),
            accepted.eq(unit.i.valid & unit.i.ready),
            ends.eq((read_words & self.last).any()),
            Assert(~accepted | (issued | jobs).all()),
            Assert((read_words != 3) & (write_words != 3) & (read_words.any() == write_words.any())),
        ]
        host = [copy.from_host, copy.to_host]
        open_jobs = [
            [Signal(range(max_count), name=f"{kind}{side}") for side in range(2)] for kind in ("reads", "writes")
        ]
        written = [Signal(range(max_count), name=f"written{side}") for side in range(2)]
        for side in range(2):
            read, write = unit.read[side], unit.write[side]
            m.d.comb += [
                read.job.ready.eq(self.take_read[side]),
                write.job.ready.eq(self.take_write[side]),
                read.data.valid.eq(self.offered[side]),
                read.data.payload.data.eq(self.word[side]),
                read.data.payload.last.eq(self.last[side]),
                write.data.ready.eq(self.accept[side]),
                write.done.eq(self.done[side]),
                Assume(stability(m, f"words{side}", read.data)[1]),
                Assume(~read.data.valid | (open_jobs[0][side] != 0)),
                Assume(~write.done | ((open_jobs[1][side] != 0) & (written[side] != 0))),
                read_words[side].eq(read.data.valid & read.data.ready),
                write_words[side].eq(write.data.valid & write.data.ready),
                Assert(
                    ~write_words[side] | (write.data.payload.data == Mux(read_words[1], self.word[1], self.word[0]))
                ),
                Assert(~write_words[side] | write.data.payload.strobe.all()),
            ]
            finished = [read_words[side] & self.last[side], write.done]
            for k, (job, address) in enumerate(((read.job, copy.source), (write.job, copy.target))):
                job_accepted = Signal(name=f"job_accepted{k}_{side}")
                matches = (host[k] == side) & (job.payload.address == address) & (job.payload.count == copy.bytes)
                m.d.comb += [
                    job_accepted.eq(job.valid & job.ready),
                    Assert(~job.valid | (unit.i.valid & ~issued[k] & matches)),
                ]
                with m.If(job_accepted):
                    m.d.comb += jobs[k].eq(1)
                m.d.sync += open_jobs[k][side].eq(open_jobs[k][side] + job_accepted - finished[k])
            m.d.sync += written[side].eq(written[side] + (ends & write_words[side]) - write.done)

        # the tracked copy: earlier copies with words to move, with writes to the same side, and without a report
        occupancy, writing = (
            Signal(range(max_count)),
            [Signal(range(max_count), name=f"writing{side}") for side in range(2)],
        )
        pending, unreported = Signal(range(max_count)), Signal(range(max_count))
        tracked, passed, done = Signal(), Signal(), Signal()
        ahead, before, behind = Signal(range(max_count)), Signal(range(max_count)), Signal(range(max_count))
        source, target, owner = Signal(), Signal(), Signal(unit.owner_bits)
        device, late = unit.o.valid & self.done[0], unit.o.valid & ~self.done[0]
        m.d.sync += [
            occupancy.eq(occupancy + begins - ends),
            *(
                count.eq(count + (begins & (copy.to_host == side)) - self.done[side])
                for side, count in enumerate(writing)
            ),
            pending.eq(pending + self.done[1] - late),
            unreported.eq(unreported + accepted - unit.o.valid),
        ]
        following = tracked & ~passed & (ahead == 0)
        finishes = tracked & ~done & (before == 0) & Mux(target, self.done[1], self.done[0])
        m.d.comb += [
            Assert(~read_words.any() | (occupancy != 0)),
            Assert(~(following & read_words.any()) | ((read_words == 1 << source) & (write_words == 1 << target))),
            Assert(~finishes | passed),
            Assert(~self.done[0] | unit.o.valid),
            Assert(~late | (pending != 0)),
            Assert(~(finishes & ~target) | (unit.o.payload == owner)),
            Assert(~(late & done & (behind == 0)) | (unit.o.payload == owner)),
            Assert(~unit.idle | (unreported == 0)),
            self.cover_crossed.eq(following & ends & source & ~target),
            self.cover_overtaken.eq(tracked & done & target & device & (pending > 1)),
            self.cover_full.eq((occupancy > unit.max_open) & ~ends & tracked),
            self.cover_idle_again.eq(tracked & late & done & (behind == 0) & (unreported == 1)),
        ]
        with m.If(tracked & ends & ~passed):
            m.d.sync += [ahead.eq(ahead - 1), passed.eq(ahead == 0)]
        with m.If(tracked & ~done & Mux(target, self.done[1], self.done[0])):
            m.d.sync += [before.eq(before - 1), done.eq(target & (before == 0)), behind.eq(pending - late)]
            with m.If(~target & (before == 0)):
                m.d.sync += tracked.eq(0)
        with m.If(late & done):
            m.d.sync += behind.eq(behind - 1)
            with m.If(behind == 0):
                m.d.sync += [tracked.eq(0), done.eq(0)]
        with m.If(begins & self.pick & ~tracked):
            m.d.sync += [tracked.eq(1), passed.eq(0), source.eq(copy.from_host), target.eq(copy.to_host)]
            m.d.sync += [owner.eq(copy.owner), done.eq(0), ahead.eq(occupancy - ends)]
            m.d.sync += before.eq(Mux(copy.to_host, writing[1] - self.done[1], writing[0] - self.done[0]))
        return m


def small_copier() -> CopierSpec:
    """A copy engine with at most two open copies."""
    return CopierSpec(CopyEngine(word=8, address_bits=10, owner_bits=1, max_open=2))


def small_reader() -> ReaderSpec:
    """Bursts of two words, two bursts in flight, a region of eight words."""
    return ReaderSpec(ReadEngine(word=8, burst=2, depth=4, bursts=2), region=8)


def small_writer() -> WriterSpec:
    """Bursts of two words, two bursts in flight, a region of eight words."""
    return WriterSpec(WriteEngine(word=8, burst=2, depth=4, bursts=2), region=8)
