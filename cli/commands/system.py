"""Commands on the system model: runs, explanations, comparisons, sweeps."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cli.console import Console
from cli.options import add_report, add_run, add_runs, add_source_options, command, requested, source, watched


def with_measured_ratio(asked: Any, args: argparse.Namespace, console: Console) -> Any:
    """The request with the share of the past that its policy retrieves on the source."""
    from sw_model import quality

    stage = "text" if asked.workload == "text" else "frame"
    if asked.workload == "coin":
        raise ValueError("--source goes with the workloads frame, text and stream: a session has two shares")
    stream = source(args)
    (policy,) = quality.policies_for(stream.geometry, stream.tokens_per_frame, [asked.policy]).values()
    shares = quality.retrieved(watched(stream, console), policy)
    console.close()
    if stage not in shares:
        raise ValueError(f"--source {args.source}: has no {stage} with a past")
    return asked.replace(ratio=shares[stage])


def model_in_rtl(args: argparse.Namespace, console: Console) -> None:
    from cli import rtl
    from cli.pages import system
    from util.files import write_json
    from util.report import run_metadata, write

    ratio = 0.3 if args.ratio is None else args.ratio
    steps = 8 if args.frames is None else args.frames
    told = rtl.run(args.rtl, args.system, steps=steps, seed=args.seed, ratio=ratio, progress=console.progress)
    console.close()
    if args.trace:
        write_json(args.trace, told.trace_events())
    if args.out:
        write_json(args.out, told.json())
    if args.report:
        about = {"preset": args.rtl, "system": args.system, "frames": steps, "seed": args.seed, "ratio": ratio}
        write(args.report, "Core in RTL", [system.rtl_section(told)], run_metadata(about))
    print(json.dumps(told.json(), indent=2) if args.json else told.as_text())


def model(args: argparse.Namespace, console: Console) -> None:
    from sw_model import perfetto, request
    from util.files import write_json

    if args.rtl:
        model_in_rtl(args, console)
        return
    asked = requested(args)
    if args.source:
        asked = with_measured_ratio(asked, args, console)
    result = asked.run()
    if args.trace:
        write_json(args.trace, perfetto.trace_events(result))
    told = request.report(asked, result)
    if args.out:
        write_json(args.out, told)
    if args.report:
        from cli.pages import system
        from sw_model import explain
        from util.report import run_metadata, write

        page = system.run_section(explain.explain(asked, progress=console.progress))
        console.close()
        write(args.report, "System model", [page], run_metadata(asked.json()))
    print(json.dumps(told, indent=2) if args.json else request.as_text(asked, result))


def explain(args: argparse.Namespace, console: Console) -> None:
    from sw_model.explain import explain as explained
    from sw_model.request import recall

    asked = recall(args.run_file, args.row) if args.run_file else requested(args)
    told = explained(asked, progress=console.progress)
    console.close()
    print(json.dumps(told.json(), indent=2) if args.json else f"{told.words()}\n\n{told.table()}")


def compare(args: argparse.Namespace, console: Console) -> None:
    from cli.pages import system
    from sw_model import compare as rivals
    from sw_model import quality
    from sw_model.policies import COMPARED
    from util.report import run_metadata, write

    base = requested(args)
    names = args.policies or COMPARED
    stream = source(args) if args.source else None  # what cannot be read is refused before anything is computed
    sides = rivals.compare(base, names, args.contexts or rivals.CONTEXTS, progress=console.progress)
    rows: list[Any] = []
    length = 0
    if stream:
        chunks = watched(stream, console)
        rows, length = rivals.measure(chunks, stream.geometry, stream.tokens_per_frame, names, args.every)
    console.close()
    if args.report:
        page = system.comparison_section(sides, rows, "text" if base.workload == "text" else "frame", length)
        write(args.report, "Policies side by side", [page], run_metadata(base.json()))
    if args.json:
        told = {"sides": [asdict(side) for side in sides], "winners": rivals.winners(sides)}
        print(json.dumps(told | {"quality": [asdict(row) for row in rows]}, indent=2))
    else:
        print(rivals.as_text(sides) + (f"\n\n{quality.as_text(rows)}" if rows else ""))


def reproduce(args: argparse.Namespace, console: Console) -> None:
    from cli.pages import system
    from sw_model.papers import claims
    from sw_model.papers.reproduce import reproduce as compared
    from util.report import run_metadata, write

    told = compared(*args.figure, link=args.link, progress=console.progress)
    results = claims.evaluate(progress=console.progress) if args.claims else []
    console.close()
    if args.report:
        pages = [system.reproduction_section(told)] + ([system.claims_section(results)] if results else [])
        write(args.report, "Published figures", pages, run_metadata({"link": args.link}))
    if args.json:
        values = {r.claim.what: {"claimed": r.claim.value, **r.values} for r in results}
        print(json.dumps(told.json() | ({"claims": values} if results else {}), indent=2))
    else:
        print(told.as_text() + (f"\n\n{claims.as_text(results)}" if results else ""))


def sweep(args: argparse.Namespace, console: Console) -> None:
    from sw_model.sweep import load_sweep
    from sw_model.sweep import sweep as swept

    plan = load_sweep(args.file)
    out = args.out or Path("build/sweeps") / f"{plan.name}.csv"
    table = swept(plan, out, workers=args.workers, scheduler=args.scheduler, progress=console.progress)
    console.close()
    print(json.dumps(table, indent=2) if args.json else f"{out}: {len(table)} rows")


def add(commands: Any) -> None:
    """Add these commands to the command line."""
    one = command(commands, "model", model, "one run of the system model: latency, stages, bytes, energy")
    add_run(one)
    one.add_argument("--source", help="measure the share retrieved on a trace (safetensors), a video, or `generator`")
    add_source_options(one)
    one.add_argument(
        "--rtl",
        metavar="PRESET",
        help="a layer in a core's RTL (tiny, small) behind the system's memories, on --frames frames, with --ratio",
    )
    one.add_argument("--out", type=Path, metavar="FILE", help="the result as JSON, which `vrex explain` reads")
    one.add_argument("--trace", type=Path, metavar="FILE", help="the schedule as a Chrome trace, for ui.perfetto.dev")
    add_report(one)

    one = command(commands, "explain", explain, "what bounds a run, and what would change it")
    one.add_argument("run_file", nargs="?", type=Path, metavar="RUN", help="JSON of a run or of a sweep (or options)")
    one.add_argument("--row", type=int, default=0, help="of a sweep (default 0)")
    add_run(one)

    one = command(commands, "reproduce", reproduce, "published figures beside the model's, with the residuals")
    one.add_argument("figure", nargs="*", help="identifiers such as vrex.fig13, or their beginnings (default all)")
    one.add_argument("--link", default="paper", help="paper (nominal rate) or realistic (packets, drive)")
    one.add_argument("--claims", action="store_true", help="V-Rex's claims under both links too (a minute)")
    add_report(one)
    one.add_argument("--json", action="store_true", help="the table as JSON on stdout")

    one = command(
        commands, "compare", compare, "retrieval policies side by side: latency, bytes, energy, quality, who wins where"
    )
    one.add_argument("--policies", nargs="+", metavar="POLICY", help="default: those of `sw_model.policies.COMPARED`")
    one.add_argument("--contexts", nargs="+", type=int, metavar="TOKENS", help="default 1000 to 80000")
    add_runs(one)
    one.add_argument("--source", help="measure quality: a trace (safetensors), a video, or the word `generator`")
    add_source_options(one)
    add_report(one)

    one = command(commands, "sweep", sweep, "many runs from a TOML file; a killed sweep continues from its journal")
    one.add_argument("file", type=Path, help="name, [fixed] values, [grid] lists of values")
    one.add_argument("--out", type=Path, metavar="FILE", help=".csv or .parquet (default build/sweeps/NAME.csv)")
    one.add_argument("--workers", type=int, metavar="N", help="local processes (default one per core)")
    one.add_argument("--scheduler", metavar="ADDRESS", help="a Dask scheduler, instead of local processes")
    one.add_argument("--json", action="store_true", help="the rows as JSON on stdout")
