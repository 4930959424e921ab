"""Options that several commands share, and functions that evaluate them."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cli.console import Console
from util.files import ROOT

POLICY = "resv"  # default of `--policy`, as `sw_model.policies.DEFAULT`; NumPy is not imported before a command runs


def command(commands: Any, name: str, run: Callable[..., int | None], help: str) -> argparse.ArgumentParser:
    """Add a command that calls `run(args, console)`; the exit status is the returned number, or 0 for None."""
    parser = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
    parser.set_defaults(run=run)
    return parser


def add_units(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("unit", nargs="*", help="names in hw/registry.py, such as hcu (default all)")


def add_json(parser: argparse.ArgumentParser, result: str) -> None:
    parser.add_argument("--json", action="store_true", help=f"print the {result} as JSON on stdout")


def add_seed(parser: argparse.ArgumentParser, purpose: str, default: int = 0) -> None:
    parser.add_argument("--seed", type=int, default=default, help=f"seed of {purpose} (default {default})")


def add_configuration(parser: argparse.ArgumentParser, preset: str = "paper") -> None:
    parser.add_argument("--preset", default=preset, help=f"hardware sizes: tiny, small or paper (default {preset})")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change a parameter of hw/config.py; repeatable",
    )


def settings(pairs: list[str]) -> dict[str, int]:
    """The pairs `NAME=VALUE` of `--set` as a dictionary."""
    changes = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise ValueError(f"--set must be NAME=VALUE, got {pair!r}")
        try:
            changes[name] = int(value, 0)
        except ValueError:
            raise ValueError(f"--set {name} must be an integer, got {value!r}") from None
    return changes


def configuration(args: argparse.Namespace) -> Any:
    """The hardware configuration of `--preset` and `--set`."""
    from hw.config import Config

    return Config.preset(args.preset).replace(**settings(args.set))


def units(names: list[str]) -> list[Any]:
    """The units with these names; all units when there are none."""
    from hw.registry import UNITS, unit

    return [unit(name) for name in names] or list(UNITS.values())


def require_source_tree(name: str) -> None:
    """Raise ValueError when the command `name` runs from an installed package: the tests are not part of it."""
    if not ((ROOT / "pyproject.toml").exists() and (ROOT / "tests").is_dir()):
        raise ValueError(f"{name} needs the source tree: clone the repository and run make setup")
    if importlib.util.find_spec("pytest") is None:
        raise ValueError(f"{name} needs pytest: run make setup")


def add_yosys(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yosys", default="yowasp", help="build of yosys: yowasp or pyosys (default yowasp)")


def add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--report", type=Path, metavar="FILE", help="write an HTML page with charts")


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add the argument `source`, its options and `--json`."""
    parser.add_argument("source", help="a trace (safetensors), a video, or the word `generator`")
    add_source_options(parser)
    add_json(parser, "table")


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `source` reads."""
    parser.add_argument("--frames", type=int, help="maximum number of frames (default all; generator 1000)")
    parser.add_argument("--layers", type=int, default=1, help="decoder layers of a video or generator (default 1)")
    parser.add_argument("--grid", type=int, default=3, help="cells per side of a video frame, a token each (default 3)")
    parser.add_argument("--fps", type=float, help="sampling rate of a video in frames per second (default every frame)")
    add_seed(parser, "weights, generator and hyperplanes")
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="measure the retrieval on one of N frames (default 1)"
    )


def source(args: argparse.Namespace) -> Any:
    """The stream of keys that the options of `add_source_options` describe."""
    from sw_model.media.source import Options, open_source

    options = Options(**{name: getattr(args, name) for name in ("frames", "layers", "grid", "fps", "seed")})
    return open_source(args.source, options)


def chunks_with_progress(stream: Any, console: Console) -> Iterator[Any]:
    """The chunks of a stream; each one advances the progress bar."""
    for done, chunk in enumerate(stream.chunks, start=1):
        yield chunk
        console.progress("chunks", done, stream.total)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe one run."""
    parser.add_argument(
        "--policy", default=POLICY, help=f"a policy of sw_model/policies, or a Python file with one (default {POLICY})"
    )
    parser.add_argument("--tokens", type=int, default=40000, help="past tokens in the KV cache (default 40000)")
    add_runs(parser)


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add the options that one run and a comparison of several have in common."""
    parser.add_argument(
        "--system", default="vrex8", help="preset such as vrex8, vrex48-plus or a100, or a TOML file (default vrex8)"
    )
    parser.add_argument("--workload", default="frame", help="frame, text, coin or stream (default frame)")
    parser.add_argument("--batch", type=int, default=1, help="streams that are processed together (default 1)")
    parser.add_argument(
        "--link", default="paper", help="host link: paper (nominal rate) or realistic (packets, drive) (default paper)"
    )
    parser.add_argument(
        "--retrieval-ratio",
        type=float,
        metavar="SHARE",
        help="share of the past tokens that is retrieved, 0 to 1 (default the published one)",
    )
    parser.add_argument("--memory-detail", action="store_true", help="simulate the reads of the KV cache bank by bank")
    parser.add_argument(
        "--power",
        type=Path,
        metavar="FILE",
        help="power of the units from the JSON of `vrex synth --power` (default V-Rex Table III)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change a number of the system (link.nominal_gbps=8) or an assumption (assume.retained_hit=0); repeatable",
    )
    add_json(parser, "result")


def run_request(args: argparse.Namespace) -> Any:
    """The run that the options describe."""
    from sw_model.request import parse, synthesised_power, value_of

    names = ("system", "policy", "workload", "tokens", "batch", "link", "retrieval_ratio", "memory_detail")
    powers = synthesised_power(args.power) if args.power else {}
    values = {name: value for name, value in vars(args).items() if name in names}
    return parse(values | powers | dict(map(value_of, args.set)))
