"""The report of a synthesis run: JSON, one HTML page, and the comparison of two runs.

A report is a mapping {"version", "units"}; a unit is the JSON of its area with `timing` and, when asked for, `power`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from synth.power.power import KINDS
from synth.table3 import table3
from util.files import read_json, version, write_all
from util.text import table

PALETTE = ("#2f6690", "#7aa6c2", "#c8963e", "#3f7d6e", "#a4503c", "#7d6b9d", "#9fb8a0", "#8b939c", "#d3b58b", "#4a4e69")
COLOURS = dict(zip(KINDS, PALETTE, strict=False))


def report(units: Sequence[Mapping[str, Any]], run: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The report of whole units; `run` says what the run itself took."""
    return {"version": version(), "units": list(units), "run": dict(run or {})}


def write(folder: Path, made: Mapping[str, Any], against: Mapping[str, Any] | None = None) -> Path:
    """Write `synth.json` and `index.html` into `folder` and return the page's path; all or nothing."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.j2").render(
        units=made["units"],
        version=made["version"],
        boxes=treemap(made["units"]),
        bars=bars(made["units"]),
        kinds=COLOURS,
        table3=table3(made["units"]),
        changes=None if against is None else compare(against, made),
    )
    write_all(folder, {"synth.json": json.dumps(made, indent=2) + "\n", "index.html": page})
    return folder / "index.html"


def read(path: Path) -> dict[str, Any]:
    """A report from disk; `ValueError` for a file that is none."""
    found = read_json(path, "report")
    try:
        if found["units"] and compare(found, found).table():  # meets all that a comparison takes from it
            return found
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a report of vrex synth") from error
    raise ValueError(f"{path}: not a report of vrex synth")


@dataclass(frozen=True)
class Box:
    """A rectangle of the treemap in a unit square's per cent."""

    label: str
    value: float
    colour: str
    x: float
    y: float
    width: float
    height: float


def treemap(units: Sequence[Mapping[str, Any]]) -> list[Box]:
    """Area of every block and memory of every unit in um2, as rectangles of proportional size."""
    leaves: list[tuple[str, float, str]] = []
    for number, unit in enumerate(units):
        colour = PALETTE[number % len(PALETTE)]
        for block in unit["blocks"]:
            name = unit["unit"] if block["name"] == unit["unit"] else f"{unit['unit']}: {block['name']}"
            leaves.append((name, block["area_um2"] * block["count"], colour))
            leaves.append((f"{name}, memories (estimated)", block["macro_um2_estimated"] * block["count"], colour))
    leaves = sorted((leaf for leaf in leaves if leaf[1] > 0), key=lambda leaf: -leaf[1])
    return list(_halved(leaves, 0.0, 0.0, 100.0, 100.0))


def _halved(leaves: Sequence[tuple[str, float, str]], x: float, y: float, width: float, height: float) -> Iterator[Box]:
    """Cut the longer side where the areas are nearest to halves, again and again."""
    if not leaves:
        return
    if len(leaves) == 1:
        yield Box(*leaves[0], x, y, width, height)
        return
    total = sum(value for _, value, _ in leaves)
    sums = [sum(value for _, value, _ in leaves[:k]) for k in range(1, len(leaves))]
    cut = min(range(len(sums)), key=lambda k: abs(sums[k] - total / 2))
    share = sums[cut] / total
    if width >= height:
        yield from _halved(leaves[: cut + 1], x, y, width * share, height)
        yield from _halved(leaves[cut + 1 :], x + width * share, y, width * (1 - share), height)
    else:
        yield from _halved(leaves[: cut + 1], x, y, width, height * share)
        yield from _halved(leaves[cut + 1 :], x, y + height * share, width, height * (1 - share))


def bars(units: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Power of every unit and stimulus as stacked parts in per cent of the largest of its unit."""
    rows = []
    for unit in units:
        entries = unit.get("power", ())
        largest = max((entry["total_mw"] for entry in entries), default=0.0)
        for entry in entries:
            parts = {kind: 100 * entry[f"{kind}_mw"] / largest for kind in KINDS}
            rows.append({"unit": unit["unit"], "name": entry["stimulus"], "mw": entry["total_mw"], "parts": parts})
    return rows


@dataclass(frozen=True)
class Change:
    """One figure in two runs."""

    unit: str
    figure: str
    before: float
    after: float

    @property
    def percent(self) -> str:
        return f"{self.after / self.before - 1:+.2%}" if self.before else ("" if not self.after else "new")


@dataclass(frozen=True)
class Changes:
    """What differs between two runs: `notes` on what was run, then the figures of the units in both."""

    notes: tuple[str, ...]
    rows: tuple[Change, ...]

    def table(self) -> str:
        rows = [[f"{r.unit} {r.figure}", f"{r.before:.6g}", f"{r.after:.6g}", r.percent or "0"] for r in self.rows]
        return "\n".join([*self.notes, table(["figure", "before", "after", "change"], rows)])


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Changes:
    """Two reports: every figure of the units in both, and what keeps them from being comparable."""
    old, new = ({unit["unit"]: unit for unit in run["units"]} for run in (before, after))
    notes = [f"{name}: only in the run before" for name in old if name not in new]
    notes += [f"{name}: only in the run after" for name in new if name not in old]
    rows: list[Change] = []
    for name in (name for name in new if name in old):
        for what in ("library", "config", "point", "tools"):
            if old[name].get(what) != new[name].get(what):
                notes.append(f"{name}: {what} differs, so the figures are not of like with like")
        first, second = _figures(old[name]), _figures(new[name])
        rows += [Change(name, figure, first[figure], second[figure]) for figure in second if figure in first]
    return Changes(tuple(notes), tuple(rows))


def _figures(unit: Mapping[str, Any]) -> dict[str, float]:
    found = {"area um2": unit["area_um2"], "NAND2": unit["nand2"], "flip-flops": unit["flip_flops"]}
    found |= {"memory bits": unit["memory_bits"], "fmax MHz": unit["timing"]["fmax_mhz"]}
    return found | {f"mW, {entry['stimulus']}": entry["total_mw"] for entry in unit.get("power", ())}
