"""Layout as a GDSII file: every library cell a structure with its LEF shapes, the unit its instances and wires.

The library has no public mask data, so a cell contains its pins and obstructions only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from synth.layout.design import Design
from synth.layout.lef import Box, Lef, Shape
from synth.layout.placement import Place, Placement
from synth.layout.wires import Wires

_TIME = struct.pack(">12h", *(1970, 1, 1, 0, 0, 0) * 2)  # a fixed date: equal layouts are equal files
_NM = (1e-3, 1e-9)  # a database unit in user units (um) and in m


def layer_numbers(lef: Lef) -> dict[str, int]:
    """GDSII number of every routing layer and via layer, from 1; the die has number 0."""
    return {name: k for k, name in enumerate((*lef.layers, *lef.cuts), start=1)}


def gds(design: Design, lef: Lef, placement: Placement, wires: Wires) -> bytes:
    """The layout as the content of a GDSII file with units of 1 nm."""
    numbers = layer_numbers(lef)
    components = {**design.cells, **placement.fillers}
    out = [
        _record(0x0002, struct.pack(">h", 600)),
        _record(0x0102, _TIME),
        _text(0x0206, design.name),
        _record(0x0305, b"".join(map(_real, _NM))),
    ]
    for kind in sorted(set(components.values())):
        cell = lef.cells[kind]
        shapes = [*cell.obstructions, *(shape for pin in cell.pins.values() for shape in pin.shapes)]
        out += _structure(kind, _boxes(shapes, numbers))
    body = [_boundary(0, (0, 0, placement.width, placement.height))]
    body += _boxes(((segment.layer, segment.box) for segment in wires.segments), numbers)
    for via in wires.vias:
        body += _boxes(via.shapes(lef), numbers)
    for port in design.ports:
        at = placement.pins[port.name]
        half = lef.layers[at.layer].width // 2
        body.append(_boundary(numbers[at.layer], (at.x - half, at.y - half, at.x + half, at.y + half)))
        body += [
            _record(0x0C00, b""),
            _record(0x0D02, struct.pack(">h", numbers[at.layer])),
            _record(0x1602, struct.pack(">h", 0)),
            _record(0x1003, struct.pack(">2i", at.x, at.y)),
            _text(0x1906, port.name),
            _record(0x1100, b""),
        ]
    for instance, kind in components.items():
        body.append(_reference(kind, placement.cells[instance], lef.cells[kind].width, lef.cells[kind].height))
    out += _structure(design.name, body)
    return b"".join([*out, _record(0x0400, b"")])


def _record(kind: int, data: bytes) -> bytes:
    """A GDSII record: length, type with data type, data."""
    return struct.pack(">HH", len(data) + 4, kind) + data


def _text(kind: int, text: str) -> bytes:
    data = text.encode("ascii")
    return _record(kind, data + b"\0" * (len(data) % 2))


def _real(value: float) -> bytes:
    """A positive number as GDSII's 8-byte real: base 16, excess 64, 56 bits of mantissa."""
    exponent = 64
    while value < 1 / 16:
        value, exponent = value * 16, exponent - 1
    while value >= 1:
        value, exponent = value / 16, exponent + 1
    return struct.pack(">B", exponent) + round(value * 2**56).to_bytes(7, "big")


def _structure(name: str, elements: Iterable[bytes]) -> list[bytes]:
    return [_record(0x0502, _TIME), _text(0x0606, name), *elements, _record(0x0700, b"")]


def _boxes(shapes: Iterable[Shape], numbers: dict[str, int]) -> list[bytes]:
    return [_boundary(numbers[layer], box) for layer, box in shapes if layer in numbers]


def _boundary(layer: int, box: Box) -> bytes:
    x0, y0, x1, y1 = box
    return b"".join(
        [
            _record(0x0800, b""),
            _record(0x0D02, struct.pack(">h", layer)),
            _record(0x0E02, struct.pack(">h", 0)),
            _record(0x1003, struct.pack(">10i", x0, y0, x0, y1, x1, y1, x1, y0, x0, y0)),
            _record(0x1100, b""),
        ]
    )


def _reference(kind: str, at: Place, width: int, height: int) -> bytes:
    """An instance: GDSII mirrors at the x axis first, then rotates."""
    mirrored, rotated = at.orient in ("FS", "FN"), at.orient in ("S", "FN")
    x = at.x + (width if rotated else 0)
    y = at.y + (height if at.orient in ("FS", "S") else 0)
    angle = b""
    if mirrored or rotated:
        angle = _record(0x1A01, struct.pack(">H", 0x8000 if mirrored else 0))
    if rotated:
        angle += _record(0x1C05, _real(180.0))
    return b"".join(
        [
            _record(0x0A00, b""),
            _text(0x1206, kind),
            angle,
            _record(0x1003, struct.pack(">2i", x, y)),
            _record(0x1100, b""),
        ]
    )
