"""Page of docs/measurements about V-Rex8 and V-Rex48 with four bits and whole memory: frames, bounds, energy, parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docs.markdown import table
from sw_model.assumptions import Assumptions
from sw_model.papers.programs import COMMAND, PLUS_CONTEXTS, PLUS_POINTS, PLUS_SYSTEMS, Point, program_rows
from sw_model.request import Request
from sw_model.result import Result
from sw_model.systems import System, load_system

PAIRS = {"vrex8": "vrex8-plus", "vrex48": "vrex48-plus"}
PUBLISHED, KV, BOTH = "BF16, as published", "KV cache in 4 bits", "KV cache and weights in 4 bits"
# frames per second that a machine should reach after some tokens, at least
AIMS = [("vrex8-kv4", 40_000, 8), ("vrex8-plus", 40_000, 25), ("vrex8-plus", 700_000, 10)]
TABLES = ("core", "device_memory", "link", "power")
# entry: mm2 of a core, and what measures it
AREAS = {
    "power.kv_codec_mw": (0.0297, "[page](kv-codec.md)"),
    "power.weight_codec_mw": (0.0127, "[page](kv-codec.md)"),
    "core.page_frames": (0.0001, "KVMU, `vrex synth kvmu --set page_frames=1048576`"),
}


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


def _bound(system: System, result: Result) -> tuple[float, float]:
    """Milliseconds of the bytes of a step at the peak rate of the device memory, and at that of the link."""
    device, link = (result.bytes_moved.get(name, 0) for name in ("DRAM", "PCIe"))
    return device / system.device_memory.peak_gbps / 1e6, link / system.link.nominal_gbps / 1e6


def _programs() -> Iterator[str]:
    """Frames per second of the programs, aims and bounds."""
    rows = {(row.point.system, row.point.stage, row.point.past): row for row in program_rows(PLUS_POINTS)}
    (tower,) = program_rows([Point("vrex8", "vision")])
    yield "## Frames per second"
    yield (
        f"Compiled programs on the cycle model (`{COMMAND}`): the decoder layers and the LM head, and in the second "
        f"row of a machine also the vision tower, whose program takes {tower.program_ms:.1f} ms on all of them. "
        "Memory, link, clock and number of cores are those of V-Rex8."
    )
    lines = []
    for system in PLUS_SYSTEMS:
        times = [rows[system, "frame", past].program_ms for past in PLUS_CONTEXTS]
        lines.append((system, *(f"{1e3 / ms:.2f}" for ms in times)))
        lines.append((f"{system}, with tower", *(f"{1e3 / (ms + tower.program_ms):.2f}" for ms in times)))
    yield table(("machine", *(f"{past:,} tokens" for past in PLUS_CONTEXTS)), lines)
    yield "Aims:"
    lines = []
    for system, past, aim in AIMS:
        ms = rows[system, "frame", past].program_ms
        fps = 1e3 / ms, 1e3 / (ms + tower.program_ms)
        verdicts = ["reached" if each >= aim else "missed" for each in fps]
        lines.append((system, f"{past:,}", f"{aim}", f"{fps[0]:.2f}", verdicts[0], f"{fps[1]:.2f}", verdicts[1]))
    yield table(("machine", "tokens", "aim, frames per second", "without tower", "", "with tower", ""), lines)
    yield "## What bounds a frame"
    yield (
        "Milliseconds of the program, and of the system model for the same machine: one core selects for all KV heads, "
        "weights are read again for each block of vectors, and the WTU uses histograms. The bound is the larger of two "
        "times: the bytes of the device memory at its peak rate, and the bytes of the link at its rate."
    )
    lines = []
    for row in rows.values():
        system = load_system(row.point.system)
        device = row.formula.device_bytes / system.device_memory.peak_gbps / 1e6
        link = row.formula.link_bytes / system.link.nominal_gbps / 1e6
        lines.append((
            row.point.system, row.point.stage, f"{row.point.past:,}", f"{row.formula.total_s * 1e3:.1f}",
            f"{row.program_ms:.1f}", f"{device:.1f}", f"{link:.1f}", f"{row.over_bound:.2f}", row.limit,
        ))  # fmt: skip
    yield table(
        ("machine", "step", "tokens", "formula", "program", "device memory at peak", "link", "program / bound",
         "largest wait of a layer"),
        lines,
    )  # fmt: skip
    near, far, kv = (rows[name, "frame", past] for name, past, _ in (AIMS[1], AIMS[2], AIMS[0]))
    yield "Causes of the missed aims:"
    causes = [
        f"Vision tower: its program takes {tower.program_ms:.1f} ms, its bytes {tower.bound_ms:.1f} ms at the peak "
        "rate. The patches of a picture do not fit the operand memory of a core. Each core loads the patches again for "
        "every block of 64 results, and in the last product of a layer also the weights for every 64 patches.",
        f"`{near.point.system}`, {near.point.past:,} tokens: the bytes take {near.bound_ms:.1f} ms at the peak rate of "
        f"the {near.bound}, so no schedule exceeds {1e3 / near.bound_ms:.0f} frames per second. The LM head, "
        "activations and scores are BF16 or FP32. Attention writes one score for each query and attended token and "
        "reads it twice.",
        f"`{far.point.system}`, {far.point.past:,} tokens: the bytes take {far.bound_ms:.0f} ms, because ReSV "
        f"attends to 33 % of the past. The program takes {far.program_ms:,.0f} ms, because one core selects for "
        "all KV heads.",
        f"`{kv.point.system}`, {kv.point.past:,} tokens: the bytes take {kv.bound_ms:.1f} ms. Most of them are weights "
        "in BF16.",
    ]
    yield "\n".join(f"- {cause}" for cause in causes)


def _formulas() -> Iterator[str]:
    """Frames per second with the tower by formula, and what bounds them."""
    results: dict[tuple[str, int], Result] = {}
    for name in PAIRS:
        for title, (system, changes) in settings(name).items():
            for past in PLUS_CONTEXTS:
                key = title if title in PAIRS.values() else f"{name}: {title}"
                results[key, past] = Request(system, "resv", "frame", past, changes=changes).run()
    yield "## Frames per second by formula"
    yield (
        "Results of the system model (`vrex model`) for the machine as V-Rex publishes it, with the vision tower. It "
        "differs from the machine of the programs: each core selects for its own KV heads, each weight of the tower is "
        "read once, and the WTU makes one pass for each bucket."
    )
    yield table(
        ("machine", *(f"{past:,} tokens" for past in PLUS_CONTEXTS)),
        (
            (title, *(f"{results[title, past].fps:.2f}" for past in PLUS_CONTEXTS))
            for title in dict.fromkeys(key for key, _ in results)
        ),
    )
    yield "## What bounds a frame by formula"
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


def _larger_region(system: System, result: Result, past: int) -> int:
    """Tokens in BF16 of a recent region that also has the bytes of the tokens that a frame selects outside it."""
    resident, size = system.assumptions.resident_tokens, system.assumptions.kv_bits / 16
    (share,) = (fact.value for fact in result.facts if fact.name == "attended share of the context")
    return int(resident + float(share) * max(0, past - resident / size) * size)


def _hits() -> Iterator[str]:
    """Frames without hits among the pages of earlier steps."""
    default = Assumptions().retained_hit
    yield "## Effect of hits in device memory"
    yield (
        f"The programs and formulas of `vrex8` and `vrex8-kv4` assume that {default:.0%} of the selected "
        "tokens outside the recent region are still in device memory from the step before "
        "(`assume.retained_hit`, measured on the golden model). The KVMU keeps a fetched page for all KV "
        "heads or for none, and each head of ReSV selects its own clusters, so the programs of ReSV keep no "
        "fetched page. A recent region that also has the bytes of the fetched tokens needs the same memory "
        "and no hits: the hardware can be set to it, and its frames take as long. Milliseconds of a frame "
        "with the vision tower by formula:"
    )
    rows = []
    for machine in ("vrex8", "vrex8-kv4"):
        for past in PLUS_CONTEXTS[2:]:
            request, none = Request(machine, "resv", "frame", past), {"assume.retained_hit": 0.0}
            results = [request.run(), request.replace(changes=none).run()]
            region = {"assume.resident_tokens": _larger_region(load_system(machine), results[0], past)}
            results.append(request.replace(changes=none | region).run())
            times = [result.total_s * 1e3 for result in results]
            rows.append((machine, f"{past:,}", *(f"{ms:.1f}" for ms in times), f"{times[2] / times[0]:.2f}"))
    yield table(
        ("machine", "tokens", f"hits of {default:.0%}", "no hits", "no hits, larger region", "ratio to the first"), rows
    )
    yield (
        "`vrex8-plus` and `vrex48-plus` count no hits: their recent region is the whole free memory. Which tokens "
        "should stay is measured in [retention](retention.md)."
    )


def plus() -> Iterator[str]:
    """Frames per second, bounds, energy and parts of the machines with four bits and whole memory."""
    resident, kv_bits = Assumptions().resident_tokens, load_system("vrex8-kv4").assume["kv_bits"]
    yield (
        "Llama-3-8B with ReSV, one stream, link preset `paper`. V-Rex keeps its newest tokens, the recent region, in "
        f"device memory and gives no size. `vrex8` keeps {resident:,} tokens (`assume.resident_tokens`), `vrex8-kv4` "
        f"the same number of bytes, which is {int(resident * 16 / kv_bits):,} tokens at {kv_bits} bits. "
        "`vrex8-plus` and `vrex48-plus` keep as many tokens as fit in device memory, at most 1,048,576 for each of 32 "
        "layers (`core.page_frames`; the preset `paper` has a quarter). `vrex8` and `vrex8-kv4` count hits among "
        "fetched tokens of the step before, which a larger recent region replaces: see [effect of "
        "hits](#effect-of-hits-in-device-memory)."
    )
    yield from _programs()
    yield from _formulas()
    yield from _hits()
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
            ("entry", "published", "value", "added area per core, mm2", "source"),
            (
                (f"`{entry}`", old, new, "{:g} ({})".format(*AREAS[entry]) if entry in AREAS else "", source)
                for entry, old, new, source in differences(published, machine)
            ),
        )  # fmt: skip
