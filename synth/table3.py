"""One core beside V-Rex's Table III: area and power row by row, totals, shares.

A row is logic and memories of some units; the memories of the matrix and the vector engine are one row, as there. Area
is of 2-input NANDs, placed, in a 14 nm process (`SCALING`, the one scaling there is), and power is not scaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from synth.area import PREDICTIVE
from util.text import table

# row -> mm2 and mW of one core, 14 nm at 800 MHz (V-Rex, Table III); None: it has no such row
PUBLISHED: dict[str, tuple[float, float] | None] = {
    "DPE": (1.37, 2311.39),
    "VPE": (0.14, 122.06),
    "LXE memories": (0.34, 118.94),
    "HCU": (0.01, 2.99),
    "WTU": (0.02, 39.04),
    "KVMU": (0.01, 15.01),
    "HC table": None,
}
# unit -> row of its logic, row of its memories
UNITS = {
    "dpe": ("DPE", "LXE memories"),
    "vpe": ("VPE", "LXE memories"),
    "operand_memory": ("LXE memories", "LXE memories"),
    "hcu": ("HCU", "HCU"),
    "wtu": ("WTU", "WTU"),
    "kvmu": ("KVMU", "KVMU"),
    "hc_table": ("HC table", "HC table"),
}
DRE = ("HCU", "WTU", "KVMU", "HC table")
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
    """Areas in mm2, power in mW (None: not measured) of logic and memories; V-Rex's where its table has the row."""

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
    """The rows that the units of a run make; `stimulus` is what the power was measured under."""

    rows: tuple[Row, ...]
    stimulus: str | None
    library: str
    missing: tuple[str, ...]

    def _sum(self, what: str, names: Sequence[str] | None = None) -> float | None:
        """Sum of a figure over some rows or all; None where one of them has none."""
        values = [getattr(row, what) for row in self.rows if names is None or row.name in names]
        return None if None in values else sum(values)

    def shares(self) -> dict[str, float | None]:
        """Per cent of the retrieval engine: logic alone, with memories, and power."""

        def share(what: str) -> float | None:
            part, whole = self._sum(what, DRE), self._sum(what)
            return None if part is None or not whole else 100 * part / whole

        return {
            "logic area": share("logic_mm2"),
            "area": share("mm2"),
            "logic power": share("logic_mw"),
            "power": share("mw"),
        }

    def json(self) -> dict[str, Any]:
        rows = [{**asdict(row), "mm2": row.mm2, "mw": row.mw} for row in self.rows]
        return {
            "rows": rows,
            "dre_percent": self.shares(),
            "dre_percent_published": dict(zip(("area", "power"), DRE_SHARES, strict=True)),
            "library": self.library,
            "stimulus": self.stimulus,
            "scaling": SCALING,
            "missing": list(self.missing),
        }

    def cells(self) -> list[list[str]]:
        """The table as text, totals last."""
        area, power = self._sum("mm2"), self._sum("mw")
        published = [sum(pair[k] for pair in PUBLISHED.values() if pair) for k in (0, 1)]
        total = Row(
            "total",
            self._sum("logic_mm2") or 0.0,
            self._sum("memories_mm2") or 0.0,
            self._sum("logic_mw"),
            self._sum("memories_mw"),
            *published,
        )
        return [
            [
                row.name,
                f"{row.logic_mm2:.4f}",
                f"{row.memories_mm2:.4f}",
                f"{row.mm2:.4f}",
                _percent(row.mm2, area),
                _figure(row.published_mm2, "g"),
                _percent(row.published_mm2, published[0]),
                _figure(row.logic_mw, ".2f"),
                _figure(row.memories_mw, ".2f"),
                _figure(row.mw, ".2f"),
                _percent(row.mw, power),
                _figure(row.published_mw, "g"),
                _percent(row.published_mw, published[1]),
            ]
            for row in (*self.rows, total)
        ]

    HEAD = (
        *("row", "logic mm2", "memories", "mm2", "share", "V-Rex mm2", "share"),
        *("logic mW", "memories", "mW", "share", "V-Rex mW", "share"),
    )

    def notes(self) -> list[str]:
        """What the figures are, and the shares of the retrieval engine."""
        shares = {name: "–" if value is None else f"{value:.1f} %" for name, value in self.shares().items()}
        notes = [
            f"DRE: {shares['area']} of the area ({shares['logic area']} of the logic's) beside V-Rex's "
            f"{DRE_SHARES[0]} %; {shares['power']} of the power ({shares['logic power']} of the logic's) "
            f"beside {DRE_SHARES[1]} %",
            f"area: {SCALING}; mapped to {self.library}, not placed",
            f"power: {self.library}, under {self.stimulus or 'no stimulus'}, not scaled; V-Rex: 14 nm, 800 MHz",
        ]
        return notes + ([f"not in this run: {', '.join(self.missing)}"] if self.missing else [])

    def table(self) -> str:
        return "\n".join([table(self.HEAD, self.cells()), *self.notes()])


def _figure(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"


def _percent(part: float | None, whole: float | None) -> str:
    return "–" if part is None or not whole else f"{100 * part / whole:.1f} %"


def table3(units: Sequence[Mapping[str, Any]]) -> Table3 | None:
    """The table of a report's units; power under the last measured stimulus. None when no unit belongs in it."""
    found = {unit["unit"]: unit for unit in units if unit["unit"] in UNITS}
    if not found:
        return None
    areas = {name: [0.0, 0.0] for name in PUBLISHED}
    powers: dict[str, list[float | None]] = {name: [0.0, 0.0] for name in PUBLISHED}
    stimuli = set()
    for name, unit in found.items():
        measured = [entry for entry in unit.get("power", ()) if entry["cycles"]]
        stimuli |= {measured[-1]["stimulus"]} if measured else set()
        watts = (measured[-1]["total_mw"], measured[-1]["memories_mw_estimated"]) if measured else (None, None)
        sizes = (unit["nand2"] * NAND2_UM2_14NM / 1e6, unit["macro_um2_estimated"] / 1e6)
        for kind, (row, size, watt) in enumerate(zip(UNITS[name], sizes, watts, strict=True)):
            areas[row][kind] += size
            before = powers[row][kind]
            powers[row][kind] = None if watt is None or before is None else before + watt
    used = {row for name in found for row in UNITS[name]}
    rows = [
        Row(name, *areas[name], *powers[name], *(pair or (None, None)))
        for name, pair in PUBLISHED.items()
        if name in used
    ]
    missing = tuple(name for name in UNITS if name not in found)
    library = next(iter(found.values()))["library"]["name"]
    return Table3(tuple(rows), ", ".join(sorted(stimuli)) or None, library, missing)
