"""Simulation Verilog of mapped netlists: models of library cells from their Liberty functions, models of memories."""

from __future__ import annotations

from amaranth.lib import wiring

from hw import emit
from synth.area import Area, area_of_rtlil
from synth.library.boolean import truth_table
from synth.library.reader import Library, embedded
from synth.library.records import ClockGate, LibraryCell


def sources(area: Area, library: Library) -> dict[str, str]:
    """Verilog files (name -> text) of a mapped unit: blocks, library cells and memories."""
    files = {f"block{k}.v": (mapped.folder / "netlist.v").read_text() for k, mapped in enumerate(area.mapped.values())}
    files["cells.v"] = "\n".join(cell_model(library.cell(name)) for name in area.cell_types)
    files["macros.v"] = "\n".join(macro.model() for mapped in area.mapped.values() for macro in mapped.macros)
    return {name: text for name, text in files.items() if text}


def of_component(component: wiring.Component, name: str) -> dict[str, str]:
    """As `sources`, for a component mapped to the embedded library at the balanced point."""
    library = embedded()
    return sources(area_of_rtlil(emit.to_rtlil(component, name), name, library, point="balanced"), library)


def cell_model(cell: LibraryCell) -> str:
    """Verilog-2005 of one cell without delay: truth tables of its outputs, and its flip-flop, if any.

    Raises
    ------
    ValueError
        The cell is a latch, or its clock is not one edge of one pin.
    """
    ports = [*cell.inputs, *cell.outputs]
    lines = [f"module {cell.name}({', '.join(ports)});"]
    lines += [f"  input {pin};" for pin in cell.inputs] + [f"  output {pin};" for pin in cell.outputs]
    if cell.gate is not None:
        return "\n".join([*lines, *_clock_gate(cell.gate), "endmodule", ""])
    names = cell.inputs
    if cell.state is not None:
        if cell.state.kind != "ff":
            raise ValueError(f"cell {cell.name} must be a flip-flop or without state, got a latch")
        state, inverse = cell.state.args[:2]
        names = (*names, state, inverse)
        lines += _state(cell, names, state, inverse)
    for pin in cell.outputs:
        lines += _lookup(f"assign {pin} =", pin, cell.pins[pin].function, names)
    return "\n".join([*lines, "endmodule", ""])


def _clock_gate(gate: ClockGate) -> list[str]:
    """Verilog statements of a clock gate: its latch and its AND."""
    return [
        "  reg open = 1'b0;",
        f"  always @* if (!{gate.clock}) open = {' | '.join((gate.enable, *gate.test))};",
        f"  assign {gate.output} = {gate.clock} & open;",
    ]


def _lookup(target: str, name: str, function: str, pins: tuple[str, ...]) -> list[str]:
    """Verilog statements that assign the value of a Liberty function of `pins` to `target`."""
    size, index = 1 << len(pins), "{" + ", ".join(reversed(pins)) + "}"
    values = truth_table(function, pins)
    return [
        f"  localparam [{size - 1}:0] table_{name} = {size}'h{values:x};",
        f"  {target} table_{name}[{index}];",
    ]


def _state(cell: LibraryCell, names: tuple[str, ...], state: str, inverse: str) -> list[str]:
    """Verilog statements of the cell's flip-flop: its state, next state, asynchronous clear and preset."""
    group = cell.state
    assert group is not None
    clocked = truth_table(group.get("clocked_on"), cell.inputs)
    edges = {truth_table(f"{sign}{pin}", cell.inputs): (edge, pin) for pin in cell.inputs
             for sign, edge in (("", "posedge"), ("!", "negedge"))}  # fmt: skip
    if clocked not in edges:
        raise ValueError(f"cell {cell.name}: clocked_on must be a pin or its inverse, got {group.get('clocked_on')!r}")
    edge, pin = edges[clocked]
    lines = [f"  reg {state} = 1'b0;", f"  wire {inverse} = ~{state};"]
    lines += _lookup("wire next =", "next", group.get("next_state"), names)
    events, branches = [f"{edge} {pin}"], []
    for kind, value in (("clear", 0), ("preset", 1)):
        if function := group.get(kind):
            lines += _lookup(f"wire {kind} =", kind, function, names)
            events.append(f"posedge {kind}")
            branches.append(f"if ({kind}) {state} <= 1'b{value}; else ")
    return [*lines, f"  always @({' or '.join(events)}) {''.join(branches)}{state} <= next;"]
