"""Area, delay and error of one MAC tree over alignment width, pipeline depth and structure. Run by hand:

python -m tests.hw.arith.bench_dot_area [LANES] [LIBRARY]

LANES (default 16): products of the tree; LIBRARY (default: the embedded one): `osu018` or Liberty files. The error is
that of a K = 4096 product of normal numbers in tiles of LANES, relative to the sum of magnitudes, in units of 2**-24.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import numpy as np
from amaranth import Cat, Const, Module, Value

from golden import bf16
from golden.bf16 import FP32
from golden.dot import matmul
from hw import emit
from hw.arith import adders, dot
from hw.arith.dot import DEPTH, DEPTHS, DotCore
from hw.common.tree import reduce_tree
from synth.area import Area, area_of_rtlil
from synth.library import reader as libraries
from synth.library.reader import Library
from synth.timing.static_timing import Timing, timing
from util.text import table

WIDTHS = (16, 18, 20, 22, 24, 27, 30)


def plain_multiply(m: Module, a: Sequence[Value], b: Sequence[Value]) -> list[Value]:
    """The multiplier as one operator a lane, for yosys to build."""
    numbers = ([Cat(*(plane[k] for plane in planes), Const(1, 1)) for k in range(len(a[0]))] for planes in (a, b))
    lanes = [dot.node(m, "product", x * y) for x, y in zip(*numbers, strict=True)]
    return [Cat(*(lane[k] for lane in lanes)) for k in range(16)]


def plain_sum(m: Module, columns: Sequence[Value], lanes: int = 1) -> tuple[list[Value], list[Value]]:
    """A balanced tree of two-operand adders instead of the carry-save tree over the lanes."""
    if lanes > 1:
        return adders.carry_save(m, columns, lanes)
    rows = [Cat(*(c[k] if k < len(c) else Const(0, 1) for c in columns)) for k in range(max(map(len, columns)))]
    total = dot.node(m, "total", reduce_tree(lambda x, y: x + y, rows)[: len(columns)])
    return list(total), [Const(0, 1)] * len(columns)


STRUCTURES = {
    "Dadda multipliers, carry-save tree": {},
    "yosys multipliers, carry-save tree": {"multiply": plain_multiply},
    "Dadda multipliers, tree of adders": {"carry_save": plain_sum},
}


@contextmanager
def structure(name: str) -> Iterator[None]:
    """Builds trees with that structure inside the block."""
    with ExitStack() as stack:
        for target, function in STRUCTURES[name].items():
            stack.enter_context(patch.object(dot, target, function))
        yield


def measure(library: Library, lanes: int, width: int, depth: int, name: str) -> tuple[Area, Timing]:
    with structure(name):
        text = emit.to_rtlil(DotCore(inputs=lanes, align_bits=width, registers=DEPTHS[depth]), "dot")
    result = area_of_rtlil(text, "dot", library, point="balanced")
    return result, timing(result, library)


def error(lanes: int, width: int) -> tuple[float, float]:
    """Mean and largest error of the product, see above."""
    rng = np.random.default_rng(1)
    x, w = (bf16.encode(rng.standard_normal((count, 4096))) for count in (16, 64))
    y = bf16.decode(matmul(x, w, lanes, width), FP32)
    off = np.abs(y - bf16.decode(x) @ bf16.decode(w).T) / (np.abs(bf16.decode(x)) @ np.abs(bf16.decode(w)).T)
    return float(off.mean() * 2**24), float(off.max() * 2**24)


def main(lanes: int = 16, liberty: Sequence[str] = ()) -> None:
    library = libraries.choose(liberty)
    default = next(iter(STRUCTURES))
    points = {(width, DEPTH, default): None for width in WIDTHS}
    points |= {(24, depth, default): None for depth in DEPTHS}
    points |= {(24, DEPTH, name): None for name in STRUCTURES}
    rows = []
    for width, depth, name in points:
        result, paths = measure(library, lanes, width, depth, name)
        mean, largest = error(lanes, width)
        slowest = paths.critical.delay_ps / paths.fo4_ps
        rows.append(
            [
                name,
                f"{width}",
                f"{depth}",
                f"{result.area_um2 / lanes:.1f}",
                f"{result.register_um2 / lanes:.1f}",
                f"{slowest:.1f}",
                f"{paths.critical.delay_ps:.0f}",
                f"{mean:.3f}",
                f"{largest:.2f}",
            ]
        )
        print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    head = ["structure", "W", "depth", "um2/MAC", "registers", "stage FO4", "ps", "mean error", "largest"]
    print(table(head, rows))
    print(f"{lanes} lanes, {library.name}, FO4 {library.fo4_ps:.2f} ps, balanced point; error in 2**-24")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 16, sys.argv[2:])
