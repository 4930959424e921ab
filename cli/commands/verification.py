"""Commands on units: tests, coverage, formal proofs, mutation."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
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
    require_source_tree,
    units,
)
from util.files import ROOT, read_json

MUTANTS = {"core": 1000}  # faults of a unit, where it is not DEFAULT_MUTANTS
DEFAULT_MUTANTS = 200


def verify(args: argparse.Namespace, console: Console) -> int:
    require_source_tree("verify")
    from sim.bench.build import default_simulator, has_simulator

    simulator = args.simulator or default_simulator()
    if args.unknown and (args.gates or simulator != "icarus"):
        raise ValueError(f"--unknown must be with --simulator icarus and without --gates, got simulator {simulator}")
    if not has_simulator(simulator):
        raise ValueError(f"simulator must be installed, got {simulator}")
    chosen = units(args.unit)
    files = dict.fromkeys(str(ROOT / unit.tests) for unit in chosen)
    with tempfile.TemporaryDirectory(prefix="verify-") as folder:
        junit = Path(folder) / "results.xml"
        line = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(ROOT), f"--seed={args.seed}"]
        line += [f"--sim={args.simulator}"] if args.simulator else []
        line += [f"--{name}" for name in ("waves", "gates", "unknown", "heavy") if getattr(args, name)]
        status = subprocess.run([*line, f"--junitxml={junit}", *files], cwd=ROOT, check=False).returncode
        if junit.exists():
            _keep_test_results(args, simulator, chosen, junit)
    if args.waves:
        print("waveforms: build/sim/runs/*/dump.vcd")
    return 1 if status else 0


def _keep_test_results(args: argparse.Namespace, simulator: str, chosen: list[Any], junit: Path) -> None:
    """Write the records of evidence of one run of `verify`. A run in Icarus without `--unknown` is no evidence."""
    from cli.signoff.evidence import of_tests, tests_of_junit
    from cli.signoff.records import save

    kind = "gates" if args.gates else "four_state" if args.unknown else "simulation"
    if kind == "simulation" and simulator != "verilator":
        return
    options = [f"--simulator {args.simulator}"] if args.simulator else []
    options += [f"--{name}" for name in ("gates", "unknown", "heavy") if getattr(args, name)]
    options += [f"--seed {args.seed}"] if args.seed != 1 else []
    tests = tests_of_junit(junit)
    for unit in chosen:
        line = " ".join(["vrex verify", unit.name, *options])
        for record in of_tests(unit, kind, tests, heavy=args.heavy, command=line):
            save(record)


def coverage(args: argparse.Namespace, console: Console) -> int:
    require_source_tree("coverage")
    from sim.coverage import measure, result
    from sim.coverage.explained import Reasons
    from sim.coverage.page import page
    from util.files import write_json

    reasons, folder = Reasons.read(result.REASONS), args.out / "parts"
    groups = [] if args.report else measure.select_groups(args.tests)
    failed = []
    for index, group in enumerate(groups):
        console.progress("tests", index, len(groups))
        if not measure.run(group, folder, seed=args.seed, heavy=args.heavy):
            failed.append(group.path)
    console.progress("tests", len(groups), len(groups))
    console.close()
    if groups:
        _keep_coverage(args, groups)
    results = result.gather(folder, reasons)
    write_json(args.out / "coverage.json", results)
    print(result.table(results))
    print(f"report: {page(args.out / 'index.html', results)}")
    for path in failed:
        print(f"vrex: {path}: tests failed, so their coverage is missing", file=sys.stderr)
    for entry in results["stale"]:
        print(f"vrex: {result.REASONS.name}: entry matches nothing: {entry}", file=sys.stderr)
    return 1 if failed or results["stale"] else 0


def _keep_coverage(args: argparse.Namespace, groups: list[Any]) -> None:
    """Write the records of evidence of the units whose test files ran; a file whose tests fail has no result."""
    from cli.signoff.evidence import of_coverage, units_with_tests
    from cli.signoff.records import save
    from hw.registry import UNITS
    from sim.coverage import result
    from sim.coverage.explained import Reasons

    paths = {group.path: args.out / "parts" / f"{group.name}.json" for group in groups}
    parts = {name: read_json(path, "coverage result") for name, path in paths.items() if path.exists()}
    options = ["--heavy"] * args.heavy + ([f"--seed {args.seed}"] if args.seed != 1 else [])
    for unit in units_with_tests(paths):
        line = " ".join(["vrex coverage", unit, *options])
        measured = None
        if UNITS[unit].tests in parts:
            measured = result.unit_result(unit, list(parts.values()), Reasons.read(result.REASONS))
        save(of_coverage(unit, measured, command=line))


def formal(args: argparse.Namespace, console: Console) -> int:
    from cli.signoff.evidence import of_proofs
    from cli.signoff.records import in_source_tree, save
    from sim.formal.claims import claims
    from sim.formal.engine import FormalError, prove_unit

    results, failure = [], ""
    for unit in units(args.unit):
        proofs: list[dict[str, Any]] = []
        try:
            for proof in prove_unit(unit.name, quick=args.quick, tool=args.yosys, progress=console.progress):
                console.close()
                proofs.append({**asdict(proof), "kind": proof.kind})
                if not args.json:
                    extent = proof.kind if proof.depth is None else f"first {proof.depth} cycles"
                    covers = ", ".join(f"{name} in cycle {cycle}" for name, cycle in proof.covers.items())
                    print(f"{proof.name}: {extent}, {proof.seconds:.1f} s\n    {proof.claim}\n    reached: {covers}")
        except FormalError as error:
            failure = str(error)
        if in_source_tree():
            save(of_proofs(unit.name, proofs, [claim.name for claim in claims(unit.name)], failure or None))
        if failure:
            console.close()
            print(f"vrex: {failure}", file=sys.stderr)
            return 1
        results += proofs
    console.close()
    if args.json:
        print(json.dumps(results, indent=2))
    return 0


def mutate(args: argparse.Namespace, console: Console) -> int:
    require_source_tree("mutate")
    from cli.signoff.evidence import of_mutation
    from cli.signoff.kinds import MORE_TESTS
    from cli.signoff.records import save
    from sim.mutation.campaign import CampaignError, run
    from util.files import git_revision, write_json

    config, campaigns = configuration(args), []
    options = {"seed": args.seed, "heavy": args.heavy, "keep": args.keep, "tool": args.yosys}
    for unit in units(args.unit):
        files = [str(ROOT / file) for file in (unit.tests, *MORE_TESTS.get(unit.name, ()))]
        count = MUTANTS.get(unit.name, DEFAULT_MUTANTS) if args.mutants is None else args.mutants
        try:
            component = unit.build(config)
            campaigns.append(run(unit.name, component, files, count, progress=console.progress, **options))
            save(of_mutation(campaigns[-1], command=_mutate_command(args, unit.name, count)))
        except CampaignError as error:
            console.close()
            print(f"vrex: {error}", file=sys.stderr)
            return 1
    console.close()
    origin = {"preset": args.preset, "config": config.asdict(), "seed": args.seed, "git": git_revision()}
    result = {**origin, "units": [campaign.json() for campaign in campaigns]}
    if args.out:
        write_json(args.out, result)
    print(json.dumps(result, indent=2) if args.json else mutation_table(campaigns))
    return 0


def _mutate_command(args: argparse.Namespace, unit: str, count: int) -> str:
    """Command line that repeats the campaign of one unit."""
    words = ["vrex mutate", unit]
    words += [f"--mutants {count}"] if count != MUTANTS.get(unit, DEFAULT_MUTANTS) else []
    words += [f"--seed {args.seed}"] if args.seed != 1 else []
    words += [f"--{name}" for name in ("heavy", "keep") if getattr(args, name)]
    words += [f"--preset {args.preset}"] if args.preset != "tiny" else []
    return " ".join([*words, *(f"--set {pair}" for pair in args.set)])


def mutation_table(campaigns: list[Any]) -> str:
    """Scores of the units, and below them the mutants that no test detects."""
    from util.text import table

    head = ["unit", "mutants", "killed", "equivalent", "unreached", "survivors", "score", "seconds"]
    rows, lines = [], []
    for campaign in campaigns:
        groups = {"equivalent": campaign.equivalent, "survives": campaign.survivors}
        counts = (
            len(campaign.mutants),
            campaign.killed,
            *map(len, (campaign.equivalent, campaign.unreached, campaign.survivors)),
        )
        score = f"{100 * campaign.score:.1f} %"
        rows.append([campaign.unit, *map(str, counts), score, f"{campaign.seconds:.0f}"])
        for group, mutants in groups.items():
            lines += [f"{campaign.unit} {group} {mutant}: {result.how}" for mutant, result in mutants]
        lines += [
            f"{campaign.unit} unreached {mutant}: visible after {mutant.events:,} events"
            for mutant, _ in campaign.unreached
        ]
    return "\n".join([table(head, rows), *lines])


def add(commands: Any) -> None:
    """Add these commands to the command line."""
    add_verify(commands)
    add_coverage(commands)
    add_formal(commands)
    add_mutate(commands)


def add_heavy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--heavy", action="store_true", help="also run the tests that take minutes")


def add_verify(commands: Any) -> None:
    parser = command(commands, "verify", verify, "run the cocotb tests of units against their golden models")
    add_units(parser)
    parser.add_argument("--simulator", choices=("verilator", "icarus"), help="simulator (default verilator)")
    add_seed(parser, "all stimulus", 1)
    parser.add_argument("--waves", action="store_true", help="keep waveforms; a long run writes hundreds of MB")
    parser.add_argument("--gates", action="store_true", help="simulate the mapped netlists instead of the RTL")
    parser.add_argument(
        "--unknown", action="store_true", help="registers and memories power up with X (needs --simulator icarus)"
    )
    add_heavy(parser)


def add_coverage(commands: Any) -> None:
    parser = command(commands, "coverage", coverage, "run tests and report their coverage of Verilog, Python and modes")
    parser.add_argument("tests", nargs="*", help="units, or files or folders of tests (default all)")
    parser.add_argument("--report", action="store_true", help="run no test; report what earlier runs measured")
    add_seed(parser, "all stimulus", 1)
    add_heavy(parser)
    out = Path("build/coverage")
    parser.add_argument("--out", type=Path, default=out, metavar="FOLDER", help=f"JSON and HTML page (default {out})")


def add_formal(commands: Any) -> None:
    parser = command(commands, "formal", formal, "prove the properties of units for all inputs")
    add_units(parser)
    parser.add_argument("--quick", action="store_true", help="skip the proofs that take minutes")
    add_json(parser, "results")
    add_yosys(parser)


def add_mutate(commands: Any) -> None:
    parser = command(
        commands, "mutate", mutate, "insert faults into units' netlists and count how many the tests detect"
    )
    add_units(parser)
    parser.add_argument(
        "--mutants", type=int, metavar="N", help=f"faults per unit (default {DEFAULT_MUTANTS}, core {MUTANTS['core']})"
    )
    add_seed(parser, "the choice of faults and all stimulus", 1)
    add_heavy(parser)
    parser.add_argument("--keep", action="store_true", help="reuse cached results although the tests have changed")
    add_configuration(parser, "tiny")
    add_yosys(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the results as JSON")
    add_json(parser, "results")
