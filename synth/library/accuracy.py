"""How far the embedded library lies from real ones: the same units mapped to each, in units free of technology.

Run by hand: `python -m synth.library.accuracy [--liberty FILE ...] [--unit NAME ...] [--preset NAME]`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hw.config import Config
from synth.area import area
from synth.library.liberty import library_text
from synth.library.reader import OSU018, Library, choose, embedded
from synth.library.technology import Technology
from synth.timing.timing import timing
from util.text import table

AREA_BOUND, DELAY_BOUND = 0.10, 0.15
PERIOD_FO4 = 108  # 800 MHz in the embedded library


@dataclass(frozen=True)
class Measure:
    """A unit in one library: area in 2-input NANDs, critical path in fan-out-of-4 delays."""

    unit: str
    library: str
    nand2: float
    fo4: float


def measure(unit: str, config: Config, library: Library, point: str) -> Measure:
    """Map one unit to one library, for the same period in fan-out-of-4 delays: mapping sizes for the clock."""
    found = area(unit, config, library, point=point, clock_mhz=1e6 / (PERIOD_FO4 * library.fo4_ps))
    result = timing(found, library)
    return Measure(unit, library.name, found.nand2, result.critical.delay_ps / result.fo4_ps)


def compare(units: Sequence[str], config: Config, others: Sequence[Library], point: str = "balanced") -> str:
    """A table of every unit in the embedded library beside the others, with the deviations and the bounds.

    Beside a library without a wire load the embedded one has none either: then both time cells alone.
    """
    rows = []
    outside = 0
    bare = Library([("predictive14", library_text(Technology(wire_pitches=0.0)))], "embedded")
    for unit in units:
        for library in others:
            own = measure(unit, config, embedded() if library.wire_farads else bare, point)
            real = measure(unit, config, library, point)
            off = own.nand2 / real.nand2 - 1, own.fo4 / real.fo4 - 1
            outside += (abs(off[0]) > AREA_BOUND) + (abs(off[1]) > DELAY_BOUND)
            figures = [f"{own.nand2:.0f}", f"{real.nand2:.0f}", f"{off[0]:+.1%}"]
            figures += [f"{own.fo4:.1f}", f"{real.fo4:.1f}", f"{off[1]:+.1%}"]
            rows.append([unit, library.name, *figures])
    head = ["unit", "beside", "NAND2", "its NAND2", "off", "FO4", "its FO4", "off"]
    told = f"{outside} of {2 * len(rows)} figures lie outside {AREA_BOUND:.0%} of area and {DELAY_BOUND:.0%} of delay"
    return f"{table(head, rows)}\n{told}; {point} point"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--liberty", type=Path, action="append", default=[], help="files of one more real library")
    parser.add_argument("--unit", action="append", default=[])
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--point", default="balanced")
    args = parser.parse_args()
    others = [choose(["osu018"])] if OSU018.exists() else []
    others += [choose(args.liberty)] if args.liberty else []
    print(compare(args.unit or ["hcu", "dot_tree"], Config.preset(args.preset), others, args.point))


if __name__ == "__main__":
    main()
