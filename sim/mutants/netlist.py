"""One netlist with many faults, of which an input chooses one.

yosys's `mutate` picks bits of cells' ports all over the flattened netlist and replaces each by 0, by 1, or by its
inverse, always or where another bit of the port is 0 or 1. Every mutant sits behind a comparison of the new input
`mutant` with its number; 0 leaves the unit as it is. So one simulator build holds a whole campaign.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from amaranth.lib import wiring

from hw import emit, yosys

SELECT, SELECT_BITS = "mutant", 16
MOST = (1 << SELECT_BITS) - 1
_FLAT = ("proc", "techmap t:$fa", "memory_collect", "opt_clean", "flatten", "opt", "wreduce", "opt")
_ROOT = str(Path(__file__).resolve().parent.parent.parent)


@dataclass(frozen=True)
class Mutant:
    """One fault.

    number : value of the input `mutant` that switches it on
    mode : const0, const1, inv, or the inverse where another bit is 0 (cnot0) or 1 (cnot1)
    cell, port, bit : where it is ; wire : the signal there, if it has a name
    sources : lines of code that the place comes from
    """

    number: int
    mode: str
    cell: str
    port: str
    bit: int
    wire: str
    sources: tuple[str, ...]

    def __str__(self) -> str:
        wire = f" ({self.wire})" if self.wire else ""
        return f"{self.number}: {self.mode} at {self.cell}.{self.port}[{self.bit}]{wire}, {', '.join(self.sources)}"


@dataclass(frozen=True)
class Mutated:
    """A unit with its mutants: `verilog`, and the netlist itself as RTLIL."""

    name: str
    mutants: tuple[Mutant, ...]
    verilog: str
    rtlil: Path


def mutated(
    component: wiring.Component, name: str, count: int, folder: Path, *, seed: int = 1, tool: str = "yowasp"
) -> Mutated:
    """`count` mutants of `component`, spread by yosys over its lines, wires and cells; files go to `folder`.

    A unit without that many places gets fewer. Raises `ValueError` for a count that is not 1 to `MOST`.
    """
    if not 1 <= count <= MOST:
        raise ValueError(f"mutants = {count}: must be 1 to {MOST}")
    folder.mkdir(parents=True, exist_ok=True)
    source, listing, netlist, verilog = (folder / file for file in ("unit.il", "list.ys", "mutated.il", "mutated.v"))
    source.write_text(emit.to_rtlil(component, name, locations=True))
    choose = f"mutate -list {count} -seed {seed} -ctrl {SELECT} {SELECT_BITS} 1 -o {listing}"
    # a choice may be ambiguous until logic settles, which is an error to a simulator that is told of `parallel_case`
    written = [f"write_rtlil {netlist}", f"write_verilog -noattr -noparallelcase {verilog}"]
    load = [f"read_rtlil {source}", f"hierarchy -top {name}"]
    yosys.run([*load, *_FLAT, choose, f"script {listing}", "opt_clean", *written], tool=tool)
    mutants = tuple(map(_mutant, listing.read_text().splitlines()))
    return Mutated(name, mutants, verilog.read_text(), netlist)


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
    where = options["cell"], options["port"], int(options["portbit"])
    return Mutant(number, options["mode"], *where, wire, tuple(dict.fromkeys(sources)))


def _short(place: str) -> str:
    """A place in the code, from the root of the project or of the package."""
    return place.split("site-packages/")[-1].removeprefix(f"{_ROOT}/")
