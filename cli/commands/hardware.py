"""Commands on units: Verilog, synthesis, boards, tests, proofs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cli.console import Console
from cli.options import add_configuration, add_tool, command, configuration, require_source_tree, units
from util.files import ROOT

# tests of a unit besides those in the file of its module
_CORE = ("commands", "cycles", "lengths", "retrieval_unit", "waits")
MORE_TESTS = {"core": (*(f"tests/hw/core/test_{name}.py" for name in _CORE), "tests/compiler/test_layer.py")}


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
    from sw_model.media.clip import find_clip
    from sw_model.media.source import first_keys
    from synth.power.stimulus import BEATS, IDLE, RANDOM, stimulus

    for name in args.power:
        source = find_clip().path if name == "video" else name
        keys = None if name in (IDLE, RANDOM) else first_keys(source, BEATS)
        yield stimulus(component, name, keys=keys)


def synth(args: argparse.Namespace, console: Console) -> None:
    import resource

    from synth import report
    from synth.area import area
    from synth.equivalence import prove
    from synth.library.reader import choose
    from synth.power.power import compare, multiplied, part, powers_table
    from synth.table3 import UNITS, table3
    from synth.timing.timing import timing

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
    from sw_model.media.source import first_keys
    from synth.board import build, vectors
    from synth.power.stimulus import stimulus
    from util import checks

    config = configuration(args)
    checks.integer("beats", args.beats, 1)
    component = unit(args.unit).build(config)
    given = stimulus(component, "generator", keys=first_keys("generator", args.beats), beats=args.beats)
    folder = args.out or Path("build/board") / args.board
    told = vectors(component, given)
    made = build(args.board, args.unit, component, config, told, folder, tool=args.yosys, progress=console.progress)
    console.close()
    print(json.dumps(made.json(), indent=2) if args.json else made.table())


def verify(args: argparse.Namespace, console: Console) -> int:
    import subprocess

    require_source_tree("verify")
    files = [ROOT / unit.tests for unit in units(args.unit)]
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(ROOT), f"--seed={args.seed}"]
    command += [f"--sim={args.sim}"] if args.sim else []
    command += ["--waves"] if args.waves else []
    command += ["--gates"] if args.gates else []
    command += ["--heavy"] if args.heavy else []
    status = subprocess.run([*command, *dict.fromkeys(map(str, files))], cwd=ROOT, check=False).returncode
    if args.waves:
        print("waveforms: build/sim/runs/*/dump.vcd")
    return 1 if status else 0


def coverage(args: argparse.Namespace, console: Console) -> int:
    from sim.coverage import measure, result
    from sim.coverage.explained import Reasons
    from sim.coverage.page import page
    from util.files import write_json

    require_source_tree("coverage")
    reasons, kept = Reasons.read(result.REASONS), args.out / "parts"
    chosen = [] if args.report else measure.chosen(args.tests)
    failed = []
    for index, part in enumerate(chosen):
        console.progress("tests", index, len(chosen))
        if not measure.run(part, kept, seed=args.seed, heavy=args.heavy):
            failed.append(part.path)
    console.progress("tests", len(chosen), len(chosen))
    console.close()
    found = result.gather(kept, reasons)
    write_json(args.out / "coverage.json", found)
    print(result.table(found))
    print(f"report: {page(args.out / 'index.html', found)}")
    for path in failed:
        print(f"vrex: {path}: failed, so it is not measured", file=sys.stderr)
    for entry in found["stale"]:
        print(f"vrex: {result.REASONS.name}: explains nothing: {entry}", file=sys.stderr)
    return 1 if failed or found["stale"] else 0


def formal(args: argparse.Namespace, console: Console) -> int:
    from sim.formal.engine import FormalError, prove_unit

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


def mutate(args: argparse.Namespace, console: Console) -> int:
    from sim.mutation.campaign import CampaignError, run
    from util.files import git_revision, write_json
    from util.text import table

    require_source_tree("mutate")
    config, made = configuration(args), []
    options = {"seed": args.seed, "heavy": args.heavy, "keep": args.keep, "tool": args.yosys}
    for unit in units(args.unit):
        files = [ROOT / unit.tests, *(ROOT / file for file in MORE_TESTS.get(unit.name, ()))]
        count = args.mutants if args.mutants is not None else 1000 if unit.name == "core" else 200
        try:
            made.append(
                run(unit.name, unit.build(config), [*map(str, files)], count, progress=console.progress, **options)
            )
        except CampaignError as error:
            console.close()
            print(f"vrex: {error}", file=sys.stderr)
            return 1
    console.close()
    about = {"preset": args.preset, "config": config.asdict(), "seed": args.seed, "git": git_revision()}
    told = {**about, "units": [one.json() for one in made]}
    if args.out:
        write_json(args.out, told)
    if args.json:
        print(json.dumps(told, indent=2))
        return 0
    head = ["unit", "mutants", "killed", "equivalent", "unreached", "survivors", "score", "seconds"]
    rows = [
        [c.unit, *map(str, (len(c.mutants), c.killed, *map(len, (c.equivalent, c.unreached, c.survivors)))),
         f"{100 * c.score:.1f} %", f"{c.seconds:.0f}"] for c in made
    ]  # fmt: skip
    print(table(head, rows))
    for one in made:
        for what, found in (("equivalent", one.equivalent), ("survives", one.survivors)):
            print(*(f"{one.unit} {what} {mutant}: {result.how}" for mutant, result in found), sep="\n")
        late = (f"{one.unit} unreached {mutant}: shows after {mutant.events:,} events" for mutant, _ in one.unreached)
        print(*late, sep="\n")
    return 0


def add(commands: Any) -> None:
    """Add these commands to the command line."""
    one = command(
        commands, "generate", generate, "write Verilog, JSON, constraints, file list and FuseSoC core of units"
    )
    one.add_argument("unit", nargs="*", help="names in hw/registry.py, such as hcu (default all)")
    add_configuration(one)
    add_tool(one)
    one.add_argument("--clock", type=float, default=800.0, metavar="MHZ", help="target of the constraints (800)")
    one.add_argument(
        "--out", type=Path, default=Path("build/generated"), metavar="FOLDER", help="default build/generated"
    )
    one.add_argument("--json", action="store_true", help="descriptions as JSON on stdout")

    one = command(
        commands, "synth", synth, "area and timing of units: cells, um2, NAND2 equivalents, memory bits, fmax"
    )
    one.add_argument("unit", nargs="*", help="names in hw/registry.py, such as hcu (default all)")
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

    one = command(
        commands, "board", board, "bitstream for an FPGA board: the retrieval engine, a serial port, a self-test"
    )
    one.add_argument("board", nargs="?", default="ulx3s", help="default ulx3s, with an ECP5-85F")
    one.add_argument("--unit", default="kvpu", help="kvpu (default: HCU, HC table, WTU and KVMU) or kvmu")
    add_configuration(one, "small")
    add_tool(one)
    one.add_argument("--beats", type=int, default=160, help="tokens of the generator in the vectors (default 160)")
    one.add_argument("--out", type=Path, metavar="FOLDER", help="default build/board/ and the board's name")
    one.add_argument("--json", action="store_true", help="the report as JSON on stdout")

    one = command(commands, "verify", verify, "run the cocotb tests of units against their golden models")
    one.add_argument("unit", nargs="*", help="names in hw/registry.py, such as hcu (default all)")
    one.add_argument("--sim", choices=("verilator", "icarus"), help="simulator (default verilator)")
    one.add_argument("--seed", type=int, default=1, help="seed of all stimulus (default 1)")
    one.add_argument("--waves", action="store_true", help="keep waveforms, hundreds of MB of a long run")
    one.add_argument("--gates", action="store_true", help="simulate mapped netlists instead of the RTL")
    one.add_argument("--heavy", action="store_true", help="also the tests that take minutes")

    one = command(commands, "coverage", coverage, "run tests and tell what they reach: Verilog, Python, modes of units")
    one.add_argument("tests", nargs="*", help="units, or files or folders of tests (default all)")
    one.add_argument("--report", action="store_true", help="run nothing, only report what was measured before")
    one.add_argument("--seed", type=int, default=1, help="seed of all stimulus (default 1)")
    one.add_argument("--heavy", action="store_true", help="also the tests that take minutes")
    one.add_argument("--out", type=Path, default=Path("build/coverage"), metavar="FOLDER", help="JSON and HTML page")

    one = command(commands, "formal", formal, "prove what is claimed of units for all inputs")
    one.add_argument("unit", nargs="*", help="names in hw/registry.py, such as hcu (default all)")
    one.add_argument("--quick", action="store_true", help="without the proofs that take minutes")
    one.add_argument("--json", action="store_true", help="results on stdout as JSON")
    add_tool(one)

    one = command(commands, "mutate", mutate, "faults in units' netlists, one by one: do the units' tests notice?")
    one.add_argument("unit", nargs="*", help="units (default all)")
    one.add_argument("--mutants", type=int, metavar="N", help="faults of each unit (default 200, of the core 1000)")
    one.add_argument("--seed", type=int, default=1, help="of the choice of faults and of all stimulus (default 1)")
    one.add_argument("--heavy", action="store_true", help="also the tests that take minutes")
    one.add_argument("--keep", action="store_true", help="believe earlier kills although tests have changed since")
    add_configuration(one, "tiny")
    add_tool(one)
    one.add_argument("--out", type=Path, metavar="FILE", help="results as JSON")
    one.add_argument("--json", action="store_true", help="results as JSON on stdout")
