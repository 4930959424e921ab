"""Standard-cell libraries in Liberty: reading, checks, merging of several files, and the values that flows need."""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from synth.library.boolean import truth_table
from synth.library.liberty import library_text
from synth.library.parser import LibertyGroup, LibraryError, parse
from synth.library.records import Arc, ClockGate, Energy, LibraryCell, LookupTable, Pin
from util.files import MAX_BYTES, build_root, write

# osu018 has no wire load. This one is a fit to eight of the layouts in docs/measurements/layout.md with 80 % of the
# rows filled: fF for each load in a block whose cells have 100,000 um2, and exponent of the area.
OSU018_WIRE_FF, OSU018_WIRE_EXPONENT = 2.4, 0.105


def osu018_wire_loads() -> str:
    """Wire loads of osu018 in Liberty: a default, and one for each doubling of a block's area from 1,000 um2 on."""

    def wire_load(name: str, area_um2: float) -> str:
        pf = OSU018_WIRE_FF * (area_um2 / 1e5) ** OSU018_WIRE_EXPONENT / 1000
        values = f"resistance : 0; capacitance : {pf:.6f}; area : 0; slope : 1; fanout_length (1, 1);"
        return f'wire_load("{name}") {{ {values} }}'

    steps = [1000.0 * 2**k for k in range(16)]
    lines = ['default_wire_load : "layouts";', wire_load("layouts", 1e5), 'default_wire_load_selection : "by_area";']
    lines += [wire_load(f"layouts{k}", area * 2**0.5) for k, area in enumerate(steps)]
    bounds = [0.0, *steps[1:], 1e12]
    ranges = " ".join(
        f'wire_load_from_area({low:g}, {high:g}, "layouts{k}");' for k, (low, high) in enumerate(pairwise(bounds))
    )
    lines.append(f'wire_load_selection("by_area") {{ {ranges} }}')
    return "\n".join(["", *(f"  {line}" for line in lines), ""])


OSU018 = Path("/usr/share/qflow/tech/osu018/osu018_stdcells.lib")  # Debian package qflow-tech-osu018

