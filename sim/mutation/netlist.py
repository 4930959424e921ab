"""One netlist with many faults, of which an input chooses one.

yosys's `mutate` picks bits of cells' ports all over the flattened netlist and replaces each by 0, by 1, or by its
inverse, always or where another bit of the port is 0 or 1. Every mutant sits behind a comparison of the new input
`mutant` with its number; 0 leaves the unit as it is. So one simulator build holds a whole campaign.

Where a unit contains others that are built and tested by themselves, these get no faults: they have a campaign each.
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
MOST = (1 << SELECT_BITS) - 1
_FLAT = ("proc", "techmap t:$fa", "memory_collect", "opt_clean", "flatten", "opt", "wreduce", "opt")
_COUNTERS = "hw/common/counters.py"
_COUNTER = re.compile(rf"(?:^|[._])(?:(?:stat|counter)_\w+|given_(?:{'|'.join(COUNTERS)}))\[(\d+)\]$")
_ROOT = str(ROOT)


@dataclass(frozen=True)
class Mutant:
    """One fault.

    number : value of the input `mutant` that switches it on
    mode : const0, const1, inv, or the inverse where bit `control` of the port is 0 (cnot0) or 1 (cnot1)
    cell, port, bit : where it is ; wire : the signal there, if it has a name
    sources : lines of code that the place comes from
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
        """So many events must be counted before the fault can show: above 1 for faults in high bits of counters that
        change nothing while these are 0."""
        counter = _COUNTER.search(self.wire)
        named = counter or self.port.startswith("stat_") or any(_COUNTERS in source for source in self.sources)
        if not named or "_bytes" in self.wire + self.port:  # which one event adds many of
            return 1
        offset = int(counter[1]) - self.bit if counter else 0
        still = {"const0": self.bit, "cnot1": self.control}.get(self.mode)
        return 1 if still is None else 1 << still + offset

    def __str__(self) -> str:
        wire = f" ({self.wire})" if self.wire else ""
        return f"{self.number}: {self.mode} at {self.cell}.{self.port}[{self.bit}]{wire}, {', '.join(self.sources)}"


@dataclass(frozen=True)
class Mutated:
    """A unit with its mutants: `verilog`, and the netlist itself as RTLIL, the units inside as modules."""

    name: str
    mutants: tuple[Mutant, ...]
    verilog: str
    rtlil: Path


def check_count(count: int) -> None:
    """ValueError for a number of mutants that is not 1 to `MOST`."""
    if not 1 <= count <= MOST:
        raise ValueError(f"mutants = {count}: must be 1 to {MOST}")


def mutated(
    component: wiring.Component, name: str, count: int, folder: Path, *, seed: int = 1, tool: str = "yowasp"
) -> Mutated:
    """`count` mutants of `component`, spread by yosys over its lines, wires and cells; files go to `folder`.

    A unit without that many places gets fewer. Raises `ValueError` for a count that is not 1 to `MOST`.
    """
    check_count(count)
    folder.mkdir(parents=True, exist_ok=True)
    source, listing, netlist, verilog = (folder / file for file in ("unit.il", "list.ys", "mutated.il", "mutated.v"))
    source.write_text(emit.to_rtlil(component, name, locations=True))
    inside = list(_units(Fragment.get(component, None), name))
    apart = [f"setattr -mod -set keep_hierarchy 1 {' '.join(inside)}"] if inside else []
    choose = f"mutate -list {count} -seed {seed} -ctrl {SELECT} {SELECT_BITS} 1 -o {listing} {name}"
    load = [f"read_rtlil {source}", f"hierarchy -top {name}"]
    yosys.run([*load, *apart, *_FLAT, choose, f"write_rtlil {netlist}"], tool=tool)
    # a unit inside whose clock were data would see what its neighbours do an edge too early
    lines = [line for line in listing.read_text().splitlines() if f"-port {CLOCK} " not in line]
    listing.write_text("\n".join(lines) + "\n")
    together = [f"setattr -mod -unset keep_hierarchy {' '.join(inside)}", "flatten", "opt_clean"] if inside else []
    place = [f"read_rtlil {netlist}", f"script {listing}", "opt_clean", f"write_rtlil {netlist}"]
    # a choice may be ambiguous until logic settles, which is an error to a simulator that is told of `parallel_case`
    yosys.run([*place, *together, f"write_verilog -noattr -noparallelcase {verilog}"], tool=tool)
    return Mutated(name, tuple(map(_mutant, lines)), verilog.read_text(), netlist)


def _units(fragment: Fragment, path: str) -> Iterator[str]:
    """Modules of the separately buildable units inside, of the outermost ones."""
    for part, name, _ in fragment.subfragments:
        below = f"{path}.{name}"
        if any(hasattr(origin, "from_config") for origin in part.origins or ()):
            yield below
        else:
            yield from _units(part, below)


def _mutant(line: str) -> Mutant:
    words = shlex.split(line.replace("\\", "\\\\"))
    options: dict[str, str] = {}
    sources: list[str] = []
    for at, word in enumerate(words):
        if word == "-src":
            sources += [_short(place) for place in words[at + 1].split("|")]
        elif word.startswith("-"):
            options[word[1:]] = words[at + 1]
    wire = f"{options['wire']}[{options['wirebit']}]" if "wire" in options else ""
    number = int(words[words.index("-ctrl") + 3])
    control = int(options["ctrlbit"]) if "ctrlbit" in options else None
    where = options["cell"], options["port"], int(options["portbit"]), control
    return Mutant(number, options["mode"], *where, wire, tuple(dict.fromkeys(sources)))


def _short(place: str) -> str:
    """A place in the code, from the root of the project or of the package."""
    return place.split("site-packages/")[-1].removeprefix(f"{_ROOT}/")
