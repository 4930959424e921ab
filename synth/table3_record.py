"""Record of one core at `paper`, with and without clock gates, for the comparison with V-Rex's Table III.

Run `python -m synth.table3_record GATED UNGATED` with the `synth.json` files of the two commands in `COMMANDS`. The
result is `sw_model/data/table3.json`, because the synthesis takes many minutes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from synth import report
from synth.table3 import UNITS, Table3, by_stimulus
from util.files import ROOT, write_all

FOLDER, NAME = ROOT / "sw_model" / "data", "table3.json"
STIMULI = ("idle", "random", "video", "generator")
_COMMAND = "vrex synth --table3 --preset paper --yosys pyosys " + " ".join(f"--power {name}" for name in STIMULI)
COMMANDS = {"gated": f"{_COMMAND} --out OUT", "ungated": f"{_COMMAND} --clock-gating 0 --out OUT"}
_UNIT = ("unit", "cells", "flip_flops", "clock_gates", "nand2", "memory_bits", "macro_um2_estimated")
_POWER = ("stimulus", "cycles", "clock_mhz", "measured_on", "clock_mw", "registers_mw", "logic_mw", "leakage_mw",
          "total_mw", "memories_mw_estimated")  # fmt: skip


def record(gated: Mapping[str, Any], ungated: Mapping[str, Any]) -> dict[str, Any]:
    """The content of `table3.json` from two synthesis reports.

    Raises
    ------
    ValueError
        A unit or a stimulus is missing, the configurations differ, the gated core has no clock gates, or the ungated
        core has some.
    """
    runs = {"gated": _run("gated", gated), "ungated": _run("ungated", ungated)}
    if runs["gated"]["config"] != runs["ungated"]["config"]:
        raise ValueError("reports must have one configuration, got two")
    for name, run in runs.items():
        gates = sum(unit["clock_gates"] for unit in run["units"])
        if (gates > 0) != (name == "gated"):
            raise ValueError(f"{name} report must have {'' if name == 'gated' else 'no '}clock gates, got {gates}")
    return runs


def _run(name: str, full: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a report that the record holds."""
    units = {unit["unit"]: unit for unit in full["units"]}
    if missing := UNITS.keys() - units.keys():
        raise ValueError(f"{name} report must have the units {', '.join(UNITS)}, got no {', '.join(sorted(missing))}")
    kept = []
    for unit in (units[each] for each in UNITS):
        power = {entry["stimulus"]: entry for entry in unit.get("power", ()) if entry["cycles"]}
        if absent := [stimulus for stimulus in STIMULI if stimulus not in power]:
            raise ValueError(f"{name} report of {unit['unit']} must have power under {', '.join(STIMULI)}, "
                             f"got no {', '.join(absent)}")  # fmt: skip
        entries = [{key: _short(power[stimulus][key]) for key in _POWER} for stimulus in STIMULI]
        timing = {"fmax_mhz": unit["timing"]["fmax_mhz"]}
        library = {"library": {"name": unit["library"]["name"]}}
        kept.append({**{key: unit[key] for key in _UNIT}, **library, "timing": timing, "power": entries})
    first = units[next(iter(UNITS))]
    return {
        "command": COMMANDS[name],
        "git": first["git"],
        "tools": first["tools"],
        "point": first["point"],
        "config": first["config"],
        "run": {key: _short(value) for key, value in full["run"].items()},
        "units": kept,
    }


def _short(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value


def tables(run: Mapping[str, Any]) -> dict[str, Table3]:
    """The table of a recorded run for every stimulus."""
    return by_stimulus(run["units"])


if __name__ == "__main__":
    reports = [report.read(Path(path)) for path in sys.argv[1:3]]
    write_all(FOLDER, {NAME: json.dumps(record(*reports), indent=1) + "\n"})
