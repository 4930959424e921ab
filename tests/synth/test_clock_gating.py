"""Clock gates: insertion, proofs, simulation, power and timing of netlists that have them."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from amaranth import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw import emit
from synth.area import area_of_rtlil
from synth.equivalence import EquivalenceError, prove
from synth.gates import sources
from synth.library.reader import Library
from synth.library.records import ClockGate
from synth.power.activity import Activity, guessed
from synth.power.circuit import Circuit
from synth.power.power import power
from synth.timing.analysis import Analysis

WIDTH = 24


class Stores(wiring.Component):
    """Two registers with an enable each, and a register that is written in every cycle."""

    a: In(WIDTH)
    first: In(1)
    second: In(2)
    y: Out(WIDTH)

    def elaborate(self, platform):
        m = Module()
        one, two = Signal(WIDTH), Signal(WIDTH, init=5)
        with m.If(self.first):
            m.d.sync += one.eq(self.a + one)
        with m.If(self.second == 3):
            m.d.sync += two.eq(self.a)
        m.d.sync += self.y.eq(one ^ two)
        return m


def mapped(library, **options):
    return area_of_rtlil(emit.to_rtlil(Stores(), "stores"), "stores", library, **options)


def with_test_pin(library):
    """The library whose clock gates have a test pin SE, as many foundries' gates."""
    text = library.text.replace('cell : "latch_posedge"', 'cell : "latch_posedge_precontrol"')
    pin = "pin (SE) { direction : input; capacitance : 0.5; clock_gate_test_pin : true; }\n    pin (GCK)"
    return Library([("tested.lib", text.replace("pin (GCK)", pin))], "user")


def without_gates(library):
    text, count = re.subn(r"  cell \(CLKGATE.*?\n  }\n", "", library.text, flags=re.S)
    assert count == 2
    return Library([("plain.lib", text)], "user")


def stimulus(rng, cycles):
    words = rng.integers(0, 1 << WIDTH, cycles)
    bits = {"first": rng.integers(0, 2, cycles), "second": rng.integers(0, 4, cycles), "rst": np.zeros(cycles, int)}
    bits["rst"][:2] = 1
    values = {name: np.stack([value >> k & 1 for k in range(2 if name == "second" else 1)], 1)
              for name, value in bits.items()}  # fmt: skip
    values["a"] = np.stack([words >> k & 1 for k in range(WIDTH)], 1)
    return {name: value.astype(np.uint8) for name, value in values.items()}, words, bits


def test_registers_with_a_common_enable_have_one_gate(predictive):
    """The gates replace the multiplexers of the registers, so the netlist becomes smaller."""
    gated, plain = mapped(predictive), mapped(predictive, gated=0)
    assert (gated.clock_gates, plain.clock_gates) == (2, 0) and gated.flip_flops == plain.flip_flops == 3 * WIDTH
    assert gated.area_um2 < plain.area_um2 and gated.json()["clock_gates"] == 2
    assert mapped(predictive, gated=WIDTH + 1).clock_gates == 0
    assert mapped(without_gates(predictive)).clock_gates == 0
    with pytest.raises(ValueError, match="clock gating must be 0 or a number of registers, got -1"):
        mapped(predictive, gated=-1)


def test_gate_of_a_library_with_a_test_pin(predictive):
    """The test pin is tied to 0, in the netlist and in the model of the cell."""
    library = with_test_pin(predictive)
    assert library.clock_gate.gate == ClockGate("CK", "E", "GCK", ("SE",))
    design = mapped(library)
    assert design.clock_gates == prove(design, library).blocks[0].clock_gates == 2
    gates = [cell for cell in design.mapped["stores"].module["cells"].values() if "CLKGATE" in cell["type"]]
    assert [cell["connections"]["SE"] for cell in gates] == [["0"], ["0"]]
    assert "open = E | SE;" in sources(design, library)["cells.v"]
    gates[0]["connections"]["SE"] = ["1"]
    with pytest.raises(ValueError, match="test pins must be 0, got another net"):
        Circuit(design, library)


def test_gates_that_the_flow_cannot_use_are_left_out(predictive):
    """Gates for falling edges, without a latch, or with pins that this flow does not know."""
    for kind in ("latch_negedge", "none_posedge"):
        other = Library([("x.lib", predictive.text.replace('cell : "latch_posedge"', f'cell : "{kind}"'))], "user")
        assert other.clock_gate is None
    text = predictive.text.replace("clock_gate_enable_pin : true", "clock_gate_obs_pin : true")
    assert Library([("x.lib", text)], "user").clock_gate is None


