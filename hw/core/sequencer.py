"""The command sequencer: fetches a program and issues its commands to the units when their waits are satisfied."""

# mypy: disable-error-code="assignment,arg-type"

from collections.abc import Sequence
from typing import Any

from amaranth import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi.engines import read_word_layout
from hw.axi.gearbox import Gearbox
from hw.axi.ports import COUNT_BITS, FAULT, JOB, WORD_ADDRESS_BITS, Cause
from hw.core import isa
from hw.core.isa import COMMAND_BYTES, HEADER_BITS, OPCODE_BITS, OPCODES, WAIT_BITS, ExecUnit, SyncEvent

# Commands that the queue of each unit holds, including the one that a serial unit executes. Those of the retrieval unit
# are FETCH, CLUSTER, OFFLOAD, OPEN, and SELECT for eight KV heads: while FETCH waits for the host link, the commands
# behind them can be issued.
QUEUE_DEPTHS = dict.fromkeys(ExecUnit, 4) | {ExecUnit.RETRIEVAL: 12}
IN_FLIGHT_BITS = 4  # width of the number of commands of one unit that are queued or in progress
PROGRAM_BITS = 20  # width of the number of commands of a program
# A command in a queue: its opcode and its fields. The waits become wait counts.
COMMAND = data.StructLayout({"opcode": OPCODE_BITS, "body": 8 * COMMAND_BYTES - HEADER_BITS})
WAIT_COUNTS = data.ArrayLayout(IN_FLIGHT_BITS, len(SyncEvent))  # for each event, how many occurrences are awaited
STATES = ("IDLE", "REQUEST", "RUN", "DRAIN", "FINISH", "OPCODE", "TRUNCATED")


def ongoing(fsm: Any, states: Sequence[str]) -> Value:
    """Position in `states` of the current state of a state machine."""
    number: Value = Const(0)
    for n, name in enumerate(states):
        number = Mux(fsm.ongoing(name), n, number)
    return number


def fields(opcode: str) -> data.StructLayout:
    """Layout of the fields of a command in `body`."""
    return data.StructLayout({f.name: f.bits for f in isa.BY_NAME[opcode].fields})


def view(command: data.View, opcode: str) -> data.View:
    """The body of a command as the fields of `opcode`."""
    layout = fields(opcode)
    return data.View(layout, command.body[: layout.size])


