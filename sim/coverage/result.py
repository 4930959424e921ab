"""Combines the results of all test groups: figures, uncovered points, and their reasons."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hw.registry import UNITS
from sim.coverage import verilog as coverage
from sim.coverage.explained import Reasons, context
from sim.coverage.measure import PACKAGES, ROOT, all_groups, unpack
from util import text
from util.files import git_revision

REASONS = ROOT / "tests" / "coverage.toml"


def gather(folder: Path, reasons: Reasons) -> dict[str, Any]:
    """The combined result of all groups with a result in `folder`.

    `missing` lists the groups without a result; `stale` entries of `reasons` are reported only when none is missing.
    Raises ValueError when the folder contains no result.
    """
    measured = [group for group in all_groups() if (folder / f"{group.name}.json").exists()]
    if not measured:
        raise ValueError(f"{folder}: must contain coverage results, got none")
    results = [json.loads((folder / f"{group.name}.json").read_text()) for group in measured]
    missing = [group.name for group in all_groups() if group not in measured]
    units: defaultdict[str, list[coverage.Points]] = defaultdict(list)
    for entry in results:
        for unit, points in unpack(entry["verilog"]).items():
            units[unit].append(points)
    result = {
        "revision": git_revision() or "unknown",
        "groups": [{key: entry[key] for key in ("tests", "revision", "seconds", "heavy")} for entry in results],
        "missing": missing,
        "verilog": verilog({unit: coverage.total(points) for unit, points in units.items()}, reasons),
        "bins": functional([entry["bins"] for entry in results], reasons),
        "python": python([folder / f"{group.name}.python" for group in measured], reasons),
    }
    result["stale"] = [] if missing else [vars(entry) for entry in reasons.stale()]
    return result


def count(points: Sequence[dict[str, Any]], reached: int) -> dict[str, int]:
    """Numbers of reached points, all points, and unreached points with (`explained`) and without (`open`) a reason."""
    explained = sum(point["reason"] is not None for point in points)
    return {
        "reached": reached,
        "total": reached + len(points),
        "explained": explained,
        "open": len(points) - explained,
    }


def verilog(units: dict[str, coverage.Points], reasons: Reasons) -> dict[str, Any]:
    """Coverage of each unit by its own simulations, and of each source file by all simulations."""
    project = {
        unit: {kind: {p: n for p, n in points[kind].items() if _in_hw(p[0])} for kind in points}
        for unit, points in units.items()
    }
    everything = coverage.total(project.values())
    per_unit = {}
    for unit, points in sorted(project.items()):
        if unit in UNITS:
            per_unit[unit] = {
                kind: {
                    "reached": sum(hits > 0 for hits in points[kind].values()),
                    "elsewhere": sum(not hits and everything[kind][p] > 0 for p, hits in points[kind].items()),
                    "total": len(points[kind]),
                }
                for kind in coverage.KINDS
            }
    holes: dict[str, list[dict[str, Any]]] = {kind: [] for kind in coverage.KINDS}
    reached: defaultdict[tuple[str, str], int] = defaultdict(int)
    for kind in coverage.KINDS:
        for (location, detail), hits in sorted(everything[kind].items()):
            file, _, position = location.rpartition(":")
            if hits:
                reached[file, kind] += 1
                continue
            if kind == "toggle":
                source, reason = "", reasons.find("toggle", file, detail)
            else:
                source = next(iter(context(ROOT / file, int(position.split(".")[0]))), "")
                reason = reasons.find("verilog", file, f"{source} -> {detail}")
            holes[kind].append({"file": file, "place": location, "what": detail, "source": source, "reason": reason})
    files = sorted({file for file, _ in reached} | {hole["file"] for group in holes.values() for hole in group})
    per_file = {
        file: {
            kind: count([h for h in holes[kind] if h["file"] == file], reached[file, kind]) for kind in coverage.KINDS
        }
        for file in files
    }
    total = {kind: count(holes[kind], sum(reached[file, kind] for file in files)) for kind in coverage.KINDS}
    return {"units": per_unit, "files": per_file, "total": total, "holes": holes}


def unit_result(unit: str, results: Sequence[dict[str, Any]], reasons: Reasons) -> dict[str, Any]:
    """Coverage of one unit by its own simulations in the results of test groups.

    `counts` has the figures of each kind of `sim.coverage.verilog.KINDS` and of `bin`. `holes` lists the unreached
    points with `kind`, `where` (location or name of the bin; of a toggle the file) and `reason`.
    """
    merged = coverage.total(unpack(entry["verilog"]).get(unit, {k: {} for k in coverage.KINDS}) for entry in results)
    counts, holes = {}, []
    for kind in coverage.KINDS:
        points = {point: hits for point, hits in merged[kind].items() if _in_hw(point[0])}
        missing = []
        for (location, detail), hits in sorted(points.items()):
            if hits:
                continue
            file, _, position = location.rpartition(":")
            if kind == "toggle":
                where, reason = file, reasons.find("toggle", file, detail)
            else:
                source = next(iter(context(ROOT / file, int(position.split(".")[0]))), "")
                where, reason = f"{location} {detail}", reasons.find("verilog", file, f"{source} -> {detail}")
            missing.append({"kind": kind, "where": where, "reason": reason})
        counts[kind] = count(missing, len(points) - len(missing))
        holes += missing
    bins = functional([{unit: entry["bins"][unit]} for entry in results if unit in entry["bins"]], reasons).get(unit)
    if bins:
        counts["bin"] = {key: bins[key] for key in ("reached", "total", "explained", "open")}
        holes += [{"kind": "bin", "where": hole["what"], "reason": hole["reason"]} for hole in bins["holes"]]
    return {"counts": counts, "holes": holes}


def _in_hw(location: str) -> bool:
    return location.startswith("hw/")


def functional(results: Sequence[dict[str, dict[str, int]]], reasons: Reasons) -> dict[str, Any]:
    """Number of runs that hit each bin, by unit."""
    counts = {}
    units: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for result in results:
        for unit, met in result.items():
            for name, runs in met.items():
                units[unit][name] += runs
    for unit, met in sorted(units.items()):
        holes = [{"what": name, "reason": reasons.find("bin", unit, name)} for name, runs in met.items() if not runs]
        counts[unit] = {"met": dict(met), "holes": holes, **count(holes, len(met) - len(holes))}
    return counts


def python(files: Sequence[Path], reasons: Reasons) -> dict[str, Any]:
    """Coverage of statements and branches of the packages, with the lines and jumps that no test runs."""
    import coverage as coverage_package

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()), contextlib.chdir(ROOT):
        report = Path(folder) / "report.json"
        data = coverage_package.Coverage(data_file=Path(folder) / "data", config_file=str(ROOT / "pyproject.toml"))
        data.combine([str(path) for path in files], keep=True)
        data.json_report(outfile=str(report))
        measured = json.loads(report.read_text())["files"]
    per_file = {}
    for file, entry in sorted(measured.items()):
        summary, holes = entry["summary"], []
        lines = {
            number: reasons.find("python", file, *context(ROOT / file, number)) for number in entry["missing_lines"]
        }
        for number, reason in lines.items():
            holes.append({"line": number, "to": None, "source": context(ROOT / file, number)[0], "reason": reason})
        for number, target in entry["missing_branches"]:
            if number in lines:
                continue  # counted with its line
            reason = lines.get(target) or reasons.find("python", file, *context(ROOT / file, number))
            source = context(ROOT / file, number)[0]
            holes.append({"line": number, "to": target, "source": source, "reason": reason})
        per_file[file] = {
            "statements": summary["num_statements"],
            "statements_run": summary["covered_lines"],
            "branches": summary["num_branches"],
            "branches_taken": summary["covered_branches"],
            "holes": holes,
        }
    packages = {}
    for package in PACKAGES:
        entries = [entry for file, entry in per_file.items() if file.startswith(f"{package}/")]
        holes = [hole for entry in entries for hole in entry["holes"]]
        names = ("statements", "statements_run", "branches", "branches_taken")
        packages[package] = {
            **{name: sum(entry[name] for entry in entries) for name in names},
            "explained": sum(hole["reason"] is not None for hole in holes),
            "open": sum(hole["reason"] is None for hole in holes),
        }
    return {"packages": packages, "files": per_file}


def table(result: dict[str, Any]) -> str:
    """The figures as a text table."""
    rows = []
    for kind, entry in result["verilog"]["total"].items():
        rows.append(
            [f"Verilog {coverage.NAMES[kind]}", entry["reached"], entry["total"], entry["explained"], entry["open"]]
        )
    for unit, entry in result["bins"].items():
        rows.append([f"bins of {unit}", entry["reached"], entry["total"], entry["explained"], entry["open"]])
    for package, entry in result["python"]["packages"].items():
        reached, total = (
            entry[a] + entry[b] for a, b in (("statements_run", "branches_taken"), ("statements", "branches"))
        )
        rows.append([f"Python in {package}", reached, total, entry["explained"], entry["open"]])
    return text.table(["", "reached", "of", "explained", "open"], [[str(cell) for cell in row] for row in rows])
