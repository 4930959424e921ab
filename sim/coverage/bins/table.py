"""The table of functional coverage: bins of every unit, what a run met, and the sum over runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from sim.coverage.bins import arith, core, dre, kv_codec, lxe, weight_codec
from sim.coverage.bins.cover import Cover, Run


def covers() -> dict[str, Cover]:
    """The declared bins of every unit."""
    return {**arith.COVERS, **dre.COVERS, **kv_codec.COVERS, **lxe.COVERS, **core.COVERS, **weight_codec.COVERS}


def write(unit: str, run: Run, folder: Path) -> None:
    """Write the bins that a run met to its folder if the unit has bins; the designs of a unit have separate bins."""
    unit = f"{unit}, {design}" if (design := getattr(run.component, "design", None)) else unit
    if unit in (table := covers()):
        (folder / "bins.json").write_text(json.dumps({"unit": unit, "met": sorted(table[unit].met(run))}))


def merge(files: Iterable[Path]) -> dict[str, dict[str, int]]:
    """In how many runs each bin was met, by unit; those never met with 0."""
    counts: dict[str, dict[str, int]] = {}
    for file in files:
        entry = json.loads(file.read_text())
        unit = counts.setdefault(entry["unit"], dict.fromkeys(covers()[entry["unit"]].all(), 0))
        for bin in entry["met"]:
            unit[bin] += 1
    return counts
