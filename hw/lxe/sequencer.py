"""Instructions of the vector engine become beats: one control word per cycle."""

import enum as python_enum

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.lxe.microcode import REDUCTIONS, Function, Post, Source

CODE_DEPTH = 4  # instructions that wait on chip
CARRIED = (  # fields of an instruction that go with its beats
    *("pre", "times", "function", "post", "a", "b", "a_row", "b_row", "c", "c_immediate", "immediate"),
    *("to_scalar", "to_memory", "round", "tail"),
)


class Stat(python_enum.StrEnum):
    """What is counted."""

    INSTRUCTIONS = "instructions"  # instructions finished issuing
    ISSUED = "issued"  # cycles in which a beat was issued
    STARVED = "starved"  # cycles in which a beat waited for `i`
    BLOCKED = "blocked"  # cycles in which a beat waited for `o`
    WAITING = "waiting"  # cycles in which a beat waited for earlier results, a division or a fold
    IDLE = "idle"  # cycles without an instruction


def control_layout(instruction: data.StructLayout) -> data.StructLayout:
    """What goes along with a beat of `instruction`s.

    phase : step of a rotated pair ; index : number of the beat in its row, five bits
    first, last : of its row ; emits : has a beat of `o` ; to_row : where its elements go
    """
    fields = dict(iter(instruction))
    own = {"phase": 2, "index": 5, "first": 1, "last": 1, "emits": 1, "to_row": fields["to_row"].shape}
    return data.StructLayout({**{name: fields[name].shape for name in CARRIED}, **own})


def folds(control: data.View) -> Value:
    """Whether an instruction or beat asks for a reduction over the lanes."""
    return (control.post == Post.SUM) | (control.post == Post.MAX)


class Sequencer(wiring.Component):
    """Queues instructions and issues their beats, in order and without a gap between instructions.

    Timing: a beat whose last one divides or folds is followed by `divide_cycles`, `fold_cycles` without one; one with
    `wait` is issued once nothing is `busy`. All outputs are functions of registers and of the inputs in the same cycle.

    Parameters
    ----------
    instruction : layout of an instruction
    divide_cycles, fold_cycles : cycles in which a beat holds up the pipeline

    Members
    -------
    code : stream of instructions
    offered, free, busy : a beat of `i` is there, a place behind `o` is free, earlier beats have not arrived
    takes : a beat of `i` would be taken ; issue : a beat goes, with `control` and the rows of its operands
    sends : the beat will have a beat of `o` ; events : what to count in this cycle
    """

    def __init__(self, instruction: data.StructLayout, *, divide_cycles: int, fold_cycles: int):
        self.instruction, self.control_layout = instruction, control_layout(instruction)
        self.divide_cycles, self.fold_cycles = divide_cycles, fold_cycles
        row = dict(iter(instruction))["a_row"].shape
        super().__init__(
            {
                "code": In(stream.Signature(instruction)),
                **dict.fromkeys(("offered", "free", "busy"), In(1)),
                **dict.fromkeys(("takes", "issue", "sends"), Out(1)),
                "control": Out(self.control_layout),
                **dict.fromkeys(("a_row", "b_row"), Out(row)),
                "events": Out(data.StructLayout(dict.fromkeys(Stat, 1))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.fifo = fifo = SyncFIFOBuffered(width=self.instruction.size, depth=CODE_DEPTH)
        m.d.comb += [
            fifo.w_data.eq(self.code.payload),
            fifo.w_en.eq(self.code.valid),
            self.code.ready.eq(fifo.w_rdy),
        ]

        # the instruction in force, and where it stands
        now, have = Signal(self.instruction), Signal()
        beat, row, phase, to_row = Signal(16), Signal(16), Signal(2), Signal.like(self.a_row)
        rotate, reduces = Signal(), Signal()
        first, last, final = Signal(), Signal(), Signal()  # beat of a row; last beat of all
        m.d.comb += [
            rotate.eq(now.post == Post.ROTATE),
            reduces.eq(Cat(now.post == post for post in REDUCTIONS).any()),
            first.eq(beat == 0),
            last.eq(beat + 1 == now.beats),
            final.eq(last & (row + 1 == now.rows) & (~rotate | (phase == 3))),
        ]

        # whether its next beat goes
        hold = Signal(range(self.divide_cycles + self.fold_cycles + 1))
        held, needs, emits, place, ready = Signal(), Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            held.eq((hold != 0) | (now.wait & self.busy & first & (row == 0) & (phase == 0))),
            needs.eq((now.a == Source.STREAM) & (phase != 3)),
            emits.eq(now.to_stream & Mux(reduces, last, ~rotate | phase[0])),
            place.eq(self.free | ~emits),
            ready.eq(have & ~held & place),
            self.issue.eq(ready & (self.offered | ~needs)),
            self.takes.eq(ready & (now.a == Source.STREAM) & ~phase[0]),
            self.sends.eq(self.issue & emits),
            fifo.r_en.eq(~have | (self.issue & final)),
        ]
        divides = now.function == Function.DIVIDE
        with m.If(self.issue):
            m.d.sync += hold.eq(Mux(divides, self.divide_cycles, 0) + Mux(folds(now) & last, self.fold_cycles, 0))
        with m.Elif(hold != 0):
            m.d.sync += hold.eq(hold - 1)

        # of a pair (x, y), ROTATE issues x cos, y sin, y cos, x sin
        step = Signal()
        m.d.comb += step.eq(~rotate | phase[0])
        with m.If(self.issue):
            m.d.sync += [
                phase.eq(Mux(rotate, phase + 1, 0)),
                self.a_row.eq(self.a_row + (~rotate | (phase == 0) | (phase == 3))),
                to_row.eq(to_row + step),
                self.b_row.eq(self.b_row + Mux(rotate & (phase == 1), -1, 1)),
                beat.eq(beat + step),
            ]
            with m.If(last & step):
                m.d.sync += [beat.eq(0), row.eq(row + 1), self.b_row.eq(now.b_row)]
        with m.If(fifo.r_en):
            fresh = data.View(self.instruction, fifo.r_data)
            m.d.sync += [
                now.eq(fresh),
                have.eq(fifo.r_rdy),
                *(counter.eq(0) for counter in (beat, row, phase)),
                self.a_row.eq(fresh.a_row),
                self.b_row.eq(fresh.b_row),
                to_row.eq(fresh.to_row),
            ]

        own = {"phase": phase, "index": beat[:5], "first": first, "last": last, "emits": emits, "to_row": to_row}
        carried = {name: now[name] for name in CARRIED}
        m.d.comb += [self.control[name].eq(value) for name, value in {**carried, **own}.items()]
        events = {
            Stat.INSTRUCTIONS: self.issue & final,
            Stat.ISSUED: self.issue,
            Stat.STARVED: ready & needs & ~self.offered,
            Stat.BLOCKED: have & ~held & ~place,
            Stat.WAITING: have & held,
            Stat.IDLE: ~have,
        }
        m.d.comb += [self.events[name].eq(event) for name, event in events.items()]
        return m
