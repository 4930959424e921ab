"""A netlist with many faults (mutants); an input port selects the active one.

yosys `mutate` selects bits of cell ports in the flattened netlist. A mutant replaces its bit by 0, by 1 or by the
inverse, always or depending on another bit of the port. The new input port `mutant` selects the mutant by its number;
0 selects the netlist without a fault. One simulator build therefore serves a whole campaign.

Separately buildable units inside the unit get no faults: each has its own campaign.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from amaranth.hdl import Fragment
from amaranth.lib import wiring

from hw import emit, yosys
from hw.core.register_map import COUNTERS
from util.files import ROOT

SELECT, SELECT_BITS, CLOCK = "mutant", 16, "clk"
MAX_MUTANTS = (1 << SELECT_BITS) - 1
_FLAT = ("proc", "techmap t:$fa", "memory_collect", "opt_clean", "flatten", "opt", "wreduce", "opt")
_COUNTERS = "hw/common/counters.py"
_COUNTER = re.compile(rf"(?:^|[._])(?:(?:stat|counter)_\w+|input_(?:{'|'.join(COUNTERS)}))\[(\d+)\]$")
_ROOT = str(ROOT)


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes
    ----------
    number : value of the input port `mutant` that activates it
    mode : const0, const1, inv, or inversion when bit `control` of the port is 0 (cnot0) or 1 (cnot1)
    cell, port, bit : location in the netlist
    wire : signal at this location, empty if it has no name
    sources : source lines that this location comes from
    """

    number: int
    mode: str
    cell: str
    port: str
    bit: int
    control: int | None
    wire: str
    sources: tuple[str, ...]

    @property
    def events(self) -> int:
        """Number of counted events after which the fault can show; above 1 for high bits of counters."""
        counter = _COUNTER.search(self.wire)
        is_counter = counter or self.port.startswith("stat_") or any(_COUNTERS in source for source in self.sources)
        if not is_counter or "_bytes" in self.wire + self.port:  # one event adds many bytes
            return 1
        offset = int(counter[1]) - self.bit if counter else 0
        zero_bit = {"const0": self.bit, "cnot1": self.control}.get(self.mode)  # no effect while this bit is 0
        return 1 if zero_bit is None else 1 << zero_bit + offset

    def __str__(self) -> str:
        wire = f" ({self.wire})" if self.wire else ""
        return f"{self.number}: {self.mode} at {self.cell}.{self.port}[{self.bit}]{wire}, {', '.join(self.sources)}"


@dataclass(frozen=True)
class MutatedNetlist:
    """A unit with its mutants, as Verilog and as an RTLIL file in which inner units are modules."""

    name: str
    mutants: tuple[Mutant, ...]
    verilog: str
    rtlil: Path


def check_count(count: int) -> None:
    """Raise `ValueError` unless `count` is 1 to `MAX_MUTANTS`."""
    if not 1 <= count <= MAX_MUTANTS:
        raise ValueError(f"mutants must be 1 to {MAX_MUTANTS}, got {count}")


def insert_mutants(
    component: wiring.Component, name: str, count: int, folder: Path, *, seed: int = 1, tool: str = "yowasp"
) -> MutatedNetlist:
    """Insert `count` mutants into `component`; yosys distributes them over its source lines, wires and cells.

    Files are written to `folder`. A unit with fewer locations than `count` gets fewer mutants. Raises `ValueError` for
    a count that is not 1 to `MAX_MUTANTS`.
    """
    check_count(count)
    folder.mkdir(parents=True, exist_ok=True)
    source, listing, netlist, verilog = (folder / file for file in ("unit.il", "list.ys", "mutated.il", "mutated.v"))
    source.write_text(emit.to_rtlil(component, name, locations=True))
    units = list(_inner_units(Fragment.get(component, None), name))
    keep_units = [f"setattr -mod -set keep_hierarchy 1 {' '.join(units)}"] if units else []
    choose = f"mutate -list {count} -seed {seed} -ctrl {SELECT} {SELECT_BITS} 1 -o {listing} {name}"
    load = [f"read_rtlil {source}", f"hierarchy -top {name}"]
    yosys.run([*load, *keep_units, *_FLAT, choose, f"write_rtlil {netlist}"], tool=tool)
    # a mutant at the clock of an inner unit would make the clock a data signal, with a race at its edge
    lines = [line for line in listing.read_text().splitlines() if f"-port {CLOCK} " not in line]
    listing.write_text("\n".join(lines) + "\n")
    flatten = [f"setattr -mod -unset keep_hierarchy {' '.join(units)}", "flatten", "opt_clean"] if units else []
    insert = [f"read_rtlil {netlist}", f"script {listing}", "opt_clean", f"write_rtlil {netlist}"]
    # without parallel_case: a select may have two bits set until the logic settles, which a simulator would report
    yosys.run([*insert, *flatten, f"write_verilog -noattr -noparallelcase {verilog}"], tool=tool)
    return MutatedNetlist(name, tuple(map(_mutant, lines)), verilog.read_text(), netlist)


def _inner_units(fragment: Fragment, path: str) -> Iterator[str]:
    """Module names of the outermost separately buildable units inside `fragment`."""
    for subfragment, name, _ in fragment.subfragments:
        module = f"{path}.{name}"
        if any(hasattr(origin, "from_config") for origin in subfragment.origins or ()):
            yield module
        else:
            yield from _inner_units(subfragment, module)


def _mutant(line: str) -> Mutant:
    words = shlex.split(line.replace("\\", "\\\\"))
    options: dict[str, str] = {}
    sources: list[str] = []
    for at, word in enumerate(words):
        if word == "-src":
            sources += [_relative(source) for source in words[at + 1].split("|")]
        elif word.startswith("-"):
            options[word[1:]] = words[at + 1]
    wire = f"{options['wire']}[{options['wirebit']}]" if "wire" in options else ""
    number = int(words[words.index("-ctrl") + 3])
    control = int(options["ctrlbit"]) if "ctrlbit" in options else None
    location = options["cell"], options["port"], int(options["portbit"]), control
    return Mutant(number, options["mode"], *location, wire, tuple(dict.fromkeys(sources)))


def _relative(source: str) -> str:
    """A source line relative to the root of the project or of its package."""
    return source.split("site-packages/")[-1].removeprefix(f"{_ROOT}/")
