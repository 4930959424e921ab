"""Switching activity of a mapped unit: toggles of every net under a stimulus.

A simulator runs the RTL under the stimulus and records every port. The netlist then runs over the recorded inputs, and
its outputs must equal the recorded outputs in every cycle. Delays are zero: a net toggles at most once between two
clock edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from amaranth.lib import wiring

from sim.bench.run import simulate
from synth.power.circuit import CLOCK, Circuit
from synth.power.streams import Stimulus

RESET_CYCLES = 4  # reset and the first values after it, neither counted nor compared


@dataclass(frozen=True)
class Activity:
    """Toggles per clock cycle, summed over all instances of a block.

    Attributes
    ----------
    stimulus : name of the stimulus ; cycles : number of counted cycles
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
        An output of the netlist differs from the RTL's.
    sim.bench.build.SimulatorError
        The simulation of the RTL failed.
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
        memory=stimulus.memory,
    )
    run = circuit.run({name: record.ports[name] for name in circuit.inputs}, skip=RESET_CYCLES)
    for name, values in run.outputs.items():
        mismatched_cycles = np.flatnonzero((values != record.ports[name]).any(axis=1)[RESET_CYCLES:])
        if len(mismatched_cycles):
            cycle = int(mismatched_cycles[0]) + RESET_CYCLES
            raise ArithmeticError(f"{circuit.name}: the netlist's {name} differs from the RTL's in cycle {cycle}")
    return _per_block(circuit, stimulus.name, run.cycles, run.toggles / run.cycles, run.accesses / run.cycles)


def guessed(circuit: Circuit, rate: float) -> Activity:
    """Activity that tools assume without a stimulus: every net except the clocks toggles `rate` times per cycle.

    Gated clocks are always enabled. Memories have no accesses.
    """
    toggles = np.full(circuit.size, rate)
    for instance in circuit.instances:
        clock = circuit.netlists[instance.block].inputs.get(CLOCK, [])
        gated = circuit.netlists[instance.block].enables
        toggles[np.array([*clock, *gated], int) + instance.base] = 2.0
    return _per_block(circuit, f"guess {rate:g}", 0, toggles, np.zeros((len(circuit.macros), 2)))


def _per_block(circuit: Circuit, name: str, cycles: int, toggles: np.ndarray, accesses: np.ndarray) -> Activity:
    nets = {block: np.zeros(netlist.size) for block, netlist in circuit.netlists.items()}
    memories = {block: np.zeros((len(circuit.memories(block)), 2)) for block in circuit.netlists}
    for instance in circuit.instances:
        nets[instance.block] += toggles[instance.base : instance.base + len(nets[instance.block])]
        memories[instance.block] += accesses[instance.macro : instance.macro + len(memories[instance.block])]
    return Activity(name, cycles, nets, memories)
