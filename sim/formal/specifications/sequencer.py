"""Specification of the command sequencer; its docstring is the property."""

from types import SimpleNamespace

from amaranth import Array, Cat, Module, Mux, Signal, Value
from amaranth.hdl import Assert, Assume
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.ports import Cause
from hw.core.isa import COMMAND_BYTES, HEADER_BITS, OPCODE_BITS, OPCODES, WAIT_BITS, ExecUnit, SyncEvent
from hw.core.sequencer import IN_FLIGHT_BITS, PROGRAM_BITS, QUEUE_DEPTH, STATES, Sequencer
from sim.formal.specifications.common import constant, kept

QUEUE_BITS = (QUEUE_DEPTH - 1).bit_length()
PATIENCE = 2  # cycles until a command that need not wait is offered


def allowed_of(before: Value, wait: Value) -> Value:
    """So many commands ahead may be left where a command waits like that."""
    return (wait == 0) | (before < wait)


class SequencerSpec(wiring.Component):
    """A command is given when its waits allow it and no earlier, and none is held up for ever.

    Followed is one command of `unit`, any of any program, with any waits:
    - it is never given while, of an event, more are to come from the commands before it than it allows;
    - it is offered at the latest `PATIENCE` cycles after it is the first of its queue and no wait holds it;
    - of any event, no more are to come than there are earlier commands given or queued: it waits for nothing else.
    Hence the oldest command that is not given waits for given ones only. When nothing is given or queued, the
    sequencer goes on within `PATIENCE` cycles: it decodes a command, asks memory, or the program ends. So while memory
    answers and units finish what they are given, no program hangs.

    Relied upon: memory keeps a word until it is taken; an event belongs to a command that was given; `start` only
    while nothing runs. Unknown opcodes, and programs without END, end in their fault. That what leaves a queue is what
    entered it, in order, is the FIFO's claim.
    """

    def __init__(self, unit: ExecUnit):
        self.unit = unit
        happens = ("waited", "queued_behind", "full", "ended")
        super().__init__(
            {
                "start": In(1),
                "commands": In(PROGRAM_BITS),
                "ask": In(1),
                "offer": In(1),
                "header": In(HEADER_BITS),
                "last": In(1),
                "ready": In(len(ExecUnit)),
                "events": In(len(SyncEvent)),
                "pick": In(1),
                **{f"cover_{name}": Out(1) for name in happens},
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.sequencer = sequencer = Sequencer(word=8 * COMMAND_BYTES)
        words = sequencer.words
        constant(m, self.commands)
        m.d.comb += [
            sequencer.start.eq(self.start),
            sequencer.commands.eq(self.commands),
            sequencer.job.ready.eq(self.ask),
            sequencer.events.eq(self.events),
            words.valid.eq(self.offer),
            words.payload.data.eq(self.header),
            words.payload.last.eq(self.last),
            *(sequencer.o[unit].ready.eq(self.ready[unit]) for unit in ExecUnit),
            Assume(~self.start | ~sequencer.busy),
            Assume(kept(m, "word", words)[1]),
        ]
        running, draining = (sequencer.state == STATES.index(name) for name in ("RUN", "DRAIN"))
        taken = words.valid & words.ready
        pushed, fires = Signal(len(ExecUnit)), Signal(len(ExecUnit))
        opcode, waits = self.header[:OPCODE_BITS], self.header[OPCODE_BITS:]
        for unit in ExecUnit:
            mine = Cat(opcode == op.code for op in OPCODES if op.unit is unit).any()
            stream = sequencer.o[unit]
            m.d.comb += [pushed[unit].eq(taken & running & mine), fires[unit].eq(stream.valid & stream.ready)]

        counts = self._count_commands(m, sequencer, pushed, fires)
        tracked = self._track_command(m, pushed, fires, waits, counts)
        self._check_queues(m, sequencer, counts[0], tracked)
        self._check_progress(m, sequencer, running, draining, taken, counts, tracked)
        m.d.comb += [
            self.cover_full.eq(running & words.valid & ~words.ready & (counts[0][self.unit] == QUEUE_DEPTH)),
            self.cover_ended.eq(sequencer.done),
        ]
        return m

    def _count_commands(
        self, m: Module, sequencer: Sequencer, pushed: Signal, fires: Signal
    ) -> tuple[list[Signal], list[Signal], list[Signal]]:
        """Numbers of commands: queued (by unit), issued and not complete, and both (by event)."""
        queued = [Signal(range(QUEUE_DEPTH + 2), name=f"queued_{unit.name.lower()}") for unit in ExecUnit]
        given = [Signal(IN_FLIGHT_BITS + 1, name=f"given_{event.name.lower()}") for event in SyncEvent]
        under_way = [Signal(IN_FLIGHT_BITS + 1, name=f"still_{event.name.lower()}") for event in SyncEvent]
        for unit in ExecUnit:
            m.d.sync += queued[unit].eq(queued[unit] + pushed[unit] - fires[unit])
            m.d.comb += Assert(~fires[unit] | (queued[unit] != 0))
        for event in SyncEvent:
            m.d.sync += [
                given[event].eq(given[event] + fires[event.unit] - self.events[event]),
                under_way[event].eq(under_way[event] + pushed[event.unit] - self.events[event]),
            ]
            m.d.comb += Assume(~self.events[event] | (given[event] != 0))
            m.d.comb += Assert(under_way[event] == given[event] + queued[event.unit])
            m.d.comb += Assert(under_way[event] == sequencer.in_flight[event])
        return queued, given, under_way

    def _track_command(
        self, m: Module, pushed: Signal, fires: Signal, waits: Value, counts: tuple[list[Signal], ...]
    ) -> SimpleNamespace:
        """The tracked command: its waits, the older commands of its queue, and the events that must come before it."""
        queued, given, under_way = counts
        mine = self.unit
        followed = Signal()
        older = [Signal(range(QUEUE_DEPTH + 2), name=f"older_{unit.name.lower()}") for unit in ExecUnit]
        before = [Signal(IN_FLIGHT_BITS + 1, name=f"before_{event.name.lower()}") for event in SyncEvent]
        wait = [Signal(WAIT_BITS, name=f"wait_{event.name.lower()}") for event in SyncEvent]
        first, allowed, leaves = Signal(), Signal(), Signal()
        m.d.comb += [
            first.eq(followed & (older[mine] == 0)),
            allowed.eq(Cat(allowed_of(b, w) for w, b in zip(wait, before, strict=True)).all()),
            leaves.eq(first & fires[mine]),
        ]
        for unit in ExecUnit:
            with m.If(fires[unit] & (older[unit] != 0)):
                m.d.sync += older[unit].eq(older[unit] - 1)
        for event in SyncEvent:
            with m.If(self.events[event] & (before[event] != 0)):
                m.d.sync += before[event].eq(before[event] - 1)
            m.d.comb += Assert(~followed | (before[event] <= given[event] + older[event.unit]))
        with m.If(leaves):
            m.d.sync += followed.eq(0)
            m.d.comb += Assert(allowed)
        with m.If(pushed[mine] & self.pick & ~followed):
            m.d.sync += followed.eq(1)
            m.d.sync += [older[unit].eq(queued[unit] - fires[unit]) for unit in ExecUnit]
            for event in SyncEvent:
                m.d.sync += [
                    wait[event].eq(waits.word_select(event, WAIT_BITS)),
                    before[event].eq(under_way[event] - self.events[event]),
                ]

        return SimpleNamespace(
            followed=followed, older=older, before=before, wait=wait, first=first, allowed=allowed, leaves=leaves
        )

    def _check_queues(self, m: Module, sequencer: Sequencer, queued: list[Signal], tracked: SimpleNamespace) -> None:
        """Invariants of the queue entries, which shorten the proof."""
        mine, followed, older = self.unit, tracked.followed, tracked.older
        before, wait = tracked.before, tracked.wait
        for unit, queue in zip(ExecUnit, sequencer.queues, strict=True):
            m.d.comb += Assert((queue.newest - queue.oldest)[:QUEUE_BITS] == queued[unit][:QUEUE_BITS])
            m.d.comb += Assert((queue.fifo.level == queued[unit]) & (queued[unit] <= QUEUE_DEPTH))
        queue = sequencer.queues[mine]
        place = (queue.oldest + older[mine])[:QUEUE_BITS]
        m.d.comb += Assert(~followed | (older[mine] < queued[mine]))
        for event in SyncEvent:
            left = Array(counts[event] for counts in queue.remaining)[place]
            still = Mux(allowed_of(before[event], wait[event]), 0, before[event] - wait[event] + 1)
            m.d.comb += Assert(~followed | (left == still))

    def _check_progress(
        self,
        m: Module,
        sequencer: Sequencer,
        running: Value,
        draining: Value,
        taken: Value,
        counts: tuple[list[Signal], ...],
        tracked: SimpleNamespace,
    ) -> None:
        """The tracked command is offered, and the sequencer continues, within `PATIENCE` cycles."""
        queued, given, _ = counts
        mine, words, first, allowed = self.unit, sequencer.words, tracked.first, tracked.allowed
        late, stuck = Signal(range(PATIENCE + 2)), Signal(range(PATIENCE + 2))
        nothing = ~Cat(*queued, *given).any()
        outside = (  # somebody else is to act
            ~sequencer.busy
            | (sequencer.fault.cause != Cause.NONE)
            | sequencer.job.valid
            | ((running | draining) & ~words.valid)
        )
        m.d.sync += [
            late.eq(Mux(first & allowed & ~sequencer.o[mine].valid, late + 1, 0)),
            stuck.eq(Mux(nothing & ~outside & ~taken & ~sequencer.done, stuck + 1, 0)),
        ]
        m.d.comb += Assert(sequencer.busy == (sequencer.state != 0))  # no state beside these
        m.d.comb += [Assert(late <= PATIENCE), Assert(stuck <= PATIENCE)]

        held = Signal()  # it was the first of its queue, and a wait held it
        with m.If(first):
            m.d.sync += held.eq(~allowed | held)
        with m.Else():
            m.d.sync += held.eq(0)
        m.d.comb += [
            self.cover_waited.eq(tracked.leaves & held),
            self.cover_queued_behind.eq(tracked.followed & (tracked.older[mine] == QUEUE_DEPTH - 1)),
        ]
