"""Many instances of one module: Amaranth writes out every copy of a submodule, an `Instance` is written once.

A component with a `parts` property (module name -> component) has these modules emitted beside it.
"""

from collections.abc import Mapping
from typing import Any

from amaranth import Instance, Module, Shape, Signal
from amaranth.hdl import ValueLike
from amaranth.lib import wiring


def place(m: Module, part: str, name: str, ports: Mapping[str, Any], **inputs: ValueLike) -> dict[str, Signal]:
    """Add an instance of module `part`, called `name`; returns a new signal for each of its outputs.

    `ports` are the members of the part's signature; `inputs` drives every input of it, and `clk`, `rst` where it is
    sequential. Raises `ValueError` when an input is missing or unknown or has the wrong width.
    """
    widths = {key: Shape.cast(member.shape).width for key, member in ports.items()}
    wanted = {key for key, member in ports.items() if member.flow is wiring.In}
    if wanted != set(inputs) - {"clk", "rst"}:
        raise ValueError(f"inputs of {part} are {sorted(inputs)}: must be {sorted(wanted)}")
    driven = {}
    for key, value in inputs.items():
        width = widths.get(key, 1)
        if len(value) != width:
            raise ValueError(f"input {key} of {part} has {len(value)} bits: must be {width}")
        driven[key] = value
        if key in widths:  # a second name for the clock would become the name of a port
            driven[key] = Signal(width, name=f"{name}_{key}")
            m.d.comb += driven[key].eq(value)
    found = {
        key: Signal(widths[key], name=f"{name}_{key}") for key, member in ports.items() if member.flow is wiring.Out
    }
    wires = {f"i_{key}": value for key, value in driven.items()} | {f"o_{key}": value for key, value in found.items()}
    m.submodules[name] = Instance(part, **wires)
    return found
