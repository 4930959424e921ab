"""Technology mapping of one block with yosys and abc, cached by content."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hw import yosys
from synth import fanout, macros
from synth.blocks import Block, stub
from synth.library.reader import Library
from synth.macros import Macro
from synth.parasitics import Parasitics
from util.files import build_root, digest

_SIZE = "buffer -c; topo; upsize {ps}; dnsize {ps}"
POINTS = {  # objective of a mapping -> abc script
    "area": "strash; dch -f; map -a; topo",
    "balanced": f"strash; dch -f; map -B 0.9; topo; {_SIZE}",
    "fast": f"strash; &get -n; &syn3; &syn3; &b -s -d; &synch2; &put; dch; map; topo; {_SIZE}",
}
AIM = 0.7  # share of the period for which abc sizes; the rest is for registers, memories and buffer trees
SYNTH = "synth -flatten -noabc -noshare"
WRITE = "write_verilog -noattr -noexpr"
GATED_REGISTERS = 4  # registers with one enable from which a clock gate is smaller than their multiplexers


class MappingError(yosys.ToolError):
    """A block could not be mapped; no result of it is reported."""


@dataclass(frozen=True)
class Mapped:
    """A mapped block: `netlist.json`, `netlist.v` and `elaborated.il` (RTL before mapping) in `folder`.

    `from_cache`: an earlier run mapped it. `parasitics`: wires of its layout; None: a wire load per fan-out.
    """

    name: str
    folder: Path
    macros: tuple[Macro, ...]
    children: dict[str, int]
    from_cache: bool = False
    parasitics: Parasitics | None = None

    @cached_property
    def module(self) -> dict[str, Any]:
        """The netlist as yosys's JSON describes a module: `ports`, `cells`, `netnames`."""
        return json.loads((self.folder / "netlist.json").read_text())["modules"][self.name]

    @cached_property
    def cells(self) -> Counter[str]:
        """Number of cells by library cell, without macros and inner blocks."""
        separate_modules = {macro.module for macro in self.macros} | set(self.children)
        return Counter(cell["type"] for cell in self.module["cells"].values() if cell["type"] not in separate_modules)


def period_ps(clock_mhz: float) -> float:
    """Period of a clock in ps; raises `ValueError` if `clock_mhz` is not in (0, 10000]."""
    if not 0 < clock_mhz <= 10_000:
        raise ValueError(f"clock_mhz must be in (0, 10000], got {clock_mhz}")
    return 1e6 / clock_mhz


def map_block(
    block: Block,
    library: Library,
    *,
    point: str = "area",
    clock_ps: float = 1250.0,
    tool: str = "yowasp",
    macro_bits: int = macros.MIN_BITS,
    gated: int = GATED_REGISTERS,
    stubs: Sequence[Block] = (),
    inner: bool = False,
    isolated: bool = False,
) -> Mapped:
    """Map a block to `library`, or return the cached netlist of an equal run.

    Parameters
    ----------
    point : `area`, `balanced` or `fast`
    clock_ps : clock period; `balanced` and `fast` size for `AIM` of it
    macro_bits : memories of at least this many bits stay macros
    gated : registers with a common enable get a clock gate if they are at least this many; 0: no clock gates
    stubs : the inner blocks, which stay instances
    inner : the block is inside another block, which drives its inputs
    isolated : every bit of an output port has a net without other ports, as layouts need it

    Raises
    ------
    ValueError
        Unknown point, negative `gated`, or an incomplete library.
    MappingError
        yosys failed or was killed, or a cell of the design has no counterpart in the library.
    """
    if point not in POINTS:
        raise ValueError(f"point must be one of {', '.join(POINTS)}, got {point!r}")
    if gated < 0:
        raise ValueError(f"clock gating must be 0 or a number of registers, got {gated}")
    library.require(timing=True)
    script = POINTS[point].format(ps=f"-D {AIM * clock_ps:.0f}")
    adders = _adder_map(library)
    trees = Path(fanout.__file__).read_text()
    gating = _clock_gating(library, gated)
    options = [
        script,
        adders,
        *gating,
        *([_reset_map()] if gating else []),
        SYNTH,
        str(macro_bits),
        yosys.version(tool),
        library.loaded_path.name,
        trees,
        str(inner),
        *(["isolated ports"] if isolated else []),
    ]
    key = digest(block.rtlil, *(stub(b) for b in stubs), library.digest, *options)
    folder = build_root() / "mapped" / f"{_file_name(block.name)}-{point}-{key}"
    from_cache = (folder / "netlist.json").exists()
    if not from_cache:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temp_folder = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
        try:
            _run(block, library, script, adders, gating, tool, macro_bits, stubs, temp_folder)
            _buffer(block, library, tool, inner, isolated, temp_folder)
            if not folder.exists():
                temp_folder.rename(folder)
        except yosys.YosysError as error:
            raise MappingError(f"{block.name}: mapping to {library.name} failed: {error}") from error
        finally:
            shutil.rmtree(temp_folder, ignore_errors=True)
    macro_list = tuple(Macro(**entry) for entry in json.loads((folder / "macros.json").read_text()))
    mapped = Mapped(block.name, folder, macro_list, block.children, from_cache)
    if unknown := [name for name in mapped.cells if name not in library]:
        shutil.rmtree(folder)
        raise MappingError(f"{block.name}: library {library.name} has no cell for {', '.join(sorted(unknown))}")
    return mapped


