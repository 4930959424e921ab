"""All parts of a campaign as one result: figures, holes, and the reasons for them."""

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
from sim.coverage.measure import PACKAGES, ROOT, parts, unpack
from util import text
from util.files import git_revision

REASONS = ROOT / "tests" / "coverage.toml"


def gather(folder: Path, reasons: Reasons) -> dict[str, Any]:
    """The result of all parts that `folder` holds.

    `missing` names the parts that it does not hold; only without any can an entry of `reasons` be called `stale`.
    Raises ValueError for a folder without parts.
    """
    there = [part for part in parts() if (folder / f"{part.name}.json").exists()]
    if not there:
        raise ValueError(f"{folder}: holds no measured tests")
    told = [json.loads((folder / f"{part.name}.json").read_text()) for part in there]
    missing = [part.name for part in parts() if part not in there]
    units: defaultdict[str, list[coverage.Points]] = defaultdict(list)
    for one in told:
        for unit, points in unpack(one["verilog"]).items():
            units[unit].append(points)
    found = {
        "revision": git_revision() or "unknown",
        "parts": [{key: one[key] for key in ("tests", "revision", "seconds", "heavy")} for one in told],
        "missing": missing,
        "verilog": verilog({unit: coverage.total(points) for unit, points in units.items()}, reasons),
        "bins": functional([one["bins"] for one in told], reasons),
        "python": python([folder / f"{part.name}.python" for part in there], reasons),
    }
    found["stale"] = [] if missing else [vars(one) for one in reasons.stale()]
    return found


def count(points: Sequence[dict[str, Any]], reached: int) -> dict[str, int]:
    """Points reached, all, and of those not reached the ones with a reason and the open ones."""
    explained = sum(point["reason"] is not None for point in points)
    return {
        "reached": reached,
        "total": reached + len(points),
        "explained": explained,
        "open": len(points) - explained,
    }


def verilog(units: dict[str, coverage.Points], reasons: Reasons) -> dict[str, Any]:
    """Per unit what its own simulations reach; per source file what any reaches, and what none does."""
    ours = {
        unit: {kind: {p: n for p, n in points[kind].items() if _ours(p[0])} for kind in points}
        for unit, points in units.items()
    }
    everything = coverage.total(ours.values())
    per_unit = {}
    for unit, points in sorted(ours.items()):
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
        for (place, what), hits in sorted(everything[kind].items()):
            file, _, position = place.rpartition(":")
            if hits:
                reached[file, kind] += 1
                continue
            if kind == "toggle":
                source, reason = "", reasons.find("toggle", file, what)
            else:
                source = next(iter(context(ROOT / file, int(position.split(".")[0]))), "")
                reason = reasons.find("verilog", file, f"{source} -> {what}")
            holes[kind].append({"file": file, "place": place, "what": what, "source": source, "reason": reason})
    files = sorted({file for file, _ in reached} | {hole["file"] for found in holes.values() for hole in found})
    per_file = {
        file: {
            kind: count([h for h in holes[kind] if h["file"] == file], reached[file, kind]) for kind in coverage.KINDS
        }
        for file in files
    }
    total = {kind: count(holes[kind], sum(reached[file, kind] for file in files)) for kind in coverage.KINDS}
    return {"units": per_unit, "files": per_file, "total": total, "holes": holes}


def _ours(place: str) -> bool:
    return place.startswith("hw/")


def functional(found: Sequence[dict[str, dict[str, int]]], reasons: Reasons) -> dict[str, Any]:
    """Runs that met each bin, by unit."""
    told = {}
    units: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for one in found:
        for unit, met in one.items():
            for name, runs in met.items():
                units[unit][name] += runs
    for unit, met in sorted(units.items()):
        holes = [{"what": name, "reason": reasons.find("bin", unit, name)} for name, runs in met.items() if not runs]
        told[unit] = {"met": dict(met), "holes": holes, **count(holes, len(met) - len(holes))}
    return told


def python(files: Sequence[Path], reasons: Reasons) -> dict[str, Any]:
    """Statements and branches of the packages; lines that no test ran and jumps that none took."""
    import coverage as measuring

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()), contextlib.chdir(ROOT):
        told = Path(folder) / "told.json"
        data = measuring.Coverage(data_file=Path(folder) / "data", config_file=str(ROOT / "pyproject.toml"))
        data.combine([str(path) for path in files], keep=True)
        data.json_report(outfile=str(told))
        measured = json.loads(told.read_text())["files"]
    per_file = {}
    for file, one in sorted(measured.items()):
        summary, holes = one["summary"], []
        lines = {number: reasons.find("python", file, *context(ROOT / file, number)) for number in one["missing_lines"]}
        for number, reason in lines.items():
            holes.append({"line": number, "to": None, "source": context(ROOT / file, number)[0], "reason": reason})
        for number, target in one["missing_branches"]:
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
        own = [one for file, one in per_file.items() if file.startswith(f"{package}/")]
        holes = [hole for one in own for hole in one["holes"]]
        names = ("statements", "statements_run", "branches", "branches_taken")
        packages[package] = {
            **{name: sum(one[name] for one in own) for name in names},
            "explained": sum(hole["reason"] is not None for hole in holes),
            "open": sum(hole["reason"] is None for hole in holes),
        }
    return {"packages": packages, "files": per_file}


def table(found: dict[str, Any]) -> str:
    """The figures as text."""
    rows = []
    for kind, one in found["verilog"]["total"].items():
        rows.append([f"Verilog {coverage.NAMES[kind]}", one["reached"], one["total"], one["explained"], one["open"]])
    for unit, one in found["bins"].items():
        rows.append([f"bins of {unit}", one["reached"], one["total"], one["explained"], one["open"]])
    for package, one in found["python"]["packages"].items():
        reached, total = (
            one[a] + one[b] for a, b in (("statements_run", "branches_taken"), ("statements", "branches"))
        )
        rows.append([f"Python in {package}", reached, total, one["explained"], one["open"]])
    return text.table(["", "reached", "of", "explained", "open"], [[str(cell) for cell in row] for row in rows])
