"""The coverage page: figures first, then every hole with its reason."""

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
    """Write the page of a result."""
    verilog, python = result["verilog"], result["python"]
    sections = [
        _summary(result),
        Section("Verilog by unit", _VERILOG, tables=[_units(verilog), _files(verilog)]),
        Section("Verilog lines and branches that nothing reaches", tables=[_arms(verilog)]),
        Section("Toggles that nothing reaches", _TOGGLES, tables=[_toggles(verilog)]),
        Section("Modes and boundaries of units", _BINS, tables=[_bins(result["bins"]), *_boundaries(result["bins"])]),
        Section("Python by package", _PYTHON, tables=[_packages(python), _python_files(python)]),
        Section("Python that nothing runs", tables=[_python_holes(python)]),
    ]
    told = {"parts": {one["tests"]: f"{one['revision']}, {one['seconds']} s" for one in result["parts"]}}
    title = "Coverage of the tests"
    return write(path, title, sections, {**run_metadata({}), **told}, subtitle=f"revision {result['revision']}")


_VERILOG = (
    "A line is an arm of an If, Elif, Else or Case of the Python source, a branch a side of a Mux, a toggle an edge of "
    "a bit of a named signal. What one place makes several times, in loops, instances and configurations, counts once.",
    "Units: what their own simulations reach, and how much more those of others do, elsewhere. Files: what any "
    "simulation reaches, and what of the rest is explained.",
)
_BINS = (
    "A bin is a boundary of a mode of a unit under a back-pressure: nobody pauses, the source, the sink, or both. The "
    "tables give the runs that met it."
)
_TOGGLES = "Bits of named signals that never rise or never fall, by file and reason."
_PYTHON = (
    "Statements and branches that the tests run, in subprocesses and in the simulators' Python too. A branch out of a "
    "line that did not run counts with the line. Compiled functions run as Python only in the tests that say so."
)


def _summary(result: dict[str, Any]) -> Section:
    verilog, python = result["verilog"]["total"], result["python"]["packages"].values()
    bins = result["bins"].values()
    figures = {
        **{f"Verilog {NAMES[kind]}": (verilog[kind]["reached"], verilog[kind]["total"]) for kind in KINDS},
        "bins": (sum(one["reached"] for one in bins), sum(one["total"] for one in bins)),
        "Python statements": (sum(p["statements_run"] for p in python), sum(p["statements"] for p in python)),
        "Python branches": (sum(p["branches_taken"] for p in python), sum(p["branches"] for p in python)),
    }
    left = {
        **{f"Verilog {NAMES[kind]}": (verilog[kind]["explained"], verilog[kind]["open"]) for kind in KINDS},
        "bins": tuple(sum(one[of] for one in bins) for of in ("explained", "open")),
        "Python, statements and branches": tuple(sum(p[of] for p in python) for of in ("explained", "open")),
    }
    text = []
    if result["missing"]:
        text.append(f"Not measured: {', '.join(result['missing'])}.")
    text += [f"This reason explains nothing: {one['kind']} {one['where']} {one['what']}." for one in result["stale"]]
    facts = [Fact(f"{name}: {_ratio(*pair)}", _share(*pair), "%") for name, pair in figures.items() if pair[1]]
    rows = [[name, *pair] for name, pair in left.items()]
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
            found = kinds[kind]
            row += [
                _ratio(found["reached"], found["total"]),
                _share(found["reached"], found["total"]),
                found["elsewhere"],
            ]
        rows.append(row)
    return Table(columns, rows, "Each unit in its own simulations.")


def _files(verilog: dict[str, Any]) -> Table:
    columns: list[Column | str] = ["source"]
    for kind in KINDS:
        columns += [NAMES[kind], "explained", OPEN]
    rows = []
    for file, kinds in verilog["files"].items():
        row: list[Any] = [file]
        for kind in KINDS:
            found = kinds[kind]
            row += [_ratio(found["reached"], found["total"]), found["explained"], found["open"]]
        rows.append(row)
    return Table(columns, rows, "Each source file in all simulations.")


def _arms(verilog: dict[str, Any]) -> Table:
    found: dict[tuple[str, str, str], list[str]] = {}
    for hole in (hole for kind in ("line", "branch") for hole in verilog["holes"][kind]):
        found.setdefault((hole["place"], hole["source"], hole["reason"] or OPEN), []).append(hole["what"])
    rows = [[place, ", ".join(arms), source, reason] for (place, source, reason), arms in found.items()]
    return Table(["place", "not reached", "source", "why"], rows)


def _toggles(verilog: dict[str, Any]) -> Table:
    found: dict[tuple[str, str], Counter[str]] = {}
    for hole in verilog["holes"]["toggle"]:
        signals = found.setdefault((hole["file"], hole["reason"] or OPEN), Counter())
        signals[hole["what"].split("[")[0].split(" ")[0]] += 1
    rows = [
        [file, signals.total(), ", ".join(f"{signal} ({edges})" for signal, edges in sorted(signals.items())), reason]
        for (file, reason), signals in sorted(found.items())
    ]
    return Table(["source", "edges", "signals (edges of each)", "why"], rows)


def _bins(units: dict[str, Any]) -> Table:
    rows = [
        [unit, _ratio(found["reached"], found["total"]), found["explained"], found["open"]]
        for unit, found in units.items()
    ]
    return Table(["unit", "bins met", "explained", OPEN], rows)


def _boundaries(units: dict[str, Any]) -> Iterator[Table]:
    """A table for each unit: runs by back-pressure, and for what no run met one word and the reasons."""
    for unit, found in units.items():
        reasons = {hole["what"]: hole["reason"] for hole in found["holes"]}
        there = {name.rsplit(" | ", 1)[1] for name in found["met"]}
        pressures = [pressure for pressure in PRESSURES if pressure in there]
        cells: dict[str, list[Any]] = {}
        why: dict[str, list[str]] = {}
        for name, runs in found["met"].items():
            boundary, pressure = name.rsplit(" | ", 1)
            told = runs or ("explained" if reasons[name] else OPEN)
            cells.setdefault(boundary, [None] * len(pressures))[pressures.index(pressure)] = told
            why.setdefault(boundary, []).extend([reasons[name]] if reasons.get(name) else [])
        rows = [[name, *row, " ".join(dict.fromkeys(why[name])) or None] for name, row in cells.items()]
        yield Table(["mode: boundary", *pressures, "why"], rows, unit)


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
    return Table(["file", "statements run", "branches taken", "explained", OPEN], rows, "Files with holes.")


def _python_holes(python: dict[str, Any]) -> Table:
    rows = []
    for file, p in python["files"].items():
        by_reason: dict[str, list[str]] = {}
        for reason, group in itertools.groupby(p["holes"], key=lambda hole: hole["reason"] or OPEN):
            by_reason.setdefault(reason, []).extend(_ranges(list(group)))
        rows += [[file, ", ".join(places), reason] for reason, places in by_reason.items()]
    return Table(["file", "lines, and jumps from line to line", "why"], rows)


def _ranges(holes: list[dict[str, Any]]) -> Iterator[str]:
    """Lines in a row as `first-last`, a branch as `line to line`."""
    ran = [hole["line"] for hole in holes if hole["to"] is None]
    for _, group in itertools.groupby(enumerate(ran), key=lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in group]
        yield str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
    yield from (f"{hole['line']} to {max(hole['to'], 0) or 'end'}" for hole in holes if hole["to"] is not None)