def _file_name(name: str) -> str:
    return re.sub(r"\W+", "_", name)


def _run(
    block: Block,
    library: Library,
    script: str,
    adders: str,
    gating: Sequence[str],
    tool: str,
    macro_bits: int,
    stubs: Sequence[Block],
    folder: Path,
) -> None:
    top = f"\\{block.name}"
    (folder / "design.il").write_text("\n".join([block.rtlil, *(stub(b) for b in stubs)]))
    elaborated = folder / "elaborated.il"
    yosys.run(
        [
            f"read_rtlil {folder}/design.il",
            f"{SYNTH} -run begin:fine -top {top}",
            f"write_rtlil {elaborated}",
        ],
        tool=tool,
    )
    candidates = macros.find(elaborated.read_text(), _file_name(block.name))
    macro_list = [macro for macro in candidates if macro.bits >= macro_bits]
    (folder / "macros.json").write_text(json.dumps([_fields(macro) for macro in macro_list]))
    (folder / "macros.v").write_text("".join(macro.stub() for macro in macro_list))
    (folder / "adders.v").write_text(adders)
    (folder / "resets.v").write_text(_reset_map())
    (folder / "abc.script").write_text(script + "\n")
    inverter = library.inverter
    load = fanout.PORT_INVERTERS * inverter.pins[inverter.inputs[0]].capacitance * library.farads * 1e15
    (folder / "abc.constr").write_text(f"set_driving_cell {inverter.name}\nset_load {load:.4f} [all_outputs]\n")
    liberty = library.path
    unused = " ".join(f"-dont_use {cell.name}" for cell in library.cells() if cell.dont_use)
    yosys.run(
        [
            f"read_rtlil {elaborated}",
            f"read_verilog -lib {folder}/macros.v",
            f"read_liberty -lib -ignore_miss_func -ignore_miss_dir -ignore_miss_data_latch {liberty}",
            *as_macros(macro_list, top),
            f"techmap -map {folder}/adders.v t:$fa",
            f"{SYNTH} -run fine: -top {top}",
            "attrmap -remove init",
            "setundef -zero",
            *(command.format(folder=folder) for command in gating),
            f"dfflibmap {unused} -liberty {liberty}",
            f"abc -liberty {library.loaded_path} {unused} -script {folder}/abc.script -constr {folder}/abc.constr",
            "setundef -zero",
            "delete t:$scopeinfo",
            "opt_clean",
            "rename -enumerate -pattern g% c:$*",
            "rename -enumerate -pattern n% w:$*",
            f"write_json {folder}/netlist.json",
            f"{WRITE} {folder}/netlist.v",
        ],
        tool=tool,
    )


def _reset_map() -> str:
    """Techmap file that makes the reset of registers with an enable part of their data and of the enable."""
    modules = []
    for kind, enable in (("SDFFE", "E | R"), ("SDFFCE", "E")):  # the reset has priority, or the enable has
        for value, data in ((0, "D & ~R"), (1, "D | R")):
            modules.append(
                f"module \\$_{kind}_PP{value}P_ (input D, C, R, E, output Q);\n"
                f"  \\$_DFFE_PP_ _TECHMAP_REPLACE_ (.D({data}), .C(C), .E({enable}), .Q(Q));\nendmodule\n"
            )
    return "".join(modules)


