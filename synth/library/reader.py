"""Standard-cell libraries in Liberty: reading, checking, merging several files, and what flows ask of them."""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from synth.library.boolean import truth_table
from synth.library.liberty import library_text
from util.files import MAX_BYTES, build_root, write

OSU018 = Path("/usr/share/qflow/tech/osu018/osu018_stdcells.lib")  # Debian package qflow-tech-osu018

_COMMENT = re.compile(r"/\*.*?\*/|\\\r?\n|//[^\n]*", re.S)
_TOKEN = re.compile(r'"([^"]*)"|([{}();:,\n])|([^\s{}();:,"]+)')
_PIN_LOAD = re.compile(r"((?<![a-z_])capacitance\s*:\s*)([\d.eE+-]+)")
_PREFIX = {"f": 1e-15, "p": 1e-12, "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}


class LibraryError(ValueError):
    """A library cannot be used: missing, damaged, or without what a flow needs. One line that says which and why."""

    def __init__(self, text: str):
        super().__init__(" ".join(text.split()))  # what it quotes of a file may have lines


def _number(text: str) -> float:
    """A finite number; `ValueError` otherwise."""
    value = float(text)
    if not np.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


@dataclass
class Group:
    """A Liberty group: `kind (args) { attributes, groups }`, with its place in the text."""

    kind: str
    args: tuple[str, ...]
    attributes: dict[str, list[str]] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    span: tuple[int, int] = (0, 0)

    def get(self, name: str, default: str = "") -> str:
        values = self.attributes.get(name)
        return values[0] if values else default

    def of(self, kind: str) -> Iterator[Group]:
        return (group for group in self.groups if group.kind == kind)


def parse(text: str, name: str) -> Group:
    """The `library` group of a Liberty text without comments; raises `LibraryError` when it is damaged."""
    root = Group("", ())
    stack = [root]
    words: list[str] = []
    state, start = "", 0  # state: what follows the first word: ":" attribute, "(" arguments, ")" their end
    for match in _TOKEN.finditer(text):
        string, mark, word = match.groups()
        if mark is None:
            if not words:
                start, state = match.start(), ""
            elif state == ")":  # an attribute whose semicolon is missing ended with the arguments
                stack[-1].attributes[words[0]] = words[1:]
                words, state, start = [], "", match.start()
            words.append(string if word is None else word)
        elif mark in ":(":
            state = state or mark
        elif mark == ")":
            state = ")"
        elif mark == "\n":
            if state == ":" and len(words) > 1:  # real libraries forget semicolons
                stack[-1].attributes[words[0]] = words[1:]
                words, state = [], ""
        elif mark == "{":
            if not words:
                raise LibraryError(f"library {name}: a group without a name at byte {match.start()}")
            group = Group(words[0], tuple(words[1:]), span=(start, 0))
            stack[-1].groups.append(group)
            stack.append(group)
            words, state = [], ""
        elif mark in ";}":
            if words:
                stack[-1].attributes[words[0]] = words[1:]
            words, state = [], ""
            if mark == "}":
                if len(stack) == 1:
                    raise LibraryError(f"library {name}: a closing brace too many at byte {match.start()}")
                done = stack.pop()
                done.span = (done.span[0], match.end())
    if len(stack) > 1:
        raise LibraryError(
            f"library {name}: the file is truncated inside {stack[-1].kind} ({' '.join(stack[-1].args)})"
        )
    found = list(root.of("library"))
    if len(found) != 1:
        raise LibraryError(f"library {name}: must hold one library group, not {len(found)}")
    return found[0]


@dataclass(frozen=True)
class Table:
    """A one- or two-dimensional table, linear between and beyond its points as in Liberty."""

    axes: tuple[np.ndarray, ...]
    values: np.ndarray
    load_first: bool = False

    def __call__(self, slew: ArrayLike, load: ArrayLike) -> np.ndarray:
        """Values at input slews and output loads in the library's units; of a constraint table at the slews of the
        constrained pin and of the clock."""
        slew, load = np.broadcast_arrays(np.asarray(slew, float), np.asarray(load, float))
        points = (load, slew) if self.load_first else (slew, load)
        corners: list[tuple[tuple[np.ndarray, ...], np.ndarray]] = [((), np.ones(slew.shape))]
        for axis, x in zip(self.axes, points, strict=False):
            if len(axis) == 1:
                corners = [((*at, np.zeros(x.shape, int)), weight) for at, weight in corners]
                continue
            k = np.clip(np.searchsorted(axis, x) - 1, 0, len(axis) - 2)
            share = (x - axis[k]) / (axis[k + 1] - axis[k])
            corners = [
                ((*at, k + step), weight * part)
                for at, weight in corners
                for step, part in ((0, 1 - share), (1, share))
            ]
        return sum((self.values[at] * weight for at, weight in corners), start=np.zeros(slew.shape))


@dataclass(frozen=True)
class Arc:
    """Timing from `related` to the pin that holds it; tables by Liberty name (`cell_rise`, `setup` ...)."""

    related: str
    kind: str
    sense: str
    tables: dict[str, Table]


@dataclass(frozen=True)
class Energy:
    """Energy inside a cell per transition of the pin that holds it; `related` is empty when it names no pin."""

    related: str
    rise: Table
    fall: Table


@dataclass(frozen=True)
class Pin:
    name: str
    direction: str
    capacitance: float  # library units
    function: str
    clock: bool
    arcs: tuple[Arc, ...]
    energies: tuple[Energy, ...]


@dataclass(frozen=True)
class LibraryCell:
    """One cell: area in um2, leakage in W, its pins, its `ff` or `latch` group when it has one."""

    name: str
    area: float
    leakage_w: float
    pins: dict[str, Pin]
    state: Group | None
    dont_use: bool

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(pin.name for pin in self.pins.values() if pin.direction == "input")

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(pin.name for pin in self.pins.values() if pin.direction == "output")

    def is_function(self, function: str, inputs: int) -> bool:
        """Whether this is a one-output gate with `function` of its pins, given over a, b, c ..."""
        if self.state is not None or len(self.outputs) != 1 or len(self.inputs) != inputs:
            return False
        return self.table(self.outputs[0]) == truth_table(function, tuple("abcdefgh"[:inputs]))

    def table(self, output: str) -> int | None:
        """Truth table of an output over the inputs; None where it is none, as of a cell with nodes inside."""
        try:
            return truth_table(self.pins[output].function, self.inputs)
        except ValueError:
            return None


class Library:
    """A merged library: units, cells by name, and one plain Liberty file for the tools.

    Attributes
    ----------
    name, tier : name, and which of `embedded`, `osu018`, `user` it is
    voltage : V ; seconds, farads : units of its tables in s and F ; joules : unit of its energies
    text : the merged Liberty, no comments
    """

    def __init__(self, texts: Sequence[tuple[str, str]], tier: str):
        groups, plain = [], []
        for name, text in texts:
            if not text.strip():
                raise LibraryError(f"library {name}: the file is empty")
            plain.append(_COMMENT.sub(" ", text))
            groups.append(parse(plain[-1], name))
        self.tier = tier
        self.files = tuple(name for name, _ in texts)
        head = groups[0]
        self.name = head.args[0] if head.args else self.files[0]
        units = [self._units(group, name) for group, name in zip(groups, self.files, strict=True)]
        for unit, name in zip(units, self.files, strict=True):
            if unit != units[0]:
                raise LibraryError(f"library {name}: its units or voltage differ from those of {self.files[0]}")
        self.seconds, self.farads, self._leakage_unit, self.voltage = units[0]
        self.joules = self.farads  # per V^2
        self._groups = {" ".join(c.args): (g, c) for g in groups for c in g.of("cell")}
        if not self._groups:
            raise LibraryError(f"library {self.name}: it has no cells")
        self._templates = {
            " ".join(t.args): t
            for g in groups
            for kind in ("lu_table_template", "power_lut_template")
            for t in g.of(kind)
        }
        self._cells: dict[str, LibraryCell] = {}
        self.text = self._merge(groups, plain)
        try:
            self.temperature = _number(head.get("nom_temperature", "25"))
            self.wire_farads = self._wire(head) * self.farads
        except (ValueError, IndexError, ZeroDivisionError) as error:
            raise LibraryError(f"library {self.name}: nom_temperature or its wire load cannot be read") from error

    def _units(self, group: Group, name: str) -> tuple[float, float, float, float]:
        def unit(attribute: str, default: str) -> float:
            text = group.get(attribute, default)
            match = re.fullmatch(r"\s*([\d.]+)\s*([fpnum]?)[A-Za-z]+\s*", text)
            if match is None:
                raise LibraryError(f"library {name}: {attribute} = {text!r}: must be a number with a unit")
            return float(match.group(1)) * _PREFIX[match.group(2)]

        load = group.attributes.get("capacitive_load_unit", ["1", "pf"])
        try:
            farads = float(load[0]) * _PREFIX[load[1].strip().lower()[:-1]]
            voltage = float(group.get("nom_voltage", "nan"))
        except (KeyError, ValueError, IndexError) as error:
            raise LibraryError(f"library {name}: capacitive_load_unit or nom_voltage cannot be read") from error
        return unit("time_unit", "1ns"), farads, unit("leakage_power_unit", "1nW"), voltage

    def _wire(self, head: Group) -> float:
        """Wire capacitance per fan-out of the default wire load, library units; 0 when the library has none."""
        for group in head.of("wire_load"):
            if group.args[:1] == (head.get("default_wire_load"),):
                lengths = group.attributes.get("fanout_length", ["1", "1"])
                return _number(group.get("capacitance", "0")) * _number(lengths[1]) / _number(lengths[0])
        return 0.0

    def _merge(self, groups: Sequence[Group], texts: Sequence[str]) -> str:
        """One Liberty text: the first file, then the templates and cells of the others."""
        if len(groups) == 1:
            return texts[0]
        seen = {(g.kind, g.args) for g in groups[0].groups}
        extra = []
        for group, text in zip(groups[1:], texts[1:], strict=True):
            for inner in group.groups:
                if (inner.kind, inner.args) not in seen and (inner.kind == "cell" or inner.kind.endswith("template")):
                    seen.add((inner.kind, inner.args))
                    extra.append(text[slice(*inner.span)])
        end = groups[0].span[1] - 1
        return texts[0][:end] + "\n".join(extra) + "\n}\n"

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def path(self) -> Path:
        """The merged library as a plain file for the tools."""
        name = re.sub(r"\W+", "_", self.name)[:64]
        path = build_root() / "libraries" / f"{name}-{self.digest}.lib"
        if not path.exists():
            write(path, self.text)
        return path

    @property
    def loaded_path(self) -> Path:
        """As `path`, every input pin with the wire that leads to it: abc knows no wire load, but sizes for pins."""
        wire = self.wire_farads / self.farads
        if not wire:
            return self.path
        path = self.path.with_suffix(".loaded.lib")
        if not path.exists():
            write(path, _PIN_LOAD.sub(lambda m: f"{m[1]}{float(m[2]) + wire:.6g}" if float(m[2]) else m[0], self.text))
        return path

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._groups)

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    def cell(self, name: str) -> LibraryCell:
        """The cell called `name`; `LibraryError` when there is none or it cannot be read."""
        if name not in self._cells:
            if name not in self._groups:
                raise LibraryError(f"library {self.name}: it has no cell {name}")
            group, cell = self._groups[name]
            try:
                self._cells[name] = self._read(group, cell)
            except (ValueError, IndexError, KeyError) as error:
                raise LibraryError(f"library {self.name}: cell {name} cannot be read: {error}") from error
        return self._cells[name]

    def cells(self) -> Iterator[LibraryCell]:
        return (self.cell(name) for name in self._groups)

    def _read(self, library: Group, cell: Group) -> LibraryCell:
        rails = {p.args[0] for p in cell.of("pg_pin") if "ground" in p.get("pg_type")}
        states = [
            _number(g.get("value", "0")) for g in cell.of("leakage_power") if g.get("related_pg_pin") not in rails
        ]
        if states and not cell.get("cell_leakage_power"):
            leakage = sum(states) / len(states)
        else:
            leakage = _number(cell.get("cell_leakage_power") or library.get("default_cell_leakage_power", "0"))
        state = next((g for kind in ("ff", "latch") for g in cell.of(kind)), None)
        pins = {}
        for group in cell.of("pin"):
            for name in group.args:
                pins[name] = self._pin(name, group, rails)
        hidden = cell.get("dont_use").lower() == "true"
        return LibraryCell(
            cell.args[0], _number(cell.get("area", "0")), leakage * self._leakage_unit, pins, state, hidden
        )

    def _pin(self, name: str, group: Group, rails: set[str]) -> Pin:
        arcs: list[Arc] = []
        for timing in group.of("timing"):
            tables = {table.kind: self._table(table) for table in timing.groups if table.args}
            kind, sense = timing.get("timing_type", "combinational"), timing.get("timing_sense")
            arcs += [Arc(related, kind, sense, tables) for related in timing.get("related_pin").split()]
        energies: list[Energy] = []
        for power in group.of("internal_power"):
            tables = {table.kind: self._table(table) for table in power.groups if table.args}
            if not tables or power.get("related_pg_pin") in rails:
                continue
            both = tables.get("power")
            rise, fall = tables.get("rise_power", both), tables.get("fall_power", both)
            if rise is not None or fall is not None:
                zero = Table((), np.zeros(()))
                sources = power.get("related_pin").split() or [""]
                energies += [Energy(related, rise or zero, fall or zero) for related in sources]
        capacitance = _number(group.get("capacitance", "0"))
        function = group.get("function")
        clock = group.get("clock").lower() == "true"
        return Pin(name, group.get("direction"), capacitance, function, clock, tuple(arcs), tuple(energies))

    def _table(self, group: Group) -> Table:
        template = self._templates.get(group.args[0])
        rows = group.attributes.get("values", [])
        values = np.array([_number(x) for row in rows for x in row.replace(",", " ").split()])
        axes, load_first = [], False
        for number in (1, 2):
            index = group.get(f"index_{number}") or (template.get(f"index_{number}") if template else "")
            if index:
                axes.append(np.array([_number(x) for x in index.replace(",", " ").split()]))
                if (np.diff(axes[-1]) <= 0).any():
                    raise ValueError(f"index_{number} of {group.kind} must ascend, got {index}")
            if template and number == 1:
                first = template.get("variable_1")
                load_first = "capacitance" in first or "related_pin" in first
        shape = tuple(len(axis) for axis in axes)
        if values.size == 1:
            return Table((), values.reshape(()))
        if values.size != np.prod(shape) or not values.size:
            raise ValueError(f"{group.kind} must have {' x '.join(map(str, shape))} values, got {values.size}")
        return Table(tuple(axes), values.reshape(shape), load_first)

    @cached_property
    def nand2(self) -> LibraryCell:
        """The smallest 2-input NAND, the unit of area; `LibraryError` when there is none."""
        found = [cell for cell in self._usable() if cell.is_function("!(a * b)", 2)]
        if not found:
            raise LibraryError(f"library {self.name}: it has no 2-input NAND, the unit in which area is compared")
        if min(cell.area for cell in found) <= 0:
            raise LibraryError(f"library {self.name}: cell {found[0].name} has no area")
        return min(found, key=lambda cell: cell.area)

    @cached_property
    def inverter(self) -> LibraryCell:
        """The smallest inverter, the strongest of equal size."""
        found = [cell for cell in self._usable() if cell.is_function("!a", 1)]
        if not found:
            raise LibraryError(f"library {self.name}: it has no inverter")
        return min(found, key=lambda c: (c.area, -c.pins[c.inputs[0]].capacitance))

    @cached_property
    def buffers(self) -> tuple[LibraryCell, ...]:
        """The buffers, the smallest first; none in some libraries."""
        found = (cell for cell in self._usable() if cell.is_function("a", 1))
        return tuple(sorted(found, key=lambda cell: cell.area))

    def _usable(self) -> Iterable[LibraryCell]:
        return (cell for cell in self.cells() if not cell.dont_use)

    def find(self, functions: dict[str, str], inputs: int) -> tuple[LibraryCell, dict[str, str]] | None:
        """The smallest cell whose outputs are the given functions of a, b, c ...: output of each name, or None."""
        names = tuple("abcdefgh"[:inputs])
        wanted = {name: truth_table(text, names) for name, text in functions.items()}
        best: tuple[LibraryCell, dict[str, str]] | None = None
        for cell in self._usable():
            if cell.state is None and len(cell.inputs) == inputs and len(cell.outputs) == len(wanted):
                own = {cell.table(pin): pin for pin in cell.outputs}
                if set(own) == set(wanted.values()) and (best is None or cell.area < best[0].area):
                    best = cell, {name: own[table] for name, table in wanted.items()}
        return best

    def require(self, *, timing: bool = False, power: bool = False, cells: Iterable[str] = ()) -> None:
        """Raise `LibraryError` unless the library has a NAND2, a flip-flop and, when asked, timing and power tables:
        of the NAND2, and of the `cells` that a netlist uses, of which a figure would silently leave out any other."""
        if not any(cell.state is not None and cell.state.kind == "ff" for cell in self.cells()):
            raise LibraryError(f"library {self.name}: it has no flip-flop")
        for cell in (self.nand2, *(self.cell(name) for name in cells)):
            driven = [cell.pins[name] for name in cell.outputs if cell.inputs]
            if timing and not all(any("cell_rise" in arc.tables for arc in pin.arcs) for pin in driven):
                raise LibraryError(f"library {self.name}: cell {cell.name} has no delay tables, so there is no timing")
            if power and not any(pin.energies for pin in cell.pins.values()):
                raise LibraryError(f"library {self.name}: cell {cell.name} has no power tables, so there is no power")
        if power and not self.voltage > 0:
            raise LibraryError(f"library {self.name}: it names no nom_voltage, so there is no power")

    @property
    def fo4_ps(self) -> float:
        """Fan-out-of-4 delay in ps: an inverter that drives four of its kind, at the slew such a chain settles to."""
        return self._fo4[0]

    @property
    def fo4_slew(self) -> float:
        """The slew that a chain of such inverters settles to, the mean of both edges, in the library's unit."""
        return self._fo4[1]

    @cached_property
    def _fo4(self) -> tuple[float, float]:
        self.require(timing=True)
        cell = self.inverter
        (source,), (target,) = cell.inputs, cell.outputs
        needed = {"cell_rise", "cell_fall", "rise_transition", "fall_transition"}
        arc = next((arc for arc in cell.pins[target].arcs if needed <= set(arc.tables)), None)
        if arc is None:
            raise LibraryError(f"library {self.name}: cell {cell.name} has no arc with {', '.join(sorted(needed))}")
        load = 4 * cell.pins[source].capacitance
        rise = fall = arc.tables["rise_transition"](0.0, load)
        for _ in range(20):
            rise, fall = arc.tables["rise_transition"](fall, load), arc.tables["fall_transition"](rise, load)
        delay = arc.tables["cell_rise"](fall, load) + arc.tables["cell_fall"](rise, load)
        return float(delay) / 2 * self.seconds * 1e12, float(rise + fall) / 2

    def json(self) -> dict[str, object]:
        """What a report states about its technology."""
        return {
            "name": self.name,
            "tier": self.tier,
            "files": list(self.files),
            "digest": self.digest,
            "voltage_v": self.voltage,
            "temperature_c": self.temperature,
            "nand2": {"cell": self.nand2.name, "area_um2": self.nand2.area},
            "wire_ff_per_fanout": self.wire_farads * 1e15,
        }


