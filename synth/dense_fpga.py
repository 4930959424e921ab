"""Mapping of a large design to an ECP5 with few LUTs, at the cost of speed.

`synth_ecp5` maps for speed. A core at `tiny` then needs 93 % of the LUTs of the largest device, and 82 %
with this mapping. No router has finished either of them. The mapping differs in four points:

| what | here | `synth_ecp5` |
|---|---|---|
| products | multiplier blocks, see `hard_multipliers` | full adders, as the RTL says |
| LUTs | least number of LUTs with four inputs | least depth, LUTs with up to seven inputs |
| wide memories of few rows | block memories | distributed memories, which take the place of six LUTs for 64 bits |
| reads and writes of one row in one cycle | any data | the old data |

The last point holds because no user of `hw.common.memory.Ram` depends on these data, and a FIFO reads only rows that it
wrote before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

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
