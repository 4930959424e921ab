"""Multi-core: several cores behind shared ports to memories and registers, with barriers."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import ClockSignal, Instance, Module, ResetSignal, Shape, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.interconnect import Interconnect
from hw.axi.lite_router import LiteRouter
from hw.axi.master import Master
from hw.axi.ports import axi4_lite
from hw.config import Config
from hw.core import isa
from hw.core.barrier import Barrier
from hw.core.core import TRACE, Core


class MultiCore(wiring.Component):
    """`config.cores` equal cores that share ports to the device memory, a host port and an AXI4-Lite port.

    Interconnects grant the memory ports to their cores in turn, one burst at a time: a core waits for at most one
    burst of every other core of the port. Core k uses device port k modulo the number of these ports. All of them reach
    the same memory: a port transfers one word in a cycle, and several ports use the rate of a faster memory.

    Core k has its registers at offset k * `stride` of the AXI4-Lite port. The registers assign a device region, a host
    region and a program to each core. The cores run independent programs, or work on one step: then they have the same
    regions, meet at BARRIER commands, and core 0 retrieves for all of them (the register `use_shared` of the others is
    1).

    The Verilog contains the module `core` once and instantiates it.

    Timing: as the cores, plus two cycles on the path to each memory (`latency` None: data dependent). The decisions of
    core 0 reach the other cores one cycle later, a BARRIER releases them two cycles after the last one has started it.

    Parameters
    ----------
    config : sizes of a core and number of cores

    Members
    -------
    device0, device1, .. : AXI4 manager ports to the device memory, `config.device_ports`, at most one for each core
    host : AXI4 manager port to the host link
    registers : AXI4-Lite subordinate port
    irq : interrupts, one bit per core
    stat_trace : TRACE of each core, core 0 in the lowest bits

    Raises
    ------
    ValueError
        When a core cannot be built for the configuration.
    """

    latency = None

    def __init__(self, config: Config):
        self.config, self.cores, self.core = config, config.cores, Core(config)
        self.device_ports = [f"device{n}" for n in range(min(config.device_ports, self.cores))]
        self.interconnects = {name: self._interconnect(self.core.device_master, len(self._cores_of(n)))
                              for n, name in enumerate(self.device_ports)}  # fmt: skip
        self.interconnects["host"] = self._interconnect(self.core.host_master, self.cores)
        self.barrier = Barrier(self.cores)
        self.router = LiteRouter(count=self.cores, address_bits=self.core.map.address_bits)
        self.stride = 1 << self.core.map.address_bits
        super().__init__(
            {
                **{side: Out(interconnect.memory.signature) for side, interconnect in self.interconnects.items()},
                "registers": In(axi4_lite(address_bits=self.router.address_bits)),
                "irq": Out(self.cores),
                "stat_trace": Out(TRACE.size * self.cores),
            }
        )

    def _cores_of(self, port: int) -> range:
        """Cores on a device port, in the order of the managers of its interconnect."""
        return range(port, self.cores, len(self.device_ports))

    def _interconnect(self, master: Master, managers: int) -> Interconnect:
        return Interconnect(
            managers=managers, address_bits=master.address_bits, data_bits=master.word, id_bits=master.id_bits
        )

    @classmethod
    def from_config(cls, config: Config) -> "MultiCore":
        """`config.cores` cores."""
        return cls(config)

    @property
    def modules(self) -> dict[str, wiring.Component]:
        """Modules that this one instantiates."""
        return {"core": self.core}

    @property
    def documents(self) -> dict[str, str]:
        """Files that go with the Verilog: register map of one core, of all cores in SystemRDL, instruction set."""
        name = self.core.map.name
        cores = f"addrmap multicore {{\n  {name} core[{self.cores}] @ 0x0 += 0x{self.stride:x};\n}};\n"
        return {
            "multicore_registers.md": self.core.map.markdown(),
            "multicore_registers.h": self.core.map.c_header(),
            "multicore.rdl": self.core.map.to_systemrdl() + "\n" + cores,
            "multicore_commands.md": isa.markdown(),
        }

    @property
    def timing(self) -> dict[str, object]:
        """Latency, memory word and distance of the cores' registers, as written into the generated unit's JSON."""
        return {**self.core.timing, "register_stride_bytes": self.stride}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.router = self.router
        wiring.connect(m, wiring.flipped(self.registers), self.router.axi)
        for side, interconnect in self.interconnects.items():
            m.submodules[side] = interconnect
            wiring.connect(m, interconnect.memory, wiring.flipped(getattr(self, side)))
        m.submodules.barrier = self.barrier
        decisions = Signal(self.core.decisions.shape())  # of core 0
        shared = Signal.like(decisions, name="shared_decisions")
        m.d.sync += shared.eq(decisions)
        for k in range(self.cores):
            own = decisions if k == 0 else Signal.like(decisions, name=f"decisions{k}")
            m.submodules[f"core{k}"] = self._instance(m, k, {"decisions": own, "shared_decisions": shared})
        return m

    def _instance(self, m: Module, k: int, bits: dict[str, Value]) -> Instance:
        """Core k, connected to interconnects, router, barrier, its bits of `irq` and `stat_trace`, and `bits`."""
        own, port = divmod(k, len(self.device_ports))
        buses = {
            "device": self.interconnects[self.device_ports[port]].managers[own],
            "host": self.interconnects["host"].managers[k],
            "registers": self.router.ports[k],
            "barrier": self.barrier.ports[k],
        }
        bits = {**bits, "irq": self.irq[k], "stat_trace": self.stat_trace.word_select(k, TRACE.size)}
        ports: dict[str, object] = {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
        for path, member, _ in self.core.signature.flatten(self.core):
            name = "__".join(map(str, path))
            inner = Signal(Shape.cast(member.shape).width, name=f"core{k}_{name}")
            is_input = member.flow is In
            ports[f"{'i' if is_input else 'o'}_{name}"] = inner
            outer = getattr(buses[path[0]], path[1]) if path[0] in buses else bits[name]
            m.d.comb += inner.eq(outer) if is_input else outer.eq(inner)
        return Instance("core", **ports)
