"""A component whose outputs share nets."""

from amaranth import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out


class SharedPorts(wiring.Component):
    """Outputs that are inputs, equal to each other, or constant. `width` : of the input"""

    def __init__(self, width):
        super().__init__({"a": In(width), "copy": Out(width), "first": Out(1), "second": Out(3)})

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.first.eq(self.a.xor())
        m.d.comb += [self.copy.eq(self.a), self.second.eq(Cat(self.first, 1, self.first))]
        return m
