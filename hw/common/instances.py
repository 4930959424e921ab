"""Many instances of one module, which appears once in the Verilog.

Amaranth writes one copy of a module for every submodule. An `Instance` refers to a module by its name, so that the text
contains the module once. A component that uses instances has an attribute `modules`, which maps each module name to the
component. `hw.emit` adds these modules to the text.
"""

from collections.abc import Mapping
from typing import Any

from amaranth import Instance, Module, Shape, Signal
from amaranth.hdl import ValueLike
from amaranth.lib import wiring


def instantiate(m: Module, module: str, name: str, ports: Mapping[str, Any], **inputs: ValueLike) -> dict[str, Signal]:
    """Add an instance of `module` and return one new signal for each of its outputs, by port name.

    Parameters
    ----------
    module : name of the module
    name : name of the instance
    ports : members of the module's signature
    inputs : a value for every input port; also `clk` and `rst` when the module has registers

    Raises
    ------
    ValueError
        When an input is missing, unknown or of another width.
    """
    widths = {key: Shape.cast(member.shape).width for key, member in ports.items()}
    expected = {key for key, member in ports.items() if member.flow is wiring.In}
    if expected != set(inputs) - {"clk", "rst"}:
        raise ValueError(f"inputs of {module} must be {sorted(expected)}, got {sorted(inputs)}")
    connected = {}
    for key, value in inputs.items():
        width = widths.get(key, 1)
        if len(value) != width:
            raise ValueError(f"input {key} of {module} must have {width} bits, got {len(value)}")
        connected[key] = value
        if key in widths:  # not for the clock, whose second name would become the name of a port
            connected[key] = Signal(width, name=f"{name}_{key}")
            m.d.comb += connected[key].eq(value)
    outputs = {
        key: Signal(widths[key], name=f"{name}_{key}") for key, member in ports.items() if member.flow is wiring.Out
    }
    wires = {f"i_{key}": value for key, value in connected.items()}
    m.submodules[name] = Instance(module, **wires, **{f"o_{key}": value for key, value in outputs.items()})
    return outputs
