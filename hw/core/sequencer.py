"""The command sequencer: fetches a program, gives every unit its commands in order, and holds back what must wait."""

# mypy: disable-error-code="assignment,arg-type"

from collections.abc import Sequence
from typing import Any

from amaranth import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi.engines import words_read
from hw.axi.gearbox import Gearbox
from hw.axi.ports import COUNT_BITS, FAULT, JOB, WORD_BITS, Cause
from hw.core import isa
from hw.core.isa import COMMAND_BYTES, HEADER_BITS, OPCODE_BITS, OPCODES, WAIT_BITS, ExecUnit, SyncEvent

QUEUE_DEPTH = 4  # commands of one unit that wait
IN_FLIGHT_BITS = 4  # commands of one unit that are under way: those that wait, and a few inside
COMMAND = data.StructLayout({"opcode": OPCODE_BITS, "body": 8 * COMMAND_BYTES - HEADER_BITS})
PROGRAM_BITS = 20  # of the number of commands of a program
STATES = ("IDLE", "ASK", "RUN", "DRAIN", "FINISH", "OPCODE", "TRUNCATED")


def ongoing(fsm: Any, states: Sequence[str]) -> Value:
    """The number of the state that a machine is in."""
    number: Value = Const(0)
    for n, name in enumerate(states):
        number = Mux(fsm.ongoing(name), n, number)
    return number


def fields(opcode: str) -> data.StructLayout:
    """The fields of a command, as they lie in `body`."""
    return data.StructLayout({f.name: f.bits for f in isa.BY_NAME[opcode].fields})


def view(command: data.View, opcode: str) -> data.View:
    """The body of a command as the fields of `opcode`."""
    layout = fields(opcode)
    return data.View(layout, command.body[: layout.size])


