"""vrex: the command line of the project. Arguments and progress only; the work is done by the packages."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

Progress = Callable[[str, int, int], None]
# the matrices here are small: a second BLAS thread waits more than it works (read once, when NumPy is imported)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


class Console:
    """Progress as a bar on a terminal and as plain lines elsewhere; results go to stdout, progress to stderr."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None
        self._what, self._shown = "", 0.0

    def progress(self, what: str, done: int, total: int) -> None:
        """`done` of `total` (0: not known) of the step `what`."""
        if self.terminal:
            self._draw(what, done, total)
        elif what != self._what or done == total or time.monotonic() - self._shown > 10:
            print(f"{what}: {done}" + (f" of {total}" if total else ""), file=sys.stderr, flush=True)
            self._what, self._shown = what, time.monotonic()

    def _draw(self, what: str, done: int, total: int) -> None:
        if self._bar is None or what != self._what:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self.close()
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
            from rich.console import Console as Rich

            self._bar = Progress(*columns, console=Rich(stderr=True))
            self._task = self._bar.add_task(what, total=total or None)
            self._what = what
            self._bar.start()
        self._bar.update(self._task, completed=done, total=total or None)

    def close(self) -> None:
        """End the bar; what it showed stays."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


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


def demo(args: argparse.Namespace, console: Console) -> None:
    from sw_model.demo import Options, run

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


def generate(args: argparse.Namespace, console: Console) -> None:
    from synth.generate import generate as write

    chosen, config = units(args.unit), configuration(args)
    made = []
    for index, unit in enumerate(chosen):
        console.progress("generate", index, len(chosen))
        made.append(write(unit.name, config, args.out / unit.name, clock_mhz=args.clock, tool=args.yosys))
    console.progress("generate", len(chosen), len(chosen))
    console.close()
    if args.json:
        print(json.dumps([one.json() for one in made], indent=2))
    for one in () if args.json else made:
        print(*(one.folder / name for name in one.files), sep="\n")


def stimuli(args: argparse.Namespace, component: Any) -> Iterator[Any]:
    """What `--power` names, for one unit: `idle`, `random`, or the keys of a source."""
    from sw_model.frontend.clip import find_clip
    from sw_model.frontend.source import first_keys
    from synth.stimulus import BEATS, IDLE, RANDOM, stimulus

    for name in args.power:
        source = find_clip().path if name == "video" else name
        keys = None if name in (IDLE, RANDOM) else first_keys(source, BEATS)
        yield stimulus(component, name, keys=keys)


def synth(args: argparse.Namespace, console: Console) -> None:
    import resource

    from synth import report
    from synth.area import area
    from synth.equivalence import prove
    from synth.library import choose
    from synth.power import compare, multiplied, part, powers_table
    from synth.table3 import UNITS, table3
    from synth.timing import timing

    started = time.perf_counter()
    chosen, config = units(args.unit or (list(UNITS) if args.table3 else [])), configuration(args)
    library, options = choose(args.liberty), {"point": args.point, "clock_mhz": args.clock, "tool": args.yosys}
    library.require(timing=True, power=bool(args.power))
    against = report.read(args.against) if args.against else None
    told, tables = [], []
    blocks: list[Any] = []
    for index, unit in enumerate(chosen):
        console.progress("synthesis", index, len(chosen))
        measured = part(unit.name, config)
        component = unit.build(measured)
        given = list(stimuli(args, component))  # a unit without a stimulus is told before it is mapped
        made = area(unit.name, config, library, **options)
        blocks += made.mapped.values()
        paths = timing(made, library)
        told.append({**made.json(), "timing": paths.json()})
        tables += [made.table(), paths.table()]
        if args.equiv:
            proved = prove(made, library, tool=args.yosys, progress=console.progress)
            told[-1]["equivalence"] = proved.json()
            tables.append(proved.table())
        if args.power:
            on = made if measured == config else area(unit.name, measured, library, **options)
            found = compare(on, library, component, given, clock_mhz=args.clock)
            powers = [multiplied(one, on, made) for one in found]
            told[-1]["power"] = [power.json() for power in powers]
            tables.append(powers_table(powers))
    console.progress("synthesis", len(chosen), len(chosen))
    console.close()
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
    kept = sum(block.kept for block in blocks)
    run = {"seconds": time.perf_counter() - started, "peak_mb": peak, "blocks": len(blocks), "blocks_kept": kept}
    whole = report.report(told, run)
    if args.table3 and (beside := table3(told)):
        tables = [beside.table()]
    tables.append(
        "{seconds:.0f} s, {peak_mb:.0f} MB at most; {blocks_kept} of {blocks} blocks from before".format(**run)
    )
    if against:
        tables.append(report.compare(against, whole).table())
    if args.out:
        tables.append(f"report: {report.write(args.out, whole, against)}")
    print(json.dumps(told, indent=2) if args.json else "\n\n".join(tables))


def board(args: argparse.Namespace, console: Console) -> None:
    from hw.registry import unit
    from sw_model.frontend.source import first_keys
    from synth.board import build, vectors
    from synth.stimulus import stimulus

    config = configuration(args)
    component = unit(args.unit).build(config)
    given = stimulus(component, "generator", keys=first_keys("generator", args.beats), beats=args.beats)
    folder = args.out or Path("build/board") / args.board
    told = vectors(component, given)
    made = build(args.board, args.unit, component, config, told, folder, tool=args.yosys, progress=console.progress)
    console.close()
    print(json.dumps(made.json(), indent=2) if args.json else made.table())


def decode(args: argparse.Namespace, console: Console) -> None:
    from sw_model.frontend import quickcodec

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
        progress=lambda done, total: console.progress("frames", done, total),
    )
    console.close()
    told = {"video": str(args.video), **saved.json(), "seconds": time.perf_counter() - started}
    if args.json:
        print(json.dumps(told, indent=2))
    else:
        print("{output}: {frames} frames of {width} x {height} in {seconds:.2f} s".format(**told))


def source(args: argparse.Namespace) -> Any:
    from sw_model.frontend.source import Options, open_source

    options = Options(**{name: getattr(args, name) for name in ("frames", "layers", "grid", "fps", "seed")})
    return open_source(args.source, options)


def watched(stream: Any, console: Console) -> Iterator[Any]:
    """The chunks of a source, counted on the console."""
    for done, chunk in enumerate(stream.chunks, start=1):
        yield chunk
        console.progress("chunks", done, stream.total)


def stats(args: argparse.Namespace, console: Console) -> None:
    from golden.clustering import ClusterRule
    from sw_model.frontend import statistics

    rule = ClusterRule(th_hd=args.th_hd)
    stream = source(args)
    switches = {"n_hp": args.n_hp, "rule": rule, "ratio": args.ratio, "every": args.every, "seed": args.seed}
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
    from sw_model.frontend.capture import capture as record
    from sw_model.frontend.trace import Trace

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


def requested(args: argparse.Namespace) -> Any:
    """The run that the options of `model` and `explain` ask for."""
    from sw_model.request import parse, synthesised_power, value_of

    names = ("system", "policy", "workload", "tokens", "batch", "link", "ratio", "memory_detail")
    powers = synthesised_power(args.power) if args.power else {}
    return parse({name: getattr(args, name) for name in names} | powers | dict(map(value_of, args.set)))


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
    from sw_model import rtl
    from sw_model.report import run_metadata, system, write
    from synth.files import write_json

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
    from synth.files import write_json

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
        from sw_model import explain
        from sw_model.report import run_metadata, system, write

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
    from sw_model import compare as rivals
    from sw_model import quality
    from sw_model.report import run_metadata, system, write

    base = requested(args)
    names = args.policies or rivals.RIVALS
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
    from sw_model import claims
    from sw_model.report import run_metadata, system, write
    from sw_model.reproduce import reproduce as compared

    told = compared(*args.figure, link=args.link, progress=console.progress)
    judged = claims.judge(progress=console.progress) if args.claims else []
    console.close()
    if args.report:
        pages = [system.reproduction_section(told)] + ([system.claims_section(judged)] if judged else [])
        write(args.report, "Published figures", pages, run_metadata({"link": args.link}))
    if args.json:
        values = {j.claim.what: {"claimed": j.claim.value, **j.values} for j in judged}
        print(json.dumps(told.json() | ({"claims": values} if judged else {}), indent=2))
    else:
        print(told.as_text() + (f"\n\n{claims.as_text(judged)}" if judged else ""))


def sweep(args: argparse.Namespace, console: Console) -> None:
    from sw_model.sweep import load_sweep
    from sw_model.sweep import sweep as swept

    plan = load_sweep(args.file)
    out = args.out or Path("build/sweeps") / f"{plan.name}.csv"
    table = swept(plan, out, workers=args.workers, scheduler=args.scheduler, progress=console.progress)
    console.close()
    print(json.dumps(table, indent=2) if args.json else f"{out}: {len(table)} rows")


def verify(args: argparse.Namespace, console: Console) -> int:
    import subprocess

    from sim.coverage import merge

    root = Path(__file__).resolve().parent
    files = []
    for unit in units(args.unit):
        *folders, name = unit.module.split(".")
        files.append(root.joinpath("tests", *folders, f"test_{name}.py"))
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(root), f"--seed={args.seed}"]
    command += [f"--sim={args.sim}"] if args.sim else []
    command += ["--waves"] if args.waves else []
    command += ["--gates"] if args.gates else []
    command += ["--coverage"] if args.coverage else []
    command += ["--heavy"] if args.heavy else []
    started = time.time()
    status = subprocess.run([*command, *dict.fromkeys(map(str, files))], cwd=root, check=False).returncode
    if args.waves:
        print("waveforms: build/sim/runs/*/dump.fst")
    if args.coverage and status == 0:
        runs = (root / "build" / "sim" / "runs").glob("*/coverage.dat")
        print(merge(file for file in runs if file.stat().st_mtime >= started).table())
    return 1 if status else 0


def formal(args: argparse.Namespace, console: Console) -> int:
    from sim.formal import FormalError, prove_unit

    told = []
    try:
        for unit in units(args.unit):
            for proof in prove_unit(unit.name, quick=args.quick, tool=args.yosys, progress=console.progress):
                console.close()
                told.append({**asdict(proof), "kind": proof.kind})
                if not args.json:
                    extent = proof.kind if proof.depth is None else f"first {proof.depth} cycles"
                    covers = ", ".join(f"{name} in cycle {cycle}" for name, cycle in proof.covers.items())
                    print(f"{proof.name}: {extent}, {proof.seconds:.1f} s\n    {proof.claim}\n    reached: {covers}")
    except FormalError as error:
        console.close()
        print(f"vrex: {error}", file=sys.stderr)
        return 1
    console.close()
    if args.json:
        print(json.dumps(told, indent=2))
    return 0


def add_configuration(command: argparse.ArgumentParser, preset: str = "paper") -> None:
    command.add_argument("--preset", default=preset, help=f"tiny, small or paper (default {preset})")
    command.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="change one parameter")


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


def add_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("--system", default="vrex8", help="vrex8, vrex48, agx-orin, a100 or a TOML file (vrex8)")
    command.add_argument("--policy", default="resv", help="retrieval policy, or a Python file with one (resv)")
    command.add_argument("--workload", default="frame", help="frame, text, coin or stream (frame)")
    command.add_argument("--tokens", type=int, default=40000, help="context length (default 40000)")
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


def picture_size(text: str) -> tuple[int, int]:
    """`WxH` as two numbers."""
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal()):
        raise argparse.ArgumentTypeError(f"must be WxH such as 320x240, got {text!r}")
    return int(width), int(height)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="vrex", description="Open RTL, golden models and system model of V-Rex.")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[..., int | None], help: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        made.set_defaults(run=run)
        return made

    one = command("demo", demo, "run the main job on a video: keys, clustering, RTL, area, system model, report")
    one.add_argument("--video", type=Path, metavar="FILE", help="a video (default: the best clip on this machine)")
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

    one = command("generate", generate, "write Verilog, JSON, constraints, file list and FuseSoC core of units")
    one.add_argument("unit", nargs="*", help="units (default all)")
    add_configuration(one)
    add_tool(one)
    one.add_argument("--clock", type=float, default=800.0, metavar="MHZ", help="target of the constraints (800)")
    one.add_argument("--out", type=Path, default=Path("build/generated"), metavar="FOLDER")
    one.add_argument("--json", action="store_true", help="descriptions as JSON on stdout")

    one = command("synth", synth, "area and timing of units: cells, um2, NAND2 equivalents, memory bits, fmax")
    one.add_argument("unit", nargs="*", help="units (default all)")
    add_configuration(one)
    add_tool(one)
    one.add_argument(
        "--liberty", type=Path, action="append", default=[], metavar="FILE", help="cell library (repeatable), or osu018"
    )
    one.add_argument("--point", default="balanced", help="area, balanced or fast (default balanced)")
    one.add_argument("--clock", type=float, default=800.0, metavar="MHZ", help="target clock (default 800)")
    one.add_argument(
        "--power",
        action="append",
        default=[],
        metavar="STIMULUS",
        help="power under idle, random, generator, video, or a video or trace FILE; repeatable",
    )
    one.add_argument("--table3", action="store_true", help="one core row by row beside V-Rex's Table III, nothing else")
    one.add_argument("--equiv", action="store_true", help="prove that the netlist is equivalent to the RTL")
    one.add_argument("--out", type=Path, metavar="FOLDER", help="the report as JSON and an HTML page")
    one.add_argument("--against", type=Path, metavar="FILE", help="JSON of an earlier report to compare with")
    one.add_argument("--json", action="store_true", help="reports as JSON on stdout")

    one = command("board", board, "bitstream for an FPGA board: the retrieval engine, a serial port, a self-test")
    one.add_argument("board", nargs="?", default="ulx3s", help="default ulx3s, with an ECP5-85F")
    one.add_argument("--unit", default="kvpu", help="kvpu (default: HCU, HC table, WTU and KVMU) or kvmu")
    add_configuration(one, "small")
    add_tool(one)
    one.add_argument("--beats", type=int, default=160, help="tokens of the generator in the vectors (default 160)")
    one.add_argument("--out", type=Path, metavar="FOLDER", help="default build/board/ and the board's name")
    one.add_argument("--json", action="store_true", help="the report as JSON on stdout")

    one = command("decode", decode, "decode a video on all cores, cut at its keyframes, into pictures or one array")
    one.add_argument("video", type=Path, metavar="FILE", help="a video")
    one.add_argument("--out", type=Path, metavar="PATH", help="default build/frames/ and the video's name")
    one.add_argument("--form", help="png (a folder), npy or raw (default by the suffix of PATH)")
    one.add_argument("--fps", type=float, help="frames per second to take (default every frame)")
    one.add_argument("--time", type=float, action="append", metavar="S", help="the frame at this second; repeatable")
    one.add_argument("--size", type=picture_size, metavar="WxH", help="scale the frames (default as coded)")
    one.add_argument("--workers", type=int, help="decoding processes (default one per core)")
    one.add_argument("--intervals", type=int, help="keyframe intervals to aim at (default 16 per process)")
    one.add_argument("--json", action="store_true", help="summary as JSON on stdout")

    one = command("stats", stats, "the statistics of a key stream that V-Rex reports, beside its numbers")
    add_source(one)
    one.add_argument("--n-hp", type=int, default=32, help="hash bits (default 32)")
    one.add_argument("--th-hd", type=int, default=7, help="Hamming threshold of a cluster (default 7)")
    one.add_argument("--ratio", type=float, default=0.3, help="of the weight that a row selects (default 0.3)")

    one = command("quality", quality, "attention under each retrieval policy beside full attention")
    add_source(one)
    one.add_argument("--policy", action="append", metavar="NAME", help="a policy or a .py file; repeatable (all)")
    one.add_argument("--budget-frames", type=int, metavar="N", help="frames that rekv, mosaic and codecsight keep")

    one = command("capture", capture, "queries, keys and values of a Hugging Face model, as a trace")
    one.add_argument("model", metavar="MODEL", help="folder of a checkpoint, or its name on the hub")
    one.add_argument("--out", type=Path, default=Path("build/trace.safetensors"), metavar="FILE")
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

    one = command("model", model, "one run of the system model: latency, stages, bytes, energy")
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

    one = command("explain", explain, "what bounds a run, and what would change it")
    one.add_argument("run_file", nargs="?", type=Path, metavar="RUN", help="JSON of a run or of a sweep (or options)")
    one.add_argument("--row", type=int, default=0, help="of a sweep (default 0)")
    add_run(one)

    one = command("reproduce", reproduce, "published figures beside the model's, with the residuals")
    one.add_argument("figure", nargs="*", help="identifiers such as vrex.fig13, or their beginnings (default all)")
    one.add_argument("--link", default="paper", help="paper (nominal rate) or realistic (packets, drive)")
    one.add_argument("--claims", action="store_true", help="V-Rex's claims under both links too (a minute)")
    add_report(one)
    one.add_argument("--json", action="store_true", help="the table as JSON on stdout")

    one = command(
        "compare", compare, "retrieval policies side by side: latency, bytes, energy, quality, who wins where"
    )
    one.add_argument("--policies", nargs="+", metavar="POLICY", help="default V-Rex's and its rivals")
    one.add_argument("--contexts", nargs="+", type=int, metavar="TOKENS", help="default 1000 to 80000")
    add_run(one)
    one.add_argument("--source", help="measure quality: a trace (safetensors), a video, or the word `generator`")
    add_source_options(one)
    add_report(one)

    one = command("sweep", sweep, "many runs, from a TOML file; killed sweeps go on where they were")
    one.add_argument("file", type=Path, help="name, [fixed] values, [grid] lists of values")
    one.add_argument("--out", type=Path, metavar="FILE", help=".csv or .parquet (default build/sweeps/NAME.csv)")
    one.add_argument("--workers", type=int, metavar="N", help="local processes (default one per core)")
    one.add_argument("--scheduler", metavar="ADDRESS", help="a Dask scheduler, instead of local processes")
    one.add_argument("--json", action="store_true", help="the rows as JSON on stdout")

    one = command("verify", verify, "run the cocotb tests of units against their golden models")
    one.add_argument("unit", nargs="*", help="units (default all)")
    one.add_argument("--sim", choices=("verilator", "icarus"), help="simulator (default verilator)")
    one.add_argument("--seed", type=int, default=1, help="seed of all stimulus (default 1)")
    one.add_argument("--waves", action="store_true", help="keep waveforms (FST)")
    one.add_argument("--gates", action="store_true", help="simulate mapped netlists instead of the RTL")
    one.add_argument("--coverage", action="store_true", help="line and toggle coverage (Verilator)")
    one.add_argument("--heavy", action="store_true", help="also the tests that take minutes")

    one = command("formal", formal, "prove what is claimed of units for all inputs")
    one.add_argument("unit", nargs="*", help="units (default all)")
    one.add_argument("--quick", action="store_true", help="without the proofs that take minutes")
    one.add_argument("--json", action="store_true", help="results on stdout as JSON")
    add_tool(one)
    return top


def stop_children() -> None:
    """Terminate every process this one started, however deep."""
    found = [os.getpid()]
    for pid in found:
        with contextlib.suppress(OSError):  # gone meanwhile
            if pid != os.getpid():
                os.kill(pid, signal.SIGSTOP)  # one that stands still starts no more
            for entry in Path(f"/proc/{pid}/task").glob("*/children"):
                found += map(int, entry.read_text().split())
    for number in (signal.SIGTERM, signal.SIGCONT):
        for pid in found[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def reason(error: BaseException) -> str:
    """One line that names the culprit."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"no space left on the device of {error.filename or os.environ.get('VREX_BUILD', 'build')}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    text = (str(error).splitlines() or [type(error).__name__])[0]
    for place in (Path(os.environ.get("VREX_BUILD", "build")), Path(os.environ.get("TMPDIR", "/tmp"))):
        if place.exists() and shutil.disk_usage(place).free < 1 << 20:
            return f"no space left on the device of {place} ({text})"
    return text


def main(argv: list[str] | None = None) -> int:
    """Run one command; bad input gives one line on stderr and status 2."""
    args = parser().parse_args(argv)
    from amaranth.hdl import UnusedElaboratable

    from hw.yosys import ToolError
    from sim.build import SimulatorError

    warnings.simplefilter("ignore", UnusedElaboratable)  # units are also built to read their formulas
    console = Console()

    def interrupt(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        return args.run(args, console) or 0
    except KeyboardInterrupt:
        console.close()
        stop_children()
        print("vrex: interrupted; nothing half-written was left", file=sys.stderr)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, ArithmeticError, OSError, ToolError, SimulatorError) as error:
        console.close()
        if args.debug:
            raise
        print(f"vrex: {reason(error)}", file=sys.stderr)
    finally:
        console.close()
    return 2


if __name__ == "__main__":
    sys.exit(main())
