"""Routing of a placed unit by qrouter, from a DEF file to a DEF file with wires."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from synth.layout.design import Design
from synth.layout.lef import Lef
from synth.layout.placement import Placement
from synth.layout.tools import QROUTER, run

UNITS = 1000  # DEF units per um: nm
_PROGRESS = re.compile(r"[Rr]emaining:? +(\d+)")


def unrouted_def(design: Design, lef: Lef, placement: Placement) -> str:
    """DEF of a placement: rows, tracks of half a pitch offset, cells, pins and nets."""
    lines = [
        "VERSION 5.6 ;",
        f"DESIGN {design.name} ;",
        f"UNITS DISTANCE MICRONS {UNITS} ;",
        f"DIEAREA ( 0 0 ) ( {placement.width} {placement.height} ) ;",
    ]
    for k, (x, y, sites, orient) in enumerate(placement.rows):
        lines.append(f"ROW row{k} core {x} {y} {orient} DO {sites} BY 1 STEP {lef.site} 0 ;")
    for layer in lef.layers.values():
        axis, length = ("Y", placement.height) if layer.horizontal else ("X", placement.width)
        count = (length - layer.pitch // 2) // layer.pitch + 1
        lines.append(f"TRACKS {axis} {layer.pitch // 2} DO {count} STEP {layer.pitch} LAYER {layer.name} ;")
    components = {**design.cells, **placement.fillers}
    lines.append(f"COMPONENTS {len(components)} ;")
    for name, kind in components.items():
        at = placement.cells[name]
        lines.append(f"- {name} {kind} + PLACED ( {at.x} {at.y} ) {at.orient} ;")
    lines += ["END COMPONENTS", f"PINS {len(design.ports)} ;"]
    for port in design.ports:
        pin = placement.pins[port.name]
        half = lef.layers[pin.layer].width // 2
        direction = "OUTPUT" if port.output else "INPUT"
        lines.append(
            f"- {port.name} + NET {port.net} + DIRECTION {direction} + USE SIGNAL "
            f"+ LAYER {pin.layer} ( -{half} -{half} ) ( {half} {half} ) + PLACED ( {pin.x} {pin.y} ) N ;"
        )
    nets = {**design.nets, **design.ties}
    lines += ["END PINS", f"NETS {len(nets)} ;"]
    for net, terminals in nets.items():
        # qrouter copies this section line by line: the name and the end of a net need lines of their own
        lines += [f"- {net}", *(f"  ( {instance} {pin} )" for instance, pin in terminals), ";"]
    return "\n".join([*lines, "END NETS", "END DESIGN", ""])


def script(lef: Lef, lef_path: Path) -> str:
    """Commands for qrouter, from `unit.def` to `routed.def`.

    The first stage routes every net, the second rips up and routes again until no net is open or nothing improves.
    The third stage, which routes everything once more, is not used: it can open nets again.
    """
    return f"""verbose 1
read_lef {lef_path}
layers {len(lef.layers)}
vdd vdd
gnd gnd
via stack all
read_def unit.def
set result [stage1]
puts "open nets after stage 1: $result"
foreach effort {{10 20 50 100}} {{
  if {{$result == 0}} {{break}}
  set result [stage2 effort $effort]
  puts "open nets after stage 2: $result"
}}
cleanup all
write_def routed.def
quit
"""


def route(
    design: Design,
    lef: Lef,
    lef_path: Path,
    placement: Placement,
    folder: Path,
    *,
    seconds: float,
    progress: Callable[[str, int, int], None],
) -> str:
    """Route a placed unit in `folder`; the DEF text with wires.

    Raises
    ------
    ToolError
        qrouter is missing, failed, or ran longer than `seconds`.
    """
    (folder / "unit.def").write_text(unrouted_def(design, lef, placement))
    (folder / "route.tcl").write_text(script(lef, lef_path))
    total = len(design.nets)

    def watch(text: str) -> None:
        if open_nets := _PROGRESS.findall(text[-2000:]):
            progress("route", max(total - int(open_nets[-1]), 0), total)

    progress("route", 0, total)
    run([str(QROUTER), "-noc", "-s", "route.tcl"], folder, folder / "route.log", seconds=seconds, watch=watch)
    progress("route", total, total)
    return (folder / "routed.def").read_text()
