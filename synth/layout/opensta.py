"""Static timing of a layout by OpenSTA from its netlist and its SPEF file, as an independent check."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from synth.blocks import CLOCK
from synth.layout.design import Design
from synth.layout.extraction import port_farads
from synth.layout.tools import run
from synth.library.reader import Library
from synth.netlist import Netlist
from synth.timing.analysis import Analysis

_PERIOD_NS = 1000.0  # longer than every path, so that period minus slack is the delay of the slowest path
_SLACK = re.compile(r"(-?[\d.]+)\s+slack")


def available() -> bool:
    """Whether OpenSTA is installed."""
    return shutil.which("sta") is not None


def script(design: Design, library: Library, netlist: Netlist, folder: Path) -> str:
    """Commands for OpenSTA with the constraints of `synth.timing`: a flip-flop outside every port, an ideal clock."""
    analysis = Analysis(netlist, {})
    ns = library.seconds * 1e9
    clocked = any(port.name == CLOCK for port in design.ports)
    inputs = " ".join(port.name for port in design.ports if not port.output and port.name != CLOCK)
    outputs = " ".join(port.name for port in design.ports if port.output)
    lines = [
        f"read_liberty {library.path}",
        f"read_verilog {folder / 'unit.v'}",
        f"link_design {design.name}",
        "set_cmd_units -time ns -capacitance pF",
        f"create_clock -name {CLOCK} -period {_PERIOD_NS}" + (f" [get_ports {CLOCK}]" if clocked else ""),
        f"set_clock_transition {analysis.edge_slew * ns} [get_clocks {CLOCK}]",
    ]
    if inputs:
        lines += [
            f"set_input_delay {analysis.port_delay * ns} -clock {CLOCK} [get_ports {{{inputs}}}]",
            f"set_input_transition {analysis.edge_slew * ns} [get_ports {{{inputs}}}]",
        ]
    if outputs:
        lines += [
            f"set_output_delay {analysis.port_setup * ns} -clock {CLOCK} [get_ports {{{outputs}}}]",
            f"set_load {port_farads(library) * 1e12} [get_ports {{{outputs}}}]",
        ]
    return "\n".join(
        [*lines, f"read_spef {folder / 'unit.spef'}", "report_checks -path_delay max -digits 5", "exit", ""]
    )


def slowest_ps(design: Design, library: Library, netlist: Netlist, folder: Path, *, seconds: float = 300) -> float:
    """Delay of the slowest path in ps from `unit.v` and `unit.spef` in `folder`.

    Raises
    ------
    ToolError
        OpenSTA is missing, failed, or ran longer than `seconds`.
    ValueError
        OpenSTA reports no path.
    """
    (folder / "opensta.tcl").write_text(script(design, library, netlist, folder))
    log = folder / "opensta.log"
    run(["sta", "-no_init", "-no_splash", "-exit", "opensta.tcl"], folder, log, seconds=seconds)
    slack = _SLACK.search(log.read_text())
    if slack is None:
        raise ValueError(f"{design.name}: OpenSTA must report a path, got none")
    return (_PERIOD_NS - float(slack[1])) * 1e3
