"""Faults in the clock gates of the HCU's netlist: each is detected by a simulation, by the proof, or is harmless.

A harmless fault is a gate with the enable of another gate whose registers keep their values in all cycles in which the
two enables differ. yosys's SAT solver must confirm it, on a circuit that shares no code with `synth.equivalence`.
"""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from hw import yosys
from hw.config import Config
from hw.registry import UNITS
from sim.bench.run import simulate
from synth.area import Area, area
from synth.equivalence import EquivalenceError, prove
from synth.power.circuit import Circuit
from synth.power.stimulus import stimulus

TOKENS = 200
FAULTS = ("never", "always", "wrong")
HARMLESS = 0.05  # largest share of gates whose neighbour's enable has the same effect


@dataclass(frozen=True)
class Gated:
    """The netlist of the HCU at `tiny`, its clock gates, and the ports of the RTL in every cycle of a simulation."""

    design: Area
    gates: tuple[str, ...]
    ports: dict[str, np.ndarray]

    @property
    def module(self):
        return self.design.mapped["hcu"].module

    def outputs_differ(self, design, library):
        """Whether an output of the netlist differs from the RTL's in a cycle after the reset."""
        circuit = Circuit(design, library)
        run = circuit.run({name: self.ports[name] for name in circuit.inputs})
        return any((values != self.ports[name])[4:].any() for name, values in run.outputs.items())

    def broken(self, gate, fault, folder):
        """The design with a fault in one gate; the files of its netlist are in `folder`."""
        cells = self.module["cells"]
        following = self.gates[(self.gates.index(gate) + 1) % len(self.gates)]
        enables = {"never": ["0"], "always": ["1"], "wrong": cells[following]["connections"]["E"]}
        pins = cells[gate]["connections"] | {"E": enables[fault]}
        assert pins != cells[gate]["connections"]
        module = self.module | {"cells": cells | {gate: cells[gate] | {"connections": pins}}}
        mapped = self.design.mapped["hcu"]
        folder.mkdir(parents=True)
        for name in ("design.il", "macros.v"):
            (folder / name).write_text((mapped.folder / name).read_text())
        (folder / "netlist.json").write_text(json.dumps({"modules": {"hcu": module}}))
        return replace(self.design, mapped={"hcu": replace(mapped, folder=folder)})

    def registers_of(self, gate):
        """Every name of the registers behind a gate."""
        (clock,) = self.module["cells"][gate]["connections"]["GCK"]
        cells = (cell["connections"] for cell in self.module["cells"].values())
        bits = {pins["Q"][0] for pins in cells if pins.get("CK") == [clock] and "Q" in pins}
        return {
            name if len(wire["bits"]) == 1 else f"{name}[{k}]"
            for name, wire in self.module["netnames"].items()
            for k, bit in enumerate(wire["bits"])
            if bit in bits
        }


@pytest.fixture(scope="module")
def gated(predictive):
    """The stimulus has random hash codes and random pauses of both streams."""
    config = Config.preset("tiny")
    design, unit = area("hcu", config, predictive, point="balanced"), UNITS["hcu"].build(config)
    beats = stimulus(unit, "random", beats=TOKENS)
    options = {"config": beats.config, "stall": 0.3, "drain_cycles": beats.drain_cycles, "record_ports": True}
    ports = simulate(unit, "hcu", beats.inputs, beats.outputs, **options).ports
    cells = design.mapped["hcu"].module["cells"]
    gates = sorted(name for name, cell in cells.items() if predictive.cell(cell["type"]).gate is not None)
    return Gated(design, tuple(gates), ports)


