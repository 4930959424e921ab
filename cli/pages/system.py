"""Sections of report pages about the system model: one run, comparison of policies, published figures, claims."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sw_model import compare
from sw_model.assumptions import LINKS
from sw_model.engine import PS_PER_S
from sw_model.explain import Explanation
from sw_model.graph import STAGES
from sw_model.papers.claims import ClaimResult
from sw_model.papers.programs import ProgramRow
from sw_model.papers.reproduce import USES, Reproduction, brief
from sw_model.quality import Quality
from sw_model.result import Result
from sw_model.systems import System
from util.report import charts
from util.report.page import Column, Fact, Image, Marked, Section, Table

if TYPE_CHECKING:  # imports the simulator
    from cli.rtl import RtlRun

LANES = ("GPU", "LXE", "VPE", "HCU", "WTU", "DRAM", "PCIe", "SSD")
DRAWN_LAYERS = 3


def breakdown(
    results: Sequence[tuple[str, Result]], caption: str = "", published_ms: Sequence[float | None] | None = None
) -> Image:
    """Time of some runs by stage, with a mark at the published total."""
    stages = [stage for stage in STAGES if any(stage in result.stages for _, result in results)]
    parts = {
        stage: [r.stages[stage].exposed_s * 1e3 if stage in r.stages else 0.0 for _, r in results] for stage in stages
    }
    names = [name for name, _ in results]
    return charts.stacked_bars(names, parts, unit="ms", reference=published_ms, caption=caption)


def roofline(system: System, results: Sequence[tuple[str, Result]], caption: str = "") -> Image:
    """Some runs in the roofline of their system."""
    points = {name: (r.flops / r.bytes_moved["DRAM"], r.flops / r.total_s / 1e12) for name, r in results}
    memory = system.device_memory.peak_gbps
    return charts.roofline(points, peak_tflops=system.peak_tflops, memory_gbps=memory, caption=caption)


def timeline(result: Result, caption: str = "") -> Image:
    """Tasks of every resource during a few layers in the middle of the first step."""
    line = result.timelines[0]
    middle = max(task.layer for task in line.tasks) // 2
    wanted = range(middle, middle + DRAWN_LAYERS)
    chosen = [i for i, task in enumerate(line.tasks) if task.layer in wanted and task.stage != "fetch"]
    begin, end = min(line.start_ps[i] for i in chosen), max(line.end_ps[i] for i in chosen)
    drawn: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for task, start, stop in zip(line.tasks, line.start_ps, line.end_ps, strict=True):
        shown = min(stop, end) - max(start, begin)
        if shown > 0:
            ms = 1e3 / PS_PER_S
            drawn[task.resource].append(((max(start, begin) - begin) * ms, shown * ms, task.stage))
    return charts.timeline({name: drawn[name] for name in LANES if name in drawn}, caption=caption)


def rtl_section(run: RtlRun) -> Section:
    """A layer in the core's RTL: cycles of every step, and activity of the units in the last one."""
    measured = "measured from RTL"
    together = sum(run.overlap()[2:]) / sum(run.overlap()[1:])
    return Section(
        "Core in RTL",
        f"One decoder layer with ReSV attention runs in the RTL of a core of preset {run.preset}, with the memory "
        f"timing of {run.system}. Every output equals that of the golden model. Picture and tables show the last step, "
        "as recorded by the trace port of the core. A bar is a command; it starts when its operands are available and "
        "ends when the memory has acknowledged its results.",
        facts=[
            Fact("last step", run.cycles, "cycles", measured),
            Fact("clock", run.clock_mhz, "MHz", "assumed"),
            Fact("two or more busy units", 100 * together, "% of busy cycles", measured),
            Fact("matrix engine", 100 * run.units()["matrix"]["share"], "% of cycles", measured),
        ],
        images=[Image(run.svg().encode(), "commands of each unit over the cycles of a step", "last step", wide=True)],
        tables=[
            Table(
                ["step", "tokens", "clusters", Column("attended", "past tokens", ".1f"), "fetched head pages",
                 Column("cycles", "", "", measured), Column("predicted", "", "", "computed")],
                [[n, s["tokens"], s["clusters"], s["attended"], s["fetched"], s["cycles"], s["predicted"]]
                 for n, s in enumerate(run.steps)],
                "steps",
            ),
            Table(
                ["unit, engine or port", Column("busy", "cycles", ".0f", measured), Column("share", "%", ".1f")],
                [[name, u["cycles"], 100 * u["share"]] for name, u in run.units().items()],
                "cycles with a command (units) or with a beat (engines and ports)",
            ),
            Table(
                ["command", "count", Column("cycles", "", "", measured), Column("mean", "cycles", ".1f")],
                [[name, c["count"], c["cycles"], c["mean"]] for name, c in run.commands().items()],
                "cycles from start to end of a command; commands overlap",
            ),
        ],
    )  # fmt: skip


