"""Page of docs/measurements about V-Rex8 and V-Rex48 with four bits and whole memory: frames, bounds, energy, parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docs.markdown import table
from sw_model.papers.programs import PLUS_CONTEXTS, PLUS_POINTS, formula_cost, program_cycles
from sw_model.request import Request
from sw_model.result import Result
from sw_model.systems import System, load_system

PAIRS = {"vrex8": "vrex8-plus", "vrex48": "vrex48-plus"}
PUBLISHED, KV, BOTH = "BF16, as published", "KV cache in 4 bits", "KV cache and weights in 4 bits"
# frames a second that V-Rex8 should reach, by context: of which setting, at least
AIMS = [(KV, 40_000, 8), ("vrex8-plus", 40_000, 25), ("vrex8-plus", 700_000, 10)]
TABLES = ("core", "device_memory", "link", "power")
# mm2 of a core, and the page that measures it
AREAS = {"kv_codec_mw": (0.0297, "kv-codec.md"), "weight_codec_mw": (0.0127, "kv-codec.md")}


def settings(name: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """System and changes of each setting of a published machine, by title."""
    plus = load_system(PAIRS[name])
    kv = {"assume.kv_bits": plus.assume["kv_bits"], "power.kv_codec_mw": plus.power.kv_codec_mw}
    weights = {
        "assume.weight_bits": plus.assume["weight_bits"], "power.weight_codec_mw": plus.power.weight_codec_mw,
    }  # fmt: skip
    return {PUBLISHED: (name, {}), KV: (name, kv), BOTH: (name, kv | weights), PAIRS[name]: (PAIRS[name], {})}


def differences(published: System, plus: System) -> list[tuple[str, str, str, str]]:
    """Entries of a system file that differ: name, both values, and the source of the second one."""
    rows = []
    for name, value in plus.assume.items():
        default = getattr(published.assumptions, name)
        rows.append((f"assume.{name}", str(default), str(value), plus.sources[f"assume.{name}"]))
    for part in TABLES:
        old, new = (getattr(system, part) for system in (published, plus))
        if part == "core":
            old, new = old.config, new.config
        for key, value in vars(new).items():
            if getattr(old, key) != value:
                rows.append((f"{part}.{key}", str(getattr(old, key)), str(value), plus.sources[f"{part}.{key}"]))
    return rows


def _held(result: Result) -> float:
    """Tokens of the stream that device memory can hold."""
    facts = {fact.name: fact.value for fact in result.facts}
    return facts["resident tokens"] * 16 / facts["bits of a KV element"]


def _bound(system: System, result: Result) -> tuple[float, float]:
    """Milliseconds of the bytes of a step at the peak rate of the device memory, and at that of the link."""
    device, link = (result.bytes_moved.get(name, 0) for name in ("DRAM", "PCIe"))
    return device / system.device_memory.peak_gbps / 1e6, link / system.link.nominal_gbps / 1e6


def plus() -> Iterator[str]:
    """Frames a second, bounds, energy and parts of the machines with four bits and whole memory."""
    yield (
        "Llama-3-8B with ReSV, one stream, link preset `paper`. All times except those of the last section are from "
        "the closed formulas of the system model (`vrex model`); no program was compiled for them. A frame includes "
        "the vision tower. `KV cache in 4 bits` keeps the published recent region of 4,096 tokens, counted in BF16. "
        "`vrex8-plus` and `vrex48-plus` also keep all tokens in device memory that fit."
    )
    results: dict[tuple[str, int], Result] = {}
    for name in PAIRS:
        for title, (system, changes) in settings(name).items():
            for past in PLUS_CONTEXTS:
                key = title if title in PAIRS.values() else f"{name}: {title}"
                results[key, past] = Request(system, "resv", "frame", past, changes=changes).run()
    yield "## Frames a second"
    yield table(
        ("machine", *(f"{past:,} tokens" for past in PLUS_CONTEXTS)),
        (
            (title, *(f"{results[title, past].fps:.2f}" for past in PLUS_CONTEXTS))
            for title in dict.fromkeys(key for key, _ in results)
        ),
    )
    yield "Aims for V-Rex8:"
    rows = []
    for title, past, aim in AIMS:
        key = title if title in PAIRS.values() else f"vrex8: {title}"
        fps = results[key, past].fps
        rows.append((key, f"{past:,}", f"{aim}", f"{fps:.2f}", "reached" if fps >= aim else "missed"))
    yield table(("machine", "tokens", "aim, frames a second", "model", ""), rows)
    yield "## What bounds a frame"
    yield (
        "Milliseconds on the critical path by stage, and the bytes of the device memory and of the link divided by "
        "their peak rates. The larger one of the two bounds the frame from below."
    )
    stages = list(results["vrex8-plus", 700_000].stages)
    rows = []
    for name, other in PAIRS.items():
        for key, machine in ((f"{name}: {PUBLISHED}", name), (other, other)):
            for past in PLUS_CONTEXTS:
                result = results[key, past]
                times = [result.stages[stage].exposed_s * 1e3 if stage in result.stages else 0.0 for stage in stages]
                bounds = _bound(load_system(machine), result)
                cells = (result.total_s * 1e3, *times, *bounds)
                rows.append((machine, f"{past:,}", *(f"{ms:.1f}" for ms in cells)))
    yield table(("machine", "tokens", "frame", *stages, "device memory at peak", "link at peak"), rows)
    near, far = results["vrex8-plus", 40_000], results["vrex8-plus", 700_000]
    device, _ = _bound(load_system("vrex8-plus"), near)
    yield (
        f"Why V-Rex8 misses its aims: after 40,000 tokens the bytes of a frame of `vrex8-plus` take {device:.0f} ms at "
        f"the peak rate of its device memory, so that no schedule exceeds {1e3 / device:.0f} frames a second. The "
        "vision tower, the LM head, activations and scores are BF16 or FP32; only projections, keys and values have "
        "four bits. Attention writes and reads a score of each query and attended token, so that its time grows with "
        f"the past. After 700,000 tokens the stage takes {far.stages['attention'].exposed_s * 1e3:.0f} ms of "
        f"{far.total_s * 1e3:.0f} ms, and device memory has space for {_held(far):,.0f} tokens in addition to the "
        "weights, so that the link still carries some of the selected ones."
    )
    yield "## Energy"
    yield "Joules by part, of a frame and of a text token after 40,000 and 700,000 tokens."
    rows, parts = [], list[str]()
    for stage in ("frame", "text"):
        for machine in (name for pair in PAIRS.items() for name in pair):
            for past in (40_000, 700_000):
                energy = Request(machine, "resv", stage, past).run().energy_j
                parts += [part for part in energy if part not in parts]
                rows.append((stage, machine, past, energy))
    yield table(
        ("step", "machine", "tokens", "all", *parts),
        (
            (
                stage,
                machine,
                f"{past:,}",
                f"{sum(energy.values()):.3f}",
                *(f"{energy.get(part, 0):.3f}" for part in parts),
            )
            for stage, machine, past, energy in rows
        ),
    )
    yield "## What differs"
    for name, other in PAIRS.items():
        published, machine = load_system(name), load_system(other)
        yield f"`{other}` compared with `{name}`; all other entries are equal:"
        yield table(
            ("entry", "published", "value", "area of a core in mm2", "source"),
            (
                (f"`{entry}`", old, new, f"{AREAS[entry[6:]][0]:g} ([page]({AREAS[entry[6:]][1]}))"
                 if entry[6:] in AREAS else "", source)
                for entry, old, new, source in differences(published, machine)
            ),
        )  # fmt: skip
    yield "## Programs"
    yield (
        "The decoder layers and the LM head without the vision tower, in ms: the closed formula of the machine of the "
        "programs, and the cycle model on the compiled programs; steps a second of the programs. Empty: not recorded "
        "(`python -m tests.sw_model.papers.bench_programs`)."
    )
    rows = []
    for point in PLUS_POINTS:
        cycles, core = program_cycles(point), load_system(point.system).core
        assert core
        formula_ms = formula_cost(point).total_s * 1e3
        row = (point.system, point.stage, f"{point.past:,}", f"{formula_ms:.1f}")
        program_ms = None if cycles is None else cycles / core.clock_mhz / 1e3
        rows.append((*row, *(("", "") if program_ms is None else (f"{program_ms:.1f}", f"{1e3 / program_ms:.2f}"))))
    yield table(("machine", "step", "tokens", "formula (ms)", "program (ms)", "steps a second"), rows)
