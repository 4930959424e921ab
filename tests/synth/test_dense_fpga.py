"""The mapping with few LUTs: products are proven equal to those of the RTL; memories become the cells it names."""

import json
from collections import Counter

import pytest
from amaranth import Cat, Const, Module, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

import hw.arith.dot
import hw.arith.elementary
from hw import emit, yosys
from hw.common.memory import LatchRam, Ram
from synth.dense_fpga import commands, hard_multipliers, make_room

LANES = 1  # a proof for each lane; lanes are independent


class PlaneProducts(wiring.Component):
    """Products of fractions of seven bits in planes, as a MAC tree has them."""

    a: In(7 * LANES)
    b: In(7 * LANES)
    y: Out(16 * LANES)

    def elaborate(self, platform):
        m = Module()
        a, b = ([word[LANES * k : LANES * (k + 1)] for k in range(7)] for word in (self.a, self.b))
        m.d.comb += self.y.eq(Cat(*hw.arith.dot.multiply(m, a, b)))
        return m


class Products(wiring.Component):
    """Products of two variables, and of a variable and a constant, as SiLU has them."""

    a: In(8)
    b: In(6)
    y: Out(14)
    z: Out(17)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.y.eq(hw.arith.elementary.multiply(m, "variables", self.a, self.b))
        m.d.comb += self.z.eq(hw.arith.elementary.multiply(m, "constant", self.a, Const(369, 9)))
        return m


class Memories(wiring.Component):
    """A wide memory with a bypass, a narrow one, and one that shows the new words of a row that is read and written."""

    def __init__(self):
        self.rams = {
            "wide": Ram(depth=8, width=64),
            "narrow": Ram(depth=8, width=8),
            "latch": LatchRam(depth=8, width=20),
        }
        super().__init__(
            {
                f"{name}_{port}": (Out if port == "r_data" else In)(len(Value.cast(getattr(ram, port))))
                for name, ram in self.rams.items()
                for port in ("w_addr", "w_mask", "w_data", "r_addr", "r_en", "r_data")
            }
        )

    def elaborate(self, platform):
        m = Module()
        for name, ram in self.rams.items():
            m.submodules[name] = ram
            for port in ("w_addr", "w_mask", "w_data", "r_addr", "r_en"):
                m.d.comb += Value.cast(getattr(ram, port)).eq(getattr(self, f"{name}_{port}"))
            m.d.comb += getattr(self, f"{name}_r_data").eq(ram.r_data)
        return m


MITER = (
    "hierarchy",
    "proc",
    "flatten",
    "techmap t:$fa",
    "miter -equiv -flatten gold gate miter",
    "hierarchy -top miter",
    "techmap",
    "opt -full",
    "sat -verify -prove trigger 0 miter",
)


def run(folder, texts, commands):
    for name, text in texts.items():
        (folder / f"{name}.il").write_text(text.replace("attribute \\top 1\n", ""))
    return yosys.run([*(f"read_rtlil {folder}/{name}.il" for name in texts), *commands])


def both(component):
    """RTLIL of a component with and without multiplier blocks."""
    with hard_multipliers():
        blocks = emit.to_rtlil(component(), "gate")
    return {"gold": emit.to_rtlil(component(), "gold"), "gate": blocks}


@pytest.mark.parametrize("component", [PlaneProducts, Products])
def test_products_are_equal(tmp_path, component):
    """A proof for all operands."""
    texts = both(component)
    assert "cell $fa" in texts["gold"] and "cell $mul" in texts["gate"] and "cell $mul" not in texts["gold"]
    run(tmp_path, texts, MITER)


def test_products_are_restored():
    before = hw.arith.dot.multiply, hw.arith.elementary.multiply
    with pytest.raises(RuntimeError), hard_multipliers():
        assert hw.arith.dot.multiply is not before[0] and hw.arith.elementary.multiply is not before[1]
        raise RuntimeError
    assert (hw.arith.dot.multiply, hw.arith.elementary.multiply) == before


def mapped(folder, component):
    """Cells of the mapped netlist of a component, by type."""
    source, target = folder / "top.il", folder / "top.json"
    with hard_multipliers():
        source.write_text(emit.to_rtlil(component, "top"))
    yosys.run(commands(source, target))
    cells = json.loads(target.read_text())["modules"]["top"]["cells"].values()
    return Counter(cell["type"] for cell in cells)


def test_products_become_multiplier_blocks(tmp_path):
    cells = mapped(tmp_path, PlaneProducts())
    assert cells["MULT18X18D"] == LANES and cells["LUT4"] == 0


def test_wide_memories_become_block_memories(tmp_path):
    """36 bits per block; the narrow memory and the one with new words are distributed memories of four bits."""
    cells = mapped(tmp_path, Memories())
    assert cells["DP16KD"] == 2 and cells["TRELLIS_DPR16X4"] == 2 + 5
    assert not {"PFUMX", "L6MUX21"} & set(cells)


def lut(output):
    directions = {**dict.fromkeys("ABCD", "input"), "Z": "output"}
    pins = {"A": [2], "B": [3], "C": ["0"], "D": ["1"], "Z": [output]}
    return {"type": "LUT4", "parameters": {"INIT": "1" * 16}, "port_directions": directions, "connections": pins}


def test_idle_luts_read_the_outputs_of_other_luts(tmp_path):
    kvmu = {f"unit.kvmu.part{n}": lut(10 + n) for n in range(20)}
    lanes = {f"unit.vector.engine.lane{n}": lut(40 + n) for n in range(50)}
    others = {"unit.other": lut(100), "unit.kvmu.register": {**lut(101), "type": "TRELLIS_FF"}}
    before = {**kvmu, **lanes, **others}
    netlist = tmp_path / "top.json"
    netlist.write_text(json.dumps({"modules": {"LUT4": {"cells": {}}, "top": {"cells": before}}}))
    make_room(netlist)
    modules = json.loads(netlist.read_text())["modules"]
    assert modules["LUT4"] == {"cells": {}}
    cells = modules["top"]["cells"]
    assert {name: cells[name] for name in before} == before
    idle = [cell for name, cell in cells.items() if name not in before]
    read = [cell["connections"]["A"][0] for cell in idle]
    assert len(set(read)) == len(read)  # different LUTs
    assert sum(10 <= bit < 30 for bit in read) == 15 and sum(40 <= bit < 90 for bit in read) == 14
    outputs = [cell["connections"]["Z"][0] for cell in idle]
    assert len(set(outputs)) == len(outputs) == 15 + 14 and min(outputs) > 101  # nets of their own
    assert all(cell["connections"][pin] == ["1"] for cell in idle for pin in "BCD")
    assert {cell["type"] for cell in idle} == {"LUT4"} and {cell["parameters"]["INIT"] for cell in idle} == {"0" * 16}