def embedded() -> Library:
    """The predictive 14 nm-class library of `synth.library`."""
    return Library([("predictive14", library_text())], "embedded")


def load(paths: Sequence[Path | str]) -> Library:
    """One library of one or several Liberty files, plain or gzip.

    Raises
    ------
    LibraryError
        A file is missing, empty, truncated, not Liberty, above `MAX_BYTES`, or its units differ from the first's.
    """
    if not paths:
        raise LibraryError("liberty: no file is given")
    tier = "osu018" if [Path(path) for path in paths] == [OSU018] else "user"
    return Library([(Path(path).name, _read_text(Path(path))) for path in paths], tier)


def choose(liberty: Sequence[Path | str] = ()) -> Library:
    """The library that a command names: files, `osu018`, or the embedded one when nothing is given."""
    if not liberty:
        return embedded()
    if [str(name) for name in liberty] == ["osu018"]:
        if not OSU018.exists():
            raise LibraryError(f"library osu018: {OSU018} is not there (Debian: apt install qflow-tech-osu018)")
        return load([OSU018])
    return load(liberty)


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if zipped else path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LibraryError(f"library {path}: the gzip file is damaged or truncated") from error
    except OSError as error:
        raise LibraryError(f"library {path}: {error.strerror or error}") from error
    if len(content) > MAX_BYTES:
        raise LibraryError(f"library {path}: larger than {MAX_BYTES >> 20} MiB")
    return content.decode("utf-8", errors="replace")
