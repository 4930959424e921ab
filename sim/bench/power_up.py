"""Source override with unknown power-up values: registers and writable memories are X until reset or a write.

Amaranth gives every register its reset value as initial value, which FPGAs and two-state simulators use. A chip powers
up with random values. In a four-state simulator (Icarus) a test fails when an X reaches a value that the bench reads.
"""

from __future__ import annotations

import re

from amaranth.lib import wiring

from hw import emit
from sim.bench.build import cached_verilog

_INIT = re.compile(r"^ *attribute \\init .*\n", re.M)
_MODULE = re.compile(r"^module .*?^end\n", re.M | re.S)
_MEMORY_CELL = re.compile(r"^  cell \$(meminit|memwr)_v2 .*?^  end\n", re.M | re.S)
_MEMORY = re.compile(r'parameter \\MEMID "(.*)"')


def without_initial_values(text: str) -> str:
    """RTLIL without the initial values of registers and of memories with a write port. ROMs keep their words."""
    return _MODULE.sub(lambda module: _without_memory_words(module.group()), _INIT.sub("", text))


def _without_memory_words(module: str) -> str:
    cells = [(match.group(1), _MEMORY.findall(match.group())[0]) for match in _MEMORY_CELL.finditer(module)]
    written = {memory for kind, memory in cells if kind == "memwr"}

    def keep(match: re.Match[str]) -> str:
        initializes = match.group(1) == "meminit" and _MEMORY.findall(match.group())[0] in written
        return "" if initializes else match.group()

    return _MEMORY_CELL.sub(keep, module)


def unknown_at_power_up(component: wiring.Component, name: str) -> dict[str, str]:
    """Verilog of `component` without initial values, for `sim.bench.override.source_override`."""
    return {f"{name}.v": cached_verilog(without_initial_values(emit.to_rtlil(component, name)), name)}
