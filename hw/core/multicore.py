"""Multi-core: several cores behind one device memory port, one host port and one register port."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import ClockSignal, Instance, Module, ResetSignal, Shape, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.interconnect import Interconnect
from hw.axi.lite_router import LiteRouter
from hw.axi.ports import axi4_lite
from hw.config import Config
from hw.core import isa
from hw.core.core import TRACE, Core


class MultiCore(wiring.Component):
    """`config.cores` equal cores that share a device memory port, a host port and an AXI4-Lite port.

    Two interconnects grant the memory ports to the cores in turn, one burst at a time: a core waits for at most one
    burst of every other core. Core k has its registers at offset k * `stride` of the AXI4-Lite port. The registers
    assign a device region, a host region and a program to each core.

    The Verilog contains the module `core` once and instantiates it.

    Timing: as the cores, plus two cycles on the path to each memory (`latency` None: data dependent).

    Parameters
    ----------
    config : sizes of a core and number of cores

    Members
    -------
    device : AXI4 manager port to the device memory
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
        self.interconnects = {
            side: Interconnect(
                managers=self.cores,
                address_bits=master.address_bits,
                data_bits=master.word,
                id_bits=master.id_bits,
            )
            for side, master in (("device", self.core.device_master), ("host", self.core.host_master))
        }
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
        for k in range(self.cores):
            m.submodules[f"core{k}"] = self._instance(m, k)
        return m

    def _instance(self, m: Module, k: int) -> Instance:
        """Core k, connected to the interconnects, to the router and to its bits of `irq` and `stat_trace`."""
        buses = {side: interconnect.managers[k] for side, interconnect in self.interconnects.items()}
        buses["registers"] = self.router.ports[k]
        bits = {"irq": self.irq[k], "stat_trace": self.stat_trace.word_select(k, TRACE.size)}
        ports: dict[str, object] = {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
        for path, member, _ in self.core.signature.flatten(self.core):
            name = "__".join(map(str, path))
            inner = Signal(Shape.cast(member.shape).width, name=f"core{k}_{name}")
            is_input = member.flow is In
            ports[f"{'i' if is_input else 'o'}_{name}"] = inner
            outer = getattr(buses[path[0]], path[1]) if path[0] in buses else bits[name]
            m.d.comb += inner.eq(outer) if is_input else outer.eq(inner)
        return Instance("core", **ports)
