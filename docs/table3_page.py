"""Page of docs/measurements: one core and V-Rex's Table III, with and without clock gates, under four stimuli."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from docs.markdown import FOLDER, table
from util.files import ROOT, build_root, write

STIMULI = ("idle", "generator", "video", "random")
GATES = {"with gates": 4, "without gates": 0}  # smallest number of registers with one clock gate
RECORD = FOLDER / "dre-area.json"  # reports of the units before
MACS = 64 * 64  # of a core at `paper`
OPERANDS = "matrix.memory"  # blocks of the operand memory in a core
AIMS = {"mm2": 1.89, "mw": 2609.0, "DRE area": 2.0, "DRE power": 2.2, "idle WTU": 1.0}


def synthesize(name: str, *arguments: str) -> Any:
    """Result of `vrex synth` with `arguments` at `paper`: a file of an earlier run, or a run of some 20 minutes."""
    path = build_root() / "table3" / f"{name}.json"
    if path.exists():
        print(f"table3: results of {path}; remove it to measure again", file=sys.stderr)
    else:
        command = ["synth", *arguments, "--preset", "paper", "--yosys", "pyosys", "--json"]
        print(f"table3: vrex {' '.join(command)}", file=sys.stderr)
        run = [sys.executable, str(ROOT / "vrex.py"), *command]
        write(path, subprocess.run(run, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return json.loads(path.read_text())


def before() -> tuple[dict[str, Any], str]:
    """Table III before the clock gates and the state of the DRE in memory, and the commits of its units."""
    from synth.table3 import table3

    record = json.loads(RECORD.read_text())
    units = [*record["lxe"]["units"], *record["before"]["units"]]
    tables = next(unit for unit in units if unit["unit"] == "hc_table")
    kvmu = next(unit for unit in units if unit["unit"] == "kvmu")
    for key in ("nand2", "macro_um2_estimated"):  # the cluster tables of then are part of the KVMU
        kvmu[key] += tables[key]
    for power, more in zip(kvmu["power"], tables["power"], strict=True):
        for key in ("total_mw", "memories_mw_estimated"):
            power[key] += more[key]
    comparison = table3([unit for unit in units if unit is not tables], "generator")
    assert comparison
    commits = f"`{record['lxe']['commit']}` (LXE) and `{record['before']['commit']}` (DRE)"
    return comparison.json(), commits


def table3_page() -> Iterator[str]:
    """Table III of the core today, with and without clock gates, and before."""
    power = [word for name in STIMULI for word in ("--power", name)]
    runs = {
        title: synthesize(title.replace(" ", "-"), "--table3", "--clock-gating", str(number), *power)
        for title, number in GATES.items()
    }
    whole = synthesize("core", "core")
    old, commits = before()
    yield (
        "One core at `paper`: balanced point, embedded 14 nm-class library, 800 MHz, not placed. Area of logic is that "
        "of placed 2-input NANDs, area and power of memories are estimates for 14 nm; [area, timing and power]"
        f"(../synthesis.md) explains both. *Before*: units of the commits {commits}, without clock gates, with the "
        "state of the DRE on chip. The stimuli are inputs of the units: nothing, keys of the generator, a video, "
        "random bits."
    )
    yield "## Area"
    yield _areas([old, runs["without gates"], runs["with gates"]])
    yield "## Power"
    yield _powers(old, runs)
    yield "## Aims"
    yield _aims(runs["with gates"])
    yield from _limits(whole[0], runs["with gates"], {row["name"]: row["mw"] for row in old["rows"]})
    yield "## The whole core"
    yield _whole(whole[0], runs["with gates"])


def _areas(tables: Sequence[Mapping[str, Any]]) -> str:
    """Areas of the rows before, without and with clock gates."""
    total = tables[-1]["total"]
    rows = []
    for old, plain, gated in zip(*([*each["rows"], each["total"]] for each in tables), strict=True):
        published = gated["published_mm2"]
        values = [old["mm2"], plain["mm2"], gated["logic_mm2"], gated["memories_mm2"], gated["mm2"]]
        shares = [gated["mm2"] / total["mm2"], published / total["published_mm2"]]
        rows.append(
            (
                gated["name"],
                *(f"{value:.4f}" for value in values),
                f"{shares[0]:.1%}",
                f"{published:g}",
                f"{shares[1]:.1%}",
            )
        )
    return table(
        ("mm2", "before", "without gates", "with gates: logic", "memories", "all", "share", "V-Rex", "share"), rows
    )


def _powers(old: Mapping[str, Any], runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Power of the rows under every stimulus, before, without and with clock gates."""
    from synth.table3 import DRE_SHARES, PUBLISHED

    columns = {"before, generator": {row["name"]: row["mw"] for row in [*old["rows"], old["total"]]}}
    shares = [old["dre_percent"]["power"]]
    for title in reversed(GATES):
        for name in STIMULI:
            measured = runs[title]["power_by_stimulus"][name]
            columns[f"{title}, {name}"] = measured["mw"]
            shares.append(measured["dre_percent"])
    published = {name: pair[1] for name, pair in PUBLISHED.items() if pair}
    published["total"] = sum(published.values())
    rows = [
        (name, *(f"{column[name]:,.2f}" for column in columns.values()), f"{value:,g}")
        for name, value in published.items()
    ]
    rows.append(("DRE, %", *(f"{share:.2f}" for share in shares), f"{DRE_SHARES[1]}"))
    return table(("mW", *columns, "V-Rex"), rows)


