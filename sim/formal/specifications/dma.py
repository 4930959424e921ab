"""What is proved of the copy paths; each specification's docstring is the property."""

# mypy: disable-error-code="assignment,arg-type"

from collections.abc import Iterable
from typing import Any

from amaranth import Cat, Module, Mux, ResetSignal, Signal, Value
from amaranth.hdl import Assert, Assume
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.engines import ReadEngine, WriteEngine
from hw.core.dma import CopyEngine
from sim.formal.specifications.common import kept


def line(m: Module, name: str, places: int, push: Value, value: Value, pop: Value) -> tuple[Signal, Signal]:
    """A queue of the environment: its oldest value, and how many are in it; asserts that it does not overflow."""
    slots = [Signal(len(value), name=f"{name}{k}") for k in range(places)]
    number = Signal(range(places + 1), name=f"{name}_number")
    rest = number - pop
    for k, slot in enumerate(slots):
        with m.If(push & (rest == k)):
            m.d.sync += slot.eq(value)
        with m.Elif(pop):
            m.d.sync += slot.eq(slots[min(k + 1, places - 1)])
    m.d.sync += number.eq(rest + push)
    m.d.comb += Assert(~push | (rest < places))
    return slots[0], number


def bursts(
    m: Module, unit: ReadEngine | WriteEngine, region: int, address: Value, count: Value, last: Value
) -> dict[str, Any]:
    """Jobs into `unit` and the bursts that it asks for, which must be those of the jobs, word for word and in order.

    Gives what happens: a burst is `asked` for, of a job's `final` words, to be `report`ed.
    """
    job, request = unit.i.payload, unit.port.request
    first, words = request.payload.address, Signal(range(unit.burst + 1), name="words")
    due, left = Signal.like(job.address, name="due"), Signal.like(job.count, name="left")
    reports = Signal(name="reports")
    asked, final, dropped = Signal(name="asked"), Signal(name="final"), Signal(name="dropped")
    good = address + count <= region
    taken = unit.i.valid & unit.i.ready
    m.d.comb += [
        job.address.eq(address),
        job.count.eq(count),
        job.last.eq(last),
        unit.limit.eq(region),
        Assume(kept(m, "job", unit.i)[1]),
        words.eq(request.payload.length + 1),
        asked.eq(request.valid & request.ready),
        final.eq(left == words),
        dropped.eq(taken & ~good),
        Assert(~asked | ((first == due) & (words <= left))),
        Assert(~asked | (first % unit.burst + words <= unit.burst)),
        Assert(~taken | (left == Mux(asked, words, 0))),
    ]
    with m.If(asked):
        m.d.sync += [due.eq(due + words), left.eq(left - words)]
    with m.If(taken):
        m.d.sync += [due.eq(address), left.eq(Mux(good, count, 0)), reports.eq(last)]
    return {"asked": asked, "final": final, "report": final & reports, "dropped": dropped, "words": words}


def ports(names: Iterable[str], region: int, happens: Iterable[str]) -> dict[str, wiring.Member]:
    """Members of a specification: free inputs, a job in or beyond the region, covers."""
    return {
        **{name: In(1) for name in names},
        "address": In(range(region)),
        "count": In(range(region + 1)),
        **{f"cover_{name}": Out(1) for name in happens},
    }