def run_section(explanation: Explanation) -> Section:
    """One run: time by stage, limiting resource, and effect of changes."""
    result, total = explanation.result, explanation.result.total_s
    return Section(
        "Run",
        explanation.words(),
        facts=[
            Fact("latency", total * 1e3, "ms", "computed"),
            Fact("steps per second", result.fps, "", "computed"),
            Fact("energy", result.total_j, "J", "computed"),
            Fact("over the host link", result.bytes_moved.get("PCIe", 0) / 1e9, "GB", "computed"),
        ],
        images=[
            breakdown([(result.policy, result)], "time on the critical path by stage"),
            roofline(explanation.request.machine(), [(result.policy, result)], "operations per byte and roofline"),
            timeline(result, f"{DRAWN_LAYERS} layers of the first step"),
        ],
        tables=[
            Table(
                ["stage", "resource", Column("waited", "ms", ".3f", "computed"), Column("share", "%", ".1f")],
                [[b.stage, b.resource, b.seconds * 1e3, 100 * b.seconds / total] for b in explanation.bounds],
                "waiting time of the run",
            ),
            Table(
                ["parameter", Column("doubled", "ms", ".2f"), Column("no limit", "ms", ".2f"), "then bound by",
                 "set with"],
                [[p.name, p.doubled_s * 1e3, p.unbounded_s * 1e3, str(p.next_bound), p.setting]
                 for p in explanation.parameters],
                "what would change the run: each parameter twice as good, and without its limit",
            ),
            Table(
                ["number", "value", "unit", "source"],
                [[f.name, Marked(f.value, f.origin) if f.origin != "given" else f.value, f.unit, f.source]
                 for f in result.facts],
                "inputs of the model",
            ),
        ],
    )  # fmt: skip


def comparison_section(
    sides: Sequence[compare.Side], quality: Sequence[Quality] = (), stage: str = "frame", length: int = 0
) -> Section:
    """Comparison of policies: costs over the number of past tokens, best policies, and latency against quality.

    quality : measured on a stream of `length` tokens
    """
    images = []
    units = {"latency": "ms", "link bytes": "GB over the link", "energy": "J"}
    for name, unit in units.items():
        measure = compare.MEASURES[name]
        series: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for side in sides:
            if measure(side) > 0:
                series[side.policy].append((side.tokens, measure(side)))
        if series:
            alt = f"{name} over past tokens for {', '.join(series)}"
            none = [policy for policy in dict.fromkeys(side.policy for side in sides) if policy not in series]
            caption = f"{name}; zero: {', '.join(none)}" if none else name
            images.append(charts.lines(series, x="past tokens", y=unit, alt=alt, caption=caption))
    nearest = min((side.tokens for side in sides), key=lambda tokens: abs(tokens - length))
    points, front = compare.trade(sides, quality, nearest, stage)
    if points:
        caption = f"latency at {nearest:,} tokens against output error at {length:,} (connected: Pareto front)"
        images.append(charts.pareto(points, x="ms", y="output error", caption=caption))
    least = compare.winners(sides)
    tables = [
        Table(
            [Column("tokens"), *compare.MEASURES],
            [[tokens, *(", ".join(best[m]) for m in compare.MEASURES)] for tokens, best in least.items()],
            "policies with the lowest value, within 1 %",
        ),
        Table(
            ["policy", Column("tokens"), Column("latency", "ms", ".2f", "computed"), Column("link", "GB", ".3f"),
             Column("memory", "GB", ".2f"), Column("energy", "J", ".3f")],
            [[s.policy, s.tokens, s.latency_ms, s.link_gb, s.memory_gb, s.energy_j] for s in sides],
        ),
    ]  # fmt: skip
    if quality:
        tables.append(
            Table(
                ["policy", "stage", Column("retrieved", "%", ".1f", "measured on golden"),
                 Column("recall", "%", ".1f", "measured on golden"),
                 Column("output error", "", ".4f", "measured on golden")],
                [[q.policy, q.stage, 100 * q.ratio, 100 * q.recall, q.output_error] for q in quality],
                f"compared with full attention, on a stream of {length:,} tokens",
            )
        )  # fmt: skip
    best = f" On the Pareto front of latency and quality: {', '.join(front)}." if front else ""
    return Section(
        "Comparison of policies", f"The same workload under every policy.{best}", images=images, tables=tables
    )


