"""Power reports: values computed by hand, a second computation, sums over blocks and kinds."""

import functools
import json
from dataclasses import replace

import numpy as np
import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

import synth.area
from hw import emit
from hw.common.memory import Ram
from hw.config import Config
from synth.area import PREDICTIVE, area_of_rtlil
from synth.blocks import partition
from synth.library.parser import LibraryError
from synth.library.reader import OSU018, load
from synth.macros import Macro
from synth.power.activity import guessed
from synth.power.circuit import Circuit
from synth.power.power import KINDS, power, powers_table, reduced_config, scaled

MHZ = 500.0


class Inverter(wiring.Component):
    a: In(1)
    y: Out(1)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.y.eq(~self.a)
        return m


class Register(wiring.Component):
    a: In(1)
    y: Out(1)

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.y.eq(self.a)
        return m


class Multiplier(wiring.Component):
    """A product, accumulated and stored in a memory."""

    a: In(6)
    b: In(6)
    y: Out(16)

    def elaborate(self, platform):
        m = Module()
        m.submodules.ram = ram = Ram(depth=64, width=16)
        m.d.comb += [ram.w_addr.eq(self.a), ram.r_addr.eq(self.b), ram.r_en.eq(1), ram.w_mask.eq(self.a[0])]
        m.d.comb += ram.w_data[0].eq(ram.r_data[0] + self.a * self.b)
        m.d.sync += self.y.eq(ram.r_data[0])
        return m


class Pair(wiring.Component):
    a: In(6)
    b: In(6)
    y: Out(16)

    def elaborate(self, platform):
        m = Module()
        m.submodules.one, m.submodules.two = one, two = Multiplier(), Multiplier()
        m.d.comb += [one.a.eq(self.a), one.b.eq(self.b), two.a.eq(self.b), two.b.eq(self.a)]
        m.d.comb += self.y.eq(one.y ^ two.y)
        return m


def mapped(component, library, **options):
    design = area_of_rtlil(emit.to_rtlil(component, "dut"), "dut", library, **options)
    return design, Circuit(design, library)


def watts(design, circuit, rate=0.25):
    return power(design, circuit, guessed(circuit, rate), clock_mhz=MHZ)


def test_inverter_by_hand(predictive):
    result = watts(*mapped(Inverter(), predictive))
    assert mapped(Inverter(), predictive)[0].cell_types == {"INV_X1": 1}
    cell = predictive.cell("INV_X1")
    pin, wire = cell.pins["A"].capacitance, predictive.wire_farads * 1e15
    inside = cell.pins["Y"].energies[0]
    joules = 0.5 * (pin + wire) * 0.8**2  # the input's net
    joules += 0.5 * 4 * (pin + wire) * 0.8**2  # the output drives four inverters
    joules += float(inside.rise(0, 0) + inside.fall(0, 0)) / 2
    assert result.of("logic") == pytest.approx(joules * 1e-15 * 0.25 * MHZ * 1e6)
    assert result.of("clock") == result.of("registers") == result.of("memories") == 0
    assert result.of("leakage") == pytest.approx(cell.leakage_w)


def test_register_by_hand(predictive):
    design, circuit = mapped(Register(), predictive)
    result = watts(design, circuit)
    assert {name for name in design.cell_types if name.startswith("DFF")} == {"DFF_X1"}
    cell = predictive.cell("DFF_X1")
    clock = 2 * float(cell.pins["CK"].energies[0].rise(0, 0))
    clock += 2 * 0.5 * (cell.pins["CK"].capacitance + predictive.wire_farads * 1e15) * 0.8**2
    assert result.of("clock") == pytest.approx(clock * 1e-15 * MHZ * 1e6)


def plain(design, library, rates):
    """Reference: joules per cycle, computed net by net and cell by cell."""
    module, (block,) = design.mapped["dut"].module, design.blocks
    macros = {macro.module for macro in block.macros}
    area = sum(library.cell(cell["type"]).area for cell in module["cells"].values() if cell["type"] not in macros)
    inverter, wire = library.inverter, library.wire_farads_of(area) / library.farads
    gate = inverter.pins[inverter.inputs[0]].capacitance
    load = {}
    for cell in module["cells"].values():
        for pin, nets in cell["connections"].items():
            for net in set(nets) if cell["port_directions"][pin] == "input" else ():
                own = gate if cell["type"] in macros else library.cell(cell["type"]).pins[pin].capacitance
                load[net] = load.get(net, 0) + own + wire
    for port in module["ports"].values():
        for net in port["bits"] if port["direction"] == "output" else []:
            load[net] = load.get(net, 0) + 4 * (gate + wire)
    total = sum(0.5 * c * library.voltage**2 * rates[net] for net, c in load.items() if not isinstance(net, str))
    for cell in module["cells"].values():
        if cell["type"] in macros:
            continue
        pins = library.cell(cell["type"]).pins
        at = {pin: nets[0] for pin, nets in cell["connections"].items()}
        for pin in at:
            sources = sorted({energy.related for energy in pins[pin].energies})
            shares = [rates.get(at.get(source), 0) for source in sources]
            for source, share in zip(sources, shares, strict=True):
                entries = [e for e in pins[pin].energies if e.related == source]
                both = [float(t(library.fo4_slew, load.get(at[pin], 0))) for e in entries for t in (e.rise, e.fall)]
                weight = share / sum(shares) if sum(shares) else 1 / len(sources)
                total += weight * sum(both) / len(both) * rates.get(at[pin], 0)
    return total * library.farads


