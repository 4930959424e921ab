"""Generates pages of docs/measurements: each has the date, the commit and the command, and one or more tables.

    python -m docs.measure cache-speed cycle-model dre-area kv-formats layout programs
    python -m docs.measure reproduction seeds systems unit-areas

A page is written by this module only, so that a measured number has one place. Texts refer to the page.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from amaranth.hdl import UnusedElaboratable

from docs.markdown import table
from docs.program_pages import programs, systems
from util.files import git_revision, write

FOLDER = Path(__file__).resolve().parent / "measurements"
AREA_PRESETS = ("tiny", "small")
KILLED_MINUTE = 32  # of the stream of `streaming_memory`
# the core and the multi-core take many minutes
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
    ),
    "kvmu": (("lines", r"(cache\.)?rows\.", "lines of the store: a step uses some tens of records and two headers"),),
}
AREA_UNITS = ("dot_tree", "dma", "hcu", "kvmu", "kvpu", "wtu", "wtu_sweep", "dpe", "operand_memory", "vpe")
# layouts at tiny: unit, and a module of its Verilog or None for the whole unit
LAYOUTS: tuple[tuple[str, str | None], ...] = (
    ("dot_tree", None),
    ("vpe", "vpe_lane.first_adder"),
    ("vpe", "vpe_lane.exp"),
    ("vpe", "vpe_lane.reciprocal"),
    ("vpe", "vpe.sequencer.fifo"),
    ("hcu", "hcu.codes"),
    ("hcu", "hcu.hashes"),
    ("wtu", "wtu.store.rows"),
    ("wtu", "wtu.reporter.gate.fifo"),
    ("wtu", "wtu.reporter.list"),
    ("dma", "dma.copy_engine.routes"),
    ("dma", "dma.copy_engine.host_owners"),
)
# layouts whose wires gave the wire load of osu018 (`synth.library.reader`); the others test it
CALIBRATION = {"vpe_lane.first_adder", "vpe.sequencer.fifo", "hcu.codes", "wtu.store.rows", "wtu.reporter.list"}
CALIBRATION |= {"dma.copy_engine.routes"}


def page(title: str, command: str, revision: str | None, parts: Iterable[str]) -> str:
    """A page with its origin below the title."""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    origin = f"Measured on {date} at commit `{revision}` with `{command}`. Do not edit this page: run the command."
    return "\n\n".join([f"# {title}", origin, *parts]) + "\n"


def cycle_model() -> Iterator[str]:
    """Cycles of decoder-layer steps: the model of `sw_model/cycles` compared with the simulated RTL."""
    from tests.sw_model.bench_cycles import CASES, SEED, predictions, recorded

    errors: dict[str, list[float]] = {}
    for name, steps in recorded().items():
        print(f"cycle-model: {name}", file=sys.stderr)
        predicted = predictions(CASES[name], SEED, [start for start, _ in steps])
        errors[name] = [value / cycles - 1 for value, (_, cycles) in zip(predicted, steps, strict=True)]
    groups = [(name, CASES[name].preset, each) for name, each in errors.items()]
    for preset in dict.fromkeys(case.preset for case in CASES.values()):
        together = [error for name, each in errors.items() if CASES[name].preset == preset for error in each]
        groups += [(f"all of {preset}", preset, together)]
    yield (
        "The error is (predicted cycles - simulated cycles) / simulated cycles of one step of a decoder layer. The "
        "mean is that of the absolute errors. `tests/sw_model/bench_cycles.py` defines the cases: kinds of memory, "
        "links, selection modes and sizes. The cycles of the simulation are those that "
        "`python -m tests.sw_model.bench_cycles --record` has stored."
    )
    yield table(
        ("case", "preset", "steps", "mean error", "largest error"),
        (
            (name, preset, len(each), f"{sum(map(abs, each)) / len(each):.2%}", f"{max(each, key=abs):+.2%}")
            for name, preset, each in groups
        ),
    )


def contexts() -> Iterator[str]:
    """Cycles of a layer with a different context for every layer, compared with one context throughout."""
    from sw_model.cycles.context_cost import CORES, FFN, FRAME, HIDDEN, LAYERS, Q_HEADS, Cost, measure, shared_cycles
    from sw_model.memory.live import DramTiming
    from sw_model.memory.spec import load_memory
    from sw_model.systems import load_system

    system = load_system("vrex8")
    memory, clock = load_memory(system.memory), system.core.clock_mhz if system.core else 0.0
    costs: list[Cost] = []
    for past in (1_000, 10_000, 40_000):
        print(f"contexts: {past} past tokens", file=sys.stderr)
        costs.append(measure(past, lambda: DramTiming(memory, clock)))
    floor = shared_cycles(memory.peak_gbps, clock)
    yield (
        f"A frame of {FRAME} tokens in layers of Llama-3-8B's shapes (hidden {HIDDEN:,}, feed-forward {FFN:,}, "
        f"{Q_HEADS} query heads, 8 KV heads) on one core of the preset `paper`, by the cycle model `sw_model/cycles`, "
        f"with the device memory of V-Rex8 ({system.memory}) at {clock:g} MHz. The core has the memory to itself. Both "
        "programs execute the same steps: the clusters, pages and scores of step n are equal. In one program all "
        "layers use one context, in the other one every layer uses its own. The figures are means over "
        f"{LAYERS - 1} layers after a first one. All pages are in device memory, because transfers would make a layer "
        "longer and the share of contexts smaller."
    )
    yield table(
        ("past tokens", "clusters", "candidates", "past tokens of a KV head", "one context", "different contexts",
         "difference", "difference in %", f"in % of the layer on {CORES} cores"),
        (
            (f"{c.past:,}", f"{c.clusters:,}", f"{c.candidates:,}", f"{c.attended:,.0f}",
             *(f"{cycles:,.0f}" for cycles in c.cycles), f"{c.cycles[1] - c.cycles[0]:+,.0f}",
             f"{100 * c.difference:+.3f}", f"{100 * (c.cycles[1] - c.cycles[0]) / floor:+.3f}")
            for c in costs
        ),
    )  # fmt: skip
    yield (
        f"The last column divides the difference by {floor:,.0f} cycles, the time in which the memory of V-Rex8 reads "
        f"the weights of a layer at its peak rate: {CORES} cores that share a layer cannot be faster. The limit is 1 %."
    )
    yield (
        "Parts of the difference. OPEN reads the headers and the candidates; it runs while the layer computes its norm "
        "and its projections. CLUSTER includes the undo log of the mean keys, which both programs write. Lines are "
        "those of the cache of the KVMU: lines that it reads (without candidates), writes back, and logs in a layer. "
        "The first number is that of one context, the second one that of different contexts."
    )

    def pair(values: tuple[float, float]) -> str:
        return " / ".join(f"{value:,.0f}" for value in values)

    yield table(
        ("past tokens", "cycles of OPEN", "cycles of CLUSTER", "lines read", "lines written back", "lines logged"),
        (
            (f"{c.past:,}", pair(c.open), pair(c.cluster), pair(c.fills), pair(c.writebacks), pair(c.logged))
            for c in costs
        ),
    )


def reproduction() -> Iterator[str]:
    """Published figures compared with the model."""
    from sw_model.papers.reproduce import brief, reproduce

    result = reproduce()
    yield (
        "The verdict compares the figure with its own tolerance. [Reproduce a figure](../tutorials/figure.md) explains "
        "the columns."
    )
    uses = ("system", *sorted({row.use for row in result.rows} - {"system"}))
    yield table(
        ("kind of figure", "inside", "with a verdict", "all"),
        ((use, *result.score(use)) for use in uses),
    )
    yield table(
        ("figure", "where", "verdict", "residual", "published", "model"),
        (
            (
                f"`{r.id}`",
                r.where,
                r.verdict,
                "" if r.residual is None else f"{r.residual:+.0%}",
                brief(r.published),
                brief(r.model),
            )
            for r in result.rows
        ),
    )


def memory_models() -> Iterator[str]:
    """Errors of DRAM, link and drives on their references, by pattern, and the largest ones with their causes."""
    from tests.sw_model.memory.bench_accuracy import GROUP_HEAD, LARGEST_HEAD, MODELS, groups, largest

    yield (
        "Errors are (model - reference) / reference; a mean is that of absolute values. The DRAM model is compared "
        "with 432 runs of Ramulator 2.1 (commit c5b1c3a), simulated ports with the replay of the same requests, the "
        "link with the closed form of pcie-bench, the drives with 168 runs of MQSim (commit 7ec40e3) at the same "
        "addresses, drives behind a simulated port with the drive model. [The memory models]"
        "(../../sw_model/memory/README.md) says what they contain. The data are in `tests/sw_model/memory/data`."
    )
    for title, measure in MODELS.items():
        print(f"memory-models: {title}", file=sys.stderr)
        errors = list(measure())
        yield f"## {title}"
        yield table(GROUP_HEAD, groups(errors))
        yield "Largest errors:"
        yield table(LARGEST_HEAD, largest(errors))


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


def cache_speed() -> Iterator[str]:
    """Speed of the compiled kernels of the retrieval cache, and selection compared with a step of a decoder."""

    def output(module: str, *arguments: str) -> str:
        command = [sys.executable, "-m", f"tests.sw_model.huggingface.{module}", *arguments]
        print(f"cache-speed: {module}", file=sys.stderr)
        return f"```text\n{subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout}```"

    yield (
        "ReSV with the parameters of the paper on synthetic keys. Both sides of a line run alternately in one process "
        "and must give equal results. The last column is the ratio of their best times; times depend on the machine. "
        "The aim for Hamming search and thresholding is a ratio of at least 10."
    )
    yield output("bench_kernels")
    yield (
        "One layer selects for a whole step: hash codes, clusters, mean keys, scores, thresholds, lists of tokens. The "
        "decoder below has the shapes of Qwen2-0.5B and random weights, and runs on one thread of the processor; times "
        "are processor times. The aim is a selection of less than 10 % of the step with the full cache."
    )
    yield output("bench_decoder", "--threads", "1", "--steps", "5")


def streaming_memory() -> Iterator[str]:
    """Memory over an hour of video with the retrieval cache for Hugging Face models; one process of two is killed."""
    from util.report.charts import curves

    def rows(folder: str | None, kill_after: int | None = None) -> list[dict[str, Any]]:
        """Figures of every minute of a new process; the process is killed after a minute."""
        session = [] if folder is None else ["--session", folder]
        command = [sys.executable, "-m", "tests.sw_model.huggingface.bench_stream", "--json", *session]
        result = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                result.append(json.loads(line))
                print(f"streaming-memory: minute {result[-1]['minute']}", file=sys.stderr)
                if result[-1]["minute"] == kill_after:
                    process.kill()
        if process.returncode and kill_after is None:
            raise RuntimeError(f"the stream ended with status {process.returncode}")
        return result

    whole = rows(None)
    with tempfile.TemporaryDirectory() as folder:
        before = rows(f"{folder}/session", kill_after=KILLED_MINUTE)
        after = rows(f"{folder}/session")
    first = after[0]["minute"]
    resumed = [row for row in before if row["minute"] < first] + after
    equal = sum(a["answer"] == b["answer"] for a, b in zip(whole, resumed, strict=True))
    points = {
        "keys and values in host memory": [(row["minute"], row["host_bytes"] / 1e6) for row in resumed],
        "keys and values on the device": [
            (row["minute"], (row["device_bytes"] + row["block_bytes"]) / 1e6) for row in resumed
        ],
    }
    alt = "Keys and values in host memory grow with the stream; those on the device are constant"
    image = curves(points, x="minutes of video", y="MB", alt=alt)
    write(FOLDER.parent / "pictures/streaming-memory.svg", image.content)
    yield (
        "A decoder of two layers with random weights reads two frames of ten tokens per second for one hour and "
        'answers a question every minute, with `RetrievalCache(policy="resv", device_tokens=4096)`. The device is the '
        "processor, so the figures of the device are sums over its tensors: the newest 4,096 tokens of every layer and "
        "the largest block of retrieved tokens that a step copies. Process memory includes the Python libraries. "
        "[The cache](../../sw_model/huggingface/README.md) explains the figures."
    )
    yield f"![{alt}](../pictures/streaming-memory.svg)"
    yield (
        f"The stream of the figure was killed (SIGKILL) in minute {KILLED_MINUTE + 1} and resumed by a new process "
        f"from the state of minute {first - 1}. A second stream ran without interruption: {equal} of {len(whole)} "
        "answers are equal."
    )
    yield table(
        ("minute", "tokens", "device in MB", "host in MB", "process in MB", "retrieved", "frame in ms"),
        (
            (
                row["minute"],
                f"{row['tokens']:,}",
                f"{(row['device_bytes'] + row['block_bytes']) / 1e6:.2f}",
                f"{row['host_bytes'] / 1e6:.2f}",
                f"{row['resident_bytes'] / 1e6:.0f}",
                f"{row['ratio']:.1%}",
                f"{row['frame_ms']:.1f}",
            )
            for row in resumed
            if row["minute"] % 5 == 0
        ),
    )


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


def kv_formats() -> Iterator[str]:
    """Error of attention with keys and values in each number format, under every policy."""
    from cli.demo.retrieval import BUDGET_FRAMES, EVERY, FRAMES
    from golden.kv_formats import KIVI, NAMES, PER_TOKEN
    from sw_model.media.clip import find_clip
    from sw_model.media.source import GENERATOR, Options, open_source
    from sw_model.policies import Policy, Selection
    from sw_model.quality import policies_for, quality_table

    class Replay(Policy):
        """A policy whose selections are computed in the first pass over a stream and returned again in later passes."""

        def __init__(self, policy: Policy) -> None:
            super().__init__(policy.model)
            self.policy, self.selections = policy, dict[tuple[int, int], Selection]()
            self.calls = [0] * policy.model.layers

        def append(self, layer: int, keys: Any, values: Any) -> None:
            step = self.calls[layer] % len(chunks), layer
            if step not in self.selections:
                self.policy.append(layer, keys, values)

        def select(self, layer: int, queries: Any, stage: str) -> Selection:
            step = self.calls[layer] % len(chunks), layer
            self.calls[layer] += 1
            if step not in self.selections:
                self.selections[step] = self.policy.select(layer, queries, stage)
            return self.selections[step]

        def account(self, step: Any) -> Any:
            return self.policy.account(step)

    clip = find_clip()
    errors: dict[tuple[str, str], dict[str, float]] = {}
    sources: dict[str, Path | str] = {"generator": GENERATOR, "clip": clip.path}
    for title, name in sources.items():
        source = open_source(name, Options(frames=FRAMES))
        chunks = list(source.chunks)
        policies = policies_for(source.geometry, source.tokens_per_frame, budget_frames=BUDGET_FRAMES)
        replays = {policy: Replay(each) for policy, each in policies.items()}
        for form in (None, *NAMES):
            print(f"kv-formats: {title}, {form}", file=sys.stderr)
            for row in quality_table(chunks, replays, EVERY, form):
                errors.setdefault((title, form or "bf16"), {})[f"{row.policy}, {row.stage}"] = row.output_error
    yield (
        "Error of the output of attention: |output - full BF16 output| / |full BF16 output|, mean over steps, tokens "
        f"and query heads. {FRAMES} frames, of which one of {EVERY} is measured; policies with a frame budget retrieve "
        f"{BUDGET_FRAMES} frames. Past tokens are stored in the format, those of the step in BF16. The clip is "
        f"{clip.name} ({clip.origin}); its keys come from a front end with random weights. The row `bf16` is the error "
        "of the policy alone. The policy `oaken` stores its own 4 bits and does not use the format. Bits are nominal, "
        "for heads of 64 elements or more; those of Oaken depend on the data. Definitions: `golden/kv_formats.py`."
    )
    bits = {name: f"{form.element_bits:g}" for name, form in (PER_TOKEN | KIVI).items()} | {"bf16": "16"}
    for title in sources:
        columns = list(errors[title, "bf16"])
        for stage in ("frame", "text"):
            names = [column for column in columns if column.endswith(stage)]
            if names:
                yield f"## {title.capitalize()}, stage {stage}"
                yield table(
                    ("format", "bits", *(name.split(",")[0] for name in names)),
                    (
                        (form, bits.get(form, ""), *(f"{errors[title, form][name]:.4f}" for name in names))
                        for form in ("bf16", *NAMES)
                    ),
                )


def layout() -> Iterator[str]:
    """Layouts of units and of modules of units: geometry, wires, timing and power; writes their pictures, too."""
    from hw.config import Config
    from synth.layout import flow, picture, report

    layouts = []
    for unit, module in LAYOUTS:
        print(f"layout: {module or unit}", file=sys.stderr)
        layouts.append(flow.layout(unit, Config.preset("tiny"), module=module))
    sheet = picture.contact_sheet([(report.draw(each, ()), report.caption(each)) for each in layouts])
    write(FOLDER.parent / "pictures" / "layouts.png", picture.png(sheet, 16))
    results = [each.json() for each in layouts]
    yield from _layout_page(results)


def _layout_page(results: list[dict[str, Any]]) -> Iterator[str]:
    named = [f"`{r['unit']}`" for r in results]
    totals = {key: sum(r[key] for r in results) for key in ("wire_pf", "model_wire_pf", "open_nets", "shorts", "nets")}
    error = totals["model_wire_pf"] / totals["wire_pf"] - 1
    others = [r for r in results if r["unit"] not in CALIBRATION]
    tested = sum(r["model_wire_pf"] for r in others) / sum(r["wire_pf"] for r in others) - 1
    yield (
        "Units and modules at `tiny`, placed by graywolf and routed by qrouter in osu018, a 180 nm library with six "
        "metal layers. Memories are flip-flops. `vrex layout UNIT`, with `--module NAME` for a module, repeats one of "
        f"them. Together they have {totals['nets']:,} nets: {totals['open_nets']} are open, {totals['shorts']} pairs "
        "are shorted. The check reads the geometry only; [Layout](../synthesis.md#layout) explains it."
    )
    yield "![Pictures of the layouts: cells, wires by layer and pins](../pictures/layouts.png)"
    yield "## Geometry"
    yield table(
        ("unit or module", "cells", "flip-flops", "die in um", "utilisation", "nets", "open", "shorts", "wires in mm",
         "vias", "pairs closer than the spacing"),
        (
            (name, r["cells"], r["flip_flops"], "{:.0f} x {:.0f}".format(*r["die_um"]), f"{r['utilisation']:.0%}",
             r["nets"], r["open_nets"], r["shorts"], f"{r['wire_mm']:.1f}", r["vias"], r["too_close"])
            for name, r in zip(named, results, strict=True)
        ),
    )  # fmt: skip
    yield "## Wires, timing and power"
    yield (
        "*Fan-out* is the estimate of `vrex synth --liberty osu018` before the layout, with one wire load for each "
        "load of a net. The others are computed with the extracted wires. Power is at 100 MHz with 0.1 toggles per "
        "net and cycle."
    )
    yield table(
        ("unit or module", "wires in pF", "fan-out in pF", "error", "um per load", "fmax in MHz, fan-out",
         "with wires", "OpenSTA", "mW, fan-out", "with wires"),
        (
            (name, f"{r['wire_pf']:.2f}", f"{r['model_wire_pf']:.2f}", f"{r['model_error']:+.0%}",
             f"{r['wire_um_per_sink']:.1f}", f"{r['estimate_mhz']:.0f}", f"{r['layout_mhz']:.0f}",
             f"{1e6 / r['opensta_ps']:.0f}" if r["opensta_ps"] else "-",
             f"{r['estimate_mw']:.2f}", f"{r['layout_mw']:.2f}")
            for name, r in zip(named, results, strict=True)
        ),
    )  # fmt: skip
    yield (
        f"All wires together have {totals['wire_pf']:.1f} pF, the fan-out model {totals['model_wire_pf']:.1f} pF: an "
        f"error of {error:+.1%}. The wire load is the mean of {len(CALIBRATION)} of these layouts; in the "
        f"{len(others)} others the error is {tested:+.1%}. A single layout differs by up to "
        f"{max(abs(r['model_error']) for r in results):.0%}: small designs have shorter wires for each load, and "
        "arrays of flip-flops behind shared selects have longer wires than arithmetic."
    )


def seeds() -> Iterator[str]:
    """Results of the tests under the seeds of `build/seeds.txt`."""
    from tests.seeds import record

    yield (
        "`python -m tests.seeds` ran the tests that depend on the seed (`--seeded`) of the given folders once under "
        "each seed. A folder that is not in the table did not run."
    )
    tables: dict[str, list[list[str]]] = {}
    row: list[str] = []
    for line in record().read_text().splitlines():
        if re.match(r" *\d+  (passed|failed) ", line):
            seed, result, count, _, seconds, _, commit, tests = line.split(maxsplit=7)
            row = [seed, result, count, seconds, ""]
            tables.setdefault(f"## `{tests}` at commit `{commit}`", []).append(row)
        else:
            row[-1] += f"`{line.strip()}` "
    for title, rows in tables.items():
        yield title
        yield table(("seed", "result", "passed tests", "time (s)", "failed tests"), rows)


PAGES: dict[str, tuple[str, Callable[[], Iterator[str]]]] = {
    "cache-speed": ("Speed of the retrieval cache", cache_speed),
    "cycle-model": ("Error of the cycle model", cycle_model),
    "contexts": ("Cost of contexts", contexts),
    "kv-formats": ("Number formats of the KV cache", kv_formats),
    "layout": ("Layouts of the units", layout),
    "memory-models": ("Errors of the memory models", memory_models),
    "programs": ("Frames and tokens from programs", programs),
    "reproduction": ("Published figures and the model", reproduction),
    "seeds": ("Tests under several seeds", seeds),
    "streaming-memory": ("Memory of an hour of video", streaming_memory),
    "systems": ("All systems on V-Rex8", systems),
    "unit-areas": ("Areas of the units", unit_areas),
    "dre-area": ("Area and power of the retrieval engine", dre_area),
}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m docs.measure", description="Measure and write pages of docs/measurements."
    )
    parser.add_argument("name", nargs="+", choices=PAGES, help="page to measure")
    warnings.simplefilter("ignore", UnusedElaboratable)  # some units are built only to read their formulas
    revision = git_revision()  # before the first page changes the tree
    for name in parser.parse_args(argv).name:
        title, measure = PAGES[name]
        write(FOLDER / f"{name}.md", page(title, f"python -m docs.measure {name}", revision, measure()))


if __name__ == "__main__":
    main()
