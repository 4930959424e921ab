"""The coverage page: the figures, then every uncovered point with its reason."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sim.coverage.bins.cover import PRESSURES
from sim.coverage.verilog import KINDS, NAMES
from util.report import Column, Fact, Section, Table, run_metadata, write

OPEN = "open"


def _share(reached: int, total: int) -> float | None:
    return 100 * reached / total if total else None


def _ratio(reached: int, total: int) -> str | None:
    return f"{reached:,} / {total:,}" if total else None


def page(path: Path, result: dict[str, Any]) -> Path:
    """Write the page of a result; returns its path."""
    verilog, python = result["verilog"], result["python"]
    sections = [
        _summary(result),
        Section("Verilog by unit", _VERILOG, tables=[_units(verilog), _files(verilog)]),
        Section("Verilog lines and branches that no test reaches", tables=[_arms(verilog)]),
        Section("Toggles that no test reaches", _TOGGLES, tables=[_toggles(verilog)]),
        Section("Modes and boundaries of units", _BINS, tables=[_bins(result["bins"]), *_boundaries(result["bins"])]),
        Section("Python by package", _PYTHON, tables=[_packages(python), _python_files(python)]),
        Section("Python that no test runs", tables=[_python_holes(python)]),
    ]
    groups = {"groups": {group["tests"]: f"{group['revision']}, {group['seconds']} s" for group in result["groups"]}}
    title = "Coverage of the tests"
    return write(path, title, sections, {**run_metadata({}), **groups}, subtitle=f"revision {result['revision']}")


_VERILOG = (
    "A line is an arm of an If, Elif, Else or Case of the Python source. A branch is one side of a Mux. A toggle is "
    "one edge of one bit of a named signal. Repetition in loops, instances and configurations counts once.",
    "The table of units counts the points that the unit's own simulations reach; `elsewhere` counts the points that "
    "only simulations of other units reach. The table of files counts the points that any simulation reaches.",
)
_BINS = (
    "A bin is a boundary of a mode of a unit under one back-pressure: none, source, sink, or both pause. The tables "
    "give the number of runs that hit the bin."
)
_TOGGLES = "Bits of named signals that never rise or never fall, by file and reason."
_PYTHON = (
    "Statements and branches that the tests run, including subprocesses and the Python of the simulators. A branch out "
    "of a line that did not run counts with the line. Numba functions run as Python only in the interpreted groups."
)


def _summary(result: dict[str, Any]) -> Section:
    verilog, python = result["verilog"]["total"], result["python"]["packages"].values()
    bins = result["bins"].values()
    figures = {
        **{f"Verilog {NAMES[kind]}": (verilog[kind]["reached"], verilog[kind]["total"]) for kind in KINDS},
        "bins": (sum(unit["reached"] for unit in bins), sum(unit["total"] for unit in bins)),
        "Python statements": (sum(p["statements_run"] for p in python), sum(p["statements"] for p in python)),
        "Python branches": (sum(p["branches_taken"] for p in python), sum(p["branches"] for p in python)),
    }
    unreached = {
        **{f"Verilog {NAMES[kind]}": (verilog[kind]["explained"], verilog[kind]["open"]) for kind in KINDS},
        "bins": tuple(sum(unit[key] for unit in bins) for key in ("explained", "open")),
        "Python, statements and branches": tuple(sum(p[key] for p in python) for key in ("explained", "open")),
    }
    text = []
    if result["missing"]:
        text.append(f"Not measured: {', '.join(result['missing'])}.")
    text += [
        f"This reason matches nothing: {entry['kind']} {entry['where']} {entry['what']}." for entry in result["stale"]
    ]
    facts = [Fact(f"{name}: {_ratio(*pair)}", _share(*pair), "%") for name, pair in figures.items() if pair[1]]
    rows = [[name, *pair] for name, pair in unreached.items()]
    table = Table(["not reached", "explained", OPEN], rows)
    return Section("Summary", text, facts=facts, tables=[table])


def _units(verilog: dict[str, Any]) -> Table:
    columns: list[Column | str] = ["unit"]
    for kind in KINDS:
        columns += [NAMES[kind], Column("", "%", ".1f"), "elsewhere"]
    rows = []
    for unit, kinds in verilog["units"].items():
        row: list[Any] = [unit]
        for kind in KINDS:
            counts = kinds[kind]
            row += [
                _ratio(counts["reached"], counts["total"]),
                _share(counts["reached"], counts["total"]),
                counts["elsewhere"],
            ]
        rows.append(row)
    return Table(columns, rows, "Coverage of each unit by its own simulations.")


def _files(verilog: dict[str, Any]) -> Table:
    columns: list[Column | str] = ["source"]
    for kind in KINDS:
        columns += [NAMES[kind], "explained", OPEN]
    rows = []
    for file, kinds in verilog["files"].items():
        row: list[Any] = [file]
        for kind in KINDS:
            counts = kinds[kind]
            row += [_ratio(counts["reached"], counts["total"]), counts["explained"], counts["open"]]
        rows.append(row)
    return Table(columns, rows, "Coverage of each source file by all simulations.")


def _arms(verilog: dict[str, Any]) -> Table:
    arms_by_location: dict[tuple[str, str, str], list[str]] = {}
    for hole in (hole for kind in ("line", "branch") for hole in verilog["holes"][kind]):
        arms_by_location.setdefault((hole["place"], hole["source"], hole["reason"] or OPEN), []).append(hole["what"])
    rows = [
        [location, ", ".join(arms), source, reason] for (location, source, reason), arms in arms_by_location.items()
    ]
    return Table(["location", "not reached", "source", "reason"], rows)


def _toggles(verilog: dict[str, Any]) -> Table:
    edges_by_reason: dict[tuple[str, str], Counter[str]] = {}
    for hole in verilog["holes"]["toggle"]:
        signals = edges_by_reason.setdefault((hole["file"], hole["reason"] or OPEN), Counter())
        signals[hole["what"].split("[")[0].split(" ")[0]] += 1
    rows = [
        [file, signals.total(), ", ".join(f"{signal} ({edges})" for signal, edges in sorted(signals.items())), reason]
        for (file, reason), signals in sorted(edges_by_reason.items())
    ]
    return Table(["source", "edges", "signals (edges of each)", "reason"], rows)


def _bins(units: dict[str, Any]) -> Table:
    rows = [
        [unit, _ratio(counts["reached"], counts["total"]), counts["explained"], counts["open"]]
        for unit, counts in units.items()
    ]
    return Table(["unit", "bins hit", "explained", OPEN], rows)


def _boundaries(units: dict[str, Any]) -> Iterator[Table]:
    """One table per unit: runs of each bin by back-pressure; the status and reasons of bins without a run."""
    for unit, counts in units.items():
        reasons = {hole["what"]: hole["reason"] for hole in counts["holes"]}
        present = {name.rsplit(" | ", 1)[1] for name in counts["met"]}
        pressures = [pressure for pressure in PRESSURES if pressure in present]
        cells: dict[str, list[Any]] = {}
        boundary_reasons: dict[str, list[str]] = {}
        for name, runs in counts["met"].items():
            boundary, pressure = name.rsplit(" | ", 1)
            cell = runs or ("explained" if reasons[name] else OPEN)
            cells.setdefault(boundary, [None] * len(pressures))[pressures.index(pressure)] = cell
            boundary_reasons.setdefault(boundary, []).extend([reasons[name]] if reasons.get(name) else [])
        rows = [[name, *row, " ".join(dict.fromkeys(boundary_reasons[name])) or None] for name, row in cells.items()]
        yield Table(["mode: boundary", *pressures, "reason"], rows, unit)


def _packages(python: dict[str, Any]) -> Table:
    columns: list[Column | str] = [
        "package",
        "statements run",
        Column("", "%", ".1f"),
        "branches taken",
        Column("", "%", ".1f"),
        "explained",
        OPEN,
    ]
    rows = []
    for package, p in python["packages"].items():
        pairs = [(p["statements_run"], p["statements"]), (p["branches_taken"], p["branches"])]
        rows.append(
            [package, *(cell for pair in pairs for cell in (_ratio(*pair), _share(*pair))), p["explained"], p["open"]]
        )
    return Table(columns, rows)


def _python_files(python: dict[str, Any]) -> Table:
    rows = []
    for file, p in python["files"].items():
        if p["holes"]:
            reasons = [hole["reason"] for hole in p["holes"]]
            pairs = [(p["statements_run"], p["statements"]), (p["branches_taken"], p["branches"])]
            rows.append(
                [file, *(_ratio(*pair) for pair in pairs), len(reasons) - reasons.count(None), reasons.count(None)]
            )
    return Table(
        ["file", "statements run", "branches taken", "explained", OPEN], rows, "Files with uncovered lines or branches."
    )


def _python_holes(python: dict[str, Any]) -> Table:
    rows = []
    for file, p in python["files"].items():
        by_reason: dict[str, list[str]] = {}
        for reason, group in itertools.groupby(p["holes"], key=lambda hole: hole["reason"] or OPEN):
            by_reason.setdefault(reason, []).extend(_ranges(list(group)))
        rows += [[file, ", ".join(ranges), reason] for reason, ranges in by_reason.items()]
    return Table(["file", "lines, and jumps from line to line", "reason"], rows)


def _ranges(holes: list[dict[str, Any]]) -> Iterator[str]:
    """Consecutive lines as `first-last`, a branch as `line to line`."""
    lines = [hole["line"] for hole in holes if hole["to"] is None]
    for _, group in itertools.groupby(enumerate(lines), key=lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in group]
        yield str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
    yield from (f"{hole['line']} to {max(hole['to'], 0) or 'end'}" for hole in holes if hole["to"] is not None)
