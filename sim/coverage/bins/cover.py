"""Functional coverage: which boundaries of each mode of a unit the tests met, and under which back-pressure.

Each module declares the bins of its units and finds in the record of a run what happened in it: from what went in and
came out, not from what a test meant to do. A bin that is not declared is an error, one that is never met a hole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from amaranth.lib import wiring

from sim.bench.streams import STALL_PHASES, Stall, stall_phase

PRESSURES = STALL_PHASES
RESET = ("reset", "in mid-flight")
Met = tuple[str, str, int]  # mode, boundary, and the cycle in which it was met


@dataclass(frozen=True)
class Run:
    """One simulation: what `sim.bench.run.simulate` was given, and the payloads, cycles and counters that came of it.

    stall : probability of a pause, by stream, or as `sim.bench.streams.Stall` has it
    reset : when not 0, the cycle of a reset in mid-flight
    pauses : what pauses where the streams do not tell, "source", "sink" ; more : what else there is to know
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
        """Who held whom up in a cycle: `source` paused between beats, `sink` before taking them."""
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

    found : what a run met, as often as it likes
    """

    bins: Mapping[str, Sequence[str]]
    found: Callable[[Run], Iterable[Met]]
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
        for mode, boundary, cycle in [*self.found(run), *[(*RESET, run.reset)] * bool(run.reset)]:
            if boundary not in self.bins[mode]:
                raise KeyError(f"{mode}: {boundary} is not declared")
            ticked.add(f"{mode}: {boundary} | {run.pressure(cycle)}")
        return ticked
