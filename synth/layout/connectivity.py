"""Connectivity check of a routed layout, from its geometry alone.

Shapes of one layer that touch are connected, a via connects its layers, and a cell connects the shapes of one pin. The
check is independent of the router: it finds nets whose terminals are not one piece (open), pieces of two nets that
touch (short), wires on an obstruction of a cell, and shapes of two nets closer than the layer allows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from synth.layout.design import Design
from synth.layout.lef import Box, Lef
from synth.layout.placement import Placement, placed
from synth.layout.wires import Segment, Via, Wires

_BIN = 8000  # nm: side of the squares in which shapes are compared
_RAILS = ("POWER", "GROUND")


@dataclass(frozen=True)
class Node:
    """One electrical node before wires connect it: a segment, a via, a pin of a cell, or a pin of the unit.

    `owner` is the segment or via, (instance, pin), or (`PIN`, port); `net` is None for an obstruction.
    """

    net: str | None
    owner: Segment | Via | tuple[str, str]


@dataclass
class Geometry:
    """All shapes of a layout: layer and box of each, and its node."""

    nodes: list[Node] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    of: list[int] = field(default_factory=list)

    def add(self, node: Node, shapes: list[tuple[str, Box]]) -> None:
        self.nodes.append(node)
        for layer, shape in shapes:
            self.layers.append(layer)
            self.boxes.append(shape)
            self.of.append(len(self.nodes) - 1)


@dataclass(frozen=True)
class Connectivity:
    """Result of the check.

    Attributes
    ----------
    open_nets : nets whose terminals are not one connected piece, supplies that do not reach a constant input
    shorts : pairs of nets that touch
    obstructed : nets that touch an obstruction of a cell
    close : pairs of shapes of two nets that are closer than the spacing of their layer, and do not touch
    contacts : pairs of touching shapes of one net, as (shape, shape) in `geometry`
    geometry : the shapes
    """

    open_nets: tuple[str, ...]
    shorts: tuple[tuple[str, str], ...]
    obstructed: tuple[str, ...]
    close: int
    contacts: tuple[tuple[int, int], ...]
    geometry: Geometry

    @property
    def clean(self) -> bool:
        """No open net and no short."""
        return not (self.open_nets or self.shorts or self.obstructed)

    def errors(self) -> str:
        """The errors in words; empty if there are none."""
        texts = []
        if self.open_nets:
            texts.append(f"{len(self.open_nets)} open nets ({', '.join(self.open_nets[:3])})")
        if self.shorts:
            texts.append(f"{len(self.shorts)} shorts ({', '.join('-'.join(pair) for pair in self.shorts[:3])})")
        if self.obstructed:
            texts.append(f"{len(self.obstructed)} nets on obstructions ({', '.join(self.obstructed[:3])})")
        return ", ".join(texts)


def geometry(design: Design, lef: Lef, placement: Placement, wires: Wires) -> Geometry:
    """The metal of a layout: cells, pins of the unit, wires and vias."""
    shapes = Geometry()
    for instance, kind in (*design.cells.items(), *placement.fillers.items()):
        cell, at = lef.cells[kind], placement.cells[instance]
        for pin in cell.pins.values():
            if pin.use in _RAILS:
                net: str | None = pin.name
            else:
                net = design.pins[instance].get(pin.name, f"{instance}/{pin.name}")
            boxes = [placed(shape, at, cell.width, cell.height) for shape in pin.shapes]
            shapes.add(Node(net, (instance, pin.name)), boxes)
        for shape in cell.obstructions:
            shapes.add(Node(None, (instance, "")), [placed(shape, at, cell.width, cell.height)])
    for port in design.ports:
        pin_at = placement.pins[port.name]
        half = lef.layers[pin_at.layer].width // 2
        pin_box = pin_at.x - half, pin_at.y - half, pin_at.x + half, pin_at.y + half
        shapes.add(Node(port.net, ("PIN", port.name)), [(pin_at.layer, pin_box)])
    for segment in wires.segments:
        shapes.add(Node(segment.net, segment), [(segment.layer, segment.box)])
    for via in wires.vias:
        shapes.add(Node(via.net, via), list(via.shapes(lef)))
    return shapes


def check(design: Design, lef: Lef, placement: Placement, wires: Wires) -> Connectivity:
    """Check that every net is one piece and touches no other net."""
    shapes = geometry(design, lef, placement, wires)
    parents = list(range(len(shapes.nodes)))

    def root(k: int) -> int:
        while parents[k] != k:
            parents[k] = parents[parents[k]]
            k = parents[k]
        return k

    contacts: list[tuple[int, int]] = []
    shorts: set[tuple[str, str]] = set()
    obstructed: set[str] = set()
    n_close = 0
    for first, second, touching in _pairs(shapes, lef):
        a, b = shapes.nodes[shapes.of[first]], shapes.nodes[shapes.of[second]]
        if a.net == b.net and a.net is not None:
            if touching:
                contacts.append((first, second))
                parents[root(shapes.of[first])] = root(shapes.of[second])
            continue
        cells = [node.owner[0] for node in (a, b) if isinstance(node.owner, tuple)]
        if len(cells) == 2 and (cells[0] == cells[1] != "PIN" or None in (a.net, b.net)):
            continue  # shapes of one cell are the cell's own matter, and so are obstructions of neighbours
        if not touching:
            n_close += 1
        elif a.net is None or b.net is None:
            obstructed.add(a.net or b.net or "")
        else:
            shorts.add((min(a.net, b.net), max(a.net, b.net)))
    pieces: dict[str, set[int]] = defaultdict(set)
    nets = design.nets
    for k, node in enumerate(shapes.nodes):
        if isinstance(node.owner, tuple) and node.net in nets:
            pieces[node.net].add(root(k))
    open_nets = [net for net in nets if len(pieces[net]) != 1]
    ties, rails = design.ties, defaultdict[str, set[int]](set)
    tied: dict[str, set[int]] = defaultdict(set)
    for k, node in enumerate(shapes.nodes):
        if isinstance(node.owner, tuple) and node.net in ties:
            (tied if node.owner in ties[node.net] else rails)[node.net].add(root(k))
    open_nets += [net for net in tied if not tied[net] <= rails[net]]
    return Connectivity(
        tuple(open_nets), tuple(sorted(shorts)), tuple(sorted(obstructed)), n_close, tuple(contacts), shapes
    )


def _pairs(shapes: Geometry, lef: Lef) -> list[tuple[int, int, bool]]:
    """Pairs of shapes of different nodes on one layer that touch, or are closer than the spacing of the layer."""
    boxes, of = np.array(shapes.boxes, np.int64).reshape(-1, 4), np.array(shapes.of)
    layers = np.array(shapes.layers)
    result: list[tuple[int, int, bool]] = []
    for layer in (*lef.layers, *lef.cuts):
        spacing = lef.layers[layer].spacing if layer in lef.layers else 0
        members = np.flatnonzero(layers == layer)
        bins: dict[tuple[int, int], list[int]] = defaultdict(list)
        for k in members.tolist():
            x0, y0, x1, y1 = shapes.boxes[k]
            for bx in range((x0 - spacing) // _BIN, (x1 + spacing) // _BIN + 1):
                for by in range((y0 - spacing) // _BIN, (y1 + spacing) // _BIN + 1):
                    bins[bx, by].append(k)
        pairs: set[tuple[int, int, bool]] = set()
        for entries in bins.values():
            some = np.array(entries)
            x0, y0, x1, y1 = boxes[some].T
            gap_x = np.maximum(x0[:, None], x0[None]) - np.minimum(x1[:, None], x1[None])
            gap_y = np.maximum(y0[:, None], y0[None]) - np.minimum(y1[:, None], y1[None])
            distance2 = np.maximum(gap_x, 0) ** 2 + np.maximum(gap_y, 0) ** 2
            near = (distance2 < spacing**2) | (distance2 == 0)
            near &= of[some][:, None] != of[some][None]
            for i, j in zip(*np.nonzero(np.triu(near, 1)), strict=True):
                first, second = sorted((int(some[i]), int(some[j])))
                pairs.add((first, second, bool(distance2[i, j] == 0)))
        result += sorted(pairs)
    return result
