"""V-Rex's Table III compared with this project's units: areas and powers of the parts of a core, and their ratios.

Areas of logic are those of `vrex synth --preset paper --point area` in the embedded 14 nm-class library. Memories have
the sizes of V-Rex (section VI-F) and the areas that the synthesis estimates. `data/synthesis.json` holds the recorded
results and the versions of the tools; `python -m synth.record REPORT...` writes it from synthesis reports.
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
MIN_RATIO = 2  # two parts have an order where their ratio in the paper is at least this


@cache
def mapped() -> dict[str, Any]:
    """The recorded synthesis results: logic of every unit in two-input NANDs, bits of its memories, and the power of a
    MAC tree idle and under random operands."""
    results: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return results


def areas() -> dict[str, float]:
    """Areas of the parts of a core in mm2."""
    value = {name: mapped()["nand2"][unit] * mapped()["nand2_um2"] / 1e6 for unit, name in UNITS.items()}
    for name, memory in mapped()["memories"].items():
        value[name] = value.get(name, 0.0) + memory["area_um2"] / 1e6
    return value


def powers() -> dict[str, float]:
    """Powers of the parts of a core at work in mW: the MAC tree's power per gate, and one memory read per cycle."""
    tree, core = mapped()["dot_tree"], load_system("vrex8").core
    assert core
    value = {name: mapped()["nand2"][unit] * tree["random_mw"] / tree["nand2"] for unit, name in UNITS.items()}
    for name, memory in mapped()["memories"].items():
        value[name] = value.get(name, 0.0) + memory["access_pj"] * 1e-12 * core.clock_mhz * 1e6 * 1e3
    return value


def same_order(model: Mapping[str, float], paper: Mapping[str, float]) -> bool:
    """Whether the model has the paper's order in all pairs of parts with a ratio of at least `MIN_RATIO`."""
    return all(model[a] > model[b] for a, b in permutations(paper, 2) if paper[a] >= MIN_RATIO * paper[b])


def reading(value: dict[str, float], paper: Mapping[str, float], comment: str) -> Value:
    """The value in the order of the paper's parts, with a verdict on their order."""
    order = same_order(value, {name: paper[name] for name in value})
    trend = f"trend: the paper's order of parts that differ by {MIN_RATIO} times or more"
    return {name: value[name] for name in paper}, order, f"{trend}; {comment}"


def area(case: Case) -> Value:
    value = areas()
    total = sum(value.values())
    own_kib = sum(mapped()["memory_bits"][unit] for unit in ("hcu", "wtu_sweep", "kvmu")) / 8192
    comment = f"own logic, memories of VI-F (20 KiB in the DRE; the DRE of this project has {own_kib:.0f} KiB)"
    parts, *verdict = reading(value, {k: v for k, v in AREA.items() if k != "total"}, comment)
    return {**parts, "total": total}, *verdict


def area_pct(case: Case) -> Value:
    value = areas()
    shares = {name: 100 * mm2 / sum(value.values()) for name, mm2 in value.items()}
    dre = shares["HCU"] + shares["WTU"] + shares["KVMU"]
    return reading(shares, AREA_PCT, f"DRE {dre:.1f} %; 2.0 % in the paper")


def power(case: Case) -> Value:
    value = powers()
    parts, *verdict = reading(
        value, {k: v for k, v in POWER.items() if k != "total"}, "without glitches and clock tree"
    )
    return {**parts, "total": sum(value.values())}, *verdict


EVALUATORS: dict[str, Callable[[Case], Value]] = {
    "vrex.area": area,
    "vrex.area_pct": area_pct,
    "vrex.power": power,
}
