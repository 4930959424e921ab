"""Stages of verification: the evidence that each one needs, and the stage that a unit has reached."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import floor
from pathlib import Path
from typing import Any

from cli.signoff.evidence import COVERAGE_KINDS
from cli.signoff.kinds import KINDS
from cli.signoff.records import FAILED, KEPT, PARTIAL, PASSED, Gap, Record, latest, record
from hw.registry import UNITS, RegisteredUnit
from util.files import ROOT, read_text

MISSING, STALE = "missing", "stale"
BEFORE = "V0"  # stage of a unit that lacks evidence for the first stage


@dataclass(frozen=True)
class Requirement:
    """Evidence that a stage needs.

    text : the claim in plain words
    unmet : what the record lacks; None if it meets the requirement. The record is current and not failed.
    options : of the command
    """

    kind: str
    text: str
    unmet: Callable[[Record], str | None] = lambda record: None
    options: str = ""

    @property
    def command(self) -> str:
        """The command that produces the evidence, with UNIT for the unit; empty: no command does."""
        return " ".join(filter(None, (KINDS[self.kind].command, self.options)))


@dataclass(frozen=True)
class Stage:
    """A stage: name, title, one sentence, and the requirements that it adds to those of the stages before it."""

    name: str
    title: str
    meaning: str
    requirements: tuple[Requirement, ...]


def share(figures: Mapping[str, Any]) -> float | None:
    """Reached lines, branches and bins divided by all; None without points."""
    total = sum(figures.get(f"{kind} total", 0) for kind in COVERAGE_KINDS)
    return sum(figures.get(f"{kind} reached", 0) for kind in COVERAGE_KINDS) / total if total else None


def _percent(value: float) -> str:
    """A share in percent, rounded down, so that one below a limit does not look like the limit."""
    return f"{floor(value * 1000 + 1e-9) / 10:.1f}%"


def _at_least(share_: float, count: int, record: Record) -> str | None:
    if record.figures["faults"] < count:
        return f"{record.figures['faults']} faults, {count} needed"
    score = record.figures["score"]
    return None if score >= share_ else f"score {_percent(score)}, {share_:.0%} needed"


def _covered(least: float, record: Record) -> str | None:
    for kind in COVERAGE_KINDS:
        reached, total = (record.figures.get(f"{kind} {name}", 0) for name in ("reached", "total"))
        if reached < least * total:
            return f"{reached} of {total} {kind} points reached, {least:.0%} needed"
    return None if share(record.figures) is not None else "no points"


def _complete(record: Record) -> str | None:
    return "a part of the check was left out" if record.result == PARTIAL else None


def _closed(record: Record) -> str | None:
    points = sum(record.figures.get(f"{kind} open", 0) for kind in COVERAGE_KINDS)
    return f"{points} points without a reason" if points else None


def _heavy(record: Record) -> str | None:
    return None if record.figures["heavy"] else "the tests marked heavy were left out"


GAPS = Requirement("documents", "Every gap has a reason")  # of all kinds of evidence

STAGES = (
    Stage(
        "V1",
        "Under test",
        "The unit is described, and its RTL equals its golden model in every test.",
        (
            Requirement("documents", "The unit and its tests are described"),
            Requirement("simulation", "All tests of the unit pass on the RTL"),
        ),
    ),
    Stage(
        "V2",
        "Tests complete",
        "The tests reach nearly all of the unit and detect nearly all faults.",
        (
            Requirement("reset", "The tests that reset the unit during a run pass"),
            Requirement("proofs", "All claims without a slow proof are proved", options="--quick"),
            Requirement(
                "coverage", "The unit's own tests reach 90 % of its lines, branches and bins", partial(_covered, 0.9)
            ),
            Requirement("mutation", "The tests detect 90 % of at least 100 faults", partial(_at_least, 0.9, 100)),
        ),
    ),
    Stage(
        "V3",
        "Verified",
        "Every gap has a reason, and the evidence holds from the RTL to the layout.",
        (
            Requirement("simulation", "The tests marked heavy pass, too", _heavy, "--heavy"),
            Requirement("proofs", "All claims are proved", _complete),
            Requirement("coverage", "Every line, branch and bin is reached or has a reason", _closed),
            Requirement("mutation", "The tests detect 95 % of at least 200 faults", partial(_at_least, 0.95, 200)),
            Requirement("gates", "All tests pass on the mapped netlist"),
            Requirement("equivalence", "The mapped netlist equals the RTL, by proof"),
            Requirement("four_state", "All tests pass when all state powers up with X"),
            Requirement("layout", "The unit is placed and routed"),
            GAPS,
        ),
    ),
)


@dataclass(frozen=True)
class Cell:
    """Evidence of one kind for one unit. `state`: `missing`, `stale`, `failed`, `partial` or `passed`."""

    kind: str
    state: str
    record: Record | None
    gaps: tuple[Gap, ...] = ()

    @property
    def figure(self) -> str:
        """The main figure of the record in a few characters."""
        if self.record is None:
            return ""
        figures = self.record.figures
        match self.kind:
            case "simulation" | "reset" | "gates" | "four_state":
                return f"{figures['passed']}/{figures['tests']}"
            case "proofs":
                return f"{figures['proved']}/{figures['claims']}"
            case "coverage":
                reached = share(figures)
                return "" if reached is None else _percent(reached)
            case "mutation":
                return _percent(figures["score"])
            case "documents":
                return f"{figures['present']}/{figures['expected']}"
            case _:
                return ""

    def unmet(self, requirement: Requirement) -> str | None:
        """Why the evidence does not meet a requirement; None if it does."""
        if self.record is None or self.state in (MISSING, STALE, FAILED):
            return self.state
        return requirement.unmet(self.record)


@dataclass(frozen=True)
class Assessment:
    """Evidence of one unit, by kind."""

    unit: RegisteredUnit
    cells: Mapping[str, Cell]

    def unmet(self, stage: Stage) -> list[tuple[Requirement, str]]:
        """Requirements of a stage that are not met, with the cause."""
        pairs = [(each, self._unmet(each)) for each in stage.requirements]
        return [(requirement, cause) for requirement, cause in pairs if cause]

    def _unmet(self, requirement: Requirement) -> str | None:
        if requirement is not GAPS:
            return self.cells[requirement.kind].unmet(requirement)
        present = [cell for cell in self.cells.values() if cell.state not in (MISSING, STALE)]
        if all(cell.kind == "documents" for cell in present):
            return MISSING
        gaps = sum(not gap.reason for cell in present for gap in cell.gaps)
        return f"{gaps} open" if gaps else None

    @property
    def stage(self) -> str:
        """The highest stage whose requirements, and those of the stages before it, are met."""
        reached = BEFORE
        for stage in STAGES:
            if self.unmet(stage):
                break
            reached = stage.name
        return reached

    def json(self) -> dict[str, Any]:
        """Stage, state of each kind of evidence with its record, and gaps with their reasons."""
        cells = {
            kind: {
                "state": cell.state,
                "record": cell.record.json() if cell.record else None,
                "gaps": [{"what": gap.what, "reason": gap.reason} for gap in cell.gaps],
            }
            for kind, cell in self.cells.items()
        }
        return {"unit": self.unit.name, "stage": self.stage, "evidence": cells}


@dataclass(frozen=True)
class GapReason:
    """Reason for gaps of one unit and kind; `what` is a regular expression that is searched in the gap."""

    unit: str
    kind: str
    what: str
    reason: str


class GapReasons:
    """The checked-in reasons for gaps."""

    def __init__(self, entries: Sequence[GapReason] = ()) -> None:
        self.entries, self.used = list(entries), set[GapReason]()

    @classmethod
    def read(cls, path: Path) -> GapReasons:
        """Read a TOML file with tables `[[gap]]`. Raises ValueError that names the file."""
        try:
            entries = [GapReason(**entry) for entry in tomllib.loads(read_text(path)).get("gap", [])]
            for entry in entries:
                re.compile(entry.what)
                for name, value, known in (("unit", entry.unit, UNITS), ("kind", entry.kind, KINDS)):
                    if value not in known:
                        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        except (TypeError, ValueError, re.error) as error:
            raise ValueError(f"{path}: {error}") from error
        return cls(entries)

    def explain(self, unit: str, kind: str, gap: Gap) -> Gap:
        """The gap with its own reason or with that of the first entry that matches it."""
        for entry in self.entries:
            if not gap.reason and (entry.unit, entry.kind) == (unit, kind) and re.search(entry.what, gap.what):
                self.used.add(entry)
                return Gap(gap.what, entry.reason)
        return gap

    def stale(self) -> list[GapReason]:
        """Entries that matched no gap."""
        return [entry for entry in self.entries if entry not in self.used]


REASONS = KEPT / "gaps.toml"


def assess(unit: RegisteredUnit, reasons: GapReasons, folders: Sequence[Path] | None = None) -> Assessment:
    """Read the evidence of a unit. ValueError if a record is invalid."""
    cells = {}
    for kind in KINDS:
        entry = documents(unit) if kind == "documents" else latest(unit.name, kind, folders)
        if entry is None:
            cells[kind] = Cell(kind, MISSING, None)
        else:
            gaps = tuple(reasons.explain(unit.name, kind, gap) for gap in entry.gaps)
            cells[kind] = Cell(kind, STALE if entry.stale else entry.result, entry, gaps)
    return Assessment(unit, cells)


def documents(unit: RegisteredUnit) -> Record:
    """Record of the documents of a unit, from the source tree."""
    *folders, name = unit.module.split(".")
    places = [ROOT.joinpath(*folders[:n], "README.md") for n in range(len(folders), 0, -1)]
    readme = next((place for place in places if place.exists()), None)
    text = readme.read_text() if readme else ""
    found = {
        f"docstring of the class in {unit.module}": bool(inspect.getdoc(_component(unit))),
        f"`{name}.py` or `{folders[-1]}/` in the README of its folder": f"{name}.py" in text
        or f"{folders[-1]}/" in text,
        f"test file {unit.tests}": (ROOT / unit.tests).exists(),
    }
    gaps = [Gap(f"missing: {what}") for what, present in found.items() if not present]
    figures = {"present": sum(found.values()), "expected": len(found)}
    return record(
        unit.name, "documents", FAILED if gaps else PASSED, figures, gaps, command=f"vrex signoff {unit.name}"
    )


def _component(unit: RegisteredUnit) -> type:
    """Class of a unit: that of the class method which builds it."""
    method: Any = getattr(unit.build, "func", unit.build)
    return method.__self__
