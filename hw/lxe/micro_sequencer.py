"""Micro-sequencer of the vector engine: issues the beats of micro-instructions, one per cycle."""

import enum as python_enum

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.lxe.microcode import REDUCTIONS, Function, Post, Source

CODE_DEPTH = 4  # entries of the instruction queue
INSTRUCTION_FIELDS = (  # fields of an instruction that are also control signals of its beats
    *("pre", "times", "function", "post", "a", "b", "a_row", "b_row", "c", "c_immediate", "immediate"),
    *("to_scalar", "to_memory", "round", "tail"),
)


class Stat(python_enum.StrEnum):
    """Counters of the vector engine."""

    INSTRUCTIONS = "instructions"  # instructions of which the last beat was issued
    ISSUED = "issued"  # cycles in which a beat was issued
    STARVED = "starved"  # cycles in which a beat waited for `i`
    BLOCKED = "blocked"  # cycles in which a beat waited for `o`
    WAITING = "waiting"  # cycles in which a beat waited for earlier results, a division or a fold
    IDLE = "idle"  # cycles without an instruction


def control_layout(instruction: data.StructLayout) -> data.StructLayout:
    """Layout of the control signals of a beat: `INSTRUCTION_FIELDS` and

    phase : step of a rotated pair of beats (0 to 3)
    index : number of the beat in its row, lowest five bits
    first, last : first and last beat of a row
    emits : the beat has a result on `o`
    to_row : memory row of the result
    """
    fields = dict(iter(instruction))
    beat_fields = {"phase": 2, "index": 5, "first": 1, "last": 1, "emits": 1, "to_row": fields["to_row"].shape}
    return data.StructLayout({**{name: fields[name].shape for name in INSTRUCTION_FIELDS}, **beat_fields})


def folds(control: data.View) -> Value:
    """Whether an instruction or beat has a reduction over the lanes (SUM or MAX)."""
    return (control.post == Post.SUM) | (control.post == Post.MAX)


class MicroSequencer(wiring.Component):
    """Queues micro-instructions and issues their beats in order, without a gap between instructions.

    Timing: one beat per cycle. After a beat with a division no beat is issued for `divide_cycles` cycles; after the
    last beat of a row with SUM or MAX no beat is issued for `fold_cycles` cycles. The first beat of an instruction with
    `wait` is issued when `busy` is 0. Outputs are functions of registers and of the inputs in the same cycle.

    Parameters
    ----------
    instruction : layout of an instruction
    divide_cycles, fold_cycles : cycles without a beat after a division, after a reduction over the lanes

    Members
    -------
    code : stream of instructions
    input_valid : `i` has a beat
    output_ready : the queue of `o` has a free entry
    busy : results of issued beats are outstanding
    input_ready : a beat of `i` is accepted when it is valid
    issue : a beat is issued, with `control` and the operand rows `a_row`, `b_row`
    emits : the issued beat has a result on `o`
    events : events of this cycle that are counted, see `Stat`
    """

    def __init__(self, instruction: data.StructLayout, *, divide_cycles: int, fold_cycles: int):
        self.instruction, self.control_layout = instruction, control_layout(instruction)
        self.divide_cycles, self.fold_cycles = divide_cycles, fold_cycles
        row = dict(iter(instruction))["a_row"].shape
        super().__init__(
            {
                "code": In(stream.Signature(instruction)),
                **dict.fromkeys(("input_valid", "output_ready", "busy"), In(1)),
                **dict.fromkeys(("input_ready", "issue", "emits"), Out(1)),
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

        # the current instruction and its next beat
        current, active = Signal(self.instruction), Signal()
        beat, row, phase, to_row = Signal(16), Signal(16), Signal(2), Signal.like(self.a_row)
        rotate, reduces = Signal(), Signal()
        first, last, final = Signal(), Signal(), Signal()  # beat of a row; `final`: last beat of the instruction
        m.d.comb += [
            rotate.eq(current.post == Post.ROTATE),
            reduces.eq(Cat(current.post == post for post in REDUCTIONS).any()),
            first.eq(beat == 0),
            last.eq(beat + 1 == current.beats),
            final.eq(last & (row + 1 == current.rows) & (~rotate | (phase == 3))),
        ]

        # conditions to issue it
        hold = Signal(range(self.divide_cycles + self.fold_cycles + 1))  # cycles without a beat that remain
        blocked, needs_input, emits, has_space, ready = Signal(), Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            blocked.eq((hold != 0) | (current.wait & self.busy & first & (row == 0) & (phase == 0))),
            needs_input.eq((current.a == Source.STREAM) & (phase != 3)),
            emits.eq(current.to_stream & Mux(reduces, last, ~rotate | phase[0])),
            has_space.eq(self.output_ready | ~emits),
            ready.eq(active & ~blocked & has_space),
            self.issue.eq(ready & (self.input_valid | ~needs_input)),
            self.input_ready.eq(ready & (current.a == Source.STREAM) & ~phase[0]),
            self.emits.eq(self.issue & emits),
            fifo.r_en.eq(~active | (self.issue & final)),
        ]
        divides = current.function == Function.DIVIDE
        with m.If(self.issue):
            m.d.sync += hold.eq(Mux(divides, self.divide_cycles, 0) + Mux(folds(current) & last, self.fold_cycles, 0))
        with m.Elif(hold != 0):
            m.d.sync += hold.eq(hold - 1)

        # position of the following beat; ROTATE issues a pair (x, y) as x cos, y sin, y cos, x sin
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
                m.d.sync += [beat.eq(0), row.eq(row + 1), self.b_row.eq(current.b_row)]
        with m.If(fifo.r_en):
            following = data.View(self.instruction, fifo.r_data)
            m.d.sync += [
                current.eq(following),
                active.eq(fifo.r_rdy),
                *(counter.eq(0) for counter in (beat, row, phase)),
                self.a_row.eq(following.a_row),
                self.b_row.eq(following.b_row),
                to_row.eq(following.to_row),
            ]

        control = {name: current[name] for name in INSTRUCTION_FIELDS}
        control |= {"phase": phase, "index": beat[:5], "first": first, "last": last, "emits": emits, "to_row": to_row}
        m.d.comb += [self.control[name].eq(value) for name, value in control.items()]
        events = {
            Stat.INSTRUCTIONS: self.issue & final,
            Stat.ISSUED: self.issue,
            Stat.STARVED: ready & needs_input & ~self.input_valid,
            Stat.BLOCKED: active & ~blocked & ~has_space,
            Stat.WAITING: active & blocked,
            Stat.IDLE: ~active,
        }
        m.d.comb += [self.events[name].eq(event) for name, event in events.items()]
        return m