class ReaderSpec(wiring.Component):
    """Bursts cover the jobs word for word, in order; every answer comes out once, in order, `last` on a job's last.

    Followed is one answer, any: how many words are ahead of it. No burst crosses a multiple of its longest length, no
    more are in flight than there is room for, no answer is lost for want of room; a job beyond the region is dropped.
    Jobs, the request's and the words' readers pause as they like, and the memory answers when it likes, in order, from
    the second cycle after the request on: the master's register lies between.
    """

    def __init__(self, unit: ReadEngine, *, region: int):
        self.unit, self.region = unit, region
        happens = ("second_burst", "dropped", "full")
        super().__init__(ports(("offer", "take", "answer", "data", "ready", "pick"), region, happens))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.unit = unit = self.unit
        answer = unit.port.response
        burst = bursts(m, unit, self.region, self.address, self.count, 0)
        m.d.comb += [
            unit.i.valid.eq(self.offer),
            unit.port.request.ready.eq(self.take),
            unit.o.ready.eq(self.ready),
            Assume(~ResetSignal()),
        ]

        # the memory: words of the oldest burst less one, and whether it is the last of its job
        asked, arriving = Signal(), Signal(len(unit.port.request.payload.length) + 1)
        beat, final, length, ends = Signal(range(unit.burst)), Signal(), Signal(range(unit.burst)), Signal()
        m.d.sync += [asked.eq(burst["asked"]), arriving.eq(Cat(burst["final"], unit.port.request.payload.length))]
        oldest, flying = line(m, "burst", unit.bursts, asked, arriving, ends)
        m.d.comb += [
            Cat(final, length).eq(oldest),
            answer.valid.eq(self.answer & (flying != 0)),
            answer.payload.data.eq(self.data),
            answer.payload.last.eq(beat == length),
            ends.eq(answer.valid & answer.payload.last),
        ]
        with m.If(answer.valid):
            m.d.sync += beat.eq(Mux(ends, 0, beat + 1))

        # the answer followed
        sent, followed = Signal(), Signal()
        inside, ahead = Signal(range(unit.depth + 2)), Signal(range(unit.depth + 2))
        data, last = Signal(), Signal()
        given = unit.o.payload
        m.d.sync += inside.eq(inside + answer.valid - sent)
        m.d.comb += [
            sent.eq(unit.o.valid & unit.o.ready),
            Assert(inside <= unit.depth),
            Assert(~sent | (inside != 0)),
            Assert(~(sent & followed & (ahead == 0)) | ((given.data == data) & (given.last == last))),
            self.cover_second_burst.eq(sent & followed & (ahead == 0) & last & given.data[0] & (inside == unit.depth)),
            self.cover_dropped.eq(burst["dropped"] & (flying != 0)),
            self.cover_full.eq((flying == unit.bursts) & unit.o.valid & ~sent),
        ]
        with m.If(sent & followed):
            m.d.sync += [ahead.eq(ahead - 1), followed.eq(ahead != 0)]
        with m.If(answer.valid & self.pick & ~followed):
            m.d.sync += [followed.eq(1), ahead.eq(inside - sent), data.eq(self.data), last.eq(final & (beat == length))]
        return m


class WriterSpec(wiring.Component):
    """Bursts cover the jobs word for word, in order, with the words as they came; a job is done when acknowledged.

    Followed is one word, any: how many are ahead of it. No burst crosses a multiple of its longest length or is asked
    for before all its words are there; its last word is marked. `done` comes with the acknowledgement of the last burst
    of a job with `last`, and with no other. Jobs, words and their readers pause as they like; the memory acknowledges
    when it likes, in order, after a burst's last word.
    """

    def __init__(self, unit: WriteEngine, *, region: int):
        self.unit, self.region = unit, region
        happens = ("full", "done", "marked", "dropped")
        names = ("offer", "last", "give", "data", "strobe", "take", "accept", "answer", "pick")
        super().__init__(ports(names, region, happens))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.unit = unit = self.unit
        request, given = unit.port.request, unit.port.data
        burst = bursts(m, unit, self.region, self.address, self.count, self.last)
        come, sent, ends, acknowledged = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            unit.i.valid.eq(self.offer),
            unit.i_data.valid.eq(self.give),
            unit.i_data.payload.data.eq(self.data),
            unit.i_data.payload.strobe.eq(self.strobe),
            request.ready.eq(self.take),
            given.ready.eq(self.accept),
            Assume(~ResetSignal()),
            Assume(kept(m, "word", unit.i_data)[1]),
            come.eq(unit.i_data.valid & unit.i_data.ready),
            sent.eq(given.valid & given.ready),
        ]

        # the memory: lengths of bursts whose words are to come; of those that are to be acknowledged, what to report
        beat = Signal(range(unit.burst))
        length, number = line(m, "burst", unit.bursts, burst["asked"], request.payload.length, ends)
        noted, flying = line(m, "flying", unit.bursts, burst["asked"], burst["report"], acknowledged)
        m.d.comb += [
            ends.eq(sent & (beat == length)),
            acknowledged.eq(self.answer & (flying > number)),
            unit.port.response.valid.eq(acknowledged),
            Assert(~sent | ((number != 0) & (given.payload.last == (beat == length)))),
            Assert(unit.done == (acknowledged & noted)),
        ]
        with m.If(sent):
            m.d.sync += beat.eq(Mux(ends, 0, beat + 1))

        # the word followed
        inside, promised = Signal(range(unit.depth + 2)), Signal(range(unit.depth + 2))
        ahead, followed, word = Signal(range(unit.depth + 2)), Signal(), Signal(2)
        here = sent & followed & (ahead == 0)
        m.d.sync += [
            inside.eq(inside + come - sent),
            promised.eq(promised + Mux(burst["asked"], burst["words"], 0) - sent),
        ]
        m.d.comb += [
            Assert((inside <= unit.depth) & (promised <= inside)),
            Assert(~sent | (promised != 0)),
            Assert(~here | ((given.payload.data == word[0]) & (given.payload.strobe == word[1]))),
            self.cover_full.eq((inside == unit.depth) & (flying == unit.bursts)),
            self.cover_done.eq(unit.done & (flying == unit.bursts)),
            self.cover_marked.eq(here & given.payload.last & word.all()),
            self.cover_dropped.eq(burst["dropped"] & (flying != 0)),
        ]
        with m.If(sent & followed):
            m.d.sync += [ahead.eq(ahead - 1), followed.eq(ahead != 0)]
        with m.If(come & self.pick & ~followed):
            m.d.sync += [followed.eq(1), ahead.eq(inside - sent), word.eq(Cat(self.data, self.strobe))]
        return m


