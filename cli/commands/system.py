"""Commands on the system model: runs, explanations, comparisons, sweeps."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cli.console import Console
from cli.options import (
    add_json,
    add_report,
    add_run,
    add_runs,
    add_source_options,
    chunks_with_progress,
    command,
    run_request,
    source,
)

WICS_RATIO = 0.3  # of a run in RTL
RTL_FRAMES = 8


def with_measured_ratio(request: Any, args: argparse.Namespace, console: Console) -> Any:
    """The request with the retrieval ratio that its policy has on the source."""
    from sw_model import quality

    stage = "text" if request.workload == "text" else "frame"
    if request.workload == "coin":
        raise ValueError("workload must be frame, text or stream with --source, got 'coin', which has two ratios")
    stream = source(args)
    (policy,) = quality.policies_for(stream.geometry, stream.tokens_per_frame, [request.policy]).values()
    ratios = quality.retrieved(chunks_with_progress(stream, console), policy)
    console.close()
    if stage not in ratios:
        raise ValueError(f"--source must have a {stage} step after the first chunk, got {args.source}")
    return request.replace(retrieval_ratio=ratios[stage])


def model_in_rtl(args: argparse.Namespace, console: Console) -> None:
    from cli import rtl
    from cli.pages import system
    from util.files import write_json
    from util.report import run_metadata, write

    frames = RTL_FRAMES if args.frames is None else args.frames
    options = {"frames": frames, "seed": args.seed, "wics_ratio": args.wics_ratio}
    result = rtl.run(args.rtl, args.system, **options, progress=console.progress)
    console.close()
    if args.trace:
        write_json(args.trace, result.trace_events())
    if args.out:
        write_json(args.out, result.json())
    if args.report:
        metadata = run_metadata({"preset": args.rtl, "system": args.system, **options})
        write(args.report, "Core in RTL", [system.rtl_section(result)], metadata)
    print(json.dumps(result.json(), indent=2) if args.json else result.as_text())


def model(args: argparse.Namespace, console: Console) -> None:
    from sw_model import perfetto, request
    from util.files import write_json

    if args.rtl:
        model_in_rtl(args, console)
        return
    run = run_request(args)
    if args.source:
        run = with_measured_ratio(run, args, console)
    result = run.run()
    if args.trace:
        write_json(args.trace, perfetto.trace_events(result))
    report = request.report(run, result)
    if args.out:
        write_json(args.out, report)
    if args.report:
        from cli.pages import system
        from sw_model import explain
        from util.report import run_metadata, write

        page = system.run_section(explain.explain(run, progress=console.progress))
        console.close()
        write(args.report, "System model", [page], run_metadata(run.json()))
    print(json.dumps(report, indent=2) if args.json else request.as_text(run, result))


def explain(args: argparse.Namespace, console: Console) -> None:
    from sw_model.explain import explain as explain_run
    from sw_model.request import recall

    run = recall(args.run_file, args.row) if args.run_file else run_request(args)
    result = explain_run(run, progress=console.progress)
    console.close()
    print(json.dumps(result.json(), indent=2) if args.json else f"{result.words()}\n\n{result.table()}")


def compare(args: argparse.Namespace, console: Console) -> None:
    from cli.pages import system
    from sw_model import compare as comparison
    from sw_model import quality
    from sw_model.policies import COMPARED
    from util.report import run_metadata, write

    base = run_request(args)
    names = args.policies or COMPARED
    stream = source(args) if args.source else None  # before the computation: an unreadable source fails early
    if args.systems:
        compare_systems(args, console, stream)
        return
    sides = comparison.compare(base, names, args.contexts or comparison.CONTEXTS, progress=console.progress)
    rows: list[Any] = []
    length = 0
    if stream:
        chunks = chunks_with_progress(stream, console)
        rows, length = comparison.measure(chunks, stream.geometry, stream.tokens_per_frame, names, args.every)
    console.close()
    if args.report:
        page = system.comparison_section(sides, rows, "text" if base.workload == "text" else "frame", length)
        write(args.report, "Comparison of policies", [page], run_metadata(base.json()))
    if args.json:
        result = {"sides": [asdict(side) for side in sides], "winners": comparison.winners(sides)}
        print(json.dumps(result | {"quality": [asdict(row) for row in rows]}, indent=2))
    else:
        print(comparison.as_text(sides) + (f"\n\n{quality.as_text(rows)}" if rows else ""))


def compare_systems(args: argparse.Namespace, console: Console, stream: Any) -> None:
    """Print the table of all systems of the papers on V-Rex8."""
    from sw_model import compare as comparison
    from sw_model.papers.programs import TABLE_CONTEXTS

    quality, length = list[Any](), 0
    if stream:
        chunks = chunks_with_progress(stream, console)
        names = comparison.measured_policies()
        quality, length = comparison.measure(chunks, stream.geometry, stream.tokens_per_frame, names, args.every)
    rows = comparison.system_table(quality, args.contexts or TABLE_CONTEXTS, progress=console.progress)
    console.close()
    if args.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "tokens of the stream": length}, indent=2))
        return
    of_quality = f"\nrecall and output error: frames of a stream of {length:,} tokens" if length else ""
    print(comparison.system_text(rows) + of_quality)


def reproduce(args: argparse.Namespace, console: Console) -> None:
    from cli.pages import system
    from sw_model.papers import claims
    from sw_model.papers.reproduce import reproduce as reproduce_figures
    from util.report import run_metadata, write

    result = reproduce_figures(*args.figure, link=args.link, progress=console.progress)
    claim_results = claims.evaluate(progress=console.progress) if args.claims else []
    console.close()
    if args.report:
        pages = [system.reproduction_section(result)]
        pages += [system.programs_section(result.programs)] if result.programs else []
        pages += [system.claims_section(claim_results)] if claim_results else []
        write(args.report, "Published figures", pages, run_metadata({"link": args.link}))
    if args.json:
        values = {item.claim.what: {"claimed": item.claim.value, **item.values} for item in claim_results}
        print(json.dumps(result.json() | ({"claims": values} if claim_results else {}), indent=2))
    else:
        print(result.as_text() + (f"\n\n{claims.as_text(claim_results)}" if claim_results else ""))


def sweep(args: argparse.Namespace, console: Console) -> None:
    from sw_model.sweep import load_sweep
    from sw_model.sweep import sweep as run_sweep

    plan = load_sweep(args.file)
    out = args.out or Path("build/sweeps") / f"{plan.name}.csv"
    table = run_sweep(plan, out, workers=args.workers, scheduler=args.scheduler, progress=console.progress)
    console.close()
    print(json.dumps(table, indent=2) if args.json else f"{out}: {len(table)} rows")


def add(commands: Any) -> None:
    """Add these commands to the command line."""
    add_model(commands)
    add_explain(commands)
    add_reproduce(commands)
    add_compare(commands)
    add_sweep(commands)


def add_model(commands: Any) -> None:
    parser = command(commands, "model", model, "model one run: latency by stage, bytes and energy")
    add_run(parser)
    parser.add_argument(
        "--source", help="measure the retrieval ratio on a trace (safetensors), a video, or the word `generator`"
    )
    add_source_options(parser)
    parser.add_argument(
        "--rtl",
        metavar="PRESET",
        help="simulate a layer in a core's RTL (tiny or small) with the system's memory timing, on --frames frames",
    )
    parser.add_argument(
        "--wics-ratio", type=float, default=WICS_RATIO, help="WiCSum ratio of the run in RTL (default 0.3)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result as JSON, which `vrex explain` reads")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a Chrome trace for ui.perfetto.dev")
    add_report(parser)


def add_explain(commands: Any) -> None:
    parser = command(commands, "explain", explain, "explain what limits a run, and which change would make it faster")
    parser.add_argument("run_file", nargs="?", type=Path, metavar="RUN", help="JSON of a run or a sweep")
    parser.add_argument("--row", type=int, default=0, help="row of a sweep (default 0)")
    add_run(parser)


def add_reproduce(commands: Any) -> None:
    parser = command(commands, "reproduce", reproduce, "compare published figures with this model")
    parser.add_argument("figure", nargs="*", help="names such as vrex.fig13, or their beginnings (default all)")
    parser.add_argument(
        "--link", default="paper", help="host link: paper (nominal rate) or realistic (packets, drive) (default paper)"
    )
    parser.add_argument("--claims", action="store_true", help="also evaluate V-Rex's claims with both links (a minute)")
    add_report(parser)
    add_json(parser, "table")


def add_compare(commands: Any) -> None:
    parser = command(commands, "compare", compare, "compare retrieval policies: latency, bytes, energy and quality")
    parser.add_argument(
        "--policies", nargs="+", metavar="POLICY", help="policies (default those of `sw_model.policies.COMPARED`)"
    )
    parser.add_argument(
        "--contexts", nargs="+", type=int, metavar="TOKENS", help="numbers of past tokens (default 1000 to 80000)"
    )
    parser.add_argument(
        "--systems", action="store_true",
        help="one table of all systems on V-Rex8: frame and token, bytes, energy; with --source also the quality",
    )  # fmt: skip
    add_runs(parser)
    parser.add_argument(
        "--source", help="also measure quality on a trace (safetensors), a video, or the word `generator`"
    )
    add_source_options(parser)
    add_report(parser)


def add_sweep(commands: Any) -> None:
    parser = command(
        commands, "sweep", sweep, "run many models from a TOML file; continue a sweep that was interrupted"
    )
    parser.add_argument("file", type=Path, help="TOML file: name, [fixed] values, [grid] lists of values")
    parser.add_argument("--out", type=Path, metavar="FILE", help=".csv or .parquet (default build/sweeps/NAME.csv)")
    parser.add_argument("--workers", type=int, metavar="N", help="local processes (default one per core)")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="use a Dask scheduler instead of local processes")
    add_json(parser, "rows")
