"""Wires of a routed DEF file: segments and vias of every net in nm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from synth.layout.lef import Box, Lef, Shape

_SECTION = re.compile(r"^(SPECIALNETS|NETS)\b.*?^END \1", re.M | re.S)
_POINT = re.compile(r"\(\s*([-\d*]+)\s+([-\d*]+)(?:\s+-?\d+)?\s*\)")


@dataclass(frozen=True)
class Segment:
    """A straight wire between two points; `extension` is its length beyond each of them."""

    net: str
    layer: str
    x0: int
    y0: int
    x1: int
    y1: int
    width: int
    extension: int

    @property
    def length(self) -> int:
        return abs(self.x1 - self.x0) + abs(self.y1 - self.y0)

    @property
    def box(self) -> Box:
        half = self.width // 2
        along, across = (self.extension, half)
        if self.y0 == self.y1 and self.x0 != self.x1:
            grow = along, across
        elif self.x0 == self.x1 and self.y0 != self.y1:
            grow = across, along
        else:
            grow = half, half
        return (
            min(self.x0, self.x1) - grow[0],
            min(self.y0, self.y1) - grow[1],
            max(self.x0, self.x1) + grow[0],
            max(self.y0, self.y1) + grow[1],
        )


@dataclass(frozen=True)
class Via:
    """A via of a net."""

    net: str
    name: str
    x: int
    y: int

    def shapes(self, lef: Lef) -> tuple[Shape, ...]:
        """Metal and cut of the via on the die."""
        return tuple(
            (layer, (x0 + self.x, y0 + self.y, x1 + self.x, y1 + self.y))
            for layer, (x0, y0, x1, y1) in lef.vias[self.name]
        )


@dataclass(frozen=True)
class Wires:
    """All wires of a layout."""

    segments: tuple[Segment, ...]
    vias: tuple[Via, ...]

    @property
    def length_um(self) -> float:
        return sum(segment.length for segment in self.segments) / 1000


def read(text: str, lef: Lef, name: str = "DEF") -> Wires:
    """The wires of a DEF text with 1000 units per um.

    Raises
    ------
    ValueError
        Other units, an unknown layer or via, or a wire that is not parallel to an axis.
    """
    units = re.search(r"^UNITS DISTANCE MICRONS (\d+)", text, re.M)
    if units is None or units[1] != "1000":
        raise ValueError(f"{name}: units per micron must be 1000, got {units[1] if units else 'none'}")
    segments: list[Segment] = []
    vias: list[Via] = []
    for section in _SECTION.finditer(text):
        special = section[1] == "SPECIALNETS"
        for part in re.split(r"^- ", section[0], flags=re.M)[1:]:
            net = part.split(maxsplit=1)[0]
            for path in re.findall(r"(?:\+ ROUTED|\bNEW)\s+(.*?)(?=\bNEW\b|\+|;|\Z)", part, re.S):
                for wire in _path(net, path, lef, special, name):
                    if isinstance(wire, Via):
                        vias.append(wire)
                    else:
                        segments.append(wire)
    return Wires(tuple(segments), tuple(vias))


def _path(net: str, text: str, lef: Lef, special: bool, name: str) -> Iterator[Segment | Via]:
    """Wires of one path: a layer, in special nets a width, then points and vias."""
    layer, rest = text.split(maxsplit=1)
    if layer not in lef.layers:
        raise ValueError(f"{name}: net {net}: layer must be one of {', '.join(lef.layers)}, got {layer}")
    width = lef.layers[layer].width
    if special:
        number, rest = rest.split(maxsplit=1)
        width = int(number)
    extension = 0 if special else width // 2
    at: tuple[int, int] | None = None
    for token in re.findall(r"\([^)]*\)|\S+", rest):
        point = _POINT.fullmatch(token)
        if point is None:
            if token not in lef.vias or at is None:
                raise ValueError(f"{name}: net {net}: via must be one of {', '.join(lef.vias)} at a point, got {token}")
            yield Via(net, token, *at)
            continue
        if at is None and "*" in point.groups():
            raise ValueError(f"{name}: net {net}: first point must have two coordinates, got {token}")
        old = at
        x, y = (old[k] if value == "*" and old else int(value) for k, value in enumerate(point.groups()))
        at = x, y
        if old is not None:
            if old[0] != at[0] and old[1] != at[1]:
                raise ValueError(f"{name}: net {net}: wire must be horizontal or vertical, got {old} to {at}")
            yield Segment(net, layer, *old, *at, width, extension)
