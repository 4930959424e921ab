"""The core: a machine that runs programs, behind AXI4 masters, AXI4-Lite registers and an interrupt."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Module, ResetInserter, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.master import Master
from hw.axi.ports import Cause, axi4_lite
from hw.axi.registers import RegisterFile
from hw.common.counters import tally
from hw.config import Config
from hw.core import isa
from hw.core.dma import BURST
from hw.core.isa import ExecUnit
from hw.core.processor import READ_ENGINES, WRITE_ENGINES, Processor
from hw.core.register_map import CLEAR, DONE, FAILED, START, VERSION, registers, settings
from hw.core.sequencer import ongoing

STATES = ("READY", "HALT", "RESET", "STOPPED")  # of the core: ready for programs, and after a fault
TRACE = data.StructLayout(
    {
        "started": len(ExecUnit),  # for every unit: one of its commands begins
        "complete": len(ExecUnit),  # one of its commands is complete
        "matrix": 1,  # the matrix engine takes a beat
        "vector": 1,  # the vector engine gives a beat
        **{f"{side}_{way}": 1 for side in ("device", "host") for way in ("read", "write")},  # a word on the port
        "sequencer": 3,  # its state, see `hw.core.sequencer.STATES`
        "core": 2,  # number in STATES
    }
)


class Core(wiring.Component):
    """Runs programs from the device memory.

    Software writes the regions, the program's place and length, and `start`. The interrupt comes when the program is
    complete, or on a fault. A fault (an AXI error, an address out of its region, no such command, a program without an
    end, a full table) stops everything: no burst is asked for any more, those in flight come to their end, all units
    are reset. Cause, source and address stay in their registers until `clear`; then the next program can start. The
    tables of the units are empty then.

    Timing: data dependent (`latency` None); counters say where the cycles went.

    Members
    -------
    device, host : AXI4 ; registers : AXI4-Lite ; irq : interrupt ; stat_trace : what happens in every cycle

    Raises
    ------
    ValueError
        For a configuration whose matrix and vector engines do not have one width.
    """

    latency = None

    def __init__(self, config: Config):
        self.config = config
        self.processor = Processor(config)
        self.map = registers(settings(self.processor.retrieval_unit.settings))
        sizes = {"word": self.processor.word, "burst": BURST}
        self.device_master = Master(**sizes, readers=len(READ_ENGINES), writers=len(WRITE_ENGINES))
        self.host_master = Master(**sizes, readers=1, writers=1)
        super().__init__(
            {
                "device": Out(self.device_master.axi.signature),
                "host": Out(self.host_master.axi.signature),
                "registers": In(axi4_lite(address_bits=self.map.address_bits)),
                "irq": Out(1),
                "stat_trace": Out(TRACE),
            }
        )

    @classmethod
    def from_config(cls, config: Config) -> "Core":
        """One core."""
        return cls(config)

    @property
    def parts(self) -> dict[str, wiring.Component]:
        """Modules that the engines instantiate."""
        return {**self.processor.matrix_unit.engine.parts, **self.processor.vector_unit.engine.parts}

    @property
    def documents(self) -> dict[str, str]:
        """Files that go with the Verilog: register map and instruction set."""
        return {
            "core_registers.md": self.map.markdown(),
            "core_registers.h": self.map.c_header(),
            "core.rdl": self.map.to_systemrdl(),
            "core_commands.md": isa.markdown(),
        }

    @property
    def timing(self) -> dict[str, object]:
        """Latency and what a word of memory is, as written into the generated unit's JSON."""
        return {"latency": self.latency, "bytes_per_word": self.processor.word // 8}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        processor, file, again = self.processor, RegisterFile(self.map), Signal()
        m.submodules.file = file
        m.submodules.processor = ResetInserter(again)(processor)
        m.submodules.device_master, m.submodules.host_master = device, host = self.device_master, self.host_master
        wiring.connect(m, wiring.flipped(self.registers), file.axi)
        wiring.connect(m, device.axi, wiring.flipped(self.device))
        wiring.connect(m, host.axi, wiring.flipped(self.host))
        for number in range(len(READ_ENGINES)):
            wiring.connect(m, processor.device_read[number], device.read[number])
        for number in range(len(WRITE_ENGINES)):
            wiring.connect(m, processor.device_write[number], device.write[number])
        wiring.connect(m, processor.host_read, host.read[0])
        wiring.connect(m, processor.host_write, host.write[0])

        cause, source, address = Signal(Cause), Signal.like(processor.source), Signal.like(processor.fault.address)
        clear, stopped, wrong = file.pulse_control[CLEAR], Signal(), Signal()
        m.d.comb += [
            device.base.eq(file.value_device_start),
            host.base.eq(file.value_host_start),
            processor.device_words.eq(file.value_device_words),
            processor.host_words.eq(file.value_host_words),
            processor.program.eq(file.value_program),
            processor.commands.eq(file.value_commands),
            wrong.eq(Value.cast(processor.fault.cause) != Cause.NONE),
            file.set_events[DONE].eq(processor.done),
            self.irq.eq((file.value_events & file.value_events_enable).any()),
            file.given_version.eq(VERSION | self.processor.word << 16),
            file.given_cause.eq(Value.cast(cause) | source << 4),
            file.given_fault_address.eq(address),
            file.given_position.eq(processor.position),
        ]
        for name in processor.retrieval_unit.settings:
            m.d.comb += getattr(processor, name).eq(getattr(file, f"value_{name.removeprefix('cfg_')}"))
        with m.FSM(init="READY") as fsm:
            m.d.comb += self.stat_trace.core.eq(ongoing(fsm, STATES))
            m.d.comb += [
                file.given_status[0].eq(processor.busy & fsm.ongoing("READY")),
                file.given_status[1].eq(fsm.ongoing("HALT") | fsm.ongoing("RESET")),
                file.given_status[2].eq(fsm.ongoing("STOPPED")),
            ]
            with m.State("READY"):
                m.d.comb += [processor.start.eq(file.pulse_control[START] & ~processor.busy), processor.halt.eq(wrong)]
                with m.If(wrong):
                    m.d.sync += [cause.eq(processor.fault.cause), address.eq(processor.fault.address)]
                    m.d.sync += source.eq(processor.source)
                    m.next = "HALT"
            with m.State("HALT"):
                m.d.comb += processor.halt.eq(1)
                with m.If(processor.idle):
                    m.next = "RESET"
            with m.State("RESET"):
                m.d.comb += [processor.halt.eq(1), again.eq(1), file.set_events[FAILED].eq(1)]
                m.next = "STOPPED"
            with m.State("STOPPED"):
                m.d.comb += stopped.eq(1)
                with m.If(clear):
                    m.d.sync += [cause.eq(Cause.NONE), source.eq(0), address.eq(0)]
                    m.next = "READY"

        m.d.comb += [
            self.stat_trace.started.eq(processor.started),
            self.stat_trace.complete.eq(processor.complete),
            self.stat_trace.matrix.eq(processor.stat_matrix),
            self.stat_trace.vector.eq(processor.stat_vector),
            self.stat_trace.sequencer.eq(processor.stat_state),
        ]
        for side, master in (("device", device), ("host", host)):
            m.d.comb += [
                self.stat_trace[f"{side}_read"].eq(master.axi.rvalid & master.axi.rready),
                self.stat_trace[f"{side}_write"].eq(master.axi.wvalid & master.axi.wready),
            ]
        zero = file.pulse_clear_counters
        events = {
            "matrix_beats": processor.stat_matrix,
            "vector_beats": processor.stat_vector,
        }
        events |= {"cycles": processor.busy, "stalled": processor.busy & ~processor.taking.any()}
        for unit in ExecUnit:
            events[f"busy_{unit.name.lower()}"] = processor.taking[unit]
            events[f"done_{unit.name.lower()}"] = processor.complete[unit]
        for name, event in events.items():
            counter = Signal(32, name=f"counter_{name}")
            m.d.comb += getattr(file, f"given_{name}").eq(counter)
            tally(m, counter, event, zero)
        for side, master in (("device", device), ("host", host)):
            m.d.comb += master.stat_clear.eq(zero)
            for name in ("read", "write", "read_wait", "write_wait"):
                m.d.comb += getattr(file, f"given_{side}_{name}").eq(getattr(master, f"stat_{name}"))
        return m
