"""A unit as an IP block for other flows: Verilog, JSON, constraints, file list, FuseSoC core file, documents."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amaranth.hdl import Shape
from amaranth.lib import data, wiring

from hw import emit, registry, yosys
from hw.config import Config
from synth import elaborate, ipxact
from synth.mapping import period_ps
from synth.verilog import verilog as unit_verilog
from util.files import git_revision, version, write_all

CLOCK_MHZ = 800.0  # V-Rex, section VI-A
IO_DELAY_SHARE = 0.2  # share of the period that is outside the unit at each port


@dataclass(frozen=True)
class GeneratedFiles:
    """The result of `generate`.

    Attributes
    ----------
    unit : name of the unit and of its Verilog top module
    folder, files : folder and names of the files
    description : content of the unit's JSON
    """

    unit: str
    folder: Path
    files: tuple[str, ...]
    description: dict[str, Any]

    def json(self) -> dict[str, Any]:
        """The unit's JSON: configuration, ports, timing, memories, tools."""
        return self.description


def generate(
    unit: str, config: Config, folder: Path | str, *, clock_mhz: float = CLOCK_MHZ, tool: str = "yowasp"
) -> GeneratedFiles:
    """Write `unit` in `config` into `folder`: Verilog, JSON, constraints, file list, FuseSoC core file, documents.

    The documents of a unit with registers are the register map as Markdown, C header, SystemRDL and, where
    peakrdl-ipxact is installed, IP-XACT. All files are written under temporary names and then renamed.

    Parameters
    ----------
    unit : name in `hw.registry`
    clock_mhz : target of the constraints
    tool : yosys build that writes the Verilog, see `hw.yosys`

    Raises
    ------
    ValueError
        Unknown unit or tool, clock out of range, or a configuration that is invalid for the unit.
    OSError
        The folder cannot be written.
    """
    entry = registry.unit(unit)
    component = entry.build(config)
    rtlil = elaborate.rtlil(unit, config)
    verilog = unit_verilog(component, unit, tool=tool)
    description: dict[str, Any] = {
        "unit": unit,
        "summary": entry.summary,
        "module": entry.module,
        "version": version(),
        "git": git_revision(),
        "tools": {"amaranth": importlib.metadata.version("amaranth"), "yosys": yosys.version(tool)},
        "config": config.asdict(),
        "clock_mhz": clock_mhz,
        "timing": timing(component),
        "ports": ports(component, verilog, unit),
        "memories": memories(rtlil),
        "verilog": {"file": f"{unit}.v", "sha256": hashlib.sha256(verilog.encode()).hexdigest()},
    }
    files = {
        f"{unit}.v": verilog,
        f"{unit}.sdc": _sdc(unit, clock_mhz, description["ports"]),
        f"{unit}.f": f"{unit}.v\n",
        f"{unit}.core": _core(unit, entry.summary, description["version"]),
        f"{unit}.json": json.dumps(description, indent=2) + "\n",
        **_documents(component, description["version"]),
    }
    write_all(Path(folder), files)
    return GeneratedFiles(unit, Path(folder), tuple(files), description)


def _documents(component: wiring.Component, version: str) -> dict[str, str]:
    """The documents of a component; IP-XACT follows SystemRDL where `synth.ipxact` can export it."""
    documents: dict[str, str] = {}
    for name, text in getattr(component, "documents", {}).items():
        documents[name] = text
        if name.endswith(".rdl") and ipxact.installed():
            documents[f"{name.removesuffix('.rdl')}.ipxact.xml"] = ipxact.ipxact(text, version)
    return documents


def timing(component: wiring.Component) -> dict[str, Any]:
    """Latency and cycle formulas of a component."""
    return dict(getattr(component, "timing", {"latency": getattr(component, "latency", None)}))


def fields(shape: Any) -> list[dict[str, Any]]:
    """Name, offset and width of the fields of a layout; an empty list for any other shape."""
    if not isinstance(shape, data.Layout):
        return []
    return [{"name": str(key), "offset": f.offset, "width": Shape.cast(f.shape).width} for key, f in shape]


def ports(component: wiring.Component, verilog: str, name: str) -> list[dict[str, Any]]:
    """Ports of the Verilog module `name` in its order: name, direction, width, and the fields of a struct."""
    shapes: dict[str, Any] = {}
    for path, member, _ in component.signature.flatten(component):
        shapes["__".join(str(item) for item in path)] = member.shape
    header = re.search(rf"^module {name}\((.*?)\);", verilog, re.M | re.S)
    assert header is not None, f"module {name} is missing in its Verilog"
    result = []
    for port in (text.strip() for text in header.group(1).split(",")):
        declared = re.search(rf"^  (input|output) (?:\[(\d+):0\] )?{port};", verilog, re.M)
        assert declared is not None, f"port {port} is not declared"
        entry: dict[str, Any] = {
            "name": port,
            "direction": declared.group(1),
            "width": int(declared.group(2) or 0) + 1,
        }
        if layout := fields(shapes.get(port)):
            entry["fields"] = layout
        result.append(entry)
    return result


def memories(rtlil: str) -> list[dict[str, Any]]:
    """Memories of an RTLIL text: hierarchical name, depth, width and bits of each."""
    result, module = [], ""
    for line in rtlil.splitlines():
        if line.startswith("module "):
            module = line.split()[1].lstrip("\\")
        elif line.startswith("  memory "):
            words = line.split()
            width, depth = int(words[words.index("width") + 1]), int(words[words.index("size") + 1])
            name = f"{module}.{words[-1].lstrip(chr(92))}"
            result.append({"name": name, "depth": depth, "width": width, "bits": depth * width})
    return result


def _sdc(unit: str, clock_mhz: float, port_list: list[dict[str, Any]]) -> str:
    """Timing constraints of a unit."""
    period = period_ps(clock_mhz) / 1000  # ns
    io = [f"# constraints of {unit}: {clock_mhz:g} MHz, {IO_DELAY_SHARE:.0%} of a period outside at each port"]
    io += [f"create_clock -name clk -period {period:.4f} [get_ports clk]"]
    for direction in ("input", "output"):
        names = " ".join(p["name"] for p in port_list if p["direction"] == direction and p["name"] != "clk")
        io.append(f"set_{direction}_delay -clock clk {period * IO_DELAY_SHARE:.4f} [get_ports {{{names}}}]")
    return "\n".join(io) + "\n"


def _core(unit: str, summary: str, version: str) -> str:
    """FuseSoC core file of a unit."""
    lint = ", ".join(["-Wall", *(f"-Wno-{name}" for name in emit.LINT_WAIVERS)])
    return f"""CAPI=2:
name: vrex:ip:{unit}:{version}
description: {json.dumps(summary)}
filesets:
  rtl:
    files:
      - {unit}.v
    file_type: verilogSource-2005
  constraints:
    files:
      - {unit}.sdc
    file_type: SDC
targets:
  default: &default
    filesets: [rtl]
    toplevel: {unit}
  lint:
    <<: *default
    default_tool: verilator
    tools:
      verilator:
        mode: lint-only
        verilator_options: [{lint}]
  synth:
    <<: *default
    filesets: [rtl, constraints]
"""
