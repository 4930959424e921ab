"""The layout of a unit: mapping, placement, routing, check, extraction, timing, power and the files of the result.

Placement and routing are kept in the build folder by the content of their input, so that a run that was interrupted
continues behind its last complete step.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hw.config import Config
from synth.area import Area, area_of_rtlil
from synth.blocks import partition
from synth.elaborate import rtlil
from synth.layout import connectivity, lef, opensta, placement, routing, tools, wires
from synth.layout.connectivity import Connectivity
from synth.layout.design import Design, design
from synth.layout.extraction import Extraction, extract
from synth.layout.lef import OSU018, Lef
from synth.layout.placement import Placement
from synth.layout.wires import Wires
from synth.library.reader import Library, choose
from synth.netlist import Netlist
from synth.parasitics import Parasitics
from synth.power.activity import Activity, guessed
from synth.power.circuit import Circuit
from synth.power.power import GUESSES, Power, power
from synth.timing.static_timing import Timing, timing
from util import checks
from util.files import build_root, digest, write, write_all
from util.text import table

MAX_CELLS = 40_000  # more take qrouter many hours
FLAT_BYTES = 3_000_000  # RTLIL text of a larger design has more than `MAX_CELLS` cells
BIT_CELLS = 3  # of a bit of memory: flip-flop, multiplexers to write and to read it
UTILISATION = 0.8
_MEMORY = re.compile(r"^  memory width (\d+) size (\d+)", re.M)
_MODULE = re.compile(r"^module \\(\S+)", re.M)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Layout:
    """A placed and routed unit.

    Attributes
    ----------
    routed : DEF text
    area : the mapped unit, with the extracted wires if the layout is clean
    estimate, timing : static timing with a wire load per fan-out, and with the extracted wires
    opensta_ps : delay of the slowest path by OpenSTA; None without OpenSTA
    estimate_power, power : power under one activity, with a wire load and with the extracted wires
    model_farads : wire capacitance of all nets by the wire load per fan-out
    extraction, timing, power are None if the layout has an open net or a short
    """

    design: Design
    lef: Lef
    library: Library
    placement: Placement
    wires: Wires
    connectivity: Connectivity
    routed: str
    area: Area
    estimate: Timing
    estimate_power: Power
    model_farads: float
    seconds: dict[str, float]
    extraction: Extraction | None = None
    timing: Timing | None = None
    power: Power | None = None
    opensta_ps: float | None = None

    def json(self) -> dict[str, Any]:
        """The figures of the layout."""
        at, check = self.placement, self.connectivity
        lengths: Counter[str] = Counter()
        for segment in self.wires.segments:
            lengths[segment.layer] += segment.length
        result: dict[str, Any] = {
            "unit": self.area.unit,
            "config": self.area.config,
            "library": self.library.json(),
            "cells": len(self.design.cells),
            "flip_flops": self.area.flip_flops,
            "nets": len(self.design.nets),
            "ports": len(self.design.ports),
            "die_um": [at.width / 1000, at.height / 1000],
            "die_mm2": at.width * at.height / 1e12,
            "cell_area_um2": round(self.area.area_um2, 1),
            "utilisation": round(at.utilisation, 4),
            "open_nets": len(check.open_nets),
            "shorts": len(check.shorts),
            "obstructed": len(check.obstructed),
            "too_close": check.close,
            "wire_mm": round(self.wires.length_um / 1000, 3),
            "wire_mm_by_layer": {layer: round(lengths[layer] / 1e6, 3) for layer in self.lef.layers},
            "vias": len(self.wires.vias),
            "model_wire_pf": round(self.model_farads * 1e12, 4),
            "estimate_ps": round(self.estimate.critical.delay_ps, 1),
            "estimate_mhz": round(self.estimate.fmax_mhz, 1),
            "estimate_mw": round(self.estimate_power.of("total") * 1e3, 4),
            "power_stimulus": self.estimate_power.stimulus,
            "clock_mhz": self.estimate_power.clock_mhz,
            "seconds": {name: round(value, 1) for name, value in self.seconds.items()},
            "tools": self.area.tools,
            "git": self.area.git,
        }
        if self.extraction and self.timing and self.power:
            sinks = sum(len(network.sinks) for network in self.extraction.networks.values())
            result |= {
                "wire_pf": round(self.extraction.farads * 1e12, 4),
                "model_error": round(self.model_farads / self.extraction.farads - 1, 4),
                "wire_um_per_sink": round(self.wires.length_um / sinks, 2),
                "wire_ff_per_um": round(self.extraction.farads * 1e15 / self.wires.length_um, 4),
                "layout_ps": round(self.timing.critical.delay_ps, 1),
                "layout_mhz": round(self.timing.fmax_mhz, 1),
                "layout_mw": round(self.power.of("total") * 1e3, 4),
                "opensta_ps": None if self.opensta_ps is None else round(self.opensta_ps, 1),
            }
        return result

    def table(self) -> str:
        """The figures as text."""
        values = self.json()
        rows = [
            ["cells, of these flip-flops", f"{values['cells']}, {values['flip_flops']}"],
            ["die", "{:.1f} x {:.1f} um".format(*values["die_um"])],
            ["utilisation of the rows", f"{values['utilisation']:.1%}"],
            ["nets, open nets, shorts", f"{values['nets']}, {values['open_nets']}, {values['shorts']}"],
            ["nets on obstructions", f"{values['obstructed']}"],
            ["shapes closer than the spacing", f"{values['too_close']}"],
            ["wires", f"{values['wire_mm']:.2f} mm"],
            ["vias", f"{values['vias']}"],
        ]
        if "wire_pf" in values:
            rows += [
                ["wire capacitance", f"{values['wire_pf']:.3f} pF"],
                ["the same by fan-out", f"{values['model_wire_pf']:.3f} pF, {values['model_error']:+.1%}"],
                ["fmax by fan-out", f"{values['estimate_mhz']:.1f} MHz"],
                ["fmax with these wires", f"{values['layout_mhz']:.1f} MHz"],
            ]
            if values["opensta_ps"]:
                rows.append(["the same by OpenSTA", f"{1e6 / values['opensta_ps']:.1f} MHz"])
            rows += [
                [f"power by fan-out, {values['power_stimulus']}", f"{values['estimate_mw']:.3f} mW"],
                ["power with these wires", f"{values['layout_mw']:.3f} mW"],
            ]
        title = f"{values['unit']}, {self.library.name}, power at {values['clock_mhz']:g} MHz"
        return "\n".join([title, table(["figure", "value"], rows)])


def guess(circuit: Circuit) -> Activity:
    """The activity that tools assume without a stimulus."""
    return guessed(circuit, GUESSES[0])


def layout(
    unit: str,
    config: Config,
    *,
    module: str | None = None,
    utilisation: float = UTILISATION,
    clock_mhz: float = 100.0,
    tool: str = "yowasp",
    seconds: float = 3600.0,
    activity: Callable[[Circuit], Activity] = guess,
    progress: Progress = lambda *_: None,
) -> Layout:
    """Place and route a unit in osu018, or only `module` of it: the name of a module of its Verilog.

    Memories become flip-flops.

    Parameters
    ----------
    utilisation : share of the rows that cells fill, 0.3 to 0.95
    clock_mhz : clock for which the mapping sizes cells, and of the power
    seconds : limit of the run time of the placer, and of that of the router
    activity : toggles of the mapped unit for its power, by default a guess

    Raises
    ------
    ToolError
        A program is missing, failed, or exceeded its time.
    ValueError
        Unknown unit or module, a value out of range, or a unit with more than `MAX_CELLS` cells.
    """
    if not 0.3 <= utilisation <= 0.95:
        raise ValueError(f"utilisation must be in [0.3, 0.95], got {utilisation:g}")
    checks.real("timeout", seconds, 1)
    tools.require()
    text = rtlil(unit, config)
    name = _module(text, unit, module)
    _fits(text, name)
    library, technology = choose(["osu018"]), lef.load()
    progress("map", 0, 1)
    area = area_of_rtlil(
        text,
        name,
        library,
        config=config.asdict(),
        point="balanced",
        clock_mhz=clock_mhz,
        tool=tool,
        macro_bits=1 << 60,
        isolated=True,
        flat_bytes=FLAT_BYTES,
    )
    progress("map", 1, 1)
    mapped = area.mapped[name]
    if area.cells > MAX_CELLS:
        raise _too_large(name, f"{area.cells}")
    netlist = design(mapped, technology)
    times: dict[str, float] = {}
    with _clock(times, "place"):
        places = _placed(netlist, technology, utilisation, seconds, progress)
    with _clock(times, "route"):
        routed = _routed(netlist, technology, places, seconds, progress)
    progress("check", 0, 1)
    with _clock(times, "check"):
        metal = wires.read(routed, technology, name)
        check = connectivity.check(netlist, technology, places, metal)
    progress("check", 1, 1)
    circuit = Circuit(area, library)
    toggles = activity(circuit)
    bare = Netlist(replace(mapped, parasitics=Parasitics({}, {}, {})), library)
    result = Layout(
        design=netlist,
        lef=technology,
        library=library,
        placement=places,
        wires=metal,
        connectivity=check,
        routed=routed,
        area=area,
        estimate=timing(area, library),
        estimate_power=power(area, circuit, toggles, clock_mhz=clock_mhz),
        model_farads=_fan_out_farads(Netlist(mapped, library), bare, utilisation),
        seconds=times,
    )
    return _extracted(result, toggles, clock_mhz) if check.clean else result


def _fan_out_farads(netlist: Netlist, bare: Netlist, utilisation: float) -> float:
    """All wires by the wire load of the library, whose lengths are those of a die with `UTILISATION`."""
    farads = float((netlist.loads - bare.loads).sum()) * netlist.library.farads
    return farads * (UTILISATION / utilisation) ** 0.5


def _extracted(plain: Layout, toggles: Activity, clock_mhz: float) -> Layout:
    """The layout with its extracted wires, and with the timing and power that follow from them."""
    library, netlist = plain.library, plain.design
    extraction = extract(netlist, plain.lef, library, plain.connectivity)
    name = plain.area.unit
    mapped = replace(plain.area.mapped[name], parasitics=extraction.parasitics(netlist, library))
    area = replace(plain.area, mapped={name: mapped})
    opensta_ps = None
    if opensta.available():
        with tempfile.TemporaryDirectory() as folder:
            files = {"unit.v": netlist.verilog(), "unit.spef": extraction.spef(netlist)}
            write_all(Path(folder), files)
            opensta_ps = opensta.slowest_ps(netlist, library, Netlist(mapped, library), Path(folder))
    return replace(
        plain,
        area=area,
        extraction=extraction,
        timing=timing(area, library),
        power=power(area, Circuit(area, library), toggles, clock_mhz=clock_mhz),
        opensta_ps=opensta_ps,
    )


@contextlib.contextmanager
def _clock(times: dict[str, float], name: str) -> Iterator[None]:
    """Measure the time of a step."""
    begin = time.perf_counter()
    yield
    times[name] = time.perf_counter() - begin


def _module(text: str, unit: str, module: str | None) -> str:
    """The top of the layout; raises `ValueError` if `module` is not a module of the unit."""
    names = _MODULE.findall(text)
    if module is None:
        return unit
    if module not in names:
        raise ValueError(f"module must be one of {len(names)} of {unit} such as {', '.join(names[:5])}, got {module!r}")
    return module


def _fits(text: str, name: str) -> None:
    """Raise `ValueError`, before the mapping, for a unit that is certainly too large."""
    modules = partition(text, name, flat_bytes=0, min_bytes=0)
    bits = sum(
        module.count * int(width) * int(rows) for module in modules for width, rows in _MEMORY.findall(module.rtlil)
    )
    if BIT_CELLS * bits > MAX_CELLS:
        raise _too_large(name, f"{bits} bits of memory, {BIT_CELLS} cells each at least")
    if len(partition(text, name, flat_bytes=FLAT_BYTES)) > 1:
        raise _too_large(name, "a design of several blocks")


def _too_large(name: str, size: str) -> ValueError:
    return ValueError(
        f"layout of {name} must have at most {MAX_CELLS} cells, got {size}; choose smaller sizes (--set) or --module"
    )


def _placed(design: Design, lef: Lef, utilisation: float, seconds: float, progress: Progress) -> Placement:
    """The placement, from the cache or by graywolf."""
    key = digest(placement.cell_file(design, lef), placement.PARAMETERS)
    path = build_root() / "layout" / f"{design.name}-{key}.pl1"
    if not path.exists():
        with tempfile.TemporaryDirectory(prefix="vrex-layout-") as folder:
            write(path, placement.place(design, lef, Path(folder), seconds=seconds, progress=progress))
    return placement.legal(design, lef, path.read_text(), utilisation)


def _routed(design: Design, lef: Lef, places: Placement, seconds: float, progress: Progress) -> str:
    """DEF text with wires, from the cache or by qrouter."""
    key = digest(routing.unrouted_def(design, lef, places), routing.script(lef, OSU018))
    path = build_root() / "layout" / f"{design.name}-{key}.def"
    if not path.exists():
        with tempfile.TemporaryDirectory(prefix="vrex-layout-") as folder:
            text = routing.route(design, lef, OSU018, places, Path(folder), seconds=seconds, progress=progress)
            write(path, text)
    return path.read_text()
