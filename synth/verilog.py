"""Verilog of a unit for other flows, which may map it to any cells.

Compared with the Verilog that is simulated (`hw.emit`), full and half adders are modules of their own, which a flow can
replace by adder cells. Attributes `src` name the lines of the Python source. Loops set memories to zero. Comments hold
the docstrings of the unit and of the modules of which it has instances.
"""

from __future__ import annotations

import inspect
import re
import tempfile
from pathlib import Path

from amaranth.lib import wiring

from hw import emit, yosys
from util.files import ROOT

FULL_ADDER, HALF_ADDER = "vrex_full_adder", "vrex_half_adder"
ADDERS = {
    FULL_ADDER: f"""
// Full adder. Replace it by a cell of your library: sum = a ^ b ^ c, carry = majority of a, b and c.
module {FULL_ADDER}(a, b, c, sum, carry);
  input a, b, c;
  output sum, carry;
  assign sum = a ^ b ^ c;
  assign carry = (a & b) | (c & (a | b));
endmodule
""",
    HALF_ADDER: f"""
// Half adder. Replace it by a cell of your library.
module {HALF_ADDER}(a, b, sum, carry);
  input a, b;
  output sum, carry;
  assign sum = a ^ b;
  assign carry = a & b;
endmodule
""",
}
# yosys's `$fa` has sum Y and carry X; a constant zero on one input leaves a half adder
_ZERO = "_TECHMAP_CONSTMSK_{0}_[i] && !_TECHMAP_CONSTVAL_{0}_[i]"
_PAIRS = (("A", "B", "C"), ("B", "A", "C"), ("C", "A", "B"))
_HALVES = "".join(
    f"if ({_ZERO.format(zero)}) {HALF_ADDER} half (.a({a}[i]), .b({b}[i]), .sum(Y[i]), .carry(X[i]));\n      else "
    for zero, a, b in _PAIRS
)
_CONSTANTS = "".join(
    f"  parameter [WIDTH-1:0] _TECHMAP_CONST{kind}_{pin}_ = 0;\n" for pin in "ABC" for kind in ("MSK", "VAL")
)
_ADDER_MAP = f"""(* techmap_celltype = "$fa" *)
module adders(A, B, C, X, Y);
  parameter WIDTH = 1;
{_CONSTANTS}  input [WIDTH-1:0] A, B, C;
  output [WIDTH-1:0] X, Y;
  genvar i;
  generate
    for (i = 0; i < WIDTH; i = i + 1) begin : bits
      {_HALVES}{FULL_ADDER} full (.a(A[i]), .b(B[i]), .c(C[i]), .sum(Y[i]), .carry(X[i]));
    end
  endgenerate
endmodule
"""
_CLEAN_UP = ("memory_collect", "opt_expr", "opt_merge", "opt_dff", "opt_clean")
_FOLDER = re.compile(r'(?<=["|])[^"|\n]*/site-packages/')  # of installed packages, in attributes src
_ATTRIBUTE = re.compile(r"^ *\(\* (?!src\b).*\*\)\n", re.M)
_WORDS = re.compile(r"^  initial begin\n((?:    \S+ ?\[\d+\] = \d+'h0+;\n)+)  end\n", re.M)
_WORD = re.compile(r"^    (\S+ ?)\[(\d+)\] = (\d+'h0+);$", re.M)


def verilog(component: wiring.Component, name: str, *, tool: str = "yowasp") -> str:
    """Verilog-2005 text of `component` as top module `name`; `tool` is the yosys build, see `hw.yosys`.

    Raises
    ------
    hw.yosys.YosysError
        yosys failed.
    """
    text = _FOLDER.sub("", emit.to_rtlil(component, name, locations=True).replace(f"{ROOT}/", ""))
    with tempfile.TemporaryDirectory(prefix="verilog-") as temporary:
        folder = Path(temporary)
        (folder / "design.il").write_text(text)
        (folder / "map.v").write_text(_ADDER_MAP)
        (folder / "adders.v").write_text("".join(ADDERS.values()))
        read = [f"read_rtlil {folder}/design.il", f"read_verilog -lib {folder}/adders.v", f"hierarchy -top {name}"]
        adders = f"techmap -map {folder}/map.v t:$fa"
        yosys.run([*read, "proc", adders, *_CLEAN_UP, f"write_verilog {folder}/design.v"], tool=tool)
        body = (folder / "design.v").read_text().replace(f"{folder}/", "")
    body = _zero_loops(_ATTRIBUTE.sub("", body.split("\n", 1)[1].lstrip("\n")))
    for module, documented in {**getattr(component, "modules", {}), name: component}.items():
        first_line = re.search(rf"^(?: *\(\* .*\*\)\n)?module {module}\(", body, re.M)
        assert first_line is not None, f"module {module} is missing in its Verilog"
        body = body[: first_line.start()] + _comment(documented) + body[first_line.start() :]
    return body + "".join(text for module, text in ADDERS.items() if f" {module} " in body)


def _comment(component: wiring.Component) -> str:
    """The docstring of a component as Verilog comment."""
    lines = inspect.cleandoc(type(component).__doc__ or "").splitlines()
    return "".join(f"// {line}".rstrip() + "\n" for line in lines)


def _zero_loops(text: str) -> str:
    """Replace the statements that set every word of a memory to zero by a loop."""
    count = 0

    def loop(match: re.Match[str]) -> str:
        nonlocal count
        words = _WORD.findall(match[1])
        memories, zeros = {name for name, _, _ in words}, {zero for _, _, zero in words}
        if len(memories) != 1 or len(zeros) != 1 or [int(row) for _, row, _ in words] != list(range(len(words))):
            return match[0]
        count += 1
        return (
            f"  initial begin : zero_words{count}\n    integer row;\n"
            f"    for (row = 0; row < {len(words)}; row = row + 1) {memories.pop()}[row] = {zeros.pop()};\n  end\n"
        )

    return _WORDS.sub(loop, text)