@pytest.mark.parametrize("name", ["predictive14", "osu018"])
def test_a_second_computation_agrees(name, predictive, rng):
    if name == "osu018" and not OSU018.exists():
        pytest.skip("qflow-tech-osu018 is not installed")
    library = predictive if name == "predictive14" else load([OSU018])
    design, circuit = mapped(Multiplier(), library)
    netlist = circuit.netlists["dut"]
    activity = guessed(circuit, 0.25)
    rates = rng.random(netlist.size)
    rates[:2] = 0
    rates[netlist.inputs["clk"]] = 2
    activity.toggles["dut"][:] = rates
    result = power(design, circuit, activity, clock_mhz=MHZ)
    by_bit = {}  # rates by Yosys net number, matched by port and pin names
    module = design.mapped["dut"].module
    for port, nets in (*netlist.inputs.items(), *netlist.outputs.items()):
        by_bit |= {bit: rates[net] for bit, net in zip(module["ports"][port]["bits"], nets, strict=True)}
    for group in (*netlist.registers, *netlist.logic):
        for k, cell in enumerate(group.names):
            for pin, bits in module["cells"][cell]["connections"].items():
                by_bit |= dict.fromkeys(bits, rates[group.pins[pin][k]])
    for cell, _, pins, _ in netlist.opaque:
        for pin, nets in pins.items():
            by_bit |= dict(zip(module["cells"][cell]["connections"][pin], rates[nets], strict=True))
    by_bit = {bit: rate for bit, rate in by_bit.items() if not isinstance(bit, str)}
    dynamic = result.of("total") - result.of("leakage")
    assert dynamic == pytest.approx(plain(design, library, by_bit) * MHZ * 1e6, rel=1e-9)
    leakage = sum(library.cell(kind).leakage_w * count for kind, count in design.cell_types.items())
    assert result.of("leakage") == pytest.approx(leakage)


@pytest.fixture(scope="module")
def pairs(predictive):
    """A pair of multipliers as one block, and in several blocks."""
    flat = mapped(Pair(), predictive)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synth.area, "partition", functools.partial(partition, flat_bytes=0, min_bytes=2000))
        return flat, mapped(Pair(), predictive)


def test_blocks_and_kinds_add_up(pairs):
    result = watts(*pairs[1])
    assert {block.name: block.count for block in result.blocks} == {
        block.name: block.count for block in pairs[1][0].blocks
    }
    assert max(block.count for block in result.blocks) == 2
    assert result.of("total") == pytest.approx(sum(result.of(kind) for kind in KINDS))
    assert result.of("total") == pytest.approx(sum(block.total for block in result.blocks))
    assert all(f"\n{block.name} " in powers_table([result]) for block in result.blocks)
    report = json.loads(json.dumps(result.json()))
    assert report["total_mw"] == pytest.approx(sum(block["total_mw"] for block in report["blocks"]))
    assert report["total_mw"] == pytest.approx(sum(report[f"{kind}_mw"] for kind in KINDS))


def test_cutting_into_blocks_loses_no_register_and_no_memory(pairs):
    flat, divided = (watts(*pair) for pair in pairs)
    for kind in ("clock", "memories"):
        assert divided.of(kind) == pytest.approx(flat.of(kind))


def test_memories_are_not_part_of_the_total(predictive):
    design, circuit = mapped(Multiplier(), predictive)
    activity = guessed(circuit, 0.25)
    resting = power(design, circuit, activity, clock_mhz=MHZ)
    activity.accesses["dut"][:] = [[1.0, 0.5]]
    busy = power(design, circuit, activity, clock_mhz=MHZ)
    (macro,) = design.blocks[0].macros
    assert resting.of("memories") == pytest.approx(macro.leakage_w(PREDICTIVE))
    assert busy.of("memories") - resting.of("memories") == pytest.approx(1.5 * macro.access_j * MHZ * 1e6)
    assert busy.of("total") == resting.of("total")


def test_more_toggles_more_power(predictive):
    design, circuit = mapped(Multiplier(), predictive)
    totals = [watts(design, circuit, rate).of("total") for rate in (0.0, 0.1, 0.2)]
    assert np.diff(totals)[0] == pytest.approx(np.diff(totals)[1]) and totals[0] < totals[1]


def test_table_has_one_row_per_stimulus(predictive):
    design, circuit = mapped(Multiplier(), predictive)
    text = powers_table([watts(design, circuit, rate) for rate in (0.1, 0.2)])
    assert "guess 0.1" in text and "guess 0.2" in text and "estimate for 14 nm" in text


