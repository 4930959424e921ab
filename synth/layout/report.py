"""Files of a layout: DEF, GDSII, SPEF, Verilog, picture, figures as JSON, and an HTML page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image as Picture

from synth.layout.flow import Layout
from synth.layout.gds import gds
from synth.layout.picture import picture, png
from util.files import write_all
from util.report import Column, Fact, Image, Section, Table, render, run_metadata

NO_GRID = (
    "The rows have supply rails but no straps between them, and no ring. The clock is one net without buffers. Static "
    "timing and power treat it as ideal; its wires count in the capacitance."
)


def caption(layout: Layout) -> list[str]:
    """Size, die, wires and result of the check in a few lines."""
    values, check = layout.json(), layout.connectivity
    width, height = values["die_um"]
    return [
        f"{values['unit']}: {values['cells']} cells, {values['nets']} nets",
        f"osu018, die {width:.0f} x {height:.0f} um, utilisation {values['utilisation']:.0%}",
        f"wires {values['wire_mm']:.1f} mm, {values['vias']} vias",
        f"{len(check.open_nets)} open nets, {len(check.shorts)} shorts"
        + (f", fmax {values['layout_mhz']:.0f} MHz" if layout.timing else ""),
    ]


def draw(layout: Layout, lines: Sequence[str]) -> Picture.Image:
    """The picture of a layout with `lines` above it."""
    registers = {kind for kind in layout.area.cell_types if layout.library.cell(kind).state is not None}
    return picture(
        layout.design,
        layout.lef,
        layout.placement,
        layout.wires,
        caption=lines,
        registers=frozenset(registers),
    )


def write(folder: Path, layout: Layout, command: str) -> Path:
    """Write all files of a layout into `folder`, all or none, and return the path of the page."""
    image = png(draw(layout, caption(layout)))
    page = render(f"Layout of {layout.area.unit}", list(_sections(layout, image)), {
        "command": command, **run_metadata(layout.area.config), "yosys": layout.area.tools["yosys"],
    }, "osu018, graywolf, qrouter")  # fmt: skip
    files: dict[str, str | bytes] = {
        "unit.def": layout.routed,
        "unit.gds": gds(layout.design, layout.lef, layout.placement, layout.wires),
        "unit.v": layout.design.verilog(),
        "unit.png": image,
        "layout.json": json.dumps(layout.json(), indent=2) + "\n",
        "index.html": page,
    }
    if layout.extraction:
        files["unit.spef"] = layout.extraction.spef(layout.design)
    write_all(folder, files)
    return folder / "index.html"


def _sections(layout: Layout, image: bytes) -> Iterator[Section]:
    values, check = layout.json(), layout.connectivity
    yield Section(
        "Layout",
        "Cells are grey, flip-flops blue. Metal 1, 3 and 5 are horizontal, the others vertical. The library has no "
        "public mask data, so cells show as outlines.",
        facts=[
            Fact("cells", values["cells"]),
            Fact("die", values["die_mm2"], "mm²"),
            Fact("utilisation", f"{values['utilisation']:.1%}"),
            Fact("wires", values["wire_mm"], "mm"),
            Fact("vias", values["vias"]),
            Fact("open nets", values["open_nets"]),
            Fact("shorts", values["shorts"]),
        ],
        images=[Image(image, f"Layout of {values['unit']}: cells, wires by layer and pins", wide=True)],
    )
    errors = [["open", net] for net in check.open_nets]
    errors += [["short", " and ".join(pair)] for pair in check.shorts]
    errors += [["on an obstruction", net] for net in check.obstructed]
    text = (
        "The check reads only the geometry of the result: every net is one connected piece that touches all its pins, "
        "and no shape touches another net or the inside of a cell. "
        f"{values['too_close']} pairs of shapes of two nets are closer than the spacing of their layer."
    )
    yield Section("Connectivity", text, tables=[Table(["error", "nets"], errors)] if errors else [])
    rows = [[layer, length] for layer, length in values["wire_mm_by_layer"].items()]
    yield Section("Wires", NO_GRID, tables=[Table(["layer", Column("wires", "mm", ".2f")], rows)])
    if layout.timing is None or layout.power is None:
        return
    opensta = 1e6 / values["opensta_ps"] if values["opensta_ps"] else None
    figures = [
        ["wire capacitance, pF", values["model_wire_pf"], values["wire_pf"], None],
        ["slowest path, ps", values["estimate_ps"], values["layout_ps"], values["opensta_ps"]],
        ["fmax, MHz", values["estimate_mhz"], values["layout_mhz"], opensta],
        [
            f"power at {values['clock_mhz']:g} MHz ({values['power_stimulus']}), mW",
            values["estimate_mw"],
            values["layout_mw"],
            None,
        ],
    ]
    columns: list[Column | str] = [
        "figure",
        Column("wire load per fan-out", "", ".4g"),
        Column("extracted wires", "", ".4g"),
        Column("OpenSTA with SPEF", "", ".4g"),
    ]
    path = layout.timing.critical
    steps = [[cell.instance, cell.cell, cell.through, cell.delay_ps, cell.net] for cell in path.cells]
    slowest = f"Slowest path, {path.kind}: {path.start} to {path.end}, setup with wires {path.setup_ps:.0f} ps"
    yield Section(
        "Timing and power",
        "The estimate before the layout, the values with the extracted wires, and OpenSTA on the netlist and the SPEF "
        "file.",
        tables=[
            Table(columns, figures),
            Table(["instance", "cell", "through", Column("delay", "ps", ".0f"), "net"], steps, slowest, collapsed=True),
        ],
    )
