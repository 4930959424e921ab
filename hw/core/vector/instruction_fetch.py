"""Instruction fetch of the VECTOR unit: programs from memory, or generated instructions for MEANS."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.engines import read_word_layout
from hw.axi.gearbox import Gearbox
from hw.axi.ports import JOB
from hw.core.retrieval.mean_updates import MEAN_UPDATE, MeanOp
from hw.core.vector.command import INSTRUCTION_BYTES, VECTOR_COMMAND, hold_command, row_length, to_fp32
from hw.lxe.microcode import Function, Instruction, Pre, Source, Times


class InstructionFetch(wiring.Component):
    """Sends the instructions of each command to the vector engine.

    VECTOR: the program is read from memory once per repetition; an instruction with 0 beats gets the length of the
    current row. MEANS: each mean update becomes one instruction, so no program is read.

    Timing: one instruction per cycle, limited by the words from memory.

    Parameters
    ----------
    instruction : layout of an instruction of the engine
    width : lanes of the engine = BF16 elements of a memory word
    key_words : words of the key of one token, all KV heads

    Members
    -------
    command : stream of VECTOR_COMMAND
    update : stream of MEAN_UPDATE
    job, words : read engine for programs
    o : stream of instructions
    """

    def __init__(self, *, instruction: data.StructLayout, width: int, key_words: int):
        self.instruction, self.width, self.key_words = instruction, width, key_words
        self.word = 16 * width
        super().__init__(
            {
                "command": In(stream.Signature(VECTOR_COMMAND)),
                "update": In(stream.Signature(MEAN_UPDATE)),
                "job": Out(stream.Signature(JOB)),
                "words": In(stream.Signature(read_word_layout(self.word))),
                "o": Out(stream.Signature(instruction)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        command, busy, start = hold_command(m, self.command)
        instruction = Signal(self.instruction)
        m.d.comb += self.o.payload.eq(instruction)
        self._request_programs(m, command, busy, start)
        self._send_program(m, command, busy, start, instruction)
        with m.If(command.is_means):
            self._send_mean_instruction(m, busy, instruction)
        return m

    def _request_programs(self, m: Module, command: data.View, busy: Signal, start: Signal) -> None:
        """One read job per repetition of a VECTOR command."""
        requested = Signal(16)  # repetitions whose program is requested
        per_word, per_instruction = self._ratio()
        words = ((command.instructions + (per_word - 1)) >> (per_word.bit_length() - 1)) * per_instruction
        m.d.comb += [
            self.job.valid.eq(busy & ~command.is_means & (requested != command.repeat)),
            self.job.payload.address.eq(command.code),
            self.job.payload.count.eq(words[:24]),
        ]
        with m.If(start):
            m.d.sync += requested.eq(0)
        with m.If(self.job.valid & self.job.ready):
            m.d.sync += requested.eq(requested + 1)

    def _ratio(self) -> tuple[int, int]:
        """Instructions per word and words per instruction; the smaller number is 1."""
        bits = 8 * INSTRUCTION_BYTES
        return max(1, self.word // bits), max(1, bits // self.word)

    def _send_program(self, m: Module, command: data.View, busy: Signal, start: Signal, instruction: data.View) -> None:
        """Instructions of VECTOR; what remains of the last word of a program is dropped."""
        m.submodules.gearbox = gearbox = Gearbox(word=self.word, item=8 * INSTRUCTION_BYTES)
        wiring.connect(m, wiring.flipped(self.words), gearbox.i)
        repetition, index = Signal(16), Signal(8)  # current repetition, and its current instruction
        last, remainder, flush, row_done = Signal(), Signal(), Signal(), Signal()
        code = data.View(self.instruction, gearbox.o.payload.as_value()[: self.instruction.size])
        beats, tail = row_length(m, command, start, row_done, self.width)
        unused = command.instructions[: self._ratio()[0].bit_length() - 1]
        m.d.comb += [
            last.eq(index + 1 == command.instructions),
            remainder.eq((unused if len(unused) else Const(0, 1)) != 0),
            gearbox.flush.eq(flush),
        ]
        with m.If(start):
            m.d.sync += [repetition.eq(0), index.eq(0)]
        with m.If(~command.is_means):
            m.d.comb += [
                instruction.eq(code),
                self.o.valid.eq(busy & (repetition != command.repeat) & gearbox.o.valid & ~flush),
                gearbox.o.ready.eq(busy & (repetition != command.repeat) & self.o.ready),
            ]
            with m.If(code.beats == 0):
                m.d.comb += [instruction.beats.eq(beats), instruction.tail.eq(tail)]
            with m.If(self.o.valid & self.o.ready):
                m.d.sync += [index.eq(Mux(last, 0, index + 1)), repetition.eq(repetition + last)]
                with m.If(last):
                    m.d.comb += row_done.eq(1)
                    m.d.sync += flush.eq(remainder)
            with m.If(busy & (repetition == command.repeat)):
                m.d.sync += busy.eq(0)
        with m.If(flush):
            m.d.sync += flush.eq(0)

    def _send_mean_instruction(self, m: Module, busy: Signal, instruction: data.View) -> None:
        """One instruction per mean update: mean times count, plus each new key, divided by the new count."""
        update = self.update.payload
        count = to_fp32(m, "count_code", update.count)
        multiply = Instruction(times=Times.C, c_immediate=True)
        add = Instruction(pre=Pre.ADD, b=Source.MEMORY)
        divide = Instruction(a=Source.MEMORY, function=Function.DIVIDE, c_immediate=True, to_stream=True)
        m.d.comb += [self.o.valid.eq(busy & self.update.valid), self.update.ready.eq(busy & self.o.ready)]
        with m.Switch(update.op):
            with m.Case(MeanOp.LOAD):
                m.d.comb += self._fields(instruction, multiply)
                m.d.comb += instruction.immediate.eq(Mux(update.opened, 0, count))
                m.d.comb += instruction.a.eq(Mux(update.opened, Source.IMMEDIATE, Source.STREAM))
            with m.Case(MeanOp.ADD):
                m.d.comb += self._fields(instruction, add)
            with m.Default():
                m.d.comb += self._fields(instruction, divide, to_memory=0)
                m.d.comb += instruction.immediate.eq(count)
        with m.If(self.update.valid & self.update.ready & (update.op == MeanOp.STORE) & update.last):
            m.d.sync += busy.eq(0)

    def _fields(self, instruction: data.View, op: Instruction, **changes: int) -> list[Value]:
        """Assignments of all fields of `op`, which processes one key and waits for the instruction before it."""
        fields = {**op.fields(), "wait": 1, "beats": self.key_words, "to_memory": 1, **changes}
        return [instruction[name].eq(value) for name, value in fields.items()]
