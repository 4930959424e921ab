"""RTL without initial values: registers and writable memories lose them; ROMs and results after a reset stay."""

import re

import numpy as np
import pytest
from amaranth import Module, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.emit import to_rtlil
from sim.bench.build import SimulatorError, has_simulator
from sim.bench.override import source_override
from sim.bench.power_up import unknown_at_power_up, without_initial_values
from sim.bench.run import simulate

needs_icarus = pytest.mark.skipif(not has_simulator("icarus"), reason="Icarus Verilog is not installed")


class Accumulator(wiring.Component):
    """Adds a word of a ROM to a sum and stores the sum in a memory; optionally, the sum has no reset."""

    i: In(stream.Signature(data.StructLayout({"index": 2})))
    o: Out(stream.Signature(data.StructLayout({"sum": 8})))

    def __init__(self, reset_less=False):
        self.reset_less = reset_less
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        m.submodules.rom = rom = memory.Memory(shape=8, depth=4, init=[5, 6, 7, 9])
        m.submodules.ram = ram = memory.Memory(shape=8, depth=4, init=[1, 2, 3, 4])
        word, store, total = rom.read_port(domain="comb"), ram.write_port(), Signal(8, reset_less=self.reset_less)
        check = ram.read_port(domain="comb")
        m.d.comb += [word.addr.eq(self.i.payload.index), store.addr.eq(self.i.payload.index), store.data.eq(total)]
        m.d.comb += [self.i.ready.eq(self.o.ready), self.o.valid.eq(self.i.valid), store.en.eq(self.i.valid)]
        m.d.comb += [self.o.payload.sum.eq(total + word.data), check.addr.eq(self.i.payload.index)]
        with m.If(self.i.valid & self.o.ready):
            m.d.sync += total.eq(total + word.data)
        return m


def test_initial_values_are_removed_except_those_of_roms():
    before = to_rtlil(Accumulator(), "accumulator")
    after = without_initial_values(before)
    assert before.count("cell $meminit_v2") == 2 and after.count("cell $meminit_v2") == 1
    assert "attribute \\init" in before and "attribute \\init" not in after
    (verilog,) = unknown_at_power_up(Accumulator(), "accumulator").values()
    values = {int(value, 2) for value in re.findall(r"8'b([01]+)|8'h(?:..)", verilog) if value} or set()
    words = {int(value, 16) for value in re.findall(r"8'h([0-9a-f]+)", verilog)} | values
    assert {5, 6, 7, 9} <= words and not re.search(r"reg \[7:0\] total = ", verilog)


@needs_icarus
@pytest.mark.parametrize("reset_less", [False, True])
def test_register_without_reset_fails_in_icarus(reset_less, seed):
    index = np.array([0, 3, 1, 2])
    options = {"simulator": "icarus", "seed": seed}
    with source_override(unknown_at_power_up):
        if reset_less:
            with pytest.raises(SimulatorError, match=r"bits of accumulator\.o__payload.* must be 0 or 1, got X+"):
                simulate(Accumulator(True), "accumulator", {"i": {"index": index}}, {"o": 4}, **options)
        else:
            record = simulate(Accumulator(), "accumulator", {"i": {"index": index}}, {"o": 4}, **options)
            assert record.outputs["o"]["sum"].tolist() == [5, 14, 20, 27]
