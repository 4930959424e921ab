"""Generates pages of docs/measurements: each has the date, the commit and the command, and one or more tables.

    python -m docs.measure cache-speed cycle-model dre-area kv-formats layout plus programs
    python -m docs.measure reproduction seeds systems unit-areas weight-formats

A page is written by this module only, so that a measured number has one place. Texts refer to the page.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from amaranth.hdl import UnusedElaboratable

from docs.markdown import FOLDER, table
from docs.plus_pages import plus
from docs.program_pages import programs, systems
from docs.silicon_pages import dre_area, layout, unit_areas
from docs.table3_page import table3_page
from docs.weight_pages import weight_formats
from util.files import git_revision, write

GPU_RECORD = FOLDER / "cache-gpu.txt"
KILLED_MINUTE = 32  # of the stream of `streaming_memory`


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
    without_refresh = [error for name, each in errors.items() if "no refresh" in name for error in each]
    yield (
        "The error is (predicted cycles - simulated cycles) / simulated cycles of one step of a decoder layer. The "
        "mean is that of the absolute errors. `tests/sw_model/bench_cycles.py` defines the cases: kinds of memory, "
        "links, selection modes and sizes. The cycles of the simulation are those that "
        "`python -m tests.sw_model.bench_cycles --record` has stored."
    )
    yield (
        "Why some steps of `budget`, `pieces`, `4 bits`, `8 bits` and of several streams have errors above 3 %: LPDDR5 "
        "refreshes all banks for 224 of every 3,125 cycles. A step that ends near the start of a refresh waits for it "
        "in the simulation or in the model only. A case with `no refresh` is otherwise equal to the one of its name; "
        f"the largest error of all of them is {max(without_refresh, key=abs):+.2%}."
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
    from sw_model.systems import load_system, memory_model

    system = load_system("vrex8")
    memory, clock = memory_model(system.memory), system.core.clock_mhz if system.core else 0.0
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
    from sw_model.assumptions import Assumptions
    from sw_model.papers import vrex
    from sw_model.papers.programs import Point, formula_cost
    from sw_model.papers.reproduce import brief, reproduce
    from sw_model.systems import load_system

    result = reproduce()
    selected, every = (formula_cost(Point("vrex8", "frame", 40_000, policy)).link_bytes for policy in ("resv", "full"))
    link_ms = selected / load_system("vrex8").link.nominal_gbps / 1e6
    case = vrex.Case(Assumptions(), "paper")
    batch, step, crowd = 4, case.frame("vrex8", "resv", 40_000, 4), case.frame("vrex8", "resv", 1_000, 16)
    tera = (step.stage_flops["weights"] + step.stage_flops["attention"]) / 2e12 / (batch * link_ms / 1e3)
    busy_ms = crowd.flops / load_system("vrex8").peak_tflops / 1e9
    gpu_ms = vrex.fig15(case)[0]["AGX"] * crowd.total_s * 1e3
    wait_ms = {name: crowd.stages[name].exposed_s * 1e3 for name in ("vision", "activations")}
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
    yield (
        "What bounds figures that are outside:\n\n"
        "- Frames after 40,000 tokens: with the printed share of retrieved tokens, 32.7 %, a frame moves "
        f"{selected / 1e9:.2f} GB over the link, which takes {link_ms:.0f} ms at the printed 4 GB/s; V-Rex prints 254 "
        f"ms for the frame. All keys and values are {every / 1e9:.2f} GB. If both systems use their link at the same "
        f"rate, no speedup over one that fetches all can exceed {every / selected:.1f}. V-Rex prints 7.3, 13.8, 19.7 "
        "and 8.1 (`vrex.fig13.speedup_*`, `vrex.fig16`), and energies that follow from them.\n"
        "- Frames after 1,000 tokens: the paper's AGX Orin takes 2.2 times 121 ms, three and a half times the time of "
        "its weights at the peak rate of its memory. The model has no assumption that makes it so slow.\n"
        "- Text on V-Rex48: the paper's 14 ms are 1.8 times the time of all bytes at the peak rate; the programs need "
        "10 ms. The printed speedup follows from it.\n"
        "- `vrex.power_delta`: the paper's own 35 and 40 W give 12.5 %, it prints 11.4 %.\n"
        "- `vrex.fig18`: the same link. A step of four streams after 40,000 tokens takes at least "
        f"{batch * link_ms:,.0f} ms, so that the decoder computes at most {tera:.2f} tera multiply-accumulates a "
        "second; V-Rex prints 0.715, and a gain of 10.8, which exceeds 4.9.\n"
        "- `vrex.fig14.e2e`: a session is a sum of frames and tokens. V-Rex prints 7.3 for frames and 15.1 for tokens "
        "after 40,000 tokens, so that no sum of them gains less than 7.3; it prints 5.4.\n"
        "- `vrex.fig15`: 16 streams do not suit this machine. Each core loads all activations, and the vision tower is "
        f"computed frame by frame: {wait_ms['activations']:.0f} and {wait_ms['vision']:.0f} of "
        f"{crowd.total_s * 1e3:.0f} ms. With all multipliers busy it would need {busy_ms:.0f} ms, where AGX Orin needs "
        f"{gpu_ms:.0f} in the model, a ratio of {gpu_ms / busy_ms:.1f}.\n"
        "- `qv.decode` and `qv.dur`: the model's cores do not slow each other down. torchcodec measured 2.6 to 4.0 for "
        "the same two methods on 16 processors; the model has 2.9, QuickVideo prints 2. On 32 cores it prints 3, the "
        "model has 5.4: the printed speedups need cores that decode at 0.69 and 0.55 of their speed alone. No "
        "measurement on so many cores is at hand, and the model has no factors that are fitted to the figures."
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
    yield (
        "## On a GPU\n\n"
        "Recorded on 2026-11-27 on one NVIDIA H200 with PyTorch 2.11 and 16 processor cores: `python -m "
        "tests.sw_model.huggingface.bench_decoder --device cuda --dtype bfloat16`, the last two with `--decoder "
        f"llama3-8b`, with 10,000 and 40,000 tokens. `{GPU_RECORD.name}` has the output."
    )
    yield f"```text\n{GPU_RECORD.read_text()}```"
    yield (
        "The retrieval cache bounds the memory of keys and values on the GPU; it makes no step faster here. A step of "
        "one token with the full cache takes 59 to 81 ms, whatever the size of the decoder: the processor, which "
        "starts the operations one by one, sets the pace. The selection adds operations and copies to each layer."
    )


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


def kv_formats() -> Iterator[str]:
    """Error of attention with keys and values in each number format, under every policy."""
    from cli.demo.retrieval import BUDGET_FRAMES, EVERY, FRAMES, TRACE
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
    sources: dict[str, Path | str] = {"generator": GENERATOR, "clip": clip.path, "captured trace": TRACE}
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
        f"{clip.name} ({clip.origin}); its keys come from a front end with random weights. The captured trace has the "
        "queries, keys and values of a Qwen2.5-VL model with two layers and random weights (`vrex capture`), with "
        "heads of 16 elements. The row `bf16` is the error of the policy alone. The policy `oaken` stores its own 4 "
        "bits and does not use the format. Bits are nominal, for heads of 64 elements or more; those of Oaken depend "
        "on the data. Definitions: `golden/kv_formats.py`."
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


def quickvideo() -> Iterator[str]:
    """Overlap of decoding and prefill with QuickPrefill on the host."""
    from tests.sw_model.bench_quickvideo import GROUP, LARGE, REPEATS, RUNS

    yield (
        "A session of QuickPrefill on a video: FFmpeg decodes in processes of its own (`sw_model.media.quickcodec`) "
        f"while the session prefills groups of {GROUP} frames. The golden machine executes the programs of a tiny "
        "LLaVA model with random weights in software, so that it competes with the decoding processes for the "
        f"{os.cpu_count()} cores of this host. Wall seconds, the smallest of {RUNS} runs. The last column divides the "
        "time of both by the larger part: 1.00 is complete overlap. The second clip is the first one, enlarged to "
        f"{LARGE[0]} x {LARGE[1]} and repeated {REPEATS} times. The start of a process and its scan of the packets "
        "overlap with nothing."
    )
    # decoding processes import the main module: one without a file costs no time
    work = "from tests.sw_model.bench_quickvideo import cases; cases()"
    done = subprocess.run([sys.executable, "-c", work], check=True, stdout=subprocess.PIPE, text=True)
    rows = []
    for each in map(json.loads, done.stdout.splitlines()):
        decode_s, prefill_s = each["decode_s"], each["prefill_s"]
        times = (decode_s, prefill_s, decode_s + prefill_s, each["both_s"], each["ratio"])
        rows.append((each["clip"], each["frames"], each["workers"], *(f"{value:.2f}" for value in times)))
    yield table(
        ("clip", "frames", "processes", "decode (s)", "prefill (s)", "sum (s)", "both (s)", "both / larger part"), rows
    )


def seeds() -> Iterator[str]:
    """Results of the tests under the seeds of `build/seeds.txt`."""
    from tests.seeds import record

    yield (
        "`python -m tests.seeds` ran the tests that depend on the seed (`--seeded`) of the folders in the titles "
        "once under each seed. Other folders did not run."
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
    "plus": ("Four bits and whole memory", plus),
    "programs": ("Frames and tokens from programs", programs),
    "quickvideo": ("Overlap of decoding and prefill", quickvideo),
    "reproduction": ("Published figures and the model", reproduction),
    "seeds": ("Tests under several seeds", seeds),
    "streaming-memory": ("Memory of an hour of video", streaming_memory),
    "systems": ("All systems on V-Rex8", systems),
    "table3": ("One core and V-Rex's Table III", table3_page),
    "unit-areas": ("Areas of the units", unit_areas),
    "weight-formats": ("Number formats of stored weights", weight_formats),
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
