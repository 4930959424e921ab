"""The processor of a core: the sequencer and the units, on read and write ports to memory."""

# mypy: disable-error-code="assignment,arg-type"

from dataclasses import dataclass, field

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.engines import ReadEngine, WriteEngine
from hw.axi.ports import FAULT, WORD_ADDRESS_BITS, Cause, read_port, write_port
from hw.common.pipeline import SkidBuffer
from hw.config import Config
from hw.core.barrier import BARRIER_PORT
from hw.core.copy_unit import CopyUnit
from hw.core.dma import BURST, attach
from hw.core.isa import ExecUnit
from hw.core.lengths import decisions_layout
from hw.core.load_unit import LoadUnit
from hw.core.matrix_unit import MatrixUnit
from hw.core.register_map import SEQUENCER, SOURCE_BITS
from hw.core.retrieval.retrieval_unit import RetrievalUnit
from hw.core.sequencer import PROGRAM_BITS, STATES, Sequencer, view
from hw.core.vector.vector_unit import VectorUnit
from hw.dre.kvmu.records import TABLE_BYTES
from hw.weight_codec.tile_layout import TileLayout

# Engines of the device port. The position is the AXI ID; the value is the fault source and the depth in words.
READ_ENGINES = {
    "program": (SEQUENCER, 32),
    "code": (ExecUnit.VECTOR, 16),
    "load": (ExecUnit.LOAD, 64),
    "vector": (ExecUnit.VECTOR, 32),
    "copy": (ExecUnit.COPY, 64),
    "store": (ExecUnit.RETRIEVAL, 32),
    "scores": (ExecUnit.RETRIEVAL, 16),
    "counts": (ExecUnit.RETRIEVAL, 16),
    "pages": (ExecUnit.LOAD, 16),
}
WRITE_ENGINES = {
    "matrix": (ExecUnit.MATRIX, 32),
    "vector": (ExecUnit.VECTOR, 32),
    "store": (ExecUnit.RETRIEVAL, 16),
    "copy": (ExecUnit.COPY, 32),
    "pages": (ExecUnit.RETRIEVAL, 16),
}


@dataclass(frozen=True)
class _Memory:
    """The read and write engines of the device port by name, and those of the host port as `host`.

    faults : fault source and fault of every engine and unit; the first one in the list is reported first
    """

    read: dict[str, ReadEngine] = field(default_factory=dict)
    write: dict[str, WriteEngine] = field(default_factory=dict)
    faults: list[tuple[int, Value]] = field(default_factory=list)


