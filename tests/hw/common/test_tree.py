"""Reductions: order, depth, and a popcount checked over every value."""

import pytest
from amaranth import Module, Signal
from amaranth.sim import Simulator

from hw.common.tree import popcount, reduce_tree


@pytest.mark.parametrize("n", range(1, 18))
def test_order_and_depth(n):
    text = reduce_tree(lambda a, b: f"({a}{b})", [chr(ord("a") + i) for i in range(n)])
    assert text.replace("(", "").replace(")", "") == "".join(chr(ord("a") + i) for i in range(n))
    depth = max(text[:i].count("(") - text[:i].count(")") for i in range(len(text) + 1))
    assert depth == (n - 1).bit_length()


def test_empty():
    with pytest.raises(ValueError, match="items is empty"):
        reduce_tree(lambda a, b: a, [])


@pytest.mark.parametrize("width", [1, 2, 3, 8])
def test_popcount(width):
    m, value, count = Module(), Signal(width), Signal(8)
    m.d.comb += count.eq(popcount(value))
    assert len(popcount(value)) == width.bit_length()

    async def bench(ctx):
        for n in range(1 << width):
            ctx.set(value, n)
            await ctx.delay(1e-9)
            assert ctx.get(count) == n.bit_count()

    sim = Simulator(m)
    sim.add_testbench(bench)
    sim.run()
