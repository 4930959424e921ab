"""Pages of docs/measurements about area, power and layout of the units."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from docs.markdown import FOLDER, table
from util.files import write

AREA_PRESETS = ("tiny", "small")
# reports of `vrex synth` at paper: the DRE before its state moved to memory, and the LXE
DRE_RECORD = FOLDER / "dre-area.json"
DRE_UNITS = ("hcu", "wtu", "kvmu")
# unit -> memory, its macros (pattern of the cell), reason for its size
DRE_MEMORIES = {
    "hcu": (
        ("leaders", r"hashes\.", "hash code of each of `max_candidates` candidates"),
        ("token counts", r"counts\.", "token count of each candidate; it saturates at 65,535"),
        ("first tokens", r"first_tokens\.", "first token of each candidate, modulo a power of two above the window"),
        ("waiting codes", r"codes\.", "codes of tokens that wait for their search, with `last`"),
    ),
    "wtu": (
        ("keys", r"(store\.)?keys\.", "`wtu_pairs` keys: one row loads, one is selected, one is reported"),
        ("counts", r"(store\.)?counts\.", "token count of each key"),
        ("union", r"(reporter\.)?(even|odd|union)", "one bit for each key, for rows that are reported together"),
        ("buckets", r"(selector\.)?buckets", "one sum for each of 16 buckets and each lane"),
        ("waiting lists", r"(reporter\.)?waiting\.", "selected keys of rows whose clusters the KVMU still looks up"),
    ),
    "kvmu": (
        ("lines", r"(cache\.)?rows\.", "lines of the store: a step uses some tens of records and two headers"),
        ("extents", r"extents\.", "copies that wait for the copy engine while the next clusters are looked up"),
    ),
}
# the core and the multi-core take many minutes
AREA_UNITS = ("dot_tree", "dma", "hcu", "kvmu", "kvpu", "wtu", "wtu_sweep", "dpe", "operand_memory", "vpe")
# layouts at tiny: unit, module of its Verilog or None for the whole unit, share of the rows that cells fill
LAYOUTS: tuple[tuple[str, str | None, float], ...] = (
    ("dot_tree", None, 0.8),
    ("bfp_decoder", None, 0.8),
    ("bfp_encoder", None, 0.8),
    ("weight_decoder", None, 0.8),
    ("hcu", None, 0.8),
    ("kv_encoder", None, 0.65),
    ("multicore", "multicore.router", 0.65),
    ("vpe", "vpe_lane.first_adder", 0.8),
    ("vpe", "vpe_lane.exp", 0.8),
    ("vpe", "vpe_lane.reciprocal", 0.8),
    ("vpe", "vpe_lane.rsqrt", 0.8),
    ("vpe", "vpe.sequencer.fifo", 0.8),
    ("hcu", "hcu.codes", 0.8),
    ("hcu", "hcu.hashes", 0.8),
    ("wtu", "wtu.store.rows", 0.8),
    ("wtu", "wtu.reporter.gate.fifo", 0.8),
    ("wtu", "wtu.reporter.list", 0.8),
    ("dma", "dma.copy_engine.routes", 0.8),
    ("dma", "dma.copy_engine.host_owners", 0.8),
)
LAYOUT_SECONDS = 3 * 3600.0  # of the placer, and of the router
# modules that are components with tests of their own: class
COMPONENTS = {
    "multicore.router": "`LiteRouter`",
    "vpe_lane.first_adder": "`FloatAdd`",
    "vpe_lane.exp": "`Exp`",
    "vpe_lane.reciprocal": "`Reciprocal`",
    "vpe_lane.rsqrt": "`Rsqrt`",
}
# layouts that gave the wire load of osu018 (`synth.library.reader`); the others test it
CALIBRATION = {"bfp_decoder", "bfp_encoder", "weight_decoder", "kv_encoder", "vpe_lane.first_adder"}
CALIBRATION |= {"vpe_lane.reciprocal", "wtu.store.rows", "dma.copy_engine.host_owners"}


def unit_areas() -> Iterator[str]:
    """Area, memory and clock frequency of the units at small presets."""
    from hw.config import PRESETS
    from synth.area import area
    from synth.library.reader import choose
    from synth.timing.static_timing import timing

    library = choose([])
    yield (
        "Balanced point, embedded 14 nm-class library, 800 MHz requested. Areas are logic without placement; memories "
        "of 512 bits and more are counted as bits. [Synthesis](../../synth/README.md) explains what the figures do not "
        "contain."
    )
    for preset in AREA_PRESETS:
        rows = []
        for name in AREA_UNITS:
            print(f"unit-areas: {name} {preset}", file=sys.stderr)
            result = area(name, PRESETS[preset], library, point="balanced", clock_mhz=800.0, tool="yowasp")
            fmax = timing(result, library).json()["fmax_mhz"]
            values = (result.cells, result.flip_flops, result.area_um2, result.nand2, result.memory_bits, fmax)
            rows.append((f"`{name}`", *(f"{value:,.0f}" for value in values)))
        yield f"## Preset {preset}"
        yield table(("unit", "cells", "flip-flops", "um2", "NAND2 equivalents", "memory bits", "fmax in MHz"), rows)


def _synthesized(name: str, changes: Mapping[str, int], *, power: bool) -> dict[str, Any]:
    """Report of one unit at `paper` with `changes`, with power when idle and for keys of the generator."""
    from hw.config import Config
    from hw.registry import UNITS
    from sw_model.media.source import first_keys
    from synth.area import area
    from synth.library.reader import choose
    from synth.power.power import compare
    from synth.power.stimulus import BEATS, stimulus

    print(f"dre-area: {name} {dict(changes)}", file=sys.stderr)
    config, library = Config.preset("paper").replace(**changes), choose([])
    component = UNITS[name].build(config)
    mapped = area(name, config, library, point="balanced", clock_mhz=800.0, tool="pyosys")
    stimuli = [stimulus(component, "idle"), stimulus(component, "generator", keys=first_keys("generator", BEATS))]
    powers = compare(mapped, library, component, stimuli, clock_mhz=800.0) if power else []
    return {**mapped.json(), "power": [each.json() for each in powers if each.cycles]}


def _sizes(units: Iterable[Mapping[str, Any]]) -> tuple[float, float, float, float]:
    """Sums of units: um2 of logic and memories, mW of logic and memories for keys of the generator."""
    from synth.table3 import NAND2_UM2_14NM

    sums = [0.0] * 4
    for unit in units:
        last = unit["power"][-1] if unit["power"] else {"total_mw": 0.0, "memories_mw_estimated": 0.0}
        logic = unit["nand2"] * NAND2_UM2_14NM
        values = (logic, unit["macro_um2_estimated"], last["total_mw"], last["memories_mw_estimated"])
        sums = [a + b for a, b in zip(sums, values, strict=True)]
    return sums[0], sums[1], sums[2], sums[3]


def _memory_rows(unit: Mapping[str, Any], core_um2: float) -> Iterator[tuple[object, ...]]:
    """Rows of the table of memories of a unit."""
    from synth.area import PREDICTIVE
    from synth.macros import Macro

    macros = [
        Macro(**{key: value for key, value in macro.items() if key != "bits"})
        for block in unit["blocks"]
        for macro in block["macros"]
    ]
    for memory, pattern, reason in DRE_MEMORIES[unit["unit"]]:
        members = [macro for macro in macros if re.match(rf"\\?{pattern}", macro.cell)]
        macros = [macro for macro in macros if macro not in members]
        if not members:
            raise ValueError(f"memory {memory} of {unit['unit']} must be in the report, got no macro {pattern}")
        um2 = sum(macro.area_um2(PREDICTIVE) for macro in members)
        first = members[0]
        yield (
            f"{unit['unit']}: {memory}",
            f"{len(members)} x {first.depth} x {first.width}",
            f"{sum(macro.bits for macro in members):,}",
            1 if first.single_port else 2,
            f"{um2:,.0f}",
            f"{um2 / core_um2:.2%}",
            reason,
        )
    if macros:
        raise ValueError(f"macros of {unit['unit']} must be in DRE_MEMORIES, got {', '.join(m.cell for m in macros)}")


def dre_area() -> Iterator[str]:
    """Area and power of the retrieval engine at `paper`, before and after its state moved to device memory."""
    from synth.table3 import table3

    record = json.loads(DRE_RECORD.read_text())
    lxe = _sizes(record["lxe"]["units"])
    before = record["before"]["units"]
    after = [_synthesized(name, {}, power=True) for name in DRE_UNITS]
    plain = [_synthesized(name, {"dre_counters": 0}, power=False) for name in DRE_UNITS]
    core_um2 = sum(_sizes(after)[:2]) + lxe[0] + lxe[1]
    yield (
        "Preset `paper`, balanced point, embedded 14 nm-class library, 800 MHz, pyosys, unplaced. Area of logic is "
        "that of placed 2-input NANDs as in `vrex synth --table3`; area and power of memories are estimates. A memory "
        "with a read and a write port has twice the area of one with a single port. The core is the LXE and the DRE, "
        "as in V-Rex's Table III. Power is that for keys of the generator."
    )
    yield (
        f"Before: commit `{record['before']['commit']}`, where the tables of the DRE were on chip. LXE: commit "
        f"`{record['lxe']['commit']}`, {(lxe[0] + lxe[1]) / 1e6:.3f} mm2 and {lxe[2] + lxe[3]:,.0f} mW. Both are from "
        "`vrex synth --preset paper --yosys pyosys --power idle --power generator --json`; `dre-area.json` has them."
    )
    yield "## DRE"
    rows: list[tuple[str, ...]] = []
    for name, units in (("before", before), ("now", after), ("now, `dre_counters` = 0", plain)):
        logic, memories, logic_mw, memories_mw = _sizes(units)
        um2, mw = logic + memories, logic_mw + memories_mw
        bits = sum(unit["memory_bits"] for unit in units)
        area_share, power_share = um2 / (um2 + lxe[0] + lxe[1]), mw / (mw + lxe[2] + lxe[3])
        rows.append(
            (
                name,
                f"{bits:,}",
                f"{logic / 1e6:.4f}",
                f"{memories / 1e6:.4f}",
                f"{um2 / 1e6:.4f}",
                f"{area_share:.2%}",
                f"{mw:.1f}" if mw else "",
                f"{power_share:.2%}" if mw else "",
            )
        )
    rows.append(("V-Rex, Table III", "164,864", "", "", "0.04", "2.0 %", "57.04", "2.2 %"))
    head = ("", "memory bits", "logic, mm2", "memories, mm2", "all, mm2", "of the core", "mW", "of the core")
    yield table(head, rows)
    yield "## Units"
    rows = []
    for name, units in (("before", before), ("now", after), ("now, `dre_counters` = 0", plain)):
        for unit in units:
            logic, memories, *_ = _sizes([unit])
            ends = (unit["power"][0], unit["power"][-1]) if unit["power"] else ()
            power = [f"{p[key]:.2f}" for p in ends for key in ("total_mw", "memories_mw_estimated")]
            numbers = (f"{unit['flip_flops']:,}", f"{unit['memory_bits']:,}", f"{logic:,.0f}", f"{memories:,.0f}")
            rows.append((f"`{unit['unit']}` {name}", *numbers, *(power or [""] * 4)))
    yield table(
        (
            *("unit", "flip-flops", "memory bits", "logic, um2", "memories, um2"),
            *("idle: logic, mW", "memories, mW", "generator: logic, mW", "memories, mW"),
        ),
        rows,
    )
    yield "## One core and V-Rex's Table III"
    comparison = table3([*record["lxe"]["units"], *after])
    assert comparison
    yield table(
        [f"{title}, {unit}".rstrip(", ") for title, unit, _ in comparison.COLUMNS],
        (
            [
                "" if value is None else f"{value:{form}}"
                for value, (*_, form) in zip(row, comparison.COLUMNS, strict=True)
            ]
            for row in comparison.values()
        ),
    )
    yield "\n".join(f"- {note}" for note in comparison.notes())
    yield "## Memories"
    memory_head = ("memory", "macros x words x bits", "bits", "ports", "um2", "of the core", "reason for the size")
    yield table(memory_head, (row for unit in after for row in _memory_rows(unit, core_um2)))
    yield (
        "V-Rex keeps 20.125 KiB (164,864 bits) on chip. Memories below 512 bits are registers, which count as logic. "
        "The aim is 2.0 % of the area and 2.2 % of the power. All memories have one port, except two: the buckets, "
        "which are read and written in every cycle at different addresses, and the waiting codes."
    )


def layout() -> Iterator[str]:
    """Layouts of units and of modules of units: geometry, wires, timing and power; writes their pictures, too."""
    from hw.config import Config
    from synth.layout import flow, picture, report

    layouts = []
    for unit, module, utilisation in LAYOUTS:
        print(f"layout: {module or unit}", file=sys.stderr)
        made = flow.layout(unit, Config.preset("tiny"), module=module, utilisation=utilisation, seconds=LAYOUT_SECONDS)
        layouts.append(made)
    whole = {module or unit for unit, module, _ in LAYOUTS if module is None} | COMPONENTS.keys()
    for name, part in (("layouts", True), ("layouts-modules", False)):
        chosen = [each for each in layouts if (each.area.unit in whole) is part]
        sheet = picture.contact_sheet([(report.draw(each, ()), report.caption(each)) for each in chosen])
        write(FOLDER.parent / "pictures" / f"{name}.png", picture.png(sheet, 16))
    yield from _layout_page([each.json() for each in layouts], whole)


def _layout_page(results: list[dict[str, Any]], whole: Collection[str]) -> Iterator[str]:
    units = [r for r in results if r["unit"] in whole]
    others = [r for r in results if r["unit"] not in whole]
    totals = {key: sum(r[key] for r in results) for key in ("open_nets", "shorts", "nets")}
    yield (
        "Units, components and modules at `tiny`, placed by graywolf and routed by qrouter in osu018, a 180 nm library "
        "with six metal layers. Memories are flip-flops. `vrex layout UNIT`, with `--module NAME` for a part of it and "
        "`--utilisation`, repeats one of them; the placer and the router of all together take about an hour. Together "
        f"they have {totals['nets']:,} nets: {totals['open_nets']} are open, {totals['shorts']} pairs are shorted. The "
        "check reads the geometry only; [Layout](../synthesis.md#layout) explains it."
    )
    yield "## Units and components"
    registered = [f"`{r['unit']}`" for r in units if r["unit"] not in COMPONENTS]
    classes = [f"`{name}` is {title}" for name, title in COMPONENTS.items()]
    yield (
        f"{', '.join(registered)} are units of `hw/registry.py`. The others are components with tests of their own: "
        f"{', '.join(classes)}."
    )
    yield "![Pictures of the layouts: cells, wires by layer and pins](../pictures/layouts.png)"
    yield from _layout_tables(units)
    yield "## Modules"
    yield "![Pictures of the layouts of modules](../pictures/layouts-modules.png)"
    yield from _layout_tables(others)
    yield "## Wire load"
    yield from _wire_load(results, units)


def _layout_tables(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Geometry of layouts; wires, timing and power."""
    named = [f"`{r['unit']}`" for r in results]
    yield table(
        ("unit or module", "cells", "flip-flops", "die in um", "utilisation", "nets", "open", "shorts", "wires in mm",
         "vias", "pairs closer than the spacing"),
        (
            (name, r["cells"], r["flip_flops"], "{:.0f} x {:.0f}".format(*r["die_um"]), f"{r['utilisation']:.0%}",
             r["nets"], r["open_nets"], r["shorts"], f"{r['wire_mm']:.1f}", r["vias"], r["too_close"])
            for name, r in zip(named, results, strict=True)
        ),
    )  # fmt: skip
    yield (
        "*Fan-out* is the estimate of `vrex synth --liberty osu018` before the layout, with a wire load for each load "
        "of a net. The others are computed with the extracted wires. Power is at 100 MHz with 0.1 toggles per net and "
        "cycle."
    )
    yield table(
        ("unit or module", "wires in pF", "fan-out in pF", "error", "um per load", "fmax in MHz, fan-out",
         "with wires", "OpenSTA", "mW, fan-out", "with wires"),
        (
            (name, f"{r['wire_pf']:.2f}", f"{r['model_wire_pf']:.2f}", f"{r['model_error']:+.1%}",
             f"{r['wire_um_per_sink']:.1f}", f"{r['estimate_mhz']:.0f}", f"{r['layout_mhz']:.0f}",
             f"{1e6 / r['opensta_ps']:.0f}" if r["opensta_ps"] else "-",
             f"{r['estimate_mw']:.2f}", f"{r['layout_mw']:.2f}")
            for name, r in zip(named, results, strict=True)
        ),
    )  # fmt: skip


