"""Mapping of a large design to an ECP5 with few LUTs, at the cost of speed.

`synth_ecp5` maps for speed. A core at `tiny` then needs 93 % of the LUTs of the largest device, and 82 %
with this mapping. The mapping differs in four points:

| what | here | `synth_ecp5` |
|---|---|---|
| products | multiplier blocks, see `hard_multipliers` | full adders, as the RTL says |
| LUTs | least number of LUTs with four inputs | least depth, LUTs with up to seven inputs |
| wide memories of few rows | block memories | distributed memories, which take the place of six LUTs for 64 bits |
| reads and writes of one row in one cycle | any data | the old data |

The last point holds because no user of `hw.common.memory.Ram` depends on these data, and a FIFO reads only rows that it
wrote before.

`make_room` then adds LUTs without a function where wires are dense. `synth.board.DENSE_ROUTING` selects the placer and
the router; `hw/boards/README.md` has the results.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from amaranth import Cat, Const, Module, Signal, Value

import hw.arith.dot
import hw.arith.elementary

OPTIONS = "-top top -nowidelut -cmp2softlogic"
COLLISIONS = "t:$mem_v2 r:RD_TRANSPARENCY_MASK=1'0 %i r:RD_CLK_ENABLE=1'1 %i"  # one read port, not transparent
BLOCKS = (  # memories for block memory: at least 60 bits and 6 rows, or at least 90 bits and any number of rows
    "t:$mem_v2 r:WIDTH>=60 %i r:SIZE>=6 %i",
    "t:$mem_v2 r:WIDTH>=90 %i r:WR_PORTS>=1 %i",
)
LUTS = (  # script of ABC: logic optimisation, choices, mapping for area, then three methods that remove LUTs
    "strash;&get,-n;&fraig,-x;&put;scorr;dc2;strash;dch,-f;if,-a;mfs2,-a;&get,-mn;&satlut;&put;lutpack,-S,1"
)

IDLE_LUTS = {".kvmu.": 0.75, ".vector.engine.": 0.28}  # for each LUT whose name contains the text


def commands(source: Path, target: Path) -> list[str]:
    """Commands of yosys that map the RTLIL `source` with the top module `top` and write the netlist `target`."""
    return [
        f"read_rtlil {source}",
        f"synth_ecp5 {OPTIONS} -run begin:map_ram",
        f"setparam -set RD_COLLISION_X_MASK 1'1 {COLLISIONS}",
        *(f'setattr -set ram_style "block" {selection}' for selection in BLOCKS),
        f"synth_ecp5 {OPTIONS} -run map_ram:map_luts",
        f"abc -lut 4 -script +{LUTS}",
        "clean",
        f"synth_ecp5 {OPTIONS} -json {target} -run map_cells:",
    ]


def multiply_planes(m: Module, a: Sequence[Value], b: Sequence[Value]) -> list[Value]:
    """As `hw.arith.dot.multiply`, with one product per lane."""
    products = Signal(16 * len(a[0]))
    for lane in range(len(a[0])):
        x, y = (Cat(*(plane[lane] for plane in planes), Const(1, 1)) for planes in (a, b))
        m.d.comb += products[16 * lane : 16 * lane + 16].eq(x * y)
    return [products[k::16] for k in range(16)]


def multiply(m: Module, name: str, a: Value, b: Value) -> Value:
    """As `hw.arith.elementary.multiply`, with a product."""
    product = Signal(len(a) + len(b), name=name)
    m.d.comb += product.eq(a * b)
    return product


@contextmanager
def hard_multipliers() -> Iterator[None]:
    """Write products of two variables as `*`, which yosys maps to multiplier blocks, while designs are elaborated."""
    saved = hw.arith.dot.multiply, hw.arith.elementary.multiply
    hw.arith.dot.multiply, hw.arith.elementary.multiply = multiply_planes, multiply
    try:
        yield
    finally:
        hw.arith.dot.multiply, hw.arith.elementary.multiply = saved


def make_room(netlist: Path) -> None:
    """Add idle LUTs to a netlist of yosys, a JSON file with the top module `top`.

    The components of the KVMU exchange blocks of 256 bits, and the lanes of the vector engine numbers of 32 bits. If
    all LUTs of a tile are used there, they need more wires than the tile has. An idle LUT takes the site of a LUT and
    needs one wire instead of four: its only input is the output of another LUT, near which the placer puts it, and it
    has no output. The layout of chips has the same method, cell padding.
    """
    content = json.loads(netlist.read_text())
    cells = content["modules"]["top"]["cells"]
    nets = [bit for cell in cells.values() for bits in cell["connections"].values() for bit in bits]
    unused = max(bit for bit in nets if isinstance(bit, int)) + 1
    idle: list[dict[str, Any]] = []
    for text, share in IDLE_LUTS.items():
        luts = [cell for name, cell in cells.items() if cell["type"] == "LUT4" and text in name]
        count = round(share * len(luts))
        for number in range(count):
            near = luts[number * len(luts) // count]
            pins = {"A": near["connections"]["Z"], **{pin: ["1"] for pin in "BCD"}, "Z": [unused + len(idle)]}
            idle.append({**near, "parameters": {"INIT": "0" * 16}, "attributes": {}, "connections": pins})
    cells.update({f"idle_lut{number}": cell for number, cell in enumerate(idle)})
    netlist.write_text(json.dumps(content))
