"""Switching activity of a mapped unit: toggles of every net under a stimulus that the RTL answered in a simulator.

The RTL runs with its own streams and every port is recorded; the netlist then runs over the recorded inputs, and its
outputs must equal the recorded ones in every cycle. Zero delay: a net toggles at most once between two clock edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from amaranth.lib import wiring

from sim.bench.run import simulate
from synth.power.circuit import CLOCK, Circuit
from synth.power.stimulus import Stimulus

RESET_CYCLES = 4  # not counted, not compared: the reset and the first values after it


@dataclass(frozen=True)
class Activity:
    """Toggles per clock cycle, summed over all instances of a block.

    Attributes
    ----------
    stimulus : what the unit was given ; cycles : how many were counted
    toggles : block -> float64 (nets,)
    accesses : block -> one row (reads, writes) per memory of the block, float64
    """

    stimulus: str
    cycles: int
    toggles: dict[str, np.ndarray]
    accesses: dict[str, np.ndarray]


def measure(circuit: Circuit, component: wiring.Component, stimulus: Stimulus) -> Activity:
    """Activity of `circuit`, mapped from `component`, under `stimulus`.

    Raises
    ------
    ArithmeticError
        The netlist answers otherwise than the RTL.
    sim.bench.build.SimulatorError
        The RTL does not run.
    """
    record = simulate(
        component,
        circuit.name,
        stimulus.inputs,
        stimulus.outputs,
        config=stimulus.config,
        echo=stimulus.echo,
        drain_cycles=stimulus.drain_cycles,
        record_ports=True,
    )
    run = circuit.run({name: record.ports[name] for name in circuit.inputs}, skip=RESET_CYCLES)
    for name, values in run.outputs.items():
        wrong = np.flatnonzero((values != record.ports[name]).any(axis=1)[RESET_CYCLES:])
        if len(wrong):
            cycle = int(wrong[0]) + RESET_CYCLES
            raise ArithmeticError(f"{circuit.name}: the netlist's {name} differs from the RTL's in cycle {cycle}")
    return _per_block(circuit, stimulus.name, run.cycles, run.toggles / run.cycles, run.accesses / run.cycles)


def guessed(circuit: Circuit, rate: float) -> Activity:
    """What a tool without stimulus assumes: every net but the clock toggles `rate` times a cycle; memories rest."""
    toggles = np.full(circuit.size, rate)
    for place in circuit.places:
        clock = circuit.netlists[place.block].inputs.get(CLOCK, [])
        toggles[np.array(clock, int) + place.base] = 2.0
    return _per_block(circuit, f"guess {rate:g}", 0, toggles, np.zeros((len(circuit.macros), 2)))


def _per_block(circuit: Circuit, name: str, cycles: int, toggles: np.ndarray, accesses: np.ndarray) -> Activity:
    nets = {block: np.zeros(netlist.size) for block, netlist in circuit.netlists.items()}
    memories = {block: np.zeros((len(circuit.memories(block)), 2)) for block in circuit.netlists}
    for place in circuit.places:
        nets[place.block] += toggles[place.base : place.base + len(nets[place.block])]
        memories[place.block] += accesses[place.macro : place.macro + len(memories[place.block])]
    return Activity(name, cycles, nets, memories)
