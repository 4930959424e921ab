"""The demo: a video in golden clusters and in the RTL, a model on the core, area, system figures, one HTML report."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cli.demo import model, retrieval
from cli.demo.page import Results, sections
from cli.demo.steps import PICTURES, cluster_video, through_rtl
from hw import yosys
from hw.config import Config
from hw.dre.hcu import HCU
from sim.ports.hcu import cluster_rule
from sw_model.media import generator, statistics
from sw_model.media.clip import Clip, find_clip
from sw_model.papers.figures import fig13_frames
from synth.area import area
from synth.generate import generate
from util import checks
from util.files import write_all
from util.progress import Progress
from util.report import run_metadata, write

GENERATOR_FRAMES = 1000
GENERATOR_SEED = 901


@dataclass(frozen=True)
class Options:
    """Options of the demo. Every step checks the fields that it uses.

    video        a file; None: the best clip on this machine
    preset       hardware configuration of the simulated RTL
    layers       decoder layers
    grid         cells per side of a frame; every cell becomes a token, in addition to the class token
    fps, frames  sampling rate (None: every frame) and maximum number of frames (None: all)
    stall        probability of a pause per cycle at inputs and outputs of the RTL
    seed         seed of the weights of front end and model, the hyperplanes and the pauses
    model_frames, answer_tokens  frames of the video, and largest answer, of the model on the core
    """

    video: Path | None = None
    preset: str = "paper"
    layers: int = 4
    grid: int = 3
    fps: float | None = None
    frames: int | None = None
    stall: float = 0.3
    seed: int = 0
    model_frames: int = 3
    answer_tokens: int = 4
    simulator: str | None = None
    yosys: str = "yowasp"


def run(options: Options, folder: Path, *, progress: Progress) -> tuple[Path, Results]:
    """Run the demo. Report, Verilog and numbers as JSON go to `folder`.

    Raises
    ------
    ValueError
        For an invalid option (`VideoError` for the video).
    ArithmeticError
        When the RTL differs from the golden model.
    """
    config = Config.preset(options.preset)
    unit = HCU.from_config(config)
    threshold = round(7 * unit.hash_bits / 32)  # the paper has 7 for 32 bits
    rule = cluster_rule(unit, hamming_threshold=threshold, window_tokens=config.max_window_tokens)
    if not 0 <= options.stall < 1:
        raise ValueError(f"stall must be at least 0 and below 1, got {options.stall}")
    checks.integer("model_frames", options.model_frames, 1, PICTURES)
    checks.integer("answer_tokens", options.answer_tokens, 1, model.MAX_ANSWER)
    yosys.version(options.yosys)  # a missing tool raises its error before the long steps
    folder.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}

    @contextmanager
    def step(name: str) -> Iterator[None]:
        started = time.perf_counter()
        progress(name, 0, 0)
        yield
        seconds[name] = time.perf_counter() - started

    clip = (
        find_clip() if options.video is None else Clip(options.video, options.video.name, "file of the user", "unknown")
    )
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
    with step("model on the golden machine"):
        pictures = [picture.rgb for picture in video.pictures[: options.model_frames]]
        session = model.golden_session(
            pictures, answer_tokens=options.answer_tokens, seed=options.seed, progress=progress
        )
    with step("RTL of the core, build and run"):
        on_core = model.through_core(session, seed=options.seed)
    with step("Verilog"):
        generated = generate("hcu", config, folder / "hcu", tool=options.yosys)
    with step("synthesis"):
        areas = area("hcu", config, tool=options.yosys)
    with step("generator statistics"):
        chunks = generator.Generator(generator.coin(seed=GENERATOR_SEED)).chunks(GENERATOR_FRAMES, text_interval=100)
        measured = statistics.measure(chunks, cluster_text=False, every=50, warmup_tokens=2000)
    with step("retrieval quality"):
        tables = retrieval.compare(clip, grid=options.grid, fps=options.fps, frames=options.frames, seed=options.seed)
    with step("system model"):
        frames = {link: fig13_frames(link=link) for link in ("paper", "realistic")}
    results = Results(video, rtl, on_core, generated, areas, statistics.table(measured), tables, frames, seconds)
    metadata = run_metadata({**asdict(options), "hardware": config.asdict(), "rule": asdict(rule)})
    with step("report"):
        write_all(folder, {"demo.json": json.dumps(summary(results, metadata), indent=2, default=str) + "\n"})
        path = write(
            folder / "index.html", "V-Rex demo: from video to hardware", sections(results), metadata, subtitle=clip.name
        )
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
        "model": asdict(results.model),
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
