"""The main job: real video -> keys -> golden clustering -> the same tokens through the RTL -> Verilog and area ->
system model beside the paper -> one HTML report."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cli.demo import retrieval
from cli.demo.page import Results, sections
from cli.demo.steps import cluster_video, through_rtl
from hw import yosys
from hw.config import Config
from hw.dre.hcu import HCU
from sim.ports import cluster_rule
from sw_model.media import generator, statistics
from sw_model.media.clip import Clip, find_clip
from sw_model.papers.figures import fig13_frames
from synth.area import area
from synth.generate import generate
from util.files import write_all
from util.progress import Progress
from util.report import run_metadata, write

GENERATOR_FRAMES = 1000
GENERATOR_SEED = 901


@dataclass(frozen=True)
class Options:
    """What the main job runs on; every field is validated by the step that uses it.

    video        a file; None: the best clip on this machine
    preset       hardware configuration of the RTL that runs
    layers, grid decoder layers; cells per side of a frame that become tokens, beside its class token
    fps, frames  sampling rate (None: every frame) and most frames (None: all)
    stall        probability of a pause per cycle on both sides of the RTL
    seed         of the front end's weights, the hyperplanes and the pauses
    """

    video: Path | None = None
    preset: str = "paper"
    layers: int = 4
    grid: int = 3
    fps: float | None = None
    frames: int | None = None
    stall: float = 0.3
    seed: int = 0
    simulator: str | None = None
    yosys: str = "yowasp"


def run(options: Options, folder: Path, *, progress: Progress) -> tuple[Path, Results]:
    """Do the whole job; the report, the Verilog and the numbers as JSON go to `folder`.

    Raises
    ------
    ValueError
        Bad input, named in one line (a `VideoError` for the video).
    ArithmeticError
        The RTL differs from the golden model.
    """
    config = Config.preset(options.preset)
    unit = HCU.from_config(config)
    threshold = round(7 * unit.hash_bits / 32)  # the paper's 7 of 32 bits, in proportion
    rule = cluster_rule(unit, hamming_threshold=threshold, window_tokens=config.max_window_tokens)
    if not 0 <= options.stall < 1:
        raise ValueError(f"stall = {options.stall}: must be at least 0 and below 1")
    yosys.version(options.yosys)  # a tool that is missing is said now, not after minutes
    folder.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}

    @contextmanager
    def step(name: str) -> Iterator[None]:
        started = time.perf_counter()
        progress(name, 0, 0)
        yield
        seconds[name] = time.perf_counter() - started

    clip = find_clip() if options.video is None else Clip(options.video, options.video.name, "given by the user", "–")
    with step("decode, keys and golden clustering"):
        video = cluster_video(
            clip,
            hash_bits=config.hash_bits,
            layers=options.layers,
            grid=options.grid,
            fps=options.fps,
            max_frames=options.frames,
            rule=rule,
            seed=options.seed,
            progress=progress,
        )
    with step("RTL simulation, build and run"):
        rtl = through_rtl(video, unit, rule, stall=options.stall, seed=options.seed, simulator=options.simulator)
    with step("Verilog"):
        generated = generate("hcu", config, folder / "hcu", tool=options.yosys)
    with step("synthesis"):
        areas = area("hcu", config, tool=options.yosys)
    with step("generator statistics"):
        chunks = generator.Generator(generator.coin(seed=GENERATOR_SEED)).chunks(GENERATOR_FRAMES, text_every=100)
        measured = statistics.measure(chunks, cluster_text=False, every=50, after_tokens=2000)
    with step("retrieval quality"):
        tables = retrieval.compare(clip, grid=options.grid, fps=options.fps, frames=options.frames, seed=options.seed)
    with step("system model"):
        frames = {link: fig13_frames(link=link) for link in ("paper", "realistic")}
    results = Results(video, rtl, generated, areas, statistics.table(measured), tables, frames, seconds)
    metadata = run_metadata({**asdict(options), "hardware": config.asdict(), "rule": asdict(rule)})
    with step("report"):
        write_all(folder, {"demo.json": json.dumps(summary(results, metadata), indent=2, default=str) + "\n"})
        path = write(folder / "index.html", "V-Rex: video to silicon", sections(results), metadata, subtitle=clip.name)
    return path, results


def summary(results: Results, metadata: dict[str, Any]) -> dict[str, Any]:
    """The numbers of the report as JSON values."""
    video, rtl = results.video, results.rtl
    return {
        **metadata,
        "video": {
            "path": str(video.clip.path),
            "codec": video.info.codec,
            "size": [video.info.width, video.info.height],
            "frames": video.frames,
            "tokens_per_layer": video.tokens,
            "clusters": [len(layer.table) for layer in video.layers],
        },
        "rtl": {
            "tokens": rtl.tokens,
            "mismatches": rtl.mismatches,
            "busy_cycles": rtl.busy_cycles,
            "formula_cycles": rtl.formula_cycles,
        },
        "area": results.area.json(),
        "generator": [asdict(row) for row in results.generator],
        "retrieval": {name: [asdict(row) for row in rows] for name, rows in results.retrieval.items()},
        "frames": {
            link: [
                {"system": r.system, "kv_tokens": r.kv_tokens, "model_ms": r.model_ms, "paper_ms": r.paper_ms}
                for r in rows
            ]
            for link, rows in results.frames.items()
        },
        "seconds": results.seconds,
    }