def _aims(gated: Mapping[str, Any]) -> str:
    """The aims and what was reached."""
    powers = gated["power_by_stimulus"]
    rows = (
        ("area", f"{AIMS['mm2']} mm2", f"{gated['total']['mm2']:.2f} mm2"),
        (
            "power: keys of the generator, video, random bits",
            f"{AIMS['mw']:,.0f} mW",
            ", ".join(f"{powers[name]['mw']['total']:,.0f}" for name in STIMULI[1:]) + " mW",
        ),
        ("area of the DRE", f"{AIMS['DRE area']} %", f"{gated['dre_percent']['area']:.2f} %"),
        (
            "power of the DRE, with the same stimuli",
            f"{AIMS['DRE power']} %",
            ", ".join(f"{powers[name]['dre_percent']:.2f}" for name in STIMULI[1:]) + " %",
        ),
        ("idle WTU", f"{AIMS['idle WTU']:g} mW", f"{powers['idle']['mw']['WTU']:.2f} mW"),
    )
    return table(("quantity", "aim, at most", "reached"), rows)


def _limits(core: Mapping[str, Any], gated: Mapping[str, Any], old: Mapping[str, float]) -> Iterator[str]:
    """What limits the aims that are not reached."""
    from synth.area import PREDICTIVE
    from synth.macros import Macro

    operands = 0.0
    for block in core["blocks"]:
        for values in block["macros"] if OPERANDS in block["name"] else ():
            macro = Macro(**{key: value for key, value in values.items() if key != "bits"})
            operands += block["count"] * macro.area_um2(PREDICTIVE) / 1e6
    rows = {row["name"]: row for row in gated["rows"]}
    dre = sum(rows[name]["mm2"] for name in ("HCU", "WTU", "KVMU"))
    yield (
        f"Area: the operand memory has {operands:.3f} mm2 in halves with one port; with a read port and a write port "
        "it would have twice as much. Of the other rows, only the VPE is above V-Rex's by more than 0.03 mm2: a "
        "lane computes its functions with an FP32 multiplier, two FP32 adders, a divider and SiLU "
        "([area of the vector engine](lxe.md#area-of-the-vector-engine))."
    )
    yield (
        f"DRE: {dre:.3f} mm2, of which the memories of WTU and KVMU have "
        f"{rows['WTU']['memories_mm2'] + rows['KVMU']['memories_mm2']:.3f}. V-Rex prints areas with two decimals, 0.04 "
        "in all, and describes no reference counts, shared pages or undo log for its KVMU."
    )
    generator = gated["power_by_stimulus"]["generator"]["mw"]
    yield (
        f"Power: a MAC takes {generator['DPE'] / MACS:.3f} mW with its clock, {old['DPE'] / MACS:.3f} mW before. Idle, "
        "the WTU took 5.12 mW while its counters, beats, products and sums were loaded in every cycle."
    )


def _whole(core: Mapping[str, Any], gated: Mapping[str, Any]) -> str:
    """Size of the core with everything that Table III does not name."""
    from synth.table3 import NAND2_UM2_14NM

    logic, memories = core["nand2"] * NAND2_UM2_14NM / 1e6, core["macro_um2_estimated"] / 1e6
    total = gated["total"]
    return (
        f"`vrex synth core --preset paper --yosys pyosys`: {core['cells'] / 1e6:.2f} million cells, "
        f"{core['flip_flops']:,} flip-flops, {core['clock_gates']:,} clock gates and {core['memory_bits'] / 1e6:.2f} "
        f"Mbit of memory have {logic + memories:.2f} mm2, {logic:.2f} of logic and {memories:.2f} of memories. Table "
        f"III does not name {logic - total['logic_mm2']:.2f} of the logic and {memories - total['memories_mm2']:.2f} "
        "of the memories: sequencer, transfer engines, ports, page lists, and the queues of the engines."
    )