class CommandQueue(wiring.Component):
    """Commands of one unit. Each waits, at the head, for the events that it names.

    An entry knows of every event how many are still ahead; each one that happens takes one off.

    Members
    -------
    i : stream of COMMAND ; ahead : of every event, how many the one on `i` waits for
    events : those that happen ; o : stream of COMMAND

    newest, oldest, left : registers: the next entry, that of the head, and for every entry what it still waits for
    """

    def __init__(self) -> None:
        self.fifo = SyncFIFOBuffered(width=COMMAND.size, depth=QUEUE_DEPTH)
        self.newest = Signal(range(QUEUE_DEPTH), name="newest")
        self.oldest = Signal(range(QUEUE_DEPTH), name="oldest")
        self.left = [
            [Signal(IN_FLIGHT_BITS, name=f"ahead{entry}_{event.name.lower()}") for event in SyncEvent]
            for entry in range(QUEUE_DEPTH)
        ]
        super().__init__(
            {
                "i": In(stream.Signature(COMMAND)),
                "ahead": In(data.ArrayLayout(IN_FLIGHT_BITS, len(SyncEvent))),
                "events": In(len(SyncEvent)),
                "o": Out(stream.Signature(COMMAND)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.fifo = fifo = self.fifo
        newest, oldest = self.newest, self.oldest
        m.d.comb += [
            fifo.w_data.eq(self.i.payload),
            fifo.w_en.eq(self.i.valid),
            self.i.ready.eq(fifo.w_rdy),
            Value.cast(self.o.payload).eq(fifo.r_data),
            fifo.r_en.eq(self.o.valid & self.o.ready),
        ]
        for entry, counts in enumerate(self.left):
            for event, count in zip(SyncEvent, counts, strict=True):
                with m.If(self.i.valid & self.i.ready & (newest == entry)):
                    m.d.sync += count.eq(self.ahead[event])
                with m.Elif(self.events[event] & (count != 0)):
                    m.d.sync += count.eq(count - 1)
        waiting = Array(Cat(*counts).any() for counts in self.left)
        m.d.comb += self.o.valid.eq(fifo.r_rdy & ~waiting[oldest])
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += newest.eq(newest + 1)
        with m.If(fifo.r_en):
            m.d.sync += oldest.eq(oldest + 1)
        return m


class Sequencer(wiring.Component):
    """Reads a program of commands and hands them to the units.

    Commands are decoded in order, one per cycle, and go into the queue of their unit; one whose queue is full holds up
    those behind it. A command starts when it is the first of its queue and, of every event that it names, no more are
    still to come from the earlier commands than it allows. It can only wait for earlier ones, so no program hangs.

    Timing: one command per cycle from memory's speed; three cycles from decoding to the unit.

    Members
    -------
    start : begin, only while not `busy` ; base : first word of the program ; commands : its length
    job, words : of a reader
    o : for every unit, stream of COMMAND ; events : those that happen
    taking : for every unit, commands of it are under way
    busy ; done : high for a cycle when a program has ended ; count : commands decoded ; state : number in STATES
    fault : OPCODE with the number of the command, TRUNCATED with the length; high until a reset
    """

    def __init__(self, *, word: int):
        self.word = word
        self.queues = [CommandQueue() for _ in ExecUnit]
        self.under_way = [Signal(IN_FLIGHT_BITS, name=f"under_way_{event.name.lower()}") for event in SyncEvent]
        super().__init__(
            {
                "start": In(1),
                "base": In(WORD_BITS),
                "commands": In(PROGRAM_BITS),
                "job": Out(stream.Signature(JOB)),
                "words": In(stream.Signature(words_read(word))),
                "o": Out(stream.Signature(COMMAND)).array(len(ExecUnit)),
                "events": In(len(SyncEvent)),
                "taking": Out(len(ExecUnit)),
                "busy": Out(1),
                "done": Out(1),
                "count": Out(PROGRAM_BITS),
                "state": Out(range(len(STATES))),
                "fault": Out(FAULT),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        item = 8 * COMMAND_BYTES
        m.submodules.gear = gear = Gearbox(word=self.word, item=item)
        wiring.connect(m, wiring.flipped(self.words), gear.i)
        under_way = self.under_way
        pushed = Signal(len(ExecUnit))
        for unit, queue in zip(ExecUnit, self.queues, strict=True):
            m.submodules[f"queue_{unit.name.lower()}"] = queue
            wiring.connect(m, queue.o, wiring.flipped(self.o[unit]))
            m.d.comb += [queue.events.eq(self.events), self.taking[unit].eq(under_way[unit] != 0)]
        for event, count in zip(SyncEvent, under_way, strict=True):
            m.d.sync += count.eq(count + pushed[event.unit] - self.events[event])

        command = gear.o.payload.as_value()
        opcode, waits = command[:OPCODE_BITS], command[OPCODE_BITS : OPCODE_BITS + WAIT_BITS * len(SyncEvent)]
        known, target, ends = Signal(), Signal(len(ExecUnit)), Signal()
        with m.Switch(opcode):
            for op in OPCODES:
                with m.Case(op.code):
                    m.d.comb += known.eq(1)
                    if op.unit is None:
                        m.d.comb += ends.eq(1)
                    else:
                        m.d.comb += target[op.unit].eq(1)
        ahead = Signal(data.ArrayLayout(IN_FLIGHT_BITS, len(SyncEvent)))
        for event in SyncEvent:
            wait = waits.word_select(event, WAIT_BITS)
            left = Signal(IN_FLIGHT_BITS, name=f"left_{event.name.lower()}")
            m.d.comb += [
                left.eq(under_way[event] - self.events[event]),
                ahead[event].eq(Mux((wait == 0) | (left < wait), 0, left - wait + 1)),
            ]
        room = Signal(len(ExecUnit))  # a unit never has more commands under way than can be counted
        for unit, queue in zip(ExecUnit, self.queues, strict=True):
            full = [count.all() for event, count in zip(SyncEvent, under_way, strict=True) if event.unit is unit]
            m.d.comb += [
                room[unit].eq(queue.i.ready & ~Cat(*full).any()),
                queue.i.payload.opcode.eq(opcode),
                queue.i.payload.body.eq(command[HEADER_BITS:]),
                queue.ahead.eq(ahead),
                queue.i.valid.eq(pushed[unit]),
            ]

        per_word, words = max(1, self.word // item), max(1, item // self.word)
        with m.FSM(init="IDLE") as fsm:
            m.d.comb += self.busy.eq(~fsm.ongoing("IDLE"))
            m.d.comb += self.state.eq(ongoing(fsm, STATES))
            with m.State("IDLE"), m.If(self.start):
                m.d.sync += self.count.eq(0)
                m.next = "ASK"
                with m.If(self.commands == 0):
                    m.next = "TRUNCATED"
            with m.State("ASK"):
                m.d.comb += [
                    self.job.valid.eq(1),
                    self.job.payload.address.eq(self.base),
                    self.job.payload.count.eq(((self.commands + per_word - 1) // per_word * words)[:COUNT_BITS]),
                ]
                with m.If(self.job.ready):
                    m.next = "RUN"
            with m.State("RUN"):
                taken = gear.o.valid & (ends | (target & room).any())
                m.d.comb += [gear.o.ready.eq(taken & ~ends), pushed.eq(Mux(gear.o.valid & ~ends, target & room, 0))]
                with m.If(gear.o.valid & ends):
                    m.next = "DRAIN"
                with m.Elif(gear.o.valid & ~known):
                    m.next = "OPCODE"
                with m.Elif(taken):
                    m.d.sync += self.count.eq(self.count + 1)
                    with m.If(self.count + 1 == self.commands):
                        m.next = "TRUNCATED"
            with m.State("DRAIN"):  # what was read behind the end
                m.d.comb += gear.flush.eq(1)
                with m.If(gear.last | (self.words.valid & self.words.payload.last)):
                    m.next = "FINISH"
            with m.State("FINISH"), m.If(Cat(count == 0 for count in under_way).all()):
                m.d.comb += [self.done.eq(1), gear.flush.eq(1)]
                m.next = "IDLE"
            for cause in (Cause.OPCODE, Cause.TRUNCATED):
                with m.State(cause.name):
                    m.d.comb += [self.fault.cause.eq(cause), self.fault.address.eq(self.count)]
        return m