class Processor(wiring.Component):
    """Executes programs. After a fault the core resets all of it.

    ```
                      ┌─> LOAD ────────> operand memory ─> MATRIX (DPE)
    program ──> sequencer ─> VECTOR (VPE) ──> codes ──────────> RETRIEVAL (KVPU)
                      └─> COPY <── transfers, slots ───────────────┘
    ```
    Each unit has its own read and write engines; the masters of the core connect them to AXI.

    Timing: as the units; a fault is reported one cycle after it occurs.

    Parameters
    ----------
    config : sizes of the core

    Members
    -------
    device_read, device_write, host_read, host_write : ports to the masters, one per engine
    start, program, commands, busy, done, position : see `Sequencer`
    device_words, host_words : words of the two regions
    halt : no engine requests another burst
    idle : no burst is in flight
    fault, source : the first fault of a cycle and its source, an ExecUnit or SEQUENCER
    has_commands : for each unit, commands are queued or in progress
    started, complete : for each unit, a command starts; a command is complete
    stat_matrix : the matrix engine accepts a beat
    stat_vector : the vector engine sends a beat
    stat_state : state of the sequencer, a position in its STATES
    barrier : to the other cores of a step
    decisions : of the retrieval unit of this core
    shared_decisions, use_shared : decisions of another core's retrieval unit, and whether commands use them
    cfg_* : settings of the KV prediction unit

    Raises
    ------
    ValueError
        When the matrix and vector engines have different widths, a KV head is not a whole number of words, or the WTU
        lanes do not divide the vector lanes.
    """

    def __init__(self, config: Config):
        if not config.dpe_trees == config.dpe_inputs == config.vpe_lanes:
            sizes = f"{config.dpe_trees}, {config.dpe_inputs}, {config.vpe_lanes}"
            raise ValueError(f"dpe_trees, dpe_inputs, vpe_lanes must be equal, got {sizes}")
        if config.head_dim % config.dpe_inputs:
            raise ValueError(f"head_dim must be a multiple of dpe_inputs = {config.dpe_inputs}, got {config.head_dim}")
        if config.vpe_lanes % config.wtu_lanes:
            raise ValueError(f"wtu_lanes must divide vpe_lanes = {config.vpe_lanes}, got {config.wtu_lanes}")
        self.config = config
        self.word = word = 16 * config.dpe_inputs
        self.key_words = config.head_dim // config.dpe_inputs  # words of the key of one token and KV head
        self.matrix_unit, self.retrieval_unit = MatrixUnit(config), RetrievalUnit(config)
        self.vector_unit = VectorUnit(config)
        kvmu = self.retrieval_unit.kvpu.kvmu
        self.load_unit = LoadUnit(
            self.matrix_unit.memory,
            layout=kvmu.sizes.layout,
            kv_heads=config.kv_heads,
            max_pages=config.max_pages,
            tiles=None if config.weight_bits == 16 else TileLayout(config.dpe_inputs),
        )
        self.copy_unit = CopyUnit(
            layout=kvmu.sizes.layout,
            kv_heads=config.kv_heads,
            max_step_tokens=self.retrieval_unit.max_step_tokens,
            descriptor=kvmu.o_dma.payload.shape(),
            tags=kvmu.tags,
        )
        decisions = decisions_layout(config.kv_heads, config.max_pages)
        super().__init__(
            {
                "device_read": Out(read_port(word, BURST)).array(len(READ_ENGINES)),
                "device_write": Out(write_port(word, BURST)).array(len(WRITE_ENGINES)),
                "host_read": Out(read_port(word, BURST)),
                "host_write": Out(write_port(word, BURST)),
                "start": In(1),
                "program": In(WORD_ADDRESS_BITS),
                "commands": In(PROGRAM_BITS),
                "busy": Out(1),
                "done": Out(1),
                "position": Out(PROGRAM_BITS),
                "device_words": In(WORD_ADDRESS_BITS + 1),
                "host_words": In(WORD_ADDRESS_BITS + 1),
                "halt": In(1),
                "idle": Out(1),
                "fault": Out(FAULT),
                "source": Out(SOURCE_BITS),
                "has_commands": Out(len(ExecUnit)),
                "complete": Out(len(ExecUnit)),
                "started": Out(len(ExecUnit)),
                "stat_matrix": Out(1),
                "stat_vector": Out(1),
                "stat_state": Out(range(len(STATES))),
                "barrier": Out(BARRIER_PORT),
                "decisions": Out(decisions),
                "shared_decisions": In(decisions),
                "use_shared": In(1),
                **{name: In(shape) for name, shape in self.retrieval_unit.settings.items()},
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        memory = self._build_engines(m)
        self._build_sequencer(m, memory)
        self._connect_memory(m, memory)
        self._connect_units(m)
        self._connect_copy_engine(m, memory)
        # of several faults in one cycle, the first in the list is reported
        m.d.sync += self.fault.eq(0)
        for source, fault in reversed(memory.faults):
            with m.If(Value.cast(fault.cause) != Cause.NONE):
                m.d.sync += [self.fault.eq(fault), self.source.eq(source)]
        return m

    def _build_engines(self, m: Module) -> _Memory:
        """The read and write engines of both ports."""
        memory, idle = _Memory(), []
        sizes = {"word": self.word, "burst": BURST}

        def add(
            engine: ReadEngine | WriteEngine, name: str, port: wiring.PureInterface, limit: Value, source: int
        ) -> None:
            m.submodules[name] = engine
            wiring.connect(m, engine.port, wiring.flipped(port))
            m.d.comb += [engine.limit.eq(limit), engine.halt.eq(self.halt)]
            memory.faults.append((source, engine.fault))
            idle.append(engine.idle)

        for number, (name, (source, depth)) in enumerate(READ_ENGINES.items()):
            memory.read[name] = ReadEngine(**sizes, depth=depth)
            add(memory.read[name], f"read_{name}", self.device_read[number], self.device_words, source)
        for number, (name, (source, depth)) in enumerate(WRITE_ENGINES.items()):
            memory.write[name] = WriteEngine(**sizes, depth=depth)
            add(memory.write[name], f"write_{name}", self.device_write[number], self.device_words, source)
        memory.read["host"], memory.write["host"] = ReadEngine(**sizes), WriteEngine(**sizes)
        add(memory.read["host"], "read_host", self.host_read, self.host_words, ExecUnit.COPY)
        add(memory.write["host"], "write_host", self.host_write, self.host_words, ExecUnit.COPY)
        m.d.comb += self.idle.eq(Cat(*idle).all())
        return memory

    def _build_sequencer(self, m: Module, memory: _Memory) -> None:
        """The sequencer, the units with their commands, and the faults of both."""
        m.submodules.sequencer = sequencer = Sequencer(word=self.word)
        wiring.connect(m, sequencer.job, memory.read["program"].i)
        wiring.connect(m, memory.read["program"].o, sequencer.words)
        m.d.comb += [
            sequencer.start.eq(self.start),
            sequencer.base.eq(self.program),
            sequencer.commands.eq(self.commands),
            sequencer.events.eq(Cat(self.complete, self.matrix_unit.operands_read)),
            self.busy.eq(sequencer.busy),
            self.done.eq(sequencer.done),
            self.position.eq(sequencer.count),
            self.has_commands.eq(sequencer.has_commands),
            self.stat_state.eq(sequencer.state),
        ]
        units = {
            ExecUnit.LOAD: self.load_unit,
            ExecUnit.MATRIX: self.matrix_unit,
            ExecUnit.VECTOR: self.vector_unit,
            ExecUnit.RETRIEVAL: self.retrieval_unit,
            ExecUnit.COPY: self.copy_unit,
        }
        for number, unit in units.items():
            name = number.name.lower()
            m.submodules[name] = unit
            wiring.connect(m, sequencer.o[number], unit.i)
            begun = Signal(name=f"begun_{name}")  # the offered command started in an earlier cycle
            m.d.comb += [
                self.complete[number].eq(unit.complete),
                self.started[number].eq(unit.i.valid & ~begun),
            ]
            m.d.sync += begun.eq(unit.i.valid & ~unit.i.ready)
        self._build_barrier(m, sequencer, memory)
        memory.faults.append((SEQUENCER, sequencer.fault))
        memory.faults.append((ExecUnit.LOAD, self.load_unit.fault))
        memory.faults.append((ExecUnit.RETRIEVAL, self.retrieval_unit.fault))

    def _build_barrier(self, m: Module, sequencer: Sequencer, memory: _Memory) -> None:
        """BARRIER commands: the oldest one waits for the other cores."""
        command, broken = sequencer.o[ExecUnit.SYNC], Signal(FAULT)
        m.d.comb += [
            self.barrier.valid.eq(command.valid),
            self.barrier.cores.eq(view(command.payload, "BARRIER").cores),
            command.ready.eq(self.barrier.released),
            self.started[ExecUnit.SYNC].eq(command.valid & command.ready),
            self.complete[ExecUnit.SYNC].eq(command.valid & command.ready),
        ]
        with m.If(command.valid & self.barrier.broken):
            m.d.comb += broken.cause.eq(Cause.BARRIER)
        memory.faults.append((ExecUnit.SYNC, broken))

    def _connect_memory(self, m: Module, memory: _Memory) -> None:
        """Units to their engines."""
        load, matrix, vector, retrieval = self.load_unit, self.matrix_unit, self.vector_unit, self.retrieval_unit
        for name, job, words in (
            ("load", load.job, load.words),
            ("code", vector.code_job, vector.code_words),
            ("vector", vector.in_job, vector.in_words),
            ("store", retrieval.read_job, retrieval.read_words),
            ("scores", retrieval.score_job, retrieval.score_words),
            ("counts", retrieval.count_job, retrieval.count_words),
            ("pages", load.list_job, load.list_words),
        ):
            wiring.connect(m, job, memory.read[name].i)
            wiring.connect(m, memory.read[name].o, words)
        for name, job, words in (
            ("matrix", matrix.job, matrix.words),
            ("vector", vector.out_job, vector.out_words),
            ("store", retrieval.write_job, retrieval.write_words),
            ("pages", retrieval.list_job, retrieval.list_words),
        ):
            wiring.connect(m, job, memory.write[name].i)
            wiring.connect(m, words, memory.write[name].i_data)
        m.d.comb += [
            matrix.write_done.eq(memory.write["matrix"].done),
            vector.write_done.eq(memory.write["vector"].done),
            retrieval.write_done.eq(memory.write["store"].done),
            retrieval.list_write_done.eq(memory.write["pages"].done),
        ]

    def _connect_units(self, m: Module) -> None:
        """Streams and signals between the units."""
        load, matrix, vector = self.load_unit, self.matrix_unit, self.vector_unit
        retrieval, copy = self.retrieval_unit, self.copy_unit
        wiring.connect(m, load.write, matrix.load)
        wiring.connect(m, vector.codes, retrieval.codes)
        wiring.connect(m, retrieval.updates, vector.updates)
        wiring.connect(m, retrieval.descriptors, copy.descriptors)
        wiring.connect(m, retrieval.kept, copy.kept)
        own, used = self.decisions, Signal.like(self.decisions, name="used_decisions")
        mean_keys_base = retrieval.mean_keys_base * (TABLE_BYTES * 8 // self.word)
        m.d.comb += [
            own.lengths.eq(retrieval.lengths),
            own.list_base.eq(retrieval.list_base),
            own.list_entries.eq(retrieval.list_entries),
            used.eq(Mux(self.use_shared, self.shared_decisions, own)),
            *(unit.lengths.eq(used.lengths) for unit in (load, matrix, vector)),
            *(unit.counted.eq(load.counted) for unit in (matrix, vector)),
            *(getattr(retrieval, name).eq(getattr(self, name)) for name in retrieval.settings),
            load.list_base.eq(used.list_base),
            load.list_entries.eq(used.list_entries),
            retrieval.request_updates.eq(vector.request_updates),
            vector.mean_keys_base.eq(mean_keys_base[:WORD_ADDRESS_BITS]),
            retrieval.transfer_done.eq(copy.transfer_done),
            retrieval.done_tag.eq(copy.done_tag),
            retrieval.slot_index.eq(copy.slot_index),
            retrieval.stored.eq(copy.stored),
            copy.some_kept.eq(retrieval.some_kept),
            copy.slot_word.eq(retrieval.slot_word),
            *([copy.slot.eq(retrieval.slot)] if retrieval.slot_bits else []),
            copy.tokens.eq(retrieval.tokens),
            self.stat_matrix.eq(matrix.stat_busy),
            self.stat_vector.eq(vector.stat_busy),
        ]

    def _connect_copy_engine(self, m: Module, memory: _Memory) -> None:
        """The copy engine behind the COPY unit, with the engines of both ports."""
        copy_engine = self.copy_unit.copy_engine
        m.submodules.copy_engine = copy_engine
        m.submodules.copy_buffer = copy_buffer = SkidBuffer(copy_engine.copy)
        wiring.connect(m, self.copy_unit.copies, copy_buffer.i)
        wiring.connect(m, copy_buffer.o, copy_engine.i)
        wiring.connect(m, copy_engine.o, self.copy_unit.copies_done)
        attach(m, copy_engine, 0, memory.read["copy"], memory.write["copy"])
        attach(m, copy_engine, 1, memory.read["host"], memory.write["host"])
        memory.faults.append((ExecUnit.COPY, copy_engine.fault))
