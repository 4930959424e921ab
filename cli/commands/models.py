"""Command that runs a model on the machine: frames and a question go in, an answer comes out."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.console import Console
from cli.options import POLICY, add_configuration, add_json, add_seed, command, configuration

if TYPE_CHECKING:
    from cli.model_session import Model, Report
    from compiler.model_spec import VisionSpec
    from compiler.runtime import Machine, Session
    from compiler.sampling import Sampling

BACKENDS = ("golden", "cycles", "rtl")
WEIGHTS = ("bf16", "mxfp4", "int4", "fp8")  # those of `compiler.runtime`, which takes time to import
PREFETCH = ("same_layer", "next_layer")  # as in `golden.resv`; NumPy is not imported before a command runs
UNFINISHED = "\ufffd"  # a token can end inside a character


def run(args: argparse.Namespace, console: Console) -> int:
    import numpy as np

    from cli.model_session import Model, Report, Simulation
    from compiler.policies import load_policy
    from compiler.runtime import Limits
    from compiler.window_session import WindowSession

    _check(args)
    videos: list[Path] = args.video or []
    several = max(1, len(videos))
    limits = Limits(
        streams=several, batch=several, tokens=args.tokens, step=args.step, resident=args.resident, memory=args.memory,
        height=args.height, width=args.width, pooled=args.pooled,
    )  # fmt: skip
    policy, sampling = load_policy(args.policy, options(args)), sampling_of(args)
    system = "" if args.backend == "golden" else args.system
    model = Model(args.model, configuration(args), limits, policy, system, cores=args.cores, weights=args.weights)
    pictures = None
    if videos:
        model.require_vision()
    if several > 1:
        return run_streams(args, model, sampling, console)
    if videos:
        pictures = frames(videos[0], args.fps, args.frames, policy.frames_per_step)
    machine = model.load(console.progress)
    if pictures is not None and machine.windows is not None:
        pictures = masked_frames(machine, videos[0], args.fps, args.frames)
    kind = WindowSession if machine.windows is not None else None
    session = machine.session(args.session if args.session and args.session.exists() else None, kind)
    simulation = Simulation(machine, model.system) if args.backend == "rtl" else None
    report = Report([session], model.clock, simulation)

    if args.prompt is not None or (pictures is not None and not session.position):
        tokens = model.tokenizer.encode(args.prompt or "", begin=not session.position)
        if tokens or args.prompt is not None:
            report.measure("prompt", lambda: session.prompt(tokens))
    vision = machine.spec.vision
    size = policy.frames_per_step
    count = -(-(args.frames or 0) // (size * (vision.temporal_patch if vision else 1)))
    for number, (group, seconds) in enumerate(groups(steps(pictures or (), args.fps, vision), size)):
        console.progress("frames", number, count)
        if not isinstance(session, WindowSession):
            report.measure("frame" if size == 1 else "frames", partial(session.frame_group, group, seconds))
            continue
        shown, masks = zip(*group[0], strict=True)
        time, kept = seconds[0] if seconds else None, np.logical_or.reduce(masks)
        report.measure("frame", partial(session.frame, *shown, seconds=time, kept=kept))
    answer: list[int] = []
    if args.ask is not None:
        answer = _answer(args, model, session, report, sampling, console)
    if not _equal_rtl(report, console):
        return 1
    if args.session:
        session.save(args.session)
    if args.json:
        print(json.dumps({"answer": model.tokenizer.decode(answer), "tokens": answer, **report.asdict()}, indent=2))
    else:
        print(report.as_text())
    return 0


def run_streams(args: argparse.Namespace, model: Model, sampling: Sampling | None, console: Console) -> int:
    """Several videos, each of which is a stream: a step takes a frame of each, and one token of each answer."""
    from itertools import zip_longest

    from cli.model_session import Report, Simulation
    from compiler import batch

    if not model.batches:
        raise ValueError(f"video must be one for policy {model.policy.name}, got {len(args.video)}")
    videos = [frames(video, args.fps, args.frames) for video in args.video]
    machine = model.load(console.progress)
    vision = machine.vision
    assert vision is not None
    sessions = [machine.session() for _ in videos]
    simulation = Simulation(machine, model.system) if args.backend == "rtl" else None
    report = Report(sessions, model.clock, simulation)
    start = model.tokenizer.encode(args.prompt or "", begin=True)
    if start or args.prompt is not None:
        report.measure("prompt", partial(batch.prompt, machine, sessions, [start] * len(sessions)))
    spec = machine.spec.vision
    count = -(-(args.frames or 0) // (spec.temporal_patch if spec else 1))
    streams = [steps(pictures, args.fps, spec) for pictures in videos]
    for number, round_of_frames in enumerate(zip_longest(*streams)):
        console.progress("frames", number, count)
        own = zip(sessions, round_of_frames, strict=True)
        requests = [batch.Frame(session, *frame) for session, frame in own if frame is not None]
        for at in range(0, len(requests), vision.frames):  # as many as one step can have
            report.measure("frames", partial(batch.serve, machine, requests[at : at + vision.frames]))
    answers: list[list[int]] = [[] for _ in sessions]
    if args.ask is not None:
        questions = [model.tokenizer.encode(args.ask, begin=not session.position) for session in sessions]
        asked = batch.ask(machine, sessions, questions, count=args.answer_tokens, sampling=sampling)
        for number, tokens in enumerate(report.tokens(asked)):
            console.progress("answers", number, args.answer_tokens)
            for answer, token in zip(answers, tokens, strict=True):
                answer += [token] * (token is not None)
    if not _equal_rtl(report, console):
        return 1
    texts = [model.tokenizer.decode(answer) for answer in answers]
    if args.json:
        of_streams = [
            {"video": str(video), "answer": text, "tokens": answer}
            for video, text, answer in zip(args.video, texts, answers, strict=True)
        ]
        print(json.dumps({"streams": of_streams, **report.asdict()}, indent=2))
        return 0
    for video, text in zip(args.video, texts, strict=True) if args.ask is not None else ():
        print(f"{video}: {text}")
    print(f"\n{report.as_text()}" if args.ask is not None else report.as_text())
    return 0


def _equal_rtl(report: Report, console: Console) -> bool:
    """Simulate the steps if the backend does so. False, with a message, if a bit differs from the golden machine."""
    from sim.bench.model_run import ModelMismatch

    console.close()
    try:
        report.check(console.progress)
    except ModelMismatch as error:
        console.close()
        print(f"vrex: the RTL differs from the golden machine: {error}", file=sys.stderr)
        return False
    console.close()
    return True


def _answer(
    args: argparse.Namespace,
    model: Model,
    session: Session,
    report: Report,
    sampling: Sampling | None,
    console: Console,
) -> list[int]:
    """Ask the question and print the text of the answer as it comes; returns its tokens."""
    question, most = model.tokenizer.encode(args.ask, begin=not session.position), session.machine.limits.tokens
    needed = session.position + len(question) + args.answer_tokens - 1
    if needed > most:
        raise ValueError(f"tokens must be at least {needed} for the question and its answer, got {most}")
    console.close()
    answer, printed = list[int](), ""
    for token in report.tokens(session.ask(question, count=args.answer_tokens, sampling=sampling)):
        answer.append(token)
        text = model.tokenizer.decode(answer)
        if not args.json and not text.endswith(UNFINISHED):
            print(text[len(printed) :], end="", flush=True)
            printed = text
    if not args.json:
        print("\n")
    return answer


def sampling_of(args: argparse.Namespace) -> Sampling | None:
    """Sampling of the answer; None without an option of it: the most probable tokens."""
    from compiler.sampling import Sampling

    values = {name: getattr(args, name) for name in ("temperature", "top_k", "top_p")}
    chosen = {name: value for name, value in values.items() if value is not None}
    return Sampling(**chosen, seed=args.seed) if chosen else None


def _check(args: argparse.Namespace) -> None:
    """ValueError if an option has an invalid value; before any file is read."""
    from hw.core.isa import MAX_CORES
    from util import checks

    if args.video is None and args.prompt is None and args.ask is None:
        raise ValueError("--video, --prompt or --ask is missing")
    for name in ("frames", "answer_tokens"):
        if getattr(args, name) is not None:
            checks.integer(name, getattr(args, name), 1)
    checks.integer("cores", args.cores, 1, MAX_CORES)
    for name in ("prompt", "ask"):
        if getattr(args, name) == "":
            raise ValueError(f"{name} must be a text, got ''")
    if args.session and len(args.video or ()) > 1:
        raise ValueError(f"video must be one with --session, got {len(args.video)}")
    if args.session and not args.session.parent.is_dir():
        raise ValueError(f"session must be in a folder that exists, got {str(args.session)!r}")


def options(args: argparse.Namespace) -> dict[str, object]:
    """Options of the policy: those of `--option`, and those of ReSV that have a name of their own."""
    chosen: dict[str, object] = {}
    for pair in args.option:
        name, separator, value = pair.partition("=")
        if not separator:
            raise ValueError(f"--option must be NAME=VALUE, got {pair!r}")
        try:
            chosen[name] = json.loads(value)
        except json.JSONDecodeError:
            chosen[name] = value
    defaults = {"ratio": 0.3, "hamming_threshold": 7, "prefetch": "same_layer"} if args.policy == POLICY else {}
    for name in ("ratio", "hamming_threshold", "prefetch"):
        value = getattr(args, name)
        if value is not None or name in defaults:
            chosen.setdefault(name, defaults.get(name) if value is None else value)
    return chosen


def frames(video: Path, fps: float, count: int | None, group: int = 1) -> Iterator[Any]:
    """Pictures of a video at a rate in frames per second, uint8 (height, width, 3); at most `count`, None: all.

    With a `group` above 1, processes decode pictures while the caller uses earlier groups of this size.

    Raises `VideoError` at once if the file cannot be opened, and from the iterator if the video is damaged.
    """
    from itertools import chain, islice

    from sw_model.media import quickcodec
    from sw_model.media.video import decode, sample

    if group > 1:
        return islice(chain.from_iterable(quickcodec.groups(video, group, fps=fps)), count)
    return (frame.rgb() for frame in islice(sample(decode(video), fps), count))


def groups(
    frames: Iterable[tuple[list[Any], float | None]], size: int
) -> Iterator[tuple[list[list[Any]], list[float] | None]]:
    """Groups of at most `size` frames: the pictures of each frame, and the times if the frames have times."""
    from itertools import islice

    left = iter(frames)
    while group := list(islice(left, size)):
        times = [seconds for _, seconds in group if seconds is not None]
        yield [pictures for pictures, _ in group], times or None


def masked_frames(machine: Machine, video: Path, fps: float, count: int | None) -> Iterator[Any]:
    """As `frames`, each picture with its groups of patches that moved, for a policy with windows.

    Every decoded frame counts, also those that are not sampled. ValueError if the tower crops the pictures.
    """
    from itertools import islice

    from compiler.policies import CodecSightPolicy
    from sw_model.media.masks import masked
    from sw_model.media.video import decode, probe, sample

    assert machine.vision is not None and machine.images is not None and isinstance(machine.policy, CodecSightPolicy)
    images, shape, info = machine.images, machine.vision.shape, probe(video)
    if images.crop and info.width * images.height != info.height * images.width:
        size = f"{info.width} x {info.height}"
        raise ValueError(f"video must have the aspect ratio of a tower that crops pictures, got {size}")
    rules = machine.policy.rules(shape.group)
    sizes = (info.width, info.height), (images.width, images.height)
    sampled = sample(masked(decode(video), rules, *sizes, images.patch), fps)
    return ((each.frame.rgb(), each.kept) for each in islice(sampled, count))


def steps(pictures: Iterable[Any], fps: float, vision: VisionSpec | None) -> Iterator[tuple[list[Any], float | None]]:
    """Pictures of every frame, as many as a patch of the tower has, and their time if the model has positions in time.

    The last picture is repeated where the video ends within a step.
    """
    from itertools import islice

    size, left, count = vision.temporal_patch if vision else 1, iter(pictures), 0
    timed = vision is not None and vision.tokens_per_second is not None
    while step := list(islice(left, size)):
        yield step + step[-1:] * (size - len(step)), count * size / fps if timed else None
        count += 1


def add(commands: Any) -> None:
    """Add this command to the command line."""
    parser = command(
        commands,
        "run",
        run,
        "run a Hugging Face checkpoint on the machine: video and question in, answer out",
    )
    parser.add_argument(
        "model", type=Path, metavar="MODEL", help="folder of a checkpoint (Llama, Qwen2, Qwen2.5-VL, LLaVA)"
    )
    parser.add_argument(
        "--video",
        type=Path,
        action="append",
        metavar="FILE",
        help="a video; a step takes one frame (Qwen2.5-VL: two), or a group of the policy. Repeatable: every video is "
        "a stream, and a step takes a frame of each",
    )
    parser.add_argument("--fps", type=float, default=1.0, help="sampling rate in frames per second (default 1)")
    parser.add_argument("--frames", type=int, metavar="N", help="largest number of pictures (default all)")
    for side, text in (("height", "rows"), ("width", "columns")):
        parser.add_argument(
            f"--{side}", type=int, default=0, metavar="PIXELS",
            help=f"{text} of a frame for the tower of Qwen2.5-VL (default those of 8 tokens)",
        )  # fmt: skip
    parser.add_argument(
        "--pooled", type=int, default=0, metavar="N",
        help="average the patches of a frame to N x N tokens before the projector of LLaVA (default no pooling)",
    )  # fmt: skip
    parser.add_argument("--prompt", metavar="TEXT", help="text before the video")
    parser.add_argument("--ask", metavar="TEXT", help="question after the video, as the model expects it")
    parser.add_argument("--answer-tokens", type=int, default=32, metavar="N", help="largest answer (default 32 tokens)")
    parser.add_argument(
        "--temperature",
        type=float,
        help="draw the answer at this temperature (default: most probable tokens)",
    )
    parser.add_argument("--top-k", type=int, metavar="N", help="draw from the N most probable tokens (default all)")
    parser.add_argument(
        "--top-p", type=float, metavar="SHARE", help="draw from the most probable tokens with this sum (default all)"
    )
    add_seed(parser, "sampling")
    parser.add_argument(
        "--policy", default=POLICY, metavar="NAME",
        help="past tokens that a layer attends to: resv, full, window, hybrid, rekv, quickprefill, codecsight, "
        f"mosaic, infinigen, infinigenp, oaken, or a Python file (default {POLICY})",
    )  # fmt: skip
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the policy; repeatable"
    )
    parser.add_argument("--ratio", type=float, help="resv: share of a row's score sum to select (default 0.3)")
    parser.add_argument(
        "--hamming-threshold", type=int, help="resv: a token joins a cluster below this distance (default 7)"
    )
    parser.add_argument(
        "--prefetch", choices=PREFETCH,
        help="layer for which the queries of a layer select; next_layer: the fetch overlaps with the rest of the layer "
        "(default same_layer)",
    )  # fmt: skip
    parser.add_argument("--tokens", type=int, default=0, metavar="N", help="tokens of a session (default 2048)")
    parser.add_argument(
        "--resident", type=int, default=0, metavar="N", help="tokens that stay in device memory (default all)"
    )
    parser.add_argument(
        "--step", type=int, default=0, metavar="N", help="tokens of the largest step (default those of a frame, or 64)"
    )
    parser.add_argument(
        "--memory", type=int, default=0, metavar="BYTES", help="device memory (default what the model needs)"
    )
    parser.add_argument(
        "--cores", type=int, default=1, metavar="N",
        help="cores that work on each step, 1 to 64; results have the same bits for any number (default 1)",
    )  # fmt: skip
    parser.add_argument(
        "--weights", choices=WEIGHTS, default=WEIGHTS[0],
        help="format in which the projections of the layers are stored; BF16 weights are rounded to the nearest, codes "
        "of AWQ and GPTQ remain as they are in int4, those of FP8 checkpoints in fp8 "
        f"(default {WEIGHTS[0]})",
    )  # fmt: skip
    parser.add_argument("--session", type=Path, metavar="FILE", help="resume this session if it exists, and save it")
    parser.add_argument(
        "--backend", choices=BACKENDS, default="golden",
        help="golden: bit-exact results; cycles: also the predicted time of every step; rtl: also the simulated core, "
        "which must give equal bits (default golden)",
    )  # fmt: skip
    parser.add_argument("--system", default="vrex8", help="system with the memory and link (default vrex8)")
    add_configuration(parser)
    add_json(parser, "answer and the steps")
