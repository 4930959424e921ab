"""Netlists against their RTL: proofs of units with clock gates, errors for damaged netlists."""

import json
import re
import shutil
from dataclasses import replace

import pytest
from amaranth import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw import emit, registry
from hw.common.memory import Ram
from hw.config import Config
from synth import equivalence
from synth.area import area, area_of_rtlil
from synth.equivalence import EquivalenceError, prove
from synth.mapping import GATED_REGISTERS

QUICK = ("hcu", "operand_memory")
# a register with an enable in yosys's RTLIL before the mapping, and its width
ENABLED = re.compile(r"^  cell \$s?dffc?e \S+\n(?:    parameter .*\n)*?    parameter \\WIDTH (\d+)", re.M)


class Small(wiring.Component):
    """Sums with enables, a macro with some constant bits, and a memory of flip-flops."""

    a: In(6)
    y: Out(6)
    q: Out(16)

    def elaborate(self, platform):
        m = Module()
        m.submodules.ram, m.submodules.few = ram, few = Ram(depth=64, width=16), Ram(depth=8, width=6)
        total = Signal(6)
        with m.If(self.a != 3):
            m.d.sync += total.eq(total + self.a)
        m.d.comb += [self.y.eq(few.r_data[0]), few.r_addr.eq(total), few.r_en.eq(1), few.w_addr.eq(self.a)]
        m.d.comb += [few.w_mask.eq(total[0]), few.w_data[0].eq(total), self.q.eq(ram.r_data[0]), ram.r_en.eq(1)]
        m.d.comb += [ram.w_addr.eq(self.a), ram.r_addr.eq(total), ram.w_mask.eq(1), ram.w_data[0].eq(total * 5)]
        return m


@pytest.fixture(scope="module")
def small(predictive):
    return area_of_rtlil(emit.to_rtlil(Small(), "small"), "small", predictive)


@pytest.mark.parametrize(
    "unit", [unit if unit in QUICK else pytest.param(unit, marks=pytest.mark.heavy) for unit in registry.UNITS]
)
def test_every_unit_is_proved(unit, predictive):
    """The proved netlists have clock gates wherever the RTL has wide registers with an enable."""
    design = area(unit, Config.preset("tiny"), predictive, point="balanced")
    proved = prove(design, predictive)
    assert [proof.block for proof in proved.blocks] == [block.name for block in design.blocks]
    for proof, block in zip(proved.blocks, design.blocks, strict=True):
        assert proof.count == block.count and proof.netlist_registers == block.flip_flops <= proof.rtl_registers
        widths = ENABLED.findall((design.mapped[block.name].folder / "elaborated.il").read_text())
        assert proof.clock_gates == block.clock_gates
        if max(map(int, widths), default=0) >= 2 * GATED_REGISTERS:
            assert proof.gated_registers >= GATED_REGISTERS * proof.clock_gates > 0
    assert json.loads(json.dumps(proved.json()))["equivalent"] and "is equivalent" in proved.table()


def gate(module, rng):
    """Replace one gate by another."""
    other = {"NAND2_X1": "NOR2_X1", "NOR2_X1": "NAND2_X1", "XOR2_X1": "XNOR2_X1", "XNOR2_X1": "XOR2_X1"}
    cells = [cell for _, cell in sorted(module["cells"].items()) if cell["type"] in other]
    chosen = cells[rng.integers(len(cells))]
    chosen["type"] = other[chosen["type"]]


def wires(module, rng):
    """Exchange the data of two registers; those of a column of a memory have the same data."""
    pins = [c["connections"] for _, c in sorted(module["cells"].items()) if c["type"] == "DFF_X1"]
    one = pins[rng.integers(len(pins))]
    others = [each for each in pins if each["D"] != one["D"]]
    two = others[rng.integers(len(others))]
    one["D"], two["D"] = two["D"], one["D"]


@pytest.mark.parametrize("damage", [gate, wires])
def test_damaged_netlist_raises(damage, small, predictive, tmp_path, rng):
    mapped = small.mapped["small"]
    shutil.copytree(mapped.folder, tmp_path / "damaged", ignore=shutil.ignore_patterns("equivalent-*"))
    path = tmp_path / "damaged" / "netlist.json"
    netlist = json.loads(path.read_text())
    damage(netlist["modules"]["small"], rng)
    path.write_text(json.dumps(netlist))
    damaged = replace(small, mapped={"small": replace(mapped, folder=tmp_path / "damaged")})
    with pytest.raises(EquivalenceError, match=r"small: the netlist differs from the RTL: (register|small_macro0)"):
        prove(damaged, predictive)
    assert not list((tmp_path / "damaged").glob("equivalent-*"))


@pytest.mark.parametrize("what", ["port", "solver", "gate"])
def test_incomparable_block_is_named(what, small, predictive, tmp_path, monkeypatch):
    mapped = small.mapped["small"]
    shutil.copytree(mapped.folder, tmp_path / "other", ignore=shutil.ignore_patterns("equivalent-*"))
    other = replace(small, mapped={"small": replace(mapped, folder=tmp_path / "other")})
    if what == "port":
        path = tmp_path / "other" / "netlist.json"
        netlist = json.loads(path.read_text())
        del netlist["modules"]["small"]["ports"]["y"]
        path.write_text(json.dumps(netlist))
        reason = r"small: port y\[0\] is on one side only"
    elif what == "solver":
        monkeypatch.setattr(equivalence, "_solve", lambda *arguments: ["snl_UNK", "7"])
        reason = "small: the netlist could not be compared with the RTL: snl_UNK 7"
    else:
        monkeypatch.setattr(equivalence, "_GATES", {})
        reason = r"small: cells of the RTL must be gates and registers, got \$_\w+_"
    with pytest.raises(EquivalenceError, match=reason):
        prove(other, predictive)


def test_proofs_are_reused(small, predictive, monkeypatch):
    first = prove(small, predictive)
    assert first.blocks[0].netlist_registers == small.flip_flops
    monkeypatch.setattr("hw.yosys.run", lambda *args, **kwargs: pytest.fail("compared again"))
    assert prove(small, predictive) == first
