"""V-Rex's Table III beside this project's own units: areas and powers of a core, to be compared in their ratios.

Logic is what `vrex synth --preset paper --point area` maps in the embedded 14 nm-class library, memories are of the
sizes that V-Rex states (section VI-F) in the estimate of the synthesis. `data/synthesis.json` holds the recorded
results and the tools that made them; `python -m synth.record REPORT...` writes it from synthesis reports.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from itertools import permutations
from typing import Any

from sw_model.papers.arithmetic import AREA, AREA_PCT, POWER
from sw_model.papers.figures import DATA
from sw_model.papers.vrex import Case, Value
from sw_model.systems import load_system

FILE = DATA / "synthesis.json"
UNITS = {"dpe": "DPE", "vpe": "VPE", "hcu": "HCU", "wtu_sweep": "WTU", "kvmu": "KVMU"}
APART = 2  # ratios of the paper that are smaller than this order nothing in another implementation


@cache
def mapped() -> dict[str, Any]:
    """Two-input NANDs of every unit's logic, bits of its own memories; a MAC tree's power idle and under random
    operands."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def areas() -> dict[str, float]:
    """mm2 of a core's parts."""
    value = {name: mapped()["nand2"][unit] * mapped()["nand2_um2"] / 1e6 for unit, name in UNITS.items()}
    for name, memory in mapped()["memories"].items():
        value[name] = value.get(name, 0.0) + memory["area_um2"] / 1e6
    return value


def powers() -> dict[str, float]:
    """mW of a core's parts while they work: per gate what the MAC tree draws, and a read of the memory every cycle."""
    tree, core = mapped()["dot_tree"], load_system("vrex8").core
    assert core
    value = {name: mapped()["nand2"][unit] * tree["random_mw"] / tree["nand2"] for unit, name in UNITS.items()}
    for name, memory in mapped()["memories"].items():
        value[name] = value.get(name, 0.0) + memory["access_pj"] * 1e-12 * core.clock_mhz * 1e6 * 1e3
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
