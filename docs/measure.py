"""Generates pages of docs/measurements: each has the date, the commit and the command, and one or more tables.

    python -m docs.measure cycle-model reproduction streaming-memory unit-areas

A page is written by this module only, so that a measured number has one place. Texts refer to the page.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from amaranth.hdl import UnusedElaboratable

from util.files import git_revision, write

FOLDER = Path(__file__).resolve().parent / "measurements"
AREA_PRESETS = ("tiny", "small")
KILLED_MINUTE = 32  # of the stream of `streaming_memory`
# the core and the multi-core take many minutes
AREA_UNITS = ("dot_tree", "dma", "hcu", "kvmu", "kvpu", "wtu", "wtu_sweep", "dpe", "operand_memory", "vpe")


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def page(title: str, command: str, revision: str | None, parts: Iterable[str]) -> str:
    """A page with its origin below the title."""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    origin = f"Measured on {date} at commit `{revision}` with `{command}`. Do not edit this page: run the command."
    return "\n\n".join([f"# {title}", origin, *parts]) + "\n"


def cycle_model() -> Iterator[str]:
    """Cycles of decoder-layer steps: the model of `sw_model/cycles` compared with the simulated RTL."""
    from tests.sw_model.bench_cycles import CASES, compare

    errors: dict[str, list[float]] = {}
    for name, case in CASES.items():
        print(f"cycle-model: {name}", file=sys.stderr)
        errors[name] = [step["predicted"] / step["cycles"] - 1 for step in compare(case, seed=1)]
    groups = [(name, CASES[name].preset, each) for name, each in errors.items()]
    for preset in dict.fromkeys(case.preset for case in CASES.values()):
        together = [error for name, each in errors.items() if CASES[name].preset == preset for error in each]
        groups += [(f"all of {preset}", preset, together)]
    yield (
        "The error is (predicted cycles - simulated cycles) / simulated cycles of one step of a decoder layer. The "
        "mean is that of the absolute errors. `tests/sw_model/bench_cycles.py` defines the cases: kinds of memory, "
        "links, selection modes and sizes."
    )
    yield table(
        ("case", "preset", "steps", "mean error", "largest error"),
        (
            (name, preset, len(each), f"{sum(map(abs, each)) / len(each):.2%}", f"{max(each, key=abs):+.2%}")
            for name, preset, each in groups
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
        "link with the closed form of pcie-bench, the drives with 168 runs of MQSim (commit 7ec40e3). [The memory "
        "models](../../sw_model/memory/README.md) says what they contain. The data are in `tests/sw_model/memory/data`."
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


PAGES: dict[str, tuple[str, Callable[[], Iterator[str]]]] = {
    "cycle-model": ("Error of the cycle model", cycle_model),
    "memory-models": ("Errors of the memory models", memory_models),
    "reproduction": ("Published figures and the model", reproduction),
    "streaming-memory": ("Memory of an hour of video", streaming_memory),
    "unit-areas": ("Areas of the units", unit_areas),
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
