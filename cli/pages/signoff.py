"""The sign-off: text tables for the terminal, and the HTML page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from cli.signoff.kinds import KINDS
from cli.signoff.records import FAILED, PARTIAL, PASSED
from cli.signoff.stages import BEFORE, GAPS, MISSING, STAGES, STALE, Assessment, Cell, Requirement
from util import text
from util.report import Fact, Section, Status, Table, run_metadata, write
from util.report.page import show

COLORS = {PASSED: "green", PARTIAL: "yellow", STALE: "yellow", FAILED: "red", MISSING: "gray"}
OPEN = "open: no reason is recorded"
NO_COMMAND = "no command produces this evidence"
INTRODUCTION = (
    "vrex signoff generates this page from records of evidence; no cell is written by hand. Commands such as vrex "
    "verify and vrex formal write a record with result, date, commit, and hashes of the sources of the unit and of the "
    "check. A record whose hash differs from that of the present sources is stale and does not count.",
    "Passed: the check ran on the present sources and passed. Partial: a part of the check was left out, or points "
    "have no reason. Failed: the check found an error. Stale: the sources have changed since. Missing: no record.",
)
STAGES_TEXT = (
    "The stages follow the verification stages V1 to V3 of OpenTitan. OpenTitan counts items of a test plan and code "
    "coverage; this project counts proofs and inserted faults as well, and V3 also needs the mapped netlist and the "
    "layout. OpenTitan's V2S, security countermeasures, has no counterpart here. A unit has a stage when it meets all "
    "requirements of the stage and of the stages before it. V0 means that a requirement of V1 is not met."
)


def label(cell: Cell) -> str:
    """State and main figure of a cell in a few characters."""
    return cell.figure if cell.state == PASSED and cell.figure else f"{cell.state} {cell.figure}".rstrip()


def overview(assessments: Sequence[Assessment]) -> str:
    """The table of all units as text."""
    head = ["unit", "stage", *(kind.title for kind in KINDS.values())]
    rows = [[each.unit.name, each.stage, *(label(cell) for cell in each.cells.values())] for each in assessments]
    return text.table(head, rows)


def _command(cell: Cell, unit: str) -> str:
    if cell.record:
        return cell.record.command
    return KINDS[cell.kind].command_of(unit) or NO_COMMAND


def _figures(cell: Cell) -> str:
    return "" if cell.record is None else ", ".join(f"{name} {show(v)}" for name, v in cell.record.figures.items())


def _evidence(requirement: Requirement) -> str:
    return "all" if requirement is GAPS else KINDS[requirement.kind].title


def follow(assessment: Assessment) -> str:
    """One unit from claim to evidence as text: the requirements of each stage with the records that meet them."""
    unit = assessment.unit.name
    lines = [f"{unit}: stage {assessment.stage}", assessment.unit.summary]
    for stage in STAGES:
        unmet = {requirement.text: cause for requirement, cause in assessment.unmet(stage)}
        lines += ["", f"{stage.name} {stage.title}: {'needs evidence' if unmet else 'met'}"]
        for requirement in stage.requirements:
            cell, cause = assessment.cells[requirement.kind], unmet.get(requirement.text)
            lines.append(f"  [{' ' if cause else 'x'}] {requirement.text}{f' ({cause})' if cause else ''}")
            lines.append(f"      {_command(cell, unit)}")
            if cell.record:
                date = f"{cell.record.date} ({cell.record.age_days} d)"
                lines.append(f"      {cell.state}, {date}, commit {cell.record.commit}: {_figures(cell)}")
    if gaps := gap_rows([assessment]):
        lines += ["", "gaps", *(f"  {kind}: {what}: {reason}" for _, kind, what, reason in gaps)]
    return "\n".join(lines)


def gap_rows(assessments: Sequence[Assessment]) -> list[list[str]]:
    """Unit, kind of evidence, gap and reason of every gap in a record that is not stale; open gaps first."""
    rows = [
        [each.unit.name, KINDS[cell.kind].title, gap.what, gap.reason or OPEN]
        for each in assessments
        for cell in each.cells.values()
        if cell.state != STALE
        for gap in cell.gaps
    ]
    return sorted(rows, key=lambda row: row[3] != OPEN)


def page(path: Path, assessments: Sequence[Assessment]) -> Path:
    """Write the page; returns its path."""
    sections = [_summary(assessments), _stages(), _needs(assessments), *map(_unit, assessments)]
    return write(path, "Verification sign-off", sections, run_metadata({}), subtitle="evidence for every hardware unit")


def _status(cell: Cell, link: str = "") -> Status:
    return Status(label(cell), COLORS[cell.state], link)


def _summary(assessments: Sequence[Assessment]) -> Section:
    stages = Counter(each.stage for each in assessments)
    states = Counter(cell.state for each in assessments for cell in each.cells.values())
    facts = [Fact(f"units at {name}", stages[name]) for name in (BEFORE, *(stage.name for stage in STAGES))]
    facts += [Fact(state, states[state], "cells") for state in (PASSED, FAILED, MISSING)]
    rows = []
    for each in assessments:
        link = f"#{_unit(each).anchor}"
        stage = Status(each.stage, "gray" if each.stage == BEFORE else "green", link)
        rows.append([each.unit.name, stage, *(_status(cell, link) for cell in each.cells.values())])
    table = Table(["unit", "stage", *(kind.title for kind in KINDS.values())], rows)
    return Section("Units", INTRODUCTION, facts=facts, tables=[table])


def _stages() -> Section:
    rows: list[list[Any]] = []
    for stage in STAGES:
        for number, requirement in enumerate(stage.requirements):
            head = ["", ""] if number else [f"{stage.name} {stage.title}", stage.meaning]
            rows.append([*head, f"{requirement.text}.", _evidence(requirement), requirement.command or NO_COMMAND])
    kinds = [[kind.title, kind.shows, kind.command or NO_COMMAND] for kind in KINDS.values()]
    tables = [
        Table(["stage", "meaning", "requirement", "evidence", "command"], rows),
        Table(["evidence", "what it shows", "command"], kinds, "Kinds of evidence.", collapsed=True),
    ]
    return Section("Stages", STAGES_TEXT, tables=tables)


def _needs(assessments: Sequence[Assessment]) -> Section:
    """What each unit lacks for its next stage."""
    rows = []
    for each in assessments:
        for stage in STAGES:
            if unmet := each.unmet(stage):
                for requirement, cause in unmet:
                    rows.append([each.unit.name, stage.name, _evidence(requirement), cause,
                                 _command(each.cells[requirement.kind], each.unit.name)])  # fmt: skip
                break
    table = Table(["unit", "stage", "evidence", "lacks", "command"], rows)
    return Section("Missing for the next stage", tables=[table] if rows else [])


def _unit(assessment: Assessment) -> Section:
    unit = assessment.unit
    rows = []
    for cell in assessment.cells.values():
        origin: list[str | None] = [None] * 3
        if (record := cell.record) is not None:
            age = f"{record.date[:10]},\N{NO-BREAK SPACE}{record.age_days}\N{NO-BREAK SPACE}d"
            origin = [age, record.commit, f"{record.design} {record.checks}"]
        state = Status(cell.state, COLORS[cell.state])
        rows.append([KINDS[cell.kind].title, state, _figures(cell) or None, _command(cell, unit.name), *origin])
    head = ["evidence", "state", "figures", "command", "date, age", "commit", "hash of unit and check"]
    tables = [Table(head, rows)]
    gaps = gap_rows([assessment])
    for title, group in groupby(gaps, key=lambda row: "open gaps" if row[3] == OPEN else "gaps with a reason"):
        body = [row[1:] for row in group]
        tables.append(Table(["evidence", "gap", "reason"], body, f"{title}: {len(body)}", collapsed=len(body) > 8))
    lacks = next(((stage, unmet) for stage in STAGES if (unmet := assessment.unmet(stage))), None)
    text = [f"{unit.summary}."]
    if lacks:
        stage, unmet = lacks
        text.append(f"For {stage.name}: {'; '.join(f'{_evidence(each)}: {cause}' for each, cause in unmet)}.")
    return Section(f"{unit.name}: {assessment.stage}", text, tables=tables)
