"""The core: a processor behind AXI4 masters, AXI4-Lite registers and an interrupt."""

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
from hw.core.barrier import BARRIER_PORT
from hw.core.dma import BURST
from hw.core.isa import ExecUnit
from hw.core.lengths import decisions_layout
from hw.core.processor import READ_ENGINES, WRITE_ENGINES, Processor
from hw.core.register_map import CLEAR, DONE, FAILED, START, VERSION, registers, settings
from hw.core.sequencer import ongoing

STATES = ("READY", "HALT", "RESET", "STOPPED")  # of the core; READY runs programs, the others follow a fault
# What happens in a cycle, for traces and tests.
TRACE = data.StructLayout(
    {
        "started": len(ExecUnit),  # for each unit: a command starts
        "complete": len(ExecUnit),  # for each unit: a command is complete
        "matrix": 1,  # the matrix engine accepts a beat
        "vector": 1,  # the vector engine sends a beat
        # a word is transferred on a port
        **{f"{side}_{direction}": 1 for side in ("device", "host") for direction in ("read", "write")},
        "sequencer": 3,  # state, a position in `hw.core.sequencer.STATES`
        "core": 2,  # state, a position in STATES
    }
)


class Core(wiring.Component):
    """Runs programs from device memory.

    Software writes the regions, the address and length of a program, and `start`. The interrupt signals that the
    program is complete, or a fault.

    A fault (AXI error, address outside its region, unknown opcode, program without END, full table) stops the core:
    HALT requests no further bursts and waits for the bursts in flight, RESET resets all units and their tables, STOPPED
    waits for `clear`. The registers keep cause, source and address of the fault until then.

    ```
    AXI4-Lite ──> registers ──> start, regions, settings ──> Processor ──> faults, done ──> interrupt
                                                             │       │
                                             device AXI4 <── master  master ──> host AXI4
    ```

    Timing: data dependent (`latency` None); counters give the cycles of each unit.

    Parameters
    ----------
    config : sizes of the core

    Members
    -------
    device : AXI4 manager port to the device memory
    host : AXI4 manager port to the host link
    registers : AXI4-Lite subordinate port
    irq : interrupt, high while an enabled event is pending
    stat_trace : TRACE of the current cycle
    barrier : to the other cores of a step; a core alone gets `released` = 1, and its BARRIERs end at once
    decisions : of the retrieval unit: the other cores of a step use those of core 0
    shared_decisions : decisions of core 0, used when the register `use_shared` is 1

    Raises
    ------
    ValueError
        When the processor cannot be built for the configuration.
    """

    latency = None

    def __init__(self, config: Config):
        self.config = config
        self.processor = Processor(config)
        self.map = registers(settings(self.processor.retrieval_unit.settings))
        sizes = {"word": self.processor.word, "burst": BURST}
        decisions = decisions_layout(config.kv_heads, config.max_pages)
        self.device_master = Master(**sizes, readers=len(READ_ENGINES), writers=len(WRITE_ENGINES))
        self.host_master = Master(**sizes, readers=1, writers=1)
        super().__init__(
            {
                "device": Out(self.device_master.axi.signature),
                "host": Out(self.host_master.axi.signature),
                "registers": In(axi4_lite(address_bits=self.map.address_bits)),
                "irq": Out(1),
                "stat_trace": Out(TRACE),
                "barrier": Out(BARRIER_PORT),
                "decisions": Out(decisions),
                "shared_decisions": In(decisions),
            }
        )

    @classmethod
    def from_config(cls, config: Config) -> "Core":
        """One core."""
        return cls(config)

    @property
    def modules(self) -> dict[str, wiring.Component]:
        """Modules that the engines instantiate."""
        return {**self.processor.matrix_unit.engine.modules, **self.processor.vector_unit.engine.modules}

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
        """Latency and bytes of a memory word, as written into the generated unit's JSON."""
        return {"latency": self.latency, "bytes_per_word": self.processor.word // 8}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        file, reset = RegisterFile(self.map), Signal()
        m.submodules.file = file
        m.submodules.processor = ResetInserter(reset)(self.processor)
        wiring.connect(m, wiring.flipped(self.registers), file.axi)
        self._connect_masters(m, file)
        self._connect_registers(m, file)
        self._handle_faults(m, file, reset)
        self._trace(m)
        self._count(m, file)
        return m

    def _connect_masters(self, m: Module, file: RegisterFile) -> None:
        """The AXI4 masters between the processor's engines and the two ports."""
        processor, device, host = self.processor, self.device_master, self.host_master
        m.submodules.device_master, m.submodules.host_master = device, host
        wiring.connect(m, device.axi, wiring.flipped(self.device))
        wiring.connect(m, host.axi, wiring.flipped(self.host))
        for number in range(len(READ_ENGINES)):
            wiring.connect(m, processor.device_read[number], device.read[number])
        for number in range(len(WRITE_ENGINES)):
            wiring.connect(m, processor.device_write[number], device.write[number])
        wiring.connect(m, processor.host_read, host.read[0])
        wiring.connect(m, processor.host_write, host.write[0])
        m.d.comb += [device.base.eq(file.value_device_start), host.base.eq(file.value_host_start)]

    def _connect_registers(self, m: Module, file: RegisterFile) -> None:
        """Registers that software writes, status and interrupt."""
        processor = self.processor
        m.d.comb += [
            processor.device_words.eq(file.value_device_words),
            processor.host_words.eq(file.value_host_words),
            processor.program.eq(file.value_program),
            processor.commands.eq(file.value_commands),
            processor.use_shared.eq(file.value_use_shared),
            processor.shared_decisions.eq(self.shared_decisions),
            self.decisions.eq(processor.decisions),
            self.barrier.valid.eq(processor.barrier.valid),
            self.barrier.cores.eq(processor.barrier.cores),
            processor.barrier.released.eq(self.barrier.released),
            processor.barrier.broken.eq(self.barrier.broken),
            self.irq.eq((file.value_events & file.value_events_enable).any()),
            file.input_version.eq(VERSION | processor.word << 16),
            file.input_position.eq(processor.position),
        ]
        for name in processor.retrieval_unit.settings:
            m.d.comb += getattr(processor, name).eq(getattr(file, f"value_{name.removeprefix('cfg_')}"))

    def _handle_faults(self, m: Module, file: RegisterFile, reset: Signal) -> None:
        """State machine of the core: start of programs; halt, reset and stop after a fault."""
        processor, has_fault = self.processor, Signal()
        cause, source = Signal(Cause), Signal.like(processor.source)
        address = Signal.like(processor.fault.address)
        m.d.comb += [
            has_fault.eq(Value.cast(processor.fault.cause) != Cause.NONE),
            file.input_cause.eq(Value.cast(cause) | source << 4),
            file.input_fault_address.eq(address),
        ]
        with m.FSM(init="READY") as fsm:
            m.d.comb += [
                self.stat_trace.core.eq(ongoing(fsm, STATES)),
                self.barrier.stopped.eq(~fsm.ongoing("READY")),
                file.input_status[0].eq(processor.busy & fsm.ongoing("READY")),
                file.input_status[1].eq(fsm.ongoing("HALT") | fsm.ongoing("RESET")),
                file.input_status[2].eq(fsm.ongoing("STOPPED")),
            ]
            with m.State("READY"):
                m.d.comb += processor.start.eq(file.pulse_control[START] & ~processor.busy)
                m.d.comb += processor.halt.eq(has_fault)
                # the last command can complete with its fault, or in a cycle after it: then the program has failed
                m.d.comb += file.set_events[DONE].eq(processor.done & ~has_fault)
                with m.If(has_fault):
                    m.d.sync += [cause.eq(processor.fault.cause), address.eq(processor.fault.address)]
                    m.d.sync += source.eq(processor.source)
                    m.next = "HALT"
            with m.State("HALT"):
                m.d.comb += processor.halt.eq(1)
                with m.If(processor.idle):
                    m.next = "RESET"
            with m.State("RESET"):
                m.d.comb += [processor.halt.eq(1), reset.eq(1), file.set_events[FAILED].eq(1)]
                m.next = "STOPPED"
            with m.State("STOPPED"), m.If(file.pulse_control[CLEAR]):
                m.d.sync += [cause.eq(Cause.NONE), source.eq(0), address.eq(0)]
                m.next = "READY"

    def _trace(self, m: Module) -> None:
        """`stat_trace`."""
        processor = self.processor
        m.d.comb += [
            self.stat_trace.started.eq(processor.started),
            self.stat_trace.complete.eq(processor.complete),
            self.stat_trace.matrix.eq(processor.stat_matrix),
            self.stat_trace.vector.eq(processor.stat_vector),
            self.stat_trace.sequencer.eq(processor.stat_state),
        ]
        for side, master in (("device", self.device_master), ("host", self.host_master)):
            m.d.comb += [
                self.stat_trace[f"{side}_read"].eq(master.axi.rvalid & master.axi.rready),
                self.stat_trace[f"{side}_write"].eq(master.axi.wvalid & master.axi.wready),
            ]

    def _count(self, m: Module, file: RegisterFile) -> None:
        """Counters."""
        processor, clear = self.processor, file.pulse_clear_counters
        events = {
            "matrix_beats": processor.stat_matrix,
            "vector_beats": processor.stat_vector,
            "cycles": processor.busy,
            "stalled": processor.busy & ~processor.has_commands.any(),
            **{f"busy_{unit.name.lower()}": processor.has_commands[unit] for unit in ExecUnit},
            **{f"done_{unit.name.lower()}": processor.complete[unit] for unit in ExecUnit},
        }
        for name, event in events.items():
            counter = Signal(32, name=f"counter_{name}")
            m.d.comb += getattr(file, f"input_{name}").eq(counter)
            tally(m, counter, event, clear)
        for side, master in (("device", self.device_master), ("host", self.host_master)):
            m.d.comb += master.stat_clear.eq(clear)
            for name in ("read", "write", "read_wait", "write_wait"):
                m.d.comb += getattr(file, f"input_{side}_{name}").eq(getattr(master, f"stat_{name}"))
