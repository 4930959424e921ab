"""Overrides of the two steps of a simulation: the sources that are built, and the process that runs the simulation.

Tests call `sim.bench.run.simulate` on a component. An override redirects these calls, without a change to the tests:
`pytest --gates` simulates mapped netlists, and a mutation campaign simulates a netlist with faults in one process that
forks for every run. An override holds for the whole process until its `with` block ends; the innermost one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from amaranth.lib import wiring

# component and name of its top module -> Verilog files (file name -> text)
SourceOverride = Callable[[wiring.Component, str], dict[str, str]]
# `sim.bench.build.Build`, Python module with the cocotb tests, folder of the run, environment of the run
SimulatorOverride = Callable[..., None]
_Override = TypeVar("_Override")

_sources: list[SourceOverride] = []
_simulators: list[SimulatorOverride] = []


@contextmanager
def source_override(override: SourceOverride) -> Iterator[None]:
    """Within the block, `sim.bench.build.build` builds the files that `override(component, name)` returns."""
    with _active(_sources, override):
        yield


@contextmanager
def simulator_override(override: SimulatorOverride) -> Iterator[None]:
    """Within the block, `sim.bench.run.run_module` calls `override(build, module, folder, environment)`."""
    with _active(_simulators, override):
        yield


def current_source_override() -> SourceOverride | None:
    """The innermost active `source_override`; None: components are built from their own Verilog."""
    return _sources[-1] if _sources else None


def current_simulator_override() -> SimulatorOverride | None:
    """The innermost active `simulator_override`; None: every run starts a simulator process."""
    return _simulators[-1] if _simulators else None


@contextmanager
def _active(stack: list[_Override], override: _Override) -> Iterator[None]:
    stack.append(override)
    try:
        yield
    finally:
        stack.pop()
