"""Line, branch and toggle coverage of simulations, by location in the Python source of the Verilog.

A point is one arm of an `If`, `Elif`, `Else` or `Case` (line), one side of a `Mux` (branch), or one edge of one bit of
a named signal (toggle). One location is one point, also when loops, instances and configurations repeat it.
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
Points = dict[str, dict[tuple[str, str], int]]  # kind -> (location, detail) -> hits

_POINT = re.compile(r"C '(.*)' (\d+)$")
_INDICES = re.compile(r"(\[\d+\])*$")
_NUMBERED = re.compile(r"\$\d+$")  # suffix that Amaranth appends to equal names


def merge(files: Iterable[Path]) -> dict[str, Points]:
    """Points of the runs with these `coverage.dat` files, by unit (the first word of the build's name)."""
    units: dict[str, Points] = {}
    for file in files:
        for unit, kind, location, detail, hits in _points(file):
            points = units.setdefault(unit, {kind: {} for kind in KINDS})[kind]
            points[location, detail] = points.get((location, detail), 0) + hits
    return units


def _points(file: Path) -> Iterator[tuple[str, str, str, str, int]]:
    for line in file.read_text(encoding="latin1").splitlines():
        if not (match := _POINT.match(line)):
            continue
        fields = dict(field.split("\x02", 1) for field in match[1].split("\x01") if "\x02" in field)
        # ccache may return a build from another root; its folder has the same name here
        verilog, hits = build_root() / Path(fields["f"]).parent.name / Path(fields["f"]).name, int(match[2])
        unit = verilog.parent.name.partition("-")[0]
        sources = source_map.read(verilog)
        module = _plain(fields["page"].partition("/")[2])
        if fields["t"] == "toggle":
            name, _, edge = fields["o"].rpartition(":")
            plain = _plain(name)
            name = _INDICES.sub("", plain)
            bit = plain[len(name) :]
            # not counted: bits stored in memories, fields (their signal is counted), names that yosys generated
            if (module, name) in sources.signals and not name.startswith(("_", "$auto", "array", source_map.MARK)) | (
                "." in name
            ):
                yield unit, "toggle", sources.signals[module, name], f"{_NUMBERED.sub('', name)}{bit} {edge}", hits
        elif arms := [sources.arms[number] for number in _lines(fields.get("S", "0")) if number in sources.arms]:
            location, _, arm = arms[0].rpartition(" ")
            yield unit, "line", location, arm, hits
        elif int(fields["l"]) in sources.choices and fields["o"].startswith("cond_"):
            yield unit, "branch", sources.choices[int(fields["l"])], fields["o"].removeprefix("cond_"), hits


def _plain(name: str) -> str:
    """The Verilog name; Verilator encodes other characters than letters and digits in hexadecimal."""
    return re.sub(r"__0([0-9a-fA-F]{2})", lambda match: chr(int(match[1], 16)), name)


def _lines(ranges: str) -> Iterator[int]:
    """Line numbers of `12,15-17`."""
    for item in ranges.split(","):
        first, _, last = item.partition("-")
        yield from range(int(first), int(last or first) + 1)


def total(units: Iterable[Points]) -> Points:
    """Sum of the hits of several units."""
    summed: dict[str, defaultdict[tuple[str, str], int]] = {kind: defaultdict(int) for kind in KINDS}
    for points in units:
        for kind in KINDS:
            for point, hits in points[kind].items():
                summed[kind][point] += hits
    return {kind: dict(points) for kind, points in summed.items()}
