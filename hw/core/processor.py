"""What runs programs: sequencer and units, on ports to memory. A fault resets all of it."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Cat, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.engines import ReadEngine, WriteEngine
from hw.axi.ports import FAULT, WORD_BITS, Cause, read_port, write_port
from hw.common.pipeline import SkidBuffer
from hw.config import Config
from hw.core.copy_unit import CopyUnit
from hw.core.dma import BURST, attach
from hw.core.isa import ExecUnit
from hw.core.load_unit import LoadUnit
from hw.core.matrix_unit import MatrixUnit
from hw.core.register_map import SEQUENCER, SOURCE_BITS
from hw.core.retrieval_unit import RetrievalUnit
from hw.core.sequencer import PROGRAM_BITS, STATES, Sequencer
from hw.core.vector.vector_unit import VectorUnit

READ_ENGINES = {  # of the device port, by ID: whose they are, words on their way
    "program": (SEQUENCER, 32),
    "code": (ExecUnit.VECTOR, 16),
    "load": (ExecUnit.LOAD, 64),
    "vector": (ExecUnit.VECTOR, 32),
    "copy": (ExecUnit.COPY, 64),
}
WRITE_ENGINES = {
    "matrix": (ExecUnit.MATRIX, 32),
    "vector": (ExecUnit.VECTOR, 32),
    "table": (ExecUnit.RETRIEVAL, 16),
    "copy": (ExecUnit.COPY, 32),
}


class Processor(wiring.Component):
    """Sequencer and units.

    Members
    -------
    device_read, device_write, host_read, host_write : to the masters
    start, program, commands, busy, done, position : as the sequencer's
    device_words, host_words : sizes of the regions
    halt : ask memory for nothing more ; idle : no burst in flight
    fault, source : in the cycle after something went wrong
    taking, started, complete : for every unit, commands under way; one begins; one is complete
    stat_matrix, stat_vector : the engine takes, or gives, a beat ; stat_state : the sequencer's state
    cfg_* : as the KV prediction unit's
    """

    def __init__(self, config: Config):
        if not config.dpe_trees == config.dpe_inputs == config.vpe_lanes:
            sizes = f"{config.dpe_trees}, {config.dpe_inputs}, {config.vpe_lanes}"
            raise ValueError(f"dpe_trees, dpe_inputs, vpe_lanes = {sizes}: must be equal")
        if config.head_dim % config.dpe_inputs:
            raise ValueError(f"head_dim = {config.head_dim}: must be a multiple of dpe_inputs = {config.dpe_inputs}")
        if config.vpe_lanes % config.wtu_lanes:
            raise ValueError(f"wtu_lanes = {config.wtu_lanes}: must divide vpe_lanes = {config.vpe_lanes}")
        self.config = config
        self.word = word = 16 * config.dpe_inputs
        self.beats = config.head_dim // config.dpe_inputs  # words of a key of one head
        self.matrix_unit, self.retrieval_unit = MatrixUnit(config), RetrievalUnit(config)
        self.vector_unit = VectorUnit(config, self.retrieval_unit.kvpu.score)
        self.load_unit = LoadUnit(
            self.matrix_unit.memory, beats=self.beats, kv_heads=config.kv_heads, units=self.retrieval_unit.units
        )
        kvmu = self.retrieval_unit.kvpu.kvmu
        self.copy_unit = CopyUnit(
            word=word,
            beats=self.beats,
            kv_heads=config.kv_heads,
            head_page_words=kvmu.head_page_bytes * 8 // word,
            most=self.retrieval_unit.most,
            descriptor=kvmu.o_dma.payload.shape(),
            tags=kvmu.tags,
        )
        super().__init__(
            {
                "device_read": Out(read_port(word, BURST)).array(len(READ_ENGINES)),
                "device_write": Out(write_port(word, BURST)).array(len(WRITE_ENGINES)),
                "host_read": Out(read_port(word, BURST)),
                "host_write": Out(write_port(word, BURST)),
                "start": In(1),
                "program": In(WORD_BITS),
                "commands": In(PROGRAM_BITS),
                "busy": Out(1),
                "done": Out(1),
                "position": Out(PROGRAM_BITS),
                "device_words": In(WORD_BITS + 1),
                "host_words": In(WORD_BITS + 1),
                "halt": In(1),
                "idle": Out(1),
                "fault": Out(FAULT),
                "source": Out(SOURCE_BITS),
                "taking": Out(len(ExecUnit)),
                "complete": Out(len(ExecUnit)),
                "started": Out(len(ExecUnit)),
                "stat_matrix": Out(1),
                "stat_vector": Out(1),
                "stat_state": Out(range(len(STATES))),
                **{name: In(shape) for name, shape in self.retrieval_unit.settings.items()},
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.sequencer = sequencer = Sequencer(word=self.word)
        readers, writers = {}, {}
        faults: list[tuple[int, Value]] = []  # source, fault
        idle: list[Value] = []

        def engine(
            made: ReadEngine | WriteEngine, name: str, port: wiring.PureInterface, limit: Value, source: int
        ) -> None:
            m.submodules[name] = made
            wiring.connect(m, made.port, wiring.flipped(port))
            m.d.comb += [made.limit.eq(limit), made.halt.eq(self.halt)]
            faults.append((source, made.fault))
            idle.append(made.idle)

        sizes = {"word": self.word, "burst": BURST}
        for number, (name, (source, depth)) in enumerate(READ_ENGINES.items()):
            readers[name] = ReadEngine(**sizes, depth=depth)
            engine(readers[name], f"read_{name}", self.device_read[number], self.device_words, source)
        for number, (name, (source, depth)) in enumerate(WRITE_ENGINES.items()):
            writers[name] = WriteEngine(**sizes, depth=depth)
            engine(writers[name], f"write_{name}", self.device_write[number], self.device_words, source)
        host_reader, host_writer = ReadEngine(**sizes), WriteEngine(**sizes)
        engine(host_reader, "read_host", self.host_read, self.host_words, ExecUnit.COPY)
        engine(host_writer, "write_host", self.host_write, self.host_words, ExecUnit.COPY)

        wiring.connect(m, sequencer.job, readers["program"].i)
        wiring.connect(m, readers["program"].o, sequencer.words)
        m.d.comb += [
            sequencer.start.eq(self.start),
            sequencer.base.eq(self.program),
            sequencer.commands.eq(self.commands),
            sequencer.events.eq(Cat(self.complete, self.matrix_unit.read)),
            self.busy.eq(sequencer.busy),
            self.done.eq(sequencer.done),
            self.position.eq(sequencer.count),
            self.taking.eq(sequencer.taking),
            self.idle.eq(Cat(*idle).all()),
            self.stat_state.eq(sequencer.state),
        ]
        faults.append((SEQUENCER, sequencer.fault))

        self._units(m, sequencer, readers, writers, faults)
        copy_engine = self.copy_unit.copy_engine
        m.submodules.copy_engine = copy_engine
        attach(m, copy_engine, 0, readers["copy"], writers["copy"])
        attach(m, copy_engine, 1, host_reader, host_writer)
        faults.append((ExecUnit.COPY, copy_engine.fault))

        # the first in this list that has one
        m.d.sync += self.fault.eq(0)
        for source, fault in reversed(faults):
            with m.If(Value.cast(fault.cause) != Cause.NONE):
                m.d.sync += [self.fault.eq(fault), self.source.eq(source)]
        return m

    def _units(
        self,
        m: Module,
        sequencer: Sequencer,
        readers: dict[str, ReadEngine],
        writers: dict[str, WriteEngine],
        faults: list[tuple[int, Value]],
    ) -> None:
        """The units, their commands, their memory, and what they say to each other."""
        load, matrix, vector, retrieval, copy = (
            self.load_unit,
            self.matrix_unit,
            self.vector_unit,
            self.retrieval_unit,
            self.copy_unit,
        )
        units = {
            ExecUnit.LOAD: load,
            ExecUnit.MATRIX: matrix,
            ExecUnit.VECTOR: vector,
            ExecUnit.RETRIEVAL: retrieval,
            ExecUnit.COPY: copy,
        }
        for unit, made in units.items():
            m.submodules[unit.name.lower()] = made
            wiring.connect(m, sequencer.o[unit], made.i)
            seen = Signal(name=f"seen_{unit.name.lower()}")  # the command on offer has begun
            m.d.comb += [
                self.complete[unit].eq(made.complete),
                self.started[unit].eq(made.i.valid & ~seen),
            ]
            m.d.sync += seen.eq(made.i.valid & ~made.i.ready)
        m.d.comb += [made.lengths.eq(retrieval.lengths) for made in (load, matrix, vector)]
        m.d.comb += [getattr(retrieval, name).eq(getattr(self, name)) for name in retrieval.settings]
        faults += [(ExecUnit.LOAD, load.fault), (ExecUnit.RETRIEVAL, retrieval.fault)]

        wiring.connect(m, load.job, readers["load"].i)
        wiring.connect(m, readers["load"].o, load.words)
        wiring.connect(m, load.write, matrix.load)
        m.d.comb += [
            retrieval.list_head.eq(load.list_head),
            retrieval.list_at.eq(load.list_at),
            retrieval.list_en.eq(load.list_en),
            load.list_entry.eq(retrieval.list_entry),
        ]

        for made, name, job, words in (
            (matrix, "matrix", matrix.job, matrix.words),
            (vector, "vector", vector.out_job, vector.out_words),
            (retrieval, "table", retrieval.job, retrieval.words),
        ):
            wiring.connect(m, job, writers[name].i)
            wiring.connect(m, words, writers[name].i_data)
            if made is not retrieval:
                m.d.comb += made.stored.eq(writers[name].done)
        for name, job, words in (
            ("code", vector.code_job, vector.code_words),
            ("vector", vector.in_job, vector.in_words),
        ):
            wiring.connect(m, job, readers[name].i)
            wiring.connect(m, readers[name].o, words)
        wiring.connect(m, vector.codes, retrieval.codes)
        wiring.connect(m, vector.scores, retrieval.scores)
        wiring.connect(m, retrieval.members, vector.members)
        low = (self.word // 8).bit_length() - 1
        m.d.comb += [
            retrieval.recall.eq(vector.recall),
            vector.mean_keys_base.eq((self.cfg_mean_keys_base >> low)[:WORD_BITS]),
            self.stat_matrix.eq(matrix.stat_busy),
            self.stat_vector.eq(vector.stat_busy),
        ]

        m.submodules.asked = asked = SkidBuffer(copy.copy_engine.copy)
        wiring.connect(m, copy.give, asked.i)
        wiring.connect(m, asked.o, copy.copy_engine.i)
        wiring.connect(m, copy.copy_engine.o, copy.given)
        wiring.connect(m, retrieval.dma, copy.dma)
        m.d.comb += [
            retrieval.dma_done.eq(copy.dma_done),
            retrieval.dma_tag.eq(copy.dma_tag),
            retrieval.place_at.eq(copy.place_at),
            copy.place.eq(retrieval.place),
            copy.tokens.eq(retrieval.tokens),
            retrieval.placed.eq(copy.placed),
        ]
