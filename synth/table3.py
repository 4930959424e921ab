"""One core compared with V-Rex's Table III: area and power row by row, totals, shares.

A row is the logic and the memories of some units. The memories of the matrix and the vector engine are one row, as in
Table III. Area is that of placed 2-input NANDs in a 14 nm process (`SCALING`, the only scaling); power is not scaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from synth.area import PREDICTIVE
from util.text import table

# row -> mm2 and mW of one core, 14 nm at 800 MHz (V-Rex, Table III); None: Table III has no such row
PUBLISHED: dict[str, tuple[float, float] | None] = {
    "DPE": (1.37, 2311.39),
    "VPE": (0.14, 122.06),
    "LXE memories": (0.34, 118.94),
    "HCU": (0.01, 2.99),
    "WTU": (0.02, 39.04),
    "KVMU": (0.01, 15.01),
}
# unit -> row of its logic, row of its memories
UNITS = {
    "dpe": ("DPE", "LXE memories"),
    "vpe": ("VPE", "LXE memories"),
    "operand_memory": ("LXE memories", "LXE memories"),
    "hcu": ("HCU", "HCU"),
    "wtu": ("WTU", "WTU"),
    "kvmu": ("KVMU", "KVMU"),
}
CORE, REST = "core", "rest of the core"  # unit, and row of what the units above do not contain
DRE = ("HCU", "WTU", "KVMU")
DRE_SHARES = (2.0, 2.2)  # per cent of area and power, V-Rex's abstract
# one 2-input NAND, placed: 3 gate pitches wide in rows that are 70 % full
NAND2_UM2_14NM = PREDICTIVE.area_um2(3) / PREDICTIVE.utilisation
SCALING = (
    f"scaled to 14 nm: 2-input NANDs times {NAND2_UM2_14NM:.3f} um2, a placed one of 3 gate pitches and "
    f"{PREDICTIVE.tracks} tracks (WikiChip's 14LPP pitches) at {PREDICTIVE.utilisation:.0%} utilisation; memories are "
    "estimates for 14 nm"
)


@dataclass(frozen=True)
class Row:
    """Areas in mm2 and power in mW (None: not measured) of logic and memories, and the published values, if any.

    The power of the row `REST` is never measured, and sums leave it out.
    """

    name: str
    logic_mm2: float
    memories_mm2: float
    logic_mw: float | None
    memories_mw: float | None
    published_mm2: float | None
    published_mw: float | None

    @property
    def mm2(self) -> float:
        return self.logic_mm2 + self.memories_mm2

    @property
    def mw(self) -> float | None:
        return None if self.logic_mw is None or self.memories_mw is None else self.logic_mw + self.memories_mw


@dataclass(frozen=True)
class Table3:
    """The rows of the units of a run; `stimulus` is the one under which power was measured."""

    rows: tuple[Row, ...]
    stimulus: str | None
    library: str
    missing: tuple[str, ...]

    # title, unit and format of every column
    COLUMNS = (
        *(("row", "", ""), ("logic", "mm2", ".4f"), ("memories", "mm2", ".4f"), ("all", "mm2", ".4f")),
        *(("share", "%", ".1f"), ("V-Rex", "mm2", "g"), ("V-Rex share", "%", ".1f")),
        *(("logic", "mW", ".2f"), ("memories", "mW", ".2f"), ("all", "mW", ".2f")),
        *(("share", "%", ".1f"), ("V-Rex", "mW", "g"), ("V-Rex share", "%", ".1f")),
    )

    def _sum(self, quantity: str, names: Sequence[str] | None = None) -> float | None:
        """Sum of a quantity over the rows of `names` or all rows; None where one of them has no value."""
        measured = [row for row in self.rows if not (quantity.endswith("mw") and row.name == REST)]
        values = [getattr(row, quantity) for row in measured if names is None or row.name in names]
        return None if None in values else sum(values)

    def shares(self) -> dict[str, float | None]:
        """Per cent of the retrieval engine: logic only, with memories, and power."""
        names = {"logic area": "logic_mm2", "area": "mm2", "logic power": "logic_mw", "power": "mw"}
        return {name: _percent(self._sum(quantity, DRE), self._sum(quantity)) for name, quantity in names.items()}

    @property
    def total(self) -> Row:
        """Sums over the rows; those of V-Rex are over all rows of its table."""
        published = [sum(pair[k] for pair in PUBLISHED.values() if pair) for k in (0, 1)]
        return Row(
            "total",
            self._sum("logic_mm2") or 0.0,
            self._sum("memories_mm2") or 0.0,
            self._sum("logic_mw"),
            self._sum("memories_mw"),
            *published,
        )

    def json(self) -> dict[str, Any]:
        rows = [{**asdict(row), "mm2": row.mm2, "mw": row.mw} for row in (*self.rows, self.total)]
        return {
            "rows": rows[:-1],
            "total": rows[-1],
            "dre_percent": self.shares(),
            "dre_percent_published": dict(zip(("area", "power"), DRE_SHARES, strict=True)),
            "library": self.library,
            "stimulus": self.stimulus,
            "scaling": SCALING,
            "missing": list(self.missing),
        }

    def powers(self) -> dict[str, Any]:
        """Power of every row and of the total in mW, and the share of the DRE in per cent, as JSON values."""
        rows = {row.name: row.mw for row in (*self.rows, self.total) if row.name != REST}
        return {"mw": rows, "dre_percent": self.shares()["power"]}

    def values(self) -> list[list[Any]]:
        """The values of the table under `COLUMNS`, totals last; None where there is no value."""
        total = self.total
        area, power = total.mm2, total.mw
        published = (total.published_mm2, total.published_mw)
        return [
            [
                row.name,
                *(row.logic_mm2, row.memories_mm2, row.mm2, _percent(row.mm2, area)),
                *(row.published_mm2, _percent(row.published_mm2, published[0])),
                *(row.logic_mw, row.memories_mw, row.mw, _percent(row.mw, power)),
                *(row.published_mw, _percent(row.published_mw, published[1])),
            ]
            for row in (*self.rows, total)
        ]

    def notes(self) -> list[str]:
        """Scaling, library and stimulus of the figures, and the shares of the retrieval engine."""
        shares = {name: "–" if value is None else f"{value:.1f} %" for name, value in self.shares().items()}
        notes = [
            f"DRE: {shares['area']} of the area ({shares['logic area']} of the logic's), V-Rex: {DRE_SHARES[0]} %; "
            f"{shares['power']} of the power ({shares['logic power']} of the logic's), V-Rex: {DRE_SHARES[1]} %",
            f"area: {SCALING}; mapped to {self.library}, not placed",
            f"power: {self.library}, under {self.stimulus or 'no stimulus'}, not scaled; V-Rex: 14 nm, 800 MHz",
        ]
        if any(row.name == REST for row in self.rows):
            notes.append(f"{REST}: its power is not measured and is not part of the total")
        return notes + ([f"not in this run: {', '.join(self.missing)}"] if self.missing else [])

    def table(self) -> str:
        """The table and its notes as text."""
        head = [f"{title} {unit}".strip() for title, unit, _ in self.COLUMNS]
        rows = [
            [_cell(value, form) for value, (_, _, form) in zip(row, self.COLUMNS, strict=True)] for row in self.values()
        ]
        return "\n".join([table(head, rows), *self.notes()])


def _cell(value: Any, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"


def _percent(share: float | None, total: float | None) -> float | None:
    return None if share is None or not total else 100 * share / total


def by_stimulus(units: Sequence[Mapping[str, Any]]) -> dict[str, Table3]:
    """The table for every stimulus under which all units of a report were measured, in the order of the report."""
    measured = [{entry["stimulus"]: None for entry in unit.get("power", ()) if entry["cycles"]} for unit in units
                if unit["unit"] in UNITS]  # fmt: skip
    common = [name for name in measured[0] if all(name in names for names in measured)] if measured else []
    return {name: comparison for name in common if (comparison := table3(units, name))}


def table3(units: Sequence[Mapping[str, Any]], stimulus: str | None = None) -> Table3 | None:
    """The table of a report's units, power under `stimulus` or else the last one; None when it has a row of no unit.

    With all units and `core`, one row is the difference of the core and the units: everything else in the core.
    """
    unit_reports = {unit["unit"]: unit for unit in units if unit["unit"] in UNITS}
    if not unit_reports:
        return None
    areas = {name: [0.0, 0.0] for name in PUBLISHED}
    powers: dict[str, list[float | None]] = {name: [0.0, 0.0] for name in PUBLISHED}
    stimuli = set()
    for name, unit in unit_reports.items():
        measured = [
            entry for entry in unit.get("power", ()) if entry["cycles"] and stimulus in (None, entry["stimulus"])
        ]
        stimuli |= {measured[-1]["stimulus"]} if measured else set()
        milliwatts = (measured[-1]["total_mw"], measured[-1]["memories_mw_estimated"]) if measured else (None, None)
        sizes = (unit["nand2"] * NAND2_UM2_14NM / 1e6, unit["macro_um2_estimated"] / 1e6)
        for kind, (row, size, mw) in enumerate(zip(UNITS[name], sizes, milliwatts, strict=True)):
            areas[row][kind] += size
            total = powers[row][kind]
            powers[row][kind] = None if mw is None or total is None else total + mw
    used = {row for name in unit_reports for row in UNITS[name]}
    rows = [
        Row(name, *areas[name], *powers[name], *(pair or (None, None)))
        for name, pair in PUBLISHED.items()
        if name in used
    ]
    whole = next((unit for unit in units if unit["unit"] == CORE), None)
    if whole is not None and len(unit_reports) == len(UNITS):
        logic, memories = (
            whole[key] - sum(unit[key] for unit in unit_reports.values()) for key in ("nand2", "macro_um2_estimated")
        )
        rows.append(Row(REST, logic * NAND2_UM2_14NM / 1e6, memories / 1e6, None, None, None, None))
    missing = tuple(name for name in UNITS if name not in unit_reports)
    library = next(iter(unit_reports.values()))["library"]["name"]
    return Table3(tuple(rows), ", ".join(sorted(stimuli)) or None, library, missing)