def test_gated_netlist_is_equivalent_and_simulates(predictive, rng):
    design = mapped(predictive, point="balanced")
    (proof,) = prove(design, predictive).blocks
    assert (proof.netlist_registers, proof.clock_gates, proof.gated_registers) == (3 * WIDTH, 2, 2 * WIDTH)
    (plain,) = prove(mapped(predictive, point="balanced", gated=0), predictive).blocks
    assert (plain.netlist_registers, plain.clock_gates, plain.gated_registers) == (3 * WIDTH, 0, 0)
    circuit = Circuit(design, predictive)
    inputs, words, bits = stimulus(rng, 200)
    run = circuit.run(inputs, skip=4)
    one, two, y, mask = 0, 5, 0, (1 << WIDTH) - 1
    for cycle, word in enumerate(words):
        if cycle > 2:  # registers start at 0 in this simulation, and at their reset value after the reset
            assert sum(int(bit) << k for k, bit in enumerate(run.outputs["y"][cycle])) == y
        next_one = one + int(word) & mask if bits["first"][cycle] else one
        next_two = int(word) if bits["second"][cycle] == 3 else two
        one, two, y = (0, 5, 0) if bits["rst"][cycle] else (next_one, next_two, one ^ two)
    counted = slice(5, None)
    pulses = sorted(2 * int(enable[counted].sum()) for enable in (bits["first"], bits["second"] == 3))
    gated = [run.toggles[net] for net in circuit.netlists["stores"].enables]
    assert sorted(gated) == pulses and run.cycles == 195


def wrong_enable(module):
    """Exchange the enables of two gates."""
    one, two = (cell["connections"] for _, cell in sorted(module["cells"].items()) if "CLKGATE" in cell["type"])
    one["E"], two["E"] = two["E"], one["E"]


def missing_enable(module):
    """One gate never opens."""
    next(cell for cell in module["cells"].values() if "CLKGATE" in cell["type"])["connections"]["E"] = ["0"]


@pytest.mark.parametrize("fault", [wrong_enable, missing_enable])
def test_a_wrong_enable_is_found(fault, predictive, tmp_path, rng):
    """By the proof, and by a simulation of the netlist."""
    design = mapped(predictive)
    block = design.mapped["stores"]
    shutil.copytree(block.folder, tmp_path / "fault", ignore=shutil.ignore_patterns("equivalent-*"))
    path = tmp_path / "fault" / "netlist.json"
    netlist = json.loads(path.read_text())
    fault(netlist["modules"]["stores"])
    path.write_text(json.dumps(netlist))
    broken = replace(design, mapped={"stores": replace(block, folder=tmp_path / "fault")})
    with pytest.raises(EquivalenceError, match=r"stores: the netlist differs from the RTL: register"):
        prove(broken, predictive)
    inputs, _, _ = stimulus(rng, 100)
    good, bad = (Circuit(one, predictive).run(inputs).outputs["y"] for one in (design, broken))
    assert (good != bad).any()


def test_power_counts_the_pulses_of_a_gated_clock(predictive):
    """Idle gates save the clock of their registers; gates that are always enabled cost their own energy."""
    design, plain = mapped(predictive), mapped(predictive, gated=0)
    circuit, ungated = Circuit(design, predictive), Circuit(plain, predictive)
    busy = guessed(circuit, 0.0)
    idle_toggles = busy.toggles["stores"].copy()
    idle_toggles[list(circuit.netlists["stores"].enables)] = 0
    idle = Activity("idle", 1, {"stores": idle_toggles}, busy.accesses)
    clock = {
        name: power(area, at, activity, clock_mhz=800.0).of("clock")
        for name, area, at, activity in (
            ("idle", design, circuit, idle),
            ("busy", design, circuit, busy),
            ("plain", plain, ungated, guessed(ungated, 0.0)),
        )
    }
    assert clock["idle"] < 0.5 * clock["plain"] < clock["plain"] < clock["busy"]


def test_an_enable_arrives_before_the_edge(predictive):
    """The paths end at the enable of a gate, too."""
    netlist = Circuit(mapped(predictive), predictive).netlists["stores"]
    ends = [end for end in Analysis(netlist, {}).ends() if end.name.startswith("clock gate ")]
    assert len(ends) == 2 * 2 and all(end.setup > 0 for end in ends)  # two edges of two enables
