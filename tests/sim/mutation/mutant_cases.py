"""Components and tests for the campaigns of `test_mutation.py`; one test does not check the counter."""

import numpy as np
from amaranth import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.dot import DotTree
from sim.bench.run import simulate


class Sums(wiring.Component):
    """Running sum of all words, plus the difference of two equal registers; counts the words."""

    def __init__(self, bits=8):
        self.bits = bits
        super().__init__({"i": In(stream.Signature(bits)), "o": Out(stream.Signature(bits)), "stat_words": Out(8)})

    def elaborate(self, platform):
        m = Module()
        total, copy = Signal(self.bits), Signal(self.bits)
        accepted = self.i.valid & self.i.ready
        m.d.comb += [
            self.i.ready.eq(self.o.ready),
            self.o.valid.eq(self.i.valid),
            self.o.payload.eq(total + self.i.payload + (total ^ copy)),
        ]
        with m.If(accepted):
            m.d.sync += [total.eq(total + self.i.payload), copy.eq(copy + self.i.payload)]
            m.d.sync += self.stat_words.eq(self.stat_words + 1)
        return m


class Unit(Sums):
    """A separately buildable unit."""

    @classmethod
    def from_config(cls, config):
        return cls()


class Around(wiring.Component):
    """Inverts the sums of an inner unit."""

    i: In(stream.Signature(8))
    o: Out(stream.Signature(8))

    def elaborate(self, platform):
        m = Module()
        m.submodules.inner = inner = Unit()
        wiring.connect(m, wiring.flipped(self.i), inner.i)
        m.d.comb += [
            self.o.valid.eq(inner.o.valid),
            inner.o.ready.eq(self.o.ready),
            self.o.payload.eq(~inner.o.payload),
        ]
        return m


class Outer(Around):
    """Contains a component with an inner unit, and nothing else."""

    def elaborate(self, platform):
        m = Module()
        m.submodules.around = around = Around()
        wiring.connect(m, wiring.flipped(self.i), around.i)
        wiring.connect(m, around.o, wiring.flipped(self.o))
        return m


def run(words):
    record = simulate(Sums(), "sums", {"i": words}, {"o": len(words)}, stall=0.3)
    assert record.outputs["o"].tolist() == (np.cumsum(words) % 256).tolist()
    return record


def test_sums(rng):
    run(rng.integers(0, 256, 60))


def test_sums_and_counter(rng):
    for count in (1, 2, 6, 61, 255):
        assert run(rng.integers(0, 256, count)).status["stat_words"] == count


def test_number_of_words(rng):
    """Checks the number of words, not their values."""
    simulate(Outer(), "outer", {"i": rng.integers(0, 256, 20)}, {"o": 20}, stall=0.3)


def test_of_another_component():
    simulate(DotTree(inputs=2), "dot_tree", {"i": {}}, {"o": 0})


def test_that_fails():
    run(np.array([1])).status["nothing"]
