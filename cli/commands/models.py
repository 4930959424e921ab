"""Command that runs a model on the machine: frames and a question go in, an answer comes out."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.console import Console
from cli.options import add_configuration, add_json, command, configuration

if TYPE_CHECKING:
    from compiler.model_spec import VisionSpec

BACKENDS = ("golden", "cycles")


def run(args: argparse.Namespace, console: Console) -> None:
    from cli.model_session import Report, prepare, tokenizer
    from compiler.runtime import Limits, Retrieval

    encode, decode = tokenizer(args.model)
    limits = Limits(tokens=args.tokens, resident=args.resident)
    machine, clock = prepare(
        args.model, configuration(args), limits, Retrieval(args.ratio, args.hamming_threshold),
        system=args.system if args.backend == "cycles" else "", progress=console.progress,
    )  # fmt: skip
    session = machine.session(args.session if args.session and args.session.exists() else None)
    report = Report(session, clock)
    if args.prompt and not session.position:
        report.measure("prompt", lambda: session.prompt(encode(args.prompt)))
    for number, (pictures, seconds) in enumerate(steps(args, machine.spec.vision)):
        console.progress("frames", number, args.frames or 0)
        report.measure("frame", lambda all=pictures, at=seconds: session.frame(*all, seconds=at))  # type: ignore[misc]
    answer: list[int] = []
    if args.ask:
        tokens = session.ask(encode(args.ask), count=args.answer_tokens)
        console.close()
        for token in report.tokens(tokens):
            answer.append(token)
            if not args.json:
                text = decode(answer)
                print(text[len(decode(answer[:-1])) :], end="", flush=True)
    console.close()
    if args.session:
        session.save(args.session)
    if args.json:
        print(json.dumps({"answer": decode(answer), "tokens": answer, **report.asdict()}, indent=2))
    else:
        print(f"\n\n{report.as_text()}" if answer else report.as_text())


def frames(args: argparse.Namespace) -> Iterator[Any]:
    """Pictures of the video at the requested rate, uint8 (height, width, 3)."""
    if args.video is None:
        return
    from itertools import islice

    from sw_model.media.video import decode, sample

    for frame in islice(sample(decode(args.video), args.fps), args.frames or None):
        yield frame.rgb()


def steps(args: argparse.Namespace, vision: VisionSpec | None) -> Iterator[tuple[list[Any], float | None]]:
    """Pictures of every step, as many as a patch of the tower has, and their time if the model has positions in time.

    The last picture is repeated where the video ends within a step.
    """
    from itertools import islice

    size, pictures, count = vision.temporal_patch if vision else 1, frames(args), 0
    timed = vision is not None and vision.tokens_per_second is not None
    while step := list(islice(pictures, size)):
        yield step + step[-1:] * (size - len(step)), count * size / args.fps if timed else None
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
    parser.add_argument("--video", type=Path, metavar="FILE", help="a video; every frame is one step (Qwen2.5-VL: two)")
    parser.add_argument("--fps", type=float, default=1.0, help="sampling rate in frames per second (default 1)")
    parser.add_argument("--frames", type=int, default=0, metavar="N", help="largest number of frames (default all)")
    parser.add_argument("--prompt", metavar="TEXT", help="text before the video")
    parser.add_argument("--ask", metavar="TEXT", help="question after the video, as the model expects it")
    parser.add_argument("--answer-tokens", type=int, default=32, metavar="N", help="largest answer (default 32 tokens)")
    parser.add_argument("--ratio", type=float, default=0.3, help="share of a row's score sum to select (default 0.3)")
    parser.add_argument(
        "--hamming-threshold", type=int, default=7, help="a token joins a cluster below this distance (default 7)"
    )
    parser.add_argument("--tokens", type=int, default=0, metavar="N", help="tokens of a session (default 2048)")
    parser.add_argument(
        "--resident", type=int, default=0, metavar="N", help="tokens that stay in device memory (default all)"
    )
    parser.add_argument("--session", type=Path, metavar="FILE", help="resume this session if it exists, and save it")
    parser.add_argument(
        "--backend", choices=BACKENDS, default="golden",
        help="golden: bit-exact results; cycles: also the predicted time of every step (default golden)",
    )  # fmt: skip
    parser.add_argument("--system", default="vrex8", help="system with the memory and link (default vrex8)")
    add_configuration(parser)
    add_json(parser, "answer and the steps")
