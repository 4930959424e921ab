"""Record of the synthesis results that the system model uses, from synthesis reports.

Run `python -m synth.record REPORT...` with the `synth.json` files of `vrex synth --preset paper --point area` (and
`--power random` of `dot_tree`). The result is `sw_model/data/synthesis.json`. The system model reads this file and
never runs the synthesis.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from synth import report, table3
from synth.area import PREDICTIVE
from synth.macros import Macro
from util.files import ROOT, write_all

FOLDER, NAME = ROOT / "sw_model" / "data", "synthesis.json"
UNITS = ("dpe", "vpe", "hcu", "wtu_sweep", "kvmu")
# Row of V-Rex's Table III -> (bits of the row's memories, bits that a busy unit reads per cycle), from V-Rex VI-F:
# LXE: 384 KB, one vector of 64 BF16. WTU: scores and counts of 4,096 clusters, 16 lanes of each.
# HCU: 1,024 cluster codes of 32 bits and 32 codes of the current step, 16 bits of one code.
MEMORIES = {"LXE_mem": (384 << 13, 64 * 16), "WTU": (4096 * 32, 16 * 32), "HCU": (1024 * 32 + 32 * 32, 16)}


def memory(name: str) -> Macro:
    """The memory of one row of Table III as a single-port macro."""
    bits, width = MEMORIES[name]
    return Macro(name, name, bits // width, width, 1, 0, 0)


def memories() -> dict[str, dict[str, float]]:
    """Bits, estimated area in um2 and energy of one access in pJ for every memory of `MEMORIES`."""
    return {
        name: {
            "bits": memory(name).bits,
            "area_um2": round(memory(name).area_um2(PREDICTIVE), 1),
            "access_pj": round(memory(name).access_j * 1e12, 4),
        }
        for name in MEMORIES
    }


def record(units: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The content of `synthesis.json` from the units of synthesis reports; raises ValueError if a unit is missing."""
    by_name = {unit["unit"]: unit for unit in units}
    if missing := {*UNITS, "dot_tree"} - set(by_name):
        units_text = ", ".join(sorted((*UNITS, "dot_tree")))
        raise ValueError(f"reports must have the units {units_text}, got no {', '.join(sorted(missing))}")
    tree = by_name["dot_tree"]
    total_mw = {run["stimulus"]: run["total_mw"] for run in tree["power"] if run["cycles"]}
    return {
        "nand2": {unit: round(by_name[unit]["nand2"]) for unit in UNITS},
        "nand2_um2": round(table3.NAND2_UM2_14NM, 6),
        "memory_bits": {unit: by_name[unit]["memory_bits"] for unit in UNITS},
        "memories": memories(),
        "dot_tree": {
            "inputs": tree["config"]["dpe_inputs"],
            "nand2": round(tree["nand2"]),
            "idle_mw": round(total_mw["idle"], 3),
            "random_mw": round(total_mw["random"], 3),
        },
        "made by": {name: {key: unit[key] for key in ("point", "library", "tools", "git")}
                    for name, unit in sorted(by_name.items())},
    }  # fmt: skip


if __name__ == "__main__":
    reports = [unit for name in sys.argv[1:] for unit in report.read(Path(name))["units"]]
    write_all(FOLDER, {NAME: json.dumps(record(reports), indent=2) + "\n"})