class CopierSpec(wiring.Component):
    """Each copy is one read and one write job of its own; its words go its own way, and it is reported when written.

    Followed is one copy, any. Words pass unchanged, from one side to one side: those of the copy from its source's side
    to its target's, when all words of the copies before it have passed. It is reported once, with its own mark, after
    its write is done; copies to one side in order. `idle` says that all are reported.

    Copies, jobs and words pause as they like, on either side. Relied upon: words come after their read job, and a
    write is done after its job and its words, in order on each side.
    """

    def __init__(self, unit: CopyEngine):
        self.unit = unit
        sides = ("take_read", "take_write", "offered", "word", "last", "accept", "done")
        happens = ("crossed", "overtaken", "full", "idle_again")
        super().__init__(
            {
                **{name: In(1) for name in ("offer", "from_host", "to_host", "pick")},
                **{name: In(2) for name in ("source", "target", "bytes", *sides)},
                "owner": In(unit.owner_bits),
                **{f"cover_{name}": Out(1) for name in happens},
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.unit = unit = self.unit
        copy, most = unit.i.payload, 2 * unit.max_open + 2
        begins, waits, gone, ends = Signal(), Signal(), Signal(), Signal()
        left, right, had, jobs = Signal(2), Signal(2), Signal(2), Signal(2)
        m.d.sync += [waits.eq(unit.i.valid & ~unit.i.ready), had.eq(Mux(gone, 0, had | jobs))]
        m.d.comb += [
            unit.i.valid.eq(self.offer),
            *(copy[name].eq(getattr(self, name)) for name in copy.shape().members),
            Assume(~ResetSignal()),
            Assume(kept(m, "copy", unit.i)[1]),
            begins.eq(unit.i.valid & ~waits),
            gone.eq(unit.i.valid & unit.i.ready),
            ends.eq((left & self.last).any()),
            Assert(~gone | (had | jobs).all()),
            Assert((left != 3) & (right != 3) & (left.any() == right.any())),
        ]
        host = [copy.from_host, copy.to_host]
        given = [[Signal(range(most), name=f"{what}{side}") for side in range(2)] for what in ("reads", "writes")]
        written = [Signal(range(most), name=f"written{side}") for side in range(2)]
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
                Assume(kept(m, f"words{side}", read.data)[1]),
                Assume(~read.data.valid | (given[0][side] != 0)),
                Assume(~write.done | ((given[1][side] != 0) & (written[side] != 0))),
                left[side].eq(read.data.valid & read.data.ready),
                right[side].eq(write.data.valid & write.data.ready),
                Assert(~right[side] | (write.data.payload.data == Mux(left[1], self.word[1], self.word[0]))),
                Assert(~right[side] | write.data.payload.strobe.all()),
            ]
            finished = [left[side] & self.last[side], write.done]
            for k, (job, address) in enumerate(((read.job, copy.source), (write.job, copy.target))):
                taken = Signal(name=f"taken{k}_{side}")
                mine = (host[k] == side) & (job.payload.address == address) & (job.payload.count == copy.bytes)
                m.d.comb += [
                    taken.eq(job.valid & job.ready),
                    Assert(~job.valid | (unit.i.valid & ~had[k] & mine)),
                ]
                with m.If(taken):
                    m.d.comb += jobs[k].eq(1)
                m.d.sync += given[k][side].eq(given[k][side] + taken - finished[k])
            m.d.sync += written[side].eq(written[side] + (ends & right[side]) - write.done)

        # the copy followed: copies before it whose words pass, whose writes go to the same side, that wait for a report
        inside, writing = Signal(range(most)), [Signal(range(most), name=f"writing{side}") for side in range(2)]
        pending, unreported = Signal(range(most)), Signal(range(most))
        followed, passed, done = Signal(), Signal(), Signal()
        ahead, before, behind = Signal(range(most)), Signal(range(most)), Signal(range(most))
        source, target, owner = Signal(), Signal(), Signal(unit.owner_bits)
        device, late = unit.o.valid & self.done[0], unit.o.valid & ~self.done[0]
        m.d.sync += [
            inside.eq(inside + begins - ends),
            *(
                count.eq(count + (begins & (copy.to_host == side)) - self.done[side])
                for side, count in enumerate(writing)
            ),
            pending.eq(pending + self.done[1] - late),
            unreported.eq(unreported + gone - unit.o.valid),
        ]
        following = followed & ~passed & (ahead == 0)
        finishes = followed & ~done & (before == 0) & Mux(target, self.done[1], self.done[0])
        m.d.comb += [
            Assert(~left.any() | (inside != 0)),
            Assert(~(following & left.any()) | ((left == 1 << source) & (right == 1 << target))),
            Assert(~finishes | passed),
            Assert(~self.done[0] | unit.o.valid),
            Assert(~late | (pending != 0)),
            Assert(~(finishes & ~target) | (unit.o.payload == owner)),
            Assert(~(late & done & (behind == 0)) | (unit.o.payload == owner)),
            Assert(~unit.idle | (unreported == 0)),
            self.cover_crossed.eq(following & ends & source & ~target),
            self.cover_overtaken.eq(followed & done & target & device & (pending > 1)),
            self.cover_full.eq((inside > unit.max_open) & ~ends & followed),
            self.cover_idle_again.eq(followed & late & done & (behind == 0) & (unreported == 1)),
        ]
        with m.If(followed & ends & ~passed):
            m.d.sync += [ahead.eq(ahead - 1), passed.eq(ahead == 0)]
        with m.If(followed & ~done & Mux(target, self.done[1], self.done[0])):
            m.d.sync += [before.eq(before - 1), done.eq(target & (before == 0)), behind.eq(pending - late)]
            with m.If(~target & (before == 0)):
                m.d.sync += followed.eq(0)
        with m.If(late & done):
            m.d.sync += behind.eq(behind - 1)
            with m.If(behind == 0):
                m.d.sync += [followed.eq(0), done.eq(0)]
        with m.If(begins & self.pick & ~followed):
            m.d.sync += [followed.eq(1), passed.eq(0), source.eq(copy.from_host), target.eq(copy.to_host)]
            m.d.sync += [owner.eq(copy.owner), done.eq(0), ahead.eq(inside - ends)]
            m.d.sync += before.eq(Mux(copy.to_host, writing[1] - self.done[1], writing[0] - self.done[0]))
        return m


def small_copier() -> CopierSpec:
    """Two copies between their first and their last word."""
    return CopierSpec(CopyEngine(word=8, address_bits=10, owner_bits=1, max_open=2))


def small_reader() -> ReaderSpec:
    """Bursts of two, two in flight, a region of eight words."""
    return ReaderSpec(ReadEngine(word=8, burst=2, depth=4, bursts=2), region=8)


def small_writer() -> WriterSpec:
    """Bursts of two, two in flight, a region of eight words."""
    return WriterSpec(WriteEngine(word=8, burst=2, depth=4, bursts=2), region=8)
