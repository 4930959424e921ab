from amaranth import Instance, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw import emit
from synth.blocks import partition


class Leaf(wiring.Component):
    a: In(8)
    y: Out(8)

    def __init__(self, step=1):
        self.step = step
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        total = Signal(8)
        m.d.sync += total.eq(total + self.a + self.step)
        m.d.comb += self.y.eq(total * 3)
        return m


class Pair(wiring.Component):
    a: In(8)
    y: Out(8)

    def elaborate(self, platform):
        m = Module()
        m.submodules.first = first = Leaf()
        m.submodules.second = second = Leaf()
        m.d.comb += [first.a.eq(self.a), second.a.eq(first.y), self.y.eq(second.y)]
        return m


class Top(wiring.Component):
    a: In(8)
    y: Out(8)

    def elaborate(self, platform):
        m = Module()
        value = self.a
        for k, part in enumerate((Pair(), Pair(), Leaf(2), Pair())):
            m.submodules[f"part{k}"] = part
            m.d.comb += part.a.eq(value)
            value = part.y
        m.d.comb += self.y.eq(value)
        return m


def test_small_designs_stay_whole():
    text = emit.to_rtlil(Top(), "top")
    (block,) = partition(text, "top")
    assert block.name == "top" and block.count == 1 and not block.children
    assert block.rtlil.count("\nmodule ") + block.rtlil.startswith("module ") >= 4


class Foreign(wiring.Component):
    a: In(8)
    y: Out(8)

    def elaborate(self, platform):
        m = Module()
        m.submodules.top = top = Top()
        m.d.comb += top.a.eq(self.a)
        m.submodules.foreign = Instance("foreign", i_a=top.y, o_y=self.y)
        return m


def test_small_modules_and_those_that_are_not_there_stay_inside():
    text = emit.to_rtlil(Foreign(), "outside")
    (block,) = partition(text, "outside", flat_bytes=100, min_bytes=1 << 20)
    assert block.rtlil.count("cell \\foreign \\foreign") == 1 and not block.children


def test_equal_modules_are_one_block_and_counted():
    text = emit.to_rtlil(Top(), "top")
    blocks = partition(text, "top", flat_bytes=100, min_bytes=10)
    counts = {block.name: block.count for block in blocks}
    assert blocks[-1].name == "top"
    assert sorted(counts.values()) == [1, 1, 3, 6]
    pair = next(block for block in blocks if block.count == 3)
    leaf = next(block for block in blocks if block.count == 6)
    assert pair.children == {leaf.name: 2}
    other = next(block for block in blocks if block.count == 1 and block.name != "top")
    assert blocks[-1].children == {pair.name: 3, other.name: 1}
    assert blocks.index(leaf) < blocks.index(pair)


def test_content_decides_not_the_names():
    text = emit.to_rtlil(Top(), "top")
    renamed = text.replace("top.part1", "top.other")
    first, second = (partition(t, "top", flat_bytes=100, min_bytes=10) for t in (text, renamed))
    assert [(b.count, sorted(b.children.values())) for b in first] == [
        (b.count, sorted(b.children.values())) for b in second
    ]
