"""Power of a mapped unit: the library's internal energies and leakage, and half of C V^2 for every toggle of a net.

The energy inside a cell is read from the library's table at the slew of a fan-out-of-4 chain and the load of the net.
Rise and fall have equal weight. For an output with several related pins, the weight of a pin is its toggle rate. The
energy of a net belongs to the block of its pins. Clocks are ideal, without clock tree. A gated clock toggles only in
cycles in which its gate is enabled. The power of memories is an estimate for 14 nm and is not part of the total.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from amaranth.lib import wiring

from hw.config import Config
from synth.area import PREDICTIVE, Area
from synth.library.reader import Library
from synth.library.records import Energy
from synth.netlist import CellGroup, Netlist
from synth.power.activity import Activity, guessed, measure
from synth.power.circuit import Circuit
from synth.power.streams import Stimulus
from util.text import table

GUESSES = (0.1, 0.2)  # toggles per net and cycle that tools assume without a stimulus
# arrays of equal elements -> Config field and number of elements on which power is measured; `scaled` extrapolates
REDUCED_SIZES = {"dpe": ("dpe_trees", 8), "vpe": ("vpe_lanes", 8)}
KINDS = ("clock", "registers", "logic", "leakage")


@dataclass(frozen=True)
class BlockPower:
    """Power of all instances of a block, in W.

    Attributes
    ----------
    clock : clock nets, clock gates and the clock pins of registers ; registers : their data pins, outputs and nets
    logic : gates, their nets and the nets of input ports ; leakage : of all cells
    memories : estimate, not part of the total
    """

    name: str
    count: int
    clock: float
    registers: float
    logic: float
    leakage: float
    memories: float

    @property
    def total(self) -> float:
        return sum(getattr(self, kind) for kind in KINDS)


@dataclass(frozen=True)
class Power:
    """Power of a unit under one stimulus at one clock, in W."""

    unit: str
    stimulus: str
    cycles: int
    clock_mhz: float
    mean_toggles: float  # per net and cycle, without the clock
    blocks: tuple[BlockPower, ...]
    measured_on: str = ""  # reduced sizes on which it was measured; empty: the full unit

    def of(self, kind: str) -> float:
        """Power of one of `KINDS`, of `memories`, or the `total`."""
        return sum(getattr(block, kind) for block in self.blocks)

    def json(self) -> dict[str, Any]:
        names = (*KINDS, "total", "memories")
        keys = {name: f"{name}_mw" + ("_estimated" if name == "memories" else "") for name in names}
        return {
            "stimulus": self.stimulus,
            "cycles": self.cycles,
            "clock_mhz": self.clock_mhz,
            "mean_toggles": round(self.mean_toggles, 5),
            "measured_on": self.measured_on,
            **{keys[name]: self.of(name) * 1e3 for name in names},
            "blocks": [
                {"name": b.name, "count": b.count, **{keys[name]: getattr(b, name) * 1e3 for name in names}}
                for b in self.blocks
            ],
        }


def power(area: Area, circuit: Circuit, activity: Activity, *, clock_mhz: float) -> Power:
    """Power of a mapped unit under an activity.

    Raises
    ------
    LibraryError
        The library has no power or timing tables.
    """
    circuit.library.require(timing=True, power=True, cells=area.cell_types)
    hertz = clock_mhz * 1e6
    blocks = []
    nets = toggles = 0.0
    for block in area.blocks:
        netlist, top = circuit.netlists[block.name], block is area.blocks[-1]
        rates = activity.toggles[block.name]
        joules = _block(netlist, rates, top=top, inner=set(circuit.netlists))
        leakage = sum(circuit.library.cell(name).leakage_w * n for name, n in area.mapped[block.name].cells.items())
        memories = sum(
            macro.access_j * accesses.sum() * hertz + macro.leakage_w(PREDICTIVE) * block.count
            for macro, accesses in zip(circuit.memories(block.name), activity.accesses[block.name], strict=True)
        )
        watts = {kind: energy * hertz for kind, energy in joules.items()}
        blocks.append(BlockPower(block.name, block.count, **watts, leakage=leakage * block.count, memories=memories))
        nets += (netlist.size - 2 - netlist.clocks.sum()) * block.count
        toggles += rates[2:].sum() - rates[netlist.clocks].sum()
    return Power(area.unit, activity.stimulus, activity.cycles, clock_mhz, toggles / nets, tuple(blocks))


def _block(netlist: Netlist, rates: np.ndarray, *, top: bool, inner: set[str]) -> dict[str, float]:
    """Joules per cycle by kind, without leakage; `rates` are the toggles of every net per cycle."""
    library = netlist.library
    macros = {kind for _, kind, _, _ in netlist.opaque} - inner
    net = 0.5 * netlist.capacitance(outputs=top, inner=macros) * library.farads * library.voltage**2 * rates
    clock = netlist.clocks
    register = np.zeros(netlist.size, bool)
    joules = {"clock": 0.0, "registers": 0.0, "logic": 0.0}
    for group in netlist.registers:
        cell = library.cell(group.type)
        for pin in (pin for pin in cell.pins if pin in group.pins):
            nets = group.pins[pin]
            kind = "clock" if clock[nets].all() else "registers"
            joules[kind] += _internal(netlist, group, pin, rates)
            if pin in cell.outputs:
                register[nets] = True
    for group in netlist.gates:
        for pin in (pin for pin in library.cell(group.type).pins if pin in group.pins):
            joules["clock"] += _internal(netlist, group, pin, rates)
    for group in netlist.logic:
        for pin in (pin for pin in library.cell(group.type).pins if pin in group.pins):
            joules["logic"] += _internal(netlist, group, pin, rates)
    joules["clock"] += net[clock].sum()
    joules["registers"] += net[register].sum()
    joules["logic"] += net[~clock & ~register].sum()
    return joules


def _internal(netlist: Netlist, group: CellGroup, pin: str, rates: np.ndarray) -> float:
    """Joules per cycle inside the cells of a group due to transitions of `pin`."""
    library = netlist.library
    library_pin = library.cell(group.type).pins[pin]
    related: dict[str, list[Energy]] = {}
    for energy in library_pin.energies:
        related.setdefault(energy.related, []).append(energy)
    if not related:
        return 0.0
    nets = group.pins[pin]
    load = netlist.loads[nets]
    energies, weights = [], []
    for source, entries in related.items():  # several entries: states of the other pins, assumed equally likely
        sums = sum((e.rise(library.fo4_slew, load) + e.fall(library.fo4_slew, load) for e in entries), np.zeros(1))
        energies.append(np.broadcast_to(sums / (2 * len(entries)), load.shape))
        weights.append(rates[group.pins[source]] if source in group.pins else np.zeros(len(nets)))
    weight = np.stack(weights)
    shared = weight.sum(axis=0)
    weight = np.where(shared > 0, weight / np.where(shared > 0, shared, 1), 1 / len(related))
    return float(((weight * np.stack(energies)).sum(axis=0) * rates[nets]).sum() * library.joules)


def compare(
    area: Area, library: Library, component: wiring.Component, stimuli: Iterable[Stimulus], *, clock_mhz: float
) -> list[Power]:
    """Power of a mapped unit under each stimulus, then with guessed activities.

    `component` is the RTL of the unit. Raises the errors of `synth.power.activity.measure` and of `power`.
    """
    library.require(timing=True, power=True)
    circuit = Circuit(area, library)
    activities = [measure(circuit, component, stimulus) for stimulus in stimuli]
    activities += [guessed(circuit, rate) for rate in GUESSES]
    return [power(area, circuit, activity, clock_mhz=clock_mhz) for activity in activities]


def reduced_config(unit: str, config: Config) -> Config:
    """The configuration on which the power of `unit` is measured: `config`, or one with fewer of its equal elements."""
    name, count = REDUCED_SIZES.get(unit, ("", 0))
    return config.replace(**{name: count}) if name and getattr(config, name) > count else config


def scaled(measured: Power, reduced: Area, full: Area) -> Power:
    """The power of a unit from the power `measured` in the reduced configuration.

    The power of a block in both configurations scales with its count. The power of all other blocks scales with their
    total area, that of their memories with their total bits.
    """
    if reduced.config == full.config:
        return measured
    same = {(b.name, b.area_um2, b.memory_bits) for b in reduced.blocks}
    same &= {(b.name, b.area_um2, b.memory_bits) for b in full.blocks}
    common = {name for name, _, _ in same}

    def sizes(area: Area) -> tuple[float, float]:
        blocks = [b for b in area.blocks if b.name not in common]
        return sum(b.area_um2 * b.count for b in blocks), sum(b.memory_bits * b.count for b in blocks)

    (area, bits), (full_area, full_bits) = sizes(reduced), sizes(full)
    counts = {b.name: b.count for b in full.blocks}
    blocks = []
    for block in measured.blocks:
        logic, memories = full_area / area if area else 1.0, full_bits / bits if bits else 1.0
        if block.name in common:
            logic = memories = counts[block.name] / block.count
        watts = {kind: getattr(block, kind) * logic for kind in KINDS}
        count = counts[block.name] if block.name in common else block.count
        blocks.append(replace(block, count=count, memories=block.memories * memories, **watts))
    changed = [f"{name} = {value}" for name, value in reduced.config.items() if value != full.config[name]]
    return replace(measured, blocks=tuple(blocks), measured_on=", ".join(changed))


def powers_table(powers: Sequence[Power]) -> str:
    """Table of one unit under every stimulus, then of its blocks under the first stimulus."""
    head = ["stimulus", "cycles", "toggles*", *KINDS, "total mW", "memories**"]
    rows = [
        [
            p.stimulus,
            f"{p.cycles or ''}",
            f"{p.mean_toggles:.4f}",
            *(f"{p.of(kind) * 1e3:.4g}" for kind in (*KINDS, "total", "memories")),
        ]
        for p in powers
    ]
    blocks = [
        [b.name, f"{b.count}", *(f"{getattr(b, kind) * 1e3:.4g}" for kind in (*KINDS, "total", "memories"))]
        for b in powers[0].blocks
    ]
    notes = [
        f"mW at {powers[0].clock_mhz:g} MHz, zero delay: without glitches and clock tree",
        "* per net and cycle, without the clock; a guess assumes the same rate on every net and no access of memories",
        "** estimate for 14 nm, not part of the total",
    ]
    if powers[0].measured_on:
        notes.append(
            f"measured on {powers[0].measured_on}, the power of each block scaled to its area in the full unit"
        )
    lines = [table(head, rows), *_compare_estimates(powers), *notes]
    if len(blocks) > 1:
        lines += ["", powers[0].stimulus, table(["block", "count", *KINDS, "total mW", "memories**"], blocks)]
    return "\n".join(lines)


def _compare_estimates(powers: Sequence[Power]) -> Iterator[str]:
    """One line for each guess: its power of registers and logic over the measured power."""
    measured = [p for p in powers if p.cycles and p.of("registers") + p.of("logic")]  # an idle unit may have none
    for estimate in (p for p in powers if not p.cycles and measured):
        switched = estimate.of("registers") + estimate.of("logic")
        ratios = [f"{switched / (p.of('registers') + p.of('logic')):.3g} x {p.stimulus}" for p in measured]
        yield f"{estimate.stimulus}: registers and logic are {', '.join(ratios)}"
