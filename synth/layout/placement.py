"""Placement of a unit by graywolf: rows of cells and pins on the edges of the die.

graywolf decides the row and the order of the cells and the order of the pins. This module writes its input, and makes
a legal placement of its result: cells on sites, free sites spread evenly, every second row upside down, pins on tracks.
Below a utilisation of `ROW_SHARE` the rows do not become longer. Rows without cells between them take the free space:
cells and metal 1 leave two horizontal layers for wires, but three vertical ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hw.yosys import ToolError
from synth.layout.design import SUPPLIES, Design
from synth.layout.lef import Box, Lef, Shape
from synth.layout.tools import run

ROW_MARGIN = 5  # rows' tracks between the cells and the edge of the die, for wires around the cells
FILLER = "FILL"  # cell of one site
ROW_SHARE = 0.8  # of a row with cells that the cells fill, on average, if the utilisation is not above it
_PIN_PITCHES = 2  # tracks between neighbouring pins of the unit: a via of one pin blocks the next track
_CORNER = 3  # tracks at both ends of an edge without pins, where they would block those of the next edge
_SCALE = 10  # nm of one of graywolf's units
# Technology file of graywolf: wires of two directions. Its own router is not used, so only pitches matter.
PARAMETERS = """RULES
    layer metal1 0.07 0.030 horizontal
    layer metal2 0.07 0.017 vertical
    via via12 metal1 metal2
    width metal1 60
    width metal2 60
    width via12 60
    spacing metal1 metal1 140
    spacing metal2 metal2 100
    overhang via12 metal1 8
    overhang via12 metal2 6
ENDRULES
*vertical_wire_weight : 1.0
*vertical_path_weight : 1.0
*padspacing : variable
*rowSep : 0.0 0
*track.pitch : {x}
*minimum_pad_space : 120
*gridX : {x}
*gridY : {y}
*gridOffsetX : 0
*gridOffsetY : 0
*graphics.wait : off
*last_chance.wait : off
*random.seed : 12345
TWMC*chip.aspect.ratio : 1.0
TWSC*feedThruWidth : {x} layer 1
TWSC*do.global.route : on
TWSC*ignore_feeds : true
TWSC*call_row_evener : true
TWSC*even_rows_maximally : true
GENR*row_to_tile_spacing : 1
GENR*flip_alternate_rows : 1
"""


@dataclass(frozen=True)
class Place:
    """Position of a cell: lower left corner in nm, and orientation `N`, `FS`, `FN` or `S`."""

    x: int
    y: int
    orient: str


@dataclass(frozen=True)
class PinPlace:
    """Position of a pin of the unit: layer and centre in nm."""

    layer: str
    x: int
    y: int


@dataclass(frozen=True)
class Placement:
    """A legal placement; the lower left corner of the die is (0, 0).

    Attributes
    ----------
    width, height : of the die in nm
    cells : instance -> position
    pins : port -> position
    fillers : instances of filler cells -> their cell; they continue the supply rails of a row
    rows : lower left corner of each row in nm, its number of sites and its orientation
    utilisation : area of the cells over that of the rows
    """

    width: int
    height: int
    cells: dict[str, Place]
    pins: dict[str, PinPlace]
    fillers: dict[str, str]
    rows: tuple[tuple[int, int, int, str], ...]
    utilisation: float


def transform(box: Box, place: Place, width: int, height: int) -> Box:
    """A rectangle of a cell of the size `width` by `height` on the die."""
    x0, y0, x1, y1 = box
    if place.orient in ("FN", "S"):
        x0, x1 = width - x1, width - x0
    if place.orient in ("FS", "S"):
        y0, y1 = height - y1, height - y0
    return place.x + x0, place.y + y0, place.x + x1, place.y + y1


def placed(shape: Shape, place: Place, width: int, height: int) -> Shape:
    """A shape of a cell on the die."""
    return shape[0], transform(shape[1], place, width, height)


def cell_file(design: Design, lef: Lef) -> str:
    """The netlist in graywolf's format: cells around their centre, a point for every pin, then the unit's pins."""
    lines = []
    for number, (instance, kind) in enumerate(design.cells.items(), start=1):
        cell = lef.cells[kind]
        half = cell.width // _SCALE // 2, cell.height // _SCALE // 2
        lines += [f"cell {number} {instance}", f"left -{half[0]} right {half[0]} bottom -{half[1]} top {half[1]}"]
        for pin, net in design.pins[instance].items():
            if net in SUPPLIES.values():
                continue  # rails are near everywhere
            x0, y0, x1, y1 = cell.pins[pin].shapes[0][1]
            x, y = (x0 + x1) // 2 // _SCALE - half[0], (y0 + y1) // 2 // _SCALE - half[1]
            lines.append(f"pin name {pin} signal {net} layer 1 {x} {y}")
    x, y = _pitches(lef)
    for number, port in enumerate(design.ports, start=1):
        lines += [
            f"pad {number} name twpin_{port.name}",
            f"corners 4 -{x // 2} -{y // 2} -{x // 2} {y // 2} {x // 2} {y // 2} {x // 2} -{y // 2}",
            f"pin name {port.name} signal {port.net} layer 1 0 0",
        ]
    return "\n".join([*lines, ""])


def _pitches(lef: Lef) -> tuple[int, int]:
    """Pitch of the vertical and of the horizontal tracks in graywolf's units."""
    first, second = list(lef.layers.values())[:2]
    return second.pitch // _SCALE, first.pitch // _SCALE


