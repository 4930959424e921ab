"""Command on the evidence of units: the sign-off."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from cli.console import Console
from cli.options import add_json, add_units, command, require_source_tree, units


def signoff(args: argparse.Namespace, console: Console) -> int:
    from cli.pages.signoff import follow, overview, page
    from cli.signoff.records import keep
    from cli.signoff.stages import REASONS, GapReasons, assess

    require_source_tree("signoff")
    chosen = units(args.unit)
    kept = keep() if args.keep else []
    reasons = GapReasons.read(REASONS)
    assessments = []
    for index, unit in enumerate(chosen):
        console.progress("evidence", index, len(chosen))
        assessments.append(assess(unit, reasons))
    console.close()
    if args.json:
        print(json.dumps([assessment.json() for assessment in assessments], indent=2))
    elif args.unit:
        print("\n\n".join(map(follow, assessments)))
    else:
        print(overview(assessments))
        print(f"page: {page(args.out, assessments)}")
    for path in kept:
        print(f"kept: {path}", file=sys.stderr)
    unused = [] if args.unit else reasons.stale()
    for entry in unused:
        print(f"vrex: {REASONS.name}: entry matches no gap: {entry.unit} {entry.kind} {entry.what}", file=sys.stderr)
    return 1 if unused else 0


def add(commands: Any) -> None:
    """Add this command to the command line."""
    parser = command(
        commands, "signoff", signoff, "show the evidence for units and their stages; with UNIT, from claim to evidence"
    )
    add_units(parser)
    parser.add_argument(
        "--keep", action="store_true", help="copy current records of build/evidence to docs/evidence in the repository"
    )
    out = Path("build/signoff/index.html")
    parser.add_argument("--out", type=Path, default=out, metavar="FILE", help=f"HTML page of all units (default {out})")
    add_json(parser, "evidence")
