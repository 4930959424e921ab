"""Deviation of the embedded library from real libraries: the same units mapped to each, in NAND2 and FO4.

Command: `python -m synth.library.accuracy [--liberty FILE ...] [--unit NAME ...] [--preset NAME]`.
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
from synth.timing.static_timing import timing
from util.text import table

AREA_BOUND, DELAY_BOUND = 0.10, 0.15
PERIOD_FO4 = 108  # 800 MHz in the embedded library; FO4 is the fan-out-of-4 delay


@dataclass(frozen=True)
class Measure:
    """A unit in one library: area in 2-input NANDs, critical path in fan-out-of-4 delays."""

    unit: str
    library: str
    nand2: float
    fo4: float


def measure(unit: str, config: Config, library: Library, point: str) -> Measure:
    """Map one unit to one library; the clock period is the same number of FO4 delays in every library."""
    area_result = area(unit, config, library, point=point, clock_mhz=1e6 / (PERIOD_FO4 * library.fo4_ps))
    result = timing(area_result, library)
    return Measure(unit, library.name, area_result.nand2, result.critical.delay_ps / result.fo4_ps)


def compare(units: Sequence[str], config: Config, libraries: Sequence[Library], point: str = "balanced") -> str:
    """Table of every unit in the embedded library and in the other libraries, with the deviations and their bounds.

    If a library has no wire load, the embedded library is used without its wire load too.
    """
    rows = []
    n_outside = 0
    bare = Library([("predictive14", library_text(Technology(wire_pitches=0.0)))], "embedded")
    for unit in units:
        for library in libraries:
            embedded_result = measure(unit, config, embedded() if library.wire_farads else bare, point)
            real = measure(unit, config, library, point)
            off = embedded_result.nand2 / real.nand2 - 1, embedded_result.fo4 / real.fo4 - 1
            n_outside += (abs(off[0]) > AREA_BOUND) + (abs(off[1]) > DELAY_BOUND)
            figures = [f"{embedded_result.nand2:.0f}", f"{real.nand2:.0f}", f"{off[0]:+.1%}"]
            figures += [f"{embedded_result.fo4:.1f}", f"{real.fo4:.1f}", f"{off[1]:+.1%}"]
            rows.append([unit, library.name, *figures])
    head = ["unit", "library", "NAND2", "its NAND2", "deviation", "FO4", "its FO4", "deviation"]
    bounds = f"{AREA_BOUND:.0%} in area or {DELAY_BOUND:.0%} in delay"
    summary = f"{n_outside} of {2 * len(rows)} figures deviate by more than {bounds}"
    return f"{table(head, rows)}\n{summary}; {point} point"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--liberty", type=Path, action="append", default=[], help="files of one more real library")
    parser.add_argument("--unit", action="append", default=[])
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--point", default="balanced")
    args = parser.parse_args()
    libraries = [choose(["osu018"])] if OSU018.exists() else []
    libraries += [choose(args.liberty)] if args.liberty else []
    print(compare(args.unit or ["hcu", "dot_tree"], Config.preset(args.preset), libraries, args.point))


if __name__ == "__main__":
    main()
