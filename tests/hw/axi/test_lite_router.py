"""The AXI4-Lite router in front of several register files."""

import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.lite_router import LiteRouter
from hw.axi.ports import axi4_lite
from hw.axi.registers import Access, Register, RegisterFile, RegisterMap
from sim.bench.axi_run import simulate


class Files(wiring.Component):
    """Register files behind a router."""

    def __init__(self, count):
        self.table = RegisterMap(
            "test", tuple(Register(name, 32, Access.RW, "a number") for name in ("first", "second"))
        )
        self.router = LiteRouter(count=count, address_bits=self.table.address_bits)
        super().__init__({"registers": In(axi4_lite(address_bits=self.router.address_bits)), "irq": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.router = self.router
        wiring.connect(m, wiring.flipped(self.registers), self.router.axi)
        for k in range(self.router.count):
            m.submodules[f"file{k}"] = file = RegisterFile(self.table)
            wiring.connect(m, self.router.ports[k], file.axi)
        return m


@pytest.mark.parametrize("stall", [0.0, 0.3])
def test_access_reaches_selected_subordinate(stall, rng, seed):
    """Every access reaches the subordinate that its address selects; an unassigned address answers DECERR."""
    files = Files(3)
    stored, script, expected = [0] * 6, [], []
    for _ in range(60):
        k, value = int(rng.integers(0, 8)), int(rng.integers(0, 1 << 32))
        if rng.random() < 0.5:
            script.append(["write", 4 * k, value])
            expected.append(0 if k < 6 else 3)
            stored[k : k + 1] = [value] if k < 6 else []
        else:
            script.append(["read", 4 * k])
            expected.append([stored[k], 0] if k < 6 else [0, 3])
    assert simulate(files, "files", {}, script=script, lite="registers", stall=stall, seed=seed).answers == expected


def test_rejects_zero_subordinates():
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        LiteRouter(count=0, address_bits=4)
