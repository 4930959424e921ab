"""Conversion of the results of commands to records of evidence."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.signoff.records import FAILED, PARTIAL, PASSED, Gap, Record, record
from hw.registry import UNITS, RegisteredUnit

RESET = re.compile(r"(^|_)reset(_|$)")
MUTATION_TARGET = 0.9  # smallest score of a passed campaign, that of stage V2
COVERAGE_KINDS = ("line", "branch", "bin")  # points that must be reached or have a reason


@dataclass(frozen=True)
class TestResult:
    """Result of one test: its file relative to the root, its name with parameters, `passed`, `failed` or `skipped`."""

    file: str
    name: str
    outcome: str


def tests_of_junit(path: Path) -> list[TestResult]:
    """Results in the XML file that pytest writes with `--junitxml`."""
    results = []
    for case in ElementTree.parse(path).iter("testcase"):
        outcome = next((tag for tag in ("failure", "error", "skipped") if case.find(tag) is not None), "passed")
        file = case.get("classname", "").replace(".", "/") + ".py"
        results.append(TestResult(file, case.get("name", ""), "failed" if outcome in ("failure", "error") else outcome))
    return results


def of_tests(
    unit: RegisteredUnit, kind: str, tests: Iterable[TestResult], *, heavy: bool, command: str
) -> list[Record]:
    """Records of one run of a unit's test file: `kind`, and for `simulation` also `reset` if there are such tests."""
    own = [test for test in tests if test.file == unit.tests]
    runs = {kind: own}
    if kind == "simulation" and (resets := [t for t in own if RESET.search(t.name.partition("[")[0])]):
        runs["reset"] = resets
    return [_test_record(unit.name, name, each, heavy=heavy, command=command) for name, each in runs.items()]


def _test_record(unit: str, kind: str, tests: Sequence[TestResult], *, heavy: bool, command: str) -> Record:
    counts = Counter(test.outcome for test in tests)
    gaps = [Gap(f"{test.name} {test.outcome}") for test in tests if test.outcome != "passed"]
    result = FAILED if counts["failed"] or not counts["passed"] else PASSED
    figures = {"tests": len(tests), **{name: counts[name] for name in ("passed", "failed", "skipped")}, "heavy": heavy}
    return record(unit, kind, result, figures, gaps, command=command)


def of_proofs(unit: str, proofs: Sequence[Mapping[str, Any]], claims: Sequence[str], error: str | None) -> Record:
    """Record of `vrex formal`.

    proofs  finished proofs as dictionaries of `sim.formal.engine.Proof`
    claims  names of all claims of the unit
    error   message of the proof that failed
    """
    done = {str(proof["name"]).removeprefix(f"{unit}_") for proof in proofs}
    bounded = [proof for proof in proofs if proof["depth"] is not None]
    gaps = [Gap(error)] if error else []
    if not error:
        gaps += [Gap(f"{name}: not proved, takes minutes") for name in claims if name not in done]
    gaps += [Gap(f"{proof['name']}: proved for the first {proof['depth']} cycles only") for proof in bounded]
    figures = {
        "claims": len(claims),
        "proved": len(proofs),
        "bounded": len(bounded),
        "seconds": round(sum(proof["seconds"] for proof in proofs), 1),
    }
    complete = len(proofs) == len(claims)
    result = FAILED if error else PASSED if complete else PARTIAL
    command = f"vrex formal {unit}{'' if complete or error else ' --quick'}"
    return record(unit, "proofs", result, figures, gaps, command=command)


def of_coverage(unit: str, result: Mapping[str, Any] | None, *, command: str) -> Record:
    """Record of `vrex coverage`; `result` is that of `sim.coverage.result.unit_result`, None if tests failed."""
    if result is None:
        return record(unit, "coverage", FAILED, {}, [Gap("tests failed, so nothing was measured")], command=command)
    figures: dict[str, Any] = {}
    for kind, counts in result["counts"].items():
        figures |= {f"{kind} {name}": counts[name] for name in ("reached", "total", "explained", "open")}
    points = Counter((hole["kind"], hole["where"], hole["reason"]) for hole in result["holes"])
    gaps = [
        Gap(f"{kind} {where}" if count == 1 else f"{count} {kind} points: {where}", reason)
        for (kind, where, reason), count in points.items()
    ]
    complete = not any(result["counts"][kind]["open"] for kind in COVERAGE_KINDS if kind in result["counts"])
    return record(unit, "coverage", PASSED if complete else PARTIAL, figures, gaps, command=command)


def of_mutation(campaign: Any, *, command: str) -> Record:
    """Record of `vrex mutate`, from a `sim.mutation.campaign.Campaign`."""
    figures = {
        "faults": len(campaign.mutants),
        "killed": campaign.killed,
        "equivalent": len(campaign.equivalent),
        "unreached": len(campaign.unreached),
        "survivors": len(campaign.survivors),
        "score": round(campaign.score, 4),
    }
    gaps = [Gap(f"survivor {mutant}") for mutant, _ in campaign.survivors]
    gaps += [
        Gap(f"unreached {mutant}", f"Visible after {mutant.events:,} events only; no test runs so long.")
        for mutant, _ in campaign.unreached
    ]
    result = PASSED if campaign.score >= MUTATION_TARGET else FAILED
    return record(campaign.unit, "mutation", result, figures, gaps, command=command)


def of_equivalence(unit: str, result: Mapping[str, Any] | None, error: str | None, *, command: str) -> Record:
    """Record of `vrex synth --equiv`, from the report of a unit with `timing` and `equivalence`."""
    if result is None:
        return record(unit, "equivalence", FAILED, {}, [Gap(error or "not proved")], command=command)
    blocks = result["equivalence"]["blocks"]
    figures = {
        "blocks": len(blocks),
        "outputs": sum(block["outputs"] for block in blocks),
        "clock_gates": sum(block["count"] * block["clock_gates"] for block in blocks),
        "cells": result["cells"],
        "nand2": result["nand2"],
        "fmax_mhz": round(result["timing"]["fmax_mhz"]),
    }
    return record(unit, "equivalence", PASSED, figures, command=command)


def of_layout(unit: str, figures: Mapping[str, Any], errors: str, *, command: str) -> Record:
    """Record of `vrex layout`, from the figures of `synth.layout.flow.Layout` and the errors of its check in words."""
    names = ("cells", "nets", "open_nets", "shorts", "die_mm2", "wire_mm", "layout_mhz")
    kept = {name: figures[name] for name in names if name in figures}
    gaps = [Gap(errors)] if errors else []
    return record(unit, "layout", FAILED if errors else PASSED, kept, gaps, command=command)


def units_with_tests(files: Iterable[str]) -> list[str]:
    """Units whose test file is one of `files`."""
    known = set(files)
    return [unit.name for unit in UNITS.values() if unit.tests in known]
