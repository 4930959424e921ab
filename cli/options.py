"""Options that several commands share, and what they stand for."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cli.console import Console
from util.files import ROOT


def command(commands: Any, name: str, run: Callable[..., int | None], help: str) -> argparse.ArgumentParser:
    """A new command of `commands` that calls `run(args, console)`; its exit status is what that returns, or 0."""
    made = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + "." * (not help.endswith("?")))
    made.set_defaults(run=run)
    return made


def add_configuration(command: argparse.ArgumentParser, preset: str = "paper") -> None:
    command.add_argument("--preset", default=preset, help=f"tiny, small or paper (default {preset})")
    command.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="change a parameter of hw/config.py"
    )


def settings(pairs: list[str]) -> dict[str, int]:
    """`--set name=value` pairs as configuration changes."""
    changes = {}
    for pair in pairs:
        name, found, value = pair.partition("=")
        if not found:
            raise ValueError(f"--set {pair!r}: must be name=value")
        try:
            changes[name] = int(value, 0)
        except ValueError:
            raise ValueError(f"--set {name} = {value!r}: must be an integer") from None
    return changes


def configuration(args: argparse.Namespace) -> Any:
    from hw.config import Config

    return Config.preset(args.preset).replace(**settings(args.set))


def units(names: list[str]) -> list[Any]:
    from hw.registry import UNITS, unit

    return [unit(name) for name in names] or list(UNITS.values())


def require_source_tree(name: str) -> None:
    """Raise ValueError when the command `name` runs from an installed package: the tests are not part of it."""
    if not ((ROOT / "pyproject.toml").exists() and (ROOT / "tests").is_dir()):
        raise ValueError(f"{name} needs the source tree: clone the repository and run make setup")
    if importlib.util.find_spec("pytest") is None:
        raise ValueError(f"{name} needs pytest: run make setup")


def add_tool(command: argparse.ArgumentParser) -> None:
    command.add_argument("--yosys", default="yowasp", help="yosys build: yowasp or pyosys (default yowasp)")


def add_report(command: argparse.ArgumentParser) -> None:
    command.add_argument("--report", type=Path, metavar="FILE", help="a page with charts (HTML)")


def add_source(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", help="a trace (safetensors), a video, or the word `generator`")
    add_source_options(command)
    command.add_argument("--json", action="store_true", help="the table as JSON on stdout")


def add_source_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--frames", type=int, help="most frames to take (default all; generator 1000)")
    command.add_argument("--layers", type=int, default=1, help="decoder layers, except of a trace (default 1)")
    command.add_argument("--grid", type=int, default=3, help="video: cells per side of a frame (default 3)")
    command.add_argument("--fps", type=float, help="video: frames per second to take (default every frame)")
    command.add_argument("--seed", type=int, default=0, help="of weights, generator and hyperplanes (default 0)")
    command.add_argument("--every", type=int, default=1, metavar="N", help="retrieve on every Nth frame (default 1)")


def source(args: argparse.Namespace) -> Any:
    from sw_model.media.source import Options, open_source

    options = Options(**{name: getattr(args, name) for name in ("frames", "layers", "grid", "fps", "seed")})
    return open_source(args.source, options)


def watched(stream: Any, console: Console) -> Iterator[Any]:
    """The chunks of a source, counted on the console."""
    for done, chunk in enumerate(stream.chunks, start=1):
        yield chunk
        console.progress("chunks", done, stream.total)


def add_run(command: argparse.ArgumentParser) -> None:
    """What asks for one run."""
    command.add_argument(
        "--policy", default="resv", help="a policy of sw_model/policies, or a Python file with one (resv)"
    )
    command.add_argument("--tokens", type=int, default=40000, help="context length (default 40000)")
    add_runs(command)


def add_runs(command: argparse.ArgumentParser) -> None:
    """What one run and a comparison of many have in common."""
    command.add_argument("--system", default="vrex8", help="vrex8, vrex48, agx-orin, a100 or a TOML file (vrex8)")
    command.add_argument("--workload", default="frame", help="frame, text, coin or stream (frame)")
    command.add_argument("--batch", type=int, default=1, help="streams at once (default 1)")
    command.add_argument("--link", default="paper", help="paper (nominal rate) or realistic (packets, drive)")
    command.add_argument("--ratio", type=float, help="share of the context retrieved (default published)")
    command.add_argument("--memory-detail", action="store_true", help="replay the reads of KV bank by bank")
    command.add_argument(
        "--power",
        type=Path,
        metavar="FILE",
        help="units' power from JSON of `vrex synth --power` (default V-Rex Table III)",
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change a number of the system (link.nominal_gbps=8) or an assumption (assume.retained_hit=0)",
    )
    command.add_argument("--json", action="store_true", help="the result as JSON on stdout")


def requested(args: argparse.Namespace) -> Any:
    """The run that the options ask for."""
    from sw_model.request import parse, synthesised_power, value_of

    names = ("system", "policy", "workload", "tokens", "batch", "link", "ratio", "memory_detail")
    powers = synthesised_power(args.power) if args.power else {}
    given = {name: value for name, value in vars(args).items() if name in names}
    return parse(given | powers | dict(map(value_of, args.set)))