class CommandQueue(wiring.Component):
    """Queue of the commands of one unit. The oldest command leaves when all its waits are satisfied.

    An entry has the bits of the longest command of the unit.

    Every entry has a counter per event: the number of occurrences that it still waits for. Each occurrence decrements
    the counters of all entries.

    Timing: an entry is offered two cycles after it entered, at the earliest; `o.valid` depends on registers only.

    Parameters
    ----------
    unit : the unit

    Members
    -------
    i : stream of COMMAND
    wait_counts : wait counts of the command on `i`
    events : the events that occur in this cycle
    o : stream of COMMAND

    Attributes
    ----------
    depth : entries
    newest, oldest : registers: index of the next entry to write, and of the oldest entry
    remaining : registers: wait counts of every entry
    """

    def __init__(self, unit: ExecUnit) -> None:
        self.body = max(sum(f.bits for f in op.fields) for op in OPCODES if op.unit is unit)
        self.depth = QUEUE_DEPTHS[unit]
        self.fifo = SyncFIFOBuffered(width=OPCODE_BITS + self.body, depth=self.depth)
        self.newest = Signal(range(self.depth), name="newest")
        self.oldest = Signal(range(self.depth), name="oldest")
        self.remaining = [
            [Signal(IN_FLIGHT_BITS, name=f"remaining{entry}_{event.name.lower()}") for event in SyncEvent]
            for entry in range(self.depth)
        ]
        super().__init__(
            {
                "i": In(stream.Signature(COMMAND)),
                "wait_counts": In(WAIT_COUNTS),
                "events": In(len(SyncEvent)),
                "o": Out(stream.Signature(COMMAND)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.fifo = fifo = self.fifo
        newest, oldest = self.newest, self.oldest
        m.d.comb += [
            fifo.w_data.eq(Cat(self.i.payload.opcode, self.i.payload.body[: self.body])),
            fifo.w_en.eq(self.i.valid),
            self.i.ready.eq(fifo.w_rdy),
            self.o.payload.opcode.eq(fifo.r_data[:OPCODE_BITS]),
            self.o.payload.body.eq(fifo.r_data[OPCODE_BITS:]),
            fifo.r_en.eq(self.o.valid & self.o.ready),
        ]
        for entry, counts in enumerate(self.remaining):
            for event, count in zip(SyncEvent, counts, strict=True):
                with m.If(self.i.valid & self.i.ready & (newest == entry)):
                    m.d.sync += count.eq(self.wait_counts[event])
                with m.Elif(self.events[event] & (count != 0)):
                    m.d.sync += count.eq(count - 1)
        waiting = Array(Cat(*counts).any() for counts in self.remaining)
        m.d.comb += self.o.valid.eq(fifo.r_rdy & ~waiting[oldest])
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += newest.eq(Mux(newest == self.depth - 1, 0, newest + 1))
        with m.If(fifo.r_en):
            m.d.sync += oldest.eq(Mux(oldest == self.depth - 1, 0, oldest + 1))
        return m


class Sequencer(wiring.Component):
    """Reads a program from memory and issues its commands.

    Commands are decoded in order, one per cycle, into the queue of their unit. A full queue stalls the decoding. A
    command is issued when it is the oldest one of its queue and its waits are satisfied. A command can wait for earlier
    commands only, so a program cannot deadlock.

    ```
    words ──> gearbox ──> decode ──> queue LOAD ─────> o[LOAD]
                            │        ...
                            └──────> queue COPY ─────> o[COPY]      events ──> wait counts of all queues
    ```

    Timing: one command per cycle, limited by memory; three cycles from decoding to issue.

    Parameters
    ----------
    word : bits of a memory word

    Members
    -------
    start : starts a program; only while not `busy`
    base, commands : first word and number of commands of the program
    job, words : read engine
    o : for each unit, stream of COMMAND
    events : the events that occur in this cycle
    has_commands : for each unit, commands are queued or in progress
    busy : a program runs
    done : the program is complete; one cycle
    count : decoded commands
    state : position in STATES
    fault : OPCODE with the index of the command, or TRUNCATED with the number of commands; high until reset

    Attributes
    ----------
    queues : the queue of each unit
    in_flight : registers: for each event, commands of its unit that are queued or in progress and have not signalled it
    """

    def __init__(self, *, word: int):
        self.word = word
        self.queues = [CommandQueue(unit) for unit in ExecUnit]
        self.in_flight = [Signal(IN_FLIGHT_BITS, name=f"in_flight_{event.name.lower()}") for event in SyncEvent]
        super().__init__(
            {
                "start": In(1),
                "base": In(WORD_ADDRESS_BITS),
                "commands": In(PROGRAM_BITS),
                "job": Out(stream.Signature(JOB)),
                "words": In(stream.Signature(read_word_layout(word))),
                "o": Out(stream.Signature(COMMAND)).array(len(ExecUnit)),
                "events": In(len(SyncEvent)),
                "has_commands": Out(len(ExecUnit)),
                "busy": Out(1),
                "done": Out(1),
                "count": Out(PROGRAM_BITS),
                "state": Out(range(len(STATES))),
                "fault": Out(FAULT),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.gearbox = gearbox = Gearbox(word=self.word, item=8 * COMMAND_BYTES)
        wiring.connect(m, wiring.flipped(self.words), gearbox.i)
        command = gearbox.o.payload.as_value()
        is_known, is_end, target = self._decode(m, command[:OPCODE_BITS])
        pushed = Signal(len(ExecUnit))  # for each unit, the decoded command enters its queue
        has_room = self._queue(m, command, pushed)
        for event, count in zip(SyncEvent, self.in_flight, strict=True):
            m.d.sync += count.eq(count + pushed[event.unit] - self.events[event])
        m.d.comb += [self.has_commands[unit].eq(self.in_flight[unit] != 0) for unit in ExecUnit]
        with m.FSM(init="IDLE") as fsm:
            m.d.comb += self.busy.eq(~fsm.ongoing("IDLE"))
            m.d.comb += self.state.eq(ongoing(fsm, STATES))
            self._start(m)
            self._run(m, gearbox, is_known, is_end, target & has_room, pushed)
            self._end(m, gearbox)
        return m
        return m

    def _decode(self, m: Module, opcode: Value) -> tuple[Signal, Signal, Signal]:
        """Returns: the opcode exists; it is END; one-hot unit of the command."""
        is_known, is_end, target = Signal(), Signal(), Signal(len(ExecUnit))
        with m.Switch(opcode):
            for op in OPCODES:
                with m.Case(op.code):
                    m.d.comb += is_known.eq(1)
                    if op.unit is None:
                        m.d.comb += is_end.eq(1)
                    else:
                        m.d.comb += target[op.unit].eq(1)
        return is_known, is_end, target

    def _queue(self, m: Module, command: Value, pushed: Signal) -> Signal:
        """The queues with the decoded command. Returns: for each unit, its queue and its counters have room."""
        has_room, wait_counts = Signal(len(ExecUnit)), Signal(WAIT_COUNTS)
        waits = command[OPCODE_BITS : OPCODE_BITS + WAIT_BITS * len(SyncEvent)]
        for event in SyncEvent:
            wait = waits.word_select(event, WAIT_BITS)
            awaited = Signal(IN_FLIGHT_BITS, name=f"awaited_{event.name.lower()}")
            m.d.comb += [
                awaited.eq(self.in_flight[event] - self.events[event]),
                wait_counts[event].eq(Mux((wait == 0) | (awaited < wait), 0, awaited - wait + 1)),
            ]
        for unit, queue in zip(ExecUnit, self.queues, strict=True):
            m.submodules[f"queue_{unit.name.lower()}"] = queue
            wiring.connect(m, queue.o, wiring.flipped(self.o[unit]))
            counters = zip(SyncEvent, self.in_flight, strict=True)
            counter_full = [count.all() for event, count in counters if event.unit is unit]
            m.d.comb += [
                has_room[unit].eq(queue.i.ready & ~Cat(*counter_full).any()),
                queue.i.payload.opcode.eq(command[:OPCODE_BITS]),
                queue.i.payload.body.eq(command[HEADER_BITS:]),
                queue.wait_counts.eq(wait_counts),
                queue.i.valid.eq(pushed[unit]),
                queue.events.eq(self.events),
            ]
        return has_room

    def _start(self, m: Module) -> None:
        """States IDLE and REQUEST: start of a program and its read job."""
        item = 8 * COMMAND_BYTES
        per_word, words_per_command = max(1, self.word // item), max(1, item // self.word)
        words = (self.commands + per_word - 1) // per_word * words_per_command
        with m.State("IDLE"), m.If(self.start):
            m.d.sync += self.count.eq(0)
            m.next = "REQUEST"
            with m.If(self.commands == 0):
                m.next = "TRUNCATED"
        with m.State("REQUEST"):
            m.d.comb += [
                self.job.valid.eq(1),
                self.job.payload.address.eq(self.base),
                self.job.payload.count.eq(words[:COUNT_BITS]),
            ]
            with m.If(self.job.ready):
                m.next = "RUN"

    def _run(
        self, m: Module, gearbox: Gearbox, is_known: Signal, is_end: Signal, accepts: Value, pushed: Signal
    ) -> None:
        """State RUN: one command per cycle; `accepts`: one-hot unit of the command, if it has room."""
        with m.State("RUN"):
            decoded = gearbox.o.valid & (is_end | accepts.any())
            m.d.comb += [
                gearbox.o.ready.eq(decoded & ~is_end),
                pushed.eq(Mux(gearbox.o.valid & ~is_end, accepts, 0)),
            ]
            with m.If(gearbox.o.valid & is_end):
                m.next = "DRAIN"
            with m.Elif(gearbox.o.valid & ~is_known):
                m.next = "OPCODE"
            with m.Elif(decoded):
                m.d.sync += self.count.eq(self.count + 1)
                with m.If(self.count + 1 == self.commands):
                    m.next = "TRUNCATED"

    def _end(self, m: Module, gearbox: Gearbox) -> None:
        """States DRAIN (words behind END), FINISH (until all commands are complete), and the faults."""
        with m.State("DRAIN"):
            m.d.comb += gearbox.flush.eq(1)
            with m.If(gearbox.last | (self.words.valid & self.words.payload.last)):
                m.next = "FINISH"
        with m.State("FINISH"), m.If(Cat(count == 0 for count in self.in_flight).all()):
            m.d.comb += [self.done.eq(1), gearbox.flush.eq(1)]
            m.next = "IDLE"
        for cause in (Cause.OPCODE, Cause.TRUNCATED):
            with m.State(cause.name):
                m.d.comb += [self.fault.cause.eq(cause), self.fault.address.eq(self.count)]
