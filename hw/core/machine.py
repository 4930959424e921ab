"""What runs programs: sequencer and units, on ports to memory. A fault resets all of it."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Cat, Const, Module, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import Config
from hw.core.axi import FAULT, WORD_BITS, Cause, read_port, write_port
from hw.core.dma import BURST, Copier, attach
from hw.core.engines import Reader, Writer
from hw.core.isa import Unit
from hw.core.map import SEQUENCER, SOURCE_BITS
from hw.core.sequencer import PROGRAM_BITS, Sequencer, view

READERS = ("program", "copy")  # of the device port, by ID
WRITERS = ("copy",)


class Machine(wiring.Component):
    """Sequencer and units.

    Members
    -------
    device_read, device_write, host_read, host_write : to the masters
    start, program, commands, busy, done, position : as the sequencer's
    device_words, host_words : sizes of the regions
    halt : ask memory for nothing more ; idle : no burst in flight
    fault, source : in the cycle in which something goes wrong
    taking, complete : for every unit, commands under way; one is complete
    """

    def __init__(self, config: Config):
        self.config = config
        self.word = word = 16 * config.dpe_inputs
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
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.sequencer = sequencer = Sequencer(word=self.word)
        readers, writers = {}, {}
        faults: list[tuple[Value, Value]] = []  # source, fault
        idle: list[Value] = []

        def engine(made: Reader | Writer, name: str, port: wiring.PureInterface, limit: Value, source: int) -> None:
            m.submodules[name] = made
            wiring.connect(m, made.port, wiring.flipped(port))
            m.d.comb += [made.limit.eq(limit), made.halt.eq(self.halt)]
            faults.append((source, made.fault))
            idle.append(made.idle)

        sources = {"program": SEQUENCER, "copy": Unit.COPY}
        sizes = {"word": self.word, "burst": BURST}
        for number, name in enumerate(READERS):
            readers[name] = Reader(**sizes)
            engine(readers[name], f"read_{name}", self.device_read[number], self.device_words, sources[name])
        for number, name in enumerate(WRITERS):
            writers[name] = Writer(**sizes)
            engine(writers[name], f"write_{name}", self.device_write[number], self.device_words, sources[name])
        host_reader, host_writer = Reader(**sizes), Writer(**sizes)
        engine(host_reader, "read_host", self.host_read, self.host_words, Unit.COPY)
        engine(host_writer, "write_host", self.host_write, self.host_words, Unit.COPY)

        wiring.connect(m, sequencer.job, readers["program"].i)
        wiring.connect(m, readers["program"].o, sequencer.words)
        m.d.comb += [
            sequencer.start.eq(self.start),
            sequencer.base.eq(self.program),
            sequencer.commands.eq(self.commands),
            sequencer.complete.eq(self.complete),
            self.busy.eq(sequencer.busy),
            self.done.eq(sequencer.done),
            self.position.eq(sequencer.count),
            self.taking.eq(sequencer.taking),
            self.idle.eq(Cat(*idle).all()),
        ]
        faults.append((SEQUENCER, sequencer.fault))

        m.submodules.copier = copier = Copier(word=self.word, own_bits=1)
        attach(m, copier, 0, readers["copy"], writers["copy"])
        attach(m, copier, 1, host_reader, host_writer)
        faults.append((Unit.COPY, copier.fault))
        self._copy(m, sequencer, copier)

        # the first in this list that has one
        for source, fault in reversed(faults):
            with m.If(Value.cast(fault.cause) != Cause.NONE):
                m.d.comb += [self.fault.eq(fault), self.source.eq(source)]
        return m

    def _copy(self, m: Module, sequencer: Sequencer, copier: Copier) -> None:
        """COPY commands."""
        order, low = view(sequencer.o[Unit.COPY].payload, "COPY"), (self.word // 8).bit_length() - 1
        m.d.comb += [
            copier.i.valid.eq(sequencer.o[Unit.COPY].valid),
            sequencer.o[Unit.COPY].ready.eq(copier.i.ready),
            copier.i.payload.source.eq(Cat(Const(0, low), order.source)),
            copier.i.payload.target.eq(Cat(Const(0, low), order.target)),
            copier.i.payload.bytes.eq(Cat(Const(0, low), order.words)),
            copier.i.payload.from_host.eq(order.from_host),
            copier.i.payload.to_host.eq(order.to_host),
            self.complete[Unit.COPY].eq(copier.o.valid),
        ]
