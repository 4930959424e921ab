"""Commands on units: Verilog, area, timing and power, layouts, bitstreams."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cli.console import Console
from cli.options import (
    add_configuration,
    add_json,
    add_seed,
    add_units,
    add_yosys,
    command,
    configuration,
    units,
)


def generate(args: argparse.Namespace, console: Console) -> None:
    from synth.generate import generate as generate_unit

    chosen, config = units(args.unit), configuration(args)
    results = []
    for index, unit in enumerate(chosen):
        console.progress("generate", index, len(chosen))
        folder = args.out / unit.name
        results.append(generate_unit(unit.name, config, folder, clock_mhz=args.clock_mhz, tool=args.yosys))
    console.progress("generate", len(chosen), len(chosen))
    console.close()
    if args.json:
        print(json.dumps([result.json() for result in results], indent=2))
    else:
        for result in results:
            print(*(result.folder / name for name in result.files), sep="\n")


def stimuli(args: argparse.Namespace, component: Any) -> Iterator[Any]:
    """The stimuli of `--power` for one unit: `idle`, `random`, or the keys of a source."""
    from sw_model.media.clip import find_clip
    from sw_model.media.source import first_keys
    from synth.power.stimulus import BEATS, IDLE, RANDOM, stimulus

    for name in args.power:
        source = find_clip().path if name == "video" else name
        keys = None if name in (IDLE, RANDOM) else first_keys(source, BEATS)
        yield stimulus(component, name, keys=keys)


def prove_and_keep(args: argparse.Namespace, areas: Any, library: Any, result: dict[str, Any], console: Console) -> Any:
    """Prove that a netlist equals its RTL; write the record of evidence, also of a failure, which is raised."""
    from cli.signoff.evidence import of_equivalence
    from cli.signoff.records import in_source_tree, save
    from synth.equivalence import EquivalenceError, prove

    words = ["vrex synth", areas.unit, f"--preset {args.preset}", *(f"--set {pair}" for pair in args.set), "--equiv"]
    line = " ".join(words)
    try:
        proof = prove(areas, library, tool=args.yosys, progress=console.progress)
    except EquivalenceError as error:
        if in_source_tree():
            save(of_equivalence(areas.unit, None, str(error), command=line))
        raise
    if in_source_tree():
        save(of_equivalence(areas.unit, {**result, "equivalence": proof.json()}, None, command=line))
    return proof


def synth(args: argparse.Namespace, console: Console) -> None:
    from synth import report
    from synth.area import area
    from synth.library.reader import choose
    from synth.power.power import compare, powers_table, reduced_config, scaled
    from synth.table3 import UNITS, by_stimulus, table3
    from synth.timing.static_timing import timing

    started = time.perf_counter()
    chosen, config = units(args.unit or (list(UNITS) if args.table3 else [])), configuration(args)
    library = choose(args.liberty)
    options = {"point": args.point, "clock_mhz": args.clock_mhz, "tool": args.yosys}
    options |= {} if args.clock_gating is None else {"gated": args.clock_gating}
    library.require(timing=True, power=bool(args.power))
    against = report.read(args.against) if args.against else None
    results: list[dict[str, Any]] = []
    blocks: list[Any] = []
    tables: list[str] = []
    for index, unit in enumerate(chosen):
        console.progress("synthesis", index, len(chosen))
        power_config = reduced_config(unit.name, config)  # power of a large array is measured on a part of it
        component = unit.build(power_config)
        unit_stimuli = list(stimuli(args, component))  # before the mapping: a unit without a stimulus fails early
        areas = area(unit.name, config, library, **options)
        blocks += areas.mapped.values()
        paths = timing(areas, library, uncertainty_ps=args.clock_uncertainty)
        result = {**areas.json(), "timing": paths.json()}
        tables += [areas.table(), paths.table()]
        if args.equiv:
            proof = prove_and_keep(args, areas, library, result, console)
            result["equivalence"] = proof.json()
            tables.append(proof.table())
        if args.power:
            power_areas = areas if power_config == config else area(unit.name, power_config, library, **options)
            measured = compare(power_areas, library, component, unit_stimuli, clock_mhz=args.clock_mhz)
            powers = [scaled(power, power_areas, areas) for power in measured]
            result["power"] = [power.json() for power in powers]
            tables.append(powers_table(powers))
        results.append(result)
    console.progress("synthesis", len(chosen), len(chosen))
    console.close()
    run = {
        "seconds": time.perf_counter() - started,
        "peak_mb": peak_memory_mb(),
        "blocks": len(blocks),
        "blocks_kept": sum(block.from_cache for block in blocks),
    }
    full = report.report(results, run)
    comparison = table3(results) if args.table3 else None
    if comparison:
        tables = [comparison.table()]
    tables.append(
        "{seconds:.0f} s, peak memory {peak_mb:.0f} MB; {blocks_kept} of {blocks} blocks from the cache".format(**run)
    )
    if against:
        tables.append(report.compare(against, full).table())
    if args.out:
        tables.append(f"report: {report.write(args.out, full, against)}")
    if args.json and comparison:
        by_name = {name: each.powers() for name, each in by_stimulus(results).items()}
        print(json.dumps({**comparison.json(), "power_by_stimulus": by_name}, indent=2))
    else:
        print(json.dumps(results, indent=2) if args.json else "\n\n".join(tables))


def peak_memory_mb() -> float:
    """Peak memory of this process or of one of its children, whichever is larger."""
    processes = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(process).ru_maxrss for process in processes) / 1024


def board(args: argparse.Namespace, console: Console) -> None:
    from hw.registry import unit
    from sw_model.media.source import first_keys
    from synth.board import build, vectors
    from synth.core_session import CORE_CLOCK_MHZ, random_session, self_test
    from synth.power.stimulus import stimulus
    from util import checks

    config = configuration(args)
    host_vectors, clock_mhz = None, args.clock_mhz
    if args.unit == "core":
        if args.preset != "tiny":
            raise ValueError(f"preset must be tiny for unit core, got {args.preset!r}")
        clock_mhz = CORE_CLOCK_MHZ if clock_mhz is None else clock_mhz
        recorded = random_session(config, args.seed)
        component: Any = recorded.system()
        test_vectors, host_vectors = self_test(component), recorded.vectors()
    else:
        checks.integer("beats", args.beats, 1)
        component = unit(args.unit).build(config)
        beats = stimulus(component, "generator", keys=first_keys("generator", args.beats), beats=args.beats)
        test_vectors = vectors(component, beats)
    result = build(
        args.board,
        args.unit,
        component,
        config,
        test_vectors,
        args.out or Path("build/board") / args.board,
        host_vectors=host_vectors,
        clock_mhz=clock_mhz,
        dense=args.unit == "core",
        tool=args.yosys,
        progress=console.progress,
    )
    console.close()
    print(json.dumps(result.json(), indent=2) if args.json else result.table())


def layout(args: argparse.Namespace, console: Console) -> int:
    from hw.registry import unit
    from synth.layout import flow, report
    from synth.power.activity import measure

    config, registered = configuration(args), unit(args.unit)
    activity = flow.guess
    if args.power:
        if args.module:
            raise ValueError(
                f"--power must be without --module, because the stimuli are those of units, got {args.power}"
            )
        component = registered.build(config)
        args.power = [args.power]
        (stimulus,) = stimuli(args, component)

        def activity(circuit: Any) -> Any:
            return measure(circuit, component, stimulus)

    result = flow.layout(
        args.unit,
        config,
        module=args.module,
        utilisation=args.utilisation,
        clock_mhz=args.clock_mhz,
        tool=args.yosys,
        seconds=60 * args.timeout_minutes,
        activity=activity,
        progress=console.progress,
    )
    console.close()
    words = ["vrex layout", args.unit, f"--preset {args.preset}", *(f"--set {pair}" for pair in args.set)]
    line = " ".join([*words, *([f"--module {args.module}"] if args.module else [])])
    page = report.write(args.out or Path("build/layout") / result.area.unit, result, line)
    keep_layout(args, result, line)
    print(json.dumps(result.json(), indent=2) if args.json else f"{result.table()}\n\nreport: {page}")
    if not result.connectivity.clean:
        print(f"vrex: layout of {result.area.unit} has errors: {result.connectivity.errors()}", file=sys.stderr)
    return 0 if result.connectivity.clean else 1


def keep_layout(args: argparse.Namespace, result: Any, line: str) -> None:
    """Write the record of evidence of the layout of a whole unit."""
    from cli.signoff.evidence import of_layout
    from cli.signoff.records import in_source_tree, save

    if in_source_tree() and not args.module:
        save(of_layout(args.unit, result.json(), result.connectivity.errors(), command=line))


def add(commands: Any) -> None:
    """Add these commands to the command line."""
    add_generate(commands)
    add_synth(commands)
    add_layout(commands)
    add_board(commands)


def add_clock(parser: argparse.ArgumentParser, meaning: str, default: float = 800.0) -> None:
    text = f"{meaning} (default {default:g})"
    parser.add_argument("--clock-mhz", type=float, default=default, metavar="MHZ", help=text)


def add_generate(commands: Any) -> None:
    parser = command(
        commands, "generate", generate, "write Verilog, JSON, constraints, file list and FuseSoC core of units"
    )
    add_units(parser)
    add_configuration(parser)
    add_yosys(parser)
    add_clock(parser, "clock frequency of the constraints")
    out = Path("build/generated")
    parser.add_argument("--out", type=Path, default=out, metavar="FOLDER", help=f"output folder (default {out})")
    add_json(parser, "descriptions of the units")


def add_synth(commands: Any) -> None:
    parser = command(
        commands, "synth", synth, "measure units: cells, um2, NAND2 equivalents, memory bits, clock frequency, power"
    )
    add_units(parser)
    add_configuration(parser)
    add_yosys(parser)
    parser.add_argument(
        "--liberty",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="cell library, or the word osu018; repeatable (default the embedded 14 nm-class library)",
    )
    parser.add_argument("--point", default="balanced", help="mapping: area, balanced or fast (default balanced)")
    add_clock(parser, "target clock frequency")
    parser.add_argument(
        "--clock-uncertainty",
        type=float,
        default=0.0,
        metavar="PS",
        help="part of each period for skew and jitter of the clock (default 0)",
    )
    parser.add_argument(
        "--clock-gating",
        type=int,
        metavar="N",
        help="clock gates for enables of at least N registers, if the library has such cells; 0: none (default 4)",
    )
    parser.add_argument(
        "--power",
        action="append",
        default=[],
        metavar="STIMULUS",
        help="also measure power: idle, random, generator, video, or a video or trace FILE; repeatable",
    )
    parser.add_argument(
        "--table3", action="store_true", help="print only the comparison of one core with V-Rex's Table III"
    )
    parser.add_argument("--equiv", action="store_true", help="prove that the netlist is equivalent to the RTL")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write the report as JSON and as an HTML page")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with the JSON of an earlier report")
    add_json(parser, "reports")


def add_layout(commands: Any) -> None:
    parser = command(
        commands,
        "layout",
        layout,
        "place and route a unit in osu018: GDSII, picture, wires, timing and power with these wires",
    )
    parser.add_argument("unit", help="name in hw/registry.py, such as dot_tree")
    parser.add_argument("--module", metavar="NAME", help="only this module of the unit's Verilog (default all)")
    add_configuration(parser, "tiny")
    add_yosys(parser)
    add_clock(parser, "clock frequency for which the mapping sizes cells, and of the power", 100.0)
    parser.add_argument(
        "--utilisation",
        type=float,
        default=0.8,
        metavar="SHARE",
        help="share of the rows that cells fill (default 0.8)",
    )
    parser.add_argument(
        "--timeout-minutes", type=float, default=60.0, metavar="N", help="limit of placer and of router (default 60)"
    )
    parser.add_argument(
        "--power",
        metavar="STIMULUS",
        help="stimulus of the power: idle, random, generator, video, or a FILE (default 0.1 toggles per net and cycle)",
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="output folder (default build/layout/UNIT)")
    add_json(parser, "figures")


def add_board(commands: Any) -> None:
    parser = command(
        commands,
        "board",
        board,
        "build a bitstream for an FPGA board: core or unit of the retrieval engine, serial port and self-test",
    )
    parser.add_argument("board", nargs="?", default="ulx3s", help="board (default ulx3s, with an ECP5-85F)")
    parser.add_argument(
        "--unit",
        default="wtu",
        help="wtu or hcu, units without memory jobs; or core, with block memories and a model (only at tiny; routed "
        "with two lanes, see hw/boards/README.md, in 50 minutes) (default wtu)",
    )
    add_configuration(parser, "small")
    add_yosys(parser)
    add_seed(parser, "the model of the core")
    parser.add_argument("--beats", type=int, default=160, help="tokens of the test vectors (default 160)")
    clock = "clock frequency: 5, 6, 8, 10, 12, 15, 20 or 24 from a PLL (default: clock of the board; core: 5)"
    parser.add_argument("--clock-mhz", type=int, metavar="MHZ", help=clock)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="output folder (default build/board/BOARD)")
    add_json(parser, "report")
