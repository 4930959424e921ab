"""Amaranth component -> RTLIL -> Verilog.

The Verilog goes through yosys `proc` and light clean-up instead of `amaranth.back.verilog`: no `always @*`
processes remain, so Verilator builds three times faster and Icarus runs twice as fast.
"""

from __future__ import annotations

import gc
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from amaranth.back import rtlil
from amaranth.lib import wiring

from hw import yosys

# warnings of Verilator's -Wall that the Verilog causes, and why each one is harmless
LINT_WAIVERS = {
    "DECLFILENAME": "a unit is one file with all its modules",
    "WIDTHEXPAND": "yosys keeps the widths of operands and relies on Verilog's implicit extension",
    "WIDTHTRUNC": "yosys relies on implicit truncation of results, and writes reductions as `!vector`",
    "PROCASSINIT": "registers have their reset value also as initial value, for FPGAs and simulators",
    "UNUSEDSIGNAL": "yosys keeps vectors of which only some bits are used",
    "UNDRIVEN": "yosys removes the drivers of vector bits that nothing reads",
    "VARHIDDEN": "the functions that yosys writes for multiplexers have arguments a, b and s",
    "CASEOVERLAP": "these multiplexers are casez statements over one-hot selects",
}
LINT_BOX = "_box"  # suffix of an empty module
CLEAN_UP = ("proc", "techmap t:$fa", "memory_collect", "opt_expr", "opt_merge", "opt_dff", "pmuxtree", "opt_clean")


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Collect garbage rarely: elaboration makes millions of objects that live until its end, and takes a third less."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], 1_000_000), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def to_rtlil(component: wiring.Component, name: str, *, locations: bool = False) -> str:
    """RTLIL text of `component` as top module `name`; without `locations` of the source, equal designs give equal text.

    The text contains the modules in `component.modules` (module name -> component), of which the component has
    instances (see `hw.common.instances`).
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(f"module name must be lower-case letters, digits and underscores, got {name!r}")
    with _rare_collections():
        text = rtlil.convert(component, name=name, emit_src=locations)
    for module_name, module in getattr(component, "modules", {}).items():
        text += to_rtlil(module, module_name, locations=locations).replace("attribute \\top 1\n", "")
    return plain_cells(text)


def plain_cells(text: str) -> str:
    """RTLIL in which instances of yosys's internal cells have their plain names, which Amaranth escapes."""
    return text.replace("cell \\$fa ", "cell $fa ")


def to_verilog(component: wiring.Component, name: str, *, tool: str = "yowasp") -> str:
    """Verilog-2005 text of `component` as top module `name`."""
    return rtlil_to_verilog(to_rtlil(component, name), name, tool=tool)


def rtlil_to_verilog(
    text: str, name: str, *, tool: str = "yowasp", clean_up: Sequence[str] = CLEAN_UP, attributes: bool = False
) -> str:
    """Verilog-2005 text of the RTLIL `text` whose top module is `name`; `attributes`: keep attributes."""
    with tempfile.TemporaryDirectory(prefix="emit-") as folder:
        source, target = Path(folder) / "design.il", Path(folder) / "design.v"
        source.write_text(text)
        write = f"write_verilog {'' if attributes else '-noattr '}{target}"
        yosys.run([f"read_rtlil {source}", f"hierarchy -top {name}", *clean_up, write], tool=tool)
        body = target.read_text()
    return body.split("\n", 1)[1].lstrip("\n") if body.startswith("/* Generated") else body


def lint_text(text: str, component: wiring.Component) -> str:
    """The Verilog `text` of `component` for lint: one instance of each module of `component.modules` has content.

    The other instances are of an empty module with the same ports. Verilator flattens a design to check it, so that 64
    equal MAC trees take 9 GB. Warnings inside the module appear once; connections of every instance are checked.
    A combinational loop that needs two instances of one module is not found: lint a small configuration completely.
    """
    for name, module in getattr(component, "modules", {}).items():
        text = _one_instance(lint_text(text, module), name)
    return text


def _one_instance(text: str, module: str) -> str:
    """All instances of `module` except the first one become instances of an empty module."""
    definition = re.search(rf"^module {module}\((.*?)\);\n(.*?)^endmodule", text, re.M | re.S)
    if definition is None:
        raise ValueError(f"text must contain the module {module}, got {len(text)} characters without it")
    first, *others = re.split(rf"^(?=  {module} \S+ \($)", text, flags=re.M)
    if not others:
        return text
    empty = [part.replace(f"  {module} ", f"  {module}{LINT_BOX} ", 1) for part in others[1:]]
    declarations = re.findall(r"^  (?:input|output) .*?;", definition.group(2), re.M)
    box = [f"module {module}{LINT_BOX}({definition.group(1)});", *declarations, "endmodule"]
    return "".join([first, others[0], *empty, "\n".join(box), "\n"])
