"""Kinds of evidence: what each one shows, the command that produces it, and the files of the check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from cli.signoff.sources import check_hash, design_hash, path
from hw.registry import UNITS, RegisteredUnit
from sim.formal.claims import claims
from sim.formal.specifications.common import StreamContract
from util.files import ROOT

# test files of a unit in addition to the one of its module
_CORE = ("commands", "cycles", "lengths", "retrieval_unit", "waits")
MORE_TESTS = {"core": (*(f"tests/hw/core/test_{name}.py" for name in _CORE), "tests/compiler/test_layer.py")}


@dataclass(frozen=True)
class Kind:
    """A kind of evidence.

    title : heading of its column
    shows : what the evidence shows, as a sentence
    command : command that produces it, with UNIT for the unit; empty: no command produces it
    checks : files and folders of the check, beside the sources of the unit
    """

    title: str
    shows: str
    command: str
    checks: Callable[[RegisteredUnit], tuple[str, ...]]

    def command_of(self, unit: str) -> str:
        """The command for one unit."""
        return self.command.replace("UNIT", unit)


def _own_tests(unit: RegisteredUnit) -> tuple[str, ...]:
    return (unit.tests,)


def _all_tests(unit: RegisteredUnit) -> tuple[str, ...]:
    return (*_own_tests(unit), *MORE_TESTS.get(unit.name, ()))


def _netlist_tests(unit: RegisteredUnit) -> tuple[str, ...]:
    return (*_own_tests(unit), "synth/gates.py")


def _unknown_tests(unit: RegisteredUnit) -> tuple[str, ...]:
    return (*_own_tests(unit), "sim/bench/power_up.py")


def _proofs(unit: RegisteredUnit) -> tuple[str, ...]:
    """The engine, the table of claims and the specifications of the unit's own claims."""
    modules = {type(claim.build()).__module__ for claim in claims(unit.name)} | {StreamContract.__module__}
    return ("sim/formal/engine.py", *(str(path(module).relative_to(ROOT)) for module in sorted(modules)))


KINDS = {
    "documents": Kind(
        "documents",
        "The class of the unit, its folder's README and its test file describe the unit.",
        "vrex signoff UNIT",
        lambda unit: (),
    ),
    "simulation": Kind(
        "simulation", "All tests of the RTL pass: it equals its golden model.", "vrex verify UNIT", _own_tests
    ),
    "reset": Kind("reset", "The tests that reset the unit during a run pass.", "vrex verify UNIT", _own_tests),
    "proofs": Kind(
        "proofs",
        "The claims about the unit hold for all inputs.",
        "vrex formal UNIT",
        _proofs,
    ),
    "coverage": Kind(
        "coverage",
        "The unit's own tests reach its lines, branches and functional bins, or a reason is known.",
        "vrex coverage UNIT",
        lambda unit: (*_own_tests(unit), "sim/coverage"),
    ),
    "mutation": Kind(
        "mutation",
        "The tests detect faults that are inserted into the netlist.",
        "vrex mutate UNIT",
        lambda unit: (*_all_tests(unit), "sim/mutation"),
    ),
    "gates": Kind("gate level", "All tests pass on the mapped netlist.", "vrex verify UNIT --gates", _netlist_tests),
    "equivalence": Kind(
        "equivalence",
        "The mapped netlist equals the RTL, by proof.",
        "vrex synth UNIT --preset tiny --equiv",
        lambda unit: ("synth/equivalence.py",),
    ),
    "four_state": Kind(
        "four-state",
        "All tests pass when registers and memories power up with X, so reset defines all state that is read.",
        "vrex verify UNIT --simulator icarus --unknown",
        _unknown_tests,
    ),
    "layout": Kind(
        "layout",
        "The unit is placed and routed in osu018; its geometry has no open nets and no shorts.",
        "vrex layout UNIT",
        lambda unit: ("synth/layout",),
    ),
}


@cache
def sources(unit: str, kind: str) -> tuple[str, str]:
    """Present hashes of the sources of a unit and of a check. Raises ValueError for an unknown unit or kind."""
    if unit not in UNITS or kind not in KINDS:
        raise ValueError(f"evidence must be of a unit and one of {', '.join(KINDS)}, got {unit!r} and {kind!r}")
    registered = UNITS[unit]
    return design_hash(registered), check_hash(KINDS[kind].checks(registered))
