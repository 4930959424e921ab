"""What runs programs: sequencer and units, on ports to memory. A fault resets all of it."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Cat, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.engines import Reader, Writer
from hw.axi.ports import FAULT, WORD_BITS, Cause, read_port, write_port
from hw.common.pipeline import SkidBuffer
from hw.config import Config
from hw.core.copies import Copies
from hw.core.dma import BURST, attach
from hw.core.isa import Unit
from hw.core.loader import Loader
from hw.core.matrix import Matrix
from hw.core.register_map import SEQUENCER, SOURCE_BITS
from hw.core.retrieval import Cache
from hw.core.sequencer import PROGRAM_BITS, STATES, Sequencer
from hw.core.vector import Vector

READERS = {  # of the device port, by ID: whose they are, words on their way
    "program": (SEQUENCER, 32),
    "code": (Unit.VECTOR, 16),
    "load": (Unit.LOAD, 64),
    "vector": (Unit.VECTOR, 32),
    "copy": (Unit.COPY, 64),
}
WRITERS = {"matrix": (Unit.MATRIX, 32), "vector": (Unit.VECTOR, 32), "table": (Unit.CACHE, 16), "copy": (Unit.COPY, 32)}


class Machine(wiring.Component):
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
        self.matrix, self.cache = Matrix(config), Cache(config)
        self.vector = Vector(config, self.cache.kvpu.score)
        self.loader = Loader(self.matrix.memory, beats=self.beats, kv_heads=config.kv_heads, units=self.cache.units)
        kvmu = self.cache.kvpu.kvmu
        self.copies = Copies(
            word=word,
            beats=self.beats,
            kv_heads=config.kv_heads,
            unit_words=kvmu.unit_bytes * 8 // word,
            most=self.cache.most,
            descriptor=kvmu.o_dma.payload.shape(),
            tags=kvmu.tags,
        )
        super().__init__(
            {
                "device_read": Out(read_port(word, BURST)).array(len(READERS)),
                "device_write": Out(write_port(word, BURST)).array(len(WRITERS)),
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
                "taking": Out(len(Unit)),
                "complete": Out(len(Unit)),
                "started": Out(len(Unit)),
                "stat_matrix": Out(1),
                "stat_vector": Out(1),
                "stat_state": Out(range(len(STATES))),
                **{name: In(shape) for name, shape in self.cache.settings.items()},
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.sequencer = sequencer = Sequencer(word=self.word)
        readers, writers = {}, {}
        faults: list[tuple[int, Value]] = []  # source, fault
        idle: list[Value] = []

        def engine(made: Reader | Writer, name: str, port: wiring.PureInterface, limit: Value, source: int) -> None:
            m.submodules[name] = made
            wiring.connect(m, made.port, wiring.flipped(port))
            m.d.comb += [made.limit.eq(limit), made.halt.eq(self.halt)]
            faults.append((source, made.fault))
            idle.append(made.idle)

        sizes = {"word": self.word, "burst": BURST}
        for number, (name, (source, depth)) in enumerate(READERS.items()):
            readers[name] = Reader(**sizes, depth=depth)
            engine(readers[name], f"read_{name}", self.device_read[number], self.device_words, source)
        for number, (name, (source, depth)) in enumerate(WRITERS.items()):
            writers[name] = Writer(**sizes, depth=depth)
            engine(writers[name], f"write_{name}", self.device_write[number], self.device_words, source)
        host_reader, host_writer = Reader(**sizes), Writer(**sizes)
        engine(host_reader, "read_host", self.host_read, self.host_words, Unit.COPY)
        engine(host_writer, "write_host", self.host_write, self.host_words, Unit.COPY)

        wiring.connect(m, sequencer.job, readers["program"].i)
        wiring.connect(m, readers["program"].o, sequencer.words)
        m.d.comb += [
            sequencer.start.eq(self.start),
            sequencer.base.eq(self.program),
            sequencer.commands.eq(self.commands),
            sequencer.events.eq(Cat(self.complete, self.matrix.read)),
            self.busy.eq(sequencer.busy),
            self.done.eq(sequencer.done),
            self.position.eq(sequencer.count),
            self.taking.eq(sequencer.taking),
            self.idle.eq(Cat(*idle).all()),
            self.stat_state.eq(sequencer.state),
        ]
        faults.append((SEQUENCER, sequencer.fault))

        self._units(m, sequencer, readers, writers, faults)
        copier = self.copies.copier
        m.submodules.copier = copier
        attach(m, copier, 0, readers["copy"], writers["copy"])
        attach(m, copier, 1, host_reader, host_writer)
        faults.append((Unit.COPY, copier.fault))

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
        readers: dict[str, Reader],
        writers: dict[str, Writer],
        faults: list[tuple[int, Value]],
    ) -> None:
        """The units, their commands, their memory, and what they say to each other."""
        loader, matrix, vector, cache, copies = self.loader, self.matrix, self.vector, self.cache, self.copies
        units = {
            Unit.LOAD: loader,
            Unit.MATRIX: matrix,
            Unit.VECTOR: vector,
            Unit.CACHE: cache,
            Unit.COPY: copies,
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
        m.d.comb += [made.sizes.eq(cache.sizes) for made in (loader, matrix, vector)]
        m.d.comb += [getattr(cache, name).eq(getattr(self, name)) for name in cache.settings]
        faults += [(Unit.LOAD, loader.fault), (Unit.CACHE, cache.fault)]

        wiring.connect(m, loader.job, readers["load"].i)
        wiring.connect(m, readers["load"].o, loader.words)
        wiring.connect(m, loader.write, matrix.load)
        m.d.comb += [
            cache.list_head.eq(loader.list_head),
            cache.list_at.eq(loader.list_at),
            cache.list_en.eq(loader.list_en),
            loader.list_entry.eq(cache.list_entry),
        ]

        for made, name, job, words in (
            (matrix, "matrix", matrix.job, matrix.words),
            (vector, "vector", vector.out_job, vector.out_words),
            (cache, "table", cache.job, cache.words),
        ):
            wiring.connect(m, job, writers[name].i)
            wiring.connect(m, words, writers[name].i_data)
            if made is not cache:
                m.d.comb += made.stored.eq(writers[name].done)
        for name, job, words in (
            ("code", vector.code_job, vector.code_words),
            ("vector", vector.in_job, vector.in_words),
        ):
            wiring.connect(m, job, readers[name].i)
            wiring.connect(m, readers[name].o, words)
        wiring.connect(m, vector.codes, cache.codes)
        wiring.connect(m, vector.scores, cache.scores)
        wiring.connect(m, cache.members, vector.members)
        low = (self.word // 8).bit_length() - 1
        m.d.comb += [
            cache.recall.eq(vector.recall),
            vector.mean_base.eq((self.cfg_mean_base >> low)[:WORD_BITS]),
            self.stat_matrix.eq(matrix.stat_busy),
            self.stat_vector.eq(vector.stat_busy),
        ]

        m.submodules.asked = asked = SkidBuffer(copies.copier.copy)
        wiring.connect(m, copies.give, asked.i)
        wiring.connect(m, asked.o, copies.copier.i)
        wiring.connect(m, copies.copier.o, copies.given)
        wiring.connect(m, cache.dma, copies.dma)
        m.d.comb += [
            cache.dma_done.eq(copies.dma_done),
            cache.dma_tag.eq(copies.dma_tag),
            cache.place_at.eq(copies.place_at),
            copies.place.eq(cache.place),
            copies.tokens.eq(cache.tokens),
            cache.placed.eq(copies.placed),
        ]
