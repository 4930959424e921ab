"""Functional coverage: the boundaries of each mode of a unit that the tests hit, by back-pressure.

Each module declares the bins of its units and detects the bins of a run from its recorded inputs and outputs, not from
the intention of the test. An undeclared bin raises KeyError. A bin that no run hits is a coverage hole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from amaranth.lib import wiring

from sim.bench.streams import STALL_PHASES, Stall, stall_phase

PRESSURES = STALL_PHASES
RESET = ("reset", "in mid-flight")
Met = tuple[str, str, int]  # mode, boundary, cycle of the hit


@dataclass(frozen=True)
class Run:
    """One simulation: the arguments of `sim.bench.run.simulate`, and the payloads, cycles and counters of its record.

    stall : probability of a pause, by stream, or a `sim.bench.streams.Stall`
    reset : cycle of a reset in mid-flight, 0 without a reset
    pauses : sides that pause ("source", "sink") when `stall` does not define them ; more : further data of the unit
    """

    component: Any
    config: Mapping[str, int]
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    status: Mapping[str, int]
    cycles: Mapping[str, Any] = field(default_factory=dict)
    stall: Mapping[str, Stall] = field(default_factory=dict)
    reset: int = 0
    pauses: frozenset[str] | None = None
    more: Any = None

    def pressure(self, cycle: int) -> str:
        """Back-pressure in a cycle: `source` pauses between beats, `sink` pauses before it accepts them."""
        pauses = self.pauses
        if pauses is None:
            for stall in self.stall.values():
                if not isinstance(stall, float | int):
                    return stall_phase(cycle, *stall[1:])
            members = self.component.signature.members
            pauses = frozenset(
                "source" if members[name].flow is wiring.In else "sink" for name, p in self.stall.items() if p
            )
        return "both" if len(pauses) == 2 else next(iter(pauses), "none")


@dataclass(frozen=True)
class Cover:
    """Bins of one unit: its modes with the boundaries of each, crossed with the back-pressures.

    detect : returns the hits of a run, which may repeat
    """

    bins: Mapping[str, Sequence[str]]
    detect: Callable[[Run], Iterable[Met]]
    pressures: Sequence[str] = PRESSURES

    def all(self) -> Iterator[str]:
        """Every bin as `mode: boundary | back-pressure`."""
        for mode, boundaries in self.bins.items():
            for boundary in boundaries:
                for pressure in self.pressures:
                    yield f"{mode}: {boundary} | {pressure}"

    def met(self, run: Run) -> set[str]:
        """The bins that a run ticks. Raises KeyError for one that is not declared."""
        ticked = set()
        for mode, boundary, cycle in [*self.detect(run), *[(*RESET, run.reset)] * bool(run.reset)]:
            if boundary not in self.bins[mode]:
                raise KeyError(f"{mode}: {boundary} is not declared")
            ticked.add(f"{mode}: {boundary} | {run.pressure(cycle)}")
        return ticked
