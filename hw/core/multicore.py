"""Cores that share a memory port and a host link (V-Rex8 has eight of them)."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import ClockSignal, Instance, Module, ResetSignal, Shape, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.interconnect import Interconnect
from hw.axi.lite_router import LiteRouter
from hw.axi.ports import axi4_lite
from hw.config import Config
from hw.core.core import TRACE, Core

CORES = 8


class MultiCore(wiring.Component):
    """Cores side by side on one device memory port, one host port and one AXI4-Lite port.

    Both memory ports are served burst by burst in turn, so a core that asks waits for one burst of every other at
    most. Each core has its own registers, at its number times `stride`, and with them its own regions and programs.

    Timing: as the cores'; two cycles more to each memory.

    Members
    -------
    device, host : AXI4 ; registers : AXI4-Lite ; irq : a bit for each core ; stat_trace : TRACE of each core
    """

    latency = None

    def __init__(self, config: Config, cores: int = CORES):
        if cores < 1:
            raise ValueError(f"cores = {cores}: must be at least 1")
        self.config, self.cores, self.core = config, cores, Core(config)
        masters = {"device": self.core.device_master, "host": self.core.host_master}
        self.joins = {
            side: Interconnect(managers=cores, address_bits=master.address_bits, data_bits=master.word,
                               id_bits=master.id_bits)
            for side, master in masters.items()
        }  # fmt: skip
        self.router = LiteRouter(count=cores, address_bits=self.core.map.address_bits)
        self.stride = 1 << self.core.map.address_bits
        super().__init__(
            {
                **{side: Out(join.memory.signature) for side, join in self.joins.items()},
                "registers": In(axi4_lite(address_bits=self.router.address_bits)),
                "irq": Out(cores),
                "stat_trace": Out(TRACE.size * cores),
            }
        )

    @property
    def parts(self) -> dict[str, wiring.Component]:
        """Modules that this one instantiates."""
        return {"core": self.core}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.router = self.router
        wiring.connect(m, wiring.flipped(self.registers), self.router.axi)
        for side, join in self.joins.items():
            m.submodules[side] = join
            wiring.connect(m, join.memory, wiring.flipped(getattr(self, side)))
        for k in range(self.cores):
            ports: dict[str, object] = {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
            outer = {
                "device": self.joins["device"].managers[k],
                "host": self.joins["host"].managers[k],
                "registers": self.router.ports[k],
            }
            for path, member, _ in self.core.signature.flatten(self.core):
                name = "__".join(map(str, path))
                inner = Signal(Shape.cast(member.shape).width, name=f"core{k}_{name}")
                ports[f"{'i' if member.flow is In else 'o'}_{name}"] = inner
                if path[0] in outer:
                    wire = getattr(outer[path[0]], path[1])
                    m.d.comb += inner.eq(wire) if member.flow is In else wire.eq(inner)
                elif name == "irq":
                    m.d.comb += self.irq[k].eq(inner)
                else:
                    m.d.comb += self.stat_trace.word_select(k, TRACE.size).eq(inner)
            m.submodules[f"core{k}"] = Instance("core", **ports)
        return m
