"""The command on many streams: latency over the number of streams, and capacity."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from cli.console import Console
from cli.options import POLICY, add_json, add_report, command

STREAMS = [1, 2, 4, 8, 16]
TOKENS, BATCH = 10_000, 16
GIVEN = ("fps", "seconds", "arrivals", "jitter", "trace", "questions_per_minute", "answer_tokens", "priority", "seed",
         "first_token_limit_ms", "per_token_limit_ms", "max_streams")  # fmt: skip


def requests_of(args: argparse.Namespace) -> list[Any]:
    """The simulations and the searches that the options describe, in the order of the tables."""
    from sw_model.request import parse, value_of

    given = {f"serve.{name}": value for name in GIVEN if (value := getattr(args, name)) is not None}
    fixed = {name: getattr(args, name) for name in ("tokens", "batch", "link", "retrieval_ratio")}
    fixed |= given | dict(map(value_of, args.set))
    runs = []
    for system in args.system:
        for policy in args.policy:
            for devices in args.devices:
                base = fixed | {"system": system, "policy": policy, "serve.devices": devices}
                limit = {"serve.limit_ms": args.capacity[-1]} if args.capacity else {}
                runs += [parse(base | limit | {"workload": "serve", "serve.streams": n}) for n in args.streams]
                runs += [parse(base | {"workload": "capacity", "serve.limit_ms": ms}) for ms in args.capacity]
    return runs


def checked_steps(requests: list[Any], steps: int) -> dict[str, float]:
    """Relative differences between `steps` steps of each simulation and the event model: count, mean and largest."""
    from sw_model.serving.check import differences
    from sw_model.serving.simulate import simulate

    values = []
    for request in requests:
        if request.workload == "serve":
            times = request.step_times()
            values += differences(simulate(request.serving(), times, request.tokens, request.batch), times, steps)
    return {"steps": len(values), "mean": sum(values) / max(1, len(values)), "largest": max(values, default=0.0)}


def serve_sim(args: argparse.Namespace, console: Console) -> None:
    from sw_model import sweep
    from sw_model.serving import table
    from util import checks

    checks.integer("check", args.check, 0)
    requests = requests_of(args)
    plan = sweep.Sweep("serve-sim", tuple(requests))
    if args.out:
        rows = sweep.sweep(plan, args.out, workers=args.workers, scheduler=args.scheduler, progress=console.progress)
    else:
        rows = []
        for new in sweep.executed(list(enumerate(requests)), args.workers or 1, args.scheduler):
            rows += new
            console.progress(plan.name, len(rows), len(requests))
        rows.sort(key=lambda row: row["run"])
    checked = checked_steps(requests, args.check) if args.check else None
    console.close()
    simulations = [row for row in rows if row["workload"] == "serve"]
    searches = [row for row in rows if row["workload"] == "capacity"]
    if args.report:
        from cli.pages import serving
        from util.report import run_metadata, write

        write(args.report, "Many streams", serving.sections(simulations, searches), run_metadata(vars_of(args)))
    if args.json:
        print(json.dumps({"rows": rows} | ({"check": checked} if checked else {}), indent=2))
        return
    tables = [table.latencies(simulations)] * bool(simulations) + [table.capacities(searches)] * bool(searches)
    if checked:
        values = f"mean {checked['mean']:.2%}, largest {checked['largest']:.2%}"
        tables.append(f"difference from the event model in {checked['steps']} steps: {values}")
    print("\n\n".join(tables))


def vars_of(args: argparse.Namespace) -> dict[str, Any]:
    """The options that describe the simulations, for the metadata of a report."""
    names = ("system", "policy", "devices", "streams", "capacity", "tokens", "batch", "link", "set", *GIVEN)
    values = {name: getattr(args, name) for name in names}
    return {
        name: " ".join(map(str, v)) if isinstance(v, list) else v for name, v in values.items() if v not in (None, [])
    }


def add(commands: Any) -> None:
    """Add the command to the command line."""
    parser = command(
        commands, "serve-sim", serve_sim, "simulate many video streams: latency, refused frames, capacity of devices"
    )
    parser.add_argument("--system", nargs="+", default=["vrex8"], help="systems, as in `vrex model` (default vrex8)")
    parser.add_argument(
        "--policy", nargs="+", default=[POLICY], help=f"policies, as in `vrex model` (default {POLICY})"
    )
    parser.add_argument("--devices", nargs="+", type=int, default=[1], help="numbers of devices (default 1)")
    parser.add_argument(
        "--streams", nargs="*", type=int, default=STREAMS, help="numbers of streams (default 1 2 4 8 16)"
    )
    parser.add_argument(
        "--capacity", nargs="+", type=float, default=[], metavar="MS",
        help="also search the largest number of streams whose p99 frame latency is within these limits",
    )  # fmt: skip
    parser.add_argument("--tokens", type=int, default=TOKENS, help="past tokens of every stream at the start "
                        f"(default {TOKENS})")  # fmt: skip
    parser.add_argument("--batch", type=int, default=BATCH, help=f"largest batch of a step (default {BATCH})")
    add_arrivals(parser)
    parser.add_argument("--link", default="paper", help="host link: paper or realistic (default paper)")
    parser.add_argument("--retrieval-ratio", type=float, metavar="SHARE", help="share of the past tokens, 0 to 1")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="change serve.NAME, assume.NAME or a number of the system (link.nominal_gbps=8); repeatable",
    )  # fmt: skip
    parser.add_argument("--check", type=int, default=0, metavar="N", help="compare N steps of each run with the event "
                        "model")  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="FILE", help="write .csv or .parquet; an interrupted run continues")
    parser.add_argument("--workers", type=int, metavar="N", help="local processes (default 1; one per core with --out)")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="use a Dask scheduler instead of local processes")
    add_report(parser)
    add_json(parser, "rows")


def add_arrivals(parser: argparse.ArgumentParser) -> None:
    """Add the options of arrivals and limits; one that is not given keeps the default of `Serving`."""
    for name, kind, help in (
        ("fps", float, "frames per second of a camera (default 2)"),
        ("seconds", float, "time in which requests arrive (default 60)"),
        ("arrivals", str, "periodic or poisson (default periodic)"),
        ("jitter", float, "delay of a periodic frame, up to this share of a period (default 0.1)"),
        ("trace", str, "CSV file of arrivals: time_s,stream,kind,answer_tokens"),
        ("questions-per-minute", float, "mean rate of questions of a stream (default 1)"),
        ("answer-tokens", int, "mean tokens of an answer (default 39)"),
        ("priority", str, "kind of the next step: oldest request, frames or answers first (default oldest)"),
        ("first-token-limit-ms", float, "limit of the time to first token in a search (default none)"),
        ("per-token-limit-ms", float, "limit of the time per output token in a search (default none)"),
        ("max-streams", int, "largest number of streams in a search (default 1024)"),
        ("seed", int, "seed of the arrivals (default 0)"),
    ):
        parser.add_argument(f"--{name}", type=kind, help=help)