def _wire_load(results: Sequence[Mapping[str, Any]], units: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Errors of the wire load that vrex uses for osu018."""
    from synth.library.reader import OSU018_WIRE_EXPONENT, OSU018_WIRE_FF

    tested = [r for r in results if r["unit"] not in CALIBRATION]

    def error(chosen: Sequence[Mapping[str, Any]]) -> float:
        return sum(r["model_wire_pf"] for r in chosen) / sum(r["wire_pf"] for r in chosen) - 1

    def largest(chosen: Sequence[Mapping[str, Any]]) -> str:
        worst = max(chosen, key=lambda r: abs(r["model_error"]))
        return f"{worst['model_error']:+.1%} (`{worst['unit']}`)"

    registered = [r for r in units if r["unit"] not in COMPONENTS]
    yield (
        f"osu018 has no wire load. Each load of a net has {OSU018_WIRE_FF} fF of wire in a block whose cells have "
        f"100,000 um2, and more or less by the power {OSU018_WIRE_EXPONENT} of the area in others: a larger die has "
        "longer wires. At another utilisation than 80 % lengths scale with the root of the area. The numbers are a "
        f"fit to {len(CALIBRATION)} of these layouts ({', '.join(f'`{name}`' for name in sorted(CALIBRATION))})."
    )
    rows = [
        (title, len(chosen), f"{error(chosen):+.1%}", largest(chosen))
        for title, chosen in (
            ("all", results),
            ("not used for the fit", tested),
            ("units of the registry", registered),
            ("units and components", units),
        )
    ]
    yield table(("layouts", "number", "error of their sum", "largest error of one"), rows)
    yield (
        "What remains depends on the kind of circuit: loads of a net lie close together in arithmetic, and spread over "
        "the die where selects reach all bits of an array of registers or many ports."
    )
