"""V-Rex's Table III beside this project's own units: areas and powers of a core, to be compared in their ratios.

Logic is what `vrex synth --preset paper --point area` maps in the embedded 14 nm-class library, memories are of the
sizes that V-Rex states (section VI-F) in the synthesis' own estimate. `data/synthesis.json` holds what was mapped, and
by which tools; `python -m sw_model.published_synthesis REPORT...` makes it anew from reports (`synth.json`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

from sw_model.figures import DATA
from sw_model.published_arith import AREA, AREA_PCT, POWER
from sw_model.published_vrex import Case, Value
from sw_model.systems import load_system
from synth import report, table3
from synth.area import PREDICTIVE
from synth.files import write_all
from synth.macros import Macro

FILE = DATA / "synthesis.json"
UNITS = {"dpe": "DPE", "vpe": "VPE", "hcu": "HCU", "wtu_sweep": "WTU", "kvmu": "KVMU"}
# bits of a core's memories and what a busy unit reads of them in a cycle: 384 KB, a vector of 64 BF16; scores and
# counts of 4096 clusters, 16 lanes of each; 1024 cluster codes of 32 bits and 32 current ones, 16 bits of a code
MEMORIES = {"LXE_mem": (384 << 13, 64 * 16), "WTU": (4096 * 32, 16 * 32), "HCU": (1024 * 32 + 32 * 32, 16)}
APART = 2  # ratios of the paper that are smaller than this order nothing in another implementation


@cache
def mapped() -> dict[str, Any]:
    """Two-input NANDs of every unit's logic, bits of its own memories; a MAC tree's power idle and under random
    operands."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def memory(name: str) -> Macro:
    bits, width = MEMORIES[name]
    return Macro(name, name, bits // width, width, 1, 0, 0)


def areas() -> dict[str, float]:
    """mm2 of a core's parts."""
    value = {name: mapped()["nand2"][unit] * table3.NAND2_UM2_14NM / 1e6 for unit, name in UNITS.items()}
    for name in MEMORIES:
        value[name] = value.get(name, 0.0) + memory(name).area_um2(PREDICTIVE) / 1e6
    return value


def powers() -> dict[str, float]:
    """mW of a core's parts while they work: per gate what the MAC tree draws, and a read of the memory every cycle."""
    tree, core = mapped()["dot_tree"], load_system("vrex8").core
    assert core
    value = {name: mapped()["nand2"][unit] * tree["random_mw"] / tree["nand2"] for unit, name in UNITS.items()}
    for name in MEMORIES:
        value[name] = value.get(name, 0.0) + memory(name).access_j * core.clock_mhz * 1e6 * 1e3
    return value


def same_order(model: Mapping[str, float], paper: Mapping[str, float]) -> bool:
    """Whether all pairs that the paper sees clearly apart stand in the same order."""
    return all(model[a] > model[b] for a, b in permutations(paper, 2) if paper[a] >= APART * paper[b])


def judged(value: dict[str, float], paper: Mapping[str, float], says: str) -> Value:
    order = same_order(value, {name: paper[name] for name in value})
    return {name: value[name] for name in paper}, order, f"trend: the paper's order of parts that it sees apart; {says}"


def area(case: Case) -> Value:
    value = areas()
    total = sum(value.values())
    own_kib = sum(mapped()["memory_bits"][unit] for unit in ("hcu", "wtu_sweep", "kvmu")) / 8192
    says = f"logic mapped here, memories as in VI-F, where this project's DRE has {own_kib:.0f} KiB and not 20"
    inside = judged(value, {k: v for k, v in AREA.items() if k != "total"}, says)
    return {**inside[0], "total": total}, *inside[1:]


def area_pct(case: Case) -> Value:
    value = areas()
    shares = {name: 100 * mm2 / sum(value.values()) for name, mm2 in value.items()}
    dre = shares["HCU"] + shares["WTU"] + shares["KVMU"]
    return judged(shares, AREA_PCT, f"DRE {dre:.1f} %, 2.0 in the paper")


def power(case: Case) -> Value:
    value = powers()
    inside = judged(value, {k: v for k, v in POWER.items() if k != "total"}, "without glitches and clock tree")
    return {**inside[0], "total": sum(value.values())}, *inside[1:]


EVALUATORS: dict[str, Callable[[Case], Value]] = {
    "vrex.area": area,
    "vrex.area_pct": area_pct,
    "vrex.power": power,
}


def record(units: list[Mapping[str, Any]]) -> dict[str, Any]:
    """What `mapped` reads, from the units of synthesis reports. Raises ValueError when one is missing."""
    known = {unit["unit"]: unit for unit in units}
    if missing := {*UNITS, "dot_tree"} - set(known):
        raise ValueError(f"no report of {', '.join(sorted(missing))}")
    tree = known["dot_tree"]
    drawn = {run["stimulus"]: run["total_mw"] for run in tree["power"] if run["cycles"]}
    return {
        "nand2": {unit: round(known[unit]["nand2"]) for unit in UNITS},
        "memory_bits": {unit: known[unit]["memory_bits"] for unit in UNITS},
        "dot_tree": {
            "inputs": tree["config"]["dpe_inputs"],
            "nand2": round(tree["nand2"]),
            "idle_mw": round(drawn["idle"], 3),
            "random_mw": round(drawn["random"], 3),
        },
        "made by": {name: {key: unit[key] for key in ("point", "library", "tools", "git")}
                    for name, unit in sorted(known.items())},
    }  # fmt: skip


if __name__ == "__main__":
    reports = [unit for name in sys.argv[1:] for unit in report.read(Path(name))["units"]]
    write_all(DATA, {FILE.name: json.dumps(record(reports), indent=2) + "\n"})