_FROM_AREA = re.compile(r'wire_load_from_area\s*\(\s*([\d.eE+-]+)\s*,[^,]*,\s*"?([^")\s]+)"?\s*\)')
_COMMENT = re.compile(r"/\*.*?\*/|\\\r?\n|//[^\n]*", re.S)
_PIN_LOAD = re.compile(r"((?<![a-z_])capacitance\s*:\s*)([\d.eE+-]+)")
_LARGEST = [f"{edge}_capacitance{suffix}" for edge in ("rise", "fall") for suffix in ("", "_range")]
_PREFIX = {"f": 1e-15, "p": 1e-12, "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}


def _number(text: str) -> float:
    """A finite number; `ValueError` otherwise."""
    value = float(text)
    if not np.isfinite(value):
        raise ValueError(f"number must be finite, got {text}")
    return value


class Library:
    """A merged library: units, cells by name, and one plain Liberty file for the tools.

    Attributes
    ----------
    name, tier : name of the library ; `embedded`, `osu018` or `user`
    voltage : V ; seconds, farads : units of its tables in s and F ; joules : unit of its energies
    text : the merged Liberty text without comments
    """

    def __init__(self, texts: Sequence[tuple[str, str]], tier: str):
        groups, plain = [], []
        for name, text in texts:
            if not text.strip():
                raise LibraryError(f"library {name}: file must not be empty, got no text")
            plain.append(_COMMENT.sub(" ", text))
            groups.append(parse(plain[-1], name))
        self.tier = tier
        self.files = tuple(name for name, _ in texts)
        head = groups[0]
        self.name = head.args[0] if head.args else self.files[0]
        units = [self._units(group, name) for group, name in zip(groups, self.files, strict=True)]
        for unit, name in zip(units, self.files, strict=True):
            if unit != units[0]:
                raise LibraryError(
                    f"library {name}: units and voltage must be those of {self.files[0]} {units[0]}, got {unit}"
                )
        self.seconds, self.farads, self._leakage_unit, self.voltage = units[0]
        self.joules = self.farads  # per V^2
        self._groups = {" ".join(c.args): (g, c) for g in groups for c in g.of("cell")}
        if not self._groups:
            raise LibraryError(f"library {self.name}: library must have cells, got none")
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
            self.wire_farads = self._wire(head, head.get("default_wire_load")) * self.farads
            self._wire_farads = self._wires(head)
        except (ValueError, IndexError, ZeroDivisionError) as error:
            raise LibraryError(
                f"library {self.name}: nom_temperature and wire load must be numbers, got {error}"
            ) from error

    def _units(self, group: LibertyGroup, name: str) -> tuple[float, float, float, float]:
        def unit(attribute: str, default: str) -> float:
            text = group.get(attribute, default)
            match = re.fullmatch(r"\s*([\d.]+)\s*([fpnum]?)[A-Za-z]+\s*", text)
            if match is None:
                raise LibraryError(f"library {name}: {attribute} must be a number with a unit, got {text!r}")
            return float(match.group(1)) * _PREFIX[match.group(2)]

        load = group.attributes.get("capacitive_load_unit", ["1", "pf"])
        try:
            farads = float(load[0]) * _PREFIX[load[1].strip().lower()[:-1]]
            voltage = float(group.get("nom_voltage", "nan"))
        except (KeyError, ValueError, IndexError) as error:
            raise LibraryError(
                f"library {name}: capacitive_load_unit and nom_voltage must be numbers, got {error}"
            ) from error
        return unit("time_unit", "1ns"), farads, unit("leakage_power_unit", "1nW"), voltage

    def _wire(self, head: LibertyGroup, name: str | None) -> float:
        """Wire capacitance per fan-out of a wire load in library units; 0 without this wire load."""
        for group in head.of("wire_load"):
            if group.args[:1] == (name,):
                lengths = group.attributes.get("fanout_length", ["1", "1"])
                return _number(group.get("capacitance", "0")) * _number(lengths[1]) / _number(lengths[0])
        return 0.0

    def _wires(self, head: LibertyGroup) -> list[tuple[float, float]]:
        """The default selection of wire loads: least area of the cells, and farads per fan-out; largest area first."""
        for group in head.of("wire_load_selection"):
            if group.args[:1] == (head.get("default_wire_load_selection"),):
                ranges = _FROM_AREA.findall(self.text[slice(*group.span)])
                return sorted(
                    ((_number(low), self._wire(head, name) * self.farads) for low, name in ranges), reverse=True
                )
        return []

    def wire_farads_of(self, area_um2: float) -> float:
        """Wire capacitance per fan-out in a block whose cells have this area: that of the default selection or load."""
        return next((farads for least, farads in self._wire_farads if area_um2 >= least), self.wire_farads)

    def _merge(self, groups: Sequence[LibertyGroup], texts: Sequence[str]) -> str:
        """One Liberty text: the first file, then the templates and cells of the others."""
        if len(groups) == 1:
            return texts[0]
        group_ids = {(g.kind, g.args) for g in groups[0].groups}
        extra = []
        for group, text in zip(groups[1:], texts[1:], strict=True):
            for inner in group.groups:
                if (inner.kind, inner.args) not in group_ids and (
                    inner.kind == "cell" or inner.kind.endswith("template")
                ):
                    group_ids.add((inner.kind, inner.args))
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
        """As `path`, with the wire load added to every input pin: abc ignores wire loads, but sizes for pins."""
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
        """The cell with the name `name`; raises `LibraryError` if it is missing or invalid."""
        if name not in self._cells:
            if name not in self._groups:
                raise LibraryError(f"library {self.name}: cell {name} is missing")
            group, cell = self._groups[name]
            try:
                self._cells[name] = self._read(group, cell)
            except (ValueError, IndexError, KeyError) as error:
                raise LibraryError(f"library {self.name}: cell {name} is invalid: {error}") from error
        return self._cells[name]

    def cells(self) -> Iterator[LibraryCell]:
        return (self.cell(name) for name in self._groups)

    def _read(self, library: LibertyGroup, cell: LibertyGroup) -> LibraryCell:
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
        area = _number(cell.get("area", "0"))
        return LibraryCell(
            cell.args[0], area, leakage * self._leakage_unit, pins, state, hidden, self._clock_gate(cell)
        )

    def _clock_gate(self, cell: LibertyGroup) -> ClockGate | None:
        """The pins of a clock gate for rising edges whose latch is open while the clock is 0; None for other cells."""
        if not cell.get("clock_gating_integrated_cell").startswith("latch_posedge"):
            return None
        pins: dict[str, list[str]] = {kind: [] for kind in ("clock", "enable", "out", "test", "obs")}
        for group in cell.of("pin"):
            for kind, names in pins.items():
                if group.get(f"clock_gate_{kind}_pin").lower() == "true":
                    names += group.args
        if [len(pins[kind]) for kind in ("clock", "enable", "out", "obs")] != [1, 1, 1, 0]:
            return None
        return ClockGate(pins["clock"][0], pins["enable"][0], pins["out"][0], tuple(pins["test"]))

    def _pin(self, name: str, group: LibertyGroup, rails: set[str]) -> Pin:
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
                zero = LookupTable((), np.zeros(()))
                sources = power.get("related_pin").split() or [""]
                energies += [Energy(related, rise or zero, fall or zero) for related in sources]
        capacitance = _number(group.get("capacitance", "0"))
        ranges = [value for name in _LARGEST for value in group.attributes.get(name, [])]
        largest = max([capacitance, *map(_number, ranges)])
        function = group.get("function")
        clock = group.get("clock").lower() == "true"
        return Pin(name, group.get("direction"), capacitance, largest, function, clock, tuple(arcs), tuple(energies))

    def _table(self, group: LibertyGroup) -> LookupTable:
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
            return LookupTable((), values.reshape(()))
        if values.size != np.prod(shape) or not values.size:
            raise ValueError(f"{group.kind} must have {' x '.join(map(str, shape))} values, got {values.size}")
        return LookupTable(tuple(axes), values.reshape(shape), load_first)

    @cached_property
    def nand2(self) -> LibraryCell:
        """The smallest 2-input NAND, the unit of area; raises `LibraryError` if the library has none."""
        nands = [cell for cell in self._usable() if cell.is_function("!(a * b)", 2)]
        if not nands:
            raise LibraryError(f"library {self.name}: 2-input NAND, the unit of area, is missing")
        nands.sort(key=lambda cell: cell.area)
        if nands[0].area <= 0:
            raise LibraryError(
                f"library {self.name}: area of cell {nands[0].name} must be above 0, got {nands[0].area:g}"
            )
        return nands[0]

    @cached_property
    def inverter(self) -> LibraryCell:
        """The smallest inverter; of inverters of equal size, the strongest."""
        inverters = [cell for cell in self._usable() if cell.is_function("!a", 1)]
        if not inverters:
            raise LibraryError(f"library {self.name}: inverter is missing")
        return min(inverters, key=lambda c: (c.area, -c.pins[c.inputs[0]].capacitance))

    @cached_property
    def clock_gate(self) -> LibraryCell | None:
        """The smallest clock gate; of equal sizes the one with the fewest test pins. None: the library has none."""
        gates = [(cell.area, len(cell.gate.test), cell.name) for cell in self._usable() if cell.gate is not None]
        return self.cell(min(gates)[2]) if gates else None

    @cached_property
    def buffers(self) -> tuple[LibraryCell, ...]:
        """The buffers, the smallest first; some libraries have none."""
        buffers = (cell for cell in self._usable() if cell.is_function("a", 1))
        return tuple(sorted(buffers, key=lambda cell: cell.area))

    def _usable(self) -> Iterable[LibraryCell]:
        return (cell for cell in self.cells() if not cell.dont_use)

    def find(self, functions: dict[str, str], inputs: int) -> tuple[LibraryCell, dict[str, str]] | None:
        """The smallest cell whose outputs are `functions` of a, b, c ..., and the output of each name; or None."""
        names = tuple("abcdefgh"[:inputs])
        required = {name: truth_table(text, names) for name, text in functions.items()}
        best: tuple[LibraryCell, dict[str, str]] | None = None
        for cell in self._usable():
            if cell.is_logic and len(cell.inputs) == inputs and len(cell.outputs) == len(required):
                outputs = {cell.table(pin): pin for pin in cell.outputs}
                if set(outputs) == set(required.values()) and (best is None or cell.area < best[0].area):
                    best = cell, {name: outputs[table] for name, table in required.items()}
        return best

    def require(self, *, timing: bool = False, power: bool = False, cells: Iterable[str] = ()) -> None:
        """Check that the library has a NAND2, a flip-flop and, on request, timing and power tables.

        The tables are required of the NAND2 and of the `cells` of a netlist. Raises `LibraryError`.
        """
        if not any(cell.state is not None and cell.state.kind == "ff" for cell in self.cells()):
            raise LibraryError(f"library {self.name}: flip-flop is missing")
        for cell in (self.nand2, *(self.cell(name) for name in cells)):
            driven = [cell.pins[name] for name in cell.outputs if cell.inputs]
            if timing and not all(any("cell_rise" in arc.tables for arc in pin.arcs) for pin in driven):
                raise LibraryError(
                    f"library {self.name}: cell {cell.name} has no delay tables; timing cannot be computed"
                )
            if power and not any(pin.energies for pin in cell.pins.values()):
                raise LibraryError(
                    f"library {self.name}: cell {cell.name} has no power tables; power cannot be computed"
                )
        if power and not self.voltage > 0:
            raise LibraryError(f"library {self.name}: nom_voltage is missing; power cannot be computed")

    @property
    def fo4_ps(self) -> float:
        """Fan-out-of-4 delay in ps: delay of an inverter with four equal loads, at the slew of a long chain of them."""
        return self._fo4[0]

    @property
    def fo4_slew(self) -> float:
        """Slew in a long chain of such inverters, the mean of both edges, in the library's unit."""
        return self._fo4[1]

    @cached_property
    def _fo4(self) -> tuple[float, float]:
        self.require(timing=True)
        cell = self.inverter
        (source,), (target,) = cell.inputs, cell.outputs
        required_tables = {"cell_rise", "cell_fall", "rise_transition", "fall_transition"}
        arc = next((arc for arc in cell.pins[target].arcs if required_tables <= set(arc.tables)), None)
        if arc is None:
            raise LibraryError(
                f"library {self.name}: cell {cell.name} must have an arc with {', '.join(sorted(required_tables))}"
            )
        load = 4 * cell.pins[source].capacitance
        rise = fall = arc.tables["rise_transition"](0.0, load)
        for _ in range(20):
            rise, fall = arc.tables["rise_transition"](fall, load), arc.tables["fall_transition"](rise, load)
        delay = arc.tables["cell_rise"](fall, load) + arc.tables["cell_fall"](rise, load)
        return float(delay) / 2 * self.seconds * 1e12, float(rise + fall) / 2

    def json(self) -> dict[str, object]:
        """The library in a report."""
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
        A file is missing, empty, truncated, not Liberty, above `MAX_BYTES`, or has other units than the first file.
    """
    if not paths:
        raise LibraryError("liberty files must not be empty, got none")
    texts = [(Path(path).name, _read_text(Path(path))) for path in paths]
    if [Path(path) for path in paths] != [OSU018]:
        return Library(texts, "user")
    ((name, text),) = texts
    head, brace, rest = text.partition("{")  # of the library group
    return Library([(name, head + brace + osu018_wire_loads() + rest)], "osu018")


def choose(liberty: Sequence[Path | str] = ()) -> Library:
    """The library of a command line: `liberty` files, `osu018`, or the embedded library by default."""
    if not liberty:
        return embedded()
    if [str(name) for name in liberty] == ["osu018"]:
        if not OSU018.exists():
            raise LibraryError(f"library osu018: file {OSU018} is missing (Debian: apt install qflow-tech-osu018)")
        return load([OSU018])
    return load(liberty)


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if zipped else path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LibraryError(
            f"library {path}: file must be complete gzip data, got a damaged or truncated file"
        ) from error
    except OSError as error:
        raise LibraryError(f"library {path}: {error.strerror or error}") from error
    if len(content) > MAX_BYTES:
        raise LibraryError(f"library {path}: file must be at most {MAX_BYTES >> 20} MiB, got a larger one")
    return content.decode("utf-8", errors="replace")
