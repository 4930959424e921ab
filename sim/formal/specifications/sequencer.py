"""Specification of the command sequencer; the docstring of the class is the property."""

from types import SimpleNamespace

from amaranth import Array, Cat, Module, Mux, Signal, Value
from amaranth.hdl import Assert, Assume
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.ports import Cause
from hw.core.isa import COMMAND_BYTES, HEADER_BITS, OPCODE_BITS, OPCODES, WAIT_BITS, ExecUnit, SyncEvent
from hw.core.sequencer import IN_FLIGHT_BITS, PROGRAM_BITS, QUEUE_DEPTHS, STATES, Sequencer
from sim.formal.specifications.common import constant, stability

PATIENCE = 2  # maximum number of cycles until a command whose waits allow it is offered


def allowed_of(before: Value, wait: Value) -> Value:
    """Whether the wait of a command allows `before` earlier commands that are not complete."""
    return (wait == 0) | (before < wait)


class SequencerSpec(wiring.Component):
    """A command is issued only when its waits allow it, and no command is blocked forever.

    The specification tracks one arbitrary command of `unit`, with arbitrary waits:
    - It is not issued while more events of earlier commands are pending than its waits allow.
    - It is offered at most `PATIENCE` cycles after it is the first of its queue and its waits allow it.
    - At most as many events are pending as earlier commands are issued or queued: it waits for no other command.
    Hence the oldest command that is not issued waits for issued commands only. When no command is issued or queued, the
    sequencer decodes a command, reads memory, or ends the program within `PATIENCE` cycles. So no program hangs while
    memory responds and units complete their commands.

    Assumptions: memory repeats a word until it is accepted; an event belongs to an issued command; `start` is 1 only
    while no program runs. Unknown opcodes and programs without END end with their fault. The specification of the FIFO
    covers the order and the content of the queues.
    """

    def __init__(self, unit: ExecUnit):
        self.unit = unit
        cover_names = ("waited", "queued_behind", "full", "ended")
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
                **{f"cover_{name}": Out(1) for name in cover_names},
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
            Assume(stability(m, "word", words)[1]),
        ]
        running, draining = (sequencer.state == STATES.index(name) for name in ("RUN", "DRAIN"))
        accepted = words.valid & words.ready
        pushed, fires = Signal(len(ExecUnit)), Signal(len(ExecUnit))
        opcode, waits = self.header[:OPCODE_BITS], self.header[OPCODE_BITS:]
        for unit in ExecUnit:
            own = Cat(opcode == op.code for op in OPCODES if op.unit is unit).any()
            stream = sequencer.o[unit]
            m.d.comb += [pushed[unit].eq(accepted & running & own), fires[unit].eq(stream.valid & stream.ready)]

        counts = self._count_commands(m, sequencer, pushed, fires)
        tracked = self._track_command(m, pushed, fires, waits, counts)
        self._check_queues(m, sequencer, counts[0], tracked)
        self._check_progress(m, sequencer, running, draining, accepted, counts, tracked)
        m.d.comb += [
            self.cover_full.eq(
                running & words.valid & ~words.ready & (counts[0][self.unit] == QUEUE_DEPTHS[self.unit])
            ),
            self.cover_ended.eq(sequencer.done),
        ]
        return m

    def _count_commands(
        self, m: Module, sequencer: Sequencer, pushed: Signal, fires: Signal
    ) -> tuple[list[Signal], list[Signal], list[Signal]]:
        """Numbers of commands: queued (by unit), issued and not complete, and both (by event)."""
        queued = [Signal(range(QUEUE_DEPTHS[unit] + 2), name=f"queued_{unit.name.lower()}") for unit in ExecUnit]
        issued = [Signal(IN_FLIGHT_BITS + 1, name=f"issued_{event.name.lower()}") for event in SyncEvent]
        pending = [Signal(IN_FLIGHT_BITS + 1, name=f"pending_{event.name.lower()}") for event in SyncEvent]
        for unit in ExecUnit:
            m.d.sync += queued[unit].eq(queued[unit] + pushed[unit] - fires[unit])
            m.d.comb += Assert(~fires[unit] | (queued[unit] != 0))
        for event in SyncEvent:
            m.d.sync += [
                issued[event].eq(issued[event] + fires[event.unit] - self.events[event]),
                pending[event].eq(pending[event] + pushed[event.unit] - self.events[event]),
            ]
            m.d.comb += Assume(~self.events[event] | (issued[event] != 0))
            m.d.comb += Assert(pending[event] == issued[event] + queued[event.unit])
            m.d.comb += Assert(pending[event] == sequencer.in_flight[event])
        return queued, issued, pending

    def _track_command(
        self, m: Module, pushed: Signal, fires: Signal, waits: Value, counts: tuple[list[Signal], ...]
    ) -> SimpleNamespace:
        """The tracked command: its waits, the older commands of its queue, and the events that must come before it."""
        queued, issued, pending = counts
        own = self.unit
        active = Signal()
        older = [Signal(range(QUEUE_DEPTHS[unit] + 2), name=f"older_{unit.name.lower()}") for unit in ExecUnit]
        before = [Signal(IN_FLIGHT_BITS + 1, name=f"before_{event.name.lower()}") for event in SyncEvent]
        wait = [Signal(WAIT_BITS, name=f"wait_{event.name.lower()}") for event in SyncEvent]
        first, allowed, leaves = Signal(), Signal(), Signal()
        m.d.comb += [
            first.eq(active & (older[own] == 0)),
            allowed.eq(Cat(allowed_of(b, w) for w, b in zip(wait, before, strict=True)).all()),
            leaves.eq(first & fires[own]),
        ]
        for unit in ExecUnit:
            with m.If(fires[unit] & (older[unit] != 0)):
                m.d.sync += older[unit].eq(older[unit] - 1)
        for event in SyncEvent:
            with m.If(self.events[event] & (before[event] != 0)):
                m.d.sync += before[event].eq(before[event] - 1)
            m.d.comb += Assert(~active | (before[event] <= issued[event] + older[event.unit]))
        with m.If(leaves):
            m.d.sync += active.eq(0)
            m.d.comb += Assert(allowed)
        with m.If(pushed[own] & self.pick & ~active):
            m.d.sync += active.eq(1)
            m.d.sync += [older[unit].eq(queued[unit] - fires[unit]) for unit in ExecUnit]
            for event in SyncEvent:
                m.d.sync += [
                    wait[event].eq(waits.word_select(event, WAIT_BITS)),
                    before[event].eq(pending[event] - self.events[event]),
                ]

        return SimpleNamespace(
            active=active, older=older, before=before, wait=wait, first=first, allowed=allowed, leaves=leaves
        )

    def _check_queues(self, m: Module, sequencer: Sequencer, queued: list[Signal], tracked: SimpleNamespace) -> None:
        """Invariants of the queue entries, which shorten the proof."""
        own, active, older = self.unit, tracked.active, tracked.older
        before, wait = tracked.before, tracked.wait
        for unit, queue in zip(ExecUnit, sequencer.queues, strict=True):
            bits = len(queue.newest)
            m.d.comb += Assert((queue.newest - queue.oldest)[:bits] == queued[unit][:bits])
            m.d.comb += Assert((queue.fifo.level == queued[unit]) & (queued[unit] <= queue.depth))
        queue = sequencer.queues[own]
        index = (queue.oldest + older[own])[: len(queue.oldest)]
        m.d.comb += Assert(~active | (older[own] < queued[own]))
        for event in SyncEvent:
            remaining = Array(counts[event] for counts in queue.remaining)[index]
            expected = Mux(allowed_of(before[event], wait[event]), 0, before[event] - wait[event] + 1)
            m.d.comb += Assert(~active | (remaining == expected))

    def _check_progress(
        self,
        m: Module,
        sequencer: Sequencer,
        running: Value,
        draining: Value,
        accepted: Value,
        counts: tuple[list[Signal], ...],
        tracked: SimpleNamespace,
    ) -> None:
        """The tracked command is offered, and the sequencer continues, within `PATIENCE` cycles."""
        queued, issued, _ = counts
        own, words, first, allowed = self.unit, sequencer.words, tracked.first, tracked.allowed
        late, stuck = Signal(range(PATIENCE + 2)), Signal(range(PATIENCE + 2))
        nothing = ~Cat(*queued, *issued).any()
        waits_for_others = (  # memory, a unit or the host must act next
            ~sequencer.busy
            | (sequencer.fault.cause != Cause.NONE)
            | sequencer.job.valid
            | ((running | draining) & ~words.valid)
        )
        m.d.sync += [
            late.eq(Mux(first & allowed & ~sequencer.o[own].valid, late + 1, 0)),
            stuck.eq(Mux(nothing & ~waits_for_others & ~accepted & ~sequencer.done, stuck + 1, 0)),
        ]
        m.d.comb += Assert(sequencer.busy == (sequencer.state != 0))  # no other state exists
        m.d.comb += [Assert(late <= PATIENCE), Assert(stuck <= PATIENCE)]

        blocked = Signal()  # the command was the first of its queue and a wait blocked it
        with m.If(first):
            m.d.sync += blocked.eq(~allowed | blocked)
        with m.Else():
            m.d.sync += blocked.eq(0)
        m.d.comb += [
            self.cover_waited.eq(tracked.leaves & blocked),
            self.cover_queued_behind.eq(tracked.active & (tracked.older[own] == QUEUE_DEPTHS[own] - 1)),
        ]