def place(
    design: Design,
    lef: Lef,
    folder: Path,
    *,
    seconds: float,
    progress: Callable[[str, int, int], None],
) -> str:
    """Place `design` with graywolf in `folder`; the text of its result.

    Raises
    ------
    ToolError
        graywolf is missing, failed, or ran longer than `seconds`.
    """
    (folder / "unit.cel").write_text(cell_file(design, lef))
    x, y = _pitches(lef)
    (folder / "unit.par").write_text(PARAMETERS.format(x=x, y=y))
    progress("place", 0, 1)
    run(["graywolf", "-n", "unit"], folder, folder / "place.log", seconds=seconds)
    result = folder / "unit.pl1"
    if not result.exists():
        raise ToolError(f"{design.name}: graywolf must write unit.pl1, got no file")
    progress("place", 1, 1)
    return result.read_text()


def legal(design: Design, lef: Lef, text: str, utilisation: float) -> Placement:
    """A legal placement of graywolf's result `text`; the cells fill the share `utilisation` of the rows.

    Raises `ToolError` if the result does not have every cell and pin once, or the pins do not fit.
    """
    rows: dict[int, list[tuple[float, str]]] = {}
    pads: dict[int, list[tuple[float, str]]] = {}
    for line in text.splitlines():
        name, left, bottom, right, top, _, row = line.split()
        if name.startswith("twpin_"):
            across = (int(left) + int(right)) if int(row) in (-3, -4) else (int(bottom) + int(top))
            pads.setdefault(int(row), []).append((across / 2, name.removeprefix("twpin_")))
        elif not name.startswith("twfeed"):
            rows.setdefault(int(bottom), []).append(((int(left) + int(right)) / 2, name))
    names = sorted(name for row in rows.values() for _, name in row)
    ports = sorted(name for side in pads.values() for _, name in side)
    if names != sorted(design.cells) or ports != sorted(port.name for port in design.ports):
        raise ToolError(
            f"{design.name}: graywolf must place every cell and pin once, got {len(names)} and {len(ports)}"
        )
    height = next(iter(lef.cells.values())).height
    if any(lef.cells[kind].height != height for kind in design.cells.values()):
        raise ToolError(f"{design.name}: all cells must have the height of a row, got several heights")
    widths = {name: lef.cells[kind].width // lef.site for name, kind in design.cells.items()}
    total = sum(widths.values())
    longest = max(sum(widths[name] for _, name in row) for row in rows.values())
    count = max(len(rows), math.ceil(len(rows) * ROW_SHARE / utilisation - 1e-9))
    sites = max(longest, math.ceil(total / utilisation / count))
    layers = list(lef.layers.values())
    pitch_x, pitch_y = layers[1].pitch, layers[0].pitch
    margin = ROW_MARGIN * pitch_x, ROW_MARGIN * pitch_y
    # The edges have enough tracks for the pins of the unit, too.
    most = {True: 0, False: 0}
    for side, entries in pads.items():
        most[side in (-3, -4)] = max(most[side in (-3, -4)], len(entries))
    need_x, need_y = (_PIN_PITCHES * most[upright] + 2 * _CORNER for upright in (True, False))
    core_x = max(sites * lef.site, pitch_x * need_x - 2 * margin[0])
    sites = -(-core_x // lef.site)
    core_y = count * height
    edge_y = -(-(layers[2].pitch * need_y - core_y) // (2 * pitch_y)) * pitch_y
    margin = margin[0], max(margin[1], edge_y)
    width, die_height = sites * lef.site + 2 * margin[0], core_y + 2 * margin[1]
    cells: dict[str, Place] = {}
    fillers: dict[str, str] = {}
    row_list = []
    used = {(2 * k + 1) * count // (2 * len(rows)): level for k, level in enumerate(sorted(rows))}
    for k in range(count):
        order = sorted(rows[used[k]]) if k in used else []
        orient = "FS" if k % 2 else "N"
        y = margin[1] + k * height
        row_list.append((margin[0], y, sites, orient))
        end = 0
        for label, site in (*_spread(order, widths, sites), ("", sites)):
            for at in range(end, site):
                fillers[f"fill_{k}_{at}"] = FILLER
                cells[f"fill_{k}_{at}"] = Place(margin[0] + at * lef.site, y, orient)
            if label:
                cells[label] = Place(margin[0] + site * lef.site, y, orient)
                end = site + widths[label]
    pins = _pins(pads, width, die_height, layers)
    return Placement(width, die_height, cells, pins, fillers, tuple(row_list), total / (sites * count))


def _spread(row: list[tuple[float, str]], widths: dict[str, int], sites: int) -> list[tuple[str, int]]:
    """First site of each cell of a row: the free sites are spread evenly between the cells."""
    free = sites - sum(widths[name] for _, name in row)
    result, used = [], 0
    for k, (_, name) in enumerate(row):
        result.append((name, used + free * (2 * k + 1) // (2 * len(row))))
        used += widths[name]
    return result


def _pins(pads: dict[int, list[tuple[float, str]]], width: int, height: int, layers: list) -> dict[str, PinPlace]:
    """The unit's pins on the tracks of the edges, in graywolf's order and at its relative positions."""
    horizontal, vertical = layers[2], layers[1]
    places = {}
    for side, entries in pads.items():
        upright = side in (-3, -4)  # bottom and top edge: pins on vertical tracks
        layer, length = (vertical, width) if upright else (horizontal, height)
        ordered = sorted(entries)
        first, last = _CORNER, length // layer.pitch - 1 - _CORNER
        if first + _PIN_PITCHES * (len(ordered) - 1) > last:
            raise ToolError(f"edge must have tracks for {len(ordered)} pins, got {length // layer.pitch} tracks")
        low, high = ordered[0][0], ordered[-1][0]
        for k, (at, name) in enumerate(ordered):
            want = _CORNER + int((at - low) / max(high - low, 1) * (last - _CORNER))
            track = min(max(want, first), last - _PIN_PITCHES * (len(ordered) - 1 - k))
            first = track + _PIN_PITCHES
            along = track * layer.pitch + layer.pitch // 2
            if upright:
                edge = horizontal.pitch // 2
                places[name] = PinPlace(layer.name, along, edge if side == -3 else height - edge)
            else:
                edge = vertical.pitch // 2
                places[name] = PinPlace(layer.name, edge if side == -1 else width - edge, along)
    return places
