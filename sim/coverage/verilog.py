"""Line, branch and toggle coverage of simulations, by the place in the Python source that made the Verilog.

A point is one arm of an `If`, `Elif`, `Else` or `Case` (line), one side of a `Mux` (branch), or one edge of one bit of
a named signal (toggle). What one place makes several times, in a loop, in instances or in configurations, is one point.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from sim.bench.build import build_root
from sim.coverage import source_map

NAMES = {"line": "lines", "branch": "branches", "toggle": "toggles"}
KINDS = tuple(NAMES)
Points = dict[str, dict[tuple[str, str], int]]  # kind -> (place, what) -> hits

_POINT = re.compile(r"C '(.*)' (\d+)$")
_INDICES = re.compile(r"(\[\d+\])*$")
_NUMBERED = re.compile(r"\$\d+$")  # Amaranth tells equal names apart by a number


def merge(files: Iterable[Path]) -> dict[str, Points]:
    """The points of all runs whose `coverage.dat` is given, by unit: the first word of the build's name."""
    units: dict[str, Points] = {}
    for file in files:
        for unit, kind, place, what, hits in _points(file):
            points = units.setdefault(unit, {kind: {} for kind in KINDS})[kind]
            points[place, what] = points.get((place, what), 0) + hits
    return units


def _points(file: Path) -> Iterator[tuple[str, str, str, str, int]]:
    for line in file.read_text(encoding="latin1").splitlines():
        if not (found := _POINT.match(line)):
            continue
        fields = dict(field.split("\x02", 1) for field in found[1].split("\x01") if "\x02" in field)
        # a build may have been compiled elsewhere and come from ccache; its folder has the same name here
        verilog, hits = build_root() / Path(fields["f"]).parent.name / Path(fields["f"]).name, int(found[2])
        unit = verilog.parent.name.partition("-")[0]
        places = source_map.places(verilog)
        module = _plain(fields["page"].partition("/")[2])
        if fields["t"] == "toggle":
            name, _, edge = fields["o"].rpartition(":")
            whole = _plain(name)
            name = _INDICES.sub("", whole)
            bit = whole[len(name) :]
            # bits stored in memories, fields (bits of signals that are there) and names that yosys made do not count
            if (module, name) in places.signals and not name.startswith(("_", "$auto", "array", source_map.MARK)) | (
                "." in name
            ):
                yield unit, "toggle", places.signals[module, name], f"{_NUMBERED.sub('', name)}{bit} {edge}", hits
        elif arms := [places.arms[number] for number in _lines(fields.get("S", "0")) if number in places.arms]:
            place, _, arm = arms[0].rpartition(" ")
            yield unit, "line", place, arm, hits
        elif int(fields["l"]) in places.choices and fields["o"].startswith("cond_"):
            yield unit, "branch", places.choices[int(fields["l"])], fields["o"].removeprefix("cond_"), hits


def _plain(name: str) -> str:
    """A name as it stands in the Verilog; Verilator writes what is not a letter or digit in hexadecimal."""
    return re.sub(r"__0([0-9a-fA-F]{2})", lambda found: chr(int(found[1], 16)), name)


def _lines(ranges: str) -> Iterator[int]:
    """Line numbers of `12,15-17`."""
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def total(units: Iterable[Points]) -> Points:
    """Hits over several units."""
    summed: dict[str, defaultdict[tuple[str, str], int]] = {kind: defaultdict(int) for kind in KINDS}
    for points in units:
        for kind in KINDS:
            for point, hits in points[kind].items():
                summed[kind][point] += hits
    return {kind: dict(points) for kind, points in summed.items()}
