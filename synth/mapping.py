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
from util.files import build_root, digest

_SIZE = "buffer -c; topo; upsize {ps}; dnsize {ps}"
POINTS = {  # abc scripts: what a mapping aims at
    "area": "strash; dch -f; map -a; topo",
    "balanced": f"strash; dch -f; map -B 0.9; topo; {_SIZE}",
    "fast": f"strash; &get -n; &syn3; &syn3; &b -s -d; &synch2; &put; dch; map; topo; {_SIZE}",
}
AIM = 0.7  # of the period: abc sees no registers, no buffer trees and no memories, which take the rest
SYNTH = "synth -flatten -noabc -noshare"
WRITE = "write_verilog -noattr -noexpr"


class MappingError(yosys.ToolError):
    """A block could not be mapped as a whole; nothing of it is reported."""


@dataclass(frozen=True)
class Mapped:
    """A mapped block: `netlist.json`, `netlist.v` and `elaborated.il` (RTL before mapping) in `folder`.

    `kept`: an earlier run left it.
    """

    name: str
    folder: Path
    macros: tuple[Macro, ...]
    children: dict[str, int]
    kept: bool = False

    @cached_property
    def module(self) -> dict[str, Any]:
        """The netlist as yosys's JSON describes a module: `ports`, `cells`, `netnames`."""
        return json.loads((self.folder / "netlist.json").read_text())["modules"][self.name]

    @cached_property
    def cells(self) -> Counter[str]:
        """Library cells by name; macros and blocks inside are not among them."""
        apart = {macro.module for macro in self.macros} | set(self.children)
        return Counter(cell["type"] for cell in self.module["cells"].values() if cell["type"] not in apart)


def period_ps(clock_mhz: float) -> float:
    """Period of a clock in ps; `ValueError` for one that no circuit has."""
    if not 0 < clock_mhz <= 10_000:
        raise ValueError(f"clock_mhz = {clock_mhz}: must be above 0 and at most 10000")
    return 1e6 / clock_mhz


def map_block(
    block: Block,
    library: Library,
    *,
    point: str = "area",
    clock_ps: float = 1250.0,
    tool: str = "yowasp",
    macro_bits: int = macros.MIN_BITS,
    stubs: Sequence[Block] = (),
    inner: bool = False,
) -> Mapped:
    """Map a block to `library`, or take the netlist that an equal run left.

    Parameters
    ----------
    point : `area`, `balanced` or `fast`
    clock_ps : period for which `balanced` and `fast` size, aiming at `AIM` of it
    macro_bits : memories of at least so many bits stay macros
    stubs : the blocks inside, which stay instances
    inner : the block is inside another, which drives its inputs

    Raises
    ------
    ValueError
        Unknown point, or a library that cannot be mapped to.
    MappingError
        yosys failed or was killed, or a cell of the design has no counterpart in the library.
    """
    if point not in POINTS:
        raise ValueError(f"unknown point {point!r}: choose one of {', '.join(POINTS)}")
    library.require(timing=True)
    script = POINTS[point].format(ps=f"-D {AIM * clock_ps:.0f}")
    adders = _adder_map(library)
    trees = Path(fanout.__file__).read_text()
    options = [script, adders, SYNTH, str(macro_bits), yosys.version(tool), library.loaded_path.name, trees, str(inner)]
    key = digest(block.rtlil, *(stub(b) for b in stubs), library.digest, *options)
    folder = build_root() / "mapped" / f"{_file_name(block.name)}-{point}-{key}"
    kept = (folder / "netlist.json").exists()
    if not kept:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
        try:
            _run(block, library, script, adders, tool, macro_bits, stubs, aside)
            _buffer(block, library, tool, inner, aside)
            if not folder.exists():
                aside.rename(folder)
        except yosys.YosysError as error:
            raise MappingError(f"{block.name}: mapping to {library.name} failed: {error}") from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    found = tuple(Macro(**entry) for entry in json.loads((folder / "macros.json").read_text()))
    mapped = Mapped(block.name, folder, found, block.children, kept)
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
    found = macros.find(elaborated.read_text(), _file_name(block.name))
    found = [macro for macro in found if macro.bits >= macro_bits]
    (folder / "macros.json").write_text(json.dumps([_fields(macro) for macro in found]))
    (folder / "macros.v").write_text("".join(macro.stub() for macro in found))
    (folder / "adders.v").write_text(adders)
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
            *as_macros(found, top),
            f"techmap -map {folder}/adders.v t:$fa",
            f"{SYNTH} -run fine: -top {top}",
            "attrmap -remove init",
            "setundef -zero",
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


def _buffer(block: Block, library: Library, tool: str, inner: bool, folder: Path) -> None:
    """Put buffer trees into what `_run` wrote."""
    path = folder / "netlist.json"
    netlist = json.loads(path.read_text())
    if fanout.buffer(netlist["modules"][block.name], library, blocks=block.children, inner=inner):
        path.write_text(json.dumps(netlist))
        yosys.run([f"read_json {path}", f"{WRITE} {folder}/netlist.v"], tool=tool)


def as_macros(found: Sequence[Macro], top: str) -> list[str]:
    """yosys commands that turn the memory cells of module `top` into instances of their macros."""
    commands = []
    for macro in found:
        cell = f"{top}/c:{_escaped(macro.cell)}"
        unset = " ".join(f"-unset {name}" for name in macros.PARAMETERS)
        commands += [f"chtype -set {macro.module} {cell}", f"setparam {unset} {cell}"]
    return commands


def _fields(macro: Macro) -> dict[str, Any]:
    return {key: value for key, value in macro.json().items() if key != "bits"}


def _escaped(name: str) -> str:
    """A cell's name as a yosys selection pattern: wildcards and brackets stand for themselves."""
    return re.sub(r"([\[\]*?])", r"\\\1", name.lstrip("\\"))


def _adder_map(library: Library) -> str:
    """Techmap file that turns yosys's `$fa` into the library's full and half adders, bit by bit; empty without them."""
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
    one = f"wire y, x; {cell.name} adder({wires}); assign Y[i] = {mark}y; assign X[i] = {mark}x;"
    branches = [f"begin {one} end"]
    if half is not None:
        small, pins = half
        for free in inputs:  # a constant zero on one input leaves a half adder
            used = [name.upper() for name in inputs if name != free]
            ends = ", ".join(f".{pin}({name}[i])" for pin, name in zip(small.inputs, used, strict=True))
            ends += f", .{pins['Y']}(Y[i]), .{pins['X']}(X[i])"
            zero = f"_TECHMAP_CONSTMSK_{free.upper()}_[i] && !_TECHMAP_CONSTVAL_{free.upper()}_[i]"
            branches.insert(0, f"if ({zero}) begin {small.name} adder({ends}); end else")
    body = "\n      ".join(branches)
    known = [f"_TECHMAP_CONST{kind}_{name.upper()}_" for name in inputs for kind in ("MSK", "VAL")]
    constants = "\n".join(f"  parameter [WIDTH-1:0] {name} = 0;" for name in known)
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
