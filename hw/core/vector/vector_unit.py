"""The VECTOR unit: the vector engine between its instruction fetch, its operand fetch and its result writer."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.engines import read_word_layout, write_word_layout
from hw.axi.ports import JOB, WORD_ADDRESS_BITS
from hw.common.fork import fork
from hw.config import Config
from hw.core.isa import BY_NAME, Fit
from hw.core.lengths import LENGTH_BITS, command_length, lengths_layout
from hw.core.retrieval.mean_updates import MEAN_UPDATE
from hw.core.retrieval.retrieval_unit import HASH_CODE
from hw.core.sequencer import COMMAND, view
from hw.core.vector.command import VECTOR_COMMAND
from hw.core.vector.instruction_fetch import InstructionFetch
from hw.core.vector.operand_fetch import OperandFetch
from hw.core.vector.result_writer import ResultWriter
from hw.lxe.vpe import VPE


class VectorUnit(wiring.Component):
    """Executes VECTOR and MEANS.

    Every command goes to three engines that run independently, each with its own command register: instruction fetch,
    operand fetch, result writer. So the operands of a command are read while the results of the one before it leave.
    MEANS reads no program: each mean update is an instruction, an operand or a result.

    ```
              ┌─> instruction fetch ──> instructions ─┐
    command ──┼─> operand fetch ──────> beats ───────>┤ VPE ├─> result writer ─> memory, HCU
              └─────────────────────────────────────────────────────^
    ```

    Timing: as the engine; the three engines start a command two cycles after the unit accepted it.

    Parameters
    ----------
    config : sizes of the core

    Members
    -------
    i : stream of COMMAND
    complete : a command is complete; with output in memory, memory has acknowledged it
    lengths, counted : run-time lengths, and that of the last COUNT
    code_job, code_words : read engine for programs
    in_job, in_words : read engine for operands
    out_job, out_words, write_done : write engine
    codes : stream of HASH_CODE to the KV prediction unit
    updates, request_updates : stream of the mean updates of a piece of a step, which the unit requests for MEANS
    mean_keys_base : word address of the mean keys
    stat_busy : the engine sends a beat
    """

    def __init__(self, config: Config):
        self.config = config
        self.engine = VPE.from_config(config)
        self.width = config.vpe_lanes
        self.word = 16 * self.width
        self.key_words = config.kv_heads * config.head_dim // self.width
        reading, writing = stream.Signature(read_word_layout(self.word)), stream.Signature(write_word_layout(self.word))
        jobs = stream.Signature(JOB)
        super().__init__(
            {
                "i": In(stream.Signature(COMMAND)),
                "complete": Out(1),
                "lengths": In(lengths_layout(config.kv_heads)),
                "counted": In(LENGTH_BITS),
                "code_job": Out(jobs),
                "code_words": In(reading),
                "in_job": Out(jobs),
                "in_words": In(reading),
                "out_job": Out(jobs),
                "out_words": Out(writing),
                "write_done": In(1),
                "codes": Out(stream.Signature(HASH_CODE)),
                "updates": In(stream.Signature(MEAN_UPDATE)),
                "request_updates": Out(1),
                "mean_keys_base": In(WORD_ADDRESS_BITS),
                "stat_busy": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sizes = {"width": self.width, "key_words": self.key_words}
        instructions = InstructionFetch(instruction=self.engine.instruction, **sizes)
        operands = OperandFetch(beat=self.engine.beat, **sizes)
        results = ResultWriter(beat=self.engine.beat, **sizes)
        m.submodules.engine = self.engine
        m.submodules.instruction_fetch = instructions
        m.submodules.operand_fetch = operands
        m.submodules.result_writer = results
        self._distribute(m, (instructions, operands, results))
        wiring.connect(m, instructions.o, self.engine.code)
        wiring.connect(m, operands.o, self.engine.i)
        wiring.connect(m, self.engine.o, results.i)
        for inner, outer in (
            (instructions.job, self.code_job),
            (operands.job, self.in_job),
            (results.job, self.out_job),
            (results.words, self.out_words),
            (results.codes, self.codes),
        ):
            wiring.connect(m, inner, wiring.flipped(outer))
        wiring.connect(m, wiring.flipped(self.code_words), instructions.words)
        wiring.connect(m, wiring.flipped(self.in_words), operands.words)
        m.d.comb += [
            operands.mean_keys_base.eq(self.mean_keys_base),
            results.mean_keys_base.eq(self.mean_keys_base),
            results.write_done.eq(self.write_done),
            self.complete.eq(results.complete),
            self.stat_busy.eq(self.engine.o.valid),
        ]
        return m

    def _distribute(self, m: Module, engines: tuple[InstructionFetch, OperandFetch, ResultWriter]) -> None:
        """A register with the resolved command, and copies of commands and mean updates for the three engines."""
        command, valid = Signal(VECTOR_COMMAND), Signal()
        source = stream.Signature(VECTOR_COMMAND).create(path=("command",))
        fork(m, "command", source, [engine.command for engine in engines])
        fork(m, "updates", self.updates, [engine.update for engine in engines])
        for engine in engines:
            m.d.comb += [engine.command.payload.eq(command), engine.update.payload.eq(self.updates.payload)]
        m.d.comb += [
            source.valid.eq(valid),
            self.i.ready.eq(~valid | source.ready),
            self.request_updates.eq(valid & source.ready & command.is_means),
        ]
        fields = self._resolve(m)
        with m.If(self.i.ready):
            m.d.sync += [valid.eq(self.i.valid), *(command[name].eq(value) for name, value in fields.items())]

    def _resolve(self, m: Module) -> dict[str, Value]:
        """Fields of VECTOR_COMMAND from the incoming command and its run-time length."""
        fields, means = view(self.i.payload, "VECTOR"), view(self.i.payload, "MEANS")
        is_means = self.i.payload.opcode == BY_NAME["MEANS"].code
        elements = command_length(m, "length", self.lengths, fields, self.config.kv_heads, self.counted)
        padded_beats = (elements + fields.pad + (self.width - 1)) >> (self.width.bit_length() - 1)
        fits = padded_beats <= self.config.vpe_rows
        skip = (elements == 0) | ((fields.fit == Fit.FITS) & ~fits) | ((fields.fit == Fit.EXCEEDS) & fits)
        return {
            **{f.name: fields[f.name] for f in BY_NAME["VECTOR"].fields},
            "repeat": Mux(~is_means & skip, 0, fields.repeat),
            "is_means": is_means,
            "keys": means.keys,
            "key_stride": means.stride,
            "elements": elements,
            "padded_beats": padded_beats,
        }