def test_table_says_how_wrong_a_guess_is(predictive):
    design, circuit = mapped(Multiplier(), predictive)
    real = replace(guessed(circuit, 0.05), stimulus="real", cycles=10)
    result = power(design, circuit, real, clock_mhz=MHZ)
    still = power(design, circuit, replace(guessed(circuit, 0.0), stimulus="still", cycles=10), clock_mhz=MHZ)
    text = powers_table([still, result, watts(design, circuit, 0.2)])
    assert "guess 0.2: registers and logic are 4 x real\n" in text


def test_a_part_stands_for_the_whole(predictive):
    design, circuit = mapped(Multiplier(), predictive)
    activity = guessed(circuit, 0.1)
    activity.accesses["dut"][:] = [[1.0, 0.5]]
    small = replace(design, config={"lanes": 2, "rows": 4})
    blocks = tuple(replace(block, count=3 * block.count) for block in design.blocks)
    large = replace(design, config={"lanes": 6, "rows": 4}, blocks=blocks)
    measured = power(design, circuit, activity, clock_mhz=MHZ)
    result = scaled(measured, small, large)
    for kind in (*KINDS, "memories", "total"):
        assert result.of(kind) == pytest.approx(3 * measured.of(kind))
    assert result.measured_on == "lanes = 2" and [block.count for block in result.blocks] == [3]
    assert "measured on lanes = 2" in powers_table([result])
    assert scaled(measured, small, small) is measured


def test_a_memory_that_only_the_whole_has_in_a_block_of_its_own_grows_too(predictive):
    design, circuit = mapped(Multiplier(), predictive)
    activity = guessed(circuit, 0.1)
    activity.accesses["dut"][:] = [[1.0, 0.5]]
    small = replace(design, config={"lanes": 2})
    (block,) = design.blocks
    (macro,) = block.macros
    half = replace(block, macros=(), area_um2=2 * block.area_um2)
    own = replace(block, name="dut.memory", macros=(replace(macro, width=3 * macro.width),))
    measured = power(design, circuit, activity, clock_mhz=MHZ)
    result = scaled(measured, small, replace(design, config={"lanes": 6}, blocks=(own, half)))
    for kind in (*KINDS, "memories", "total"):
        assert result.of(kind) == pytest.approx(3 * measured.of(kind))


def test_a_wide_word_is_columns_side_by_side():
    narrow, wide = (Macro("a", "b", 64, width, 1, 1, 6) for width in (128, 2048))
    assert wide.access_j == pytest.approx(16 * narrow.access_j)
    assert wide.area_um2(PREDICTIVE) == pytest.approx(16 * narrow.area_um2(PREDICTIVE))
    assert 8e-12 < Macro("a", "b", 1024, 64, 1, 1, 10).access_j < 9e-12  # 8 KB: between 7.5 and 10 pJ


def test_shares_of_published_macros():
    """Share of the bit cells in the area of some single-port ASAP7 macros: bits x 0.02916 um2 / area in the LEF file.

    The areas are those of hammer-vlsi 1.2.0, whose LEF files are drawn four times as large in both directions.
    """
    lef = {(64, 8): 534.4, (32, 50): 1452.8, (64, 32): 1860.8, (512, 8): 3543.5, (256, 32): 6892.7, (64, 128): 6892.7,
           (512, 64): 26472.2, (1024, 64): 52281.7, (4096, 16): 52450.1}  # fmt: skip
    for (depth, width), um2 in lef.items():
        macro = Macro("a", "b", depth, width, 1, 1, 10, single_port=True)
        share = macro.bits * PREDICTIVE.bit_cell_um2 / macro.area_um2(PREDICTIVE)
        assert share == pytest.approx(depth * width * 0.02916 / (um2 / 16), rel=0.1)


def test_a_memory_of_few_rows_is_latches():
    """Larger than an SRAM would be, but smaller than flip-flops; a small share of the energy of an access of 8 KB."""
    latches, sram = Macro("a", "b", 16, 49, 1, 1, 4), Macro("a", "b", 17, 49, 1, 1, 5)
    assert latches.is_latches and not sram.is_latches
    flip_flops = latches.bits * PREDICTIVE.area_um2(17) / PREDICTIVE.utilisation
    assert sram.area_um2(PREDICTIVE) < latches.area_um2(PREDICTIVE) < flip_flops
    assert 0.1e-12 < latches.access_j < 0.3e-12 < sram.access_j
    assert latches.leakage_w(PREDICTIVE) > sram.leakage_w(PREDICTIVE)


def test_arrays_are_measured_on_a_part():
    paper = Config.preset("paper")
    assert reduced_config("dpe", paper).dpe_trees == 8 and reduced_config("vpe", paper).vpe_lanes == 8
    assert reduced_config("hcu", paper) == paper and reduced_config("dpe", Config.preset("tiny")) == Config.preset(
        "tiny"
    )


def test_library_without_power_tables(predictive, tmp_path):
    path = tmp_path / "plain.lib"
    path.write_text(predictive.text.replace("internal_power", "unknown_group"))
    library = load([path])
    design, circuit = mapped(Inverter(), library)
    with pytest.raises(LibraryError, match="no power tables"):
        watts(design, circuit)