def _clock_gating(library: Library, registers: int) -> list[str]:
    """yosys commands that insert clock gates; none if the library has no clock gate or `registers` is 0."""
    cell = library.clock_gate
    if cell is None or cell.gate is None or not registers:
        return []
    gate = cell.gate
    ties = " ".join(f"-tie_lo {pin}" for pin in gate.test)
    return [
        "techmap -map {folder}/resets.v",
        "simplemap",
        "opt_expr",
        "opt_merge",
        "opt_clean",
        f"clockgate -pos {cell.name} {gate.enable}:{gate.clock}:{gate.output} {ties} -min_net_size {registers}",
    ]


def _buffer(block: Block, library: Library, tool: str, inner: bool, isolated: bool, folder: Path) -> None:
    """Insert buffer trees, and with `isolated` buffers of ports, into the netlist of `_run`."""
    path = folder / "netlist.json"
    netlist = json.loads(path.read_text())
    module = netlist["modules"][block.name]
    buffers = fanout.isolate_ports(module, library) if isolated else 0
    if fanout.buffer(module, library, blocks=block.children, inner=inner) + buffers:
        path.write_text(json.dumps(netlist))
        yosys.run([f"read_json {path}", f"{WRITE} {folder}/netlist.v"], tool=tool)


def as_macros(macro_list: Sequence[Macro], top: str) -> list[str]:
    """yosys commands that turn the memory cells of module `top` into instances of their macros."""
    commands = []
    for macro in macro_list:
        cell = f"{top}/c:{_escaped(macro.cell)}"
        unset = " ".join(f"-unset {name}" for name in macros.PARAMETERS)
        commands += [f"chtype -set {macro.module} {cell}", f"setparam {unset} {cell}"]
    return commands


def _fields(macro: Macro) -> dict[str, Any]:
    return {key: value for key, value in macro.json().items() if key != "bits"}


def _escaped(name: str) -> str:
    """A cell's name as a yosys selection pattern, with wildcards and brackets escaped."""
    return re.sub(r"([\[\]*?])", r"\\\1", name.lstrip("\\"))


def _adder_map(library: Library) -> str:
    """Techmap file from yosys's `$fa` to the library's full and half adders, bit by bit; empty without such cells."""
    inputs = ("a", "b", "c")
    plain = {"Y": "a ^ b ^ c", "X": "(a * b) + (a * c) + (b * c)"}
    full = library.find(plain, 3)
    inverted = full is None
    if full is None:
        full = library.find({name: f"!({text})" for name, text in plain.items()}, 3)
    if full is None:
        return ""
    half = library.find({"Y": "a ^ b", "X": "a * b"}, 2)
    cell, outputs = full
    mark = "~" if inverted else ""
    wires = ", ".join([f".{pin}({name.upper()}[i])" for pin, name in zip(cell.inputs, inputs, strict=True)])
    wires += f", .{outputs['Y']}(y), .{outputs['X']}(x)"
    adder_text = f"wire y, x; {cell.name} adder({wires}); assign Y[i] = {mark}y; assign X[i] = {mark}x;"
    branches = [f"begin {adder_text} end"]
    if half is not None:
        small, pins = half
        for free in inputs:  # a constant zero on one input leaves a half adder
            used = [name.upper() for name in inputs if name != free]
            ends = ", ".join(f".{pin}({name}[i])" for pin, name in zip(small.inputs, used, strict=True))
            ends += f", .{pins['Y']}(Y[i]), .{pins['X']}(X[i])"
            zero = f"_TECHMAP_CONSTMSK_{free.upper()}_[i] && !_TECHMAP_CONSTVAL_{free.upper()}_[i]"
            branches.insert(0, f"if ({zero}) begin {small.name} adder({ends}); end else")
    body = "\n      ".join(branches)
    constant_names = [f"_TECHMAP_CONST{kind}_{name.upper()}_" for name in inputs for kind in ("MSK", "VAL")]
    constants = "\n".join(f"  parameter [WIDTH-1:0] {name} = 0;" for name in constant_names)
    return f"""(* techmap_celltype = "$fa" *)
module library_full_adder(A, B, C, X, Y);
  parameter WIDTH = 1;
{constants}
  input [WIDTH-1:0] A, B, C;
  output [WIDTH-1:0] X, Y;
  genvar i;
  generate
    for (i = 0; i < WIDTH; i = i + 1) begin : bits
      {body}
    end
  endgenerate
endmodule
"""