def equal_by_yosys(gated, gate, enable, library, folder):
    """Whether yosys's SAT solver proves that the registers of a gate have the same next state with another enable.

    The circuit is the logic in front of these registers; every register and memory is a free input.
    """
    cells = {name: cell for name, cell in gated.module["cells"].items() if library.cell(cell["type"]).is_logic}
    drivers = {bit: name for name, cell in cells.items() for pin, (bit, *_) in cell["connections"].items()
               if cell["port_directions"][pin] == "output"}  # fmt: skip
    (clock,) = gated.module["cells"][gate]["connections"]["GCK"]
    registers = [cell["connections"] for cell in gated.module["cells"].values()
                 if cell["connections"].get("CK") == [clock] and "Q" in cell["connections"]]  # fmt: skip
    kept, free = {}, set()
    pending = [enable[0], *gated.module["cells"][gate]["connections"]["E"]]
    pending += [bit for pins in registers for bit in (*pins["D"], *pins["Q"])]
    reached = set(pending)
    while pending:
        bit = pending.pop()
        if bit not in drivers:
            free |= {bit} - {"0", "1"}
            continue
        cell = kept[drivers[bit]] = cells[drivers[bit]]
        new = {
            bits[0] for pin, bits in cell["connections"].items() if cell["port_directions"][pin] == "input"
        } - reached
        reached |= new
        pending += new
    fresh = iter(range(1_000_000, 2_000_000))

    def added(kind, **pins):
        (output,) = pins["Y"] = [next(fresh)]
        directions = {pin: "output" if pin == "Y" else "input" for pin in pins}
        kept[f"added{output}"] = {"type": f"$_{kind}_", "port_directions": directions, "connections": pins,
                                  "parameters": {}, "attributes": {}, "hide_name": 0}  # fmt: skip
        return output

    different = "0"
    for pins in registers:
        enables = (gated.module["cells"][gate]["connections"]["E"], enable)
        first, second = (added("MUX", A=pins["Q"], B=pins["D"], S=each) for each in enables)
        different = added("OR", A=[different], B=[added("XOR", A=[first], B=[second])])
    ports = {
        "free": {"direction": "input", "bits": sorted(free)},
        "different": {"direction": "output", "bits": [different]},
    }
    netnames = {name: {"bits": port["bits"], "hide_name": 0, "attributes": {}} for name, port in ports.items()}
    module = {"attributes": {}, "ports": ports, "cells": kept, "netnames": netnames}
    (folder / "next.json").write_text(json.dumps({"modules": {"next": module}}))
    commands = [
        f"read_liberty -ignore_miss_func {library.path}",
        f"read_json {folder}/next.json",
        "hierarchy -top next",
        "flatten",
        "opt_clean",
        "sat -verify -prove different 0 next",
    ]
    try:
        log = yosys.run(commands)
    except yosys.YosysError as error:
        assert "proof did fail" in str(error)
        return False
    assert "SUCCESS!" in log and registers
    return True


@pytest.mark.heavy
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_of_a_gate_is_detected(fault, gated, predictive, tmp_path: Path):
    assert not gated.outputs_differ(gated.design, predictive) and prove(gated.design, predictive).blocks
    assert len(gated.gates) == gated.design.clock_gates > 50
    simulated, proved, harmless = [], [], []
    for gate in gated.gates:
        broken = gated.broken(gate, fault, tmp_path / gate)
        if gated.outputs_differ(broken, predictive):
            simulated.append(gate)
            continue
        try:
            prove(broken, predictive)
        except EquivalenceError as error:
            difference = re.fullmatch(r"hcu: the netlist differs from the RTL: register (.*)", str(error))
            assert difference and difference[1] in gated.registers_of(gate)
            proved.append(gate)
            continue
        enable = broken.mapped["hcu"].module["cells"][gate]["connections"]["E"]
        assert equal_by_yosys(gated, gate, enable, predictive, tmp_path), f"gate {gate}: the proof accepts a fault"
        harmless.append(gate)
    print(f"{fault}: {len(simulated)} by simulation, {len(proved)} by proof, {len(harmless)} harmless")
    assert len(simulated) > len(gated.gates) / 2
    assert len(harmless) <= (HARMLESS * len(gated.gates) if fault == "wrong" else 0)


@pytest.mark.heavy
def test_yosys_rejects_a_fault(gated, predictive, tmp_path: Path):
    """The check that confirms harmless faults rejects enables that are always 0 or 1."""
    gate = gated.gates[0]
    assert equal_by_yosys(gated, gate, gated.module["cells"][gate]["connections"]["E"], predictive, tmp_path)
    assert not any(equal_by_yosys(gated, gate, [value], predictive, tmp_path) for value in "01")
