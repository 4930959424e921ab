"""Commands on videos and key streams: decoding, statistics, quality, capture."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cli.console import Console
from cli.options import add_source, command, source, watched


def picture_size(text: str) -> tuple[int, int]:
    """`WxH` as two numbers."""
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal()):
        raise argparse.ArgumentTypeError(f"must be WxH such as 320x240, got {text!r}")
    return int(width), int(height)


def decode(args: argparse.Namespace, console: Console) -> None:
    from sw_model.media import quickcodec

    started = time.perf_counter()
    console.progress("packets", 0, 0)
    saved = quickcodec.save(
        args.video,
        args.out or Path("build/frames") / args.video.stem,
        form=args.form,
        fps=args.fps,
        times_s=args.time or None,
        size=args.size,
        workers=args.workers,
        intervals=args.intervals,
        progress=console.progress,
    )
    console.close()
    told = {"video": str(args.video), **saved.json(), "seconds": time.perf_counter() - started}
    if args.json:
        print(json.dumps(told, indent=2))
    else:
        print("{output}: {frames} frames of {width} x {height} in {seconds:.2f} s".format(**told))


def stats(args: argparse.Namespace, console: Console) -> None:
    from golden.clustering import ClusterRule
    from sw_model.media import statistics

    rule = ClusterRule(hamming_threshold=args.hamming_threshold)
    stream = source(args)
    switches = {"hash_bits": args.hash_bits, "rule": rule, "wics_ratio": args.wics_ratio}
    switches |= {"every": args.every, "seed": args.seed}
    layers = statistics.measure(watched(stream, console), **switches)
    rows = statistics.table(layers)
    console.close()
    if args.json:
        told = {"source": stream.about, "table": [asdict(row) for row in rows], "layers": [asdict(x) for x in layers]}
        print(json.dumps(told, indent=2, default=str))
    else:
        print(statistics.as_text(rows))


def quality(args: argparse.Namespace, console: Console) -> None:
    from sw_model.policies import POLICIES
    from sw_model.quality import as_text, policies_for, quality_table

    stream = source(args)
    policies = policies_for(stream.geometry, stream.tokens_per_frame, args.policy or POLICIES, args.budget_frames)
    rows = quality_table(watched(stream, console), policies, every=args.every)
    console.close()
    if args.json:
        print(json.dumps({"source": stream.about, "table": [asdict(row) for row in rows]}, indent=2, default=str))
    else:
        print(as_text(rows))


def capture(args: argparse.Namespace, console: Console) -> None:
    from sw_model.media.capture import capture as record
    from sw_model.media.trace import Trace

    names = ("prompt", "question", "block", "answer_tokens", "fps", "size", "random_weights", "seed")
    path = record(
        args.model,
        args.out,
        video_path=args.video,
        max_frames=args.frames,
        progress=console.progress,
        **{name: getattr(args, name) for name in names},
    )
    console.close()
    trace = Trace(path)
    told = {
        "output": str(path),
        "chunks": len(trace),
        "tokens": trace.tokens,
        **trace.geometry.as_dict(),
        **trace.source,
    }
    if args.json:
        print(json.dumps(told, indent=2))
    else:
        print(
            "{output}: {chunks} chunks, {tokens} tokens, {layers} layers, {q_heads} / {kv_heads} heads".format(**told)
        )


def add(commands: Any) -> None:
    """Add these commands to the command line."""
    one = command(
        commands, "decode", decode, "decode a video on all cores, cut at its keyframes, into pictures or one array"
    )
    one.add_argument("video", type=Path, metavar="FILE", help="a video")
    one.add_argument("--out", type=Path, metavar="PATH", help="default build/frames/ and the video's name")
    one.add_argument("--form", help="png (a folder), npy or raw (default by the suffix of PATH)")
    one.add_argument("--fps", type=float, help="frames per second to take (default every frame)")
    one.add_argument("--time", type=float, action="append", metavar="S", help="the frame at this second; repeatable")
    one.add_argument("--size", type=picture_size, metavar="WxH", help="scale the frames (default as coded)")
    one.add_argument("--workers", type=int, help="decoding processes (default one per core)")
    one.add_argument("--intervals", type=int, help="keyframe intervals to aim at (default 16 per process)")
    one.add_argument("--json", action="store_true", help="summary as JSON on stdout")

    one = command(commands, "stats", stats, "the statistics of a key stream that V-Rex reports, beside its numbers")
    add_source(one)
    one.add_argument("--hash-bits", type=int, default=32, help="hash bits (default 32)")
    one.add_argument("--hamming-threshold", type=int, default=7, help="Hamming threshold of a cluster (default 7)")
    one.add_argument("--wics-ratio", type=float, default=0.3, help="share of a row's score sum to select (default 0.3)")

    one = command(commands, "quality", quality, "attention under each retrieval policy beside full attention")
    add_source(one)
    one.add_argument("--policy", action="append", metavar="NAME", help="a policy or a .py file; repeatable (all)")
    one.add_argument(
        "--budget-frames", type=int, metavar="N", help="frames that a policy with a frame budget retrieves"
    )

    one = command(commands, "capture", capture, "queries, keys and values of a Hugging Face model, as a trace")
    one.add_argument("model", metavar="MODEL", help="folder of a checkpoint, or its name on the hub")
    out = Path("build/trace.safetensors")
    one.add_argument("--out", type=Path, default=out, metavar="FILE", help=f"the trace (default {out})")
    context = one.add_mutually_exclusive_group(required=True)
    context.add_argument("--video", type=Path, metavar="FILE", help="context of a vision-language model")
    context.add_argument("--prompt", help="context of a language model")
    one.add_argument("--question", help="asked after the context")
    one.add_argument("--block", type=int, default=10, help="prompt tokens per chunk (default 10)")
    one.add_argument("--answer-tokens", type=int, default=8, help="tokens to answer with (default 8)")
    one.add_argument("--fps", type=float, default=2.0, help="frames per second to take (default 2)")
    one.add_argument("--size", type=int, default=224, help="pixels per side of a frame (default 224)")
    one.add_argument("--frames", type=int, help="most frames to take (default all)")
    one.add_argument("--random-weights", action="store_true", help="draw the weights; MODEL needs a config.json only")
    one.add_argument("--seed", type=int, default=0, help="of the random weights (default 0)")
    one.add_argument("--json", action="store_true", help="summary as JSON on stdout")