def reproduction_section(reproduction: Reproduction) -> Section:
    """Published figures and the figures of the model."""
    scores = {use: reproduction.score(use) for use in USES}
    return Section(
        "Published figures",
        [
            *(
                f"Figures of kind {use}: {inside} of {judged} with a verdict are inside the tolerance, {count} in all."
                for use, (inside, judged, count) in scores.items()
                if count
            ),
            *(f"Contradiction: {line}" for line in reproduction.contradictions),
        ],
        tables=[
            Table(
                ["figure", "where", "verdict", Column("residual", "%", "+.0f"), "published", "model", "comment"],
                [
                    [r.id, r.where, r.verdict, None if r.residual is None else 100 * r.residual, brief(r.published),
                     brief(r.model), r.comment]
                    for r in reproduction.rows
                ],
            ),
            Table(["assumption", "meaning"], [*map(list, reproduction.free_assumptions.items())], "free assumptions"),
            Table(
                ["number", "meaning"],
                [*map(list, reproduction.measured_assumptions.items())],
                "numbers that are measured on golden models and netlists",
            ),
        ],
    )  # fmt: skip


def programs_section(rows: Sequence[ProgramRow]) -> Section:
    """Times of frames and text tokens from the programs of the cores."""
    head: list[Column | str] = [
        "system", "policy", "step", Column("past", "tokens"), Column("paper", "ms", "", "paper"),
        Column("formula", "ms", ".1f", "computed"), Column("program", "ms", ".1f", "computed"),
        Column("bound", "ms", ".1f", "computed"), "bound by", Column("program / bound", "", ".2f"),
        Column("formula - program", "%", "+.1f"), "largest wait of a layer",
    ]  # fmt: skip
    return Section(
        "Programs",
        "Frames and text tokens of one stream, from the compiled programs of all cores on the cycle model, burst by "
        "burst. The formula is the quick model of the other figures. The bound is the larger one of the bytes of the "
        "device memory at its peak rate and the bytes of the link at its rate.",
        tables=[
            Table(head, [
                [r.point.system, r.point.policy, r.point.stage, r.point.past, r.paper_ms, r.formula.total_s * 1e3,
                 r.program_ms, r.bound_ms, r.bound, r.over_bound, 100 * r.formula_error, r.limit]
                for r in rows
            ]),
        ],
    )  # fmt: skip


def claims_section(results: Sequence[ClaimResult]) -> Section:
    """Claims of V-Rex under both link models."""
    columns: list[Column | str] = ["claim", "where", Column("claimed", origin="paper")]
    for link in LINKS:
        columns += [Column(link, origin="computed"), ""]
    rows = [
        [r.claim.what, r.claim.where, r.claim.value, *(x for link in LINKS for x in (r.values[link], r.verdict(link)))]
        for r in results
    ]
    return Section(
        "Claims",
        "Claims of V-Rex, with the nominal link and with the link model of packets and drive.",
        tables=[Table(columns, rows)],
    )
