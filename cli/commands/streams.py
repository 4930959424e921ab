"""Commands on videos and streams of keys: decoding, statistics, quality, capture."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cli.console import Console
from cli.options import add_json, add_seed, add_source, add_source_options, chunks_with_progress, command, source
from golden.kv_formats import NAMES as KV_FORMATS

MODEL_OPTIONS = (
    "prompt", "answer_tokens", "size", "frames", "device_tokens", "budget_frames", "random_weights", "seed",
)  # fmt: skip


def picture_size(text: str) -> tuple[int, int]:
    """Width and height from a text such as 320x240."""
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
    summary = {"video": str(args.video), **saved.json(), "seconds": time.perf_counter() - started}
    if args.json:
        print(json.dumps(summary, indent=2))
    else:
        print("{output}: {frames} frames of {width} x {height} in {seconds:.2f} s".format(**summary))


def stats(args: argparse.Namespace, console: Console) -> None:
    from golden.clustering import ClusterRule
    from sw_model.media import statistics

    rule = ClusterRule(hamming_threshold=args.hamming_threshold)
    stream = source(args)
    settings = {"hash_bits": args.hash_bits, "rule": rule, "wics_ratio": args.wics_ratio}
    settings |= {"every": args.every, "seed": args.seed}
    layers = statistics.measure(chunks_with_progress(stream, console), **settings)
    rows = statistics.table(layers)
    console.close()
    if args.json:
        tables = {"table": [asdict(row) for row in rows], "layers": [asdict(layer) for layer in layers]}
        print(json.dumps({"source": stream.about, **tables}, indent=2, default=str))
    else:
        print(statistics.as_text(rows))


def quality(args: argparse.Namespace, console: Console) -> None:
    from sw_model.policies import POLICIES
    from sw_model.quality import as_text, policies_for, quality_table

    if args.video is not None or args.questions is not None:
        if args.kv_format is not None:
            raise ValueError(f"kv_format must be absent with --video and --questions, got {args.kv_format!r}")
        compare_answers(args, console)
        return
    stream = source(args)
    policies = policies_for(stream.geometry, stream.tokens_per_frame, args.policy or POLICIES, args.budget_frames)
    chunks = chunks_with_progress(stream, console)
    rows = quality_table(chunks, policies, every=args.every, kv_format=args.kv_format)
    console.close()
    if args.json:
        print(json.dumps({"source": stream.about, "table": [asdict(row) for row in rows]}, indent=2, default=str))
    else:
        print(as_text(rows))


def compare_answers(args: argparse.Namespace, console: Console) -> None:
    """Compare answers of a model under each policy with those of its full cache."""
    for name in ("video", "questions"):
        if getattr(args, name) is None:
            raise ValueError(f"--{name} must be a file when MODEL answers questions about a video, got none")
    from sw_model.media.capture import libraries

    libraries()
    from sw_model.huggingface.quality import Comparison, Settings, as_text, plot
    from sw_model.policies import POLICIES
    from util import files

    settings = Settings(
        model=args.source, video=str(args.video), questions=str(args.questions), fps=args.fps or 2.0,
        **{name: getattr(args, name) for name in MODEL_OPTIONS},
    )  # fmt: skip
    comparison = Comparison(settings, args.out, device=args.device, progress=console.progress)
    rows = comparison.run(args.policy or POLICIES)
    console.close()
    results = [asdict(result) for row in rows for result in comparison.results(row.policy)]
    table = {"settings": asdict(settings), "table": [asdict(row) for row in rows], "results": results}
    files.write_all(args.out, {"quality.json": json.dumps(table, indent=2) + "\n", "quality.svg": plot(rows)})
    if args.json:
        print(json.dumps(table, indent=2))
        return
    print(as_text(rows))
    print(f"{args.out / 'quality.svg'}, {args.out / 'quality.json'} (with all answers)")


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
    summary = {
        "output": str(path),
        "chunks": len(trace),
        "tokens": trace.tokens,
        **trace.geometry.as_dict(),
        **trace.source,
    }
    if args.json:
        print(json.dumps(summary, indent=2))
    else:
        line = "{output}: {chunks} chunks, {tokens} tokens, {layers} layers, {q_heads} query and {kv_heads} KV heads"
        print(line.format(**summary))


def add(commands: Any) -> None:
    """Add these commands to the command line."""
    add_decode(commands)
    add_stats(commands)
    add_quality(commands)
    add_capture(commands)


def add_decode(commands: Any) -> None:
    parser = command(
        commands, "decode", decode, "decode a video on all cores, split at its keyframes, into pictures or one array"
    )
    parser.add_argument("video", type=Path, metavar="FILE", help="a video")
    parser.add_argument("--out", type=Path, metavar="PATH", help="output (default build/frames/NAME)")
    parser.add_argument("--form", help="png (a folder), npy or raw (default from the suffix of PATH)")
    parser.add_argument("--fps", type=float, help="sampling rate in frames per second (default every frame)")
    parser.add_argument(
        "--time", type=float, action="append", metavar="S", help="decode the frame at this second; repeatable"
    )
    parser.add_argument("--size", type=picture_size, metavar="WxH", help="scale the frames (default the coded size)")
    parser.add_argument("--workers", type=int, help="decoding processes (default one per core)")
    parser.add_argument("--intervals", type=int, help="target number of keyframe intervals (default 16 per process)")
    add_json(parser, "summary")


def add_stats(commands: Any) -> None:
    parser = command(commands, "stats", stats, "measure the statistics of keys that V-Rex reports, and compare them")
    add_source(parser)
    parser.add_argument("--hash-bits", type=int, default=32, help="bits of a hash code (default 32)")
    parser.add_argument(
        "--hamming-threshold", type=int, default=7, help="a token joins a cluster below this distance (default 7)"
    )
    parser.add_argument(
        "--wics-ratio", type=float, default=0.3, help="share of a row's score sum to select (default 0.3)"
    )


def add_quality(commands: Any) -> None:
    parser = command(
        commands,
        "quality",
        quality,
        "compare attention or answers under each retrieval policy with those of the full cache",
    )
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a trace (safetensors), a video, or the word `generator`: attention without a trained model; or, with "
        "--video and --questions, a vision-language model (folder of a checkpoint or name on the hub): its answers",
    )
    add_source_options(parser)
    add_json(parser, "table")
    parser.add_argument(
        "--policy", action="append", metavar="NAME", help="a policy or a Python file; repeatable (default all)"
    )
    parser.add_argument(
        "--budget-frames", type=int, metavar="N", help="frames to retrieve, for policies with a frame budget"
    )
    parser.add_argument(
        "--kv-format",
        metavar="NAME",
        help=f"number format of past keys and values: {', '.join(KV_FORMATS)} (default BF16)",
    )
    group = parser.add_argument_group("answers of a model", "Results are stored as they come; the command continues.")
    group.add_argument("--video", type=Path, metavar="FILE", help="video input of the model (2 frames per second)")
    group.add_argument(
        "--questions", type=Path, metavar="FILE", help="one question per line; before it, its time in seconds and a tab"
    )
    out = Path("build/quality")
    group.add_argument("--out", type=Path, default=out, metavar="FOLDER", help=f"results and plot (default {out})")
    group.add_argument("--prompt", default="", metavar="TEXT", help="text before the video (default none)")
    group.add_argument("--answer-tokens", type=int, default=32, help="maximum tokens of an answer (default 32)")
    group.add_argument("--size", type=int, default=224, help="pixels per side of a frame, Qwen2-VL only (default 224)")
    group.add_argument("--device", default="cpu", help="device of PyTorch (default cpu)")
    group.add_argument("--device-tokens", type=int, default=4096, help="newest tokens on the device (default 4096)")
    group.add_argument(
        "--random-weights", action="store_true", help="use random weights; the model needs only a config.json"
    )


def add_capture(commands: Any) -> None:
    parser = command(commands, "capture", capture, "record queries, keys and values of a Hugging Face model as a trace")
    parser.add_argument("model", metavar="MODEL", help="folder of a checkpoint, or its name on the hub")
    out = Path("build/trace.safetensors")
    parser.add_argument("--out", type=Path, default=out, metavar="FILE", help=f"output (default {out})")
    context = parser.add_mutually_exclusive_group(required=True)
    context.add_argument("--video", type=Path, metavar="FILE", help="video input of a vision-language model")
    context.add_argument("--prompt", help="text input of a language model")
    parser.add_argument("--question", help="text that follows the input")
    parser.add_argument("--block", type=int, default=10, help="prompt tokens per chunk (default 10)")
    parser.add_argument("--answer-tokens", type=int, default=8, help="tokens to generate (default 8)")
    parser.add_argument("--fps", type=float, default=2.0, help="sampling rate in frames per second (default 2)")
    parser.add_argument("--size", type=int, default=224, help="pixels per side of a frame (default 224)")
    parser.add_argument("--frames", type=int, help="maximum number of frames (default all)")
    parser.add_argument(
        "--random-weights", action="store_true", help="use random weights; MODEL needs only a config.json"
    )
    add_seed(parser, "the random weights")
    add_json(parser, "summary")
