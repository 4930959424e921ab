"""The report of a synthesis run: JSON, one HTML page, and the comparison of two runs.

A report is a mapping {"version", "units", "run"}. The entry of a unit is the JSON of its area, with `timing` and, where
it was measured, `power`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synth.power.power import KINDS
from synth.table3 import Table3, table3
from util.files import read_json, version, write_all
from util.report import Bar, Column, Section, Table, Tile, Treemap, render
from util.text import table


def report(units: Sequence[Mapping[str, Any]], run: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The report of some units; `run` holds the time and memory of the run itself."""
    return {"version": version(), "units": list(units), "run": dict(run or {})}


def write(folder: Path, results: Mapping[str, Any], baseline: Mapping[str, Any] | None = None) -> Path:
    """Write `synth.json` and `index.html` into `folder`, both or none, and return the page's path.

    With `baseline`, the report of an earlier run, the page compares the two runs.
    """
    units = results["units"]
    page = render("Synthesis", list(_sections(units, results, baseline)), _metadata(results), _subtitle(units))
    write_all(folder, {"synth.json": json.dumps(results, indent=2) + "\n", "index.html": page})
    return folder / "index.html"


def read(path: Path) -> dict[str, Any]:
    """A report from disk; raises `ValueError` that names the file if it is not a report."""
    content = read_json(path, "report")
    try:
        if content["units"] and compare(content, content).table():  # a comparison reads every key that it needs
            return content
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a report of vrex synth") from error
    raise ValueError(f"{path}: not a report of vrex synth")


def _subtitle(units: Sequence[Mapping[str, Any]]) -> str:
    """Tools and library of the first unit; all units of a run share them."""
    if not units:
        return ""
    library = units[0]["library"]
    return (
        f"{units[0]['tools']['yosys']}, {library['name']} ({library['tier']}, {library['voltage_v']} V), "
        f"{units[0]['point']} point"
    )


def _metadata(results: Mapping[str, Any]) -> dict[str, Any]:
    """Version, revision, time, configuration, library and tools of a run, for the end of the page."""
    run = {name.replace("_", " "): round(value, 1) for name, value in results["run"].items()}
    metadata: dict[str, Any] = {"vrex-rtl": results["version"], **run}
    for unit in results["units"][:1]:
        metadata |= {"git revision": unit["git"] or "unknown", "configuration": unit["config"]}
        files = ", ".join(unit["library"].get("files", ()))
        library = {name: value for name, value in unit["library"].items() if name != "files"}
        metadata |= {"library": {**library, **({"files": files} if files else {})}, "tools": unit["tools"]}
    return metadata


def _sections(
    units: Sequence[Mapping[str, Any]], results: Mapping[str, Any], baseline: Mapping[str, Any] | None
) -> Iterator[Section]:
    """The sections of the page; those without content are left out."""
    yield _summary(units)
    yield Section(
        "Area",
        "Area of every block and memory of every unit. A block that occurs several times is one rectangle.",
        treemaps=[Treemap(area_tiles(units), "µm²", "Treemap of the area of blocks and memories by unit")],
    )
    if any(unit["timing"].get("paths") for unit in units):
        yield _critical_paths(units)
    if any(unit.get("power") for unit in units):
        yield _power(units)
    if comparison := table3(units):
        yield _published(comparison)
    if baseline is not None:
        changes = compare(baseline, results)
        rows = [[change.unit, change.figure, change.before, change.after, change.ratio] for change in changes.rows]
        columns: list[Column | str] = [
            "unit",
            "figure",
            Column("before", "", ".6g"),
            Column("after", "", ".6g"),
            Column("change", "", "+.2%"),
        ]
        yield Section("Comparison with the earlier run", changes.notes, tables=[Table(columns, rows)])


def _summary(units: Sequence[Mapping[str, Any]]) -> Section:
    columns: list[Column | str] = [
        "unit",
        "cells",
        "flip-flops",
        Column("area", "µm²", ",.1f"),
        Column("NAND2", "", ",.0f"),
        "memory bits",
        Column("memories", "µm², estimated", ",.0f"),
        Column("fmax", "MHz", ".0f"),
        Column("path", "FO4", ".1f"),
    ]
    keys = ("unit", "cells", "flip_flops", "area_um2", "nand2", "memory_bits", "macro_um2_estimated")
    rows = [
        [*(unit[key] for key in keys), unit["timing"]["fmax_mhz"], unit["timing"]["critical_fo4"]] for unit in units
    ]
    text = (
        "Cells are mapped, not placed. NAND2 is the cell area in 2-input NANDs of the library. The areas of memories "
        "are estimates for a 14 nm process and are not part of the area."
    )
    return Section("Units", text, tables=[Table(columns, rows)])


def area_tiles(units: Sequence[Mapping[str, Any]]) -> list[Tile]:
    """Area of every block and of its memories in um2, over all instances of the block, grouped by unit."""
    tiles = []
    for unit in units:
        for block in unit["blocks"]:
            name = unit["unit"] if block["name"] == unit["unit"] else f"{unit['unit']}: {block['name']}"
            memories = block["macro_um2_estimated"] * block["count"]
            tiles.append(Tile(name, block["area_um2"] * block["count"], unit["unit"]))
            tiles.append(Tile(f"{name}, memories (estimated)", memories, unit["unit"]))
    return tiles


