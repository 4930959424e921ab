"""LEF: routing layers, vias and cells of a technology. All lengths are integers in nm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from util.files import read_text

OSU018 = Path("/usr/share/qflow/tech/osu018/osu018_stdcells.lef")  # Debian package qflow-tech-osu018

Box = tuple[int, int, int, int]  # left, bottom, right, top
Shape = tuple[str, Box]  # layer and rectangle


@dataclass(frozen=True)
class Layer:
    """A routing layer.

    `area_ff` is the capacitance in fF/um2, `edge_ff` that of each edge in fF/um, `ohms` the resistance of a square.
    """

    name: str
    horizontal: bool
    pitch: int
    width: int
    spacing: int
    ohms: float
    area_ff: float
    edge_ff: float

    @property
    def ff_per_um(self) -> float:
        """Capacitance of a wire of normal width, without its two ends."""
        return self.area_ff * self.width / 1000 + 2 * self.edge_ff


@dataclass(frozen=True)
class MacroPin:
    """A pin of a cell: direction, use (`SIGNAL`, `CLOCK`, `POWER` or `GROUND`) and shapes."""

    name: str
    direction: str
    use: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class MacroCell:
    """A cell: size, pins and shapes that no wire may touch."""

    name: str
    width: int
    height: int
    pins: dict[str, MacroPin]
    obstructions: tuple[Shape, ...]


@dataclass(frozen=True)
class Lef:
    """A technology: routing layers from the lowest to the highest, vias, width of a site and cells by name.

    `cuts` are the layers of via holes.
    """

    layers: dict[str, Layer]
    cuts: tuple[str, ...]
    vias: dict[str, tuple[Shape, ...]]
    site: int
    cells: dict[str, MacroCell]


@dataclass
class _Reader:
    """Statements of a LEF text: words up to a semicolon or, for statements without one, to the end of the line."""

    name: str
    lines: Iterator[list[str]]
    layers: dict[str, Layer] = field(default_factory=dict)
    cuts: list[str] = field(default_factory=list)
    vias: dict[str, tuple[Shape, ...]] = field(default_factory=dict)
    site: int = 0
    cells: dict[str, MacroCell] = field(default_factory=dict)

    def read(self) -> Lef:
        for words in self.lines:
            match words:
                case ["LAYER", name]:
                    self._layer(name)
                case ["VIA", name, *_]:
                    self.vias[name] = tuple(self._shapes(name))
                case ["SITE", name]:
                    self.site = next(_nm(w[1]) for w in self._until(name) if w[0] == "SIZE")
                case ["MACRO", name]:
                    self._macro(name)
                case ["VIARULE", name, *_] | ["NONDEFAULTRULE", name]:
                    for _ in self._until(name):
                        pass
        if not self.layers or not self.cells or not self.site:
            raise ValueError(
                f"LEF {self.name}: file must have routing layers, a site and cells, got an incomplete file"
            )
        return Lef(self.layers, tuple(self.cuts), self.vias, self.site, self.cells)

    def _until(self, name: str = "") -> Iterator[list[str]]:
        for words in self.lines:
            if words[0] == "END" and words[1:] == ([name] if name else []):
                return
            yield words
        raise ValueError(f"LEF {self.name}: section must end with END {name}, got the end of the file")

    def _layer(self, name: str) -> None:
        values = {words[0]: words[1:] for words in self._until(name)}
        if values["TYPE"] == ["CUT"]:
            self.cuts.append(name)
        if values["TYPE"] != ["ROUTING"]:
            return
        missing = {"DIRECTION", "PITCH", "WIDTH", "SPACING", "RESISTANCE", "CAPACITANCE"} - values.keys()
        if missing:
            raise ValueError(f"LEF {self.name}: layer {name} must have {', '.join(sorted(missing))}, got none")
        self.layers[name] = Layer(
            name=name,
            horizontal=values["DIRECTION"] == ["HORIZONTAL"],
            pitch=_nm(values["PITCH"][0]),
            width=_nm(values["WIDTH"][0]),
            spacing=_nm(values["SPACING"][0]),
            ohms=float(values["RESISTANCE"][-1]),
            area_ff=float(values["CAPACITANCE"][-1]) * 1e3,
            edge_ff=float(values.get("EDGECAPACITANCE", ["0"])[-1]) * 1e3,
        )

    def _shapes(self, end: str = "") -> Iterator[Shape]:
        layer = ""
        for words in self._until(end):
            if words[0] == "LAYER":
                layer = words[1]
            elif words[0] == "RECT":
                yield layer, box(*map(_nm, words[1:5]))
            elif words[0] in ("POLYGON", "PATH"):
                raise ValueError(f"LEF {self.name}: shapes must be rectangles, got {words[0]}")

    def _macro(self, name: str) -> None:
        width = height = 0
        pins: dict[str, MacroPin] = {}
        obstructions: list[Shape] = []
        for words in self._until(name):
            if words[0] == "SIZE":
                width, height = _nm(words[1]), _nm(words[3])
            elif words[0] == "OBS":
                obstructions += self._shapes()
            elif words[0] == "PIN":
                direction, use = "", "SIGNAL"
                shapes: list[Shape] = []
                for pin_words in self._until(words[1]):
                    if pin_words[0] == "DIRECTION":
                        direction = pin_words[1]
                    elif pin_words[0] == "USE":
                        use = pin_words[1]
                    elif pin_words[0] == "PORT":
                        shapes += self._shapes()
                pins[words[1]] = MacroPin(words[1], direction, use, tuple(shapes))
        self.cells[name] = MacroCell(name, width, height, pins, tuple(obstructions))


def box(x0: int, y0: int, x1: int, y1: int) -> Box:
    """The rectangle with these two corners."""
    return min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)


def _nm(text: str) -> int:
    return round(float(text) * 1000)


def parse(text: str, name: str) -> Lef:
    """Read a LEF text; raises `ValueError` that names the file `name` if it is incomplete."""
    plain = re.sub(r"#[^\n]*", "", text)
    lines = (words for line in plain.splitlines() if (words := line.replace(";", " ").split()))
    try:
        return _Reader(name, lines).read()
    except (IndexError, KeyError) as error:
        raise ValueError(f"LEF {name}: statement must be complete, got {error}") from error


def load(path: Path = OSU018) -> Lef:
    """Read a LEF file."""
    return parse(read_text(path), path.name)
