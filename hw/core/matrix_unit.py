"""The MATRIX unit: the matrix engine with its operand memory; results go to device memory."""

# mypy: disable-error-code="assignment,arg-type"

import enum

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.arith.formats import to_bf16
from hw.axi.engines import write_word_layout
from hw.axi.ports import JOB, WORD_ADDRESS_BITS
from hw.common.fork import fork
from hw.config import Config
from hw.core.lengths import LENGTH_BITS, block_count, clipped_count, command_length, lengths_layout
from hw.core.sequencer import COMMAND, fields, view
from hw.lxe.dpe import DPE
from hw.lxe.operand_memory import OperandMemory

MAX_UNACKNOWLEDGED = 4  # commands whose results are sent and not yet acknowledged by memory

# A MULTIPLY command within its run-time length; `is_empty`: it has nothing to multiply.
MATRIX_COMMAND = data.StructLayout({**fields("MULTIPLY").members, "is_empty": 1})


class LengthLimit(enum.IntEnum):
    """Dimension of a MULTIPLY that the run-time length limits."""

    NONE = 0
    RESULTS = 1
    INPUTS = 2


class MatrixUnit(wiring.Component):
    """Executes MULTIPLY.

    Three parts run independently, each with its own command register: one reads weights, one reads activations, one
    stores results. So the operands of a command are read while the results of the one before it leave.

    ```
              ┌─> weight reader ──────> operand memory ──> weights ─────┐
    command ──┼─> activation reader ──> operand memory ──> activations ─┤ DPE ├─> result writer ──> memory
              └────────────────────────────────────────────────────────────────────────^
    ```

    Timing: as the engine; a command starts two cycles after it is accepted.

    Parameters
    ----------
    config : sizes of the core

    Members
    -------
    i : stream of COMMAND
    complete : a command is complete: memory has acknowledged its results
    operands_read : the operands of a command are read, in the order of the commands
    lengths, counted : run-time lengths, and that of the last COUNT
    load : stream of rows for the operand memory
    job, words, write_done : write engine
    stat_busy : the engine accepts a beat

    Raises
    ------
    ValueError
        When dpe_trees / dpe_load_rows is not a power of two.
    """

    def __init__(self, config: Config):
        self.config = config
        self.engine, self.memory = DPE.from_config(config), OperandMemory.from_config(config)
        self.width = config.dpe_inputs
        self.word = 16 * self.width
        if self.engine.loads & (self.engine.loads - 1):
            raise ValueError(f"dpe_trees / dpe_load_rows must be a power of two, got {self.engine.loads}")
        super().__init__(
            {
                "i": In(stream.Signature(COMMAND)),
                "complete": Out(1),
                "operands_read": Out(1),
                "lengths": In(lengths_layout(config.kv_heads)),
                "counted": In(LENGTH_BITS),
                "load": In(stream.Signature(self.memory.write)),
                "job": Out(stream.Signature(JOB)),
                "words": Out(stream.Signature(write_word_layout(self.word))),
                "write_done": In(1),
                "stat_busy": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.engine, m.submodules.memory = engine, memory = self.engine, self.memory
        wiring.connect(m, wiring.flipped(self.load), memory.i_write)
        wiring.connect(m, memory.o_weights, engine.i_weights)
        wiring.connect(m, memory.o_activations, engine.i)
        m.d.comb += self.stat_busy.eq(engine.i.valid & engine.i.ready)

        command, valid = Signal(MATRIX_COMMAND), Signal()
        source = stream.Signature(MATRIX_COMMAND).create(path=("command",))
        stages = [stream.Signature(1).create(path=(name,)) for name in ("weights", "activations", "results")]
        fork(m, "command", source, stages)
        values = self._resolve(m)
        m.d.comb += [source.valid.eq(valid), self.i.ready.eq(~valid | source.ready)]
        with m.If(self.i.ready):
            m.d.sync += [valid.eq(self.i.valid), *(command[name].eq(value) for name, value in values.items())]
        ends = self._read_weights(m, stages[0], command), self._read_activations(m, stages[1], command)
        self._store_results(m, stages[2], command)

        # commands whose weights, and whose activations, are read; no stage is more than two commands ahead
        counts = [Signal(2, name=f"{name}_read") for name in ("weights", "activations")]
        m.d.comb += self.operands_read.eq(Cat(count != 0 for count in counts).all())
        m.d.sync += [count.eq(count + end - self.operands_read) for count, end in zip(counts, ends, strict=True)]
        return m

    def _resolve(self, m: Module) -> dict[str, Value]:
        """Fields of MATRIX_COMMAND from the incoming command and its run-time length."""
        command = view(self.i.payload, "MULTIPLY")
        elements = command_length(m, "length", self.lengths, command, self.config.kv_heads, self.counted)
        total = block_count(m, "blocks", elements, self.width)
        m_blocks = clipped_count(m, "m_blocks", total, command.block, command.m_blocks)
        k_blocks = clipped_count(m, "k_blocks", total, command.block, command.k_blocks)
        inputs, results = command.limit == LengthLimit.INPUTS, command.limit == LengthLimit.RESULTS
        values = {
            **{name: command[name] for name in fields("MULTIPLY").members},
            "m_blocks": Mux(results, m_blocks, command.m_blocks),
            "k_blocks": Mux(inputs, k_blocks, command.k_blocks),
            "first": Mux(inputs, command.block == 0, command.first),
            "last": Mux(inputs, command.block + command.k_blocks >= total, command.last),
        }
        values["is_empty"] = (values["m_blocks"] == 0) | (values["k_blocks"] == 0) | (command.vectors == 0)
        return values

    def _read_weights(self, m: Module, source: stream.Interface, incoming: data.View) -> Signal:
        """Weight tiles, input blocks inside result blocks. Returns: all tiles of a command are read."""
        command, memory, loads = Signal(MATRIX_COMMAND, name="weight_command"), self.memory, self.engine.loads
        tile, first_tile = Signal(16), Signal(16)  # current tile, first tile of the result block
        m_block, k_block = Signal(LENGTH_BITS), Signal(LENGTH_BITS)
        row_group, busy, end = Signal(range(max(2, loads))), Signal(), Signal()
        m.d.comb += [
            source.ready.eq(~busy),
            end.eq(source.valid & source.ready & incoming.is_empty),
            memory.i_weights.valid.eq(busy),
            memory.i_weights.payload.eq((tile * loads + row_group)[: len(memory.i_weights.payload)]),
        ]
        with m.If(source.valid & source.ready):
            m.d.sync += [command.eq(incoming), busy.eq(~incoming.is_empty)]
            m.d.sync += [tile.eq(incoming.weights), first_tile.eq(incoming.weights)]
            m.d.sync += [counter.eq(0) for counter in (m_block, k_block, row_group)]
        with m.If(busy & memory.i_weights.ready):
            m.d.sync += row_group.eq(Mux(row_group == loads - 1, 0, row_group + 1))
            with m.If(row_group == loads - 1):
                m.d.sync += [k_block.eq(k_block + 1), tile.eq(tile + command.k_stride)]
                with m.If(k_block + 1 == command.k_blocks):
                    next_tile = first_tile + command.m_stride
                    m.d.sync += [k_block.eq(0), m_block.eq(m_block + 1), tile.eq(next_tile), first_tile.eq(next_tile)]
                    with m.If(m_block + 1 == command.m_blocks):
                        m.d.comb += end.eq(1)
                        m.d.sync += busy.eq(0)
        return end

    def _read_activations(self, m: Module, source: stream.Interface, incoming: data.View) -> Signal:
        """Activation rows, every vector for every tile. Returns: all rows of a command are read."""
        command, memory = Signal(MATRIX_COMMAND, name="activation_command"), self.memory
        m_block, k_block, vector = Signal(LENGTH_BITS), Signal(LENGTH_BITS), Signal(8)
        row, base, next_base = Signal(16), Signal(16), Signal(16)  # `base`: first accumulator of the result block
        busy, end = Signal(), Signal()
        read = memory.i_activations.payload
        m.d.comb += [
            source.ready.eq(~busy),
            end.eq(source.valid & source.ready & incoming.is_empty),
            memory.i_activations.valid.eq(busy),
            read.row.eq((row + k_block)[: len(read.row)]),
            read.accumulator.eq((base + vector)[: len(read.accumulator)]),
            read.first.eq(command.first & (k_block == 0)),
            read.last.eq(command.last & (k_block + 1 == command.k_blocks)),
            read.release.eq(vector + 1 == command.vectors),
            next_base.eq(Mux(command.spread, base + command.vectors, 0)),
        ]
        with m.If(source.valid & source.ready):
            m.d.sync += [command.eq(incoming), busy.eq(~incoming.is_empty), row.eq(incoming.activations)]
            m.d.sync += [counter.eq(0) for counter in (m_block, k_block, vector, base)]
        with m.If(busy & memory.i_activations.ready):
            m.d.sync += [vector.eq(vector + 1), row.eq(row + command.x_stride)]
            with m.If(read.release):
                m.d.sync += [vector.eq(0), row.eq(command.activations), k_block.eq(k_block + 1)]
                with m.If(k_block + 1 == command.k_blocks):
                    m.d.sync += [k_block.eq(0), m_block.eq(m_block + 1), base.eq(next_base)]
                    with m.If(m_block + 1 == command.m_blocks):
                        m.d.comb += end.eq(1)
                        m.d.sync += busy.eq(0)
        return end

    def _store_results(self, m: Module, source: stream.Interface, incoming: data.View) -> None:
        """Results to memory, one job per beat of the engine; BF16 takes one word, FP32 two."""
        command, engine = Signal(MATRIX_COMMAND, name="result_command"), self.engine
        m_block, vector = Signal(LENGTH_BITS), Signal(8)
        address, block_address, next_block = (
            Signal(WORD_ADDRESS_BITS),
            Signal(WORD_ADDRESS_BITS),
            Signal(WORD_ADDRESS_BITS),
        )
        busy, has_results, second, final = Signal(), Signal(), Signal(), Signal()  # `second` word of a FP32 beat
        # of the current beat: accepted in an earlier cycle; accepted by the end of this one
        job_accepted, words_accepted, job_done, words_done, beat_done = (Signal() for _ in range(5))
        fp32 = Value.cast(engine.o.payload.y)
        bf16 = Cat(to_bf16(m, f"bf16_{k}", engine.o.payload.y[k]) for k in range(self.width))
        beat_valid = busy & has_results & engine.o.valid
        word_sent = self.words.valid & self.words.ready
        m.d.comb += [
            final.eq((vector + 1 == command.vectors) & (m_block + 1 == command.m_blocks)),
            source.ready.eq(~busy),
            self.job.valid.eq(beat_valid & ~job_accepted),
            self.job.payload.address.eq(address),
            self.job.payload.count.eq(1 + command.wide),
            self.job.payload.last.eq(final),
            self.words.valid.eq(beat_valid & ~words_accepted),
            self.words.payload.data.eq(Mux(command.wide, Mux(second, fp32[self.word :], fp32[: self.word]), bf16)),
            self.words.payload.strobe.eq(-1),
            job_done.eq(job_accepted | (self.job.valid & self.job.ready)),
            words_done.eq(words_accepted | (word_sent & (second | ~command.wide))),
            beat_done.eq(job_done & words_done),
            engine.o.ready.eq(beat_done),
            next_block.eq((block_address + 1 + command.wide)[:WORD_ADDRESS_BITS]),
        ]
        m.d.sync += [job_accepted.eq(job_done & ~beat_done), words_accepted.eq(words_done & ~beat_done)]
        with m.If(word_sent & command.wide):
            m.d.sync += second.eq(~second)
        with m.If(source.valid & source.ready):
            m.d.sync += [command.eq(incoming), busy.eq(1), has_results.eq(incoming.last & ~incoming.is_empty)]
            m.d.sync += [m_block.eq(0), vector.eq(0), address.eq(incoming.out), block_address.eq(incoming.out)]
        with m.If(beat_done):
            m.d.sync += [vector.eq(vector + 1), address.eq((address + command.stride)[:WORD_ADDRESS_BITS])]
            with m.If(vector + 1 == command.vectors):
                m.d.sync += [vector.eq(0), m_block.eq(m_block + 1), address.eq(next_block)]
                m.d.sync += block_address.eq(next_block)
            with m.If(final):
                m.d.sync += has_results.eq(0)
        self._report(m, command, busy, has_results)

    def _report(self, m: Module, command: data.View, busy: Signal, has_results: Signal) -> None:
        """Completion: operands are read and memory has acknowledged the results, if there are any."""
        # for every command that is sent: whether it waits for an acknowledgement
        m.submodules.pending = pending = SyncFIFOBuffered(width=1, depth=MAX_UNACKNOWLEDGED)
        read, acknowledged = Signal(4), Signal(range(MAX_UNACKNOWLEDGED + 2))  # of commands that are not complete
        m.d.comb += [
            pending.w_en.eq(busy & ~has_results),
            pending.w_data.eq(command.last & ~command.is_empty),
            self.complete.eq(pending.r_rdy & (read != 0) & (~pending.r_data | (acknowledged != 0))),
            pending.r_en.eq(self.complete),
        ]
        counted = self.complete & pending.r_data
        m.d.sync += [
            read.eq(read + self.operands_read - self.complete),
            acknowledged.eq((acknowledged + self.write_done - counted)[: len(acknowledged)]),
        ]
        with m.If(pending.w_en & pending.w_rdy):
            m.d.sync += busy.eq(0)