def _critical_paths(units: Sequence[Mapping[str, Any]]) -> Section:
    """The worst path of every kind in every unit, then the cells of each unit's slowest path."""
    rows, cells = [], []
    for unit in units:
        timing = unit["timing"]
        for path in timing["paths"]:
            fo4 = path["delay_ps"] / timing["fo4_ps"]
            mhz = 1e6 / path["delay_ps"]
            rows.append(
                [unit["unit"], path["kind"], path["delay_ps"], fo4, mhz, len(path["cells"]), path["start"], path["end"]]
            )
        slowest = timing["paths"][0]
        steps = [[c["instance"], c["cell"], c["through"], c["delay_ps"], c["net"]] for c in slowest["cells"]]
        caption = f"{unit['unit']}: cells from {slowest['start']} to {slowest['end']}"
        step_columns: list[Column | str] = ["instance", "cell", "through", Column("delay", "ps", ".1f"), "net"]
        cells.append(Table(step_columns, steps, caption, collapsed=True))
    columns: list[Column | str] = [
        *("unit", "path", Column("delay", "ps", ".0f"), Column("", "FO4", ".1f"), Column("", "MHz", ".0f"), "cells"),
        *("start", "end"),
    ]
    text = "Static timing with an ideal clock. Delays include clock to output and setup."
    return Section("Critical paths", text, tables=[Table(columns, rows), *cells])


def _power(units: Sequence[Mapping[str, Any]]) -> Section:
    """Power of every unit under every stimulus; the scale of the bars ends at the largest power of the unit."""
    rows = []
    for unit in units:
        entries = unit.get("power", ())
        largest = max((entry["total_mw"] for entry in entries), default=0.0)
        for entry in entries:
            values = {kind: entry[f"{kind}_mw"] for kind in KINDS}
            bar = Bar(values, max(largest, sum(values.values())), "mW") if largest else None
            rows.append([unit["unit"], entry["stimulus"], entry["total_mw"], entry["memories_mw_estimated"], bar])
    columns: list[Column | str] = [
        *("unit", "stimulus", Column("total", "mW", ".4g"), Column("memories", "mW, estimated", ".4g")),
        "share of the unit's largest power",
    ]
    text = (
        "Power without glitches (zero delay) and clock tree. A guess assumes the same toggle rate on "
        "every net. The power of memories is an estimate for a 14 nm process and is not part of the total."
    )
    return Section("Power", text, tables=[Table(columns, rows)])


def _published(comparison: Table3) -> Section:
    """Table III in two tables: columns 1 to 6 are the area, the others the power."""
    heads = [
        Column(title, unit, form, "paper" if title == "V-Rex" else None) for title, unit, form in comparison.COLUMNS
    ]
    values = comparison.values()
    area = Table(heads[:7], [row[:7] for row in values], "Area")
    power = Table([heads[0], *heads[7:]], [[row[0], *row[7:]] for row in values], "Power")
    return Section("Comparison with V-Rex, Table III", comparison.notes(), tables=[area, power])


@dataclass(frozen=True)
class Change:
    """One figure in two runs."""

    unit: str
    figure: str
    before: float
    after: float

    @property
    def ratio(self) -> float | str:
        """Relative change; the text `new` for a figure that was zero."""
        return self.after / self.before - 1 if self.before else ("new" if self.after else 0.0)

    @property
    def percent(self) -> str:
        return self.ratio if isinstance(self.ratio, str) else f"{self.ratio:+.2%}"


@dataclass(frozen=True)
class Changes:
    """The difference of two runs: `notes` on what cannot be compared, then the figures of the units in both."""

    notes: tuple[str, ...]
    rows: tuple[Change, ...]

    def table(self) -> str:
        rows = [[f"{r.unit} {r.figure}", f"{r.before:.6g}", f"{r.after:.6g}", r.percent] for r in self.rows]
        return "\n".join([*self.notes, table(["figure", "before", "after", "change"], rows)])


def compare(baseline: Mapping[str, Any], results: Mapping[str, Any]) -> Changes:
    """Every figure of the units in both reports, and notes on units and inputs that differ."""
    old, new = ({unit["unit"]: unit for unit in run["units"]} for run in (baseline, results))
    notes = [f"{name}: only in the earlier run" for name in old if name not in new]
    notes += [f"{name}: only in this run" for name in new if name not in old]
    rows: list[Change] = []
    for name in (name for name in new if name in old):
        for changed_input in ("library", "config", "point", "tools"):
            if old[name].get(changed_input) != new[name].get(changed_input):
                notes.append(f"{name}: {changed_input} differs, so the figures are not comparable")
        first, second = _figures(old[name]), _figures(new[name])
        rows += [Change(name, figure, first[figure], second[figure]) for figure in second if figure in first]
    return Changes(tuple(notes), tuple(rows))


def _figures(unit: Mapping[str, Any]) -> dict[str, float]:
    """The compared figures of one unit by name."""
    figures = {"area um2": unit["area_um2"], "NAND2": unit["nand2"], "flip-flops": unit["flip_flops"]}
    figures |= {"memory bits": unit["memory_bits"], "fmax MHz": unit["timing"]["fmax_mhz"]}
    return figures | {f"mW, {entry['stimulus']}": entry["total_mw"] for entry in unit.get("power", ())}
